"""The panel in terminals of several sizes: what is shown, and that nothing jumps while the caption grows."""

import io

import pytest
from rich.console import Console

from tests.fake_captioner import record
from tests.tiers import full_but
from vidspec.display.overall import RunPanel
from vidspec.display.panel import LivePanel, PanelScreen, render_clip
from vidspec.display.state import PanelState
from vidspec.events.events import Finished, Opened, Prefilled, Round, Thumbnail
from vidspec.events.tally import Tally

SIZES = [(80, 24), (120, 40), (40, 12)]


def clip_events(frames=32, drafts=True, words=120):
    """Return the events of a clip of 9:16 thumbnails and 4 x 4 tokens a frame, of which the draft sees a tenth."""
    times = tuple(0.3 * index for index in range(frames))
    shown = range(0, frames, max(1, frames // 8))
    pictures = tuple(Thumbnail(index, times[index], 9, 16, bytes([200, 40, 40]) * 144) for index in shown)
    total = 16 * frames
    counts = (2,) * frames if drafts else ()
    kept = tuple(range(0, total, 10)) if drafts else tuple(range(total))
    yield Opened("clip.mp4", None, frames, times, True, pictures[:8])
    yield Prefilled(total + 9, total, kept, counts, counts, 0.1, (frames, 4, 4), tuple(range(total)))
    yield Round((1,), ("target",), 0, 0, 0.0, texts=("A",))
    for number in range(words):
        text = (f" word{number}",)
        drafted = (4, number % 5, 0.1 * number, 0.1, 0.1) if drafts else (0, 0, 0.1 * number, 0.0, 0.1)
        yield Round((1,), ("draft" if drafts else "target",), *drafted, texts=text)


def screens(size, **options):
    """Return the lines of the panel before the first event, after the first few, every fifth and the last one."""
    width, height = size
    given = {key: options.pop(key) for key in ("frames", "drafts", "words") if key in options}
    state, found = PanelState(path="clip.mp4", profile="sd-attention-chain"), []
    events = [None, *clip_events(**given)]
    for number, event in enumerate(events, start=1):
        if event is not None:
            state.apply(event)
        if number > 6 and number % 5 and number < len(events):
            continue
        out = io.StringIO()
        drawn = render_clip(state, PanelScreen(width=width, height=height - 1, **options))
        Console(file=out, width=width, force_terminal=False).print(drawn)
        found.append(out.getvalue().splitlines())
    return found


OPTIONS = [{}, {"frames": 1}, {"frames": 64}, {"drafts": False}, {"verbose": True}]
LAYOUTS = [(size, coloured, options) for size in SIZES for coloured in (True, False) for options in OPTIONS]
USUAL = [
    *((size, True, {}) for size in SIZES),
    ((80, 24), False, {}),
    *((size, True, options) for size, options in zip([*SIZES, (80, 24)], OPTIONS[1:], strict=True)),
]


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(("size", "coloured", "options"), full_but(USUAL, LAYOUTS))
def test_the_height_does_not_change_while_the_caption_grows(size, coloured, options):
    found = screens(size, coloured=coloured, **options)
    assert len({len(lines) for lines in found}) == 1, [len(lines) for lines in found]
    assert len(found[0]) < size[1] and {len(line) for lines in found for line in lines} == {size[0]}
    text = "\n".join(found[-1])
    assert "word119" in text and "decoding" in text and "sd-attention-chain" in text
    drafts = options.get("drafts", True)
    assert ("the draft sees 1" in text) == drafts and "visual tokens" in " ".join(text.split()).replace("│ ", "")
    assert ("mean 2.0" in text) == (drafts and size[1] > 12)
    assert ("▀" in text) == (coloured and size[1] > 12)


def test_what_stands_below_the_caption_stays_in_its_line():
    found = screens((80, 24))[3:]
    for part in ("draft accepted", "0.0 s", "the draft sees", "accepted tokens", "sd-attention-chain"):
        assert len({next(at for at, line in enumerate(lines) if part in line) for lines in found}) == 1, part


def test_above_on_a_usual_terminal_and_beside_on_a_wide_one():
    *_, usual = screens((80, 24))
    *_, wide = screens((120, 40))
    tiled = [line for line in usual if "▀" in line]
    assert not any("word" in line for line in tiled) and tiled[0].count("  ▀") == 2
    assert "3 of 32 frames shown" in "".join(usual) and "word119" in "".join(usual)
    assert any("word" in line for line in wide if "▀" in line)
    assert "4 of 32 frames shown" in "".join(wide)


@pytest.mark.parametrize(
    ("frames", "said"), [(1, "of 16 visual tokens  "), (64, "of 1,024 visual tokens; 3 of 64 frames")]
)
def test_few_and_many_frames(frames, said):
    *_, lines = screens((80, 24), frames=frames)
    assert said in "".join(lines)


def test_fewer_frames_on_a_narrow_terminal():
    *_, lines = screens((40, 24))
    assert 0 < next(line for line in lines if "▀" in line).count(" ▀") < 3


@pytest.mark.parametrize("options", [{"ascii_only": True}, {"coloured": False}])
def test_plain_text_without_colours_or_blocks(options):
    *_, lines = screens((80, 24), **options)
    text = "\n".join(lines)
    assert "▀" not in text and "the draft sees 10% of 512 visual tokens" in text and "mean 2.0" in text
    assert "▁" not in text or not options.get("ascii_only")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("colours", "env", "tiled"),
    [
        ("truecolor", {}, True),
        ("256", {}, True),
        ("standard", {}, False),
        (None, {}, False),
        ("256", {"NO_COLOR": "1"}, False),
    ],
)
def test_the_terminal_decides_on_tiles(monkeypatch, size, colours, env, tiled):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    console = Console(file=file, force_terminal=True, width=size[0], height=size[1], color_system=colours)
    with LivePanel(console) as panel:
        panel.begin(1, "clip.mp4", 1)
        for event in clip_events():
            panel.event(1, event)
        out = io.StringIO()
        Console(file=out, width=size[0]).print(panel.drawn())
        assert ("▀" in out.getvalue()) == (tiled and size[1] > 12)
        assert out.getvalue().count("\n") < size[1]


def test_the_final_panel_has_the_whole_caption():
    state = PanelState(path="clip.mp4")
    for event in clip_events():
        state.apply(event)
    state.apply(Finished(record("clip.mp4")))
    out = io.StringIO()
    Console(file=out, width=80).print(render_clip(state, PanelScreen(width=80, height=23)))
    assert "word0 " in out.getvalue() and "word119" in out.getvalue() and "estimated 2.0x" in out.getvalue()


@pytest.mark.parametrize("size", SIZES)
def test_a_folder_does_not_jump_either(size):
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    console = Console(file=file, force_terminal=True, width=size[0], height=size[1], color_system="truecolor")
    panel, heights = RunPanel(console, Tally(total=9)), set()

    def look():
        out = io.StringIO()
        Console(file=out, width=size[0]).print(panel.drawn())
        heights.add(out.getvalue().count("\n"))

    with panel:
        for number in range(3):
            panel.begin(number, f"clip-{number}.mp4", 9)
        for count, event in enumerate(clip_events(words=40)):
            for number in range(3):
                panel.event(number, event)
            if count < 6 or count % 3 == 0:
                look()
        panel.end(0, record())
        look()
        panel.begin(3, "clip-3.mp4", 9)
        look()
    assert len(heights) == 1 and heights.pop() < size[1]
