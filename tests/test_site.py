"""The site of docs/: every page has its place in it, and it can be built where its packages are installed."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from research.evidence.pages import write_site

ROOT = Path(__file__).resolve().parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
#: Public classes and modules of the package, as the page of the reference names them.
DOCUMENTED = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/use/api.md").read_text(encoding="utf-8"), re.MULTILINE)


def pages(nav):
    for entry in nav:
        for name, below in entry.items():
            yield from [(name, below)] if isinstance(below, str) else pages(below)


def test_the_site_has_the_pages_of_the_index_in_its_order():
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[([^]]+)\]\((\S+\.md)\): ", index, re.MULTILINE)
    assert [*pages(CONFIG["nav"])] == [("Documentation", "index.md"), *listed]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_reference_names_what_exists(name):
    module, _, attribute = name.rpartition(".")
    assert (
        importlib.util.find_spec(name) if attribute.islower() else hasattr(importlib.import_module(module), attribute)
    )


@pytest.mark.full
def test_it_can_be_built_without_a_warning(tmp_path):
    for package in ("zensical", "mkdocstrings_handlers.python", "griffe"):
        pytest.importorskip(package)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    write_site(tmp_path / "docs/research/measured")
    (tmp_path / "vidspec").symlink_to(ROOT / "vidspec")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), encoding="utf-8")
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    ran = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (tmp_path / "site/use/api/index.html").read_text(encoding="utf-8")
    assert "stream_text" in page and not re.search(r":(?:meth|class|mod|func):", page)
    measured = tmp_path / "site/research/measured"
    links = re.findall(r'href="\.\./measured/([\w-]+)/"', (measured / "index.html").read_text(encoding="utf-8"))
    assert len(links) > 10 and all((measured / link / "index.html").exists() for link in links)
