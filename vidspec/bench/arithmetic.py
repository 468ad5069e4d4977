"""Operations per second of vision, prefill and passes, as a share of the fastest product's here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from vidspec.bench.turns import time_call
from vidspec.engine.device import synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.matrix import FloatLayout, can_pack, float_matrix
from vidspec.engine.rows import Rows
from vidspec.models.base import EmbeddedPrompt, Pixels
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["WorkRate", "count_operations", "measure_rates", "peak_rate"]

#: Rows, inputs and outputs of the product whose speed counts as the peak.
_SIZE = 1024
#: Rows of the passes that are measured, and runs of everything.
_ROWS, _REPEATS = (1, 6), 3


@dataclass(frozen=True)
class WorkRate:
    """Work of the target: the least seconds of several runs, multiplications and additions, and the peak per second."""

    work: str
    seconds: float
    operations: int
    peak: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    @property
    def share(self) -> float:
        """Share of the peak."""
        return self.rate / self.peak


def peak_rate(dtype: torch.dtype, device: torch.device, repeats: int = 5) -> float:
    """Return the operations per second of the fastest of several square products, in the fastest layout."""
    weight, rows = (torch.ones(_SIZE, _SIZE, dtype=dtype, device=device) for _ in range(2))
    layouts: list[FloatLayout] = ["plain", "packed"] if device.type == "cpu" and can_pack(dtype) else ["plain"]
    matrices, wait = [float_matrix(weight, None, layout) for layout in layouts], synchroniser(device)
    least = min(time_call(lambda matrix=matrix: matrix(rows), wait) for _ in range(repeats) for matrix in matrices)  # type: ignore[misc]
    return float(2 * _SIZE**3 / least)


def count_operations(work: Callable[[], object]) -> int:
    """Return the multiplications and additions of products, convolutions and attention in some work.

    Attention to masked keys counts too, since kernels may compute it.
    """
    formulas: dict[object, Callable[..., int]] = {
        torch.ops.aten.scaled_dot_product_attention: _attention,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    }
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        formulas[torch.ops.mkldnn._linear_pointwise] = _packed_product
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        work()
    return int(counter.get_total_flops())


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    """Count attention by its shapes (B, heads, L, d)."""
    return 2 * query[0] * query[1] * query[2] * key[2] * (query[3] + value[3])


def _packed_product(rows: torch.Size, *others: object, **_: object) -> int:
    """Count a product by oneDNN, whose shapes are those of rows, of what is added if anything is, and of the weight."""
    shapes = [shape for shape in others if isinstance(shape, torch.Size)]
    weight = next(shape for shape in shapes if shape[-1] == rows[-1] and len(shape) == 2)
    return 2 * rows.numel() * int(weight[0])


@torch.inference_mode()
def measure_rates(engine: Engine[VideoLanguageModel], pixels: Pixels, prompt: EmbeddedPrompt) -> tuple[WorkRate, ...]:
    """Return the rates of a clip's vision and prefill, and of passes after it.

    Args:
        engine: of the target.
        pixels: the clip, preprocessed.
        prompt: its prompt.
    """
    model = engine.model
    span, wait = engine.prefill(prompt, max(_ROWS)).span, synchroniser(model.device)
    peaks = {dtype: peak_rate(dtype, model.device) for dtype in {model.dtype, model.vision_dtype}}
    length = span.length

    def passed(rows: int) -> None:
        engine.run([Rows(span, [0] * rows)])
        span.rollback(length)

    works: dict[str, tuple[Callable[[], object], torch.dtype]] = {
        "vision": (partial(model.encode, pixels), model.vision_dtype),
        "target_prefill": (partial(engine.prefill, prompt, 0), model.dtype),
        **{f"T_p({rows})": (partial(passed, rows), model.dtype) for rows in _ROWS},
    }
    return tuple(
        WorkRate(name, min(time_call(work, wait) for _ in range(_REPEATS)), count_operations(work), peaks[dtype])
        for name, (work, dtype) in works.items()
    )
