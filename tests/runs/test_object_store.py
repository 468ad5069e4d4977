"""Shards in and parts out of an object store that loses connections and answers with errors."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_captioner import PROGRAM
from tests.runs.shards import CLIP, rows, tar_of
from tests.tiers import in_turn
from vidspec.cli import main
from vidspec.runs import stores

pytest.importorskip("moto")
pytest.importorskip("s3fs")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(monkeypatch, tmp_path):
    from moto import s3

    from tests.runs.object_store import Store

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    made = Store()
    for name, value in {
        "AWS_ENDPOINT_URL": made.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",  # what is tried again is tried again by us
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    bucket = client()
    for shard in range(3):
        members = {f"{shard}{clip}/good.mp4": CLIP for clip in range(4)}
        bucket.pipe_file(f"bucket/in/{shard:05d}.tar", tar_of(members))
    made.front.requests.clear()
    yield made
    made.close()
    for backends in s3.models.s3_backends.values():
        for backend in backends.values():
            backend.reset()


def client():
    import s3fs

    store = s3fs.S3FileSystem(skip_instance_cache=True)
    if not store.exists("bucket"):
        store.mkdir("bucket")
    return store


@pytest.fixture
def caption(store, fake_models, monkeypatch, capfd):
    """Runs the command in this process; attempts follow each other faster."""
    import fsspec
    import s3fs

    monkeypatch.setattr(stores, "PAUSES", (0.01, 0.02, 0.04))

    def run(*args):
        for system in (s3fs.S3FileSystem, fsspec.get_filesystem_class("http")):
            system.clear_instance_cache()  # they know the store's address, and what was in it
        capfd.readouterr()
        code = main(["caption", *args])
        return subprocess.CompletedProcess(args, code, *capfd.readouterr())

    return run


RUN = ("s3://bucket/in/{00000..00002}.tar", "--output-dir", "s3://bucket/out")


def parts():
    bucket = client()
    found = {}
    for path in sorted(bucket.ls("bucket/out", detail=False)) if bucket.exists("bucket/out") else ():
        with bucket.open(path) as file:
            found[path.rpartition("/")[2]] = rows(file)
    return found


def whole():
    """The names of all clips, by part."""
    return {
        f"{shard:05d}.parquet": [f"s3://bucket/in/{shard:05d}.tar/{shard}{clip}/good.mp4" for clip in range(4)]
        for shard in range(3)
    }


def test_from_bucket_to_bucket(store, caption):
    ran = caption(*RUN)
    assert ran.returncode == 0, ran.stderr
    assert {name: [row["path"] for row in part] for name, part in parts().items()} == whole()
    store.front.requests.clear()
    ran = caption(*RUN)
    assert ran.returncode == 0 and "12 of 12 clips done before" in ran.stderr
    ran = caption("s3://bucket/in/*.tar", *RUN[1:])
    assert ran.returncode == 0 and "12 of 12 clips done before" in ran.stderr, "the same shards, listed"
    assert store.front.count("GET", ".tar") == 0, "the shard of a finished part is not opened"
    assert store.front.count("PUT", ".parquet") == 0


@pytest.mark.parametrize("fate", ["500", "drop"])
def test_what_fails_sometimes_is_tried_again(store, caption, fate):
    """Every third request of each kind fails, while shards are found, clips read and parts written."""
    seen = {}

    def failing(method, path):
        seen[method, path] = seen.get((method, path), 0) + 1
        return fate if seen[method, path] % 3 == 1 else None

    store.front.failing = failing
    ran = caption(*RUN)
    store.front.failing = lambda method, path: None
    assert ran.returncode == 0, ran.stderr
    assert sum(one[2] == fate for one in store.front.requests) >= 6
    assert {name: [row["path"] for row in part] for name, part in parts().items()} == whole()
    assert all(row["error"] is None for part in parts().values() for row in part)


@pytest.mark.parametrize("fate", in_turn(["500", "drop"], 2))
def test_a_shard_that_never_comes_is_one_named_error(store, caption, fate):
    store.front.failing = lambda method, path: fate if method == "GET" and path.endswith("00001.tar") else None
    ran = caption(*RUN)
    assert ran.returncode == 1
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and errors[0].startswith("error: s3://bucket/in/00001.tar: cannot be read (4 attempts): ")
    assert {name: len(part) for name, part in parts().items()} == {"00000.parquet": 4, "00002.parquet": 4}
    store.front.failing = lambda method, path: None
    assert caption(*RUN).returncode == 0
    assert {name: [row["path"] for row in part] for name, part in parts().items()} == whole()


def test_clips_that_never_come_are_rows_with_an_error(store, caption):
    """The store dies for one shard when its clips are known: its clips fail, each by its name; others do not."""
    opened = []

    def failing(method, path):
        if method == "GET" and path.endswith("00001.tar"):
            opened.append(path)
            return "500" if len(opened) > 1 else None  # the first one is for the headers: 55 kB in one piece
        return None

    store.front.failing = failing
    ran = caption(*RUN)
    store.front.failing = lambda method, path: None
    assert ran.returncode == 1
    failed = [row for part in parts().values() for row in part if row["error"]]
    assert [row["path"] for row in failed] == whole()["00001.parquet"]
    assert all(row["error"]["message"].startswith(f"{row['path']}: s3://bucket/in/00001.tar: ") for row in failed)
    ran = caption(*RUN, "--retry-failed")
    assert ran.returncode == 0, ran.stderr
    assert all(row["error"] is None for part in parts().values() for row in part)


def test_a_part_that_cannot_be_written_is_written_by_the_next_run(store, caption):
    store.front.failing = lambda method, path: "500" if method == "PUT" and path.endswith("00001.parquet") else None
    ran = caption(*RUN)
    assert ran.returncode == 1 and "s3://bucket/out/00001.parquet: cannot be written (4 attempts): " in ran.stderr
    assert sorted(parts()) == ["00000.parquet", "00002.parquet"]
    store.front.failing = lambda method, path: None
    ran = caption(*RUN)
    assert ran.returncode == 0 and "12 of 12 clips done before" in ran.stderr, ran.stderr
    assert {name: [row["path"] for row in part] for name, part in parts().items()} == whole()


def test_what_is_not_there(store, caption):
    for url, message in {
        "s3://nowhere/00000.tar": "there is no such file, or no such bucket (check its name)",
        "s3://bucket/in/00009.tar": "there is no such file, or no such bucket (check its name)",
    }.items():
        ran = caption(url, "--output-dir", "out")
        assert ran.returncode == 1 and f"error: {url}: {message}" in ran.stderr.splitlines(), ran.stderr


def test_over_http(store, caption):
    """Each kind of request fails at first; the client of fsspec does not try again, and calls it a missing file."""
    seen = set()

    def failing(method, path):
        first = (method, path) not in seen
        seen.add((method, path))
        return "500" if first else None

    client().chmod("bucket/in/00000.tar", acl="public-read")
    store.front.failing = failing
    url = f"{store.url}/bucket/in/00000.tar"
    ran = caption(url, "--output-dir", "out")
    assert ran.returncode == 0, ran.stderr
    assert [row["path"] for row in rows("out/00000.parquet")] == [f"{url}/0{clip}/good.mp4" for clip in range(4)]
    assert any(fate == "500" for _, path, fate in store.front.requests if path.endswith(".tar"))


def test_ray_takes_shards_from_the_store(store, tmp_path):
    """Each shard is captioned by one actor."""
    pytest.importorskip("ray")
    (tmp_path / "program.py").write_text(PROGRAM.format(python=sys.executable))
    command = [sys.executable, "program.py", "caption", *RUN, "--engine", "ray", "--replicas", "2", "--device", "cpu"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stderr
    assert {name: [row["path"] for row in part] for name, part in parts().items()} == whole()


def test_paths_in_a_table_may_be_urls(store, caption, tmp_path):
    import pyarrow
    from pyarrow import parquet

    client().pipe_file("bucket/clips/one.mp4", CLIP)
    urls = ["s3://bucket/clips/one.mp4", "s3://bucket/clips/none.mp4"]
    parquet.write_table(pyarrow.table({"url": urls}), "urls.parquet")
    ran = caption("urls.parquet", "--allow-urls", "s3://bucket", "--format", "jsonl", "-o", "out.jsonl")
    assert ran.returncode == 1
    records = {one["path"]: one["error"] for one in map(json.loads, Path("out.jsonl").read_text().splitlines())}
    assert records[urls[0]] is None and records[urls[1]]["kind"] == "missing"
