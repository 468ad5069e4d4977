import json
import os

import pytest

from vidspec.errors import OutputError, UsageError
from vidspec.runs.job import Job
from vidspec.runs.store.journal import Journal, hidden_journal
from vidspec.runs.store.journal_lines import CaptionRun, RunLines
from vidspec.runs.store.records import FileContent, clip_id, settings_digest


def names(path):
    return [json.loads(line)["path"] for line in path.read_text().splitlines()]


def fill(path, records, **how):
    journal = Journal(path, **how)
    for record in records:
        journal.append(record)
    journal.close(complete=True)
    return journal


def test_a_record_is_on_the_disk_when_append_returns(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    journal = Journal(path)
    assert not path.exists(), "made before there was a record"
    journal.append(recorded("a.mp4"))
    assert names(path) == ["a.mp4"]
    journal.append(recorded("b.mp4", error="broken"))
    assert names(path) == ["a.mp4", "b.mp4"]
    journal.close()


def test_the_mark_of_a_file_is_on_the_disk_before_the_file(tmp_path, monkeypatch):
    """A power cut between the two must not leave a file of a run that counts as foreign."""
    path, synced = tmp_path / "out.jsonl", []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(os.fstat(number).st_size))
    journal = Journal(path)
    journal.mark(tmp_path / "a.txt", 3, "0" * 64)
    assert synced == [path.stat().st_size]
    journal.close()


def test_records_are_found_again(tmp_path, recorded, settings):
    path = tmp_path / "out.jsonl"
    fill(path, [recorded("a.mp4"), recorded("b.mp4", error="broken")])
    journal = Journal(path)
    parts = journal.index.parts(clip_id(Job("b.mp4")), settings_digest(Job("b.mp4"), *settings))
    assert parts[None].failed and parts[None].content == FileContent(1, 2)
    assert parts[None].record()["error"]["message"] == "b.mp4: broken"
    assert journal.index.parts(clip_id(Job("b.mp4")), "0" * 12) == {}
    assert journal.index.other_settings_count(["0" * 12]) == 2
    journal.close()


def test_every_torn_tail_is_repaired(tmp_path, recorded):
    """Cut the file anywhere in its last line: the records before it stand, and what is appended next is whole."""
    whole = tmp_path / "whole.jsonl"
    records = [recorded("a.mp4"), recorded("b.mp4"), recorded("c.mp4")]
    fill(whole, records)
    data = whole.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for cut in (*range(last, len(data) - 3, 29), *range(len(data) - 3, len(data))):
        path = tmp_path / "torn.jsonl"
        path.write_bytes(data[:cut])
        journal = Journal(path)
        assert journal.repaired == (cut - last if cut < len(data) - 1 else 0)
        kept = 3 if cut == len(data) - 1 else 2  # only the line's end was missing: the record is whole
        assert len(list(journal.records())) == kept
        if kept == 2:
            journal.append(records[2])
        journal.close()
        assert path.read_bytes() == data


def test_a_file_torn_in_its_first_line_begins_anew(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"path": "a.m')
    fill(path, [recorded("a.mp4")])
    assert names(path) == ["a.mp4"] and not (tmp_path / "out.jsonl~").exists()


def test_a_damaged_line_is_put_aside_and_the_rest_kept(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    fill(path, [recorded("a.mp4"), recorded("b.mp4"), recorded("c.mp4")])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0\0\0garbage\n" + lines[2])
    journal = Journal(path)
    assert journal.damaged == 1
    journal.compact([])
    journal.close()
    assert names(path) == ["a.mp4", "c.mp4"]
    assert (tmp_path / "out.jsonl.damaged").read_bytes() == b"\0\0\0garbage\n"


@pytest.mark.parametrize("content", ["old\n", "old", '{"a": 1}\n', "[1]\n"])
def test_what_is_no_journal_is_kept_aside(tmp_path, recorded, content):
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    journal = Journal(path)
    assert path.read_text() == content, "touched before there was a record"
    journal.append(recorded("a.mp4"))
    journal.close()
    assert names(path) == ["a.mp4"]
    assert journal.replaced == tmp_path / "out.jsonl~" and journal.replaced.read_text() == content


def test_overwriting_begins_anew_and_keeps_the_older_file(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    fill(path, [recorded("a.mp4")])
    fill(path, [recorded("b.mp4")], overwrite=True)
    assert names(path) == ["b.mp4"] and names(tmp_path / "out.jsonl~") == ["a.mp4"]


def test_only_one_run_at_a_time(tmp_path):
    journal = Journal(tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match="another run is writing it"):
        Journal(tmp_path / "out.jsonl")
    journal.close()
    Journal(tmp_path / "out.jsonl").close()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, recorded, monkeypatch):
    path = tmp_path / "out.jsonl"
    journal = Journal(path)
    journal.append(recorded("a.mp4"))
    before = path.read_bytes()
    write, given = os.write, []

    def full(file, data):
        given.append(len(data))
        if len(given) > 1:
            raise OSError(28, "No space left on device")
        return write(file, data[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match=r"out.jsonl: cannot be written: No space left"):
        journal.append(recorded("b.mp4"))
    monkeypatch.undo()
    assert path.read_bytes() == before
    journal.append(recorded("c.mp4"))
    journal.close()
    assert names(path) == ["a.mp4", "c.mp4"]


def test_tidy_drops_what_is_void_and_restores_the_order(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    late = recorded("b.mp4")
    fill(path, [recorded("c.mp4"), recorded("b.mp4", error="x"), recorded("other.mp4"), recorded("a.mp4"), late])
    inode = path.stat().st_ino
    journal = Journal(path)
    order = [clip_id(Job(name)) for name in ("a.mp4", "b.mp4", "c.mp4")]
    journal.compact(order)
    assert names(path) == ["other.mp4", "a.mp4", "b.mp4", "c.mp4"]
    assert [record["error"] for record in journal.records()] == [None] * 4
    assert path.stat().st_ino != inode, "rewritten in place"
    inode = path.stat().st_ino
    journal.compact(order)
    assert path.stat().st_ino == inode, "rewritten although in order"
    journal.append(recorded("d.mp4"))
    journal.close()
    assert names(path)[-1] == "d.mp4"


def test_segments_of_another_content_or_division_are_void(tmp_path, recorded, settings):
    path = tmp_path / "out.jsonl"
    journal = Journal(path)
    key = clip_id(Job("a.mp4")), settings_digest(Job("a.mp4"), *settings)
    for number in range(2):
        journal.append(recorded("a.mp4", segment=number, segments=2))
    assert set(journal.index.parts(*key)) == {0, 1}
    journal.append(recorded("a.mp4", segment=0, segments=2, content=FileContent(9, 9)))
    assert set(journal.index.parts(*key)) == {0}
    journal.append(recorded("a.mp4", segment=1, segments=3, content=FileContent(9, 9)))
    assert set(journal.index.parts(*key)) == {1}
    journal.compact([key[0]])
    journal.close()
    assert len(names(path)) == 1


def test_paths_that_are_not_utf8(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    name = os.fsdecode(b"caf\xe9.mp4")
    fill(path, [recorded(name)])
    assert json.loads(path.read_text(encoding="utf-8"))["path"] == name
    journal = Journal(path)
    assert [record["path"] for record in journal.records()] == [name]
    journal.close()


def test_a_complete_run_without_records_leaves_an_empty_file(tmp_path):
    Journal(tmp_path / "a.jsonl").close(complete=False)
    Journal(tmp_path / "b.jsonl").close(complete=True)
    assert not (tmp_path / "a.jsonl").exists() and (tmp_path / "b.jsonl").read_bytes() == b""


def described(**fields):
    return CaptionRun({"format": "txt", **fields}, {"name": "ar"})


@pytest.mark.parametrize("visible", [False, True])
def test_a_run_is_described_once_and_found_by_the_settings_of_its_records(tmp_path, recorded, visible):
    """In the journal itself, or in the hidden file beside one that users see, which holds records only."""
    path = tmp_path / "out.jsonl"
    one, two = recorded("a.mp4"), recorded("b.mp4")
    two["job"]["settings"] = "0" * 12
    for _ in range(2):
        journal = Journal(path, visible=visible)
        for record in (one, two):
            journal.describe(record["job"]["settings"], described())
            journal.append(record)
        journal.compact([])
        journal.close()
    file = hidden_journal(path) if visible else path
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.startswith('{"run": ')]
    settings = one["job"]["settings"]
    run = {"spec": {"format": "txt"}, "profile": {"name": "ar"}}
    assert lines == [{"run": settings, **run}, {"run": "0" * 12, "of": settings}]
    records = [json.loads(line)["path"] for line in path.read_text().splitlines() if line.startswith('{"path": ')]
    assert records == ["a.mp4", "b.mp4"] and ('{"run": ' in path.read_text()) != visible
    read = Journal(path, visible=visible, read_only=True)
    assert read.index.runs.of("0" * 12) == read.index.runs.of(settings) == described()
    assert read.index.runs.of("1") is None
    if visible:
        file.unlink()
        assert [one["path"] for one in Journal(path, visible=True).records()] == ["a.mp4", "b.mp4"]


def test_descriptions_of_records_that_are_gone_leave_with_them(tmp_path, recorded):
    path = tmp_path / ".vidspec.jsonl"
    journal = Journal(path)
    journal.describe("unused", described(template="v1 {caption}"))
    record = recorded("a.mp4")
    journal.describe(record["job"]["settings"], described(template="v2 {caption}"))
    journal.append(record)
    journal.compact([])
    journal.close()
    read = Journal(path, read_only=True)
    runs = read.index.runs
    assert "unused" not in runs and runs.of(record["job"]["settings"]).spec["template"] == "v2 {caption}"


def test_a_torn_description_beside_a_journal_costs_nothing(tmp_path, recorded):
    path = tmp_path / "out.jsonl"
    hidden_journal(path).write_text('{"run": "1", "spec": {')
    journal = Journal(path, visible=True)
    journal.describe("2", described())
    journal.close()
    assert RunLines.read(hidden_journal(path)).of("2") == described()
