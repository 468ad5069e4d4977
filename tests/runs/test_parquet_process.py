"""Parquet files that are hostile: the process that reads them may end, the run does not."""

import os
from pathlib import Path

import pytest

from tests.runs.test_bad_shards import parquet_of, read_all
from tests.runs.test_containers import content, table
from vidspec.errors import VideoError
from vidspec.runs import parquet_process
from vidspec.runs.job import Job
from vidspec.runs.sources.base import shard_members

pyarrow = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def small_room(monkeypatch):
    """Processes may take 64 MiB beside the file's own bytes."""
    for request in (parquet_process.RowsRequest, parquet_process.ValuesRequest):
        monkeypatch.setattr(request.__new__, "__defaults__", (*request.__new__.__defaults__[:-1], 64 << 20))


@pytest.mark.sample(quick=1, full=2)
@pytest.mark.parametrize("codec", ["zstd", "gzip"])
@pytest.mark.parametrize("column", ["mp4", "path"])
def test_a_page_that_unpacks_to_more_than_memory_is_one_error(small_room, codec, column):
    """Kilobytes of zeros; the next file is read as ever."""
    value = {"mp4": bytes(96 << 20), "path": "x" * (96 << 20)}[column]
    shard = table("v.parquet", {column: [value]}, compression=codec)
    assert os.path.getsize("v.parquet") < 1 << 20
    with pytest.raises(VideoError, match=r"^v\.parquet") as refused:
        content(shard_members(shard)[0])
    assert refused.value.kind in ("too_large", "crashed") and "\n" not in str(refused.value)
    assert content(shard_members(table("w.parquet", {"mp4": [b"one"]}))[0]) == b"one"


def test_honest_pages_larger_than_the_room_are_read(monkeypatch, small_room):
    """As videos are, which do not shrink."""
    clips = [os.urandom(16 << 20) for _ in range(2)]
    shard = table("v.parquet", {"mp4": clips, "id": ["a", "b"]}, row_group_size=2, compression="zstd")
    found = shard_members(shard)
    assert [content(job) for job in found] == clips and [job.id for job in found] == ["a", "b"]


def test_a_file_without_rows_holds_no_clip():
    Path("v.parquet").write_bytes(parquet_of({"path": pyarrow.array([], pyarrow.string())}))
    assert [error.kind for error in read_all("v.parquet")[1]] == ["no_frames"]


def test_a_process_that_ends_is_an_error_of_its_file_alone(monkeypatch):
    shard, good = table("v.parquet", {"mp4": [b"one"]}), table("w.parquet", {"mp4": [b"two"]})
    (job,) = shard_members(shard)
    receive = parquet_process.Child.receive
    with monkeypatch.context() as killing:
        killing.setattr(parquet_process.Child, "receive", lambda child, **how: child.kill() or receive(child, **how))
        with pytest.raises(
            VideoError, match=r"^v\.parquet/00000: .*the process that read it ended \(SIGKILL\)"
        ) as ended:
            content(job)
    assert ended.value.kind == "crashed"
    assert content(shard_members(good)[0]) == b"two"


@pytest.mark.full
@pytest.mark.parametrize("value", [8, 255, 1])
def test_a_damaged_footer_is_an_error_at_most(value):
    """Every third byte of it, so codecs and sizes of histograms too, at some of which pyarrow ends its process."""
    whole, kinds = parquet_of({"mp4": [b"1" * 50], "id": ["a"]}, store_schema=False), []
    length = int.from_bytes(whole[-8:-4], "little") + 8
    for place in range(len(whole) - length, len(whole), 3):
        changed = whole[place] ^ value
        Path("v.parquet").write_bytes(whole[:place] + bytes([changed]) + whole[place + 1 :])
        errors = read_all("v.parquet")[1]
        assert all(len(str(error).splitlines()) == 1 for error in errors)
        kinds += [error.kind for error in errors]
    assert len(kinds) > length / 20


@pytest.mark.parametrize("footer", [b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"\x15" * 40 + b"\x28\0\0\0PAR1"])
def test_what_is_no_footer_is_refused(footer):
    Path("v.parquet").write_bytes(footer)
    with pytest.raises(VideoError, match=r"^v\.parquet: (is not a Parquet file|the process that read it ended)"):
        shard_members(Job("v.parquet"))


def test_a_footer_that_nests_without_end_is_refused():
    """Lists of lists where row groups should be."""
    footer = b"\x49" + b"\x19" * 100_000
    Path("v.parquet").write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(VideoError, match=r"^v\.parquet: (is not a Parquet file|the process that read it ended)"):
        shard_members(Job("v.parquet"))
