"""The commands of the README's section on many clips, run in their order as they stand there, without models."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import srt
import webvtt

from vidspec.embedded.samples import shipped

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PROGRAM = """#!{python}
import sys
from types import ModuleType
from fake_captioner import FakeCaptioner
from vidspec.batch.pool import Factory
module = ModuleType("vidspec.captioner"); module.Captioner = FakeCaptioner
sys.modules["vidspec.captioner"] = module
Factory.__init__.__defaults__ = ("fake_captioner:FakeCaptioner",)
from vidspec.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


def commands():
    section = re.split(r"^## ", README.read_text(encoding="utf-8").split("## Many clips\n", 1)[1], flags=re.MULTILINE)[
        0
    ]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path):
    for name in ("one.mp4", "day1/two.mp4", "day2/three.mp4"):
        path = tmp_path / "clips" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shipped()[0], path)
    shutil.copy(shipped()[0], tmp_path / "clip.mp4")
    program = tmp_path / "bin" / "vidspec"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return tmp_path


def test_the_commands_of_the_readme(folder):
    pytest.importorskip("ray")
    pytest.importorskip("scenedetect")
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VIDSPEC_", "SLURM_", "RAY_"))}
    environment = {
        **kept,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "XDG_CONFIG_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    out = {}
    for command in commands():
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
        out[command] = ran.stdout
    piped = next(text for command, text in out.items() if "jq" in command)
    assert piped.splitlines() == ["A red circle", "moves left."] * 4
    again = records(folder / "captions.jsonl")
    assert [Path(one["path"]).name for one in again] == ["two.mp4", "three.mp4", "one.mp4"]
    whole = (folder / "captions.jsonl").read_bytes()
    assert (folder / "merged.jsonl").read_bytes() == whole
    for other in ("replicas.jsonl", "ray.jsonl"):
        assert (folder / other).read_bytes() == whole, other
    assert [one["start"] for one in records(folder / "jobs.jsonl")] == [0.0]
    assert len(list(srt.parse((folder / "clips/day1/two.srt").read_text()))) == 1
    assert len(webvtt.read(str(folder / "subtitles/day1/two.vtt"))) == 5
    assert (folder / "scenes/day1/two.en.srt").is_file()


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
