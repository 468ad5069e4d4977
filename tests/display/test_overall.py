import io
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.display.screen import on_screen
from tests.fake_captioner import events, record
from vidspec.display.clip_lines import clip_lines, headings
from vidspec.display.overall import RunPanel, render_run
from vidspec.display.panel import PanelScreen
from vidspec.display.state import PanelState
from vidspec.errors import VideoError
from vidspec.events.events import LoopLoad, Restarted, Round
from vidspec.events.record import failed_caption
from vidspec.events.tally import Tally, format_duration


@pytest.fixture
def tally(monkeypatch):
    """Tally of ten clips: two were done before; this run captioned three and failed at one in 8 s."""
    monkeypatch.setattr("vidspec.events.tally.time", SimpleNamespace(monotonic=lambda: 108.0))
    tally = Tally(total=10, earlier=1, earlier_failed=1, began=100.0)
    for number in range(3):
        tally.add(number, record())
    tally.add(3, failed_caption("x", VideoError("broken", kind="truncated")))
    return tally


def drawn(renderable, width=100, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(file=file, width=width, force_terminal=False)
    console.print(renderable)
    file.flush()
    return file.buffer.getvalue().decode()


def load(rows=8, **fields):
    of = {
        "clips": 3,
        "waiting": 2,
        "sequences": 3,
        "accepted": 30,
        "passes": 12,
        "kv_used": 3 << 29,
        "kv_capacity": 4 << 30,
    }
    return LoopLoad(rows=rows, **of | {"batch": 8} | fields)


def state(path="good.mp4", upto=4, began=0.0):
    """A clip in flight, with as many of the fake captioner's events."""
    found = PanelState(path=path, began=began)
    for event in events(path)[:upto]:
        found.apply(event)
    return found


def flights(count):
    """Clips of which each is a second longer in flight than the next."""
    return [state(f"clips/clip-{number:02d}.mp4", began=float(number)) for number in range(count)]


def screen(tally, states, size, loads=(), **more):
    shown = {key: more.pop(key) for key in ("ascii_only", "coloured", "verbose") if key in more}
    options = {"now": 100.0, "screen": PanelScreen(*size, **shown)} | more
    return drawn(render_run(tally, states, loads, **options), size[0]).splitlines()


SIZES = [(80, 24), (120, 50), (40, 10)]


def test_counts_and_rates(tally):
    assert (tally.done, tally.captioned, tally.failed, tally.tokens) == (6, 3, 1, 15)
    assert tally.kinds == {"decode_video/truncated": 1}
    assert tally.clips_per_s == 0.5 and tally.tokens_per_s == 15 / 8
    assert tally.eta == 8, "what was done before says nothing about the pace"


def test_a_clip_counts_once_and_as_failed_if_a_segment_failed():
    tally = Tally(total=1)
    assert not tally.add(1, failed_caption("x", VideoError("x")), last=False)
    assert tally.done == 0 and tally.eta is None
    assert tally.add(1, record())
    assert (tally.captioned, tally.failed) == (0, 1)


def test_the_figures_of_a_run(tally):
    text = " ".join(screen(tally, [], (200, 24), [load(rows=4), load(rows=21)]))
    for fact in ("6/10 clips", "1 failed", "2 done before", "0.50 clips/s", "1.9 tokens/s", "8.0 s left"):
        assert f" {fact} " in f" {text} "
    for fact in ("3 of 8 in flight", "2 waiting", "2.5 accepted tokens per pass"):
        assert f" {fact} " in f" {text} "
    told = " ".join(screen(tally, [], (200, 24), [load(rows=4), load(rows=21)], verbose=True))
    for fact in ("12.5 rows/pass", "KV 1.5 of 4.0 GiB"):
        assert fact not in text and f" {fact} " in f" {told} "


@pytest.mark.parametrize(("share", "shown"), [(0.8, True), (0.04, False)])
def test_models_that_wait_for_files_are_told(tally, share, shown):
    text = " ".join(screen(tally, [], (200, 24), [load(reading=share)]))
    assert (" reading 80% " in f" {text} ") == ("reading" in text) == shown


def test_figures_that_say_nothing_are_left_out(tally):
    text = " ".join(
        screen(Tally(total=2), [], (200, 24), [load(waiting=0, accepted=0, passes=0, kv_capacity=0)], verbose=True)
    )
    for absent in ("left", "waiting", "accepted", "rows", "KV", "before"):
        assert absent not in text
    assert "in flight" not in " ".join(screen(tally, [], (200, 24))), "of an engine elsewhere nothing is known"
    small = load(kv_used=1 << 19, kv_capacity=2 << 20)
    assert "KV 0.5 of 2.0 MiB" in " ".join(screen(tally, [], (200, 24), [small], verbose=True))


@pytest.mark.parametrize("size", [*SIZES, (10, 5), (200, 200)])
@pytest.mark.parametrize("count", [0, 1, 3, 8, 40])
def test_it_fits_the_terminal(tally, size, count):
    lines = screen(tally, flights(count), size, [load(clips=count)])
    assert len(lines) < size[1] and all(cell_len(line) <= size[0] for line in lines)
    assert size[0] < 40 or "6/10 clips  1 failed  8.0 s left" in lines[1], "what is wanted most stands first"


@pytest.mark.parametrize(("size", "shown"), [(SIZES[0], 18), (SIZES[1], 44), (SIZES[2], 5)])
def test_the_longest_in_flight_have_a_line_and_the_others_a_number(tally, size, shown):
    lines = screen(tally, flights(48), size, [load(batch=48)])
    named = [line.split()[0] for line in lines if line.startswith("clip-")]
    assert named == [f"clip-{number:02d}.mp4" for number in range(shown)]
    assert lines[-1].strip() == f"and {48 - shown} more in flight"


def test_a_line_for_each_clip_and_the_oldest_in_full():
    table = {
        (80, 24): "clip-00.mp4       decoding       5       75%     1:40  A red circle moves left.",
        (120, 50): "clip-00.mp4               decoding       5       75%     1:40  A red circle moves left.",
        (40, 10): "clip-00.mp4    decoding       5     1:40",
    }
    for size, line in table.items():
        lines = screen(Tally(total=9), flights(4), size)
        assert line in [found.rstrip() for found in lines]
        assert [found.split()[0] for found in lines].count("clip-03.mp4") == 1
        boxed = [found for found in lines if found.startswith("╭")]
        assert bool(boxed) == (size[1] > 10) and all("clip-00.mp4" in found for found in boxed)
        assert ("clip " in "".join(lines)) == (size[1] > 10), "headings"


def test_a_panel_does_not_come_and_go_with_each_clip():
    def boxed(count, most):
        return any(
            line.startswith("╭") for line in screen(Tally(total=99), flights(count), (80, 24), max_in_flight=most)
        )

    assert boxed(8, 8) and boxed(8, 9) and not boxed(8, 12) and not boxed(12, 12)


def test_one_clip_alone_needs_no_line():
    lines = screen(Tally(total=9), flights(1), (80, 24))
    assert sum("clip-00.mp4" in line for line in lines) == 1 and "clips/clip-00.mp4" in "".join(lines)
    assert not any(line.startswith("clip ") for line in lines)
    assert "clip-00.mp4" in "".join(screen(Tally(total=9), flights(1), (40, 10)))


@pytest.mark.parametrize(
    ("upto", "phase", "tokens", "share"),
    [(0, "reading", None, None), (1, "prefill", None, None), (2, "decoding", None, None), (4, "decoding", "5", "75%")],
)
def test_the_phases_of_a_line(upto, phase, tokens, share):
    (line,) = clip_lines([state(upto=upto, began=97.5)], now=100.0, width=80, lines=1)
    words = line.plain.split()
    assert words[:2] == ["good.mp4", phase] and "2.5 s" in line.plain
    assert words[2:4] == ([tokens, share] if tokens else ["2.5", "s"])


def test_a_clip_that_is_done_again_begins_anew_in_its_line():
    found = state()
    found.apply(Restarted("the draft is gone"))
    (line,) = clip_lines([found], now=1.0, width=80, lines=1)
    assert line.plain.split() == ["good.mp4", "prefill", "1.0", "s"]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (120, "good.mp4 decoding 5 75% 1.0 s A red circle moves left."),
        (75, "good.mp4 decoding 5 75% 1.0 s …circle moves left."),
        (64, "good.mp4 decoding 5 75% 1.0 s …moves left."),
        (60, "good.mp4 decoding 5 75% 1.0 s"),
        (40, "good.mp4 decoding 5 1.0 s"),
        (31, "good.mp4 decoding 5"),
        (23, "good.mp4 decoding"),
        (12, "good.mp4"),
        (5, "….mp4"),
        (0, ""),
    ],
)
def test_what_is_wanted_least_goes_first_where_it_is_narrow(width, text):
    (line,) = clip_lines([state()], now=1.0, width=width, lines=1)
    assert " ".join(line.plain.split()) == text and line.cell_len <= width
    assert headings(width).cell_len <= width


def test_a_long_name_and_a_long_text_show_their_ends():
    long = state("clips/" + "a-very-long-name-" * 4 + "0123.mp4")
    for number in range(300):
        long.apply(Round((1,), ("draft",), 1, 1, 2.0, 0.1, 0.1, (f" word{number}",)))
    for ascii_only, mark in ((False, "…"), (True, "...")):
        (line,) = clip_lines([long], now=1.0, width=100, lines=1, ascii_only=ascii_only)
        name, *_, last = line.plain.split()
        assert name.startswith(mark) and name.endswith("name-0123.mp4") and len(name) == 24
        assert last == "word299" and f"{mark}word" in line.plain and line.cell_len <= 100


@pytest.mark.parametrize("width", [12, 40, 80, 81])
def test_wide_characters_are_counted_by_columns(width):
    wide = state("\u5f71\u7247" * 20 + ".mp4")
    wide.apply(Round((1,), ("draft",), 1, 1, 2.0, 0.1, 0.1, ("\u7ea2\u5706" * 60 + "\U0001f469\u200d\U0001f680",)))
    (line,) = clip_lines([wide], now=1.0, width=width, lines=1)
    assert line.cell_len <= width and ".mp4" in line.plain


@pytest.mark.parametrize("size", SIZES)
def test_control_characters_and_markup_are_shown_not_obeyed(tally, size):
    hostile = state("a/\x1b[31m[red]\x9b\u202e.mp4", upto=0)
    hostile.apply(Round((1,), ("draft",), 1, 1, 0.1, 0.1, 0.1, ("\x1b[2J[b]\u2067\x9d\r\n\u2028\ud800 hi",)))
    text = "\n".join(screen(tally, [hostile, hostile], size))
    assert not set(text) & set("\x1b\x9b\x9d\r\u202e\u2067\u2028\ud800")
    assert "[red]\\x9b\\u202e.mp4" in text or size[0] == 40
    assert size[0] < 120 or "\\x1b[2J[b]\\u2067" in text


def test_a_terminal_without_block_characters(tally):
    options = {"now": 1.0, "screen": PanelScreen(80, 50, ascii_only=True)}
    long = state("x" * 99 + ".mp4")
    text = drawn(render_run(tally, [*flights(2), long], [load()], **options), 80, "ascii")
    assert text.isascii() and "...xx" in text and "draft sees" in text


def panel_on(tally, height=30, **options):
    out = io.StringIO()
    console = Console(file=out, width=90, height=height, force_terminal=True, color_system=None)
    return out, RunPanel(console, tally, profile="vanilla-sd", **options)


def test_the_panel_follows_the_clips_in_flight_and_goes(tally):
    out, panel = panel_on(tally)
    with panel:
        assert on_screen(out), "the bar is there before the first clip"
        for number, path in ((7, "a/good.mp4"), (3, "b/good-2.mp4"), (5, "b/good-3.mp4")):
            panel.begin(number, path, 10)
        for event, number in [(event, number) for event in events()[:4] for number in (3, 5, 7)]:
            panel.event(number, event)
        panel.event(5, Restarted("the draft is gone"))
        panel.load(load())
        lines = drawn(panel.drawn()).splitlines()
        table = [line.split() for line in lines if line.startswith("good")]
        assert [words[:2] for words in table] == [
            ["good.mp4", "decoding"],
            ["good-2.mp4", "decoding"],
            ["good-3.mp4", "prefill"],
        ]
        text = "\n".join(lines)
        assert "╭─ a/good.mp4 " in text and "vanilla-sd" in text and "3 of 8 in flight" in text
        panel.end(7, record())
        text = drawn(panel.drawn())
        assert "a/good.mp4" not in text and "╭─ b/good-2.mp4 " in text
        for number in (3, 5):
            panel.end(number, record())
        assert len(drawn(panel.drawn()).splitlines()) <= 4
        panel.close()
        assert not on_screen(out)


def test_on_a_shared_terminal_the_panel_leaves_room_for_what_ends(tally):
    out, panel = panel_on(tally, shared=True)
    with panel:
        assert on_screen(out), "while the first clip is read"
        for number, path in ((1, "good.mp4"), (2, "good-2.mp4")):
            panel.begin(number, path, 2)
        assert on_screen(out)
        panel.end(2, record())
        assert not on_screen(out) and out.getvalue().endswith("\x1b[2K"), "its lines are erased"
        panel.event(1, events()[0])
        assert on_screen(out)
    assert not on_screen(out)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.6, "9.6 s"), (42.4, "42 s"), (185, "3:05"), (3723, "1:02:03")]
)
def test_duration(seconds, text):
    assert format_duration(seconds) == text
