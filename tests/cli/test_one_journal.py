"""A run with several formats: its records are kept once, and each format shows them."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.effects import files_here, streamed_paths
from tests.fake_captioner import FakeCaptioner

BOTH = ("--format", "jsonl,csv", "-o", "out")


@pytest.fixture(autouse=True)
def clips():
    for name in ("k/a/good.mp4", "k/b/good.mp4"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"x")


def captioned():
    paths = streamed_paths()
    FakeCaptioner.made.clear()
    return paths


def journals():
    """Hidden files with records; the one beside a JSONL describes its runs only."""
    return sorted(path.name for path in Path().rglob(".*.jsonl") if '"caption": ' in path.read_text())


def test_there_is_one_journal_and_the_lines_are_those_of_a_run_in_one_format(vidspec):
    assert vidspec("caption", "k", *BOTH).code == 0 and journals() == [".out.csv.vidspec.jsonl"]
    assert vidspec("caption", "k", "-o", "alone.jsonl").code == 0
    assert Path("out.jsonl").read_bytes() == Path("alone.jsonl").read_bytes()
    assert Path("out.csv").read_text().count("good.mp4") == 2
    before = files_here()
    captioned()
    assert vidspec("caption", "k", *BOTH).code == 0 and not captioned() and files_here() == before


def test_a_format_is_added_without_captioning(vidspec):
    vidspec("caption", "k", "-o", "out.jsonl")
    lines = Path("out.jsonl").read_bytes()
    captioned()
    assert "done" in vidspec("caption", "k", *BOTH, "--dry-run").out and journals() == []
    assert vidspec("caption", "k", *BOTH).code == 0 and not captioned()
    assert Path("out.jsonl").read_bytes() == lines and Path("out.csv").read_text().count("good.mp4") == 2
    assert vidspec("caption", "k", "-o", "out.jsonl").code == 0 and not captioned()
    assert vidspec("caption", "k", "-o", "out.csv").code == 0 and not captioned()
    assert not list(Path().rglob("*~"))


def test_a_folder_has_one_journal_whatever_its_formats(vidspec):
    place = ("--output-dir", "out")
    for form in ("csv", "csv,txt", "csv", "txt,jsonl", "jsonl,csv,srt"):
        assert vidspec("caption", "k", "--format", form, *place).code == 0
    assert len(captioned()) == 2
    assert journals() == [".vidspec.jsonl"] and Path("out/.captions.csv.vidspec.jsonl~").exists()
    assert {path.suffix for path in Path("out").rglob("[!.]*") if path.is_file()} == {".csv", ".txt", ".jsonl", ".srt"}


def test_records_that_version_0_3_0_kept_for_each_format_are_read(vidspec):
    """Those of a clip that only one of them has too."""
    vidspec("caption", "k/a", "--format", "csv", "-o", "out.csv")
    vidspec("caption", "k", "--format", "text", "-o", "out.txt")
    captioned()
    two = ("--format", "csv,text", "-o", "out")
    assert vidspec("caption", "k", *two).code == 0 and not captioned()
    assert Path("out.csv").read_text().count("good.mp4") == Path("out.txt").read_text().count("good.mp4") == 2
    assert journals() == [".out.csv.vidspec.jsonl"]
    assert vidspec("caption", "k", "--format", "text", "-o", "out.txt").code == 0 and not captioned()


def test_a_table_that_was_edited_is_refused_before_records_are_moved(vidspec):
    for form in ("csv", "text"):
        vidspec("caption", "k", "--format", form, "-o", f"out.{form[:3]}")
    os.rename("out.tex", "out.txt")
    os.rename(".out.tex.vidspec.jsonl", ".out.txt.vidspec.jsonl")
    before = files_here()
    ran = vidspec("caption", "k", "--format", "csv,text", "-o", "out")
    assert ran.code == 2 and "out.txt: " in ran.err and files_here() == before


def test_an_edited_line_counts_and_the_file_is_kept(vidspec):
    vidspec("caption", "k", *BOTH)
    edited = Path("out.jsonl").read_text().replace("A red circle", "A blue one", 1)
    Path("out.jsonl").write_text(edited)
    Path("k/c").mkdir()
    Path("k/c/good.mp4").write_bytes(b"x")
    ran = vidspec("caption", "k", *BOTH, "--quiet")
    assert ran.code == 0 and "out.jsonl: the earlier file is now out.jsonl~" in ran.err
    assert Path("out.jsonl~").read_text() == edited and len(captioned()) == 3
    captions = [json.loads(line)["caption"] for line in Path("out.jsonl").read_text().splitlines()]
    assert [one.split()[1] for one in captions] == ["blue", "red", "red"]
    assert "A blue one" in Path("out.csv").read_text()


def test_segments_are_taken_over_also_by_a_run_that_was_killed_meanwhile(vidspec):
    cut = ("caption", "k", "--segment", "2s")
    vidspec(*cut, "-o", "out.jsonl")
    lines, count = Path("out.jsonl").read_bytes(), len(captioned())
    assert count > 2
    ran = vidspec(*cut, *BOTH, "--dry-run")
    assert [line.split("\t")[0] for line in ran.out.splitlines()] == ["done", "done"]
    Path(".out.csv.vidspec.jsonl").write_bytes(lines.splitlines(keepends=True)[0])
    assert vidspec(*cut, *BOTH).code == 0 and not captioned()
    assert Path("out.jsonl").read_bytes() == lines and Path("out.csv").read_text().count("good.mp4") == count
    assert not list(Path().rglob("*~"))


def test_a_journal_that_is_deleted_behind_the_last_clip_is_an_error(vidspec, monkeypatch):
    from vidspec.cli.terminal import OutcomeLines

    lost = ".out.csv.vidspec.jsonl"
    monkeypatch.setattr(OutcomeLines, "result", lambda self, *given: given[-1].done < 2 or os.remove(lost))
    ran = vidspec("caption", "k", *BOTH)
    assert ran.code == 4 and f"error: {lost}: " in ran.err


def test_lines_without_measurements_do_not_count_where_these_are_asked_for(vidspec):
    vidspec("caption", "k", "-o", "out.jsonl")
    captioned()
    assert vidspec("caption", "k", "--format", "json,jsonl", "-o", "out").code == 0 and len(captioned()) == 2
    assert all("timings" in json.loads(line) for line in Path("out.json").read_text().splitlines())
    assert "timings" not in Path("out.jsonl").read_text()


def test_files_next_to_clips_and_a_table_share_a_journal_that_each_finds_again(vidspec):
    named = ("--name", "{stem}{suffix}")
    for form in ("txt,csv", "txt", "csv"):
        assert vidspec("caption", "k", "--format", form, *named).code == 0
    assert len(captioned()) == 2 and journals() == [".vidspec.jsonl"]
    Path("k/a/good.txt").write_text("mine\n")
    ran = vidspec("caption", "k", "--format", "txt", "--template", "v2 {caption}")
    assert "1 edited file was kept: k/a/good.txt" in ran.err and Path("k/b/good.txt").read_text().startswith("v2")


def test_a_table_added_to_files_next_to_clips_continues_their_run(vidspec):
    """Although the journal of the table is beside it."""
    named = ("--name", "{stem}{suffix}")
    assert vidspec("caption", "k", "--format", "txt", "--template", "ohwx, {caption}").code == 0
    Path("k/a/good.txt").write_text("mine\n")
    captioned()
    for _ in range(2):
        assert vidspec("caption", "k", "--format", "txt,csv", "--template", "ohwx, {caption}", *named).code == 0
        assert not captioned() and Path("captions.csv").read_text().count("ohwx") == 2
        assert Path("k/a/good.txt").read_text() == "mine\n" and not list(Path().rglob("*~"))
