"""The pruner in docs/extend/parts.md works as it stands there: both files, both commands."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from research.results import __main__ as results
from tests.plugins import forget_plugins
from tests.pruning.given import irregular_tokens, random_signals, visual_tokens
from vidspec import cli
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.pruning.base import kept_count, pruners
from vidspec.registry import build_part

PAGE = Path(__file__).resolve().parents[1] / "docs/extend/parts.md"
FILES = {"python": "inner_attention.py", "yaml": "inner.yaml"}


@pytest.fixture(scope="module")
def blocks():
    text = PAGE.read_text(encoding="utf-8")
    example = text.split("<!-- example: pruner -->", 1)[1].split("<!-- end of example -->", 1)[0]
    found = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", example, re.DOTALL):
        found[language] = found.get(language, "") + block.replace("\\\n", " ")
    assert all(f"`{name}`" in example for name in FILES.values())
    return found


@pytest.fixture
def folder(blocks, tmp_path, monkeypatch):
    """The files as a reader would write them, a clip, and no trace of the plugin afterwards."""
    for language, name in FILES.items():
        (tmp_path / name).write_text(blocks[language], encoding="utf-8")
    shutil.copy(shipped()[0], tmp_path / "clip.mp4")
    (tmp_path / "clips").mkdir()
    for number in range(8):
        shutil.copy(shipped()[number % 4], tmp_path / f"clips/{number}.mp4")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "6")
    monkeypatch.setenv("VIDSPEC_GENERATE__MAX_NEW_TOKENS", "8")
    yield tmp_path
    forget_plugins()


def command(blocks, program):
    (line,) = [line for line in blocks["console"].splitlines() if line.startswith(f"$ {program} ")]
    words = shlex.split(line.removeprefix(f"$ {program} "))
    return [name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]


def test_the_pruner_keeps_its_contract(folder):
    prune = profiles.load("inner.yaml", env={}).prune
    pruner = build_part(pruners.get(prune.method), {**prune.model_dump(), "options": {"border": 2}}, depth=4)
    assert pruner.border == 2
    for visual in (visual_tokens(4, 6, 5), visual_tokens(2, 3, 3), irregular_tokens(3, 5, 4)):
        for alpha in (0.0, 0.5, 0.9, 0.99):
            kept = pruner(random_signals(visual, pruner.needs), alpha)
            assert len(kept) == kept_count(len(visual), alpha) and kept.tolist() == sorted(set(kept.tolist()))
    visual = visual_tokens(4, 6, 5)
    kept = pruner(random_signals(visual, pruner.needs), 0.7)
    assert torch.isin(visual.row[kept[:-1]], torch.tensor([2, 3])).all() and kept[-1] == len(visual) - 1


@pytest.mark.full
def test_the_commands_work(folder, blocks, capsys, monkeypatch):
    assert cli.main(["caption", *command(blocks, "vidspec caption")]) == 0
    assert capsys.readouterr().out.strip()
    assert 'class="veil"' in Path("inner.html").read_text(encoding="utf-8")
    monkeypatch.setattr("vidspec.bench.measure.copy_bandwidth", lambda device: 1e9)
    small = ("--repeats", "1", "--frames", "6", "--max-new-tokens", "8")
    assert cli.main(["bench", *command(blocks, "vidspec bench"), *small]) == 0
    out = capsys.readouterr().out
    assert "| inner.yaml | 8/8 |" in out  # the same tokens as plain decoding
    assert [line.split("|")[1].strip() for line in out.splitlines() if "| 8/8 |" in line] == [
        "ar",
        "sd-attention-chain",
        "inner.yaml",
        "inner.yaml+prune.options.border=0",
    ]
    assert results.main(command(blocks, "python -m research.results")) == 0
    assert "| inner.yaml |" in capsys.readouterr().out
    assert Path("inner.tex").read_text(encoding="utf-8").count(r" \\") == 5
