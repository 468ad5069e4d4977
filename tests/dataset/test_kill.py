"""SIGKILL at random moments, then the same command again: the outcome is that of a run nobody disturbed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vidspec.dataset.file_marks import is_mark

ROOT = Path(__file__).resolve().parents[2]
CLIPS, FAILING = 300, 30


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """300 files of which 30 fail; what they hold does not matter to the captioner without models."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(CLIPS):
        name = "missing" if number % (CLIPS // FAILING) == 3 else "good"
        clip = folder / f"{number:03d}" / f"{name}.mp4"
        clip.parent.mkdir()
        clip.write_bytes(bytes(number))
    return folder


def killed(kills, where, clips, *args):
    """The number of kills and the final exit code of runs in the folder ``where``, and all files they left."""
    where.mkdir()
    command = [sys.executable, str(ROOT / "tests/dataset/kill_and_resume.py"), "7", str(kills), "0.25"]
    command += ["caption", str(clips), *args]
    ran = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=300, env=environment(where))
    assert ran.returncode == 0, ran.stderr
    times, code = map(int, ran.stdout.split())
    left = {str(path.relative_to(where)): path.read_bytes() for path in where.rglob("*") if path.is_file()}
    return times, code, {name: without_marks(data) for name, data in left.items() if not name.endswith(".part")}


def without_marks(data):
    """Return a file without the marks of a journal, which tell what files held whenever they were written."""
    return b"".join(line for line in data.splitlines(keepends=True) if not is_mark(line))


def environment(where):
    import os

    return {**os.environ, "XDG_CONFIG_HOME": str(where), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.full
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("--format", "jsonl", "-o", "out.jsonl", "--batch", "1"), id="one by one", marks=pytest.mark.full),
        pytest.param(("--format", "jsonl", "-o", "out.jsonl", "--batch", "4"), id="jsonl"),
        pytest.param(("--format", "csv", "-o", "out.csv", "--batch", "4"), id="csv", marks=pytest.mark.full),
        pytest.param(("--format", "vtt", "--output-dir", "out", "--batch", "4"), id="vtt", marks=pytest.mark.full),
    ],
)
def test_killed_twenty_times(clips, tmp_path, args):
    times, code, files = killed(20, tmp_path / "killed", clips, *args)
    undisturbed, whole_code, whole = killed(0, tmp_path / "whole", clips, *args)
    assert (times, undisturbed) == (20, 0)
    assert code == whole_code == 1
    assert files == whole
    if "jsonl" in args:
        records = [json.loads(line) for line in files["out.jsonl"].splitlines()]
        assert [record["path"] for record in records] == sorted(map(str, clips.rglob("*.mp4")))
        assert sum(record["error"] is None for record in records) == CLIPS - FAILING


@pytest.mark.full
def test_parts_of_shards_killed_twenty_times(tmp_path, monkeypatch):
    """Tar shards into Parquet parts: not a clip is lost, none is there twice, and the parts are the same bytes."""
    pytest.importorskip("pyarrow")
    from tests.dataset.shards import rows, write_shards

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    failing = set(range(3, CLIPS, CLIPS // FAILING))
    shards = write_shards(tmp_path / "shards", 10, CLIPS // 10, failing=failing)
    args = (*map(str, sorted(shards.iterdir())), "--output-dir", "out", "--batch", "4")
    times, code, files = killed(20, tmp_path / "killed", *args)
    undisturbed, whole_code, whole = killed(0, tmp_path / "whole", *args)
    assert (times, undisturbed) == (20, 0)
    assert code == whole_code == 1
    assert files == whole and sorted(files) == [f"out/{shard:05d}.parquet" for shard in range(10)]
    found = [row for path in sorted((tmp_path / "killed/out").glob("*.parquet")) for row in rows(path)]
    numbers = [int(row["path"].split("/")[-2]) for row in found]
    assert numbers == list(range(CLIPS)), "each clip once, in its place"
    assert {number for number, row in zip(numbers, found, strict=True) if row["error"]} == failing
