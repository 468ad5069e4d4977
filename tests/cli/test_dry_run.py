"""``--dry-run``: what it says is what a run does, and it does nothing."""

import shutil
from pathlib import Path

import pytest

from tests.cli.effects import files_here
from tests.fake_captioner import FakeCaptioner
from vidspec.embedded.samples import shipped
from vidspec.video import probe


@pytest.fixture
def clips():
    Path("clips").mkdir()
    for name in ("a", "b", "c"):
        shutil.copy(shipped()[0], f"clips/{name}.mp4")
    Path("clips/bad.mp4").write_bytes(b"x")
    return "clips"


@pytest.fixture
def length():
    return probe(shipped()[0]).duration_s


def states(ran):
    return [line.split("\t")[0] for line in ran.out.splitlines()]


def test_it_writes_nothing_and_loads_nothing(vidspec, clips, length):
    before = files_here()
    for args in (("-o", "out.jsonl", "--format", "jsonl"), ("--format", "srt,csv", "--output-dir", "new"), ()):
        ran = vidspec("caption", clips, "--dry-run", *args)
        assert (ran.code, states(ran)) == (1, ["caption", "caption", "unreadable", "caption"])
        assert ran.out.splitlines()[0] == f"caption\t{length:.1f}\t\tclips/a.mp4"
        assert "clips/bad.mp4" in ran.err and "4 clips: 3 to caption (42 s of video), 1 unreadable" in ran.err
    assert files_here() == before and not FakeCaptioner.made and not Path("new").exists()


@pytest.mark.parametrize("form", ["json", "srt,csv"])
def test_clips_done_before_are_told_apart(vidspec, clips, form):
    args = ("--format", form, "--output-dir", "out")
    vidspec("caption", "clips/a.mp4", "clips/bad.mp4", *args)
    before = files_here()
    ran = vidspec("caption", clips, *args, "--dry-run")
    assert states(ran) == ["done", "caption", "done", "caption"], "the fake captions what is no video"
    assert "4 clips: 2 to caption (28 s of video), 2 done before" in ran.err and files_here() == before
    assert states(vidspec("caption", clips, *args, "--dry-run", "--overwrite")).count("caption") == 3
    other = vidspec("caption", clips, *args, "--dry-run", "--prompt", "Why?")
    assert states(other).count("caption") == 3


def test_a_torn_or_locked_journal_is_looked_at_as_it_is(vidspec, clips):
    vidspec("caption", "clips/a.mp4", "clips/b.mp4", "--format", "json", "-o", "out.json")
    whole = Path("out.json").read_bytes()
    Path("out.json").write_bytes(whole[:-20])
    ran = vidspec("caption", "clips/a.mp4", "clips/b.mp4", "--format", "json", "-o", "out.json", "--dry-run")
    assert (ran.code, states(ran)) == (0, ["done", "caption"]) and Path("out.json").read_bytes() == whole[:-20]


def test_segments_and_parts(vidspec, clips, length):
    ran = vidspec("caption", "clips/a.mp4", "--segment", "1", "--start", "0:01", "--dry-run", "-o", "x")
    assert ran.out == f"caption\t{length - 1:.1f}\t1-end\tclips/a.mp4\n" and "segments)" in ran.err
    late = vidspec("caption", "clips/a.mp4", "--start", "1:00:00", "--dry-run")
    assert late.code == 1 and states(late) == ["unreadable"] and "has no frame at 3600 s" in late.err


def test_a_missing_file_of_a_clip_is_not_written(vidspec, clips):
    assert vidspec("caption", clips, "--format", "txt").code in (0, 1)
    (file, *_) = sorted(Path(clips).rglob("*.txt"))
    file.unlink()
    assert vidspec("caption", clips, "--format", "txt", "--dry-run").code in (0, 1) and not file.exists()
    assert vidspec("caption", clips, "--format", "txt").code in (0, 1) and file.exists()


def test_failures_before_are_told_apart(vidspec, clips):
    Path("clips/missing.mp4").write_bytes(Path("clips/a.mp4").read_bytes())
    args = ("caption", "clips/a.mp4", "clips/missing.mp4", "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*args)
    assert states(vidspec(*args, "--dry-run")) == ["done", "failed"]
    assert states(vidspec(*args, "--dry-run", "--retry-failed")) == ["done", "caption"]


def test_mistakes_are_those_of_a_run(vidspec, clips):
    ran = vidspec("caption", clips, "--dry-run", "-o", "no/out")
    assert (ran.code, ran.err) == (2, "error: --output no/out: there is no folder no\n")


def test_a_name_cannot_forge_a_line(vidspec):
    shutil.copy(shipped()[0], name := "a\n\x1b[2Jdone\t.mp4")
    ran = vidspec("caption", name, "--dry-run")
    (line,) = ran.out.splitlines()
    assert line.endswith("\ta\\n\\x1b[2Jdone\\t.mp4") and "\x1b" not in ran.out + ran.err
