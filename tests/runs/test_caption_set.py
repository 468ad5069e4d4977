"""What is known of the captions of a place: one entry for each clip and part, with the text that holds now."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from vidspec.runs.job import Job
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.journal_lines import CaptionRun
from vidspec.runs.store.known_journals import KnownJournals
from vidspec.runs.store.places import read_captions
from vidspec.runs.store.records import clip_id, content_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("k").mkdir()
    for name in ("a", "b", "c"):
        Path(f"k/{name}.mp4").write_bytes(name.encode())


RUN = CaptionRun({"format": "txt", "template": "v1 {caption}"}, {"name": "ar"})


@pytest.fixture
def caption(recorded):
    """Captions a clip as a run into the folder does: a record, a mark, a file."""

    def make(path, text, *, where="k/.vidspec.jsonl", clip=True, file=None, settings=None, **part):
        journal, number = Journal(Path(where)), part.get("segment")
        record = recorded(path, content=content_of(path), changes={"caption": text}, **part)
        settings = record["job"]["settings"] = settings or record["job"]["settings"]
        journal.describe(settings, RUN)
        journal.append(record)
        shown = file or Path(path).with_suffix(".txt")
        data = (text + "\n").encode()
        about = {"settings": settings, "format": "txt"} | (
            {"clip": clip_id(Job(path)), "segment": number} if clip else {}
        )
        journal.mark(Path(shown), len(data), hashlib.sha256(data).hexdigest(), **about)
        journal.close()
        Path(shown).write_bytes(data)

    return make


def entries(*places, **how):
    return {os.path.basename(one.path): one for one in read_captions(map(Path, places or ("k",)), **how)}


def states(*places):
    return {name: (one.state, one.text) for name, one in entries(*places).items()}


@pytest.mark.parametrize("clip", [True, False], ids=["0.5", "0.4"])
def test_each_state_and_the_text_that_holds(caption, clip, recorded):
    """Also by the marks of version 0.4.0, which do not name the clip."""
    for name in "abc":
        caption(f"k/{name}.mp4", f"text of {name}", clip=clip)
    Path("k/b.txt").write_text(" edited\n")
    Path("k/c.txt").unlink()
    for name, text in (("d", "by hand"), ("e", "")):
        Path(f"k/{name}.mp4").write_bytes(b"x")
        Path(f"k/{name}.txt").write_text(text)
    Path("k/f.mp4").write_bytes(b"x")
    journal = Journal(Path("k/.vidspec.jsonl"))
    journal.append(recorded("k/f.mp4", error="broken"))
    journal.close()
    assert states() == {
        "a.mp4": ("written", "text of a"),
        "b.mp4": ("edited", "edited"),
        "c.mp4": ("missing", "text of c"),
        "d.mp4": ("foreign", "by hand"),
        "f.mp4": ("failed", None),
    }
    Path("k/f.txt").write_text("by hand too")
    Path("k/a.mp4").write_bytes(b"other")
    assert states()["f.mp4"] == ("foreign", "by hand too") and states()["a.mp4"] == ("superseded", "text of a")


def test_an_entry_knows_how_its_caption_was_made(caption):
    caption("k/a.mp4", "x")
    Path("k/b.txt").write_text("by hand")
    found = entries()
    assert found["a.mp4"].run == RUN and found["b.mp4"].run is found["b.mp4"].record is None
    text = Path("k/.vidspec.jsonl").read_text()
    Path("k/.vidspec.jsonl").write_text("".join(line for line in text.splitlines(True) if '"run"' not in line))
    assert entries()["a.mp4"].run is None, "as of version 0.4.0"


def test_an_edited_file_is_the_caption_of_all_segments(caption):
    for number in range(2):
        part = {"segment": number, "segments": 2, "start": number * 1.0, "end": number + 1.0}
        caption("k/a.mp4", f"part {number}", file="k/unshown.txt", clip=False, **part)
    assert [one.text for one in read_captions([Path("k")])] == ["part 0", "part 1"]
    journal = Journal(Path("k/.vidspec.jsonl"))
    settings = next(iter(journal.index.current())).settings
    journal.mark(Path("k/a.txt"), 1, "0" * 64, settings=settings, format="txt", clip=clip_id(Job("k/a.mp4")))
    journal.close()
    Path("k/a.txt").write_text("one text for all")
    (one,) = read_captions([Path("k")])
    assert (one.segment, one.state, one.shown["caption"]) == (None, "edited", "one text for all")
    assert "segment" not in one.shown["job"]


def test_segments_have_files_of_their_own(caption):
    for number in range(2):
        part = {"segment": number, "segments": 2, "start": number * 1.0, "end": number + 1.0}
        caption("k/a.mp4", f"part {number}", file=f"k/a-00{number + 1}.txt", **part)
    Path("k/a-002.txt").write_text("edited")
    assert [(one.segment, one.state, one.text) for one in read_captions([Path("k")])] == [
        (0, "written", "part 0"),
        (1, "edited", "edited"),
    ]


def test_of_two_captionings_the_one_that_the_file_shows(caption):
    caption("k/a.mp4", "first", settings="1" * 12)
    caption("k/a.mp4", "second", settings="2" * 12)
    caption("k/a.mp4", "first", settings="1" * 12)  # given again
    assert [one.text for one in read_captions([Path("k")], one_each=True)] == ["first"]
    assert [one.text for one in read_captions([Path("k")])] == ["first", "second"]
    Path("k/a.txt").write_text("edited")
    assert [one.text for one in read_captions([Path("k")])] == ["edited", "second"]
    Path("k/a.txt").unlink()
    assert [one.text for one in read_captions([Path("k")], one_each=True)] == ["first"]


def test_the_mark_of_built_in_models_is_no_part_of_a_caption(caption, recorded):
    caption("k/a.mp4", "x")
    lines = [json.loads(line) for line in Path("k/.vidspec.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"demo": True} if "caption" in line else {}
    Path("k/.vidspec.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for text, demo in (("[demo] a square", True), ("a square", None)):
        Path("k/a.txt").write_text(text)
        shown = entries()["a.mp4"].shown
        assert (shown["caption"], shown["demo"]) == ("a square", demo)


def test_files_of_other_formats_in_a_folder_are_no_records(caption):
    caption("k/a.mp4", "x")
    Path("k/list.jsonl").write_text('{"video": "a.mp4", "caption": "old"}\n')
    Path("k/notes.json").write_text("{}")
    assert states() == {"a.mp4": ("written", "x")}


def test_a_folder_without_a_journal_has_no_captions():
    Path("k/a.txt").write_text("tags of another program")
    assert len(read_captions([Path("k")])) == 0


def test_a_text_by_hand_ends_as_no_run_wrote_it():
    """Of all journals around the file, else it would count as a run's, and the next one would replace it."""
    file, known = Path("k/a.txt"), KnownJournals()
    for where, data in (("k/.vidspec.jsonl", b"x\n"), ("k/.vidspec.jsonl", b"x"), (".vidspec.jsonl", b"x\n\n")):
        journal = Journal(Path(where))
        journal.mark(file, len(data), hashlib.sha256(data).hexdigest())
        journal.close()
    for text in ("x", ""):
        file.write_text(known.text_by_hand(file, text))
        assert (file.read_text().strip(), known.state(file)) == (text, "edited")
