"""Prediction of decoding speed from a card's data sheet and the sizes of models; nothing is run. No torch.

A pass takes the larger of the times of its bytes and its operations, at the share of the data sheet that passes reach,
plus the launches of its kernels and, where the host needs its tokens, a wait. Rounds follow the speed model of
:mod:`vidspec.draft_length.speed`; a draft that does not pay has the window 0, which is plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from vidspec.draft_length.cards import Card
from vidspec.draft_length.speed import best_window, beta_of_run_length, beta_of_tokens_per_pass

__all__ = [
    "ACCEPTANCE",
    "DECODE_USE",
    "GAP",
    "LAUNCH",
    "WAIT",
    "WEIGHT_BYTES",
    "AssumedAcceptance",
    "DraftCandidate",
    "DraftKind",
    "ModelCost",
    "SpeedPrediction",
    "WeightPrecision",
    "predict",
]

#: Share of the data sheet's bandwidth and operations that decoding passes reach.
DECODE_USE = 0.7
#: Seconds of a launch from Python, between two kernels on the device, and until the host has a result.
LAUNCH, GAP, WAIT = 5e-6, 1e-6, 20e-6
WeightPrecision = Literal["bfloat16", "int8", "int4"]
#: Bytes of a weight; of int4 with a scale and a zero for each 64.
WEIGHT_BYTES: Mapping[WeightPrecision, float] = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 3 / 64}
#: Share of the bandwidth that the kernels of quantised weights leave, by rows (docs/internals/engine.md); the
#: instructions of a card without figures of its own are taken to be as scarce as those of the H100.
_KERNEL_SHARES: Mapping[tuple[str, WeightPrecision], Mapping[int, float]] = {
    ("A100 40GB", "int8"): {64: 0.61},
    ("A100 40GB", "int4"): {32: 0.84, 64: 0.42},
    ("GeForce RTX 4090", "int8"): {},
    ("GeForce RTX 4090", "int4"): {64: 0.85},
}
_LEAST_SHARES: Mapping[WeightPrecision, Mapping[int, float]] = {
    "bfloat16": {},
    "int8": {32: 0.82, 64: 0.41},
    "int4": {16: 0.84, 32: 0.56, 64: 0.28},
}
#: Most rows of these kernels; more dequantise the weights, which are written and read once in 16 bits.
_KERNEL_ROWS = 256
#: Longest predicted window.
_LONGEST = 16

DraftKind = Literal["model", "int8", "int4", "eagle3"]


class AssumedAcceptance(NamedTuple):
    """Assumed probability that a drafted token is accepted, and its source."""

    beta: float
    source: str


#: By kind of draft, or family of a smaller model.
ACCEPTANCE: Mapping[str, AssumedAcceptance] = {
    "model": AssumedAcceptance(
        round(beta_of_run_length(4.28), 2), "run length 4.28 of Qwen2.5-VL 7B and 32B, ParallelVLM App. A"
    ),
    "llava_onevision": AssumedAcceptance(
        round(beta_of_run_length(6.83), 2), "run length 6.83 of LLaVA-OneVision 7B and 72B, ParallelVLM App. A"
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


@dataclass(frozen=True)
class ModelCost:
    """Sizes of a model that a pass's time follows from.

    Attributes:
        read: parameters that a pass reads, and multiplies each row with.
        entry: bytes of keys and values of a token.
        launches: kernels of a replayed pass.
        weights: precision of the weights.
    """

    read: int
    entry: int
    launches: int
    weights: WeightPrecision = "bfloat16"

    @classmethod
    def of_decoder(cls, read: int, layers: int, entry: int, weights: WeightPrecision = "bfloat16") -> ModelCost:
        """Return the cost of a fused decoder: 11 kernels a block and 12 around them (``python -m research.counts``)."""
        return cls(read, entry, 11 * layers + 12, weights)

    @property
    def weight_bytes(self) -> float:
        return self.read * WEIGHT_BYTES[self.weights]

    def pass_seconds(self, card: Card, clips: int, rows: int, entries: float) -> float:
        """Return the seconds of a replayed pass over ``rows`` in all, of clips with so many cache entries each."""
        padded = 1 << (rows - 1).bit_length()  # a graph's rows
        read = self._weight_traffic(card, rows) + clips * entries * self.entry
        operations = 2 * self.read * padded
        return max(read / card.bandwidth, operations / card.flops) / DECODE_USE + self.launches * GAP

    def _weight_traffic(self, card: Card, rows: int) -> float:
        """Return the bytes of weights that take the memory as long as the pass's products take at this many rows."""
        if self.weights == "bfloat16":
            return self.weight_bytes
        if rows > _KERNEL_ROWS:
            return self.weight_bytes + 2 * self.read * WEIGHT_BYTES["bfloat16"]
        shares = _KERNEL_SHARES.get((card.name, self.weights), _LEAST_SHARES[self.weights])
        reached = [(count, share) for count, share in shares.items() if rows > count // 2]
        count, share = max(reached, default=(64, 1.0))
        return self.weight_bytes / (share * min(1.0, count / rows))


@dataclass(frozen=True)
class DraftCandidate:
    """A draft that exists for a target.

    Attributes:
        name: hub id of a model or head; of a quantised copy of the target the name of its profile.
        kind: what drafts.
        cost: of a draft pass.
        assumed: its acceptance.
        bytes: of its weights, and of its own keys and values for one clip.
    """

    name: str
    kind: DraftKind
    cost: ModelCost
    assumed: AssumedAcceptance
    bytes: int

    @property
    def arguments(self) -> str:
        """Arguments of ``vidspec caption`` that choose it."""
        if self.kind in ("int8", "int4"):
            return f"--profile {self.name}"
        profile = "eagle3" if self.kind == "eagle3" else "vanilla-sd-auto"
        return f"--profile {profile} --draft {self.name}"


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

    draft: DraftCandidate | None
    gamma: int
    tokens_per_s: float
    gain: float
    bytes: int | None = None
    fits: bool | None = None

    @property
    def name(self) -> str:
        return "plain decoding" if self.draft is None else self.draft.name


def predict(
    card: Card,
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
        return target.pass_seconds(card, clips, clips * rows, entries) + WAIT

    def fits(size: int | None) -> bool | None:
        return None if size is None or free is None else size <= free

    plain = clips / verify(1)
    found = [SpeedPrediction(None, 0, plain, 1.0, held, fits(held))]
    for draft in drafts:
        chain = draft.cost.pass_seconds(card, clips, clips, entries)
        gamma, rate = best_window(draft.assumed.beta, verify, chain, WAIT, _LONGEST)
        size = None if held is None else held + draft.bytes
        found.append(SpeedPrediction(draft, gamma, clips * rate, clips * rate / plain, size, fits(size)))
    return found
