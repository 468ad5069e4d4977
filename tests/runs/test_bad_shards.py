"""Damaged and hostile shards: whatever is in one costs itself or its member alone, as one error."""

import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs.hostile import END, GOOD, HOSTILE, pax
from tests.runs.shards import tar_of
from tests.tiers import examples
from vidspec.errors import VideoError, VidspecError
from vidspec.runs.allowance import FetchLimits
from vidspec.runs.job import Job
from vidspec.runs.sources.base import ClipOpener, shard_members
from vidspec.video.probing import probe

pytestmark = pytest.mark.usefixtures("own_folder")

pyarrow = pytest.importorskip("pyarrow")


def read_all(name):
    """The clips of a shard, and what reading each gave; anything but an error of vidspec's goes through."""
    try:
        found = shard_members(Job(name))
    except VidspecError as error:
        return [], [error]
    files, errors = ClipOpener(FetchLimits(most=1 << 20)), []
    try:
        for job in found:
            if job.error is not None:
                assert isinstance(job.error, VideoError)
                errors.append(job.error)
                continue
            try:
                with files.local(job) as file:
                    if job.source is not None:
                        Path(file).read_bytes()
            except VidspecError as error:
                errors.append(error)
    finally:
        files.close()
    return found, errors


@pytest.mark.parametrize("name", HOSTILE)
def test_of_a_hostile_tar_the_clip_before_is_found(name):
    Path("s.tar").write_bytes(HOSTILE[name])
    found, errors = read_all("s.tar")
    assert found[0].path == "s.tar/first.mp4" and found[0].error is None, errors
    assert all(len(str(error).splitlines()) == 1 for error in errors)
    json.dumps([job.path for job in found])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a NUL", "unsupported"), ("size -1", "truncated"), (f"size {2**63}", "truncated"), ("mtime nan", None)],
)
def test_a_member_that_cannot_be_is_one_error(name, kind):
    """Newer Pythons end at the size -1: the error is then that of the shard."""
    Path("s.tar").write_bytes(HOSTILE[name])
    second = shard_members(Job("s.tar"))[1]
    assert (second.error and second.error.kind) == kind


@pytest.mark.parametrize("name", ["s.tar", "s.parquet"])
@pytest.mark.parametrize("whole", [False, True])
def test_pointers_of_git_lfs_are_named(name, whole):
    """In place of a member, or of the whole shard."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 123\n"
    if whole:
        Path(name).write_bytes(pointer)
    elif name == "s.tar":
        Path(name).write_bytes(tar_of({"a.mp4": pointer}))
    else:
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"video": [pointer]}), name)
    with pytest.raises(VideoError) as caught:
        (job,) = shard_members(Job(name))
        with ClipOpener().local(job) as file:
            probe(file)
    assert f"{name if whole else job.path}: is a pointer of Git LFS" in caught.value.message
    assert caught.value.hint is not None and "git lfs pull" in caught.value.hint


BASE = {
    "tar": tar_of({f"{n}/clip.mp4": bytes([n]) * 700 for n in range(4)})[:7168],
    "pax": GOOD + pax("b.mp4", b"two", mtime="1.5", path="ä" * 60 + ".mp4") + END,
}


@pytest.mark.full
@settings(max_examples=examples(150))
@given(st.sampled_from(sorted(BASE)), st.integers(0, 2**32), st.booleans())
def test_mutated_headers_of_tars(base, seed, summed):
    """Bytes of headers are changed, mostly with checksums that are right again."""
    data, draw = bytearray(BASE[base]), random.Random(seed)
    headers = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    for _ in range(draw.randint(1, 4)):
        at = draw.choice(headers)
        first, size = draw.choice([(0, 100), (100, 24), (124, 12), (136, 12), (156, 1), (345, 155), (512, 60)])
        value = draw.choice([b"\0", b"\xff", b"\x80", b"7", b"-", b" ", b"x", b"L", b"K", b"S", b"g"])
        place = at + first + draw.randrange(size)
        if place < len(data):
            data[place : place + draw.randint(1, 8)] = value * draw.randint(1, 8)
    if summed:
        for at in headers:
            block = data[at : at + 512]
            block[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    Path("m.tar").write_bytes(data)
    read_all("m.tar")


def parquet_of(columns, **how):
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file, **how)
    return file.getvalue()


def test_columns_that_cannot_be():
    from pyarrow import parquet

    for kind, values in (("int", [1, 2]), ("list", [["a.mp4"]]), ("struct", [{"a": "b"}]), ("time", [0.5])):
        Path("v.parquet").write_bytes(parquet_of({"path": values}))
        with pytest.raises(VideoError, match=r"^v.parquet: column path holds neither bytes nor text, but ") as error:
            shard_members(Job("v.parquet"))
        assert error.value.kind == "unsupported", kind
    for column in ([b"x"], ["a.mp4"]):
        twice = pyarrow.Table.from_arrays([pyarrow.array(column)] * 2, names=["path", "path"])
        parquet.write_table(twice, "v.parquet")
        with pytest.raises(VideoError, match=r"^v.parquet: has the column path 2 times"):
            shard_members(Job("v.parquet"))
    twice = pyarrow.Table.from_arrays([pyarrow.array(one) for one in (["k"], ["l"], [b"x"])], names=["id", "id", "mp4"])
    parquet.write_table(twice, "v.parquet")
    assert [job.id for job in shard_members(Job("v.parquet"))] == [None]


def test_rows_that_cannot_be():
    Path("v.parquet").write_bytes(parquet_of({"path": ["a.mp4", "b\0.mp4", "c" * 300 + ".mp4", "", "d.mp4"]}))
    found, (error,) = read_all("v.parquet")
    assert [job.path[:9] for job in found] == ["./a.mp4", "v.parquet", "./ccccccc", "./", "./d.mp4"]
    assert error.kind == "refused" and "which holds a NUL" in error.message
    text = pyarrow.array([b"a.mp4", b"\xff\xfe", b"b.mp4"]).view(pyarrow.string())
    Path("v.parquet").write_bytes(parquet_of({"path": text}))
    found, (error,) = read_all("v.parquet")
    assert [job.path for job in found] == ["./a.mp4", "v.parquet/00001", "./b.mp4"] and error.kind == "damaged"


PARQUET = [
    parquet_of({"mp4": [bytes([n]) * 50 for n in range(20)], "id": [str(n) for n in range(20)]}, row_group_size=6),
    parquet_of({"path": [f"{n}.mp4" for n in range(20)]}, compression="none"),
]


@pytest.mark.full
@settings(max_examples=examples(150))
@given(st.sampled_from([0, 1]), st.integers(0, 2**32))
def test_mutated_parquet_files(base, seed):
    data, draw = bytearray(PARQUET[base]), random.Random(seed)
    for _ in range(draw.randint(1, 5)):
        place = draw.randrange(len(data)) if draw.random() < 0.3 else draw.randrange(len(data) // 2, len(data))
        data[place] = draw.choice([0, 255, 128, 1, data[place] ^ 1 << draw.randrange(8)])
    Path("m.parquet").write_bytes(data)
    read_all("m.parquet")


def test_programming_errors_stay(monkeypatch):
    """A bug is no error of a shard."""
    Path("s.tar").write_bytes(GOOD + END)
    monkeypatch.setattr("vidspec.runs.sources.tar.EXTENSIONS", None)
    with pytest.raises(TypeError):
        shard_members(Job("s.tar"))
