"""Measures on a clip's own beginning what a plan needs: forward times, and what each drafter would have proposed.

The text that has been emitted is read by each drafter in one pass: its choice behind every token, held against the
token that came, is its acceptance. A drafter that is not a chain of a model's choices drafts the text once more, window
by window, each accepted as far as it came true. What passes of several clips take is told by copies of this one.
Nothing here changes what the target's cache holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Any

import torch

from vidspec.choosing.plan import PRIOR, Beside, Conditions, Drafting, Replay
from vidspec.config import profiles
from vidspec.decoding.run import SequentialRun
from vidspec.decoding.setup import Setup
from vidspec.draft_length.pace import Pace
from vidspec.draft_length.passes import PassTimes, pass_times
from vidspec.drafting.base import Draft, Drafter
from vidspec.drafting.chain import ChainDrafter
from vidspec.engine.device import free_memory, synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.requests import alone, asked
from vidspec.engine.rows import Rows
from vidspec.engine.slab import KVSpan
from vidspec.errors import GenerationError, ProfileError
from vidspec.registry import drafters

__all__ = ["Candidate", "Trial", "candidates", "pass_seconds"]

#: Rows of the target passes that are timed, how often each, and of trees the rows of a draft pass.
ROWS, REPEATS, WIDE = (1, 4, 8, 17, 26), 2, 8
#: What observing the target is taken to cost, as a share of its prefill: on the first clip it is observed for all.
OBSERVING = 0.04
RANKS = 8
#: Drafters with a model beyond the first are measured as long as that has taken less than this share of a plain
#: caption's time.
BUDGET = 0.25
#: What a draft model is shown of the video where a pruner decides: in words, the pruner and its share, the most
#: promising first. What another sees.
SHOWN = (
    ("whole video", "none", 0.0),
    ("a tenth by attention", "attention", 0.9),
    ("half evenly", "uniform", 0.5),
    ("a tenth evenly", "uniform", 0.9),
)
SEEN = {"nothing": "no video", "own": "entries of its own choice", "all": "the video in its own way"}
#: Clips, and rows of each, in the packed passes that are timed where several clips may be decoded at once, ...
PACKS = ((4, (1, 5)), (16, (3,)))
#: ... those beyond the first as long as that has taken less than this share of a plain caption's time; their copies of
#: keys and values may take this share of the free memory.
PACKING, SHARE = 0.15, 0.5


@dataclass(frozen=True)
class Candidate:
    """A drafter that could be taken.

    Attributes:
        name: for people.
        overrides: dotted keys of its profile.
        setup: its parts, in turns.
        beside: whether a worker of its own can have it.
    """

    name: str
    overrides: dict[str, object]
    setup: Setup
    beside: bool


def candidates(starting: Setup) -> list[Candidate]:
    """Drafters at hand, of all that are registered, the most promising first.

    Those without a model cost no pass; one that the profile names comes first. The others draft with the draft model if
    there is one, else on the target's weights. What the loaded models cannot do is left out.

    Args:
        starting: the setup in which a clip that is measured begins.
    """
    target, draft, wanted = starting.target.model, starting.draft, starting.profile.draft
    found: list[tuple[int, Candidate]] = []
    for kind in drafters.names():
        own = kind == wanted.kind and starting.profile.drafts_for_free
        for rank, sees, method, alpha in _views(starting, kind):
            overrides: dict[str, object] = {"draft.kind": kind, "prune.method": method, "prune.alpha": alpha}
            overrides |= {"draft.options": wanted.options} if own else {}
            try:
                profile = profiles.override(starting.profile, overrides)
                setup = starting if own else Setup.of(profile, target, draft.model if draft else None, None)
            except ProfileError:
                continue
            remote = setup.drafter is not None and setup.drafter.remote
            one = Candidate(f"{kind}, {sees}", overrides, setup, beside=remote and draft is not None)
            found.append((0 if own else rank, one))
    return [one for _, one in sorted(found, key=lambda ranked: ranked[0])]


def _views(starting: Setup, kind: str) -> list[tuple[int, str, str, float]]:
    """What a drafter might be shown: how soon it is tried, in words, and the pruner with its share.

    Several contexts at once take more passes than they save, and a target that sees everything costs as a draft what it
    saves. One that chooses by itself when its model drafts has that see as much as may be.
    """
    try:
        facts = profiles.override(starting.profile, {"draft.kind": kind, "prune.method": "none"}).drafter
    except ProfileError:
        return []
    if facts is None or facts.contexts:
        return []
    if facts.model is None:
        return [(2, "from the text", "none", 0.0)]
    if facts.model != ("draft" if starting.draft else "target"):
        return []
    if facts.sees != "kept":
        return [(5, SEEN[facts.sees], "none", 0.0)]
    first, *others = SHOWN if starting.draft else SHOWN[1:]
    return [(3, *first)] if facts.paces else [(1, *first), *((4, *one) for one in others)]


class Trial:
    """One measurement in the middle of a clip.

    Args:
        run: a clip under the sequential schedule, between two rounds; its ``context`` was kept.
        token_ids: emitted so far, more than one.
        first: seconds from the opened file to the first token.
        overhead: seconds of a round beyond its draft and its pass.
        expected: tokens of a whole text.
        ahead: seconds of ``first`` that a feed spends while other clips are decoded.
        batch: how many clips may be decoded at once.

    Attributes:
        drafts: what was found of each drafter.
        drafters: by name, ready to go on with this text.
        most: how many clips may be decoded at once, by what memory allows of ``batch``.
    """

    def __init__(
        self,
        run: SequentialRun,
        token_ids: Sequence[int],
        *,
        first: float,
        overhead: float,
        expected: int,
        ahead: float = 0.0,
        batch: int = 1,
    ) -> None:
        if run.job is None or run.context is None:
            raise ValueError("the clip has not been read, or its context was not kept")
        self.run, self.tokens = run, list(token_ids)
        self.first, self.overhead, self.expected, self.ahead = first, overhead, expected, ahead
        self.drafts: list[Drafting] = []
        self.drafters: dict[str, Drafter] = {}
        self._sides: dict[str, tuple[Engine, KVSpan]] = {}  # of those that draft with a model
        self._target = (run.setup.target, run.job.target.span)
        self._wait = synchroniser(run.setup.target.model.device)
        self.verify_s: dict[int, float] = {}
        self.packed_s: dict[tuple[int, int], float] = {}
        self.most = batch

    def measure(self, options: Sequence[Candidate], threads: tuple[int, int] | None, shared: bool | None) -> Conditions:
        """Time everything.

        Args:
            options: see :func:`candidates`.
            threads: of target and draft under the parallel schedule on a CPU; None elsewhere.
            shared: whether both would work on one device; None without the parallel schedule.
        """
        begun = time.perf_counter()
        self.verify_s = self._passes(ROWS)
        limit = BUDGET * (self.first + self.expected * self.verify_s[1])
        for option in options:
            if self.drafts and time.perf_counter() - begun > limit and not option.setup.profile.drafts_for_free:
                continue
            found = self._drafting(option)
            if found is not None:
                self.drafts.append(found)
        verify_many = self._packed() if self.most > 1 else None
        rule = self.run.setup.acceptance
        return Conditions(
            first=self.first,
            verify=pass_times(list(self.verify_s.items())),
            overhead=self.overhead,
            tokens=self.expected,
            strict=1 - rule.unjudged if rule else 1.0,
            nodes=ROWS[-1] - 1 if self._target[0].model.decoder.cached is None else 0,
            beside=None if shared is None else self._beside(threads, shared),
            ahead=self.ahead,
            verify_many=verify_many,
        )

    def facts(self) -> dict[str, Any]:
        """What was measured, JSON values in seconds."""
        packed = {f"{clips}x{rows}": seconds for (clips, rows), seconds in self.packed_s.items()}
        return {
            "judged": len(self.tokens) - 1,
            "first": self.first,
            "tp": {str(rows): seconds for rows, seconds in self.verify_s.items()},
            "drafts": [
                {
                    "name": one.name,
                    "alpha": one.alpha,
                    "tq": one.tq,
                    "read": one.read,
                    "matched": one.replay.accepted if one.replay else one.ranks[0],
                }
                for one in self.drafts
            ],
            **({"tp_packed": packed, "ahead": self.ahead} if packed else {}),
        }

    def _passes(self, rows: Sequence[int]) -> dict[int, float]:
        taken: dict[int, list[float]] = {n: [] for n in rows}
        for _ in range(REPEATS):
            for n in rows:
                taken[n].append(self._timed(*self._target, n))
        least = 0.0
        found: dict[int, float] = {}
        for n in rows:  # noise of a small machine must not make a wider pass look cheaper
            least = found[n] = max(least, min(taken[n]))
        return found

    def _drafting(self, option: Candidate) -> Drafting | None:
        context = self.run.context
        if context is None or context.prefix is None:
            return None
        setup, profile = option.setup, option.setup.profile
        start = self._now()
        kept = setup.kept(context.prefix, context.taps, self.run.trace)
        drafter = None
        if setup.drafter is not None:
            drafter = alone(asked(setup.drafter.open, replace(context, profile=profile, kept=kept)))
        read = self._now() - start
        if profile.drafts_with_a_model and profile.shows_the_video:  # the clip was looked at once for all drafters
            lane = self.run.trace.by_worker().get("draft", {})
            read += sum(lane.get(kind, 0.0) for kind in ("preprocess", "vision"))
        if any("attention" in need for need in setup.needs):
            read += OBSERVING * self.first
        alpha = profile.prune.alpha if profile.shows_the_video else 1.0
        if drafter is None or drafter.learns or drafter.tapped:  # nobody verifies its windows again
            return None
        if not isinstance(drafter, ChainDrafter):
            return self._replayed(option, drafter, alpha, read)
        best = alone(drafter.follow(self.tokens)).topk(RANKS, dim=-1).indices
        wanted = torch.tensor(self.tokens[1:], device=best.device)
        hits = (best == wanted[:, None]).sum(0).tolist()
        self.drafters[option.name] = drafter
        side = self._sides[option.name] = (drafter.engine, drafter.span)
        return Drafting(
            option.name,
            option.overrides,
            alpha,
            len(self.tokens) - 1,
            tuple(hits),
            median(self._timed(*side, 1) for _ in range(2 * REPEATS + 1)),
            read,
            (WIDE, self._timed(*side, WIDE)) if setup.drafter and setup.drafter.trees else None,
            option.beside,
        )

    def _replayed(self, option: Candidate, drafter: Drafter, alpha: float, read: float) -> Drafting:
        """The text once more, in windows of the drafter's own or of those that pay by what was measured so far."""
        model = option.setup.drafter is not None and option.setup.drafter.model is not None
        like = next((one for one in self.drafts if one.replay is None), None) if model else None
        verify, pace = pass_times(list(self.verify_s.items())), Pace()
        window = pace.window()
        pace.learn(verify, like.tq if like else 0.0, like.share() if like else PRIOR)
        paced = drafter.paces
        if paced:
            drafter.set_pace(pace, window)
        drafter.begin(self.tokens[0])
        at, windows, accepted, seconds = 1, [], 0, 0.0
        while at < len(self.tokens):
            longest = option.setup.window if paced else max(1, window.gamma)  # one that rests would say nothing
            gamma = min(longest, len(self.tokens) - at - 1)
            before, start = drafter.forwards, self._now()
            draft = alone(asked(drafter.propose, gamma))
            taken = self._now() - start
            path = _followed(draft, self.tokens[at:])
            at += len(path) + 1
            drafter.commit(path, self.tokens[at - 1])
            windows.append(len(draft.tokens))
            accepted, seconds = accepted + len(path), seconds + taken
            if passes := drafter.forwards - before:
                pace.passed("draft", 1, 1, taken / passes, passes)
            pace.passed("target", 1, len(draft.tokens) + 1, verify(len(draft.tokens) + 1))
            if not paced:
                window.judged(len(draft.tokens), len(path))
        self.drafters[option.name] = drafter
        again, judged = Replay(tuple(windows), accepted, seconds), len(self.tokens) - 1
        if like is None:
            tq = seconds / max(1, drafter.forwards if model else len(windows))
            like = Drafting("", {}, 0.0, judged, (accepted,), tq, 0.0)
        elif like.name in self._sides:
            self._sides[option.name] = self._sides[like.name]
        own: dict[str, Any] = {"name": option.name, "overrides": option.overrides, "alpha": alpha, "read": read}
        return replace(like, **own, tq_wide=None, beside=False, replay=again)

    def _packed(self) -> Callable[[int, int], float] | None:
        """Seconds of a target pass by clips and by the rows of all; those of drafts go to ``drafts``.

        None, and ``most`` is 1, where passes are not shared or no second clip fits into memory.
        """
        while self.most > 1 and not self._fits(self.most):
            self.most //= 2
        begun = time.perf_counter()
        limit = PACKING * (self.first + self.expected * self.verify_s[1])
        packs = [(min(clips, self.most), widths) for clips, widths in PACKS]
        self.packed_s = self._together(*self._target, *packs[0])
        if not self.packed_s:
            self.most = 1
            return None
        for clips, widths in packs[1:]:
            if time.perf_counter() - begun < limit:
                self.packed_s |= self._together(*self._target, clips, widths)
        clips, many = packs[0][0], packs[-1][0]
        like = clips, max(1.0, self.packed_s[clips, 1] / self.verify_s[1])
        for at, one in enumerate(self.drafts):
            if one.name not in self._sides:
                continue
            found: dict[tuple[int, int], float] = {}
            if not at or (one.replay is None and time.perf_counter() - begun < limit):
                found = self._together(*self._sides[one.name], many, (1,))
            if found:
                like = many, max(1.0, found[many, 1] / one.tq)
            # Who was not asked is taken to be as the one before, the first as the target.
            self.drafts[at] = replace(one, tq_many=pass_times([(1, one.tq), (like[0], like[1] * one.tq)]))
        times = PassTimes()
        measured = {(1, rows): seconds for rows, seconds in self.verify_s.items()} | self.packed_s
        for (clips, rows), seconds in measured.items():
            for _ in range(3):  # as often as makes it count in full
                times.heard(clips, clips * rows, seconds)
        by_rows = lru_cache(times.by_rows)
        return lambda clips, rows: by_rows(clips)(rows)

    def _fits(self, clips: int) -> bool:
        """Whether so many clips like this one find memory, with what the drafters of one read."""
        sides = [self._target, *list(self._sides.values())[:1]]
        free = free_memory(self.run.setup.target.model.device)
        return free is None or SHARE * free >= sum(span.slab.wants((clips - 1) * span.room) for _, span in sides)

    def _together(
        self, engine: Engine, span: KVSpan, clips: int, widths: Sequence[int]
    ) -> dict[tuple[int, int], float]:
        """Seconds of passes over so many copies of a sequence, by clips and the rows of each; none without room."""
        if engine.alone or clips < 2:
            return {}
        room, everything = span.length + max(widths), torch.arange(span.length)
        with ExitStack() as stack:
            try:
                span.slab.open((clips - 1) * room).free()  # grows once
                spans = [span]
                while len(spans) < clips:
                    spans.append(span.select(everything, room))
                    stack.callback(spans[-1].free)
                return {
                    (clips, rows): min(self._pass_s(engine, spans, rows) for _ in range(REPEATS)) for rows in widths
                }
            except (GenerationError, torch.OutOfMemoryError):
                return {}

    def _beside(self, threads: tuple[int, int] | None, shared: bool) -> Beside:
        verify = pass_times(list(self.verify_s.items()))
        if threads is None:
            return Beside(verify, shared=shared)
        whole = torch.get_num_threads()
        try:
            torch.set_num_threads(threads[0])
            rows = (ROWS[0], ROWS[2], ROWS[-1])
            fewer = self._passes(rows)
            torch.set_num_threads(threads[1])
            slower = 1.0
            for one in self.drafts:
                if side := self._sides.get(one.name):
                    slower = median(self._timed(*side, 1) for _ in range(2 * REPEATS + 1)) / one.tq
                    break
        finally:
            torch.set_num_threads(whole)
        return Beside(
            pass_times(list(fewer.items())), max(1.0, slower), max(1.0, fewer[rows[-1]] / self.verify_s[rows[-1]])
        )

    def _now(self) -> float:
        self._wait()
        return time.perf_counter()

    def _timed(self, engine: Engine, span: KVSpan, rows: int) -> float:
        return self._pass_s(engine, [span], rows)

    def _pass_s(self, engine: Engine, spans: Sequence[KVSpan], rows: int) -> float:
        return pass_seconds(engine, spans, rows, self.tokens[-1])


def _followed(draft: Draft, token_ids: Sequence[int]) -> list[int]:
    """The nodes of a window that are the text, of which one token is known behind them."""
    path: list[int] = []
    for token in token_ids[:-1]:
        here = [node for node in draft.children(path[-1] if path else -1) if draft.tokens[node] == token]
        if not here:
            break
        path += here[:1]
    return path


def pass_seconds(
    engine: Engine,
    spans: Sequence[KVSpan],
    rows: int,
    token: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of a pass of so many rows of each sequence, which then are as they were.

    Args:
        engine: the model's.
        spans: the sequences, with room for the rows.
        rows: of each.
        token: what all rows are.
        clock: seconds.
    """
    wait, lengths = synchroniser(engine.model.device), [span.length for span in spans]
    wait()
    start = clock()
    engine.run([Rows(span, [token] * rows) for span in spans])
    wait()
    seconds = clock() - start
    for span, length in zip(spans, lengths, strict=True):
        span.rollback(length)
    return seconds
