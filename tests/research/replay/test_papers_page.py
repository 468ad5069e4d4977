"""The page of replayed tables says what the command says now."""

import runpy
from pathlib import Path

from vidspec.papers.tables import names

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "draw_papers.py"))
PAGE = SCRIPT["page"]()


def test_the_committed_page_is_current():
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == PAGE, "python docs/draw_papers.py docs/papers.md"


def test_every_table_has_its_section_and_the_page_stays_readable():
    headings = [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")]
    assert headings == names()
    assert all(f"`vidspec simulate --table {name}`" in PAGE and f"[{name}](#{name})" in PAGE for name in names())
    assert len(PAGE.encode()) < 60_000


def test_long_tables_are_summarised_and_short_ones_whole(capsys):
    sections = dict(zip(names(), PAGE.split("\n## ")[1:], strict=True))
    rows = {name: [line for line in text.splitlines() if line.startswith("| ")] for name, text in sections.items()}
    assert max(map(len, rows.values())) <= SCRIPT["LONGEST"] + 2
    assert "| benchmarks |" in rows["parallelvlm-1"][0] and "| benchmark |" in rows["parallelvlm-3"][0]
    SCRIPT["run"](["simulate", "--table", "parallelvlm-3", "--format", "markdown"])
    assert capsys.readouterr().out.strip() in sections["parallelvlm-3"]
