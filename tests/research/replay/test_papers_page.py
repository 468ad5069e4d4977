"""The page of replayed tables says what the command says now."""

from pathlib import Path

from research import simulate
from research.pages import papers
from research.replay.tables import names

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = papers.page()


def test_the_committed_page_is_current():
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == PAGE, "python -m research.pages.papers docs/papers.md"


def test_every_table_has_its_section_and_the_page_stays_readable():
    headings = [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")]
    assert headings == names()
    assert all(
        f"`python -m research.simulate --table {name}`" in PAGE and f"[{name}](#{name})" in PAGE for name in names()
    )
    assert len(PAGE.encode()) < 60_000


def test_long_tables_are_summarised_and_short_ones_whole(capsys):
    sections = dict(zip(names(), PAGE.split("\n## ")[1:], strict=True))
    rows = {name: [line for line in text.splitlines() if line.startswith("| ")] for name, text in sections.items()}
    assert max(map(len, rows.values())) <= papers.LONGEST + 2
    assert "| benchmarks |" in rows["parallelvlm-1"][0] and "| benchmark |" in rows["parallelvlm-3"][0]
    simulate.main(["--table", "parallelvlm-3", "--format", "markdown"])
    assert capsys.readouterr().out.strip() in sections["parallelvlm-3"]
