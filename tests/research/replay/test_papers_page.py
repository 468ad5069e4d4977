"""The page of replayed tables says what the command says now."""

from pathlib import Path

import pytest

from research import simulate
from research.pages import papers
from research.replay.tables import names

DOCS = Path(__file__).resolve().parents[3] / "docs" / "research"

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def page():
    return papers.page()


def test_the_committed_page_is_current(page):
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == page, (
        "python -m research.pages.papers docs/research/papers.md"
    )


def test_every_table_has_its_section_and_the_page_stays_readable(page):
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert headings == names()
    assert all(
        f"`python -m research.simulate --table {name}`" in page and f"[{name}](#{name})" in page for name in names()
    )
    assert len(page.encode()) < 60_000


def test_long_tables_are_summarised_and_short_ones_whole(page, capsys):
    sections = dict(zip(names(), page.split("\n## ")[1:], strict=True))
    rows = {name: [line for line in text.splitlines() if line.startswith("| ")] for name, text in sections.items()}
    assert max(map(len, rows.values())) <= papers.LONGEST + 2
    assert "| cells |" in rows["parallelvlm-1"][0] and "| benchmark |" in rows["parallelvlm-3"][0]
    simulate.main(["--table", "parallelvlm-3", "--format", "markdown"])
    assert capsys.readouterr().out.strip() in sections["parallelvlm-3"]
