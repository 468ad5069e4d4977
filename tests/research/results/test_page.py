import re
from dataclasses import replace

import pytest

from research.results.page import write_page
from tests.research.results.measured import MEASURED


def drawn(tmp_path, rows):
    """Return the names, widths of the bars and place of 1x of each chart."""
    file = tmp_path / "page.html"
    write_page(file, rows, "r.json", {}, demo=False)
    charts = file.read_text(encoding="utf-8").split('<div class="bars">')[1:]
    return [
        [
            re.findall(found, chart)
            for found in ('class="name">(.*?)<', 'style="width:(.*?)%', 'even" style="left:(.*?)%')
        ]
        for chart in charts
    ]


def test_bars_are_in_percent_of_the_greatest_and_the_fastest_is_first(tmp_path):
    decoding, _, first = drawn(tmp_path, MEASURED)
    assert decoding == [["fast = quick", "ar", "slow"], ["62.5", "25.0", "12.5"], ["25.0"] * 3]
    assert first[0] == ["ar", "fast = quick", "slow"] and first[2] == ["100.0"] * 3


def test_the_line_of_the_baseline_stays_on_the_page_where_all_are_slower(tmp_path):
    assert [even for _, _, even in drawn(tmp_path, MEASURED[2:])] == [["100.0"]] * 3


@pytest.mark.parametrize("demo", [True, False])
def test_a_page_says_what_was_run_where_and_by_which_models(tmp_path, demo):
    file = tmp_path / "page.html"
    write_page(file, MEASURED, "a <b>.json", {"cores": 2}, demo=demo)
    page = file.read_text(encoding="utf-8")
    assert page.count('<svg class="plane"') == 1 and "Left out" not in page
    assert "a &lt;b&gt;.json" in page and "<dt>cores</dt><dd>2</dd>" in page
    assert page.count('<div class="bar">') == 9 and "in distribution" in page and "2.50x, from 2.00x to 4.00x" in page
    assert ('class="demo-bar"' in page, "know drawn shapes only: the figures" in page) == (demo, demo)


def test_a_page_shows_lengths_where_texts_differ(tmp_path):
    rows = [replace(row, tokens=tokens) for row, tokens in zip(MEASURED, (120.0, 120.0, 97.5), strict=True)]
    for shown, expected in ((rows, 1), (rows[:2], 0)):
        file = tmp_path / "page.html"
        write_page(file, shown, "r.json", {}, demo=False)
        page = file.read_text(encoding="utf-8")
        assert page.count('data-v="97.5"') == page.count("mean tokens: per caption") == expected


def test_a_page_says_why_a_peer_has_no_row(tmp_path):
    file = tmp_path / "page.html"
    write_page(file, MEASURED, "r.json", {}, demo=False, left={"vllm": "knows no <family>"})
    assert "<dt>vllm</dt><dd>knows no &lt;family&gt;</dd>" in file.read_text(encoding="utf-8")
