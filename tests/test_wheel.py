"""The wheel, in an environment of its own: all of the package, nothing else, and a caption from it."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import vidspec
from vidspec.embedded.samples import shipped

ROOT = Path(__file__).resolve().parents[1]


def run(*command, cwd=ROOT):
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.full
def test_it_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = run("git", "ls-files", "vidspec", "profiles").splitlines()
    assert held == {name if name.startswith("vidspec/") else f"vidspec/_{name}" for name in tracked}


@pytest.mark.full
def test_it_captions_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    places = tmp_path / "env" / "bin"
    limits = () if torch.version.cuda else ("-c", ROOT / "constraints" / "cpu.txt")
    run(places / "python", "-m", "pip", "install", "--quiet", *limits, wheel, cwd=tmp_path)
    assert run(places / "vidspec", "--version", cwd=tmp_path) == f"vidspec {vidspec.__version__}\n"
    asked = ("caption", shipped()[0], "--format", "json", "--max-new-tokens", "8")
    record = json.loads(run(places / "vidspec", *asked, cwd=tmp_path))
    assert record["error"] is None and record["counters"]["accepted"] > 0
