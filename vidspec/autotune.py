"""``auto``: races a few lossless profiles on the beginning of one clip and keeps the fastest for the clips that follow.

``schedule.kind: race`` races whole profiles. Clips are captioned by the first candidate until a race costs at most
``SHARE`` of the time that clips have taken, so a lone clip is never raced. Then every candidate in turn decodes the
beginning of the next clip's text, by itself and without other clips in its passes. Prompts are read once: candidates
and the clip copy the sequences that the first of them left (:class:`~vidspec.models.prefix_cache.PrefixCache`).

``schedule.kind: auto`` races the profile's own drafter in turns with the target against the same beside the target,
on the first clip. Every candidate writes the target's own text, whatever is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from vidspec.config import profiles
from vidspec.config.profiles import Profile
from vidspec.decoding.decode import decode
from vidspec.decoding.loop import Loop, Passing
from vidspec.decoding.sequence import Choice, Sequence
from vidspec.decoding.setup import Setup
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.draft_length.pace import Pace
from vidspec.engine.device import synchroniser
from vidspec.engine.requests import Steps
from vidspec.errors import GenerationError, ProfileError
from vidspec.events.trace import Trace
from vidspec.models.base import VideoLanguageModel
from vidspec.models.head import Head
from vidspec.models.image_captioner import ImageCaptioner
from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.request import Request

__all__ = ["Autotune", "Candidate", "Result", "best", "candidates"]

#: Tokens that each candidate decodes: in the first turn, which warms up, and in each that counts.
WARM_UP, STRETCH = 8, 32
#: Candidates that reach this share of the best rate have another turn; the better of a candidate's two counts.
CLOSE = 0.9
#: Rates within this share of the best are equal: the first candidate of these is taken. A race is run alone; chains,
#: which come first and have the fewest rows, gain most once clips share passes.
TIE = 0.05
#: What a race may cost, as a share of the time that all clips so far have taken.
SHARE = 0.02
#: Shorter texts decide nothing; so many clips are raced at most.
SHORTEST, RACES = 16, 3

_CHAIN: dict[str, object] = {"draft.topology": "chain", "draft.gamma": "auto", "schedule.kind": "sequential"}
_LOOKED_UP: dict[str, dict[str, object]] = {
    "suffix": {**_CHAIN, "draft.kind": "suffix", "draft.precision": "auto"},
    "ngram": {**_CHAIN, "draft.kind": "ngram", "draft.precision": "auto"},
}
#: Packaged profiles, as they change a profile that leaves its schedule to a race: with a draft model, ...
_MODEL: dict[str, dict[str, object]] = {
    "vanilla-sd+draft.gamma=auto": {**_CHAIN, "draft.kind": "model"},
    "sd-adaptive-tree": {**_CHAIN, "draft.kind": "model", "draft.topology": "adaptive"},
    "hybrid": {**_CHAIN, "draft.kind": "hybrid"},
}
#: ... where the draft model has a device of its own, ...
_BESIDE: dict[str, dict[str, object]] = {
    "pearl-syn-prefill": {
        **_MODEL["vanilla-sd+draft.gamma=auto"],
        "schedule.kind": "parallel",
        "schedule.prefill": "parallel",
    },
}
#: ... without a draft model, ...
_NO_MODEL: dict[str, dict[str, object]] = {
    **_LOOKED_UP,
    "self-sd+draft.gamma=auto": {**_CHAIN, "draft.kind": "self", "prune.method": "uniform", "prune.alpha": 0.9},
    "self-int8+draft.gamma=auto": {**_CHAIN, "draft.kind": "self", "draft.precision": "int8"},
}
#: ... and everywhere.
_PLAIN: dict[str, dict[str, object]] = {
    "ar": {"draft.kind": "none", "draft.gamma": 5, "draft.precision": "auto", "schedule.kind": "autoregressive"},
}
#: The two ways of ``schedule.kind: auto``.
_WAYS: dict[str, dict[str, object]] = {
    "in turns": {"schedule.kind": "sequential", "schedule.prefill": "sequential"},
    "at the same time": {"schedule.kind": "parallel"},
}


@dataclass(frozen=True)
class Candidate:
    """A way to decode.

    Attributes:
        name: of the packaged profile, with the key that differs.
        setup: its parts.
    """

    name: str
    setup: Setup

    @property
    def schedule(self) -> str:
        """``sequential``, ``parallel`` or ``autoregressive``."""
        return self.setup.profile.schedule.kind


@dataclass(frozen=True)
class Result:
    """A race that is over.

    Attributes:
        chosen: the candidate that is kept.
        rates: tokens per second of all by name, the default first; None of one that failed.
    """

    chosen: Candidate
    rates: dict[str, float | None]

    @property
    def why(self) -> str:
        """In a sentence."""
        told = [f"{name} {'failed' if rate is None else f'{rate:.0f} tokens/s'}" for name, rate in self.rates.items()]
        return f"{self.chosen.name} by a race over {STRETCH} tokens of one clip: {', '.join(told)}"


def best(rates: Iterable[float | None]) -> int:
    """Index of the first rate that is the highest or at most ``TIE`` lower; 0 if all failed (None)."""
    known = [rate or 0.0 for rate in rates]
    return next(i for i, rate in enumerate(known) if rate >= (1 - TIE) * max(known))


def candidates(
    profile: Profile,
    target: VideoLanguageModel,
    draft: VideoLanguageModel | None,
    describe: ImageCaptioner | None = None,
    head: Head | None = None,
    slot: DraftSlot | None = None,
) -> list[Candidate]:
    """What is raced for a profile, the default first; what the models cannot do is left out.

    Args:
        profile: whose ``schedule.kind`` is ``race`` or ``auto``.
        target, draft, describe, head: see :class:`~vidspec.captioner.Captioner`.
        slot: the draft's process, where it has a device of its own or the schedule is chosen.

    Raises:
        ProfileError: the default cannot be had.
    """
    if profile.chooses:
        wanted = _WAYS
    else:
        wanted = {**_MODEL, **(_BESIDE if slot is not None else {})} if draft is not None else _NO_MODEL
        if profile.drafts_with_a_head:
            wanted = _LOOKED_UP
        if profile.draft.kind not in {one["draft.kind"] for one in wanted.values()}:
            if profile.drafts_for_free or profile.drafts_with_a_head:  # the drafter that is named comes first
                wanted = {profile.draft.kind: _CHAIN, **wanted}
        elif profile.drafts_for_free:
            wanted = {profile.draft.kind: wanted[profile.draft.kind], **wanted}
        wanted = {**wanted, **_PLAIN}
    found: list[Candidate] = []
    for name, overrides in wanted.items():
        try:
            one = profiles.override(profile, overrides)
            own_draft = None if one.concurrent else draft
            own_head = head if one.drafts_with_a_head else None
            found.append(Candidate(name, Setup.of(one, target, own_draft, describe, own_head, slot)))
        except ProfileError:
            if not found:
                raise
    return found


class Autotune:
    """Captions clips by the default until a race is worth its time, then by the winner.

    Args:
        profile: whose ``schedule.kind`` is ``race`` or ``auto``.
        target, draft, describe, head: see :class:`~vidspec.captioner.Captioner`.
        slot: the draft's process for the parallel schedule; None where no candidate needs one.

    Attributes:
        candidates: what is raced, the default first.
        result: of the race; None before.
    """

    def __init__(
        self,
        profile: Profile,
        target: VideoLanguageModel,
        draft: VideoLanguageModel | None,
        slot: DraftSlot | None,
        describe: ImageCaptioner | None = None,
        head: Head | None = None,
    ) -> None:
        self.profile = profile
        self.candidates = candidates(profile, target, draft, describe, head, slot)
        self._wait = synchroniser(target.device, *([draft.device] if draft is not None else []))
        self.forget()

    def forget(self) -> None:
        """As before the first clip."""
        self.result: Result | None = None
        first = self.candidates[0]
        self._now = replace(first, setup=_fresh(first.setup))
        self._races = self._tokens = 0
        self._decode_s = self._spent_s = 0.0

    @property
    def starting(self) -> Setup:
        """With what a clip begins before there was a race."""
        return self.candidates[0].setup

    @property
    def pace(self) -> Pace | None:
        """Chooses the windows of clips that begin now."""
        return self._now.setup.pace

    def decode(self, sequence: Sequence) -> Steps[None]:
        """The next clip, by which is learned what clips take; a race is timed as ``plan``."""
        if self._worthwhile(sequence.job):
            with sequence.trace.span("plan"):
                cache = self._race(replace(sequence.job, cache=None))
            if sequence.job.cache is None and self._now.schedule != "parallel":
                sequence.job = replace(sequence.job, cache=cache)  # the prompts that the race has read
        sequence.attempt(self._now.setup, Choice(self._now.schedule, self._why))
        yield from decode(sequence)
        self._tokens += len(sequence.token_ids)
        self._decode_s += sequence.rounds[-1].elapsed
        self._spent_s += sequence.finished

    @property
    def _why(self) -> str:
        if self.result is not None:
            return f"{self._now.schedule}: {self.result.why}" if self.profile.chooses else self.result.why
        if self._races >= RACES:
            return f"{self._now.name}: texts are too short for a race"
        return f"{self._now.name}: a race is held once it costs less than {SHARE:.0%} of the time spent on clips"

    def _worthwhile(self, request: Request) -> bool:
        """Whether candidates are raced on this clip; the next turn of a dialogue goes on as the last one did."""
        if self.result is not None or self._races >= RACES:
            return False
        if self.profile.chooses:
            return True
        if not self._tokens or (request.question is not None and request.question.kind == "turn"):
            return False
        tokens = len(self.candidates) * (WARM_UP + STRETCH) + 2 * STRETCH
        return tokens * self._decode_s / self._tokens <= SHARE * self._spent_s

    def _race(self, request: Request) -> PrefixCache | None:
        """Race on the beginning of a clip; what the candidate that is kept left of the prompts, None if nothing."""
        self._races += 1
        caches: dict[str, PrefixCache] = {}
        racing = [replace(one, setup=_fresh(one.setup)) for one in self.candidates]
        rates: list[float | None] = [0.0] * len(racing)
        longest = 0
        for turn, tokens in enumerate((WARM_UP, STRETCH, STRETCH)):
            for i, one in enumerate(racing):
                fastest = max(rate or 0.0 for rate in rates)
                rate = rates[i]
                if rate is None or (turn == 2 and rate < CLOSE * fastest):
                    continue
                try:
                    emitted, seconds = self._stretch(one, request, caches, tokens)
                except (GenerationError, torch.OutOfMemoryError):
                    rates[i] = None  # nothing is chosen that does not work
                    continue
                longest = max(longest, emitted)
                if turn:
                    rates[i] = max(rate, emitted / seconds if seconds > 0 else 0.0)
        if longest >= SHORTEST or self.profile.chooses:
            at = best(rates)
            self.result = Result(racing[at], {one.name: rate for one, rate in zip(racing, rates, strict=True)})
            if at:  # else its windows go on with what they learned of clips in flight
                self._now = racing[at]
        found = caches.get(_seen_by(self._now))
        if found is not None:
            found.begin()
        return found

    def _stretch(
        self, one: Candidate, request: Request, caches: dict[str, PrefixCache], tokens: int
    ) -> tuple[int, float]:
        """Tokens behind the first that a candidate decodes of a clip's beginning, and the seconds they took.

        It is left before its text ends, so that drafters which remember texts do not remember this one.

        Args:
            one: the candidate.
            request: the clip.
            caches: what was read of its prompts, by what drafts see of it.
            tokens: to decode at least, if the text has as many.
        """
        if not one.setup.profile.concurrent and not self.profile.chooses:
            known = caches.setdefault(_seen_by(one), PrefixCache())
            known.begin()
            request = replace(request, cache=known)
        pace = one.setup.pace

        def passed(passing: Passing) -> None:
            if pace is not None and not passing.prompts:
                rows = round(passing.sequences), round(passing.rows), passing.seconds
                pace.passed(passing.lane, *rows, passing.passes, passing.grows)

        sequence = Sequence(request, Trace(self._wait))
        sequence.attempt(one.setup)
        sequence.steps = decode(sequence)
        loop = Loop(passed=passed, synchronise=self._wait)
        try:
            loop.begin(sequence)
            while not sequence.over:
                for _ in loop.turn(1.0):
                    pass
                ids = sequence.token_ids
                if len(ids) > tokens or (ids and sequence.limits.over(ids)):
                    break
            if sequence.error is not None:
                raise sequence.error
            seconds = sequence.rounds[-1].elapsed if sequence.rounds else 0.0
            return max(0, len(sequence.token_ids) - 1), seconds
        finally:
            loop.close()


def _fresh(setup: Setup) -> Setup:
    """With windows that know nothing yet."""
    return replace(setup, pace=Pace()) if setup.pace is not None else setup


def _seen_by(one: Candidate) -> str:
    """Candidates that show their draft the same of the video can share what was read."""
    return one.setup.profile.prune.method
