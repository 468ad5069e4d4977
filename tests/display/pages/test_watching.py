from dataclasses import replace

import pytest

from tests.display.pages.clips_of_reports import PATH, ROUNDS, SEEN
from tests.fake_captioner import record
from vidspec.config import profiles
from vidspec.display.pages import report
from vidspec.display.pages.report import ReportFile
from vidspec.display.pages.tokens import tokens
from vidspec.events.events import Restarted

pytestmark = pytest.mark.full

FAILED = {"stage": "verify", "kind": "mismatch", "message": "x"}


@pytest.fixture
def page(tmp_path):
    return ReportFile(tmp_path / "page.html", profiles.load("sd-attention", env={}))


def watch(page, *, number=1, total=1, path=PATH, events=(SEEN, *ROUNDS), **changes):
    page.begin(number, path, total)
    for event in events:
        page.event(number, event)
    page.end(number, record(path, **changes))


def text(page):
    page.write()
    return page.file.read_text(encoding="utf-8")


def test_one_clip_gives_its_page(page):
    watch(page)
    assert text(page).count('class="t ') == 6 and not page.errors


def test_several_clips_give_a_table_and_each_in_full(page):
    for number in (1, 2):
        watch(page, number=number, total=2)
    assert "<h1>Profile sd-attention: 2 records</h1>" in text(page)
    assert text(page).count('<details class="clip"') == 2 and 'href="#clip-2"' in text(page)


def test_clips_in_flight_at_once_do_not_mix(page):
    for number in (1, 2):
        page.begin(number, f"{number}.mp4", 2)
    for event in (SEEN, *ROUNDS):
        page.event(1, event)
        page.event(2, replace(event, texts=("other",) * len(event.texts)) if event in ROUNDS else event)
    page.end(2, record("2.mp4"))
    page.end(1, record("1.mp4"))
    assert [(clip.record["path"], list(tokens(clip))[1].text) for clip in page.clips] == [
        ("2.mp4", "other"),
        ("1.mp4", " red"),
    ]


def test_a_clip_that_is_done_again_shows_only_the_last_time(page):
    watch(page, events=(SEEN, *ROUNDS[:2], Restarted("a worker was lost"), SEEN, *ROUNDS))
    assert text(page).count('class="t ') == 6


def test_only_the_first_clips_are_kept_with_their_events(page, monkeypatch):
    monkeypatch.setattr(report, "IN_FULL", 1)
    for number in (1, 2, 3):
        watch(page, number=number, total=3)
    assert text(page).count("<details class=") == 1 and "3 records" in text(page)


def test_a_failed_clip_among_others_is_in_the_table_alone(page):
    watch(page, number=1, total=2, caption=None, error=FAILED)
    watch(page, number=2, total=2)
    assert text(page).count("<details class=") == 1 and "verify/mismatch: x" in text(page)


def test_a_failed_clip_by_itself_has_a_page(page):
    watch(page, caption=None, error=FAILED)
    assert "Failed: verify/mismatch: x" in text(page)


def test_nothing_is_written_where_no_clip_ended(page):
    page.begin(1, PATH, 1)
    page.write()
    assert not page.file.exists()


def test_frames_are_not_read_again_for_a_run_that_was_interrupted(page, monkeypatch):
    monkeypatch.setattr("vidspec.video.read_at", lambda *_, **__: pytest.fail("reads frames"))
    watch(page)
    page.interrupted = True
    assert "The frames: not read again, as the run was interrupted" in text(page) and text(page).count('class="t ') == 6
