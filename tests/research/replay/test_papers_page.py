"""The results of replayed tables say what the command says now."""

import json
import re
from pathlib import Path

import pytest

from research import simulate
from research.pages import papers
from research.replay.tables import names

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "research" / "measured" / "papers.json"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def page():
    return papers.page()


def test_the_committed_results_are_current(page):
    (output,) = json.loads(RESULTS.read_text(encoding="utf-8"))["output"]
    assert output == page.splitlines(), "python -m research.evidence papers --again"


def test_every_table_has_a_row_and_the_page_stays_readable(page):
    rows = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert rows == names()
    assert len(page.encode()) < 10_000


def test_contradictions_are_notes_that_the_command_prints(page, capsys):
    notes = re.split(r"^`parallelvlm-7`$", page, flags=re.MULTILINE)[1].split("\n`")[0].strip().splitlines()
    simulate.main(["--table", "parallelvlm-7", "--format", "markdown"])
    printed = capsys.readouterr().out
    assert len(notes) == 2 and all(note in printed for note in notes)
    assert "is what was used" not in page and "Assumed for" not in page
