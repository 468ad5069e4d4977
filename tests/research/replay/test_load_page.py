"""The page of predictions for many clips at once shows what the command prints now."""

import re
import shlex
from pathlib import Path

from research.simulate import main

PAGE = (Path(__file__).resolve().parents[3] / "docs/research/load.md").read_text(encoding="utf-8")


def test_every_table_is_what_the_command_above_it_prints(capsys):
    shown = re.findall(r"```console\n\$ python -m research\.simulate (.*?)\n```\n\n(.*?\n)(?=\n#|\Z)", PAGE, re.DOTALL)
    assert shown and len(shown) == PAGE.count("```console")
    outside = PAGE
    for command, output in shown:
        main(shlex.split(command))
        assert capsys.readouterr().out == output, command
        outside = outside.replace(output, "")
    assert not re.search(r"^\|", outside, re.MULTILINE), "a table that no command printed"
