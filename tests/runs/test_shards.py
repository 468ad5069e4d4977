import json
import os
import tracemalloc

import pytest

from vidspec.errors import UsageError
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.merge import render_records
from vidspec.runs.shards import JobArray, Shard, array_shard, array_task, parse_shard
from vidspec.runs.store.places import read_captions
from vidspec.runs.store.records import LEAN_KEYS, lean_record

ENTRIES = [Job(f"d/{number}.mp4", root="d") for number in range(200)]


def test_files_are_dealt_in_turn():
    """Ten shards over three tasks are 4, 3 and 3, in the order of their names."""
    jobs = [Job(f"/d{number}/clip.mp4", root=f"/d{number}") for number in range(10)]
    parts = [Shard(number, 3).select(jobs[::-1], searched=False) for number in (1, 2, 3)]
    assert [len(part) for part in parts] == [4, 3, 3]
    assert [job.path for job in parts[0][::-1]] == [f"/d{number}/clip.mp4" for number in (0, 3, 6, 9)]
    assert Shard(1, 1).select(ENTRIES, searched=False) == ENTRIES


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("named", ["start", "id"])
def test_rows_of_one_file_are_dealt_too(named, searched):
    jobs = [Job("film.mp4", **{named: number}) for number in range(320)]
    parts = [Shard(number, 32).select(jobs, searched=searched) for number in range(1, 33)]
    assert sorted(getattr(job, named) for part in parts for job in part) == [*range(320)]
    assert all(part if searched else len(part) == 10 for part in parts)


def test_a_file_that_appears_in_a_folder_moves_no_other():
    parts = [Shard(number, 4).select(ENTRIES, searched=True) for number in range(1, 5)]
    assert sorted(entry.path for part in parts for entry in part) == sorted(entry.path for entry in ENTRIES)
    assert all(30 <= len(part) <= 70 for part in parts)
    mine = Shard(2, 3).select(ENTRIES, searched=True)
    elsewhere = [Job(f"/mnt/x/{number}.mp4", root="/mnt/x") for number in range(0, 200, 3)]
    names = {os.path.basename(entry.path) for entry in mine}
    assert {os.path.basename(entry.path) for entry in Shard(2, 3).select(elsewhere, searched=True)} == {
        os.path.basename(entry.path) for entry in elsewhere if os.path.basename(entry.path) in names
    }


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_what_is_no_shard(text):
    with pytest.raises(UsageError, match="must be I/N"):
        parse_shard(text)


@pytest.mark.parametrize(
    ("env", "shard"),
    [
        ({}, None),
        ({"ID": "0", "COUNT": "4", "MIN": "0"}, (1, 4)),
        ({"ID": "4", "COUNT": "4", "MIN": "1"}, (4, 4)),
        ({"ID": "20", "COUNT": "3", "MIN": "10", "STEP": "5"}, (3, 3)),
        ({"ID": "0", "COUNT": "1", "MIN": "0"}, None),
        ({"ID": "2"}, None),
    ],
)
def test_tasks_of_a_job_array(env, shard):
    task = array_task({f"SLURM_ARRAY_TASK_{key}": value for key, value in env.items()})
    found = None if task is None else array_shard(*task, None)
    assert (found and (found.number, found.count)) == shard


def test_a_task_that_runs_again_does_its_part_of_the_array_that_began():
    begun = JobArray(0, 2, 4)  # --array=0-6:2
    assert JobArray.from_json(begun.to_json().encode()) == begun and str(begun) == "0-6:2"
    again = [array_shard(4, JobArray(4, 1, 1), begun), array_shard(6, JobArray(0, 1, 2), begun)]
    assert [(shard.number, shard.count) for shard in again] == [(3, 4), (4, 4)]
    with pytest.raises(UsageError, match="0-6:2 began this output, and task 5 is not"):
        array_shard(5, JobArray(5, 1, 1), begun)
    assert JobArray.from_json(b"[1]") is JobArray.from_json(b"") is None


def test_an_irregular_array_is_refused():
    with pytest.raises(UsageError, match="give shard="):
        array_shard(7, JobArray(1, 1, 2), None)


def test_files_of_shards():
    assert str(Shard(2, 8, JobArray(1, 1, 8)).fill_name("x/out.jsonl")) == "x/out.2-of-8.jsonl"
    assert str(Shard(2, 8).fill_name("x/out.jsonl")) == "x/out.jsonl", "a name that the user gave is kept"
    assert str(Shard(2, 8).fill_name("x/{shard}.jsonl")) == "x/2-of-8.jsonl"


def merged(paths, **how):
    return read_captions(paths, **how).records


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_merge_takes_each_clip_once_and_captions_before_failures(tmp_path, recorded):
    a = write(tmp_path / "a", [recorded("b.mp4"), recorded("c.mp4", error="x"), recorded("a.mp4", error="x")])
    b = write(tmp_path / "b", [recorded("c.mp4"), recorded("b.mp4", error="x"), recorded("a.mp4", error="y")])
    found = merged([a, b])
    assert [(one["path"], one["error"] is None) for one in found] == [
        ("a.mp4", False),
        ("b.mp4", True),
        ("c.mp4", True),
    ]
    assert "y" in next(iter(found))["error"]["message"]
    assert (found.captions.duplicates, found.failed) == (3, 1)


def test_of_two_captions_the_last_is_taken(tmp_path, recorded):
    a, b = (write(tmp_path / name, [recorded("a.mp4", changes={"caption": name})]) for name in ("old", "new"))
    assert [one["caption"] for one in merged([a, b])] == ["new"]


def test_a_list_has_one_caption_of_each_clip(tmp_path, recorded):
    """That of the last settings under which it did not fail."""

    def under(settings, one):
        return {**one, "job": {**one["job"], "settings": settings}}

    old = [under("old", recorded(path)) for path in ("a.mp4", "b.mp4")]
    new = [under("new", recorded("a.mp4")), under("new", recorded("b.mp4", error="x"))]
    found = merged([write(tmp_path / "old", old), write(tmp_path / "new", new)], one_each=True)
    assert [(one["path"], one["job"]["settings"]) for one in found] == [("a.mp4", "new"), ("b.mp4", "old")]


def test_merge_does_not_depend_on_the_order_of_shards(tmp_path, recorded):
    a, b = (write(tmp_path / name, [recorded(f"{name}{number}.mp4") for number in range(3)]) for name in "ab")
    assert [*merged([a, b])] == [*merged([b, a])]


def test_merge_leaves_torn_lines_out_and_refuses_others(tmp_path, recorded):
    path = write(tmp_path / "a", [recorded("a.mp4")])
    with path.open("a") as file:
        file.write('{"path": "b.m')
    found = merged([path])
    assert len(found) == 1 and found.captions.torn == 1
    other = tmp_path / "b"
    other.write_text("hello\n")
    with pytest.raises(UsageError, match="b, line 1: is not a record of vidspec"):
        merged([other])
    with pytest.raises(UsageError, match="cannot be read"):
        merged([tmp_path / "absent"])


@pytest.mark.parametrize(
    "job",
    [-1, [], "x", {"clip": []}, {"settings": None}, {"settings": 3}, {"segment": "x"}, {"start": []}, {"end": {}}],
)
def test_a_record_with_an_odd_job_is_one_line(tmp_path, recorded, job):
    record = recorded("a.mp4")
    record["job"] = {**record["job"], **job} if isinstance(job, dict) else job
    with pytest.raises(
        UsageError, match=r"a record's job|a record has no|the record of a\.mp4|is not a record"
    ) as caught:
        merged([write(tmp_path / "a", [record])])
    assert "\n" not in str(caught.value)


def test_segments_are_put_in_order_and_make_a_clip_cut(tmp_path, recorded):
    part = {"segments": 2}
    records = [
        recorded(segment=1, start=5.0, end=9.0, **part),
        recorded(error="cannot be cut"),
        recorded(segment=0, start=0.0, end=5.0, **part),
    ]
    found = merged([write(tmp_path / "a", [lean_record(record) for record in records])])
    assert [record["start"] for record in found] == [0.0, 5.0]
    assert rendered(found, "srt").count("-->") == 2


def rendered(records, form):
    return b"".join(render_records(records, make_format(form, several=True))).decode()


def test_rendered(tmp_path, recorded):
    full = merged([write(tmp_path / "a", [recorded("a.mp4"), recorded("b.mp4")])])
    assert [tuple(json.loads(line)) for line in rendered(full, "jsonl").splitlines()] == [LEAN_KEYS] * 2
    assert rendered(full, "csv").startswith("path,") and rendered(full, "text").startswith("a.mp4\t")
    assert json.loads(rendered(full, "json").splitlines()[0])["timings"]
    with pytest.raises(UsageError, match="hold no measurements"):
        rendered(merged([write(tmp_path / "lean", [lean_record(one) for one in full])]), "json")
    with pytest.raises(UsageError, match="a file each"):
        rendered(full, "srt")


def test_lines_of_an_earlier_version_keep_what_they_say(recorded, tmp_path):
    one = lean_record(recorded(entry=Job("a.mp4", prompt="Why?"), start=1.0, end=2.0))
    old = {key: value for key, value in one.items() if key not in ("id", "columns", "ended", "demo")}
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    (line,) = rendered(merged([tmp_path / "old.jsonl"]), "jsonl").splitlines()
    assert {key: json.loads(line)[key] for key in old} == old and json.loads(line)["ended"] is None


def test_records_are_read_when_they_are_needed(tmp_path, recorded):
    """Merging keeps the place of each record; a file that changes meanwhile is an error."""
    path = write(tmp_path / "a", [recorded(f"{number}.mp4") for number in range(30)])
    found = merged([path])
    assert len(found) == 30
    assert [one["path"] for one in found] == sorted(f"{number}.mp4" for number in range(30))
    path.write_text("x" * path.stat().st_size)
    with pytest.raises(UsageError, match="was changed while it was read"):
        list(found)


def test_parts_are_merged(tmp_path, recorded):
    pytest.importorskip("pyarrow")
    records = [recorded("a.mp4"), recorded("b.mp4")]
    for name in ("parquet", "webdataset"):
        form = make_format(name)
        file = tmp_path / f"s{form.suffix}"
        file.write_bytes(form.content(records))
        assert [one["caption"] for one in merged([file])] == [one["caption"] for one in records]
    (tmp_path / "other.tar").write_bytes(b"x")
    with pytest.raises(UsageError, match="holds no records of vidspec"):
        merged([tmp_path / "other.tar"])


@pytest.mark.full
def test_a_large_part_is_not_held_as_a_whole(tmp_path, recorded):
    pytest.importorskip("pyarrow")
    form, record = make_format("parquet"), recorded("a.mp4")
    file = tmp_path / "s.parquet"
    file.write_bytes(form.content(record | {"path": f"{number}.mp4"} for number in range(6000)))
    with file.open("rb") as content:
        next(form.read_records(content))  # what is imported at first
        tracemalloc.start()
        assert sum(1 for _ in form.read_records(content)) == 6000
        at_a_time = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        held = [*form.read_records(content)]
        whole = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(held) == 6000 and at_a_time < whole / 2


@pytest.mark.parametrize(
    "change",
    [{"path": 5}, {"path": None}, {"start": "x"}, {"end": [1]}, {"segment": [[]]}, {"models": 3}, {"error": 7}],
)
def test_odd_records_are_one_line(tmp_path, recorded, change):
    record = recorded("a.mp4")
    job = {key: value for key, value in change.items() if key in ("start", "end", "segment")}
    record = {**record, **{key: value for key, value in change.items() if key not in job}}
    path = write(tmp_path / "a", [{**record, "job": {**record["job"], **job}}])
    with pytest.raises(UsageError):
        b"".join(render_records(merged([path]), make_format("csv")))
