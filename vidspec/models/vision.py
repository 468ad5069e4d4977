"""Window attention and passes within a byte budget for the stock vision towers of ``transformers``.

Windows of equal length share one attention call, those of all lengths where torch has flash attention for a GPU. Clips
are cut into parts, and on a GPU parts of several clips share a pass. The arithmetic is that of ``transformers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain, pairwise
from threading import Lock
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from vidspec.engine.device import free_memory
from vidspec.engine.flash import is_supported
from vidspec.engine.requests import Encode
from vidspec.models.base import Pixels, StockConfig
from vidspec.models.memory_estimate import BUDGET

#: Attention name. With "flash" in it, the Qwen-VL towers of ``transformers`` 5.23 pass all windows and their offsets
#: in one call; with any other name they call once per window and block. Set it on loaded models only: building a model
#: from a config with this name fails, since no hub kernel has it.
WINDOWS = "vidspec_flash_windows"

#: Rows by window length, computed by the first block of a pass and cached for its duration.
_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def window_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention within windows.

    Args:
        module: the calling attention module.
        query, key, value: (1, heads, N, d), windows concatenated.
        attention_mask: ignored; attention is full within a window.
        scaling: of the scores; 1 / sqrt(d) if None.
        cu_seq_lens_q: (windows + 1,) first row of each window, and N; None for a single window.

    Returns:
        (1, N, heads, d), and None for the weights.
    """
    qkv = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    layout = [(query.shape[2], None)] if cu_seq_lens_q is None else _rows_by_length(cu_seq_lens_q)
    if cu_seq_lens_q is not None and len(layout) > 1 and _takes_all_lengths(query):
        begins, longest = cu_seq_lens_q.to(query.device, torch.int32), max(length for length, _ in layout)
        places = begins, begins, longest, longest
        return torch.ops.aten._flash_attention_forward(*qkv, *places, 0.0, False, False, scale=scaling)[0][None], None
    out = qkv[0].new_empty(qkv[0].shape)
    for length, rows in layout:
        q, k, v = (
            (tensor if rows is None else tensor[rows]).unflatten(0, (-1, length)).transpose(1, 2) for tensor in qkv
        )
        attended = F.scaled_dot_product_attention(q, k, v, scale=scaling).transpose(1, 2).flatten(0, 1)
        if rows is None:
            out = attended
        else:
            out[rows] = attended
    return out[None], None


def _takes_all_lengths(query: torch.Tensor) -> bool:
    """Return True if torch's flash kernel takes it, which takes windows of several lengths in one call."""
    built = torch.version.hip is None and torch.backends.cuda.is_flash_attention_available()
    return built and is_supported(query) and query.shape[-1] % 8 == 0


def _rows_by_length(begins: torch.Tensor) -> list[tuple[int, torch.Tensor | None]]:
    """Return the window lengths, each with the rows of its windows; None for all rows."""
    layout: list[tuple[int, torch.Tensor | None]] | None = _layouts.get(begins)
    if layout is None:
        starts: dict[int, list[int]] = {}
        for start, end in pairwise(begins.tolist()):
            starts.setdefault(end - start, []).append(start)
        layout = [(next(iter(starts)), None)]
        if len(starts) > 1:
            layout = [
                (length, (torch.tensor(first)[:, None] + torch.arange(length)).flatten().to(begins.device))
                for length, first in starts.items()
            ]
        _layouts[begins] = layout
    return layout


def tower_budget(device: torch.device) -> int:
    """Return the bytes that a tower's activations may take: :data:`BUDGET`, or a quarter of a GPU's free memory."""
    free = free_memory(device) if device.type in ("cuda", "xpu") else None
    return BUDGET if free is None else min(BUDGET, free // 4)


def frames_per_pass(pixels: Pixels, tokens: int, config: StockConfig, budget: int, *, every_block: bool = False) -> int:
    """Return the number of frames (temporal steps) that a pass takes within a byte budget, at least one.

    Args:
        pixels: a clip, with equally many rows of ``stored`` per frame.
        tokens: rows of the tower's hidden states per frame.
        config: config of the tower.
        budget: bytes of its activations.
        every_block: the stock model keeps the hidden states of every block.
    """
    # float32 and tower's dtype
    pixel_bytes = 0 if pixels.rules is None else 2 * 4 * pixels.stored.numel() // pixels.grid[0]
    return max(1, budget // (tokens * token_bytes(config, every_block=every_block) + pixel_bytes))


def split_pixels(pixels: Pixels, most: int) -> Iterator[Pixels]:
    """Cut a clip between frames (temporal steps) into parts of similar length, each of ``most`` frames at most.

    No tower attends across frames, so the results equal those of the whole clip, in memory that does not grow with it.
    """
    frames = pixels.grid[0]
    count, rows = -(-frames // most), len(pixels.stored) // frames
    for part in range(count):
        first, end = part * frames // count, (part + 1) * frames // count
        yield replace(
            pixels,
            stored=pixels.stored[first * rows : end * rows],
            grid=(end - first, *pixels.grid[1:]),
            seconds=pixels.seconds[first:end],
        )


def shares_passes(device: torch.device) -> bool:
    """Return True if passes of a tower take frames of several clips: on a GPU, which few frames do not fill.

    On a CPU the clips behind the first would delay it, and gain nothing.
    """
    return device.type != "cpu"


class EncodeFrames(Encode):
    """Some frames of a clip for a vision tower, whose pass may take frames of other clips that wait for it.

    The answer is the output of ``encode`` for these frames.

    Args:
        encode: runs the tower over frames of one size; tensors of its output have equally many rows of each frame.
        pixels: the frames.
        pooled: second argument of ``encode``.
        most: frames that a pass with other clips takes.
        lock: held during a pass.
    """

    def __init__(
        self, encode: Callable[[Pixels, bool], Any], pixels: Pixels, pooled: bool, most: int, lock: Lock
    ) -> None:
        super().__init__(partial(encode, pixels, pooled))
        self.encode, self.pixels, self.pooled, self.most, self._lock = encode, pixels, pooled, most, lock
        stored = pixels.stored
        self._kind = encode, pooled, pixels.grid[1:], stored.shape[1:], stored.dtype, stored.device, pixels.rules

    def partners(self, waiting: Sequence[Encode]) -> Sequence[Encode]:
        found, left = list[Encode](), self.most - self.pixels.grid[0]
        for one in waiting:
            if isinstance(one, EncodeFrames) and one is not self and one._kind == self._kind:
                left -= one.pixels.grid[0]
                if left < 0:
                    break
                found.append(one)
        return found

    @torch.inference_mode()
    def run_with(self, others: Sequence[Encode]) -> None:
        batch = [self, *(one for one in others if isinstance(one, EncodeFrames))]
        clips = [one.pixels for one in batch]
        together, counts = self.pixels, [clip.grid[0] for clip in clips]
        if others:
            together = replace(
                self.pixels,
                stored=torch.cat([clip.stored for clip in clips]),
                grid=(sum(counts), *self.pixels.grid[1:]),
                seconds=tuple(chain.from_iterable(clip.seconds for clip in clips)),
            )
        with self._lock:
            output = self.encode(together, self.pooled)
        for one, answer in zip(batch, _split_output(output, counts), strict=True):
            one.answer = answer


def _split_output(output: Any, counts: Sequence[int]) -> list[Any]:
    """Return the part of each clip, of so many frames: rows of all tensors, and all else as it is."""
    if isinstance(output, torch.Tensor):
        return list(output.split([count * len(output) // sum(counts) for count in counts]))
    if isinstance(output, list | tuple) and output:
        return [type(output)(part) for part in zip(*(_split_output(one, counts) for one in output), strict=True)]
    return [output] * len(counts)


@contextmanager
def calls_of(module: torch.nn.Module) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Record the first argument and the result of each call of ``module``."""
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    handle = module.register_forward_hook(lambda _module, args, result: calls.append((args[0], result)))
    try:
        yield calls
    finally:
        handle.remove()


def token_bytes(config: StockConfig, *, every_block: bool = False) -> int:
    """Return the maximum bytes of a row of hidden states while a block of a tower computes.

    They are counted in float32, in which norms and rotary embeddings compute: nine vectors of the hidden size and three
    of the feed-forward size. Attention holds eleven of the hidden size at once (the residual, its norm, queries, keys,
    values and their rotation), the feed-forward network two of it and three of its own.
    """
    # Qwen2-VL's hidden_size is that of the language model; Gemma 4 unified has an embedding for a tower.
    hidden = int(getattr(config, "embed_dim", None) or getattr(config, "mm_embed_dim", None) or config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or hidden * getattr(config, "mlp_ratio", 2))
    kept = config.num_hidden_layers + 1 if every_block else 0
    return 4 * (hidden * (9 + kept) + 3 * inner)


@cache
def register_window_attention() -> None:
    """Register :func:`window_attention` with ``transformers``, whose import takes seconds, as :data:`WINDOWS`."""
    from transformers import AttentionInterface

    AttentionInterface.register(WINDOWS, window_attention)
