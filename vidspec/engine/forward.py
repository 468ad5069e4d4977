"""Forward passes of one model over one sequence: prefill of a prompt, then passes of a few rows over its cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vidspec.engine.attention import causal_mask
from vidspec.engine.kv_cache import KVCache
from vidspec.engine.taps import Taps
from vidspec.models.base import Prefix, VideoLanguageModel

__all__ = ["Engine", "Passed", "State"]


@dataclass
class State:
    """One sequence in one model.

    ``logits`` (vocabulary,) are those after the prompt. The rotary position of the entry at index i of the cache,
    prompt excluded, is ``i + offset``: kept visual tokens keep their positions, so a pruned prompt is shorter than
    the position that follows it. ``visual_states`` (N, hidden), kept only when asked for, are the last states behind
    the final norm at the prompt's visual positions, each of length 1, in the model's dtype.
    """

    cache: KVCache
    offset: int
    logits: torch.Tensor
    visual_states: torch.Tensor | None = None

    @property
    def length(self) -> int:
        return self.cache.length


class Passed(NamedTuple):
    """What a pass over n tokens gave: ``logits`` (n, vocabulary) and ``hidden`` (n, hidden) behind the final norm."""

    logits: torch.Tensor
    hidden: torch.Tensor


class Engine:
    """Runs a model's language part; stateless but for the model.

    Args:
        model: an adapter; its ``vocabulary`` slices the logits to what target and draft share.
    """

    def __init__(self, model: VideoLanguageModel) -> None:
        self.model = model

    @torch.inference_mode()
    def prefill(
        self, prefix: Prefix, room: int, taps: Taps | None = None, *, keep_visual_states: bool = False
    ) -> State:
        """Read a prompt into a new cache.

        Args:
            prefix: embeddings and positions of the prompt.
            room: further entries the cache must be able to take: max_new_tokens and one window.
            taps: observers of this pass.
            keep_visual_states: whether the state keeps the last states of the N visual tokens, N x hidden numbers.
        """
        model = self.model
        cache = KVCache(model.layers, prefix.length + room)
        watching = nullcontext() if taps is None else taps.watching(model.blocks)
        with watching:
            hidden = model.run(prefix.embeds, prefix.positions, cache, None, taps, prefix.visual)
        logits = model.logits(hidden[:, -1:])[0, 0]
        states = _units(hidden[0, prefix.visual.index.to(hidden.device)]) if keep_visual_states else None
        return State(cache, prefix.next_position - prefix.length, logits, states)

    @torch.inference_mode()
    def forward(
        self,
        state: State,
        token_ids: Sequence[int],
        *,
        places: Sequence[int] | None = None,
        mask: torch.Tensor | None = None,
    ) -> Passed:
        """Append tokens to a sequence.

        Args:
            state: the sequence; its cache grows by len(token_ids) entries.
            token_ids: n tokens.
            places: how many tokens of the sequence come before each of them; they follow each other if None. Nodes
                of a tree at equal depth have equal places.
            mask: (1, 1, n, length + n) additive; causal if None.
        """
        model, n, length = self.model, len(token_ids), state.cache.length
        ids = torch.tensor([list(token_ids)], dtype=torch.long, device=model.device)
        counted = range(length, length + n) if places is None else places
        positions = torch.tensor([list(counted)], dtype=torch.long, device=model.device) + state.offset
        if mask is None:
            mask = causal_mask(n, length + n, model.dtype, model.device)
        hidden = model.run(model.embed(ids), model.text_positions(positions), state.cache, mask)
        return Passed(model.logits(hidden)[0], hidden[0])


def _units(states: torch.Tensor) -> torch.Tensor:
    """Each row at length 1, computed in float32, in the dtype it came in."""
    return torch.nn.functional.normalize(states.float(), dim=-1).to(states.dtype)
