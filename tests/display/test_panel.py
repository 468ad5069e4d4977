import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from tests.display.screen import on_screen
from tests.fake_captioner import events, record
from vidspec.display.heatmap import frame_map, heatmap
from vidspec.display.panel import STYLES, LivePanel, PanelState, render_clip
from vidspec.events.events import Finished, Opened, Prefilled, PrefillProgress, Restarted, Round


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
    assert (state.phase, state.emitted, state.pieces) == ("vision and prefill", 0, [])
    for event in events("good.mp4")[1:]:
        state.apply(event)
    assert (state.emitted, state.drafted) == (folded().emitted, folded().drafted)


def test_a_stage_says_how_far_it_is_and_for_how_long():
    state = folded(upto=1)
    assert state.stage == "vision and prefill"
    state.apply(PrefillProgress(512, 9000))
    assert state.stage == "vision and prefill, 512 of 9000 prompt tokens"
    state.began = time.monotonic() - 75
    assert "vision and prefill, 512 of 9000 prompt tokens, 1:15 ..." in drawn(render_clip(state))
    state.apply(Restarted("the draft is gone"))
    assert state.stage.startswith("vision and prefill, 1:1")


def test_counts_and_rates_derive_from_the_rounds():
    state = folded(upto=4)
    assert (state.emitted, state.drafted, state.accepted, state.target_passes) == (5, 4, 3, 1)
    assert state.tau == 3.0
    assert state.tokens_per_s == 4.0
    assert "".join(text for text, _ in state.pieces) == "A red circle\nmoves left."
    assert [origin for _, origin in state.pieces] == ["target", "draft", "draft", "draft", "correction"]


def test_tau_leaves_out_the_start_up_token_that_the_prefill_accepts():
    state = PanelState()
    for accepted, mode in ((1, "prefill"), (3, "post")):
        state.apply(Round((1,) * accepted, ("draft",) * accepted, accepted, accepted, elapsed=1.0, mode=mode))
    assert (state.accepted, state.tau) == (4, 3.0)


def test_nothing_is_known_before_the_first_round():
    state = PanelState()
    assert (state.tau, state.tokens_per_s, state.speedup, state.emitted) == (None, None, None, 0)


def test_speedup_is_marked_as_estimate_until_it_is_measured():
    assert "estimated" not in drawn(render_clip(folded(upto=4))), "a verification does not tell what a plain pass costs"
    state = folded()
    assert "estimated 2.0x" in drawn(render_clip(state)) and "2.00x est." in drawn(render_clip(state, verbose=True))
    state.caption = record(speed={"tokens_per_s": 4.0, "baseline": {"decode": 1.75}})
    text = drawn(render_clip(state))
    assert "1.75x" in text and "est" not in text
    state.caption = record(speed={"tokens_per_s": 4.0, "baseline": {"decode": None}})
    text = drawn(render_clip(state))
    assert "too short to measure" in text and "est" not in text


def test_panel_shows_caption_legend_counters_and_heatmap():
    text = drawn(render_clip(folded(upto=4, profile="sd-rand")))
    for part in ("A red circle", "moves left.", "draft accepted", "corrected", "target", "good.mp4", "sd-rand"):
        assert part in text
    for part in (
        "5 tokens",
        "accepted 3/4",
        "3.0 accepted per pass",
        "4.0 tokens/s",
        "draft sees 3/8 visual tokens (38%)",
        "▄█",
    ):
        assert part in text
    assert "tau" not in text and "tau 3.00" in drawn(render_clip(folded(upto=4), verbose=True))


def test_panel_says_that_a_lossy_rule_is_not_lossless():
    state = folded(upto=4)
    assert "not lossless" not in drawn(render_clip(state))
    state.prefilled = replace(state.prefilled, lossless=False)
    state.rounds.append(Round((5,), ("loose",), 1, 1, 2.0, 0.1, 0.1, (" up",)))
    text = drawn(render_clip(state), force_terminal=True, color_system="standard")
    assert "not lossless: 1 loose" in text
    assert "\x1b[4;33m up" in text, "a loose token is underlined"


def test_legend_names_only_origins_that_occur():
    assert "loosely" not in drawn(render_clip(folded(upto=4)))
    state = folded(upto=4)
    state.rounds.append(Round((5,), ("loose",), 1, 1, 2.0, 0.1, 0.1, (" up",)))
    assert "loosely accepted" in drawn(render_clip(state))


def test_no_heatmap_without_a_draft():
    state = PanelState()
    state.apply(Prefilled(20, 8, (), (), (), 0.5))
    assert "draft sees" not in drawn(render_clip(state))


def test_origins_differ_in_colour_and_without_colour(monkeypatch):
    assert len(set(STYLES.values())) == 5
    monkeypatch.setenv("NO_COLOR", "1")
    looks = {drawn(f"[{style}]x[/]", force_terminal=True, color_system="standard") for style in STYLES.values()}
    assert len(looks) == 5


def test_no_color_leaves_no_colour_code(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = drawn(render_clip(folded(upto=4)), force_terminal=True, color_system="standard")
    assert "\x1b[1m" in text, "corrections stay bold"
    codes = {code for part in text.split("\x1b[")[1:] for code in part.split("m")[0].split(";")}
    assert codes <= {"0", "1", "2", "3", "4"}


@pytest.mark.parametrize("width", [10, 30, 31, 80, 200])
@pytest.mark.parametrize("upto", range(6))
def test_every_line_fits_the_terminal(width, upto):
    text = drawn(render_clip(folded("a/very/long/path/" * 9 + "clip.mp4", upto=upto), width=width), width=width)
    lines = text.splitlines()
    assert {len(line) for line in lines} == {width}


@pytest.mark.parametrize("width", [30, 80])
def test_a_long_caption_shows_its_end_within_the_height(width):
    state = folded(upto=4)
    for number in range(300):
        state.rounds.append(Round((1,), ("draft",), 1, 1, 2.0, 0.1, 0.1, (f" word{number}",)))
    lines = drawn(render_clip(state, width=width, height=20), width=width).splitlines()
    assert len(lines) <= 20
    text = "\n".join(lines)
    assert "word299" in text and "word0 " not in text and "draft sees" in text


def test_control_characters_and_markup_are_shown_not_obeyed():
    state = PanelState(path="\x1b[31m[bold]x.mp4\n\u202e\x9b")
    state.apply(Round((1,), ("draft",), 1, 1, 0.1, 0.1, 0.1, ("\x1b[2J[red]hi[/red]\u2067\x9d",)))
    text = drawn(render_clip(state))
    assert not any(found in text for found in "\x1b\x9b\x9d\u202e\u2067")
    assert "[red]hi[/red]" in text and "[bold]x.mp4" in text


def test_heatmap_rows_scale_and_dots():
    rows = heatmap([0, 1, 2, 4], [8] * 4, 3).plain.split("\n")
    assert rows == ["draft sees 7/32 visual tokens (22%), full block 50%", "·▂▄", "█"]


def test_heatmap_of_many_frames_shares_blocks():
    rows = heatmap([1] * 1000, [4] * 1000, 26).plain.split("\n")
    assert "10 frames a block" in rows[0] and len(rows) <= 5 and sum(map(len, rows[1:])) == 100


def test_heatmap_without_unicode_or_without_tokens():
    assert heatmap([1, 0], [1, 1], 9, ascii_only=True).plain.isascii()
    assert heatmap([0, 0], [0, 0], 9).plain.split("\n")[1] == "··"


def placed(grid, cells, kept):
    return Prefilled(9, len(cells), kept, (), (), 0.0, grid=grid, cells=cells)


def test_frame_map_counts_places_over_all_frames():
    """Two frames of 2 x 3 and a separator: the upper left is kept twice, the lower right once."""
    cells = (*range(6), -1, *range(6, 12))
    rows = frame_map(placed((2, 2, 3), cells, (0, 5, 6, 7)), 9).plain.split("\n")
    assert rows == ["by place in the frame, 2 x 3 tokens, full block 100%", "█··", "··▄"]
    assert frame_map(placed((2, 2, 3), cells, ()), 9, ascii_only=True).plain.isascii()


def test_frame_map_of_a_large_frame_shares_blocks():
    rows = frame_map(placed((2, 14, 27), tuple(range(756)), (0, 1, 755)), 20).plain.split("\n")
    assert [len(row) for row in rows[1:]] == [14] * 4
    assert rows[1][0] == "▄" and rows[4][13] == "█"  # two of 4 x 2 places in both frames, one of 2 x 1
    assert rows[1][1:] + rows[2] + rows[3] + rows[4][:13] == "·" * 54


@pytest.mark.parametrize(("height", "kept", "shown"), [(29, 3, False), (30, 3, True), (None, 3, True), (30, 8, False)])
def test_panel_shows_places_where_there_is_room_and_a_choice(height, kept, shown):
    state = PanelState()
    state.apply(Prefilled(20, 8, tuple(range(kept)), (1, 2), (4, 4), 0.5, (2, 2, 2), tuple(range(8))))
    assert ("by place in the frame" in drawn(render_clip(state, height=height))) == shown


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
    assert "3.0 accepted per pass" in last and ("moves left." in last) == keep
    assert out.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is back"


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
    assert ("they know drawn shapes only" in drawn(render_clip(state, width=80))) == demo
