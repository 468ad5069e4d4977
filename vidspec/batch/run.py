"""Captions clips one after the other and goes on after a failure; knows neither models nor files of records."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from vidspec.batch.compare import first_difference, speed_against
from vidspec.batch.work import How, Outcome, Work
from vidspec.decoding.events import Event, Finished
from vidspec.errors import GenerationError, VidspecError
from vidspec.record import Caption, failed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vidspec.captioner import Asked

__all__ = ["Captions", "Observer", "exit_code", "run"]

CONTEXT = "{prompt}\n\nThis is a later part of a longer video. The part before it was described like this: {previous}"


class Captions(Protocol):
    """What is needed of a ``vidspec.Captioner``."""

    @property
    def profile(self) -> Any: ...

    def stream(self, path: str, **asked: Unpack[Asked]) -> Iterator[Event]: ...

    def baseline(self, path: str, **asked: Unpack[Asked]) -> Caption: ...

    def warm_up(self) -> None: ...


class Observer:
    """Sees a run as it happens; this one looks away. The live panel is another."""

    def begin(self, path: str, number: int, total: int) -> None:
        """Clip ``number`` (from 1) of ``total`` starts."""

    def event(self, event: Event) -> None:
        """One event of the current clip."""

    def end(self, caption: Caption) -> None:
        """The current clip is done, captioned or failed."""


def run(
    captioner: Captions, works: Iterable[Work], how: How | None = None, observer: Observer | None = None
) -> Iterator[Outcome]:
    """Caption ``works`` in order; yields one outcome each, as soon as it is known.

    A failure of one clip, a bug included, is its outcome and does not end the run. KeyboardInterrupt does.
    """
    how, observer = how or How(), observer or Observer()
    if how.baseline:
        captioner.warm_up()  # or the first clip's speed-up would count what only the first use costs
    previous: Outcome | None = None
    for number, work in enumerate(works, start=1):
        observer.begin(work.path, work.number or number, how.total)
        outcome = _one(captioner, work, how, observer, _before(work, previous))
        observer.end(outcome.caption)
        outcome = outcome._replace(work=replace(work, clip=None))  # whoever keeps outcomes keeps no frames
        previous = outcome
        yield outcome


def exit_code(errors: Iterable[Exception | None]) -> int:
    """0 if no clip failed, 3 if a model or device was unavailable, 1 for all other failures."""
    codes = {error.exit_code if isinstance(error, VidspecError) else 1 for error in errors if error is not None}
    return 3 if 3 in codes else 1 if codes else 0


def _before(work: Work, outcome: Outcome | None) -> str | None:
    """The caption of the segment before ``work``, if there is one."""
    if not work.segment:
        return None
    if outcome and outcome.work.entry == work.entry and outcome.work.segment == work.segment - 1:
        return outcome.caption.caption
    return work.previous


def _one(captioner: Captions, work: Work, how: How, observer: Observer, previous: str | None) -> Outcome:
    caption: Caption | None = None
    deadline = None if how.timeout is None else time.monotonic() + how.timeout - work.read_s
    asked = _asked(work, how, previous)
    try:
        if work.error is not None:
            raise work.error
        events = captioner.stream(work.path, **asked)
        for event in events:
            observer.event(event)
            if isinstance(event, Finished):
                caption = event.caption
            elif deadline is not None and time.monotonic() > deadline:
                if isinstance(events, Generator):
                    events.close()
                raise GenerationError(
                    f"{work.path}: not captioned within {how.timeout:g} s", kind="timeout", hint="raise --timeout"
                )
        if caption is None:
            raise RuntimeError(f"the stream of {work.path} ended without a caption")
        if work.read_s and "decode_video" not in caption.timings:
            caption = replace(caption, timings={"decode_video": work.read_s, **caption.timings})
        return Outcome(_compared(captioner, caption, work, how, asked), None, work)
    except Exception as error:
        known = _as_known(error)
        record = failed(work.path, known, profile=captioner.profile.name)
        if caption is not None:  # it was captioned, then not confirmed: keep what was measured
            record = replace(caption, caption=None, ended=None, lossless=None, error=record.error)
        return Outcome(record, error, work)


def _asked(work: Work, how: How, previous: str | None) -> Asked:
    """The keyword arguments of the captioner: what is not asked for is left to it."""
    prompt = work.prompt
    if how.context and previous:
        prompt = CONTEXT.format(prompt=prompt or how.prompt, previous=previous)
    asked: Asked = {"start": work.start, "end": work.end}
    if prompt is not None:
        asked["prompt"] = prompt
    if work.clip is not None:
        asked["clip"] = work.clip
    return asked


def _compared(captioner: Captions, caption: Caption, work: Work, how: How, asked: Asked) -> Caption:
    if not (how.baseline or how.verify):
        return caption
    plain = captioner.baseline(work.path, **asked)
    if how.verify:
        at = first_difference(caption.token_ids, plain.token_ids)
        if at is not None:
            raise GenerationError(
                f"{work.path}: differs from plain decoding at token {at}: "
                f"{_token(caption.token_ids, at)} instead of {_token(plain.token_ids, at)}",
                stage="verify",
                kind="mismatch",
            )
    if how.baseline:
        speed = {key: value for key, value in caption.speed.items() if key != "estimate"}
        caption = replace(caption, speed={**speed, "baseline": speed_against(caption, plain)})
    return caption


def _token(ids: Sequence[int], at: int) -> str:
    return str(ids[at]) if at < len(ids) else "the end"


def _as_known(error: Exception) -> VidspecError:
    if isinstance(error, VidspecError):
        return error
    return VidspecError(f"{type(error).__name__}: {error}", kind="internal")
