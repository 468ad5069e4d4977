"""Pictures of a terminal for the documentation."""

from xml.etree import ElementTree

import pytest
from rich.text import Text

from research.pages.terminal_svg import draw_terminal, screen_of

SVG = "{http://www.w3.org/2000/svg}"


def test_a_still_picture_has_texts_blocks_and_no_motion():
    line = Text.assemble(("<b>", "bold red"), " ", ("▀▀", "#ff0000 on #0000ff"), ("█▄", "green"), " a  b c ")
    svg = draw_terminal([screen_of(20, line)], 20, "A <title>")
    root = ElementTree.fromstring(svg)
    text, spaced = root.iter(f"{SVG}text")
    assert spaced.text == "a\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}b c"
    assert text.text == "<b>" and text.get("class") == "b" and root.find(f"{SVG}title").text == "A <title>"
    fills = {path.get("fill"): path.get("d") for path in root.iter(f"{SVG}path")}
    assert fills["#ff0000"] == "M4 0h2v4h-2" and fills["#0000ff"] == "M4 0h2v8h-2"
    assert sum(one.count("M") for one in fills.values()) == 4 and "animation" not in svg


def test_a_line_that_stays_is_drawn_once_and_one_that_changes_is_shown_in_turn():
    screens = [screen_of(20, Text("stays"), Text(f"step {at}"), seconds=1 + at) for at in range(3)]
    svg = draw_terminal(screens, 20, "t")
    assert [svg.count(f">{text}<") for text in ("stays", "step 0", "step 1", "step 2")] == [1] * 4
    assert "s0-1 6s" in svg and "16.67%{visibility:hidden}" in svg and "prefers-reduced-motion" in svg
    assert ".s2-3{animation" in svg and ".s0-1{visibility:hidden;" in svg, "without motion the last one is shown"


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_it_is_as_high_as_its_longest_screen(lines):
    svg = draw_terminal([screen_of(9, Text("a")), screen_of(9, *[Text("b")] * lines)], 9, "t")
    assert f'viewBox="0 0 92 {20 + 18 * max(1, lines)}"' in svg
