"""Files of the repository's root that describe and package it agree with the code."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from vidspec._version import __version__

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version_and_licence_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (__version__, project["license"])
    assert citation["abstract"] == project["description"] and citation["authors"]


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.cuda"])
def test_images_copy_only_what_is_there_and_not_ignored(file):
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", (ROOT / file).read_text(), re.M) for name in line.split()]
    assert {"pyproject.toml", "vidspec", "profiles"} <= set(copied) <= allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_workflow_and_the_commit_hook_run_targets_of_the_makefile():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    run = [step["run"] for job in ("test", "docs") for step in jobs[job]["steps"] if "run" in step]
    assert run == ["make lint", "make test", "make docs"] and hook["entry"] == "make lint"
    assert {"lint", "test", "docs"} <= set(targets)
