"""Prediction for many clips at once on one device: tokens/s, clips/s and memory from configs; no model is run.

A pass reads the weights once, and the KV cache of every clip in it; its arithmetic is two operations for each parameter
and row. It lasts as long as the slower of the two. Plain decoding has one row for each clip, verification gamma + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from research import speed
from research.prediction.constants import DECODE_USE, KERNEL_RATES, TOWER_FLOPS
from research.prediction.sheets import DataSheet
from research.replay.predict import Times
from research.replay.whatif import best_chain, chain_speedup
from research.sizes import MODELS, Model
from vidspec.models.memory_estimate import PROMPT

#: Visual tokens of a frame (of Qwen2.5-VL of a pair of frames).
PER_FRAME = 14**2
#: Bytes of a number in the KV cache.
ENTRY = 2
#: Bytes of a weight.
WEIGHTS = {"bfloat16": 2.0, "float8": 1.0, "int4": 0.5}
#: Most bytes of four-bit weights per second.
_CODES = KERNEL_RATES["int4"][1]
#: Usable share of the device's memory; the rest is for activations.
USABLE = 0.9


#: Target and draft.
PAIRS = {
    "7b+0.5b": (
        MODELS["llava-hf/llava-onevision-qwen2-7b-ov-hf"],
        MODELS["llava-hf/llava-onevision-qwen2-0.5b-ov-hf"],
    ),
    "7b+3b": (MODELS["Qwen/Qwen2.5-VL-7B-Instruct"], MODELS["Qwen/Qwen2.5-VL-3B-Instruct"]),
    "32b+7b": (MODELS["Qwen/Qwen2.5-VL-32B-Instruct"], MODELS["Qwen/Qwen2.5-VL-7B-Instruct"]),
}


@dataclass(frozen=True)
class Assumed:
    """Assumptions that no config gives.

    Attributes:
        beta: probability that a drafted token is accepted, whether the draft is pruned or not.
        kept: share of the visual tokens that a pruned draft keeps.
        tokens: of a caption.
        gamma: the window; None for the best at each batch size, which may be none.
        weights: a key of :data:`WEIGHTS`; arithmetic is in bfloat16 all the same.
        decode_use: share of bandwidth and operations that a decoding pass reaches.
        prefill_use: share of the operations that a tower, up to ``TOWER_FLOPS``, and the reading of a prompt reach.
    """

    beta: float = 0.8
    kept: float = 0.1
    tokens: int = 256
    gamma: int | None = None
    weights: str = "bfloat16"
    decode_use: float = DECODE_USE
    prefill_use: float = 0.5

    def context(self, visual: float) -> float:
        """Return a clip's cache entries halfway through its caption."""
        return visual + PROMPT + self.tokens / 2

    def weight_bytes(self, parameters: int) -> float:
        return parameters * WEIGHTS[self.weights]


@dataclass(frozen=True)
class Throughput:
    """Prediction for ``batch`` clips at once; None if the device has too little memory.

    Attributes:
        device, pair: their names.
        visual: tokens of each clip.
        batch: clips.
        plain_tokens_per_s, plain_clips_per_s: of plain decoding, all clips together.
        unpruned_gain, unpruned_gamma: decode speed-up by a draft that sees all, and its window.
        pruned_gain, pruned_gamma: by a draft that sees the share that is kept.
        pruned_clips_per_s: with that draft, which has to read its prompt too.
        plain_memory, pruned_memory: share of the device's memory.
    """

    device: str
    pair: str
    visual: int
    batch: int
    plain_tokens_per_s: float | None
    unpruned_gain: float | None
    unpruned_gamma: int | None
    pruned_gain: float | None
    pruned_gamma: int | None
    plain_clips_per_s: float | None
    pruned_clips_per_s: float | None
    plain_memory: float
    pruned_memory: float


def pass_seconds(model: Model, device: DataSheet, assumed: Assumed, batch: int, rows: float, entries: float) -> float:
    """Return max((W + B L kappa) / BW, 2 P rows / F): a pass over ``rows`` tokens of each of ``batch`` clips.

    Weights of four bits are read no faster than measured.

    Args:
        model: whose weights W and parameters P a decoding pass reads.
        device: BW and F.
        assumed: how much of them is reached.
        batch: clips B.
        rows: of each clip.
        entries: L of each clip's KV cache.
    """
    reached = device.bandwidth * assumed.decode_use
    cached = batch * entries * model.language.kv_per_token * ENTRY
    weights = assumed.weight_bytes(model.language.read) / (
        min(reached, _CODES) if assumed.weights == "int4" else reached
    )
    operations = 2 * model.language.read * batch * rows
    return max(weights + cached / reached, operations / (device.flops * assumed.decode_use))


def times_at(
    target: Model, draft: Model, device: DataSheet, assumed: Assumed, batch: int, visual: int, kept: float
) -> Times:
    """Return the times of passes over all clips: the target's by rows per clip, the draft's over one token each."""

    def verify(rows: int) -> float:
        return pass_seconds(target, device, assumed, batch, rows, assumed.context(visual))

    return Times(verify, pass_seconds(draft, device, assumed, batch, 1, assumed.context(kept * visual)))


def read_seconds(model: Model, device: DataSheet, assumed: Assumed, visual: int, kept: float = 1.0) -> float:
    """Return the seconds from pixels to KV cache of one clip: the tower over all frames, the pruned prompt."""
    reached = device.flops * assumed.prefill_use
    tower = model.tower.flops * visual / PER_FRAME / min(reached, TOWER_FLOPS)
    return tower + model.language.prefill_flops(kept * visual + PROMPT) / reached


def memory(models: Sequence[tuple[Model, float]], assumed: Assumed, batch: int, visual: int) -> float:
    """Return the bytes of all weights, and of the KV cache at the end of every caption.

    Args:
        models: each with the share of the visual tokens that it keeps.
        assumed: type of the weights, length of a caption.
        batch: clips.
        visual: tokens of each.
    """
    weights = sum(assumed.weight_bytes(model.parameters) for model, _ in models)
    entries = [(model.language.kv_per_token, kept * visual + PROMPT + assumed.tokens) for model, kept in models]
    return weights + batch * ENTRY * sum(numbers * length for numbers, length in entries)


def throughput(device: DataSheet, pair: str, visual: int, batch: int, assumed: Assumed) -> Throughput:
    """Return one line of the prediction. ``pair``: a key of :data:`PAIRS`."""
    target, draft = PAIRS[pair]

    def share(*models: tuple[Model, float]) -> float:
        return memory(models, assumed, batch, visual) / device.memory

    def drafted(kept: float) -> tuple[int, float] | tuple[None, None]:
        if share((target, 1.0), (draft, kept)) > USABLE:
            return None, None
        times = times_at(target, draft, device, assumed, batch, visual, kept)
        gamma = best_chain(assumed.beta, times, lowest=0) if assumed.gamma is None else assumed.gamma
        return gamma, chain_speedup(assumed.beta, gamma, times)

    (unpruned_gamma, unpruned), (pruned_gamma, pruned) = drafted(1.0), drafted(assumed.kept)
    plain = share((target, 1.0))
    fits = plain <= USABLE
    step = pass_seconds(target, device, assumed, batch, 1, assumed.context(visual))
    prefill, decode = read_seconds(target, device, assumed, visual), assumed.tokens * step / batch
    ahead = read_seconds(draft, device, assumed, visual, assumed.kept) if pruned_gamma else 0.0
    return Throughput(
        device.name,
        pair,
        visual,
        batch,
        batch / step if fits else None,
        unpruned,
        unpruned_gamma,
        pruned,
        pruned_gamma,
        1 / (prefill + decode) if fits else None,
        None if pruned is None else speed.end_to_end(pruned, decode, prefill, ahead) / (prefill + decode),
        plain,
        share((target, 1.0), (draft, assumed.kept)),
    )
