"""Captions clips, several at a time, and goes on after a failure; knows neither models nor files of records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from vidspec.dataset.work import How, Outcome, Questions, Work
from vidspec.decoding.prompts import Prompts
from vidspec.errors import GenerationError, VidspecError
from vidspec.events.compare import first_difference, speed_against
from vidspec.events.events import Event, Finished, Load, Prefilled
from vidspec.events.observer import Observer
from vidspec.events.record import Caption, failed
from vidspec.events.wake import WakeEvent
from vidspec.models.request import Exchange, Question, Request

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vidspec.captioner import Asked
    from vidspec.config.schema import Profile

__all__ = ["Captions", "Source", "exit_code", "run"]

CONTEXT = "{prompt}\n\nThis is a later part of a longer video. The part before it was described like this: {previous}"


class Captions(Protocol):
    """What is needed of a ``vidspec.Captioner``."""

    @property
    def profile(self) -> Profile: ...

    def serve(
        self, arrivals: Any, *, batch: int | None = None, wake: WakeEvent | None = None
    ) -> Iterator[tuple[Hashable, Event | Load | Exception]]: ...

    def baseline(self, path: str, **asked: Unpack[Asked]) -> Caption: ...

    def warm_up(self) -> None: ...


class Source(Protocol):
    """What is needed of a ``vidspec.dataset.feed.Feed``."""

    wake: WakeEvent

    @property
    def over(self) -> bool: ...

    def take(self) -> Work | None: ...

    def finished(self, work: Work, caption: str | None) -> None: ...


def run(
    captioner: Captions,
    source: Source,
    how: How | None = None,
    observer: Observer | None = None,
    begun: Callable[[Work], None] = lambda work: None,
) -> Iterator[Outcome]:
    """Caption what comes from ``source``; yields one outcome each, as soon as it is known.

    The outcomes of one clip's segments come in their order. A failure of one clip, a bug included, is its outcome and
    does not end the run. KeyboardInterrupt does. ``begun`` is told of each piece that the captioner takes.
    """
    how, observer = how or How(), observer or Observer()
    if how.baseline:
        captioner.warm_up()  # or the first clip's speed-up would count what only the first use costs
    flights = _Flights(captioner, source, how, observer, begun)
    while not flights.done:
        before = flights.begun
        events = captioner.serve(flights, batch=how.batch, wake=source.wake)
        try:
            for key, said in events:
                yield from flights.unread()
                yield from flights.heard(key, said)
        finally:
            if isinstance(events, Generator):
                events.close()
        yield from flights.unread()
        yield from flights.lost()
        if flights.begun == before and not flights.done:
            raise RuntimeError("the captioner ended before it had taken a clip")


def exit_code(errors: Iterable[Exception | None]) -> int:
    """0 if no clip failed, 3 if a model or device was unavailable, 1 for all other failures."""
    codes = {error.exit_code if isinstance(error, VidspecError) else 1 for error in errors if error is not None}
    return 3 if 3 in codes else 1 if codes else 0


@dataclass(frozen=True, eq=False)
class _Flight(Request):
    """A clip that the captioner has.

    Attributes:
        whole: of one of several questions, the clip as it was taken.
        turns: of a turn of a dialogue, all of them.
    """

    key: int = 0
    work: Work = field(kw_only=True)
    whole: Work | None = None
    turns: tuple[str, ...] = ()


class _Flights:
    """The clips that the captioner has; it takes them from here, and what it says of them is given back."""

    def __init__(
        self, captioner: Captions, source: Source, how: How, observer: Observer, begun: Callable[[Work], None]
    ) -> None:
        self._captioner, self._source, self._how, self._observer = captioner, source, how, observer
        self._tell = begun
        self.begun = 0
        self._flights: dict[int, _Flight] = {}
        self._unread: list[_Flight] = []
        self._following: list[_Flight] = []  # turns of clips whose turn before is answered
        self._prompts: dict[int, Prompts[_Flight]] = {}  # by clip
        self._early: dict[int, dict[int | None, Outcome]] = {}  # by clip and what must come before
        self._told: dict[int, int | None] = {}  # the last segment that came, by clip

    @property
    def done(self) -> bool:
        """Whether nothing more will come at all."""
        return self._source.over and not self._following and all(one.over for one in self._prompts.values())

    @property
    def over(self) -> bool:
        """Whether nothing comes: either at all, or until the run has heard of what could not be read."""
        return bool(self._unread) or self.done

    def take(self) -> _Flight | None:
        while (flight := self._next()) is not None:
            self.begun += 1
            flight = replace(flight, key=self.begun)
            work = flight.work
            self._observer.begin(flight.key, flight.path, self._how.total)
            if work.error is None:
                self._flights[flight.key] = flight
                self._tell(work)
                return flight
            self._unread.append(flight)
            self._source.wake.set()  # where nothing is in flight the captioner waits, and must see that this is over
        return None

    def _next(self) -> _Flight | None:
        if self._following:
            return self._following.pop(0)
        for prompts in self._prompts.values():
            if (ready := prompts.take()) is not None:
                return ready
        work = self._source.take()
        if work is None:
            return None
        how = self._how
        flight = _Flight(
            work.path,
            work.clip,
            _prompt(work, how),
            start=work.start,
            end=work.end,
            timeout=how.timeout,
            spent=work.read_s,
            work=work,
        )
        questions = how.questions_of(work.entry)
        if questions is None or work.error is not None:
            return flight
        flight = replace(flight, whole=work)
        if questions.in_turns:
            return _first_turn(replace(flight, turns=questions.texts))
        self._prompts[work.number] = _beside(flight, questions)
        return self._next()

    def unread(self) -> Iterator[Outcome]:
        """What could not be read."""
        while self._unread:
            flight = self._unread.pop(0)
            yield from self._ended(flight, None, flight.work.error)

    def lost(self) -> Iterator[Outcome]:
        """What the captioner ended without."""
        for flight in [self._flights.pop(key) for key in list(self._flights)]:
            yield from self._ended(flight, None, RuntimeError(f"the stream of {flight.path} ended without a caption"))

    def heard(self, key: Hashable, said: Event | Load | Exception) -> Iterator[Outcome]:
        """What the captioner said."""
        if isinstance(said, Load):
            self._observer.load(said)
            return
        assert isinstance(key, int)
        if isinstance(said, Exception):
            yield from self._ended(self._flights.pop(key), None, said)
            return
        self._observer.event(key, said)
        if isinstance(said, Finished):
            yield from self._ended(self._flights.pop(key), said.caption, None)
        elif isinstance(said, Prefilled) and (work := self._flights[key].work).number in self._prompts:
            self._prompts[work.number].read(work.segment or 0)

    def _ended(self, flight: _Flight, caption: Caption | None, error: Exception | None) -> Iterator[Outcome]:
        outcome = self._outcome(flight, caption, error)
        work = outcome.work
        self._observer.end(flight.key, outcome.caption)
        prompts = self._prompts.get(work.number)
        if prompts is not None:
            prompts.ended()
            if prompts.done:
                del self._prompts[work.number]
        if flight.turns and not work.last:
            self._following.append(_next_turn(flight, outcome.caption.caption))
        elif prompts is None or prompts.done:
            self._source.finished(flight.whole or work, outcome.caption.caption)
        if work.segment is None:
            yield outcome
            return
        early = self._early.setdefault(work.number, {})
        early[work.after] = outcome
        while (due := early.pop(self._told.get(work.number), None)) is not None:
            self._told[work.number] = due.work.segment
            if due.work.last:
                del self._told[work.number], self._early[work.number]
            yield due

    def _outcome(self, flight: _Flight, caption: Caption | None, error: Exception | None) -> Outcome:
        work = replace(flight.work, clip=None)  # whoever keeps outcomes keeps no frames
        try:
            if error is not None:
                raise error
            assert caption is not None
            if work.read_s and "decode_video" not in caption.timings:
                caption = replace(caption, timings={"decode_video": work.read_s, **caption.timings})
            return Outcome(_compared(self._captioner, caption, flight, self._how), None, work)
        except Exception as error:
            known = _as_known(error)
            record = failed(flight.path, known, profile=self._captioner.profile.name)
            if caption is not None:  # it was captioned, then not confirmed: keep what was measured
                record = replace(caption, caption=None, ended=None, lossless=None, error=record.error)
            return Outcome(record, error, work)


def _first_turn(flight: _Flight) -> _Flight:
    """The first turn of a dialogue that is not done yet; an error if one before it has failed."""
    from vidspec.models.prefix_cache import PrefixCache

    done, turns = flight.work.done, flight.turns
    number = next(turn for turn in range(len(turns)) if turn not in done)
    answers = [done[turn] for turn in range(number)]
    said = tuple(Exchange(question, answer or "") for question, answer in zip(turns, answers, strict=False))
    return _turn(replace(flight, earlier=said, cache=PrefixCache()), None, failed=None in answers)


def _next_turn(flight: _Flight, answer: str | None) -> _Flight:
    """What is asked behind an answer; an error if there is none."""
    assert flight.cache is not None
    flight.cache.end()
    said = (*flight.earlier, Exchange(flight.prompt or "", answer or ""))
    return _turn(replace(flight, earlier=said, spent=0.0), flight.work.segment, failed=answer is None)


def _turn(flight: _Flight, after: int | None, *, failed: bool) -> _Flight:
    number, turns = len(flight.earlier), flight.turns
    assert flight.cache is not None
    flight.cache.begin()
    work = replace(
        flight.work,
        segment=number,
        segments=len(turns),
        after=after,
        last=number == len(turns) - 1,
        error=GenerationError(f"{flight.path}: the turn before it failed", kind="turn") if failed else None,
        read_s=flight.work.read_s if after is None else 0.0,
    )
    return replace(flight, prompt=turns[number], question=Question("turn", number), work=work)


def _beside(flight: _Flight, questions: Questions) -> Prompts[_Flight]:
    """The prompts about a clip that are not done yet."""
    numbers = [number for number in range(len(questions.texts)) if number not in flight.work.done]
    flights = []
    for before, number in zip([None, *numbers], numbers, strict=False):
        part = replace(
            flight.work, segment=number, segments=len(questions.texts), after=before, last=number == numbers[-1]
        )
        if before is not None:
            part = replace(part, read_s=0.0)
        prompt, question = questions.texts[number], Question("prompt", number)
        flights.append(replace(flight, prompt=prompt, question=question, spent=part.read_s, work=part))
    return Prompts(flights, apart=flight.work.alone)


def _prompt(work: Work, how: How) -> str | None:
    if how.context and work.previous:
        return CONTEXT.format(prompt=work.prompt or how.prompt, previous=work.previous)
    return work.prompt


def _compared(captioner: Captions, caption: Caption, asked: Request, how: How) -> Caption:
    if not (how.baseline or how.verify):
        return caption
    path = asked.path
    same: Asked = {"start": asked.start, "end": asked.end, "prompt": asked.prompt, "clip": asked.clip}
    if asked.earlier:
        same["earlier"] = asked.earlier
    plain = captioner.baseline(path, **same)
    if how.verify:
        at = first_difference(caption.token_ids, plain.token_ids)
        if at is not None:
            raise GenerationError(
                f"{path}: differs from plain decoding at token {at}: "
                f"{_token(caption.token_ids, at)} instead of {_token(plain.token_ids, at)}",
                stage="verify",
                kind="mismatch",
            )
    if how.baseline:
        speed = caption.speed.copy()
        speed.pop("estimate", None)
        speed["baseline"] = speed_against(caption, plain)
        caption = replace(caption, speed=speed)
    return caption


def _token(ids: Sequence[int], at: int) -> str:
    return str(ids[at]) if at < len(ids) else "the end"


def _as_known(error: Exception) -> VidspecError:
    if isinstance(error, VidspecError):
        return error
    return VidspecError(f"{type(error).__name__}: {error}", kind="internal")
