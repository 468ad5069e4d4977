"""Clips in tar and Parquet files: which there are, each as a file of its own, and what is wrong with a shard."""

import io
import os
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.shards import CLIP, tar_of
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, VideoError
from vidspec.runs import stores
from vidspec.runs.access import Access
from vidspec.runs.allowance import FetchLimits
from vidspec.runs.executors.local import caption_locally
from vidspec.runs.inputs import expand_shards
from vidspec.runs.job import Job
from vidspec.runs.sources.base import ClipOpener, shard_members
from vidspec.runs.store.records import clip_id

pytestmark = pytest.mark.usefixtures("own_folder")


def content(job):
    files = ClipOpener()
    try:
        with files.local(job) as file:
            return Path(file).read_bytes()
    finally:
        files.close()


def table(path, columns, **how):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, **how)
    return Job(path)


def test_of_each_key_the_video_and_its_bytes():
    clips = {
        "./a/1.mp4": b"one",
        "a/1.jpg": b"thumb",
        "2.json": b"{}",
        "2.x.webm": b"two",
        "3.jpg": b"three",
        "4.txt": b"",
    }
    Path("s.tar").write_bytes(tar_of({**clips, "._5.mp4": b"a Mac's", "../../6.mp4": b"six"}, mtime=7))
    found = shard_members(Job("s.tar", prompt="What?"))
    assert [job.path for job in found] == ["s.tar/a/1.mp4", "s.tar/2.x.webm", "s.tar/3.jpg", "s.tar/6.mp4"]
    assert [content(job) for job in found] == [b"one", b"two", b"three", b"six"]
    assert {(job.shard, job.prompt) for job in found} == {("s.tar", "What?")}
    assert found[0].source.mtime_ns == 7 * 10**9


def test_dots_of_folders_separate_no_keys():
    Path("s.tar").write_bytes(tar_of({f"v1.0/{name}": b"x" for name in ("a.mp4", "b.cam.mp4", "b.jpg", ".c.mp4")}))
    found = shard_members(Job("s.tar"))
    assert [(job.id, job.path) for job in found] == [("v1.0/a", "s.tar/v1.0/a.mp4"), ("v1.0/b", "s.tar/v1.0/b.cam.mp4")]
    assert clip_id(found[0]) == clip_id(replace(found[0], id=None)), "records without a key are the same clip's"


def test_every_video_of_a_key_is_a_clip():
    """WebDataset's key ends at the first dot, so the episodes of a show, versions and dates share one."""
    names = ("show.s01e01.mp4", "show.s01e02.mp4", "show.poster.jpg", "d/v1.2.mp4", "e.f.jpg", "e.g.jpg", "e.g.txt")
    Path("s.tar").write_bytes(tar_of(dict.fromkeys(names, b"x")))
    found = shard_members(Job("s.tar"))
    assert [(job.id, job.path) for job in found] == [
        ("show.s01e01", "s.tar/show.s01e01.mp4"),
        ("show.s01e02", "s.tar/show.s01e02.mp4"),
        ("d/v1", "s.tar/d/v1.2.mp4"),
        ("e.f", "s.tar/e.f.jpg"),
        ("e.g", "s.tar/e.g.jpg"),
    ]
    assert len({clip_id(job) for job in found}) == 5


def test_links_in_a_tar_are_errors_of_their_clips():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind in (("a.mp4", tarfile.REGTYPE), ("b.mp4", tarfile.LNKTYPE), ("c.mp4", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.mp4"
            tar.addfile(info)
    Path("s.tar").write_bytes(file.getvalue())
    found = shard_members(Job("s.tar"))
    assert [job.path for job in found if job.error is None] == ["s.tar/a.mp4"]
    assert [job.error.message for job in found[1:]] == [f"s.tar/{name}.mp4: is a link or no file" for name in "bc"]


def test_texts_beside_clips_are_columns_and_the_existing_text():
    members = {
        "a.mp4": b"x",
        "a.json": b'{"tags": ["red", "blue"], "other": 1, "existing": "no"}',
        "a.txt": b"\xef\xbb\xbfa title\n",
        "s.1.mp4": b"x",
        "s.2.mp4": b"x",
        "s.json": b'{"tags": "both"}',
        "s.2.txt": b"two",
        "bad.mp4": b"x",
        "bad.json": b"[1",
    }
    Path("s.tar").write_bytes(tar_of(members))
    found = shard_members(Job("s.tar"), fields={"tags", "existing"})
    assert [(job.id, job.columns, job.existing) for job in found] == [
        ("a", {"tags": ["red", "blue"]}, "a title"),
        ("s.1", {"tags": "both"}, ""),
        ("s.2", {"tags": "both"}, "two"),
        ("bad", {}, ""),
    ]
    assert found[0].fields == {"tags": "red, blue", "existing": "a title"}
    assert {(str(job.columns), job.existing) for job in shard_members(Job("s.tar"))} == {("{}", None)}


def test_nothing_but_headers_of_a_tar_is_read(monkeypatch):
    Path("s.tar").write_bytes(tar_of({f"{key}.mp4": bytes(1 << 20) for key in range(4)}))
    read = []
    real = stores.open_url

    class Counting:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, size=-1):
            read.append(size)
            return self.file.read(size)

    from contextlib import contextmanager

    @contextmanager
    def counting(name, *how):
        with real(name, *how) as file:
            yield Counting(file)

    monkeypatch.setattr("vidspec.runs.sources.tar.open_url", counting)
    assert len(shard_members(Job("s.tar"))) == 4
    assert sum(read) < 10_000


@pytest.mark.parametrize(
    ("bytes_", "message"),
    [
        (b"", "is not a tar file"),
        (b"junk" * 300, "is not a tar file"),
        (tar_of({"a.txt": b"x"}), "holds no clip"),
        (tar_of({"a.mp4": bytes(5000)})[:300], "is not a tar file"),
        (None, "there is no such file"),
    ],
)
def test_a_shard_that_gives_nothing_is_one_error(bytes_, message):
    if bytes_ is not None:
        Path("s.tar").write_bytes(bytes_)
    with pytest.raises(VideoError, match=f"^s.tar: {message}"):
        shard_members(Job("s.tar"))


@pytest.mark.parametrize("cut", [-1, 512 + 700, 1536 + 200, 1536 + 512 + 100])
def test_of_a_tar_that_is_cut_short_the_clips_before_are_found(cut):
    whole = tar_of({"a.mp4": bytes(900), "b.mp4": bytes(900), "c.mp4": bytes(900)})
    end = 3 * (512 + 1024)
    damaged = whole[: end - 900] if cut == -1 else whole[:cut]
    Path("s.tar").write_bytes(damaged)
    *found, last = shard_members(Job("s.tar"))
    assert [job.path[-5:] for job in found] == ["a.mp4", "b.mp4", "c.mp4"][: len(found)] and found
    assert last.path == "s.tar" and "cut short" in str(last.error) and last.error.kind == "truncated"


def test_a_member_behind_the_end_is_an_error_of_its_clip():
    Path("s.tar").write_bytes(tar_of({"a.mp4": bytes(9000)})[:2000])
    clip, shard = shard_members(Job("s.tar"))
    assert clip.path == "s.tar/a.mp4" and clip.error.message == "s.tar/a.mp4: extends beyond the end of the tar"
    assert shard.path == "s.tar" and shard.error.kind == "truncated"


def test_rows_of_bytes():
    job = table("v.parquet", {"__key__": ["x", "y"], "mp4": [b"one", b"two"], "n": [1, 2]})
    found = shard_members(job)
    assert [(one.path, one.id) for one in found] == [("v.parquet/00000", "x"), ("v.parquet/00001", "y")]
    assert [content(one) for one in found] == [b"one", b"two"]


def test_rows_without_bytes_are_read_from_their_path():
    """As ``push_to_hub(embed_external_files=False)`` writes them."""
    pyarrow = pytest.importorskip("pyarrow")
    os.mkdir("d")
    Path("d/b.mp4").write_bytes(b"two")
    Path("c.mp4").write_bytes(b"outside")
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [
        {"bytes": b"one", "path": "a.mp4"},
        *({"bytes": None, "path": path} for path in ("b.mp4", "../c.mp4", None)),
    ]
    shard = table("d/v.parquet", {"video": pyarrow.array(rows, kind)})
    found = shard_members(shard)
    assert [content(job) for job in found[:2]] == [b"one", b"two"]
    with pytest.raises(VideoError, match=r"row names \.\./c\.mp4, which is outside"):
        content(found[2])
    with pytest.raises(VideoError, match=r"^d/v.parquet/00003: row 3 holds no bytes"):
        content(found[3])


def test_a_field_of_structs_is_a_column():
    """Hugging Face's ``video``: its bytes, or its paths though there are bytes; a null struct names nothing."""
    pyarrow = pytest.importorskip("pyarrow")
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [{"bytes": b"one", "path": "a.mp4"}, None, {"bytes": None, "path": "b.mp4"}]
    shard = table("v.parquet", {"video": pyarrow.array(rows, kind), "id": ["x", "y", "z"]})
    found = shard_members(shard, "video.path")
    assert [(job.path, job.id, job.source) for job in found] == [("./a.mp4", "x", None), ("./b.mp4", "z", None)]
    assert content(shard_members(shard, "video.bytes")[0]) == b"one"
    nested = pyarrow.array([{"in": row} for row in rows], pyarrow.struct([("in", kind)]))
    assert content(shard_members(table("w.parquet", {"sample": nested}), "sample.in")[0]) == b"one"
    literal = table("x.parquet", {"video.path": ["c.mp4"], "video": pyarrow.array(rows[:1], kind)})
    assert [job.path for job in shard_members(literal, "video.path")] == ["./c.mp4"]
    for wrong in ("video.file", "video.path.x", "id.x", "video.", ".path"):
        with pytest.raises(UsageError, match=rf"has no column {wrong} \(name one with --column: video \(struct<bytes"):
            shard_members(shard, wrong)


@pytest.mark.parametrize("fields", [(), ("tags",)])
def test_all_other_columns_without_bytes_are_copied(fields):
    import datetime

    columns = {
        "video": [{"bytes": b"one", "path": "a.mp4"}, {"bytes": b"two", "path": "b.mp4"}],
        "id": ["x", "y"],
        "tags": ["red, slow", None],
        "score": [0.5, float("nan")],
        "boxes": [[{"label": "dog", "at": [1, 2]}], []],
        "day": [datetime.date(2026, 1, 2)] * 2,
        "thumb": [b"jpeg", b"jpeg"],
    }
    one, two = shard_members(table("v.parquet", columns), "video", fields=fields)
    day = {"day": "2026-01-02"}
    assert one.columns == {"tags": "red, slow", "score": 0.5, "boxes": [{"label": "dog", "at": [1, 2]}], **day}
    assert two.columns == {"boxes": [], **day} and (one.id, two.id) == ("x", "y")


def test_a_text_that_is_too_long_is_an_error_only_where_it_is_named(monkeypatch):
    monkeypatch.setattr("vidspec.runs.sources.parquet.LONGEST_PROMPT", 10)
    shard = table("v.parquet", {"mp4": [b"x"], "log": ["x" * 11], "words": [["a"] * 11], "tags": ["red"]})
    (job,) = shard_members(shard)
    assert job.error is None and job.columns == {"tags": "red"}
    (job,) = shard_members(shard, fields={"log"})
    assert "a text of 11 characters" in str(job.error)


def test_a_long_text_in_many_rows_is_kept_once():
    """A dictionary's one text may stand in any number of rows."""
    long = "x" * (1 << 18)
    shard = table("v.parquet", {"path": ["a.mp4"] * 100, "id": range(100), "tags": [long] * 100, "id2": [long] * 100})
    found = shard_members(shard, fields={"tags"})
    assert len({id(job.columns["tags"]) for job in found}) == 1
    (error,) = {str(job.error) for job in shard_members(table("w.parquet", {"path": [long]}))}
    assert "w.parquet/00000: cannot be read: a text of 262144 characters" in error


def test_rows_of_paths_are_beside_the_file():
    os.mkdir("d")
    job = table("d/p.parquet", {"path": ["a.mp4", os.path.abspath("d/b.mp4"), None, "memory://x/c.mp4", "a.mp4"]})
    found = shard_members(job, limits=FetchLimits(access=Access(urls=("memory://x",))))
    assert [(one.path, one.source and one.source.url) for one in found] == [
        ("d/a.mp4", None),
        (os.path.abspath("d/b.mp4"), None),
        ("memory://x/c.mp4", "memory://x/c.mp4"),
    ]


def test_the_column_is_named_or_the_only_one():
    job = table("v.parquet", {"a": [b"1"], "b": [b"2"], "note": ["x"]})
    with pytest.raises(UsageError, match=r"which column .*name one with --column: a \(binary\), b \(binary\), note"):
        shard_members(job)
    assert content(shard_members(job, "b")[0]) == b"2"
    with pytest.raises(UsageError, match=r"v.parquet: has no column c \(name one with --column: a \(binary\)"):
        shard_members(job, "c")


def test_what_is_not_parquet():
    pytest.importorskip("pyarrow")
    Path("v.parquet").write_bytes(b"junk" * 100)
    with pytest.raises(VideoError, match=r"v\.parquet: is not a Parquet file"):
        shard_members(Job("v.parquet"))


def test_rows_are_read_once_though_threads_overtake_each_other(monkeypatch):
    """Two readers ask for neighbours in turned order; the file is opened once for all of them."""
    job = table("v.parquet", {"mp4": [b"%d" % row for row in range(60)]}, row_group_size=7)
    found, opened = shard_members(job), []
    real = stores.open_url
    monkeypatch.setattr(
        "vidspec.runs.sources.parquet.open_url", lambda name, *how: opened.append(name) or real(name, *how)
    )
    files, got = ClipOpener(), {}

    def ask(job):
        with files.local(job) as file:
            got[job.path] = Path(file).read_bytes()

    for first, second in zip(found[4::2], found[5::2], strict=True):  # not from the beginning, as where a run goes on
        for one in (second, first):
            thread = threading.Thread(target=ask, args=(one,))
            thread.start()
            thread.join()
    files.close()
    assert got == {job.path: b"%d" % job.source.start for job in found[4:]} and len(opened) == 2


@pytest.mark.full
def test_a_row_group_is_not_held_in_memory():
    """One row group of 256 MiB, as pyarrow writes by default, is read by a process that may take 96 MiB more."""
    import subprocess
    import sys

    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    schema = pyarrow.schema([("mp4", pyarrow.binary())])
    with parquet.ParquetWriter("v.parquet", schema, compression="none", use_dictionary=False) as writer:
        writer.write_table(pyarrow.table({"mp4": [os.urandom(4 << 20) for _ in range(64)]}, schema=schema))
    code = """
import resource
from pathlib import Path
from vidspec.runs.sources.base import ClipOpener, shard_members
from vidspec.runs.job import Job
jobs, files = shard_members(Job("v.parquet")), ClipOpener()
def read(job):
    with files.local(job) as file:
        return Path(file).stat().st_size
assert read(jobs[0]) == 4 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert all(read(job) == 4 << 20 for job in jobs[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 96 << 10, "KiB above those after the first clip"


@pytest.mark.full
def test_clips_are_read_under_their_own_name():
    """By the process that reads clips: the frames, and errors that name the clip and no temporary file."""
    from tests.fake_captioner import FakeCaptioner, profile_of

    Path("s.tar").write_bytes(tar_of({"good.mp4": CLIP, "junk.mp4": b"junk" * 9, "picture.png": b"\x89PNG junk"}))
    jobs = (replace(job, number=number) for number, job in enumerate(shard_members(Job("s.tar")), 1))
    captioner = FakeCaptioner(profile_of(frames=2))
    found = {one.path: one for one in caption_locally(captioner, jobs, RunSpec())}
    assert found["s.tar/good.mp4"].error is None
    assert [asked["clip"].facts.path for asked in captioner.asked] == ["s.tar/good.mp4"], "not a temporary file's"
    assert str(found["s.tar/junk.mp4"].error) == "s.tar/junk.mp4: is not a video"
    assert str(found["s.tar/picture.png"].error).startswith("s.tar/picture.png: is damaged or not a picture")


def test_braces():
    assert expand_shards("d/{08..11}.tar") == ["d/08.tar", "d/09.tar", "d/10.tar", "d/11.tar"]
    assert expand_shards("s3://b/{a,b}/{0..1}.tar") == [f"s3://b/{folder}/{n}.tar" for folder in "ab" for n in (0, 1)]
    Path("{0..1}.tar").touch()
    assert expand_shards("{0..1}.tar") == ["{0..1}.tar"], "a file of that name"
    assert expand_shards("{a,b}.mp4") == ["{a,b}.mp4"], "clips are left to the shell"
    assert len(expand_shards("{00000..09999}.tar")) == 10_000
    with pytest.raises(UsageError, match="more than 1,000,000 names"):
        expand_shards("{0..999}/{0..1000}.tar")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope://b/0.tar", "has a protocol that fsspec does not know"),
        ("sftp://h/0.tar", r"needs paramiko, which is not installed \(pip install paramiko\)"),
    ],
)
def test_a_url_that_cannot_be(url, message):
    with pytest.raises(UsageError, match=f"^{url}: {message}"):
        shard_members(Job(url))


def test_without_pyarrow_the_package_is_named(monkeypatch):
    import sys

    Path("v.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"v.parquet: needs pyarrow, .*pip install .*pyarrow"):
        shard_members(Job("v.parquet"))


def test_stars_in_urls_are_listed():
    import fsspec

    store = fsspec.filesystem("memory")
    for name in ("a/1.tar", "a/0.tar", "b/2.tar", "a/x.txt", "a/1.tar~"):
        store.pipe_file(f"/stars/{name}", b"x")
    assert expand_shards("memory://stars/a/*.tar") == ["memory:///stars/a/0.tar", "memory:///stars/a/1.tar"]
    assert expand_shards("memory://stars/{a,b}/*.tar") == [
        f"memory:///stars/{one}.tar" for one in ("a/0", "a/1", "b/2")
    ]
    assert expand_shards("d/*.tar") == ["d/*.tar"], "left to the shell"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("https://example.org/*.tar", r"a web server does not list its files"),
        ("memory://stars/none/*.tar", "no file matches"),
        ("nowhere://x/*.tar", "a protocol that fsspec does not know"),
    ],
)
def test_stars_that_cannot_be_listed(pattern, message):
    with pytest.raises(UsageError, match=message) as caught:
        expand_shards(pattern)
    assert caught.value.hint and pattern in str(caught.value)
