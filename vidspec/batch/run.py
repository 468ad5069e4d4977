"""Runs clips one after the other and goes on after a failure; knows neither models nor where records are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from vidspec.batch.compare import first_difference, speed_against
from vidspec.decoding.events import Event, Finished
from vidspec.errors import GenerationError, VidspecError
from vidspec.record import Caption, failed

__all__ = ["Captions", "Observer", "Options", "Outcome", "exit_code", "run"]


class Captions(Protocol):
    """What is needed of a ``vidspec.Captioner``."""

    @property
    def profile(self) -> Any: ...

    def stream(self, path: str, *, start: float | None = None, end: float | None = None) -> Iterator[Event]: ...

    def baseline(self, path: str, *, start: float | None = None, end: float | None = None) -> Caption: ...

    def warm_up(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """What is done with each clip.

    Attributes:
        start, end: the part to caption, in seconds; None for the whole clip.
        baseline: also decode plainly and add the true speed-ups to the record.
        verify: also decode plainly and fail the clip if any token differs.
    """

    start: float | None = None
    end: float | None = None
    baseline: bool = False
    verify: bool = False


class Observer:
    """Sees a run as it happens; this one looks away. The live panel is another."""

    def begin(self, path: str, number: int, total: int) -> None:
        """Clip ``number`` (from 1) of ``total`` starts."""

    def event(self, event: Event) -> None:
        """One event of the current clip."""

    def end(self, caption: Caption) -> None:
        """The current clip is done, captioned or failed."""


class Outcome(NamedTuple):
    """A clip's record, and why it failed: a VidspecError, a bug, or None."""

    caption: Caption
    error: Exception | None


def run(
    captioner: Captions, paths: Sequence[str], options: Options | None = None, observer: Observer | None = None
) -> Iterator[Outcome]:
    """Caption ``paths`` in order; yields one outcome each, as soon as it is known.

    A failure of one clip, a bug included, is its outcome and does not end the run. KeyboardInterrupt does.
    """
    options, observer = options or Options(), observer or Observer()
    if options.baseline:
        captioner.warm_up()  # or the first clip's speed-up would count what only the first use costs
    for number, path in enumerate(paths, start=1):
        observer.begin(path, number, len(paths))
        outcome = _one(captioner, path, options, observer)
        observer.end(outcome.caption)
        yield outcome


def exit_code(errors: Sequence[Exception | None]) -> int:
    """0 if no clip failed, 3 if a model or device was unavailable, 1 for all other failures."""
    codes = {error.exit_code if isinstance(error, VidspecError) else 1 for error in errors if error is not None}
    return 3 if 3 in codes else 1 if codes else 0


def _one(captioner: Captions, path: str, options: Options, observer: Observer) -> Outcome:
    caption: Caption | None = None
    try:
        for event in captioner.stream(path, start=options.start, end=options.end):
            observer.event(event)
            if isinstance(event, Finished):
                caption = event.caption
        if caption is None:
            raise RuntimeError(f"the stream of {path} ended without a caption")
        return Outcome(_compared(captioner, caption, path, options), None)
    except Exception as error:
        known = _as_known(error)
        record = failed(path, known, profile=captioner.profile.name)
        if caption is not None:  # it was captioned, then not confirmed: keep what was measured
            record = replace(caption, caption=None, lossless=None, error=record.error)
        return Outcome(record, error)


def _compared(captioner: Captions, caption: Caption, path: str, options: Options) -> Caption:
    if not (options.baseline or options.verify):
        return caption
    plain = captioner.baseline(path, start=options.start, end=options.end)
    if options.verify:
        at = first_difference(caption.token_ids, plain.token_ids)
        if at is not None:
            raise GenerationError(
                f"{path}: differs from plain decoding at token {at}: "
                f"{_token(caption.token_ids, at)} instead of {_token(plain.token_ids, at)}",
                stage="verify",
                kind="mismatch",
            )
    if options.baseline:
        speed = {key: value for key, value in caption.speed.items() if key != "estimate"}
        caption = replace(caption, speed={**speed, "baseline": speed_against(caption, plain)})
    return caption


def _token(ids: Sequence[int], at: int) -> str:
    return str(ids[at]) if at < len(ids) else "the end"


def _as_known(error: Exception) -> VidspecError:
    if isinstance(error, VidspecError):
        return error
    return VidspecError(f"{type(error).__name__}: {error}", kind="internal")
