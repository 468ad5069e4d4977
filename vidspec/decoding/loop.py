"""Many clips at once: answers the requests of their decodings, so that a pass of a model serves every clip that waits.

It knows clips as generators and their requests (:mod:`vidspec.engine.requests`), no models, no texts; no torch.

A turn is one pass. Models that draft go first: only when nobody waits for them any more does the target's turn come,
and then it verifies the windows of all. No clip can be passed over: it waits for one window of each of the others, and
for as many rows of their prompts as one pass may have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from vidspec.engine.requests import Chain, Encode, EngineRequest, Forward, Receive
from vidspec.events.wake import WakeEvent

__all__ = ["Done", "Failed", "Loop", "Passing"]

#: Rows of prompts in a pass that others wait for.
SHARED = 512


class Done(NamedTuple):
    """A generator has returned."""

    value: Any


class Failed(NamedTuple):
    """A generator has raised."""

    error: Exception


class Passing(NamedTuple):
    """One pass: rows of how many clips, how many of them of prompts, and what it took.

    A chain that is continued in one go counts as the mean of its ``passes``; ``grows``: a tree grows with it.
    """

    lane: str
    sequences: float
    rows: float
    prompts: int
    seconds: float
    passes: int = 1
    grows: bool = False


@dataclass(eq=False)
class _Clip:
    key: Hashable
    steps: Generator[Any, Any, Any]
    request: Any = None


class Loop:
    """Decodings in flight.

    Args:
        now: the time in seconds, all queued work of devices done.
        told: hears of every pass.
        wake: is waited for where all decodings wait for messages.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        told: Callable[[Passing], None] = lambda passing: None,
        wake: WakeEvent | None = None,
    ) -> None:
        self.now, self.told, self.wake = now, told, wake or WakeEvent()
        self._clips: dict[Hashable, _Clip] = {}
        self._encoded = False

    def __len__(self) -> int:
        return len(self._clips)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._clips

    def begin(self, key: Hashable, steps: Generator[Any, Any, Any]) -> Iterator[tuple[Hashable, Any]]:
        """Take in a decoding; what it says until its first request, as :meth:`turn` has it."""
        if key in self._clips:
            raise ValueError(f"{key!r} is in flight already")
        clip = self._clips[key] = _Clip(key, steps)
        return self._resumed(clip, None)

    def drop(self, key: Hashable) -> None:
        """End a decoding; nothing more is heard of it."""
        clip = self._clips.pop(key, None)
        if clip is not None:
            clip.steps.close()

    def close(self) -> None:
        """End all."""
        for key in list(self._clips):
            self.drop(key)

    def turn(self, patience: float | None = None) -> Iterator[tuple[Hashable, Any]]:
        """One pass, or a wait where nobody requests one; then events, each with the key of its clip.

        The last of a clip is :class:`Done` or :class:`Failed`. To be read to its end: a clip whose answer is not
        taken cannot go on.

        Args:
            patience: seconds to wait at most; None for as long as there is nothing to do.
        """
        received = self._received()
        for clip, answer in received:
            yield from self._resumed(clip, answer)
        if not self._clips:
            return
        waiting: dict[Any, list[_Clip]] = {}
        encodes: list[_Clip] = []
        for clip in self._clips.values():
            match clip.request:
                case Encode():
                    encodes.append(clip)
                case Forward(engine=engine):
                    waiting.setdefault((engine.model, engine.alone), []).append(clip)
                case Receive():
                    pass
                case _:
                    raise TypeError(f"{clip.key!r} asks for {type(clip.request).__name__}, which nobody answers")
        if encodes and not (waiting and self._encoded):  # they and passes take turns
            self._encoded = True
            yield from self._encode(encodes[0])
        elif waiting:
            self._encoded = False
            yield from self._pass(min(waiting.values(), key=lambda clips: clips[0].request.lane))  # draft before target
        elif not received:
            self._wait(patience)

    def _received(self) -> list[tuple[_Clip, Any]]:
        found = []
        for clip in self._clips.values():
            if isinstance(clip.request, Receive):
                messages = clip.request.mailbox.take()
                if messages or time.monotonic() >= clip.request.until:
                    found.append((clip, messages))
        return found

    def _wait(self, patience: float | None) -> None:
        until = min(clip.request.until for clip in self._clips.values()) - time.monotonic()
        self.wake.wait(max(0.0, until if patience is None else min(until, patience)))

    def _encode(self, clip: _Clip) -> Iterator[tuple[Hashable, Any]]:
        begun = self.now()
        try:
            answer = clip.request.call()
        except Exception as error:
            yield from self._resumed(clip, error, throw=True)
            return
        clip.request.seconds = self.now() - begun
        yield from self._resumed(clip, answer)

    def _pass(self, clips: list[_Clip]) -> Iterator[tuple[Hashable, Any]]:
        """One pass over what these clips ask of one model, or one continuation of each where they ask for nothing
        else."""
        engine = clips[0].request.engine
        if engine.alone:  # one sequence at a time: the one that has waited longest
            clips = clips[:1]
            self._clips[clips[0].key] = self._clips.pop(clips[0].key)
        chains = [clip for clip in clips if isinstance(clip.request, Chain)]
        if len(chains) == len(clips) and not engine.alone:
            answered = self._chains(engine, clips)
        else:
            answered = self._rows(engine, clips)
        for clip, answer in answered:
            if clip.key in self._clips:  # or an earlier answer's reader has dropped it
                yield from self._resumed(clip, answer, throw=isinstance(answer, Exception))

    def _rows(self, engine: Any, clips: list[_Clip]) -> list[tuple[_Clip, Any]]:
        company = any(not clip.request.divisible for clip in clips) or len(self._clips) > len(clips)
        left = min(SHARED, engine.chunk) if company else engine.chunk
        parts: list[tuple[_Clip, list[Any]]] = []
        prompts = 0
        for clip in clips:
            if clip.request.divisible and left <= 0:
                continue
            try:
                adds = list(clip.request.parts(left))
            except Exception as error:
                return [(clip, error)]  # the others ask again
            if clip.request.divisible:
                count = sum(map(len, adds))
                left, prompts = left - count, prompts + count
            parts.append((clip, adds))
        batch = [rows for _, adds in parts for rows in adds]
        begun = self.now()
        try:
            passed = engine.run(batch)
        except Exception as error:
            if len(parts) == 1:
                return [(parts[0][0], error)]
            return [answer for clip, _ in parts for answer in self._rows(engine, [clip])]
        answered: list[tuple[_Clip, Any]] = []
        at = 0
        for clip, adds in parts:
            try:
                if clip.request.took(passed[at : at + len(adds)]):
                    answered.append((clip, clip.request.answer))
            except Exception as error:  # of this clip: the pass is good for the others
                answered.append((clip, error))
            at += len(adds)
        seconds = self.now() - begun
        for clip, _ in parts:
            clip.request.seconds += seconds
        rows, grows = sum(map(len, batch)), any(clip.request.grows for clip, _ in parts)
        self.told(Passing(parts[0][0].request.lane, len(parts), rows, prompts, seconds, grows=grows))
        return answered

    def _chains(self, engine: Any, clips: list[_Clip]) -> list[tuple[_Clip, Any]]:
        begun = self.now()
        try:
            found = engine.greedy([(clip.request.span, clip.request.token_ids, clip.request.gamma) for clip in clips])
        except Exception as error:
            if len(clips) == 1:
                return [(clips[0], error)]
            return [answer for clip in clips for answer in self._chains(engine, [clip])]
        seconds = self.now() - begun
        steps = max(clip.request.gamma for clip in clips)
        for clip in clips:
            clip.request.seconds = seconds
        share = sum(clip.request.gamma for clip in clips) / steps
        self.told(Passing(clips[0].request.lane, share, share, 0, seconds / steps, steps))
        return [(clip, [*clip.request.answer, *more]) for clip, more in zip(clips, found, strict=True)]

    def _resumed(self, clip: _Clip, answer: Any, *, throw: bool = False) -> Iterator[tuple[Hashable, Any]]:
        """Go on with a clip until its next request; what it says meanwhile."""
        while True:
            try:
                said = clip.steps.throw(answer) if throw else clip.steps.send(answer)
            except StopIteration as end:
                self._clips.pop(clip.key, None)
                yield clip.key, Done(end.value)
                return
            except Exception as error:
                self._clips.pop(clip.key, None)
                yield clip.key, Failed(error)
                return
            answer, throw = None, False
            if isinstance(said, EngineRequest):
                if isinstance(said, Receive):
                    said.mailbox.wake = self.wake
                clip.request = said
                return
            yield clip.key, said
            if self._clips.get(clip.key) is not clip:
                return
