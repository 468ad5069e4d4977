"""The picture of speed-up against quality: valid, complete, legible."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from research.pareto.__main__ import PICTURE
from research.pareto.outcome import outcome
from research.pareto.plot import draw
from tests.research.pareto.test_pareto import everything, record, results
from vidspec.errors import OutputError, UsageError
from vidspec.files import check_output

pytestmark = pytest.mark.full


@pytest.fixture
def drawn(monkeypatch):
    """The figure that was saved last."""
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (kept.append(self), save(self, *args, **more)))
    return kept


def test_the_file_is_reproducible(tmp_path):
    file = tmp_path / "p.svg"
    draw(outcome(everything()), file)
    assert ElementTree.parse(file).getroot().tag.endswith("svg") and b"<dc:date>" not in (first := file.read_bytes())
    check_output(file, (), "--svg", PICTURE)  # it may be drawn again
    draw(outcome(everything()), file)
    assert file.read_bytes() == first


def test_points_frontier_and_legend(tmp_path, drawn):
    draw(outcome(everything()), tmp_path / "p.svg")
    (axes,) = drawn[-1].axes
    legend = {text.get_text() for text in axes.get_legend().get_texts()}
    assert legend == {"lossless", "loose", "lossy pruning", "draft alone", "Pareto frontier"}
    (line,) = [line for line in axes.get_lines() if line.get_label() == "Pareto frontier"]
    assert list(line.get_xdata()) == [2.0, 4.0] and line.get_ydata()[0] == 1.0 > line.get_ydata()[1]
    assert axes.get_ylabel().startswith("retention of facts") and "speed-up over ar" in axes.get_xlabel()


def test_a_draft_alone_that_is_far_faster_stands_at_the_edge(tmp_path, drawn):
    one = everything()
    for stored in one["records"]:
        if stored["contender"] == "draft" and stored["timings"]:
            stored["timings"] = {"time_to_first_token": 1.0, "decode": 0.01, "end_to_end": 1.1}
    draw(outcome(one), tmp_path / "p.svg")
    (axes,) = drawn[-1].axes
    assert (
        "draft, 400.0x \N{RIGHTWARDS ARROW}" in {text.get_text() for text in axes.texts}
        and 4.0 < axes.get_xlim()[1] < 10
    )
    draw(outcome(everything()), tmp_path / "p.svg")
    assert "draft" in {text.get_text() for text in drawn[-1].axes[0].texts}


def test_names_hide_neither_each_other_nor_the_legend(tmp_path, drawn):
    crowd = [f"method-{number}" for number in range(12)]
    made = [record("ar", "a", seconds=4.0)]
    made += [record(name, "a", seconds=2.0 + number / 100) for number, name in enumerate(crowd)]
    draw(outcome(results(*made, profiles=("ar", *crowd))), tmp_path / "p.svg")
    (axes,) = drawn[-1].axes
    drawn[-1].draw_without_rendering()  # as it was laid out, before it was scaled to SVG's points
    renderer = drawn[-1].canvas.get_renderer()
    from matplotlib.text import Text

    boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]
    boxes.append(axes.get_legend().get_window_extent(renderer))
    assert sorted(text.get_text() for text in axes.texts) == sorted(["ar", *crowd])
    assert [(a, b) for index, a in enumerate(boxes) for b in boxes[:index] if a.overlaps(b)] == []


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(UsageError, match="no method was timed"):
        draw(outcome(results(record("ar", "a"))), tmp_path / "p.svg")
    with pytest.raises(OutputError, match=r"p\.svg: cannot be written"):
        draw(outcome(everything()), tmp_path / "none" / "p.svg")
