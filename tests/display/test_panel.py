import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.display.screen import on_screen
from tests.fake_captioner import events, record
from vidspec.display.panel import STYLES, LivePanel, PanelScreen, PanelState, render_clip
from vidspec.events.events import Finished, Opened, Prefilled, PrefillProgress, Restarted, Round

SCREEN = PanelScreen()


def folded(path="good.mp4", upto=None, **fields):
    state = PanelState(path=path, **fields)
    for event in events(path)[:upto]:
        state.apply(event)
    return state


def drawn(renderable, width=80, **console):
    out = io.StringIO()
    Console(file=out, width=width, **console).print(renderable)
    return out.getvalue()


def test_state_follows_the_events():
    phases = [folded(upto=count).phase for count in range(6)]
    assert phases == ["reading frames", "vision and prefill", "decoding", "decoding", "decoding", "done"]


def test_a_clip_that_is_done_again_begins_anew():
    state = folded(upto=4)
    state.apply(Restarted("the draft is gone"))
    assert (state.phase, state.counts.emitted, state.pieces) == ("vision and prefill", 0, [])
    for event in events("good.mp4")[1:]:
        state.apply(event)
    assert state.counts == folded().counts


def test_a_stage_says_how_far_it_is_and_for_how_long(monkeypatch):
    monkeypatch.setattr("vidspec.display.state.time", SimpleNamespace(monotonic=lambda: 175.0))
    state = folded(upto=1)
    assert state.stage == "vision and prefill"
    state.apply(PrefillProgress(512, 9000))
    assert state.stage == "vision and prefill, 512 of 9000 prompt tokens"
    state.began = 100.0
    assert "vision and prefill, 512 of 9000 prompt tokens, 1:15 ..." in drawn(render_clip(state, SCREEN))
    state.apply(Restarted("the draft is gone"))
    assert state.stage == "vision and prefill, 1:15"


def test_counts_and_rates_derive_from_the_rounds():
    state = folded(upto=4)
    counts = state.counts
    assert (counts.emitted, counts.drafted, counts.accepted, counts.target_forwards) == (5, 4, 3, 1)
    assert state.tau == 3.0
    assert state.tokens_per_s == 4.0
    assert "".join(text for text, _ in state.pieces) == "A red circle\nmoves left."
    assert [origin for _, origin in state.pieces] == ["target", "draft", "draft", "draft", "correction"]


def test_tau_leaves_out_the_start_up_token_that_the_prefill_accepts():
    state = PanelState()
    for accepted, mode in ((1, "prefill"), (3, "post")):
        state.apply(Round((1,) * accepted, ("draft",) * accepted, accepted, accepted, elapsed=1.0, mode=mode))
    assert (state.counts.accepted, state.tau) == (4, 3.0)


def test_nothing_is_known_before_the_first_round():
    state = PanelState()
    assert (state.tau, state.tokens_per_s, state.speedup, state.counts.emitted) == (None, None, None, 0)


def test_speedup_is_marked_as_estimate_until_it_is_measured():
    assert "estimated" not in drawn(render_clip(folded(upto=4), SCREEN)), (
        "a verification does not tell what a plain pass costs"
    )
    state = folded()
    assert "estimated 2.0x" in drawn(render_clip(state, SCREEN)) and "2.00x est." in drawn(
        render_clip(state, PanelScreen(verbose=True))
    )
    state.caption = record(speed={"tokens_per_s": 4.0, "baseline": {"decode": 1.75}})
    text = drawn(render_clip(state, SCREEN))
    assert "1.75x" in text and "est" not in text
    state.caption = record(speed={"tokens_per_s": 4.0, "baseline": {"decode": None}})
    text = drawn(render_clip(state, SCREEN))
    assert "too short to measure" in text and "est" not in text


def test_panel_shows_caption_legend_counters_and_heatmap():
    text = drawn(render_clip(folded(upto=4, profile="sd-rand"), SCREEN))
    for part in ("A red circle", "moves left.", "draft accepted", "corrected", "target", "good.mp4", "sd-rand"):
        assert part in text
    for part in ("5 tokens", "mean 3.0", "4.0 tokens/s", "the draft sees 38% of 8 visual tokens", "accepted tokens  ▂"):
        assert part in text
    assert "tau" not in text
    text = drawn(render_clip(folded(upto=4), PanelScreen(verbose=True)))
    assert "tau 3.00" in text and "accepted 3/4" in text and "1 target passes" in text


def test_panel_says_that_a_lossy_rule_is_not_lossless():
    state = folded(upto=4)
    assert "not lossless" not in drawn(render_clip(state, SCREEN))
    state.prefilled = replace(state.prefilled, lossless=False)
    state.rounds.append(Round((5,), ("loose",), 1, 1, 2.0, 0.1, 0.1, (" up",)))
    text = drawn(render_clip(state, SCREEN), force_terminal=True, color_system="standard")
    assert "not lossless: 1 loose" in text
    assert "\x1b[4;33m up" in text, "a loose token is underlined"


def test_legend_names_only_origins_that_occur():
    assert "loosely" not in drawn(render_clip(folded(upto=4), SCREEN))
    state = folded(upto=4)
    state.rounds.append(Round((5,), ("loose",), 1, 1, 2.0, 0.1, 0.1, (" up",)))
    assert "loosely accepted" in drawn(render_clip(state, SCREEN))


def test_no_heatmap_without_a_draft():
    state = PanelState()
    state.apply(Prefilled(20, 8, (), (), (), 0.5))
    text = drawn(render_clip(state, SCREEN))
    assert "the draft" not in text and "accepted" not in text


def test_origins_differ_in_colour_and_without_colour(monkeypatch):
    assert len(set(STYLES.values())) == 6
    monkeypatch.setenv("NO_COLOR", "1")
    looks = {drawn(f"[{style}]x[/]", force_terminal=True, color_system="standard") for style in STYLES.values()}
    assert len(looks) == 5, "draft and block are never together"


def test_no_color_leaves_no_colour_code(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = drawn(render_clip(folded(upto=4), SCREEN), force_terminal=True, color_system="standard")
    assert "\x1b[1m" in text, "corrections stay bold"
    codes = {code for part in text.split("\x1b[")[1:] for code in part.split("m")[0].split(";")}
    assert codes <= {"0", "1", "2", "3", "4"}


@pytest.mark.parametrize("width", [10, 30, 31, 80, 200])
@pytest.mark.parametrize("upto", range(6))
def test_every_line_fits_the_terminal(width, upto):
    text = drawn(
        render_clip(folded("a/very/long/path/" * 9 + "clip.mp4", upto=upto), PanelScreen(width=width)), width=width
    )
    lines = text.splitlines()
    assert {len(line) for line in lines} == {width}


@pytest.mark.parametrize("width", [30, 80])
def test_a_long_caption_shows_its_end_within_the_height(width):
    state = folded(upto=4)
    for number in range(300):
        state.rounds.append(Round((1,), ("draft",), 1, 1, 2.0, 0.1, 0.1, (f" word{number}",)))
    lines = drawn(render_clip(state, PanelScreen(width=width, height=20)), width=width).splitlines()
    assert len(lines) <= 20
    text = "\n".join(lines)
    assert "word299" in text and "word0 " not in text and "draft sees" in text


def test_control_characters_and_markup_are_shown_not_obeyed():
    state = PanelState(path="\x1b[31m[bold]x.mp4\n\u202e\x9b")
    state.apply(Round((1,), ("draft",), 1, 1, 0.1, 0.1, 0.1, ("\x1b[2J[red]hi[/red]\u2067\x9d",)))
    text = drawn(render_clip(state, SCREEN))
    assert not any(found in text for found in "\x1b\x9b\x9d\u202e\u2067")
    assert "[red]hi[/red]" in text and "[bold]x.mp4" in text


@pytest.mark.parametrize("keep", [True, False])
def test_live_panel_leaves_its_last_state(keep):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=30, color_system=None)
    with LivePanel(console, profile="sd-rand", keep_caption=keep) as panel:
        panel.begin(1, "good.mp4", 1)
        for event in events():
            panel.event(1, event)
        panel.end(1, record())
    last = out.getvalue().rsplit("good.mp4", 1)[1]
    assert "mean 3.0" in last and ("moves left." in last) == keep
    assert out.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is back"


def test_a_printed_caption_has_the_colours_of_its_tokens():
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=30, color_system="standard")
    with LivePanel(console, keep_caption=False) as panel:
        panel.begin(1, "good.mp4", 1)
        for event in events():
            panel.event(1, event)
        panel.end(1, record())
    pieces = panel.state.pieces
    caption = "".join(text for text, _ in pieces).strip()
    painted = panel.paint(f"ohwx, {caption}")
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == f"ohwx, {caption}" and painted.startswith("ohwx, ")
    assert painted.count("\x1b[32m") > 0 and painted.count("\x1b[1;31m") == 1
    assert panel.paint("something else") is None and LivePanel(console).paint(caption) is None
    assert "draft accepted" in console.file.getvalue().rsplit("good.mp4", 1)[1], "the legend stays"


def test_segments_in_flight_at_once_each_leave_their_panel():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=30, color_system=None)
    with LivePanel(console) as panel:
        for number, path in enumerate(("first.mp4", "second.mp4")):
            panel.begin(number, path, 1)
        for number in (1, 0):
            for event in events()[:-1]:
                panel.event(number, event)
            assert panel.state.path == "first.mp4", "the one that was begun first"
        for number, path in ((1, "second.mp4"), (0, "first.mp4")):
            said = len(out.getvalue())
            panel.end(number, record(path))
            last = out.getvalue()[said:].rsplit("mp4", 1)
            assert last[0].endswith(path.removesuffix("mp4")) and "moves left." in last[1]
            assert not on_screen(out), "what ends may be written below"


def test_live_panel_lets_go_of_the_terminal_when_interrupted():
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), LivePanel(Console(file=out, force_terminal=True)) as panel:
        panel.begin(1, "good.mp4", 1)
        raise KeyboardInterrupt
    assert "\x1b[?25h" in out.getvalue()


@pytest.mark.parametrize("demo", [True, False])
@pytest.mark.parametrize("finished", [True, False])
def test_a_caption_of_the_built_in_models_says_so(demo, finished):
    """From its first moment on."""
    state = PanelState(path="clip.mp4", profile="ar")
    told = Finished(replace(record("clip.mp4"), demo=demo)) if finished else Opened("clip.mp4", None, 1, (0.0,), demo)
    state.apply(told)
    assert ("they know drawn shapes only" in drawn(render_clip(state, PanelScreen(width=80)))) == demo
