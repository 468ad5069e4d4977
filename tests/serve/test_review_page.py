"""The page of ``vidspec review`` in a real browser, over clips and caption files on the disk."""

import shutil
from dataclasses import replace

import pytest
from PIL import Image

from tests.display.pages.browser import BROWSER, WHY
from tests.display.pages.test_browser import CONTRAST
from tests.fake_captioner import record
from tests.serve.chromium import open_tab
from tests.serve.servers import running
from vidspec.config.run_spec import RunSpec
from vidspec.display.pages.review import write_review
from vidspec.embedded.samples import shipped
from vidspec.runs.planning import plan
from vidspec.runs.review import CaptionFiles, review_rows
from vidspec.runs.store.caption_set import CAPTION_STATES
from vidspec.serve.config import ServeConfig
from vidspec.serve.review import FreshCaptions, build_review

pytestmark = [pytest.mark.full, pytest.mark.skipif(BROWSER is None, reason=WHY)]

TOLD = "document.querySelector('#clip-{} .told').textContent"
ALT, CONTROL = 1, 2


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three clips, one of them captioned by hand, and a picture."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k").mkdir()
    for name in "abc":
        shutil.copy(shipped()[0], tmp_path / "k" / f"{name}.mp4")
    (tmp_path / "k" / "a.txt").write_text("A red <circle>.\n")
    Image.new("RGB", (32, 16)).save(tmp_path / "k" / "d.png")
    return CaptionFiles(plan(RunSpec.make({"paths": ("k",), "format": "txt", "include_images": True})))


@pytest.fixture
def url(files):
    class Fresh(FreshCaptions):
        def caption(self, run):
            job = replace(run.job)
            job.result = record(job.path, caption=f"{run.prompt} {job.path}")
            return [job]

    config = ServeConfig()
    with running(build_review(files, Fresh(lambda profile: None), config, "token", "Captions of k"), config) as at:
        yield f"{at}/token/"


@pytest.fixture
def tab(tmp_path_factory):
    with open_tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def press(tab, key, held):
    code = {"ArrowDown": 40, "ArrowUp": 38, "s": 83, "Enter": 13}[key]
    about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": held}
    for kind in ("keyDown", "keyUp"):
        tab.send("Input.dispatchKeyEvent", type=kind, **about)


def where(tab):
    return tab.run("document.activeElement.closest('.review')?.id")


def test_by_keyboard_on_a_dark_phone(tab, url, tmp_path):
    tab.show(url, width=500, dark=True)
    tab.until("document.querySelector('video').readyState > 0")
    press(tab, "ArrowDown", ALT)
    assert where(tab) == "clip-1" and tab.run("document.activeElement.value") == "A red <circle>."
    for key, clip in (("ArrowDown", "clip-2"), ("ArrowUp", "clip-1"), ("ArrowDown", "clip-2")):
        press(tab, key, ALT)
        assert where(tab) == clip
    tab.send("Input.insertText", text="By hand.")
    assert tab.run("document.querySelectorAll('.unsaved').length") == 1
    press(tab, "s", CONTROL)
    tab.until(f"{TOLD.format(2)} === 'saved'")
    assert (tmp_path / "k" / "b.txt").read_text() == "By hand.\n"
    assert tab.run("document.querySelectorAll('.unsaved').length") == 0
    assert tab.run("document.querySelector('#clip-2 .state').textContent") == "foreign"
    tab.send("Input.insertText", text=" More.")
    press(tab, "Enter", CONTROL)
    tab.until("document.activeElement.closest('.review').id === 'clip-3'")
    assert (tmp_path / "k" / "b.txt").read_text() == "By hand. More.\n"
    assert tab.run("document.documentElement.scrollWidth") <= 500
    found = tab.run(f"(() => {{ {CONTRAST} }})()")
    assert found["texts"] > 30 and found["faint"] == [] and found["background"] == "rgb(19, 22, 27)"
    assert tab.trouble == []


def test_filters_seeking_and_another_caption(tab, url, tmp_path):
    tab.show(url)
    shown = "[...document.querySelectorAll('.review')].filter(one => !one.hidden).map(one => one.id)"
    for name, value, kind, clips in (
        ("search", "RED circle", "input", ["clip-1"]),
        ("search", "", "input", ["clip-1", "clip-2", "clip-3", "clip-4"]),
        ("state", "missing", "change", ["clip-2", "clip-3", "clip-4"]),
        ("state", "", "change", ["clip-1", "clip-2", "clip-3", "clip-4"]),
    ):
        tab.run(f"(one => {{ one.value = '{value}'; one.dispatchEvent(new Event('{kind}')); }})({name})")
        assert tab.run(shown) == clips
    tab.run("document.querySelector('#clip-3 .tools input').value = 'Who?'")
    tab.run("document.querySelector('#clip-3 [data-do=again]').click()")
    tab.until(f"{TOLD.format(3)} === 'a new caption, not saved yet'")
    assert tab.run("document.querySelector('#clip-3 textarea').value") == "Who? k/c.mp4"
    assert not (tmp_path / "k" / "c.txt").exists()
    tab.run("document.querySelector('#clip-3 .tools input').value = 'When?'")
    tab.run("document.querySelector('#clip-3 [data-do=again]').click()")
    tab.until("document.querySelector('#clip-3 textarea').value === 'When? k/c.mp4'")  # nobody has edited it
    kept = f"{TOLD.format(3)}.startsWith('your unsaved text is kept')"
    click = "document.querySelector('#clip-3 [data-do=again]').click()"
    typed = "document.querySelector('#clip-3 textarea').value = 'typed'"
    for order in (f"{click}; {typed}", f"{typed}; {click}"):
        tab.run(order)
        tab.until(kept)
        assert tab.run("document.querySelector('#clip-3 textarea').value") == "typed"
        assert tab.run("document.querySelector('#clip-3 pre').textContent") == "When? k/c.mp4"
        tab.run(f"{TOLD.format(3).removesuffix('.textContent')}.textContent = ''")
    tab.run("(one => { one.preload = 'auto'; one.currentTime = 1; })(document.querySelector('#clip-1 video'))")
    tab.until("(one => one.currentTime === 1 && one.readyState > 1 && !one.seeking)(document.querySelector('video'))")
    tab.run("document.getElementById('clip-4').scrollIntoView()")
    tab.until("document.querySelector('#clip-4 > img').naturalWidth === 32")
    assert tab.trouble == []
    assert all(one.startswith((url, "data:")) or one == "about:blank" for one in tab.loads), tab.loads


def test_a_file_that_changed_meanwhile_is_shown_and_replaced_only_knowingly(tab, url, tmp_path):
    tab.show(url)
    file = tmp_path / "k" / "a.txt"
    file.write_text("<b>another hand</b>")
    tab.run("box(clips[0]).value = 'mine'; document.querySelector('#clip-1 [data-do=save]').click()")
    tab.until(f"{TOLD.format(1)}.includes('has changed on the disk')")
    assert tab.run("document.querySelector('#clip-1 pre').textContent") == "<b>another hand</b>" == file.read_text()
    assert tab.run("box(clips[0]).value") == "mine"
    tab.run("document.querySelector('#clip-1 [data-do=save]').click()")
    tab.until(f"{TOLD.format(1)} === 'saved'")
    assert file.read_text() == "mine\n"


def test_the_page_from_disk_plays_and_cannot_save(tab, files, tmp_path):
    page = tmp_path / "page.html"
    write_review(page, review_rows(files, lambda _, job: job.path), CAPTION_STATES, "Captions")
    tab.show(page.as_uri())
    tab.until("document.querySelector('video').readyState > 0")
    assert tab.run("[box(clips[0]).readOnly, document.querySelectorAll('[data-do]').length]") == [True, 0]
    tab.run("document.getElementById('clip-4').scrollIntoView()")
    tab.until("document.querySelector('#clip-4 > img').naturalWidth === 32")
    tab.run("search.value = 'red'; search.dispatchEvent(new Event('input'))")
    assert tab.run("document.getElementById('count').textContent") == "1 of 4 clips"
    assert tab.trouble == []


def test_a_trigger_word_and_a_replacement_for_all_shown_and_undo(tab, url, tmp_path):
    for name in "bc":
        (tmp_path / "k" / f"{name}.txt").write_text(f"A red square, {name}.\n")
    tab.show(url)
    texts = "clips.map((clip) => box(clip)?.value)"
    told = "document.getElementById('all-told').textContent"
    tab.run("document.getElementById('find').value = 'red'; by.value = 'blue'; affix.value = 'ohwx, '")
    tab.run("(one => { one.value = 'square'; one.dispatchEvent(new Event('input')); })(search)")
    for what, count in (("replace", 2), ("before", 2), ("before", 0)):
        tab.run(f"document.querySelector('[data-all={what}]').click()")
        tab.until(f"{told} === '{count} changed, not saved yet'")
    assert tab.run(texts) == ["A red <circle>.", "ohwx, A blue square, b.", "ohwx, A blue square, c.", ""]
    tab.run("document.querySelector('[data-all=save]').click()")
    tab.until(f"{told} === '2 of 2 saved'")
    assert (tmp_path / "k" / "b.txt").read_text() == "ohwx, A blue square, b.\n"
    tab.run("document.querySelector('#clip-3 [data-do=undo]').click()")
    tab.until(f"{TOLD.format(3)} === 'the last save is undone'")
    assert (tmp_path / "k" / "c.txt").read_text() == "A red square, c.\n" == tab.run("box(clips[2]).value") + "\n"
    assert tab.run("document.querySelectorAll('.unsaved').length") == 0 and tab.trouble == []
