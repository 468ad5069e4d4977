"""A target that is pruned while it reads its prompt: the stock model's own blocks, with rows dropped between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from vidspec.engine.forward import Engine, Passed, State
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError
from vidspec.lossy.base import Choice, Dynamic, Reading, TargetPruner, best, last_row_attention, share_of
from vidspec.lossy.cache import ChosenEntries, LossyCache
from vidspec.models.adapter import Adapter
from vidspec.models.base import Prefix, VideoLanguageModel, VisualTokens

__all__ = ["LossyEngine", "kept_per_layer"]


class _Look(Taps):
    """Keeps what the attention of one block was computed from."""

    def __init__(self) -> None:
        super().__init__(rows=torch.empty(0), visual=torch.empty(0))
        self.seen: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def observe(self, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        self.seen = query, key, scaling


class _Reselect(Taps):
    """Watches one block of each step of decoding and chooses what the later ones read (DyCoke)."""

    def __init__(
        self, similarity: float, layer: int, share: float, depth: int, visual: VisualTokens, chosen: ChosenEntries
    ) -> None:
        super().__init__(rows=torch.empty(0), visual=visual.index)
        self.similarity, self.share = similarity, share
        self.layer, self.depth, self.tokens, self.chosen = layer, depth, visual, chosen
        self.last: torch.Tensor | None = None
        self._at = 0

    def observe(self, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        block, self._at = self._at, (self._at + 1) % self.depth
        if block != self.layer - 1:
            return
        scores = last_row_attention(query, key, self.visual, scaling)
        if self.last is not None:
            alike = float(F.cosine_similarity(scores, self.last.to(scores.device), dim=0))
            if alike >= self.similarity:
                return
        self.last = scores
        kept = best(scores, self.tokens, share_of(len(scores), self.share)).to(self.visual.device)
        stays = torch.ones(self.chosen.prompt, dtype=torch.bool, device=self.visual.device)
        stays[self.visual] = False
        stays[self.visual[kept]] = True
        self.chosen.choose(stays.nonzero()[:, 0])


@dataclass
class _Pruned(State):
    """A sequence of a pruned target; ``watch`` observes each step, ``kept`` counts visual tokens that blocks read."""

    watch: Taps | None = None
    kept: tuple[int, ...] = ()


def kept_per_layer(state: State) -> tuple[int, ...]:
    """How many visual tokens of the prompt each block of a pruned target reads while decoding; () of a whole one."""
    return state.kept if isinstance(state, _Pruned) else ()


class LossyEngine(Engine):
    """Runs a pruned target, one token at a time: for plain decoding.

    Args:
        model: a model of one of the families, with vidspec's attention.
        method: what it drops.

    Raises:
        ModelError: the model's blocks cannot be run one by one, or are too few.
    """

    def __init__(self, model: VideoLanguageModel, method: TargetPruner) -> None:
        super().__init__(model)
        if not isinstance(model, Adapter):
            raise ModelError(f"{model.name}: family {model.family} cannot be pruned", hint="lossy.method: none")
        self.adapter, self.method = model, method
        method.stages(model.layers)  # whether its blocks suffice is said now

    @torch.inference_mode()
    def prefill(
        self, prefix: Prefix, room: int, taps: Taps | None = None, *, keep_visual_states: bool = False
    ) -> State:
        """Read a prompt, dropping what the method drops; see :meth:`Engine.prefill`.

        Raises:
            ValueError: something else wants to observe the pass.
        """
        if taps is not None or keep_visual_states:
            raise ValueError("the prefill of a pruned target shows nothing")
        all_tokens = len(prefix.visual)
        if all_tokens and (kept := self.method.before(prefix)) is not None:
            prefix = prefix.keep(kept.to(prefix.visual.index.device))
        depth, watch = self.model.layers, None
        whole, share = depth, 1.0
        if isinstance(self.method, Dynamic) and depth > 1 and len(prefix.visual):
            whole, share = self.method.reads(depth, len(prefix.visual) / all_tokens)
            chosen = ChosenEntries(prefix.length)
            cache = LossyCache(depth, chosen, whole)
            watch = _Reselect(self.method.similarity, whole, share, depth, prefix.visual, chosen)
        else:
            cache = LossyCache(depth)
        hidden = self._blocks(prefix, cache, room)
        logits = self.model.logits(self.adapter.language.norm(hidden)[:, -1:])[0, 0]
        visual, text = len(prefix.visual), prefix.length - len(prefix.visual)
        read = [rows - text if block < whole else share_of(visual, share) for block, rows in enumerate(cache.lengths)]
        return _Pruned(cache, prefix.next_position - prefix.length, logits, watch=watch, kept=tuple(read))

    @torch.inference_mode()
    def forward(
        self,
        state: State,
        token_ids: Sequence[int],
        *,
        places: Sequence[int] | None = None,
        mask: torch.Tensor | None = None,
    ) -> Passed:
        """Append one token to a sequence; see :meth:`Engine.forward`.

        Raises:
            ValueError: it is more than one, or not a plain one.
        """
        if len(token_ids) != 1 or places is not None or mask is not None:
            raise ValueError("a pruned target decodes token by token")
        model = self.model
        ids = torch.tensor([list(token_ids)], dtype=torch.long, device=model.device)
        positions = torch.tensor([[state.length]], dtype=torch.long, device=model.device) + state.offset
        watch = state.watch if isinstance(state, _Pruned) else None
        hidden = model.run(model.embed(ids), model.text_positions(positions), state.cache, None, watch)
        return Passed(model.logits(hidden)[0], hidden[0])

    def _blocks(self, prefix: Prefix, cache: LossyCache, room: int) -> torch.Tensor:
        """(1, rows, hidden) behind the last block; the cache holds of each block the rows it has read."""
        language, method = self.adapter.language, self.method
        visual, rows = prefix.visual, torch.arange(prefix.length, device=prefix.embeds.device)
        hidden = prefix.embeds
        turned = language.rotary_emb(prefix.embeds, prefix.positions)
        extras = self.adapter.extras(len(rows), visual)
        stages = method.stages(len(language.layers)) if len(visual) else {}
        for index, block in enumerate(language.layers):
            look = _Look() if index + 1 in stages else None
            watching: dict[str, Any] = {} if look is None else {"taps": look}
            cache.reserve(index, len(rows) + room)
            hidden = block(
                hidden,
                attention_mask=None,
                position_embeddings=turned,
                position_ids=None,
                past_key_values=cache,
                use_cache=True,
                **watching,
            )
            levels = extras.get("deepstack_visual_embeds", ())
            if index < len(levels):
                hidden = language._deepstack_process(hidden, extras["visual_pos_masks"], levels[index])
            if look is None or look.seen is None:
                continue
            choice = method.choose(Reading(prefix, visual, hidden[0], *look.seen), stages[index + 1])
            if len(choice.kept) == len(visual):
                continue
            hidden, visual, stays = _dropped(hidden, visual, choice)
            rows = rows[stays.to(rows.device)]
            turned = language.rotary_emb(prefix.embeds, prefix.positions[..., rows])
            extras = self.adapter.extras(len(rows), visual)
        return hidden


def _dropped(
    hidden: torch.Tensor, visual: VisualTokens, choice: Choice
) -> tuple[torch.Tensor, VisualTokens, torch.Tensor]:
    """What a choice leaves of (1, rows, hidden) states and of the visual tokens, and which rows (sorted) it leaves."""
    place = visual.index.device
    kept, into = choice.kept.to(place), choice.into
    deepstack = visual.deepstack
    if into is not None:
        at = visual.index.to(hidden.device)
        hidden = hidden.clone()
        hidden[0, at] = _means(hidden[0, at], into)
        deepstack = tuple(_means(level, into) for level in deepstack)
    stays = torch.ones(hidden.shape[1], dtype=torch.bool, device=place)
    stays[visual.index] = False
    stays[visual.index[kept]] = True
    left = replace(
        visual,
        index=(stays.cumsum(0) - 1)[visual.index[kept]],
        frame=visual.frame[kept],
        row=visual.row[kept],
        column=visual.column[kept],
        required=visual.required[kept],
        features=visual.features[kept],
        deepstack=tuple(level[kept.to(level.device)] for level in deepstack),
    )
    rows = stays.nonzero()[:, 0]
    return hidden[:, rows.to(hidden.device)], left, rows


def _means(states: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """(n, d) in which each token that others go into is the mean of them, in float32; the rest as they are."""
    into = into.to(states.device)
    taking_part = (into >= 0).nonzero()[:, 0]
    centres, group = into[taking_part].unique(return_inverse=True)
    total = torch.zeros(len(centres), states.shape[1], dtype=torch.float32, device=states.device)
    total.index_add_(0, group, states[taking_part].float())
    merged = states.clone()
    merged[centres] = (total / group.bincount(minlength=len(centres))[:, None]).to(states.dtype)
    return merged
