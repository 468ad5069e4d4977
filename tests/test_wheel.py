"""The wheel: all of the package, nothing else, its requirements, and a caption where only these are installed."""

import json
import os
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest
from packaging.requirements import Requirement

import vidspec
from tests.linked_environment import PROJECT, ROOT, make_environment
from vidspec.embedded.samples import shipped


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
def test_it_requires_what_the_project_does(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    required = {Requirement(text) for text in metadata.get_all("Requires-Dist")}
    assert {one for one in required if "extra" not in str(one.marker)} == {*map(Requirement, PROJECT["dependencies"])}


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="links packages into an environment")
def test_it_captions_where_only_its_requirements_are(wheel, tmp_path):
    python = make_environment(tmp_path / "env")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    vidspec_here = python.parent / "vidspec"
    assert run(vidspec_here, "--version", cwd=tmp_path) == f"vidspec {vidspec.__version__}\n"
    asked = ("caption", shipped()[0], "--format", "json", "--max-new-tokens", "8")
    record = json.loads(run(vidspec_here, *asked, cwd=tmp_path))
    assert record["error"] is None and record["counters"]["accepted"] > 0
