"""Which lossless way to decode is fastest on this machine, from a short measurement. Pure formulas, no torch.

A way is a drafter with what it sees, a topology, a schedule, a window, and how many clips are decoded at once; its
speed-up follows from the forward times and the acceptance that were measured, by the formulas of
:mod:`vidspec.draft_length.speed`.

Of B clips at once a pass carries the rows of all: windows are drafted in lockstep and verified in T_p(B, B (gamma+1)).
The device then spends p + D / S on a clip: p on its vision and its prompts, D on its text in plain decoding, which is
the B-th part of passes of B rows; S is the speed-up in decoding with B clips.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from vidspec.draft_length import speed
from vidspec.draft_length.gamma import settled
from vidspec.draft_length.trees import DEEPEST

__all__ = [
    "FEWER",
    "GAIN",
    "Beside",
    "Conditions",
    "Drafting",
    "Plan",
    "Replay",
    "Way",
    "decide",
    "decide_folder",
    "favoured",
    "folder",
    "ways",
]

#: What a way has to gain over plain decoding, end to end, to be chosen.
GAIN = 1.02
#: What hiding more of the video from a draft has to gain, end to end: a text begins with what any draft guesses, and
#: its first tokens tell acceptances apart no better than this.
WORTH = 0.05
#: What more clips at once have to gain in clips per second: they take memory, and the first text comes later.
FEWER = 0.02
#: Tokens of acceptance 0.7 that are added to what was seen, because a short text says little.
PRIOR_TOKENS, PRIOR = 2.0, 0.7


@dataclass(frozen=True)
class Replay:
    """The beginning of a text once more, in a drafter's own windows.

    Attributes:
        windows: tokens proposed in each round.
        accepted: of all of them.
        seconds: that the proposals took.
    """

    windows: tuple[int, ...]
    accepted: int
    seconds: float


@dataclass(frozen=True)
class Drafting:
    """One drafter on the beginning of a text, with what it sees of the video.

    Attributes:
        name: for people.
        overrides: dotted keys of a profile.
        alpha: share of the visual tokens it does not see.
        judged: tokens of the text it was asked for.
        ranks: how often the text's token was its first, second, ... choice; that of the model in it, if it is replayed.
        tq: seconds of a pass on one token.
        tq_wide: (rows, seconds) of a pass on several, for trees; None if it drafts no tree.
        read: seconds until it has read its prompt, its own vision tower and observing the target included.
        beside: whether the parallel schedule can have it.
        tq_many: seconds of a pass on one token of each of so many clips; None where each clip takes a pass of its own.
        replay: of those that do not draft a token with each pass of a model, in place of what ranks foretell.
    """

    name: str
    overrides: Mapping[str, object]
    alpha: float
    judged: int
    ranks: tuple[int, ...]
    tq: float
    read: float
    tq_wide: tuple[int, float] | None = None
    beside: bool = True
    tq_many: Callable[[int], float] | None = None
    replay: Replay | None = None

    def share(self, rank: int = 0) -> float:
        """Probability that the text's token is the choice of this rank; the first one's is drawn towards ``PRIOR``."""
        found = self.ranks[rank] if rank < len(self.ranks) else 0
        if rank:
            return found / (self.judged + PRIOR_TOKENS)
        return (found + PRIOR_TOKENS * PRIOR) / (self.judged + PRIOR_TOKENS)


@dataclass(frozen=True)
class Beside:
    """What changes where draft and target work at the same time.

    Attributes:
        verify: seconds of a target pass by rows, with the threads it then has.
        slower_draft: seconds of a draft pass over those of one that has the machine to itself.
        slower_read: seconds of the target's prefill likewise.
        shared: one memory-bound device for both, where a round costs the sum.
    """

    verify: Callable[[int], float]
    slower_draft: float = 1.0
    slower_read: float = 1.0
    shared: bool = False


@dataclass(frozen=True)
class Conditions:
    """What holds for every way.

    Attributes:
        first: seconds from the opened file to the target's first token, in plain decoding.
        verify: seconds of a target pass by rows.
        overhead: seconds that a round with a draft costs besides.
        tokens: expected length of a text.
        strict: share of the drafted tokens that the acceptance rule judges strictly; 1 for lossless rules.
        nodes: the most of a tree, as no more rows were timed; 0 where trees cannot be verified.
        beside: the parallel schedule's conditions; None where there is one worker only.
        ahead: seconds of ``first`` that a folder's feed spends on coming clips while others are decoded.
        verify_many: seconds of a target pass by clips and by the rows of all of them; None: one clip at a time.
    """

    first: float
    verify: Callable[[int], float]
    overhead: float
    tokens: int
    strict: float = 1.0
    nodes: int = 25
    beside: Beside | None = None
    ahead: float = 0.0
    verify_many: Callable[[int, int], float] | None = None


@dataclass(frozen=True)
class Way:
    """One way to decode, and what is expected of it.

    Attributes:
        name, schedule, topology: of the drafter and how it works; ``plain`` without a draft.
        overrides: what makes a profile of it.
        alpha, gamma, beta: share not seen, window (depth of a tree), acceptance of a model's tokens.
        tokens_per_pass: tokens per target pass.
        tq: seconds of a draft pass.
        decode, end_to_end: speed-ups over plain decoding of as many clips at once.
        batch: clips at once.
        tokens_per_s, clips_per_s: of all of them, in decoding and altogether; None where nothing was measured.
    """

    name: str
    schedule: str
    topology: str
    overrides: Mapping[str, object]
    alpha: float | None
    gamma: int
    beta: float | None
    tokens_per_pass: float
    tq: float | None
    decode: float
    end_to_end: float
    batch: int = 1
    tokens_per_s: float | None = None
    clips_per_s: float | None = None

    @property
    def label(self) -> str:
        """In a few words."""
        if self.schedule == "autoregressive":
            return self.name
        how = "at the same time" if self.schedule == "parallel" else "in turns"
        return f"{self.name}, {'' if self.topology == 'chain' else 'tree, '}{how}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "name": self.label,
            "schedule": self.schedule,
            "topology": self.topology,
            "alpha": self.alpha,
            "gamma": self.gamma,
            "beta": self.beta,
            "tokens_per_pass": self.tokens_per_pass,
            "tq": self.tq,
            "decode": self.decode,
            "end_to_end": self.end_to_end,
            "batch": self.batch,
            "tokens_per_s": self.tokens_per_s,
            "clips_per_s": self.clips_per_s,
            "settings": dict(self.overrides),
        }


PLAIN = Way(
    "plain decoding",
    "autoregressive",
    "chain",
    {"draft.kind": "none", "draft.gamma": 5, "schedule.kind": "autoregressive"},
    None,
    0,
    None,
    1.0,
    None,
    1.0,
    1.0,
)


def ways(drafts: Sequence[Drafting], found: Conditions, batch: int = 1) -> list[Way]:
    """Everything that can be built from these drafters, the fastest end to end first; plain decoding is among them.

    Args:
        drafts: what was found of each drafter.
        found: what holds for all.
        batch: clips at once; a single one is timed from its opened file on, of several the feed opens the next.

    Raises:
        ValueError: several clips, and nothing is known of what their passes take.
    """
    if batch > 1:
        drafts, found = [_lockstep(one, batch) for one in drafts], _loaded(found, batch)
    made = [_timed(PLAIN, found.first, found, batch)]
    for one in drafts:
        made.append(_chain(one, found, batch) if one.replay is None else _replayed(one, one.replay, found, batch))
        if found.nodes and one.tq_wide is not None:
            made.append(_tree(one, found, batch))
        if found.beside is not None and one.beside:
            made.append(_parallel(one, found, found.beside, batch))
    return sorted(made, key=lambda way: -way.end_to_end)


def folder(drafts: Sequence[Drafting], found: Conditions, batches: Sequence[int]) -> list[Way]:
    """The ways with each of these numbers of clips at once, those with the most clips per second first."""
    opened = replace(found, first=found.first - found.ahead, ahead=0.0)
    made = [way for batch in sorted(set(batches)) for way in ways(drafts, opened, batch)]
    return sorted(made, key=lambda way: -(way.clips_per_s or 0.0))


@dataclass(frozen=True)
class Plan:
    """Ways, the fastest first; which was chosen, and why in a sentence."""

    ways: tuple[Way, ...]
    chosen: Way
    why: str
    measured: Mapping[str, Any] = field(default_factory=dict)


def favoured(found: Sequence[Way]) -> Way:
    """The first, or of its kind the one that sees most of the video among those at most ``WORTH`` slower.

    Args:
        found: ways, the fastest first.
    """
    best = found[0]
    alike = [
        way
        for way in found
        if (way.schedule, way.topology) == (best.schedule, best.topology)
        and way.end_to_end >= (1 - WORTH) * best.end_to_end
    ]
    return min(alike, key=lambda way: way.alpha or 0.0)


def decide(found: Sequence[Way]) -> tuple[Way, str]:
    """The :func:`favoured` way, or plain decoding if none gains ``GAIN``; and why.

    Of equals within 1% the one that drafts in turns is taken: it needs one worker only.
    """
    best = favoured(found)
    if best.schedule == "parallel":
        turns = [way for way in found if way.schedule == "sequential"]
        if turns and (other := favoured(turns)).end_to_end > 0.99 * best.end_to_end:
            best = other
    if best.end_to_end < GAIN:
        plain = next(way for way in found if way.schedule == "autoregressive")
        others = [way for way in found if way.schedule != "autoregressive"]
        if not others:
            return plain, "plain decoding: nothing here can draft"
        return plain, f"plain decoding: {others[0].label} would reach {others[0].end_to_end:.2f}x only"
    return best, (
        f"{best.label}: {best.end_to_end:.2f}x end to end and {best.decode:.2f}x in decoding are expected, "
        f"with a window of {best.gamma} and {best.beta:.0%} accepted"
    )


def decide_folder(found: Sequence[Way]) -> tuple[Way, str]:
    """The way that suits each number of clips at once, and of these numbers the least that gains most; and why.

    Args:
        found: see :func:`folder`.
    """
    chosen: list[Way] = []
    for batch in sorted({way.batch for way in found}):
        alike = sorted((way for way in found if way.batch == batch), key=lambda way: -way.end_to_end)
        chosen.append(decide(alike)[0])
    rates = [way.clips_per_s or 0.0 for way in chosen]
    at = next(i for i, rate in enumerate(rates) if rate >= (1 - FEWER) * max(rates))
    best = chosen[at]
    why = f"{_clips(best.batch)}, {best.label}: {rates[at]:.3g} clips/s and {best.tokens_per_s or 0.0:.0f} tokens/s"
    why += " in decoding are expected"
    if at:
        why += f", {rates[at] / rates[0]:.2f}x as many clips/s as {_clips(chosen[0].batch)}"
    if best.schedule == "autoregressive":
        return best, f"{why}; no draft gains with as many"
    return best, f"{why}, {best.end_to_end:.2f}x plain decoding{f' of {best.batch}' if best.batch > 1 else ''}"


def _clips(batch: int) -> str:
    return "one clip at a time" if batch == 1 else f"{batch} clips at once"


def _loaded(found: Conditions, batch: int) -> Conditions:
    """The same with so many clips, in rows of each: a round serves all, and what is done besides is done for each."""
    alone, many, beside = found.verify, found.verify_many, found.beside
    if many is None:
        raise ValueError("what passes of several clips take is not known")

    def verify(rows: int) -> float:
        return many(batch, batch * rows)

    if beside is not None:
        fewer = beside.verify
        beside = replace(beside, verify=lambda rows: fewer(rows) * verify(rows) / alone(rows))
    return replace(found, verify=verify, overhead=batch * found.overhead, beside=beside)


def _lockstep(one: Drafting, batch: int) -> Drafting:
    """A drafter of so many clips, one row of each in a pass."""
    tq = one.tq_many(batch) if one.tq_many is not None else batch * one.tq
    wide, again = one.tq_wide, one.replay
    return replace(
        one,
        tq=tq,
        tq_wide=None if wide is None else (wide[0], tq + batch * max(0.0, wide[1] - one.tq)),
        replay=None if again is None else replace(again, seconds=again.seconds * tq / one.tq),
    )


def _chain(one: Drafting, found: Conditions, batch: int) -> Way:
    beta = speed.loose_beta(one.share(), found.strict)
    gamma, _ = speed.best_window(beta, found.verify, one.tq, found.overhead)
    gamma = max(1, gamma)
    tokens = speed.chain_tokens(beta, gamma)
    decode = speed.sequential(tokens, gamma, found.verify(1), found.verify(gamma + 1), one.tq, found.overhead)
    return _way(one, found, "sequential", "chain", gamma, beta, tokens, decode, found.first + one.read, batch)


def _replayed(one: Drafting, again: Replay, found: Conditions, batch: int) -> Way:
    rounds = len(again.windows)
    tokens, seconds = 1 + again.accepted / rounds, again.seconds / rounds
    verify = fmean(found.verify(window + 1) for window in again.windows)
    decode = speed.sequential(tokens, 1, found.verify(1), verify, seconds, found.overhead)
    gamma, beta = max(1, round(fmean(again.windows))), speed.loose_beta(one.share(), found.strict)
    return _way(one, found, "sequential", "chain", gamma, beta, tokens, decode, found.first + one.read, batch)


def _tree(one: Drafting, found: Conditions, batch: int) -> Way:
    """The tree that pays best if a choice of each rank is right as often everywhere as it was."""
    shares = [speed.loose_beta(one.share(), found.strict), *(one.share(rank) for rank in range(1, len(one.ranks)))]
    rows, wide = one.tq_wide or (2, one.tq)
    row = max(0.0, wide - one.tq) / (rows - 1)
    open_ = [(-share, 1, -1) for share in shares]  # by what they promise: depth, and whose children they are
    heapq.heapify(open_)
    levels: Counter[int] = Counter()  # rows of each pass of the draft
    parents: set[int] = set()
    best, chosen, tokens, depth = 0.0, (1, 1.0), 1.0, 1
    for node in range(found.nodes):
        if not open_:
            break
        score, level, parent = heapq.heappop(open_)
        tokens, depth = tokens - score, max(depth, level)
        levels[level] += parent not in parents
        parents.add(parent)
        draft = sum(one.tq + row * (count - 1) for count in levels.values())
        decode = speed.sequential(tokens, 1, found.verify(1), found.verify(node + 2), draft, found.overhead)
        if decode > best:
            best, chosen = decode, (depth, tokens)
        if level < DEEPEST:
            for share in shares:
                heapq.heappush(open_, (score * share, level + 1, node))
    depth, tokens = chosen
    return _way(one, found, "sequential", "adaptive", depth, one.share(), tokens, best, found.first + one.read, batch)


def _parallel(one: Drafting, found: Conditions, beside: Beside, batch: int) -> Way:
    beta = min(speed.loose_beta(one.share(), found.strict), 0.99)
    tq = one.tq * beside.slower_draft
    gamma = settled(beside.verify, tq)
    tp1, window = beside.verify(1), beside.verify(gamma)
    if beside.shared:
        decode = speed.parallel(beta, gamma, tp1, window, tq, shared=True)
    else:
        decode = speed.parallel_with_abort(beta, gamma, tp1, window, tq)
    decode *= found.verify(1) / tp1
    tokens = speed.round_tokens(beta, gamma)
    first = max(found.first * beside.slower_read, one.read * beside.slower_draft)
    return _way(one, found, "parallel", "chain", gamma, beta, tokens, decode, first, batch)


def _way(
    one: Drafting,
    found: Conditions,
    schedule: str,
    topology: str,
    gamma: int,
    beta: float,
    tokens: float,
    decode: float,
    first: float,
    batch: int,
) -> Way:
    settings: dict[str, object] = {**one.overrides, "schedule.kind": schedule, "draft.topology": topology}
    settings["draft.gamma"] = "auto"
    settings["schedule.prefill"] = "parallel" if schedule == "parallel" else "sequential"
    way = Way(one.name, schedule, topology, settings, one.alpha, gamma, beta, tokens, one.tq, decode, 1.0)
    return _timed(way, first, found, batch)


def _timed(way: Way, first: float, found: Conditions, batch: int) -> Way:
    """With what follows from ``first`` seconds before a text, and from its speed-up behind them."""
    plain = (found.tokens - 1) * found.verify(1) / batch
    seconds = first + plain / way.decode
    return replace(
        way,
        end_to_end=(found.first + plain) / seconds,
        batch=batch,
        tokens_per_s=batch * way.decode / found.verify(1),
        clips_per_s=1 / seconds,
    )
