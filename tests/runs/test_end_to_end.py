"""The command as users run it, with the built-in models and real files."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.runs.damage import WAYS, damage
from vidspec import cli
from vidspec.embedded.samples import shipped

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--frames", "2", "--max-new-tokens", "6", "--no-live")
ONE_THREAD = ("--set", "models.threads=1")
GOOD = 8


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Eight clips and ten broken ones, and the kinds of their errors."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(GOOD):
        shutil.copy(shipped()[number % 4], folder / f"{number:02d}-good.mp4")
    return folder, damage(shipped()[0], folder)


@pytest.fixture
def environment(tmp_path):
    """``vidspec`` on the path, and no settings of the user's."""
    program = tmp_path / "bin" / "vidspec"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vidspec "$@"\n')
    program.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VIDSPEC_", "SLURM_"))}
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}


@pytest.mark.full
def test_pictures_among_videos(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "clips"
    folder.mkdir()
    shutil.copy(shipped()[0], folder / "a.mp4")
    with Image.open(ROOT / "docs/pictures/how-seen-real.png") as picture:
        picture.convert("RGB").save(folder / "b.jpg")
    (folder / "c.jpg").write_bytes((folder / "b.jpg").read_bytes()[:5000])
    command = ["caption", str(folder), "--format", "json", *SMALL, "--segment", "60s"]
    for more, names in (((), ["a.mp4"]), (("--include-images",), ["a.mp4", "b.jpg", "c.jpg"])):
        code = cli.main([*command, *more])
        printed = capsys.readouterr()
        records = sorted((json.loads(line) for line in printed.out.splitlines()), key=lambda one: str(one["path"]))
        assert [Path(one["path"]).name for one in records] == names, printed.err
    assert records[1]["caption"] and records[1]["video"]["container"] == "image/jpeg"
    assert records[2]["error"]["kind"] == "damaged" and code == 1
    assert printed.err.count("c.jpg: is damaged") == 1


@pytest.mark.full
def test_damaged_clips_and_sigkill(clips, environment, tmp_path):
    folder, kinds = clips
    command = ["vidspec", "caption", str(folder), "--format", "jsonl", *SMALL, *ONE_THREAD, "--timeout", "60"]
    whole = subprocess.run([*command, "-o", "whole.jsonl"], cwd=tmp_path, env=environment, timeout=300)
    assert whole.returncode == 1
    records = [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]
    errors = {record["path"]: record["error"]["kind"] for record in records if record["error"]}
    assert errors == kinds and len(errors) == len(WAYS)
    assert sum(bool(record["caption"]) for record in records) == GOOD
    rng = random.Random(1)
    done = -1
    for _ in range(2):
        killed = subprocess.Popen([*command, "-o", "killed.jsonl"], cwd=tmp_path, env=environment)
        while lines(tmp_path / "killed.jsonl") <= done:  # it gets on with every run
            assert killed.poll() is None
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        done = lines(tmp_path / "killed.jsonl")
    again = subprocess.run([*command, "-o", "killed.jsonl"], cwd=tmp_path, env=environment, timeout=300)
    assert again.returncode == 1
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.full
@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_the_pipeline(clips, environment):
    folder, _ = clips
    caption = f"vidspec caption - --format jsonl {' '.join(SMALL + ONE_THREAD)}"
    pipeline = f"find . -name '0[01]-good.mp4' | sort | {caption} | jq -r .caption"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", pipeline],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    captions = ran.stdout.splitlines()
    assert len(captions) == 2 and all(caption.startswith("The ") for caption in captions)
