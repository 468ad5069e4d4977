"""Runs of version 0.4.0 resume: the settings of its records are those of the same command today.

``tests/runs/version_0_4_0`` has what it wrote for the built-in clip: journals, a caption file, and the settings of
records by command line.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from vidspec.embedded.samples import shipped
from vidspec.runs import planning

BEFORE = Path(__file__).parents[1] / "runs/version_0_4_0"
SHORT = ("--frames", "4", "--max-new-tokens")
COMMANDS = {
    "film.jsonl": ("clip.mp4", "--segment", "4s", "--context", "--template", "ohwx, {caption}", *SHORT, "12"),
    "asked.jsonl": ("--manifest", "m.jsonl", *SHORT, "8"),
}


@pytest.fixture
def earlier(vidspec):
    """A folder as version 0.4.0 left it."""
    shutil.copy(next(one for one in shipped() if one.stem == "three-objects"), "clip.mp4")
    os.utime("clip.mp4", (1_700_000_000, 1_700_000_000))
    for name in ("film.jsonl", "asked.jsonl", "clip.txt", "m.jsonl"):
        shutil.copy(BEFORE / name, name)
    shutil.copy(BEFORE / "hidden.jsonl", ".vidspec.jsonl")
    return vidspec


@pytest.mark.parametrize(
    "about", json.loads((BEFORE / "settings.json").read_text()), ids=lambda one: " ".join(one["args"])
)
def test_settings_of_records_are_those_of_0_4_0(earlier, monkeypatch, about):
    made, plan = [], planning.plan
    monkeypatch.setattr(planning, "plan", lambda *args, **options: made.append(plan(*args, **options)) or made[-1])
    assert earlier("caption", *about["args"], "--format", "jsonl", "--dry-run").code == 0
    assert [made[0].settings_of(entry) for entry in made[0].entries] == about["settings"]


@pytest.mark.parametrize("file", COMMANDS)
def test_a_journal_of_0_4_0_resumes(earlier, file):
    before = Path(file).read_bytes()
    ran = earlier("caption", *COMMANDS[file], "-o", file)
    assert ran.code == 0 and "done before" in ran.err and Path(file).read_bytes() == before


def test_caption_files_of_0_4_0_resume(earlier):
    before = Path("clip.txt").read_bytes()
    ran = earlier("caption", "clip.mp4", "--format", "txt", "--style", "brief", *SHORT, "8")
    assert ran.code == 0 and "1 of 1 clip done before" in ran.err and Path("clip.txt").read_bytes() == before
