import io
import time

import pytest
from fake_captioner import events, record
from rich.console import Console

from vidspec.batch.bulk import Tally, duration
from vidspec.batch.work import Outcome, Work
from vidspec.decoding.events import Finished
from vidspec.errors import VideoError
from vidspec.live.overall import BulkPanel, bar
from vidspec.record import failed


def outcome(number, *, error=None, **work):
    caption = record() if error is None else failed("x", error)
    return Outcome(caption, error, Work("x", number=number, **work))


@pytest.fixture
def tally():
    """Of ten clips two were done before; this run captioned three and failed at one in 8 s."""
    tally = Tally(total=10, earlier=1, earlier_failed=1, began=time.monotonic() - 8)
    for number in range(3):
        tally.add(outcome(number))
    tally.add(outcome(3, error=VideoError("broken", kind="truncated")))
    return tally


def drawn(renderable, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_counts_and_rates(tally):
    assert (tally.done, tally.captioned, tally.failed, tally.tokens) == (6, 3, 1, 15)
    assert tally.kinds == {"decode_video/truncated": 1}
    assert tally.clips_per_s == pytest.approx(0.5, rel=0.05) and tally.tokens_per_s == pytest.approx(15 / 8, rel=0.05)
    assert tally.eta == pytest.approx(8, rel=0.05), "what was done before says nothing about the pace"


def test_a_clip_counts_once_and_as_failed_if_a_segment_failed():
    tally = Tally(total=1)
    assert not tally.add(outcome(1, segment=0, segments=2, last=False, error=VideoError("x")))
    assert tally.done == 0 and tally.eta is None
    assert tally.add(outcome(1, segment=1, segments=2))
    assert (tally.captioned, tally.failed) == (0, 1)


def test_the_bar(tally):
    text = drawn(bar(tally, 100))
    for fact in ("6/10 clips", "1 failed", "2 done before", "0.50 clips/s", "1.9 tokens/s", "8.0 s left"):
        assert fact in text
    assert all(len(line) <= 30 for line in drawn(bar(tally, 30), 30).splitlines())


def test_the_panel_shows_the_clip_above_the_bar_and_goes(tally):
    console = Console(file=io.StringIO(), width=90, height=30, force_terminal=True, color_system=None)
    with BulkPanel(console, tally, profile="vanilla-sd") as panel:
        panel.begin("a/good.mp4", 7, 10)
        for event in events("a/good.mp4")[:-1]:
            panel.event(event)
        text = drawn(panel._drawn())
        assert "a/good.mp4 [7/10]" in text and "A red circle" in text and "6/10 clips" in text
        panel.end(record())
        assert len(drawn(panel._drawn()).splitlines()) <= 14
        panel.ended(tally)
        assert panel._live is None
    assert isinstance(events()[-1], Finished)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.6, "9.6 s"), (42.4, "42 s"), (185, "3:05"), (3723, "1:02:03")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
