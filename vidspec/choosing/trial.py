"""Measures on a clip's own beginning what a plan needs: forward times, and what each drafter would have proposed.

The text that has been emitted is read by each drafter in one pass: its choice behind every token, held against the
token that came, is its acceptance. What passes of several clips take is told by copies of this one. Nothing here
changes what the target's cache holds.
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

from vidspec.choosing.plan import Beside, Conditions, Drafting
from vidspec.decoding.run import InTurns
from vidspec.decoding.setup import Setup
from vidspec.drafting.base import Drafter
from vidspec.drafting.chain import ChainDrafter
from vidspec.engine.asks import alone, asked
from vidspec.engine.device import free_memory, synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.engine.slab import KVSpan
from vidspec.errors import GenerationError, ProfileError
from vidspec.pace.passes import PassTimes, pass_times
from vidspec.profile import profiles
from vidspec.profile.sections import TREE

__all__ = ["Candidate", "Trial", "candidates", "pass_seconds"]

#: Rows of the target passes that are timed, how often each, and of trees the rows of a draft pass.
ROWS, REPEATS, WIDE = (1, 4, 8, 17, 26), 2, 8
#: What observing the target is taken to cost, as a share of its prefill: on the first clip it is observed for all.
OBSERVING = 0.04
RANKS = 8
#: Drafters beyond the first are measured as long as that has taken less than this share of a plain caption's time.
BUDGET = 0.25
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
    """Drafters at hand, the most promising first.

    With a draft model it sees the whole video, half of it, a tenth, or nothing; without one the target drafts with a
    tenth of its own cache. A drafter without a model that the profile names comes first. What needs the target's
    attention is left out where that cannot be observed.

    Args:
        starting: the setup in which a clip that is measured begins.
    """
    target, draft = starting.target.model, starting.draft.model if starting.draft else None
    kind = "model" if draft is not None else "self"
    named: list[tuple[str, str, str, float]] = [
        (kind, "whole video", "none", 0.0),
        (kind, "a tenth by attention", "attention", 0.9),
        (kind, "half evenly", "uniform", 0.5),
        (kind, "a tenth evenly", "uniform", 0.9),
        (
            "text_only" if draft is not None else "sparse_kv",
            "no video" if draft is not None else "a tenth by head",
            "none",
            0.0,
        ),
    ]
    found = []
    for drafter, sees, method, alpha in named:
        if draft is None and method == "none" and drafter == "self":
            continue  # a copy of the target costs what it saves
        overrides: dict[str, object] = {"draft.kind": drafter, "prune.method": method, "prune.alpha": alpha}
        try:
            setup = Setup.of(profiles.override(starting.profile, overrides), target, draft, None)
        except ProfileError:
            continue
        name = f"{'model' if draft is not None else 'self'}, {sees}"
        found.append(Candidate(name, overrides, setup, beside=draft is not None))
    if starting.profile.drafts_for_free:
        wanted = starting.profile.draft
        overrides = {"draft.kind": wanted.kind, "draft.options": wanted.options}
        found.insert(0, Candidate(f"{wanted.kind}, from the text", overrides, starting, beside=False))
    return found


class Trial:
    """One measurement in the middle of a clip.

    Args:
        run: a clip under the sequential schedule, between two rounds; its ``opening`` was kept.
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
        run: InTurns,
        token_ids: Sequence[int],
        *,
        first: float,
        overhead: float,
        expected: int,
        ahead: float = 0.0,
        batch: int = 1,
    ) -> None:
        if run.job is None or run.opening is None:
            raise ValueError("the clip has not been read, or its opening was not kept")
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
            if self.drafts and time.perf_counter() - begun > limit:
                break
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
            greedy=self.run.setup.sampling.greedy,
            tree=TREE,
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
                {"name": one.name, "alpha": one.alpha, "tq": one.tq, "read": one.read, "matched": one.ranks[0]}
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
        opening = self.run.opening
        if opening is None or opening.prefix is None:
            return None
        setup, profile = option.setup, option.setup.profile
        start = self._now()
        kept = setup.kept(opening.prefix, opening.taps, self.run.trace)
        drafter = None
        if setup.drafter is not None:
            drafter = alone(asked(setup.drafter.open, replace(opening, profile=profile, kept=kept)))
        read = self._now() - start
        if profile.drafts_with_a_model and profile.shows_the_video:  # the clip was looked at once for all drafters
            lane = self.run.trace.by_worker().get("draft", {})
            read += sum(lane.get(kind, 0.0) for kind in ("preprocess", "vision"))
        if any("attention" in need for need in setup.needs):
            read += OBSERVING * self.first
        alpha = profile.prune.alpha if profile.shows_the_video else 1.0
        if profile.drafts_for_free and drafter is not None:
            found, seconds = self._replayed(drafter)
            self.drafters[option.name] = drafter
            return Drafting(
                option.name, option.overrides, alpha, len(self.tokens) - 1, (found,), seconds, read, None, option.beside
            )
        if not isinstance(drafter, ChainDrafter):
            return None
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
            (WIDE, self._timed(*side, WIDE)),
            option.beside,
        )

    def _replayed(self, drafter: Drafter) -> tuple[int, float]:
        """How many tokens it would have proposed where they came, and seconds of a proposal of one."""
        hits, start = 0, time.perf_counter()
        drafter.begin(self.tokens[0])
        for token in self.tokens[1:]:
            hits += alone(asked(drafter.propose, 1)).tokens == (token,)
            drafter.commit((), token)
        return hits, (time.perf_counter() - start) / (len(self.tokens) - 1)

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
            if not at or time.perf_counter() - begun < limit:
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
