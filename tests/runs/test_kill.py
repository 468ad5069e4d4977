"""SIGKILL at random moments, then the same command again: the outcome is that of a run nobody disturbed.

``VIDSPEC_KILLS=100`` kills that often.
"""

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from vidspec.runs.store.journal_lines import is_mark

ROOT = Path(__file__).resolve().parents[2]
CLIPS, FAILING = 300, 30
PASSES = ("--rewrite", "shorter", "--summary")
KILLS = int(os.environ.get("VIDSPEC_KILLS", "6"))


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


@pytest.fixture(scope="module")
def killed():
    """A function that runs a command in a folder of its own.

    It returns the number of kills and the final exit code of the runs, and all files they left.
    """
    command = [sys.executable, str(ROOT / "tests/runs/kill_and_resume.py")]
    runner = subprocess.Popen(command, env=environment(ROOT), stdin=-1, stdout=-1, text=True)

    def run(kills, where, *args):
        where.mkdir(exist_ok=True)
        print(json.dumps({"folder": str(where), "kills": kills, "args": args}), file=runner.stdin, flush=True)
        times, code = map(int, runner.stdout.readline().split())
        left = {str(path.relative_to(where)): path.read_bytes() for path in where.rglob("*") if path.is_file()}
        return times, code, {name: without_marks(data) for name, data in left.items() if not name.endswith(".part")}

    with runner:
        yield run


def without_marks(data):
    """Return a file without the marks of a journal, which tell what files held whenever they were written."""
    return b"".join(line for line in data.splitlines(keepends=True) if not is_mark(line))


def environment(where):
    return {**os.environ, "XDG_CONFIG_HOME": str(where), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.full
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("--format", "jsonl", "-o", "out.jsonl", "--batch", "1"), id="one by one", marks=pytest.mark.full),
        pytest.param(("--format", "jsonl", "-o", "out.jsonl", "--batch", "4"), id="jsonl"),
        pytest.param(("--format", "csv", "-o", "out.csv", "--batch", "4"), id="csv", marks=pytest.mark.full),
        pytest.param(("--format", "vtt", "--output-dir", "out", "--batch", "4"), id="vtt", marks=pytest.mark.full),
        pytest.param(("--format", "jsonl,csv,txt", "--output-dir", "out", "--batch", "4"), id="several"),
        pytest.param(("--format", "csv,txt", "--output-dir", "out", "--segment", "2s", *PASSES), id="second passes"),
        pytest.param(("--segment", "2s", "--cut", "out", "--batch", "4"), id="cut"),
        pytest.param(("--format", "txt,musubi", "--output-dir", "out", "--batch", "4"), id="list"),
        pytest.param(("--segment", "2s", "--cut", "out", "--format", "ltx", "--batch", "4"), id="list of segments"),
        pytest.param(("--format", "parquet", "-o", "out.parquet", "--batch", "4"), id="parquet"),
        pytest.param(("--format", "webdataset", "-o", "out.tar", "--batch", "4"), id="webdataset"),
    ],
)
def test_killed_again_and_again(killed, clips, tmp_path, args):
    times, code, files = killed(KILLS, tmp_path / "killed", "caption", str(clips), *args)
    undisturbed, whole_code, whole = killed(0, tmp_path / "whole", "caption", str(clips), *args)
    assert (times, undisturbed) == (KILLS, 0)
    assert code == whole_code == 1
    assert files == whole
    if "jsonl" in args:
        records = [json.loads(line) for line in files["out.jsonl"].splitlines()]
        assert [record["path"] for record in records] == sorted(map(str, clips.rglob("*.mp4")))
        assert sum(record["error"] is None for record in records) == CLIPS - FAILING


@pytest.mark.full
def test_existing_texts_outlive_kills(killed, clips, tmp_path):
    """Each is kept once as ``NAME~`` and goes into its caption, whenever its run ended."""
    for folder in ("killed", "whole"):
        for number in range(0, CLIPS, 2):
            text = tmp_path / folder / f"out/{number:03d}/good.txt"
            text.parent.mkdir(parents=True)
            text.write_text(f"tags {number}\n")
    use = ("--format", "txt", "--output-dir", "out", "--existing", "use", "--template", "{existing}: {caption}")
    times, code, files = killed(KILLS, tmp_path / "killed", "caption", str(clips), *use)
    assert times == KILLS and code == 1
    undisturbed, code, whole = killed(0, tmp_path / "whole", "caption", str(clips), *use)
    assert files == whole and undisturbed == 0 and code == 1
    texts = {name: text.decode() for name, text in files.items() if ".txt" in name}
    kept = {name: text for name, text in texts.items() if name.endswith("~")}
    assert kept == {f"out/{number:03d}/good.txt~": f"tags {number}\n" for number in range(0, CLIPS, 2)}
    assert texts["out/004/good.txt"].startswith("tags 4: A red") and texts["out/005/good.txt"].startswith(": A red")


@pytest.mark.full
def test_existing_texts_and_replicas(tmp_path):
    """Captioners die, and the whole run once it has replaced a file; the next one finds every text."""
    from tests.fake_captioner import PROGRAM
    from tests.runs.shards import CLIP

    (tmp_path / "program.py").write_text(PROGRAM.format(python=sys.executable))
    names = ["a/good", "b/dies-once", "c/good", "d/dies", "e/good", "f/good"]
    for name in names:
        clip = tmp_path / "k" / f"{name}.mp4"
        clip.parent.mkdir(parents=True)
        clip.write_bytes(CLIP)
        clip.with_suffix(".txt").write_text(f"tags {name}\n")
    use = ("--format", "txt", "--existing", "use", "--template", "{existing}: {caption}")
    command = [sys.executable, "program.py", "caption", "k", *use, "--replicas", "2", "--device", "cpu", "--batch", "1"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path)) as run:
        until = time.monotonic() + 100
        while not list(tmp_path.rglob("*.txt~")) and time.monotonic() < until:
            time.sleep(0.005)
        run.kill()
    ran = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=200)
    assert ran.returncode == 1 and "k/d/dies.mp4" in ran.stderr, ran.stderr
    for name in names:
        text, kept = tmp_path / f"k/{name}.txt", tmp_path / f"k/{name}.txt~"
        if name == "d/dies":
            assert text.read_text() == f"tags {name}\n" and not kept.exists(), "a clip that fails keeps its file"
        else:
            assert (
                text.read_text() == f"tags {name}: A red circle moves left.\n" and kept.read_text() == f"tags {name}\n"
            )
    assert len(list(tmp_path.rglob("*.txt~*"))) == len(names) - 1


@pytest.mark.sample(full=1)
@pytest.mark.full
@pytest.mark.parametrize("suffix", ["parquet", "tar"])
def test_parts_of_shards_killed_again_and_again(killed, tmp_path, suffix):
    """Not a clip is lost, none is there twice, and the parts are the same bytes."""
    pytest.importorskip("pyarrow")
    from tests.runs.shards import rows, write_shards

    failing = set(range(3, CLIPS, CLIPS // FAILING))
    shards = write_shards(tmp_path / "shards", 10, CLIPS // 10, failing=failing)
    args = ("caption", *map(str, sorted(shards.iterdir())), "--output-dir", "out", "--batch", "4")
    args += ("--format", {"parquet": "parquet", "tar": "webdataset"}[suffix])
    times, code, files = killed(KILLS, tmp_path / "killed", *args)
    undisturbed, whole_code, whole = killed(0, tmp_path / "whole", *args)
    assert (times, undisturbed) == (KILLS, 0)
    assert code == whole_code == 1
    assert files == whole and sorted(files) == [f"out/{shard:05d}.{suffix}" for shard in range(10)]
    if suffix == "tar":
        keys = []
        for path in sorted((tmp_path / "killed/out").iterdir()):
            with tarfile.open(path) as tar:
                keys += tar.getnames()
        assert keys[::2] == [f"{number:05d}/good.txt" for number in range(CLIPS) if number not in failing]
        return
    found = [row for path in sorted((tmp_path / "killed/out").glob("*.parquet")) for row in rows(path)]
    numbers = [int(row["path"].split("/")[-2]) for row in found]
    assert numbers == list(range(CLIPS)), "each clip once, in its place"
    assert {number for number, row in zip(numbers, found, strict=True) if row["error"]} == failing
