"""Prediction of decoding speed from a card's data sheet and the sizes of models; nothing is run. No torch.

A pass takes its products, which are bound by bytes or by operations, its keys and values, and its small kernels. Where
the host needs its tokens, the host's own time is added. Passes that are not replayed take at least the launches of
their kernels from Python. The constants are in :mod:`research.prediction.constants`. Rounds follow the speed model of
:mod:`research.speed`; a draft that does not pay has the window 0, which is plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from research.prediction.constants import (
    CACHE_USE,
    FEWEST_ROWS,
    FLOPS_USE,
    HOST,
    HOST_CLIP,
    IDLE,
    KERNEL_RATES,
    LAUNCH,
    PER_CLIP,
    PRODUCT_USE,
    SMALL,
    WAIT,
    WeightPrecision,
)
from research.prediction.sheets import DataSheet
from research.speed import best_window, beta_of_run_length, beta_of_tokens_per_pass

#: Kernels of a fused block and around the blocks (``tests/engine/counts.py``).
BLOCK_LAUNCHES, OTHER_LAUNCHES = 10, 13
#: Bytes of a weight; of int4 with a scale and a zero for each 64.
WEIGHT_BYTES: Mapping[WeightPrecision, float] = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 64}
#: Share of the bandwidth that the kernels of quantised weights leave, by rows (docs/internals/engine.md); the
#: instructions of a card without figures of its own are taken to be as scarce as those of the H100.
_KERNEL_SHARES: Mapping[tuple[str, WeightPrecision], Mapping[int, float]] = {
    ("A100 40GB", "int8"): {64: 0.61},
    ("A100 40GB", "int4"): {32: 0.84, 64: 0.42},
    ("RTX 4090", "int8"): {},
    ("RTX 4090", "int4"): {64: 0.85},
}
_LEAST_SHARES: Mapping[WeightPrecision, Mapping[int, float]] = {
    "bfloat16": {},
    "int8": {32: 0.82, 64: 0.41},
    "int4": {16: 0.84, 32: 0.56, 64: 0.28},
}
#: Most rows of these kernels; more dequantise the weights, which are written and read once in 16 bits.
_KERNEL_ROWS = 256
#: Longest predicted window, and the least gain of a draft: smaller ones are within the errors of a prediction.
_LONGEST, _LEAST_GAIN = 16, 1.02

DraftKind = Literal["model", "int8", "int4", "eagle3"]


class AssumedAcceptance(NamedTuple):
    """Assumed probability that a drafted token is accepted, and its source."""

    beta: float
    source: str


@dataclass(frozen=True)
class PredictedDraft:
    """A draft that exists for a target.

    Attributes:
        name: hub id of a model or head; of a quantised copy of the target the name of its profile.
        kind: what drafts.
        assumed: its acceptance.
        bytes: of its weights, and of its own keys and values for one clip.
    """

    name: str
    kind: DraftKind
    assumed: AssumedAcceptance
    bytes: int


@dataclass(frozen=True)
class SpeedPrediction:
    """Predicted decoding with one draft, or without any.

    Attributes:
        draft: None for plain decoding.
        gamma: best window; 0 if the draft does not pay.
        tokens_per_s: of all clips together.
        gain: over plain decoding; never below 1.
        bytes: of target, draft and clips; None if unknown.
        fits: True if this memory is there; None if unknown.
    """

    draft: PredictedDraft | None
    gamma: int
    tokens_per_s: float
    gain: float
    bytes: int | None = None
    fits: bool | None = None

    @property
    def name(self) -> str:
        return "plain decoding" if self.draft is None else self.draft.name


#: By kind of draft, or family of a smaller model.
ACCEPTANCE: Mapping[str, AssumedAcceptance] = {
    "model": AssumedAcceptance(
        round(beta_of_run_length(4.28), 2),
        "run length 4.28 of Qwen2.5-VL 7B for 32B, ParallelVLM App. A; of smaller drafts it is lower",
    ),
    "llava_onevision": AssumedAcceptance(
        round(beta_of_run_length(6.83), 2), "run length 6.83 of LLaVA-OneVision 7B for 72B, ParallelVLM App. A"
    ),
    "int8": AssumedAcceptance(0.98, "measured with the built-in pairs"),
    "int4": AssumedAcceptance(
        0.90, "more than 90% with weights and cache in four bits, QuantSpec (arXiv 2502.10424); built-in pairs 96%"
    ),
    "eagle3": AssumedAcceptance(
        round(beta_of_tokens_per_pass(2.1, 4), 2),
        "2.1 tokens per pass of 4 drafted, Qwen3-VL-4B on MMStar, README of Tencent/AngelSlim",
    ),
}


class ExpertCost(NamedTuple):
    """Experts of a model.

    Attributes:
        number: experts of a block.
        active: those that a row is multiplied with.
        read: parameters of one expert in all blocks together.
    """

    number: int
    active: int
    read: int

    def distinct(self, rows: int) -> float:
        """Return the expected experts of a block that rows choose, each evenly: E (1 - (1 - k/E)^rows)."""
        return self.number * (1 - (1 - self.active / self.number) ** rows)


class EagerLaunches(NamedTuple):
    """Further kernels of passes that run kernel by kernel: for several rows of a clip, and for each further clip."""

    window: int
    clip: int


@dataclass(frozen=True)
class ModelCost:
    """Sizes of a model that a pass's time follows from.

    Attributes:
        read: parameters that every pass reads, and multiplies each row with.
        entry: bytes of keys and values of a token, in blocks that see all tokens.
        launches: kernels of a pass over one row.
        weights: precision of these weights.
        experts: further weights in 16 bits, of which a pass reads those that its rows choose; None without any.
        windows: sliding windows, and the bytes of a token in blocks that have them.
        states: bytes of recurrent states, which a pass reads and writes for each clip.
        eager: if passes run kernel by kernel; None if they are replayed.
    """

    read: int
    entry: int
    launches: int
    weights: WeightPrecision = "bfloat16"
    experts: ExpertCost | None = None
    windows: tuple[tuple[int, int], ...] = ()
    states: int = 0
    eager: EagerLaunches | None = None

    @classmethod
    def of_decoder(cls, read: int, layers: int, entry: int, weights: WeightPrecision = "bfloat16") -> ModelCost:
        """Return the cost of a fused decoder."""
        return cls(read, entry, BLOCK_LAUNCHES * layers + OTHER_LAUNCHES, weights)

    @property
    def weight_bytes(self) -> float:
        return self.read * WEIGHT_BYTES[self.weights]

    def pass_seconds(self, card: DataSheet, clips: int, rows: int, entries: float, *, chained: bool = False) -> float:
        """Return the seconds of a pass on the device.

        Args:
            card: where.
            clips: of the pass.
            rows: in all.
            entries: cache entries of each clip.
            chained: True for one of a chain, which the host does not wait for.
        """
        padded = rows if self.eager else max(1 if chained else FEWEST_ROWS, 1 << (rows - 1).bit_length())
        operations = 2 * (self.read + (self.experts.active * self.experts.read if self.experts else 0)) * padded
        products = self._weight_seconds(card, rows) + self.expert_bytes(rows) / (PRODUCT_USE * card.bandwidth)
        seconds = max(products, operations / (FLOPS_USE * card.flops))
        seconds += self.cache_bytes(clips, entries) / (CACHE_USE * card.bandwidth)
        launches, small = self.launches, SMALL + PER_CLIP * clips + IDLE * (padded - rows) / padded
        if self.eager is None:
            return seconds + launches * small
        launches += (clips - 1) * self.eager.clip + (self.eager.window if rows > clips else 0)
        return max(seconds + launches * SMALL, launches * LAUNCH)

    def host_seconds(self, clips: int) -> float:
        """Return the seconds of the host around a pass, or a replayed chain of passes, that it waits for."""
        return WAIT if self.eager else HOST + (clips - 1) * HOST_CLIP

    def expert_bytes(self, rows: int) -> float:
        """Return the bytes of the experts that rows choose."""
        return self.experts.distinct(rows) * self.experts.read * WEIGHT_BYTES["bfloat16"] if self.experts else 0.0

    def cache_bytes(self, clips: int, entries: float) -> float:
        """Return the bytes of the clips' keys, values and states that a pass reads, and of the states it writes."""
        cached = entries * self.entry + sum(min(entries, size) * each for size, each in self.windows)
        return clips * (cached + 2 * self.states)

    def _weight_seconds(self, card: DataSheet, rows: int) -> float:
        """Return the seconds of the products with these weights at this many rows."""
        reached = PRODUCT_USE * card.bandwidth
        if self.weights == "bfloat16":
            return self.weight_bytes / reached
        if rows > _KERNEL_ROWS:
            return (self.weight_bytes + 2 * self.read * WEIGHT_BYTES["bfloat16"]) / reached
        shares = _KERNEL_SHARES.get((card.name, self.weights), _LEAST_SHARES[self.weights])
        left = [(count, share) for count, share in shares.items() if rows > count // 2]
        count, share = max(left, default=(64, 1.0))
        measured = max((at, rate) for at, rate in KERNEL_RATES[self.weights].items() if rows >= at)[1]
        return self.weight_bytes / min(reached * share * min(1.0, count / rows), measured)


@dataclass(frozen=True, kw_only=True)
class DraftCandidate(PredictedDraft):
    """A draft that exists for a target, with the cost of its passes."""

    cost: ModelCost


def predict(
    card: DataSheet,
    target: ModelCost,
    drafts: Iterable[DraftCandidate],
    *,
    entries: float,
    clips: int = 1,
    held: int | None = None,
    free: float | None = None,
) -> list[SpeedPrediction]:
    """Return predictions of plain decoding and of every draft, plain decoding first.

    Args:
        card: where.
        target: the target's sizes.
        drafts: drafts that exist for it.
        entries: cache entries of each clip.
        clips: at once.
        held: bytes of the target and the clips' keys and values.
        free: bytes there are.
    """

    def verify(rows: int) -> float:
        return target.pass_seconds(card, clips, clips * rows, entries) + target.host_seconds(clips)

    def fits(size: int | None) -> bool | None:
        return None if size is None or free is None else size <= free

    plain = clips / verify(1)
    found = [SpeedPrediction(None, 0, plain, 1.0, held, fits(held))]
    for draft in drafts:
        chain, once = draft.cost.pass_seconds(card, clips, clips, entries, chained=True), draft.cost.host_seconds(clips)
        if draft.cost.eager is not None:  # the host waits for each token
            chain, once = chain + once, 0
        gamma, rate = best_window(draft.assumed.beta, verify, chain, once, _LONGEST)
        if clips * rate < _LEAST_GAIN * plain:
            gamma, rate = 0, plain / clips
        size = None if held is None else held + draft.bytes
        found.append(SpeedPrediction(draft, gamma, clips * rate, clips * rate / plain, size, fits(size)))
    return found


def predict_rounded(
    card: DataSheet,
    target: ModelCost,
    *,
    entries: float,
    clips: int = 1,
    held: int | None = None,
    free: float | None = None,
) -> SpeedPrediction | None:
    """Return plain decoding of the target rounded to four bits, which gives other texts; None if it is rounded.

    The arguments are those of :func:`predict`; ``held`` is that of the target in 16 bits. It fits only if all its
    weights do in 16 bits too, since they are rounded on the card.
    """
    if target.weights != "bfloat16":
        return None
    cost = replace(target, weights="int4")
    rounded = held and round(held - target.weight_bytes + cost.weight_bytes)
    found = predict(card, cost, (), entries=entries, clips=clips, held=rounded, free=free)[0]
    loaded = (held or 0) - clips * entries * target.entry
    return found if free is None or loaded <= free else replace(found, fits=False)
