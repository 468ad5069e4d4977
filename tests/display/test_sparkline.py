import io

import pytest
from rich.console import Console

from vidspec.display.heatmap import LONGEST, sparkline, weight_lines
from vidspec.display.panel import PanelScreen, PanelState, render_clip
from vidspec.events.events import Prefilled, Round


def state(*weights):
    panel = PanelState(path="clip.mp4")
    panel.apply(Prefilled(20, 8, (), (), (), 0.5, contexts=("video", "text")))
    panel.apply(Round((1,), ("target",), 0, 0, 0.0, texts=("A",)))
    for one in weights:
        panel.apply(Round((1,), ("correction",), 5, 0, 1.0, 0.1, 0.1, ("B",), one))
    return panel


def drawn(panel, **options):
    out = io.StringIO()
    Console(file=out, width=80).print(render_clip(panel, PanelScreen(**options)))
    return out.getvalue()


def test_empty_to_full():
    assert sparkline([0, 0.125, 0.5, 1]) == "·▁▄█"
    assert sparkline([0, 0.125, 0.5, 1], ascii_only=True) == ".:+@"
    assert sparkline([-0.1, 1.1]) == "·█", "rounding may leave the interval"


def test_lines_show_the_newest_weights():
    video, text = weight_lines({"video": [0.0] * 50 + [1.0], "text": []}, 20)
    assert video.plain == "video " + "·" * 8 + "█ 1.00" and text.plain == "text "
    wide = weight_lines({"video": [0.5] * 50}, 200)[0].plain
    assert wide == "video " + "▄" * LONGEST + " 0.50"


def test_panel_follows_the_weights():
    panel = state((0.5, 0.5), (1.0, 0.0), (0.8, 0.2))
    assert panel.weights == {"video": (0.5, 1.0, 0.8), "text": (0.5, 0.0, 0.2)}
    text = drawn(panel)
    assert "video ▄█▆ 0.80  text ▄·▂ 0.20" in text
    assert "video +@# 0.80" in drawn(panel, ascii_only=True)


@pytest.mark.parametrize("width", [12, 30, 80])
def test_fits_the_panel(width):
    panel = state(*[(0.5, 0.5)] * 40)
    assert max(map(len, drawn(panel, width=width).splitlines())) <= width


def test_nothing_without_an_ensemble():
    panel = PanelState()
    panel.apply(Prefilled(20, 8, (), (), (), 0.5))
    assert panel.weights == {} and "video" not in drawn(panel)
