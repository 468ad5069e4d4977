"""Sessions without models: which request continues from which caches, and what is let go of."""

import numpy as np
import pytest

from vidspec.decoding.dialogue import ClipSession
from vidspec.models.request import CaptionRequest, DialogueTurn, Question
from vidspec.video.base import Clip

FIRST = DialogueTurn("Before?", "Yes.")


@pytest.fixture
def clip():
    frames = Clip.of(np.zeros((2, 4, 4, 3), np.uint8), [0.0, 1.0])
    return CaptionRequest("a.mp4", frames, earlier=(FIRST,), spent=2.0, generate={"seed": 3})


@pytest.fixture
def session(clip):
    return ClipSession(clip)


def read(session, request, name):
    """The models have read the prompts of a request: its caches hold vision outputs and a sequence called so."""
    request.cache.seen[name] = name
    request.cache._current_sequences.append(name)
    session.mark_read(request)


def continues(request):
    """Names of the sequences from which a request continues."""
    return request.cache._earlier_sequences


def test_turns_continue_from_the_last_that_was_read(session, clip):
    first = session.turn("What?")
    assert (first.prompt, first.earlier, first.question) == ("What?", (FIRST,), Question("turn", 1))
    assert first.clip is clip.clip and first.generate == clip.generate and first.spent == 2.0
    read(session, first, "first")
    session.mark_answered(first, "This.")
    abandoned = session.turn("Never mind")  # before its prompt was read
    second = session.turn("And then?")
    assert continues(abandoned) == continues(second) == ["first"] and second.spent == 0.0
    assert second.earlier == session.exchanges == (FIRST, DialogueTurn("What?", "This."))
    read(session, second, "second")
    assert not continues(second), "let go of once the prompt has been read"
    session.mark_answered(second, "That.")
    again = session.turn("And then?", second.earlier)
    assert continues(again) == ["second"] and again.question.index == 2
    session.mark_answered(again, "Those.")
    assert [turn.answer for turn in session.exchanges] == ["Yes.", "This.", "Those."]


def test_prompts_wait_for_the_first_and_continue_from_it(session):
    session.add_prompts(enumerate("abc"))
    first = session.take()
    assert session.take() is None and not session.over
    read(session, first, "a")
    second, third = session.take(), session.take()
    assert [one.prompt for one in (first, second, third)] == list("abc") and session.over
    assert [one.question.index for one in (second, third)] == [1, 2] and session.take() is None
    assert continues(second) == continues(third) == ["a"] and second.cache is not third.cache
    assert second.cache.seen and not first.cache.seen, "the others have the vision outputs"
    assert session.clip.frames.nbytes == session.nbytes, "caches end with the requests"
    read(session, second, "b")
    assert not second.cache.seen and third.cache.seen and not continues(second)


def test_the_next_prompt_reads_if_the_first_fails(session):
    session.add_prompts([(0, "a"), (2, "c"), (4, "e")])
    session.take()
    session.mark_ended(0)
    second = session.take()
    assert second.question.index == 2 and not continues(second) and session.take() is None
    read(session, second, "c")
    assert continues(session.take()) == ["c"]


def test_prompts_apart(session):
    session.add_prompts(enumerate("ab"), apart=True)
    read(session, session.take(), "a")
    assert session.take() is None
    session.mark_ended(0)
    assert continues(session.take()) == ["a"]


def test_a_request_of_another_may_continue_from_the_vision_outputs_alone(session, clip):
    read(session, session.turn("What?"), "first")
    other = CaptionRequest("data:", prompt="Where?", system="Be brief.")
    exact, inexact = session.attach(other), session.attach(other, exact=False)
    assert (exact.clip, exact.system) == (clip.clip, "Be brief.") and continues(exact) == ["first"]
    assert inexact.cache.seen == exact.cache.seen == {"first": "first"} and not continues(inexact)
