"""``vidspec caption`` of tar and Parquet shards, with a captioner without models."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.effects import streamed_paths
from tests.fake_captioner import TEXT, FakeCaptioner
from tests.runs.hostile import HOSTILE
from tests.runs.shards import rows, tar_of, write_shards
from vidspec.runs import part_files, stores
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job
from vidspec.runs.store.journal import Journal

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


SHARDS = "shards/{00000..00002}.tar"


def test_a_part_for_each_shard(vidspec):
    write_shards(Path("shards"), 3, 4, failing={5})
    ran = vidspec("caption", SHARDS, "--output-dir", "out")
    assert (ran.code, ran.out) == (1, "")
    assert sorted(os.listdir("out")) == ["00000.parquet", "00001.parquet", "00002.parquet"]
    found = [row for name in sorted(os.listdir("out")) for row in rows(f"out/{name}")]
    names = [f"shards/{n // 4:05d}.tar/{n:05d}/{'missing' if n == 5 else 'good'}.mp4" for n in range(12)]
    assert [row["path"] for row in found] == names, "in the order of the shards"
    assert [row["caption"] for row in found] == [None if n == 5 else TEXT for n in range(12)]
    assert found[5]["error"]["kind"] == "missing" and found[4]["error"] is None
    assert "12 clips: 11 captioned, 1 failed (decode_video/missing 1)" in ran.err


def test_a_part_has_what_the_json_lines_have(vidspec):
    write_shards(Path("shards"), 1, 3, failing={1})
    vidspec("caption", "shards/00000.tar", "--output-dir", "out")
    vidspec("caption", "shards/00000.tar", "-o", "out.jsonl")
    vidspec("caption", "shards/00000.tar", "-o", "whole.parquet")
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]

    def without_nulls(value):
        if isinstance(value, dict):
            return {key: without_nulls(one) for key, one in value.items() if one is not None}
        return value

    for path in ("out/00000.parquet", "whole.parquet"):
        found = rows(path)
        assert [list(row) for row in found] == [list(line) for line in lines]
        assert [without_nulls(row) for row in found] == [without_nulls(line) for line in lines]


def test_a_finished_part_is_skipped_without_opening_its_shard(vidspec):
    write_shards(Path("shards"), 3, 4, failing={5})
    args = ("caption", SHARDS, "--output-dir", "out")
    vidspec(*args)
    before = {name: Path("out", name).read_bytes() for name in os.listdir("out")}
    for name in os.listdir("shards"):
        Path("shards", name).write_bytes(b"")  # whoever opens it fails
    ran = vidspec(*args)
    assert ran.code == 1 and len(FakeCaptioner.made) == 1, "no model was loaded"
    assert "12 of 12 clips done before, 1 of them failed" in ran.err
    assert {name: Path("out", name).read_bytes() for name in os.listdir("out")} == before


def test_an_unfinished_part_goes_on_by_clip(vidspec):
    """Interrupted in the second shard; the clip that did it is behind others that are kept."""
    Path("shards").mkdir()
    clips = [{f"{n}/{'stop' if n == 6 else 'good'}.mp4": b"x" for n in range(first, first + 4)} for first in (0, 4, 8)]
    for number, members in enumerate(clips):
        Path(f"shards/{number:05d}.tar").write_bytes(tar_of(members))
    args = ("caption", SHARDS, "--output-dir", "out", "--batch", "1")
    assert vidspec(*args).code == 130
    assert "00000.parquet" in os.listdir("out") and "00001.parquet" not in os.listdir("out")
    first = len(streamed_paths())
    Path("shards/00001.tar").write_bytes(tar_of({name.replace("stop", "good"): b"x" for name in clips[1]}))
    ran = vidspec(*args)
    assert ran.code == 0 and "6 of 8 clips done before" in ran.err
    again = streamed_paths()[first:]
    assert [path.split("/", 2)[2] for path in again] == [f"{n}/good.mp4" for n in (6, 7, 8, 9, 10, 11)]
    assert sorted(os.listdir("out")) == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert [row["path"][-10:] for row in rows("out/00001.parquet")] == [f"{n}/good.mp4" for n in range(4, 8)]


def test_retry_failed_does_only_those_clips_again(vidspec):
    write_shards(Path("shards"), 1, 4, failing={2})
    args = ("caption", "shards/00000.tar", "--output-dir", "out")
    vidspec(*args)
    before, first = rows("out/00000.parquet"), len(streamed_paths())
    ran = vidspec(*args, "--retry-failed")
    assert ran.code == 1 and streamed_paths()[first:] == ["shards/00000.tar/00002/missing.mp4"]
    assert rows("out/00000.parquet") == before and os.listdir("out") == ["00000.parquet"]


def test_other_settings_want_another_folder_or_overwrite(vidspec):
    write_shards(Path("shards"), 1, 2)
    args = ("caption", "shards/00000.tar", "--output-dir", "out")
    vidspec(*args)
    ran = vidspec(*args, "--prompt", "Other?")
    assert ran.code == 2 and ran.err.strip().endswith(
        "out/00000.parquet: was made with other settings (give --overwrite, or another --output-dir)"
    )
    assert vidspec(*args, "--prompt", "Other?", "--overwrite").code == 0
    assert sorted(os.listdir("out")) == ["00000.parquet", "00000.parquet~"]
    assert {row["prompt"] for row in rows("out/00000.parquet")} == {"Other?"}


def test_a_shard_that_cannot_be_read_costs_itself_alone(vidspec):
    write_shards(Path("shards"), 3, 2)
    Path("shards/00001.tar").write_bytes(b"junk" * 400)
    args = ("caption", SHARDS, "--output-dir", "out")
    ran = vidspec(*args)
    assert ran.code == 1 and "error: shards/00001.tar: is not a tar file" in ran.err
    assert sorted(os.listdir("out")) == ["00000.parquet", "00002.parquet"]
    write_shards(Path("shards"), 3, 2)
    assert vidspec(*args).code == 0, "a shard without a part is tried again"
    assert len(os.listdir("out")) == 3


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("options", [(), ("--format", "txt"), ("--format", "jsonl,vtt")])
def test_hostile_shards_never_end_the_run(vidspec, options):
    """Each costs itself, or its member; the clips before it, and those of other shards, are captioned."""
    write_shards(Path("shards"), 1, 2)
    for number, content in enumerate(HOSTILE.values(), start=1):
        Path(f"shards/{number:05d}.tar").write_bytes(content)
    last = len(HOSTILE) + 1
    Path(f"shards/{last:05d}.tar").write_bytes(tar_of({"last/good.mp4": b"x"}))
    ran = vidspec("caption", *sorted(map(str, Path("shards").iterdir())), "--output-dir", "out", *options)
    assert ran.code == 1 and "Traceback" not in ran.err, ran.err
    captioned = streamed_paths()
    for number in range(1, last):
        assert captioned.count(f"shards/{number:05d}.tar/first.mp4") == 1
    assert f"shards/{last:05d}.tar/last/good.mp4" in captioned
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(errors) >= 8 and all(line.startswith("error: shards/0") for line in errors if "inputs" not in line)
    if not options:
        assert len(os.listdir("out")) == last + 1
        for number in range(1, last):
            assert rows(f"out/{number:05d}.parquet")[0]["caption"] == TEXT


def test_rows_that_name_what_they_may_not(vidspec):
    import pyarrow
    from pyarrow import parquet

    names = ["good.mp4", "../good.mp4", "https://example.org/good.mp4", "file:///etc/passwd"]
    os.mkdir("d")
    parquet.write_table(pyarrow.table({"path": names}), "d/v.parquet")
    ran = vidspec("caption", "d/v.parquet", "-o", "out.jsonl")
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert ran.code == 1 and [one["error"] and one["error"]["kind"] for one in records] == [None, *["refused"] * 3]
    assert streamed_paths() == ["d/good.mp4"] and "give --allow-urls https://example.org if it may be read" in ran.err
    ran = vidspec("caption", "d/v.parquet", "-o", "out.jsonl", "--retry-failed", "--allow-paths", ".")
    assert streamed_paths() == ["d/good.mp4", "d/../good.mp4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--allow-paths", "nowhere"), "--allow-paths nowhere: there is no such folder"),
        (("--allow-urls", "file://x"), "--allow-urls file://x: must be SCHEME://HOST"),
        (("--max-fetch", "0"), "--max-fetch 0: must be a size, such as 500MB or 2GiB"),
        (("--max-fetch", "many"), "--max-fetch many: must be a size"),
    ],
)
def test_limits_of_fetching_that_cannot_be(vidspec, options, message):
    ran = vidspec("caption", "00000.tar", *options)
    assert ran.code == 2 and ran.err.startswith(f"error: {message}")


def test_a_clip_of_a_shard_that_is_too_large(vidspec):
    Path("00000.tar").write_bytes(tar_of({"a/good.mp4": bytes(2000), "b/good.mp4": bytes(900)}))
    ran = vidspec("caption", "00000.tar", "--max-fetch", "1kB", "--format", "jsonl")
    kinds = {one["path"]: one["error"] and one["error"]["kind"] for one in ran.records}
    assert kinds == {"00000.tar/a/good.mp4": "too_large", "00000.tar/b/good.mp4": None} and ran.code == 1


def test_of_a_shard_that_is_cut_short_what_is_there(vidspec):
    whole = tar_of({f"{n}.mp4": bytes(600) for n in range(3)})
    Path("00000.tar").write_bytes(whole[:3400])
    ran = vidspec("caption", "00000.tar", "--output-dir", "out")
    assert ran.code == 1
    found = rows("out/00000.parquet")
    assert found[-1]["path"] == "00000.tar" and found[-1]["error"]["kind"] == "truncated"
    assert [row["caption"] for row in found[:-1]].count(TEXT) >= 1


def test_a_part_that_cannot_be_written_loses_nothing(vidspec, monkeypatch):
    write_shards(Path("shards"), 2, 3)
    args = ("caption", "shards/{00000..00001}.tar", "--output-dir", "out")
    real = part_files.write_url

    def put(name, content):
        if name.endswith("00000.parquet"):
            from vidspec.errors import OutputError

            raise OutputError(f"{name}: cannot be written: the disk is full")
        real(name, content)

    with monkeypatch.context() as patched:
        patched.setattr(part_files, "write_url", put)
        ran = vidspec(*args)
    assert ran.code == 1 and "out/00000.parquet: cannot be written: the disk is full" in ran.err
    assert "00001.parquet" in os.listdir("out") and "00000.parquet" not in os.listdir("out")
    before = len(streamed_paths())
    assert vidspec(*args).code == 0
    assert len(streamed_paths()) == before and len(rows("out/00000.parquet")) == 3, "nothing is captioned twice"


def test_one_folder_for_two_shards_of_a_name_is_refused(vidspec):
    write_shards(Path("a"), 1, 1)
    write_shards(Path("b"), 1, 1)
    ran = vidspec("caption", "a/00000.tar", "b/00000.tar", "--output-dir", "out")
    assert ran.code == 2 and "two shards of one name would share a part" in ran.err


def test_a_shard_is_not_replaced_by_its_captions(vidspec):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"mp4": [b"x"]}), "v.parquet")
    ran = vidspec("caption", "v.parquet", "--output-dir", ".")
    assert ran.code == 2 and "--output-dir .: captions would replace their shards" in ran.err
    os.mkdir("out")
    parquet.write_table(pyarrow.table({"mp4": [b"x"]}), "out/v.parquet")
    ran = vidspec("caption", "v.parquet", "--output-dir", "out")
    assert ran.code == 2 and "out/v.parquet: exists already, and holds no captions" in ran.err


def test_shards_into_other_formats(vidspec):
    write_shards(Path("shards"), 2, 2)
    ran = vidspec("caption", "shards/{00000..00001}.tar", "--batch", "1")
    assert [line.split("\t")[0] for line in ran.out.splitlines()] == [
        f"shards/{n // 2:05d}.tar/{n:05d}/good.mp4" for n in range(4)
    ]
    assert vidspec("caption", "shards/00000.tar", "--format", "txt", "--output-dir", "out").code == 0
    assert Path("out/shards/00000.tar/00001/good.txt").read_text().startswith("A red circle")


def test_shards_of_a_job_array_are_whole(vidspec):
    write_shards(Path("shards"), 8, 2)
    for number in (1, 2):
        args = ("caption", "shards/{00000..00007}.tar", "--output-dir", "out", "--shard", f"{number}/2")
        assert vidspec(*args).code == 0
        assert number == 2 or len(os.listdir("out")) == 4
    assert len(os.listdir("out")) == 8 and len(streamed_paths()) == 16, "each shard by one of them"


def slurm(monkeypatch, task, first, count):
    for key, value in {"ID": task, "MIN": first, "COUNT": count, "STEP": 1}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{key}", str(value))


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    "place", [("--format", "jsonl", "-o", "out.jsonl"), ("--format", "txt"), ("--output-dir", "o")]
)
def test_a_task_of_a_job_array_that_runs_again_does_its_part(vidspec, monkeypatch, place):
    """``sbatch --array=3`` says nothing of the array of four that the task was in."""
    Path("k").mkdir()
    for name in range(8):
        Path(f"k/{name}.mp4").write_bytes(bytes(name))
    for task in (1, 2, 4):
        slurm(monkeypatch, task, 1, 4)
        assert vidspec("caption", "k", *place).code == 0
    done = len(streamed_paths())
    slurm(monkeypatch, 3, 3, 1)
    ran = vidspec("caption", "k", *place)
    assert ran.code == 0 and "shard 3 of 4" in ran.err and "job array 1-4" in ran.err
    assert len(set(streamed_paths())) == len(streamed_paths()) == 8 > done
    slurm(monkeypatch, 7, 7, 1)
    ran = vidspec("caption", "k", *place)
    assert ran.code == 2 and "the job array 1-4 began this output, and task 7 is not one" in ran.err


def test_a_task_that_runs_again_does_its_part_of_an_output_below_a_url(vidspec, monkeypatch):
    """Its input may be below one too; a task that began beside it wrote the same array."""
    fsspec = pytest.importorskip("fsspec")
    write_shards(Path("shards"), 4, 1)
    store = fsspec.filesystem("memory")
    for number in range(4):
        store.pipe_file(f"/array/in/{number:05d}.tar", Path(f"shards/{number:05d}.tar").read_bytes())
    args = ("caption", "memory://array/in/{00000..00003}.tar", "--output-dir", "memory://array/out")
    for task, first, count in ((0, 0, 2), (1, 1, 1)):
        slurm(monkeypatch, task, first, count)
        ran = vidspec(*args)
        assert ran.code == 0 and f"shard {task + 1} of 2" in ran.err and "job array 0-1" in ran.err
    assert len(streamed_paths()) == len(set(streamed_paths())) == 4
    slurm(monkeypatch, 5, 5, 1)
    ran = vidspec(*args)
    assert ran.code == 2 and "the job array 0-1 began this output, and task 5 is not one" in ran.err


def test_an_array_of_another_count_is_refused(vidspec, monkeypatch):
    Path("good.mp4").write_bytes(b"x")
    Path("out.1-of-4.jsonl").write_bytes(b"")
    for count in (1, 2):
        slurm(monkeypatch, 3, 3, count)
        ran = vidspec("caption", "good.mp4", "-o", "out.jsonl")
        assert ran.code == 2 and "out.1-of-4.jsonl: is a part of 4" in ran.err and "--shard I/4" in ran.err
    assert not Path("out.jsonl").exists() and not Path(".out.jsonl.array").exists()


@pytest.mark.parametrize(
    "asked", [("--segment", "2s"), ("--prompt", "One?", "--prompt", "Two?"), ("--turn", "One?", "--turn", "Two?")]
)
def test_clips_in_segments_and_with_several_questions(vidspec, asked):
    write_shards(Path("shards"), 2, 2)
    args = ("caption", "shards/{00000..00001}.tar", "--output-dir", "out", *asked)
    assert vidspec(*args).code == 0
    found = rows("out/00001.parquet")
    assert [row["path"][-14:] for row in found] == [f"{n:05d}/good.mp4" for n in (2, 3) for _ in range(2)]
    assert [row["job"]["segment"] for row in found] == [0, 1, 0, 1]
    assert "4 of 4 clips done before" in vidspec(*args).err


def test_memory_of_the_run_does_not_grow_with_the_shards(vidspec, monkeypatch):
    """One shard's journal is open at a time (two where one ends as the next begins)."""
    write_shards(Path("shards"), 12, 3)
    open_at_once = []
    real = FakeCaptioner.stream

    def stream(self, path, **asked):
        open_at_once.append(len(list(Path("out").glob(".*.vidspec.jsonl"))))
        return real(self, path, **asked)

    monkeypatch.setattr(FakeCaptioner, "stream", stream)
    assert (
        vidspec("caption", "shards/{00000..00011}.tar", "--output-dir", "out", "--batch", "1", "--ahead", "1").code == 0
    )
    assert len(open_at_once) == 36 and 1 <= max(open_at_once) <= 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--checksum",), "--checksum needs clips that are files, not shards"),
        (("--format", "parquet,jsonl"), "--format parquet of shards excludes other formats"),
        (("--column", "x", "v.parquet"), "v.parquet: has no column x (name one with --column: mp4 (binary))"),
    ],
)
def test_what_shards_do_not_take(vidspec, args, message):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"mp4": [b"x"]}), "v.parquet")
    write_shards(Path("."), 1, 1)
    shards = () if "v.parquet" in args else ("00000.tar",)
    ran = vidspec("caption", *shards, "--output-dir", "out", *args)
    assert ran.code == 2 and message in ran.err and len(ran.err.strip().splitlines()) == 1
    assert not FakeCaptioner.made


def test_urls(vidspec):
    import fsspec

    store = fsspec.filesystem("memory")
    for number in range(2):
        store.pipe_file(f"/in/{number:05d}.tar", tar_of({f"{n}/good.mp4": b"x" for n in range(3)}))
    args = ("caption", "memory://in/{00000..00002}.tar", "--output-dir", "memory://captions/run")
    ran = vidspec(*args)
    assert (
        ran.code == 1
        and "error: memory://in/00002.tar: there is no such file, or no such bucket (check its name)" in ran.err
    )
    assert sorted(store.ls("/captions/run", detail=False)) == [f"/captions/run/0000{n}.parquet" for n in range(2)]
    assert [row["path"] for row in rows_of(store, "/captions/run/00001.parquet")] == [
        f"memory://in/00001.tar/{n}/good.mp4" for n in range(3)
    ]
    ran = vidspec(*args)
    assert "6 of 6 clips done before" in ran.err or "6 done before" in ran.err
    ran = vidspec("caption", "memory://in/00000.tar", "-o", "memory://x.jsonl")
    assert ran.code == 2 and "memory://x.jsonl: a URL is an output of shards only" in ran.err


def rows_of(store, path):
    with store.open(path) as file:
        return rows(file)


def edited_part(path, old="A red circle", new="A blue one"):
    """A part whose captions somebody changed and wrote back."""
    from pyarrow import array, parquet

    table = parquet.read_table(path)
    captions = [None if one is None else one.replace(old, new) for one in table["caption"].to_pylist()]
    place = table.schema.get_field_index("caption")
    parquet.write_table(table.set_column(place, table.schema.field("caption"), array(captions)), path)
    return Path(path).read_bytes()


@pytest.mark.parametrize("more", [(), ("--segment", "2s")])
def test_an_edited_part_is_kept(vidspec, more):
    write_shards(Path("shards"), 1, 2, failing={1})
    args = ("caption", "shards/00000.tar", "--output-dir", "out", *more)
    vidspec(*args)
    edited = edited_part("out/00000.parquet")
    vidspec(*args)
    assert Path("out/00000.parquet").read_bytes() == edited
    vidspec(*args, "--retry-failed")
    blue = [row["caption"] for row in rows("out/00000.parquet") if row["error"] is None]
    assert blue and all(caption.startswith("A blue one") for caption in blue), "they count as they are"


def test_a_part_that_was_edited_behind_a_killed_run_is_kept(vidspec):
    """Killed between its part and the end of its journal."""
    from vidspec.runs.store.journal import hidden_journal

    write_shards(Path("shards"), 1, 2)
    args = ("caption", "shards/00000.tar", "--output-dir", "out")
    vidspec(*args)
    journal = Journal(hidden_journal(Path("out/00000.parquet")))
    with open("out/00000.parquet", "rb") as file:
        for record in make_format("parquet").read_records(file):
            journal.append(record)
    journal.close()
    edited = edited_part("out/00000.parquet")
    ran = vidspec(*args, "--quiet")
    assert Path("out/00000.parquet~").read_bytes() == edited
    assert rows("out/00000.parquet")[0]["caption"].startswith("A blue one"), "an edit counts"
    assert "out/00000.parquet: was edited, and is now out/00000.parquet~" in ran.err


def test_an_edited_part_below_a_url_is_kept_after_a_killed_run(vidspec):
    """Killed between its part and the end of its journal, which is in this machine's state folder."""
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe_file("/edited/in/00000.tar", tar_of({f"{n}/good.mp4": b"x" for n in range(2)}))
    args = ("caption", "memory://edited/in/00000.tar", "--output-dir", "memory://edited/out")
    vidspec(*args)
    with store.open("/edited/out/00000.parquet") as file:
        records = [*make_format("parquet").read_records(file)]
    part = part_files.PartFiles(args[-1], [], make_format("parquet"))
    journal = Journal(part.journal_path(Job(args[1])))
    for record in records:
        journal.append(record)
    journal.close()
    Path("part").write_bytes(store.cat_file("/edited/out/00000.parquet"))
    edited = edited_part("part")
    store.pipe_file("/edited/out/00000.parquet", edited)
    ran = vidspec(*args)
    kept = "memory://edited/out/00000.parquet~"
    assert ran.code == 0 and f"00000.parquet: was edited, and is now {kept}" in ran.err
    assert store.cat_file("/edited/out/00000.parquet~") == edited
    assert rows_of(store, "/edited/out/00000.parquet")[0]["caption"].startswith("A blue one")


def test_a_dry_run_lists_shards_without_opening_them(vidspec):
    write_shards(Path("shards"), 3, 2, failing={2})
    vidspec("caption", "shards/{00000..00001}.tar", "--output-dir", "out")
    Path("shards/00002.tar").write_bytes(b"junk")
    files = sorted(os.listdir("out"))
    ran = vidspec("caption", SHARDS, "--output-dir", "out", "--dry-run")
    states = [line.split("\t") for line in ran.out.splitlines()]
    names = [f"shards/{n:05d}.tar" for n in range(3)]
    assert ran.code == 0 and states == [
        ["done", "", "", names[0]],
        ["failed", "", "", names[1]],
        ["caption", "", "", names[2]],
    ]
    assert "3 shards: 1 to caption, 2 done before (4 clips, 1 of them failed (--retry-failed" in ran.err
    again = vidspec("caption", SHARDS, "--output-dir", "out", "--dry-run", "--retry-failed")
    assert [line.split("\t")[0] for line in again.out.splitlines()] == ["done", "caption", "caption"]
    fresh = vidspec("caption", SHARDS, "--output-dir", "out", "--dry-run", "--overwrite")
    assert "3 to caption" in fresh.err and "out/00000.parquet: replaced, kept as out/00000.parquet~" in fresh.err
    assert sorted(os.listdir("out")) == files and len(FakeCaptioner.made) == 1, "nothing was written or loaded"
    other = vidspec("caption", SHARDS, "--output-dir", "out", "--dry-run", "--prompt", "Else?")
    assert other.code == 2 and "was made with other settings" in other.err
    assert vidspec("caption", SHARDS, "--output-dir", "new", "--dry-run").code == 0 and not os.path.exists("new")


def test_a_dry_run_of_clips_in_shards_into_one_file(vidspec):
    write_shards(Path("shards"), 1, 2)
    ran = vidspec("caption", "shards/00000.tar", "-o", "out.jsonl", "--dry-run")
    assert ran.code == 0 and [line.split("\t")[:2] for line in ran.out.splitlines()] == [["caption", ""]] * 2
    assert "2 clips: 2 to caption (of unknown length)" in ran.err
    assert vidspec("caption", "shards/00000.tar", "-o", "out.jsonl").code == 0
    assert "0 to caption" in vidspec("caption", "shards/00000.tar", "-o", "out.jsonl", "--dry-run").err


@pytest.mark.parametrize("place", [("--output-dir", "out"), ("-o", "out.jsonl")])
def test_a_report_of_shards_has_no_frames(vidspec, place):
    write_shards(Path("shards"), 2, 2, failing={3})
    ran = vidspec("caption", "shards/{00000..00001}.tar", *place, "--report", "page.html")
    page = Path("page.html").read_text()
    assert ran.code == 1 and "Traceback" not in ran.err, ran.err
    assert "shards/00000.tar/00001/good.mp4 is in a shard, which is not read again" in page
    assert page.count("A red circle") >= 3 and "00003/missing.mp4" in page


def test_merge_replaces_no_file_that_a_run_writes(vidspec):
    from vidspec.files import FileLock

    Path("good.mp4").write_bytes(b"x")
    assert vidspec("caption", "good.mp4", "-o", "out.jsonl").code == 0
    before = Path("out.jsonl").read_bytes()
    with FileLock(Path("out.jsonl")):
        ran = vidspec("merge", "out.jsonl", "-o", "out.jsonl")
    assert ran.code == 2 and "out.jsonl: another run is writing it" in ran.err
    assert Path("out.jsonl").read_bytes() == before and vidspec("merge", "out.jsonl", "-o", "out.jsonl").code == 0
    assert Path("out.jsonl").read_bytes() == before
