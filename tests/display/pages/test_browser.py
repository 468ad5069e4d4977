"""The pages in a real browser: they complain of nothing, load nothing, can be read and be worked by keys."""

from dataclasses import replace

import pytest

from tests.display.pages.browser import BROWSER, WHY, visit
from tests.display.pages.clips_of_reports import PATH, clip, told
from tests.serve.chromium import open_tab
from vidspec import video
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.folder import FolderTable
from vidspec.display.pages.report import write
from vidspec.display.pages.side_by_side import write_compared

pytestmark = [pytest.mark.full, pytest.mark.skipif(BROWSER is None, reason=WHY)]

#: Texts that stand out too little from what is behind them (WCAG 2, level AA), each once.
CONTRAST = """
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const colour = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const found = colour(getComputedStyle(at).backgroundColor);
    if (found[3] === undefined || found[3] === 1) return found;
  }
};
for (const one of document.querySelectorAll("details")) one.open = true;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const faint = new Set();
let texts = 0;
while (walk.nextNode()) {
  const one = walk.currentNode.parentElement, style = getComputedStyle(one);
  if (!walk.currentNode.data.trim() || one.closest("script, style") || !one.getClientRects().length) continue;
  texts += 1;
  const [a, b] = [light(colour(style.color)), light(behind(one))].sort((a, b) => b - a);
  if ((a + 0.05) / (b + 0.05) < 4.5) faint.add(one.outerHTML.slice(0, 80));
}
return { texts, faint: [...faint], background: getComputedStyle(document.body).backgroundColor };
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of one clip with all there can be on it, and one of several, the last of them failed."""
    folder = tmp_path_factory.mktemp("pages")
    times = [float(one) for one in video.read(told()["path"], frames=2).timestamps]
    baseline = {"timings": {"decode": 3.0}, "tokens_per_s": 2.0, "decode": 3.0, "end_to_end": None}
    facts = {
        "demo": True,
        "video": {"timestamps": times, "frames": 2, "duration_s": 14.4, "width": 64, "height": 48},
        "speed": {"tokens_per_s": 4.0, "baseline": baseline},
    }
    whole = clip(record=told(**facts))
    one, every = FolderTable(), FolderTable()
    one.add(whole.record)
    assert not write(folder / "one.html", one, [whole], "")
    error = {"stage": "decode_video", "kind": "not_video", "message": "is not a video"}
    failed = told(path="broken.mp4", caption=None, token_ids=[], error=error, lengths={}, timings={}, speed={})
    rates = (3.0, 20.0, 100.0)
    records = [told(**{**facts, "speed": {"tokens_per_s": rate}}, caption=f"Rate {rate}. " * 30) for rate in rates]
    numbered = [every.add(record) for record in (*records, failed)]
    inside = [replace(whole, record=record, number=at) for record, at in zip(records, numbered, strict=False)]
    assert not write(folder / "many.html", every, [*inside[:2], ShownClip(records[2], number=3)], "run")
    names = ("sides/a.jsonl", "sides/b.jsonl")
    sides = [[told(path=f"{n}.mp4", caption=f"{n} {word}.") for n in range(3)] for word in ("circle", "square")]
    write_compared(folder / "sides.html", [*sides[0], told(path="same.mp4")], [*sides[1], told(path="same.mp4")], names)
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["one", "many", "sides"])
def test_quiet_alone_and_readable(pages, name, dark):
    seen = visit(pages / f"{name}.html", CONTRAST, dark=dark)
    assert (seen.trouble, seen.loads, seen.log) == ([], [], "")
    assert seen.found["texts"] > 30 and seen.found["faint"] == []
    assert seen.found["background"] == ("rgb(19, 22, 27)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("name", ["one", "many", "sides"])
def test_a_phone_does_not_scroll_sideways(pages, name):
    """Tables and timelines, which are wider, scroll by themselves."""
    script = """
    document.body.style.width = "390px";
    for (const one of document.querySelectorAll("details.clip")) one.open = true;
    const free = [...document.querySelectorAll("main *")].filter((one) => !one.closest(".scroll, svg"));
    return free.filter((one) => one.getBoundingClientRect().right > 390).map((one) => one.outerHTML.slice(0, 90));
    """
    assert visit(pages / f"{name}.html", script, width=500).found == []


def test_elements_of_a_clip_are_present(pages):
    names = ".demo-bar, .in-short, .t, .rounds i, .frames figure, .veil, .lane, rect, .speed.plain"
    script = f"return {names.split(', ')}.map((one) => document.querySelectorAll(one).length)"
    assert visit(pages / "one.html", script).found == [1, 1, 6, 2, 2, 2, 2, 5, 1]


def test_the_line_about_the_built_in_models_stays_in_sight(pages):
    script = """
    scrollTo(0, document.body.scrollHeight);
    const box = document.querySelector(".demo-bar").getBoundingClientRect();
    return [scrollY > 300, Math.round(box.top), box.height > 20, box.width === innerWidth];
    """
    assert visit(pages / "one.html", script).found == [True, 0, True, True]


def test_arrow_keys_go_through_the_tokens(pages):
    script = """
    const tokens = [...document.querySelectorAll(".t")], about = document.querySelector(".about");
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const at = () => [tokens.indexOf(document.activeElement), about.textContent.slice(0, 26)];
    const stops = () => tokens.filter((one) => one.tabIndex === 0).length;
    tokens[0].focus();
    const found = [at()];
    for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home"]) {
      press(key);
      found.push(at());
    }
    return { found, stops: stops() };
    """
    seen = visit(pages / "one.html", script).found
    assert [at for at, _ in seen["found"]] == [0, 1, 2, 1, 5, 5, 0] and seen["stops"] == 1
    assert seen["found"][1][1] == '" red": token 2; draft: pr'


def test_what_the_draft_saw_is_uncovered_and_frames_grow(pages):
    script = """
    const veil = document.querySelector(".veil"), button = document.querySelector(".frames button");
    const before = [getComputedStyle(veil).display, button.clientWidth];
    document.querySelector(".unveil").click();
    button.click();
    return [before[0], getComputedStyle(veil).display, button.clientWidth > 2 * before[1], button.ariaPressed];
    """
    assert visit(pages / "one.html", script).found == ["block", "none", True, "true"]


def test_a_slider_covers_all_but_the_highest(pages):
    script = """
    const canvases = [...document.querySelectorAll(".frames canvas")], range = document.querySelector(".sift input");
    const covered = () => canvases.map((one) => one.hidden ? null :
      [0, 1, 2, 3].filter((at) => one.getContext("2d").getImageData(at % 2, at >> 1, 1, 1).data[3]).length);
    const to = (value) => { range.value = value; range.dispatchEvent(new Event("input")); return covered(); };
    const veil = document.querySelector(".unveil"), select = document.querySelector(".sift select");
    const found = [range.value, covered(), to(0), to(50), to(100), veil.checked];
    select.selectedIndex = 1;
    select.dispatchEvent(new Event("change"));
    found.push(to(50), document.querySelector(".sift output").textContent, select.value);
    veil.click();
    return [...found, covered()];
    """
    assert visit(pages / "one.html", script).found == [
        "38",
        [None, None],
        [3, 4],
        [3, 1],
        [0, 0],
        False,
        [4, 4],
        "50% by",
        "the target's attention in block 2",
        [None, None],
    ]


def test_the_timeline_grows_and_shows_decoding(pages):
    script = """
    const lanes = document.querySelector(".lanes"), scroll = lanes.parentElement;
    const press = (name) => { document.querySelector(`[data-zoom=${name}]`).click(); return lanes.clientWidth; };
    const before = lanes.clientWidth;
    const found = [press("in"), press("out"), press("decoding")].map((width) => Math.round(width / before));
    return [...found, scroll.scrollLeft > 0, Math.round(press("all") / before)];
    """
    assert visit(pages / "one.html", script).found == [2, 1, 4, True, 1]


def test_the_table_is_searched_and_sorted(pages):
    script = """
    const table = document.querySelector(".clips"), count = document.getElementById("count");
    const rows = () => [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[6].textContent);
    const head = [...table.tHead.rows[0].cells].find((one) => one.textContent.trim() === "tokens/s");
    const found = [rows()];
    head.querySelector("button").click();
    found.push(rows(), head.ariaSort);
    head.querySelector("button").click();
    found.push(rows(), head.ariaSort);
    const search = document.getElementById("search");
    search.value = "RATE 20";
    search.dispatchEvent(new Event("input"));
    found.push(rows(), count.textContent);
    search.value = "";
    document.getElementById("failed").click();
    found.push(rows(), count.textContent);
    return found;
    """
    assert visit(pages / "many.html", script).found == [
        ["-", "3.00", "20.00", "100.00"],
        ["3.00", "20.00", "100.00", "-"],
        "ascending",
        ["100.00", "20.00", "3.00", "-"],
        "descending",
        ["20.00"],
        "1 of 4 rows",
        ["-"],
        "1 of 4 rows",
    ]


def test_a_link_in_the_table_opens_the_clip(pages):
    script = """
    const clip = document.getElementById("clip-2"), before = clip.open;
    location.hash = "#clip-2";
    dispatchEvent(new HashChangeEvent("hashchange"));
    return [before, clip.open];
    """
    assert visit(pages / "many.html", script).found == [False, True]


def test_captions_are_picked_by_click_and_by_key_and_remembered(pages):
    script = """
    const rows = [...document.querySelectorAll("tr[data-pick]")], tally = () =>
      ["first", "second", "open"].map((name) => Number(document.querySelector(`[data-tally=${name}]`).textContent));
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const row = () => rows.indexOf(document.activeElement.closest("tr"));
    const found = [tally()];
    rows[1].querySelectorAll(".pick")[1].click();
    found.push(tally());
    rows[0].querySelector("input").focus();
    press("1");
    found.push(tally(), row());
    press("1");
    press("0");
    found.push(tally(), row());
    const search = document.getElementById("search");
    search.focus();
    press("2");
    found.push(tally());
    found.push(JSON.parse(document.getElementById("picked").value));
    const link = document.getElementById("download").href;
    found.push(decodeURIComponent(link).endsWith(document.getElementById("picked").value));
    found.push(Object.values(JSON.parse(localStorage.getItem("vidspec picks"))).sort());
    return found;
    """
    result = {
        "first": "sides/a.jsonl",
        "second": "sides/b.jsonl",
        "tally": {"first": 1, "second": 1, "open": 1},
        "picks": [{"path": "0.mp4", "better": "first"}, {"path": "1.mp4", "better": "second"}],
    }
    kept = ["first", "second"]
    assert visit(pages / "sides.html", script).found == [
        *([0, 0, 3], [0, 1, 2], [1, 1, 1], 2, [1, 1, 1], 2, [1, 1, 1]),
        *(result, True, kept),
    ]


def test_compared_runs_are_named_beside_their_captions_on_a_phone_and_the_clip_plays(tmp_path):
    sides = [[told(path=PATH, caption=f"A {word}.")] for word in ("circle", "square")]
    write_compared(tmp_path / "sides.html", *sides, ("a.jsonl", "b.jsonl"))
    names = """
    return [...document.querySelectorAll("td.words")].map((one) => getComputedStyle(one, "::before").content);
    """
    assert visit(tmp_path / "sides.html", names, width=500).found == ['"a.jsonl"', '"b.jsonl"']
    assert visit(tmp_path / "sides.html", names, width=1280).found == ["none", "none"]
    with open_tab(tmp_path / "browser") as tab:
        tab.show((tmp_path / "sides.html").as_uri())
        tab.run("document.querySelector('video').preload = 'auto'")
        tab.until("document.querySelector('video').readyState > 1")
        assert tab.trouble == []


def test_faint_text_is_noticed(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<style></style><body style='background: #fff'><p style='color: #888'>a<p style='color: #333'>b")
    assert [one[:24] for one in visit(page, CONTRAST).found["faint"]] == ['<p style="color: #888">a']


def test_what_a_page_must_not_do_is_noticed(tmp_path):
    """The guard itself: a load, an error and a complaint are found."""
    page = tmp_path / "page.html"
    page.write_text(
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'\"><style></style><body><img src='http://127.0.0.1:9/x.png'>"
        "<script>console.error('said'); missing();</script></body>"
    )
    trouble = visit(page, "return 1").trouble
    assert any(one.startswith("load: http://127.0.0.1:9") for one in trouble)
    assert "error: said" in trouble and any("missing is not defined" in one for one in trouble)
