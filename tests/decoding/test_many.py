"""Many clips of one call: read ahead in order, captioned as they come."""

from collections.abc import Iterator

import pytest

from tests.fake_captioner import record
from vidspec.decoding.many import ReadAhead, caption_clips, in_order
from vidspec.decoding.tickets import serve
from vidspec.errors import GenerationError, VideoError
from vidspec.events.events import Finished
from vidspec.events.wake import WakeEvent
from vidspec.models.request import CaptionRequest


def requests(*names: str) -> Iterator[CaptionRequest]:
    yield from (CaptionRequest(name, key=number) for number, name in enumerate(names))


def read(request: CaptionRequest) -> CaptionRequest:
    if "lost" in request.path:
        raise VideoError(f"{request.path}: is not a video", kind="not_video")
    if "bug" in request.path:
        raise TypeError("broken")
    return request


def serve_backwards(source, wake):
    """Captions all clips at once and finishes the last one first."""
    taken = []
    while not source.over:
        if (request := source.take()) is None:
            source.over or wake.wait(1.0)
        else:
            taken.append(request)
    for request in reversed(taken):
        if "long" in request.path:
            yield request.key, GenerationError(f"{request.path}: is too long")
        else:
            yield request.key, Finished(record(request.path))


def captioned(*names, raises=False):
    return caption_clips(serve_backwards, read, requests(*names), lambda: None, raises=raises, profile="ar")


def test_captions_come_as_they_are_finished_or_in_order():
    names = [f"{number}.mp4" for number in range(9)]
    assert [caption.path for _, caption in captioned(*names)] == names[::-1]
    assert [caption.path for caption in in_order(captioned(*names))] == names


def test_a_failed_clip_is_recorded_in_its_place():
    found = list(in_order(captioned("a", "lost", "b", "long", "lost too")))
    assert [one.path for one in found] == ["a", "lost", "b", "long", "lost too"]
    assert [one.error and one.error["kind"] for one in found] == [None, "not_video", None, "generation", "not_video"]
    assert [one.profile for one in found if one.error] == ["ar"] * 3


@pytest.mark.parametrize("name", ["lost", "long"])
def test_or_raised(name):
    with pytest.raises((VideoError, GenerationError), match=name):
        list(captioned("a", name, raises=True))


def test_a_bug_is_raised_in_any_case():
    with pytest.raises(TypeError, match="broken"):
        list(captioned("a", "bug"))


class FailsAtOnce:
    """A source whose only clip cannot be read."""

    over = False

    def take(self):
        self.over = True


class CountedWaits(WakeEvent):
    waits = 0

    def wait(self, timeout):
        self.waits += 1
        return super().wait(timeout)


def test_nothing_is_waited_for_behind_the_last_clip_that_fails():
    wake = CountedWaits()
    assert list(serve(lambda *_: None, FailsAtOnce(), None, wake, lambda caller: "load")) == [(None, "load")] * 2
    assert wake.waits == 0


def test_no_more_is_read_than_is_ahead():
    drawn = []

    def counted():
        for request in requests(*map(str, range(20))):
            drawn.append(request.path)
            yield request

    source = ReadAhead(counted(), read, ahead=3)
    assert len(drawn) == 3 and not source.over
    while source.take() is None:
        source.wake.wait(1.0)
    assert len(drawn) == 4
    source.close()
