"""Gemma 4's stock blocks as a decoder: two kinds of blocks, shared caches, an input for each block."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch

from vidspec.engine.attention import PassAttention
from vidspec.engine.decoder import AttendFunction
from vidspec.engine.device import to_device
from vidspec.engine.history import suppress
from vidspec.engine.rotary import RotaryTables
from vidspec.engine.rows import Rows
from vidspec.engine.slab import Slab
from vidspec.engine.stock import StockDecoder, device_of
from vidspec.engine.stock_types import StockModel

KINDS = ("full_attention", "sliding_attention")


class _PassKeysValues(UserDict[str, tuple[torch.Tensor, ...]]):
    """Keys and values of a pass that later blocks attend to, by kind of block.

    The blocks of a model that is split over devices move it in place; a plain dict would be copied for each block.
    """

    def to(self, device: torch.device, non_blocking: bool = False) -> _PassKeysValues:
        for kind, pair in self.items():
            self[kind] = tuple(tensor.to(device, non_blocking=non_blocking) for tensor in pair)
        return self


class Gemma4Decoder(StockDecoder):
    """Decoder of Gemma 4: sliding and full-attention blocks with different heads; the last blocks store no keys.

    Those attend to the entries of the last storing block of their kind, so the slab has no layers for them. Models with
    per-layer inputs get one for every block of each token, in addition to its embedding; a visual token takes that of
    the padding token, as in transformers. In the larger models the tokens of a frame see each other in sliding blocks.
    """

    def __init__(self, language: StockModel, head: StockModel, why: str, budget: int | None = None) -> None:
        super().__init__(language, head, why, budget)
        config = language.config
        self.scaling = 1.0  # queries and keys are normalised
        self.mutual = config.use_bidirectional_attention == "vision"
        self.kinds: Sequence[str] = config.layer_types
        self.kept = self.depth - int(config.num_kv_shared_layers)
        #: Block whose keys and values each block attends to.
        self.sources = [
            block if block < self.kept else max(i for i in range(self.kept) if self.kinds[i] == self.kinds[block])
            for block in range(self.depth)
        ]
        self._shared = _PassKeysValues()  # keys and values of the pass, by kind
        self._inputs: torch.Tensor | None = None  # (1, R, depth, d) of the pass

    @property
    def attended(self) -> Sequence[int]:
        return self.sources

    @cached_property
    def slab(self) -> Slab:
        layers = self.language.layers[: self.kept]
        widths = [int(layer.self_attn.head_dim) for layer in layers]
        heads = [layer.self_attn.k_proj.out_features // width for layer, width in zip(layers, widths, strict=True)]
        dtype = self.language.embed_tokens.weight.dtype
        return Slab(heads, widths, dtype, [device_of(layer) for layer in layers], self._budget)

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        like = torch.empty(0, dtype=self.language.dtype, device=positions.device)
        return tuple(part for kind in KINDS for part in self.language.rotary_emb(like, positions, kind))

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        if index == 0:
            self._shared, self._inputs = _PassKeysValues(), self._per_layer(rows, cast(PassAttention, attention).batch)
        source, pair = self.sources[index], 2 * KINDS.index(self.kinds[index])
        own = {} if self._inputs is None else {"per_layer_input": self._inputs[:, :, index]}
        out = self.language.layers[index](
            rows[None],
            **own,
            shared_kv_states=self._shared,
            position_embeddings=rotation[pair : pair + 2],
            attention=lambda _, query, entries: attention(source, query, entries),
        )
        return cast(torch.Tensor, out)[0]

    def _per_layer(self, rows: torch.Tensor, batch: Sequence[Rows]) -> torch.Tensor | None:
        language = self.language
        if not getattr(language, "hidden_size_per_layer_input", None):  # none in unified models
            return None
        parts = []
        for part in batch:
            if part.prompt is None:
                parts.append(to_device(torch.tensor(part.token_ids), rows.device))
                continue
            prompt: Any = part.prompt  # the adapter's full prompt, with its ids
            ids = prompt.token_ids.clone()
            ids[prompt.visual.index] = language.config.pad_token_id
            parts.append(ids[slice(*part.stretch)])
        tokens = language.get_per_layer_inputs(torch.cat(parts)[None])
        return language.project_per_layer_inputs(rows[None], tokens)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, cap = self.head(hidden), self.language.config.final_logit_softcapping
        return suppress(logits if cap is None else torch.tanh(logits / cap) * cap, self.suppressed)
