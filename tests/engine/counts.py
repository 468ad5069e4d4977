"""Counts of one decoding pass at published sizes: launches, read-backs, bytes allocated and read. Needs no weights.

The models are on the meta device: every operation is seen with its shapes, nothing is computed. An operation counts as
one kernel, attention of the engine as its two, one of our other kernels as its one, and a product that is added to a
matrix as two: CUDA copies the matrix first. Operations that torch splits further are not seen, so the counts are lower
bounds. In addition the host waits for the token of each pass when decoding token by token; it waits once for a chain of
replayed passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from research.random_decoder import Language, engine_of, language
from research.sizes import Size
from vidspec.engine import attention, few_rows, fused, quantised
from vidspec.engine.block_kernels import BlockKernels
from vidspec.engine.fused import FusedDecoder
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.matrix import Precision
from vidspec.engine.rows import Rows
from vidspec.models.head import HeadDecoder

_META = torch.device("meta")
_PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "linear", "matmul", "few_row_product")
_NOTHING = ("empty", "new_empty", "empty_like", "empty_strided", "detach_")


@dataclass
class Counts:
    """Counts of one pass.

    Attributes:
        kernels: launches by operation.
        reads: operations whose result the host waits for.
        allocated: bytes allocated, once if the pass is replayed.
        replayed: True if the pass is replayed as a graph.
        weights, cache: bytes read.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    allocated: int = 0
    replayed: bool = False
    weights: int = 0
    cache: int = 0

    @property
    def launches(self) -> int:
        return self.kernels.total()

    @property
    def products(self) -> int:
        return sum(self.kernels[name] for name in _PRODUCTS)

    @property
    def per_pass(self) -> int:
        """Bytes that each pass allocates."""
        return 0 if self.replayed else self.allocated


class _Counting(TorchDispatchMode):
    """Counts operations into ``found``."""

    def __init__(self, found: Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {_storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        every = [one for one in tree_leaves((args, kwargs, out)) if isinstance(one, torch.Tensor)]
        if all(one.device.type == "cpu" for one in every):  # the host's own numbers
            return out
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor) and _storage(one) not in given]
        self.found.reads += torch.Tag.data_dependent_output in func.tags
        self.found.allocated += sum(one.nbytes for one in made)
        if name not in _NOTHING and (made or func._schema.is_mutable):
            self.found.kernels[name] += 1
            if name == "addmm" and args[0].ndim == 2:
                self.found.kernels["copy_"] += 1
        return out


class _Unread(TorchFunctionMode):
    """Returns zeros for values read back from the meta device."""

    def __init__(self, found: Counts) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.tolist and args[0].is_meta:
            self.found.reads += 1
            return torch.zeros(args[0].shape).tolist()
        return func(*args, **(kwargs or {}))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@torch.inference_mode()
def counted(
    size: Size,
    kind: Literal["fused", "stock"],
    entries: int,
    *,
    clips: int = 1,
    replayed: bool = True,
    weights: Precision | None = None,
) -> Counts:
    """Count a pass of one row per sequence, with ``entries`` cached entries each, including its token.

    Args:
        size: of the model.
        kind: its decoder.
        entries: see above.
        clips: number of sequences.
        replayed: as a graph, if fused; with the kernel by kernel attention of each sequence otherwise.
        weights: precision of quantised weights, for our kernels.
    """
    found = Counts()
    with _our_kernels(found):
        model = language(size, _META, kind=kind, wanted=weights)
    slab = model.decoder.slab
    spans = [slab.open(entries + 1) for _ in range(clips)]
    for span in spans:
        span.length = entries
    replayed = replayed and kind == "fused"
    found.replayed, found.weights = replayed, model.weight_bytes
    found.cache = clips * (entries + 1) * slab.entry_bytes
    if replayed and isinstance(model.decoder, FusedDecoder):
        _, replay = ReplayedPasses(model.decoder, _attention(found)).step(clips, size.vocabulary, chained=True)
        with _Counting(found):
            replay()
    else:
        engine, batch = engine_of(model), [Rows(span, [0]) for span in spans]
        with _Counting(found), _Unread(found):
            engine.run(batch)
    return found


@torch.inference_mode()
def shared(size: Size, clips: int, rows: int, entries: int) -> Counts:
    """Count a replayed pass over windows of ``rows`` per clip, with its table and the read-back of its tokens."""
    found = Counts()
    with _our_kernels(found):
        model = language(size, _META)
    found.weights, found.cache = model.weight_bytes, clips * (entries + rows) * model.decoder.slab.entry_bytes
    assert isinstance(model.decoder, FusedDecoder)
    model.decoder.graphs = ReplayedPasses(model.decoder, _attention(found))
    spans = [model.decoder.slab.open(entries + 2 * rows) for _ in range(clips)]
    for count in range(2):  # the first makes the tensors of the pass
        for span in spans:
            span.length = entries
        counting = found if count else Counts()
        found.kernels.clear()
        with _Counting(counting), _Unread(counting):
            engine_of(model).run([Rows(span, [0] * rows) for span in spans])
    return found


@torch.inference_mode()
def counted_head(decoder: HeadDecoder, vocabulary: int) -> Counts:
    """Count a replayed pass of a chain that a head drafts, one row."""
    found = Counts(replayed=True)
    decoder.slab.open(8)
    _, replay = ReplayedPasses(decoder, _attention(found)).step(1, vocabulary, chained=True)
    found.kernels.clear()
    with _Counting(found):
        replay()
    return found


@torch.inference_mode()
def counted_eager(model: Language, clips: int = 1, rows: int = 1) -> Counts:
    """Count a pass over ``rows`` of each clip kernel by kernel, with attention by a GPU's flash kernel."""
    found = Counts()

    def flash(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, *, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found.kernels["flash_attention"] += 1
        return torch.empty_like(query), query.new_empty(query.shape[:3])

    engine, spans = engine_of(model), [model.decoder.slab.open(64 + rows) for _ in range(clips)]
    with _Unread(Counts()):
        for _ in range(2):  # entries and recurrent states
            engine.run([Rows(span, [0]) for span in spans])
    with _Counting(found), _Unread(found), patch.object(attention, "_attention_with_lse", flash):
        engine.run([Rows(span, [0] * rows) for span in spans])
    return found


@contextmanager
def _our_kernels(found: Counts) -> Iterator[None]:
    """Make models on the meta device take the kernels of a GPU, whose launches are counted into ``found``."""

    def product(
        rows: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, *added: torch.Tensor | None
    ) -> torch.Tensor:
        found.kernels["few_row_product"] += 1
        return rows.new_empty(len(rows), len(words))

    def norm(rows: torch.Tensor, *_: object) -> torch.Tensor:
        found.kernels["norm"] += 1
        return torch.empty_like(rows)

    def add_norm(residual: torch.Tensor, rows: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        found.kernels["add_norm"] += 1
        return torch.empty_like(rows), torch.empty_like(rows)

    def rotate(*_: object) -> None:
        found.kernels["rotate"] += 1

    def silu_product(gate_up: torch.Tensor) -> torch.Tensor:
        found.kernels["silu_product"] += 1
        return gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)

    with (
        patch.object(fused, "load_block_kernels", lambda _: BlockKernels(norm, add_norm, rotate, silu_product)),
        patch.object(quantised, "kernel_on", lambda *_: "triton"),
        patch.object(few_rows, "load_product", lambda: product),
    ):
        yield


def _attention(found: Counts) -> Callable[..., torch.Tensor]:
    def attend(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        found.kernels["split_attention"] += 2
        return query.new_empty(len(query), query.shape[1] * query.shape[2])

    return attend
