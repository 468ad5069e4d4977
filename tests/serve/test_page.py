"""The page of the server in a real browser, with real clips."""

import pytest

from tests.display.pages.browser import BROWSER, WHY
from tests.display.pages.test_browser import CONTRAST
from tests.serve.chromium import open_tab
from tests.serve.servers import serving
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.models.request import DialogueTurn

pytestmark = [pytest.mark.full, pytest.mark.skipif(BROWSER is None, reason=WHY)]

CLIPS = shipped()
PRUNED = {"video.frames": 4, "generate.max_new_tokens": 30, "models.device": "cpu"}
ANSWERED = "!document.getElementById('ask').disabled && document.querySelectorAll('.figures').length === {}"


@pytest.fixture(scope="module")
def captioner():
    with Captioner.from_profile("sd-attention", overrides=PRUNED) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def url(captioner):
    with serving(captioner, timeout=60.0) as (url, _):
        yield url


@pytest.fixture
def tab(tmp_path):
    with open_tab(tmp_path / "browser") as tab:
        yield tab


def texts(tab):
    return tab.run("[...document.querySelectorAll('.caption')].map(one => one.textContent.trim())")


def test_a_clip_is_dropped_asked_about_and_asked_again(tab, url, captioner):
    tab.show(f"{url}/")
    tab.drop(CLIPS[1], "document.getElementById('drop')")
    tab.until("document.getElementById('video').readyState > 1")
    tab.run("document.getElementById('ask').click()")
    tab.until(ANSWERED.format(1))
    prompt = captioner.client.profile.generate.prompt
    first = captioner.caption(CLIPS[1]).caption
    assert texts(tab) == [first]
    origins = set(tab.run("[...document.querySelectorAll('.t')].map(one => one.className)"))
    assert {"t draft", "t target"} <= origins <= {f"t {one}" for one in ("draft", "target", "correction", "bonus")}
    frames = tab.run(
        "[...document.querySelectorAll('.frames figure')].map("
        "one => [one.querySelectorAll('img').length, one.querySelector('figcaption').innerText, "
        "[...one.querySelectorAll('img')].every(img => img.complete && img.naturalWidth > 0)])"
    )
    assert len(frames) == 4 and all(count == 2 and drawn for count, _, drawn in frames), "each frame has a veil"
    assert {one.split("/")[1] for _, one, _ in frames} == {"16"}
    figures = tab.run("document.querySelector('.figures').textContent")
    assert "tokens a pass" in figures and "plain decoding" in figures and "lossless" in figures
    tab.run("document.getElementById('question').value = 'And then?'; document.getElementById('ask').click()")
    tab.until(ANSWERED.format(2))
    again = captioner.caption(CLIPS[1], prompt="And then?", earlier=(DialogueTurn(prompt, first),)).caption
    assert texts(tab) == [first, again]
    assert tab.run("document.getElementById('said').textContent") == f"Answered: {again}"
    said = "document.getElementById('said')"
    tab.run(f"{said}.textContent = 'a long answer '.repeat(400)")
    box = tab.run(f"(one => [one.width, one.height])({said}.getBoundingClientRect())")
    assert box == [1, 1] and tab.run(f"getComputedStyle({said}).clipPath") == "inset(50%)"
    assert tab.trouble == []
    assert {one for one in tab.loads if not one.startswith((url, "data:", "blob:"))} <= {"about:blank"}


def test_a_sample_is_chosen_and_asked_about_by_keyboard_on_a_dark_phone(tab, url, tmp_path):
    tab.show(f"{url}/", width=500, dark=True)
    for _ in range(3):  # skip link, file, sample
        tab.press("Tab")
    assert tab.run("document.activeElement.id") == "sample"
    for letter in CLIPS[0].name[:4]:
        tab.press(letter, letter)
    tab.until("document.getElementById('video').readyState > 1")
    tab.run("document.getElementById('question').focus()")
    tab.press("Enter", "\r")
    tab.until(ANSWERED.format(1))
    tab.run("document.querySelector('.caption .t').focus()")
    tab.press("ArrowRight")
    about = tab.run("document.querySelector('.about').textContent")
    assert ": token 2; " in about and "round 1" in about
    tab.run("document.querySelector('.frames button').focus()")
    tab.press("Enter", "\r")
    assert tab.run("document.querySelector('.frames button').getAttribute('aria-pressed')") == "true"
    assert tab.run("document.documentElement.scrollWidth") <= 500
    found = tab.run(f"(() => {{ {CONTRAST} }})()")
    assert found["texts"] > 30 and found["faint"] == [] and found["background"] == "rgb(19, 22, 27)"
    assert tab.trouble == []


def test_errors_are_told_and_an_answer_is_stopped(tab, url, tmp_path):
    tab.show(f"{url}/")
    tab.run("document.getElementById('ask').click()")
    assert tab.run("document.getElementById('error').textContent") == "Choose a video first."
    broken = tmp_path / "broken.mp4"
    broken.write_text("no video")
    tab.drop(broken, "document.getElementById('drop')")
    tab.until("!document.getElementById('error').textContent")
    tab.run("document.getElementById('ask').click()")
    tab.until("document.getElementById('error').textContent.includes('content[0]')")
    assert texts(tab) == []
    tab.drop(CLIPS[0], "document.getElementById('drop')")
    tab.until("document.getElementById('video').readyState > 1")
    tab.run("document.getElementById('ask').click(); document.getElementById('stop').click()")
    tab.until("!document.getElementById('ask').disabled && document.getElementById('stop').disabled")
    assert tab.run("document.getElementById('error').textContent") == ""
