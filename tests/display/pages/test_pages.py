"""Contents of written pages; ``test_browser`` tests their behaviour."""

import base64
import re
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.display.pages.clips_of_reports import PATH, SEEN, SIGNALS, clip, told
from vidspec import video
from vidspec.display.pages import folder as folders
from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.folder import FolderTable
from vidspec.display.pages.page import ALONE, Page, check_page, section
from vidspec.display.pages.pictures import draw_frames
from vidspec.display.pages.report import write
from vidspec.display.pages.review import ReviewRow, render_review
from vidspec.display.pages.side_by_side import write_compared
from vidspec.errors import OutputError, UsageError, VideoError
from vidspec.serve.app import _render_frames

FAILED = {"stage": "decode_video", "kind": "not_video", "message": "x.mp4: is <not> a video"}


@pytest.fixture
def times():
    return [float(one) for one in video.read(PATH, frames=2).timestamps]


def written(tmp_path, *clips, **changes):
    """The page of ``clips``, all of them in full."""
    folder = FolderTable()
    numbered = [replace(one, number=folder.add(one.record)) for one in clips]
    errors = write(tmp_path / "page.html", folder, numbered, "run", **changes)
    return (tmp_path / "page.html").read_text(encoding="utf-8"), errors


def test_a_page_of_one_clip_holds_it_and_loads_nothing(tmp_path, times):
    whole = clip(record=told(video={"timestamps": times, "frames": 2}))
    page, errors = written(tmp_path, whole)
    assert not errors and "{{" not in page
    assert page.count('class="t ') == 6 and "<title>" + PATH in page
    assert "&lt;b&gt;circle&lt;/b&gt;" in page and "<b>circle" not in page
    assert page.count('class="veil"') == 2 and "1/4" in page and "2/4" in page
    loads = re.findall(r"""\s(?:src|href)="([^"]*)|url\(""", page)
    assert loads and all(one.startswith(("data:", "#")) for one in loads)
    assert not re.search(r"https?://", page)


def test_the_veil_covers_what_the_draft_did_not_see(times):
    one, two = draw_frames(told(video={"timestamps": times}), SEEN, 10**6)
    assert (one.kept, one.tokens, two.kept, two.tokens) == (1, 4, 2, 4)
    veils = [Image.open(BytesIO(base64.b64decode(each.veil.partition(",")[2]))) for each in (one, two)]
    alpha = [np.asarray(each.convert("RGBA"))[..., 3] for each in veils]
    middles = [(each[16::32, 16::32] > 0).tolist() for each in alpha]
    assert middles == [[[False, True], [True, True]], [[False, False], [True, True]]]
    line = np.asarray(veils[0].convert("RGBA"))[:32, :32, :3] == (
        255,
        176,
        32,
    )  # below and right of the one that is seen
    assert line.all(-1).sum() == 63 and line[31].all() and line[:, 31].all()


def test_signals_are_laid_out_frame_by_frame(times):
    """Tokens in another order than their cells, the last of them a separator."""
    seen = replace(SEEN, cells=(4, 5, 6, 7, 0, 1, 2, -1), signals=SIGNALS[:1])
    found = draw_frames(told(video={"timestamps": times}), seen, 10**6)
    assert [one.sides for one in found] == [(2, 2), (2, 2)]
    levels = [[list(base64.b64decode(level)) for level in one.levels] for one in found]
    assert levels == [[[218, 182, 72, 0]], [[255, 109, 0, 36]]]


def test_a_frame_that_the_draft_saw_whole_has_no_veil(times):
    one, two = draw_frames(told(video={"timestamps": times}), replace(SEEN, kept=(0, 1, 2, 3, 5)), 10**6)
    assert (one.veil, one.kept, one.share) == (None, 4, 1.0) and two.veil is not None


def test_records_alone_have_counts_and_no_veil(times):
    found = draw_frames(told(video={"timestamps": times}), None, 10**6)
    assert [(one.seconds, one.kept, one.tokens, one.veil) for one in found] == [
        (times[0], 1, None, None),
        (times[1], 2, None, None),
    ]


def test_frames_of_a_draft_that_reads_text_only_are_plain_and_one_line_says_so(tmp_path, times):
    record = told(video={"timestamps": times, "frames": 2}, kept_per_frame=[0, 0])
    record["counters"] |= {"visual_tokens": 8, "visual_tokens_kept": 0}
    blind = replace(SEEN, kept=(), kept_per_frame=(0, 0))
    for seen in (blind, None):
        assert [(one.kept, one.veil) for one in draw_frames(record, seen, 10**6)] == [(None, None)] * 2
    for one in (clip(record=record, seen=blind), ShownClip(record)):
        page, _ = written(tmp_path, one)
        assert "The draft reads text only: none of 8 visual tokens." in page and "<span>0 tokens" not in page
    shown = _render_frames(video.read(PATH, frames=2), blind)
    assert shown.count("The draft reads text only: none of 8 visual tokens.") == 1 and "veil" not in shown
    assert words.VEILED in _render_frames(video.read(PATH, frames=2), SEEN)


def test_each_raster_of_a_frame_is_drawn(times):
    """Two views of the whole frame, of 1 x 2 and 1 x 2 tokens, one below the other in the grid."""
    found = draw_frames(told(video={"timestamps": times}), replace(SEEN, views=((1, 2), (1, 2))), 10**6)
    assert [(one.view, one.kept, one.tokens) for one in found] == [
        ("view of 1 x 2", 1, 2),
        ("view of 1 x 2", 0, 2),
        ("view of 1 x 2", 2, 2),
        ("view of 1 x 2", 0, 2),
    ]


def test_a_page_of_32_frames_is_under_3_mb_whatever_they_show(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 255, (240, 426, 3), np.uint8)
    monkeypatch.setattr(video, "read_at", lambda path, at, **_: type("Clip", (), {"frames": [noise] * len(at)}))
    every = told(video={"timestamps": [at / 4 for at in range(32)], "frames": 32}, kept_per_frame=[9] * 32)
    page, _ = written(tmp_path, clip(record=every, seen=None))
    assert page.count("<figure>") == 32 and len(page.encode()) < 3_000_000


def test_a_long_clip_says_how_many_frames_are_left_out(tmp_path, monkeypatch):
    frame = np.zeros((24, 32, 3), np.uint8)
    monkeypatch.setattr(video, "read_at", lambda path, at, **_: type("Clip", (), {"frames": [frame] * len(at)}))
    every = told(video={"timestamps": list(range(100)), "frames": 100}, kept_per_frame=[])
    page, _ = written(tmp_path, clip(record=every, seen=None))
    assert page.count("<figure>") == 64 and "36 further frames are not drawn" in page


def test_frames_that_are_gone_leave_a_page_that_says_so(tmp_path, monkeypatch, times):
    record = told(path="gone.mp4", video={"timestamps": times})
    page, errors = written(tmp_path, clip(record=record))
    assert "The frames: gone.mp4 does not exist." in page and not errors

    def broken(*_, **__):
        raise VideoError("it cannot be decoded")

    monkeypatch.setattr(video, "read_at", broken)
    page, errors = written(tmp_path, clip(record=told(video={"timestamps": times})))
    assert "The frames: it cannot be decoded." in page and [str(one) for one in errors] == ["it cannot be decoded"]
    changed = {**told(), "job": {"size": 1, "mtime_ns": 2}}
    assert "The frames: the file has changed since." in written(tmp_path, clip(record=changed))[0]


@pytest.mark.parametrize("demo", [True, False])
def test_captions_of_the_built_in_models_cannot_be_taken_for_more(tmp_path, demo):
    page, _ = written(tmp_path, clip(record=told(demo=demo, video={})))
    marks = ('class="demo-bar"', "know drawn shapes only")
    assert [page.count(mark) for mark in marks] == [demo] * 2, "one warning in one line"


def test_a_folder_says_which_of_its_captions_are_the_built_in_models(tmp_path):
    page, _ = written(tmp_path, *(ShownClip(told(demo=demo, video={})) for demo in (True, False, False)))
    assert "1 of 3 are by the built-in models" in page
    assert page.count('class="dot"') == 2, "one in its row of the table and one where it is shown in full"


def folded(page):
    """The texts beside captions on a page, in their order."""
    return re.findall(r'<details><summary>([^<]*)</summary><div class="caption">(.*?)</div>', page, re.DOTALL)


def test_the_texts_beside_a_caption_are_folded_below_it_wherever_it_is_shown(tmp_path):
    two = {"original": {"text": "Long & <i>wordy</i>.", "ended": "eos"}, "summary": "It moves."}
    record = told(caption="Short.", **two)
    names = [(words.ORIGINAL, "Long &amp; &lt;i&gt;wordy&lt;/i&gt;."), (words.SUMMARY, "It moves.")]
    alone, _ = written(tmp_path, ShownClip(record), frames=False)
    assert alone.count("Short.") == 1 and f"<summary>{words.ORIGINAL}</summary>" in alone
    assert '<div class="caption">Long &amp; &lt;i&gt;wordy&lt;/i&gt;.</div>' in alone and folded(alone) == names[1:]
    many, _ = written(tmp_path, ShownClip(record), ShownClip(told()), frames=False)
    assert folded(many) == [*names, names[1]], "in the table, and where the clip is shown in full"
    write_compared(tmp_path / "page.html", [record], [told()], ("a", "b"))
    assert folded((tmp_path / "page.html").read_text(encoding="utf-8")) == names
    row = ReviewRow(1, "x.mp4", "x.txt", "written", "Short.", "", "x.mp4", "What?", record=record)
    assert folded(render_review([row], {"written": "as a run wrote it"}, "x", live=False)) == names
    failed, _ = written(tmp_path, ShownClip(told(caption=None, error=FAILED, **two)), frames=False)
    assert folded(failed) == names


def test_the_tokens_of_a_rewritten_caption_are_those_of_the_text_before(tmp_path):
    """The page showed them as the caption."""
    rewritten = replace(clip(), record=told(caption="Short.", original={"text": "A red", "ended": "eos"}))
    page, _ = written(tmp_path, rewritten, frames=False)
    caption, _, original = page.partition(f"<summary>{words.ORIGINAL}</summary>")
    assert '<div class="caption">Short.</div>' in caption and 'class="t ' not in caption
    assert original.count('class="t ') == 6


def test_failures_come_first_and_are_counted(tmp_path):
    failed = told(path="x.mp4", caption=None, error=FAILED, token_ids=[], counters={}, lengths={}, timings={}, speed={})
    folder = FolderTable()
    for record in (told(), failed, told(ended="loop")):
        folder.add(record)
    assert [(row.number, row.state) for row in folder.table] == [(2, "failed"), (1, "captioned"), (3, "ends in a loop")]
    assert folder.summary == "3 records, one for each clip or part of one: 2 captioned, 1 failed."
    write(tmp_path / "page.html", folder, [], "run")
    page = (tmp_path / "page.html").read_text()
    assert "decode_video/not_video: x.mp4: is &lt;not&gt; a video" in page and page.count('data-failed="1"') == 1


def test_spreads_are_of_captioned_clips_that_have_the_value():
    folder = FolderTable()
    for rate in (1.0, 2.0, 4.0, None):
        folder.add(told(speed={"tokens_per_s": rate}))
    folder.add(told(error=FAILED, speed={"tokens_per_s": 99.0}))
    spread = next(one for one in folder.spreads if one.name.startswith("tokens/s"))
    assert (spread.clips, spread.low, spread.median, spread.high) == (3, "1.00", "2.00", "4.00")
    assert sum(spread.counts) == 3 and spread.counts[0] == spread.counts[-1] == spread.counts[8] == 1


def test_a_million_clips_do_not_all_stand_on_the_page(monkeypatch):
    monkeypatch.setattr(folders, "MAX_ROWS", 2)
    folder = FolderTable()
    for at in range(5):
        folder.add(told(error=FAILED if at > 3 else None))
    assert [row.state for row in folder.table] == ["failed", "captioned", "captioned"]
    assert "2 further clips are counted above and have no row here." in folder.sections({}, [])[-1]
    assert words.without_row(0) == ""
    assert words.without_row(1) == "1 further clip is counted above and has no row here."


def test_one_of_a_thing_is_singular(tmp_path):
    """On pages of a run and of one clip."""
    failed = told(path="x.mp4", caption=None, error=FAILED, token_ids=[], counters={}, lengths={}, timings={}, speed={})
    folder = FolderTable()
    folder.add(failed)
    assert folder.summary == "1 record, one for each clip or part of one: 0 captioned, 1 failed."
    write(tmp_path / "page.html", folder, [], "run")
    page = (tmp_path / "page.html").read_text()
    assert "run: 1 record<" in page and "1 of 1 row<" in page
    few = {name: 1 for name in ("visual_tokens", "visual_tokens_kept", "target_forwards", "drafted", "accepted")}
    once = told(counters={**told()["counters"], **few, "emitted": 2}, video={"frames": 1})
    page, _ = written(tmp_path, replace(clip(record=once), unseen="-"))
    short = re.sub(r"\s+", " ", page)
    assert "saw 1 frame as 1 visual token." in short and "needed 1 pass for the 1 token after the first" in short
    assert re.search(r"It proposed 1 token, and 1 \([\d%]+\) was accepted", short)
    assert not re.search(
        r"\b1 (visual tokens|tokens|frames|passes|clips|records|rows|verifications|pieces|spans)\b", short
    )


def test_a_page_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"):
        write(tmp_path / "no" / "page.html", FolderTable(), [], "run")
    with pytest.raises(UsageError, match=r"--report x.pdf: must end in \.html"):
        check_page(tmp_path.joinpath("x.pdf").relative_to(tmp_path), [])


def test_paths_break_after_slashes_and_not_within_words(tmp_path):
    record = told(path="clips/a_long_folder/<b>.mp4", video={})
    page, _ = written(tmp_path, ShownClip(record), ShownClip(told(video={})))
    assert "clips/<wbr>a_<wbr>long_<wbr>folder/<wbr>&lt;b&gt;.mp4" in page
    style = page.partition("<style>")[2].partition("</style>")[0]
    anywhere = [line for line in style.splitlines() if "overflow-wrap: anywhere" in line]
    assert all(line.startswith("pre {") for line in anywhere), "commands only"


def test_a_figure_has_one_name_on_every_page_and_is_explained_above_the_table(tmp_path):
    one, _ = written(tmp_path, clip())
    many, _ = written(tmp_path, *(ShownClip(told(video={})) for _ in range(3)))
    for page in (one, many):
        assert "accepted tokens per pass" in page and not re.search(r">tau<|\btau:", page)
    assert many.index("draft tokens accepted per pass that verifies") < many.index('aria-label="Clips"')
    assert 'title="draft tokens accepted per pass that verifies' in many


def test_a_page_is_one_template_with_sections_in_order():
    page = Page("a/<b>", [section("lead", text="<first>"), section("lead", text="second")], demo="built-in").render()
    assert page.index("&lt;first&gt;") < page.index("<p>second</p>") < page.index("</main>")
    assert "<h1>a/<wbr>&lt;b&gt;</h1>" in page and f'content="{ALONE}"' in page and "loads nothing else" in page
    served = Page("a", [], script="picks.js", policy="").render()
    assert "Content-Security-Policy" not in served and "loads nothing else" not in served
    assert "data-pick" in served.partition("<script>")[2] and "data-pick" not in page
    style, script = ("<style>", "<script>")
    assert page.count(style) == served.count(style) == page.count(script) == served.count(script) == 1
