"""Draft heads as parameters, new or read in any layout; their training pass, and their files."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from vidspec.errors import ModelError
from vidspec.files import write_whole
from vidspec.models.dflash import BlockDecoder, MarkovStep, draft_ids, load_block_head
from vidspec.models.dflash_checkpoint import block_config, mask_id, place_rotated_first
from vidspec.models.head import read_head
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.training.new_head import begin_head, dense_weight
from vidspec.training.states import TextStates, full_disk_hint

__all__ = ["HeadScores", "SharedWeights", "TrainedBlocks", "TrainedHead"]

#: Weights of total variation and cross-entropy in the loss of a block's tokens.
VARIATION, ENTROPY = 0.9, 0.1


@dataclass(frozen=True)
class SharedWeights:
    """Weights of a target that its head uses and that stay as they are: embedding and output head.

    Attributes:
        embedding: (ids, hidden), unscaled.
        output: (words, hidden), with the padding of the vocabulary.
        vocabulary: number of ids that the target can emit.
        scale: factor of embeddings as the target reads them.
        cap: bound of the target's logits; None for none.
    """

    embedding: torch.Tensor
    output: torch.Tensor
    vocabulary: int
    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, target: VideoLanguageModel) -> SharedWeights:
        """Copy them from a loaded target, so that the rest of it can be released."""
        table = target.language.embed_tokens.weight.detach()
        output = dense_weight(target.decoder.head, table)
        if output is None:
            raise ModelError(f"{target.name}: its output head cannot be read", hint="train without models.weights")
        copied = table.clone()
        output = copied if output.data_ptr() == table.data_ptr() else output.clone()
        language = target.language
        cap = getattr(language.config, "final_logit_softcapping", None)
        scale = float(getattr(language.embed_tokens, "scalar_embed_scale", 1.0))
        return cls(copied, output, target.vocabulary, scale, None if cap is None else float(cap))

    def logits(self, hidden: torch.Tensor, *, capped: bool) -> torch.Tensor:
        """Return logits (n, words) of normed states (n, hidden), with or without the target's cap."""
        logits = F.linear(hidden, self.output.to(hidden.dtype))
        return self.cap * torch.tanh(logits / self.cap) if capped and self.cap is not None else logits


class HeadScores(NamedTuple):
    """Output of a head for drafts of n tokens, each token after the text's own.

    Attributes:
        scores: (G, K, n, V) by which a token is chosen: logits with the Markov bias, or with a selector's score.
        logits: the same without a selector's score, which decide what it chooses from; None without a selector.
        confidences: (G, K, n) probabilities of acceptance; None without a confidence head.
    """

    scores: torch.Tensor
    logits: torch.Tensor | None = None
    confidences: torch.Tensor | None = None


class TrainedHead(nn.Module, ABC):
    """A head whose tensors are parameters in float32; on a GPU it computes in the target's dtype.

    Args:
        config: its config.json.
        learned: tensors by published name; they are copied.
        fixed: tensors that are written as they were read.
        shared: of its target.

    Attributes:
        kind: ``draft.kind`` that reads it.
        taps: blocks of the target whose inputs it reads.
        hidden, heads, depth: its width, its attention heads, and its number of blocks.
        size, first: rows of a draft, and the first of them that drafts.
        one_axis: True if it numbers rows by their place in the prompt.
        whole: True if a draft is trained with all of its rows.
        fall: factor of the loss of a token over that of the one before it.
    """

    kind: str
    taps: tuple[int, ...]
    hidden: int
    heads: int
    depth: int
    size: int
    first: int
    one_axis: bool
    whole: bool
    fall: float

    def __init__(
        self,
        config: dict[str, Any],
        learned: Mapping[str, torch.Tensor],
        fixed: Mapping[str, torch.Tensor],
        shared: SharedWeights,
    ) -> None:
        super().__init__()
        device = shared.embedding.device
        self.config, self.fixed, self.shared = config, fixed, shared
        self.dtype = torch.float32 if device.type == "cpu" else shared.embedding.dtype
        self.parts = nn.ParameterList(tensor.to(device, torch.float32).contiguous() for tensor in learned.values())
        self.tensors: dict[str, torch.Tensor] = dict(zip(learned, self.parts, strict=True))
        self._source = self.tensors

    @abstractmethod
    def forward(self, texts: Sequence[TextStates], anchors: torch.Tensor, rows: int) -> HeadScores:
        """Return what the head makes of the tokens after each anchor.

        Args:
            texts: G captions, their states on the head's device.
            anchors: (G, K) index in the caption of the last token before each draft.
            rows: of a draft.
        """

    @abstractmethod
    def token_losses(self, scores: torch.Tensor, wanted: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Return the losses (K, n) of scores (K, n, V).

        Args:
            scores: float32.
            wanted: (K, n) the caption's tokens, -100 behind its end.
            shares: (K, n, V) the target's distributions, float32.
        """

    def _cast(self) -> dict[str, torch.Tensor]:
        """Return the tensors as they are computed with."""
        return {name: tensor.to(self.dtype) for name, tensor in self._source.items()}

    @contextmanager
    def computing_with(self, weights: dict[str, torch.Tensor]) -> Iterator[None]:
        """Compute with other values of the tensors within the context."""
        self._source = weights
        try:
            yield
        finally:
            self._source = self.tensors

    def _padded(self, texts: Sequence[TextStates], axes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states (G, C, taps * hidden) and places (axes, G, C) of texts, zeros behind each."""
        states, places = (
            nn.utils.rnn.pad_sequence(parts, batch_first=True)
            for parts in ([text.states for text in texts], [text.places[:axes].expand(axes, -1).T for text in texts])
        )
        return states.to(self.dtype), places.to(states.device).permute(2, 0, 1)

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Write the head in its layout, with other values of its tensors; whole, or not at all.

        Raises:
            OutputError: it cannot be written.
        """
        file, dtype = folder / "model.safetensors", self.shared.embedding.dtype
        held = {name: weights[name].detach().to("cpu", dtype).contiguous() for name in self.tensors}
        config = self.config | {"dtype": str(dtype).removeprefix("torch.")}
        with full_disk_hint(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")
            save_file(held | dict(self.fixed), file.with_suffix(".part"))
            os.replace(file.with_suffix(".part"), file)


class TrainedBlocks(TrainedHead):
    """A block head whose tensors are parameters, in the decoder that drafts.

    Args:
        config: its config.json.
        tensors: by published name.
        shared: of its target.
        mask: id of a masked position.
    """

    kind = "dflash"
    fall = math.exp(-1 / 9)

    def __init__(
        self, config: dict[str, Any], tensors: Mapping[str, torch.Tensor], shared: SharedWeights, mask: int
    ) -> None:
        stock, settings = block_config("the head", deepcopy(config))  # transformers writes to what it is given
        fixed = {name: tensor for name, tensor in tensors.items() if name in ("d2t", "t2d")}
        ids, learned = draft_ids("the head", dict(tensors), settings)
        super().__init__(config, learned, fixed, shared)
        self.settings, self.mask, self._stock = settings, mask, stock
        ids = None if ids is None else ids.to(shared.embedding.device)
        self.decoder = BlockDecoder(stock, settings, self._cast(), ids)
        self.decoder.target_logits = lambda hidden: shared.logits(hidden, capped=settings.scaled)
        self.hidden, self.heads, self.depth = self.decoder.hidden, self.decoder.heads, self.decoder.depth
        self.taps = tuple(block + 1 for block in settings.taps)
        self.size, self.first = settings.size, settings.first
        self.one_axis = settings.one_axis or self.decoder.axes == 1
        self.whole = bool(settings.both_ways or settings.kernel)

    def _cast(self) -> dict[str, torch.Tensor]:
        cast = super()._cast()
        place_rotated_first(self._stock, cast)
        return cast

    @classmethod
    def new(cls, target: VideoLanguageModel, shared: SharedWeights, blocks: int, seed: int) -> TrainedBlocks:
        """Return a head begun with the target's last blocks over the states that enter them."""
        config, tensors = begin_head(target, len(shared.output), blocks, seed)
        return cls(config, tensors, shared, int(config["mask_token_id"]))

    @classmethod
    def read(cls, name: str, target: VideoLanguageModel, shared: SharedWeights) -> TrainedBlocks:
        """Return a head as it was saved, in its layout.

        Args:
            name: hub id or folder.
            target: its target.
            shared: of that target.

        Raises:
            ModelError: it is no block head, or does not fit the target.
        """
        load_block_head(name, target, Placement(target.device, target.dtype))  # refuses what does not fit
        config, tensors = read_head(name, "a block head")
        config.pop("quantization_config", None)  # tensors are numbers now, and written as such
        mask = mask_id(name, block_config(name, deepcopy(config))[1], target)
        return cls(config, tensors, shared, mask)

    def forward(self, texts: Sequence[TextStates], anchors: torch.Tensor, rows: int) -> HeadScores:
        decoder, (clips, count), device = self.decoder, anchors.shape, anchors.device
        decoder.tensors.update(self._cast())
        states, places = self._padded(texts, decoder.axes)
        lengths = anchors + torch.tensor([text.prompt_rows for text in texts], device=device)[:, None]  # of contexts
        following = anchors + torch.tensor([text.following for text in texts], device=device)[:, None]
        place = torch.arange(rows, device=device)
        vectors = decoder.context(states.flatten(0, 1))
        before = decoder.rotation(places.flatten(1))
        rotation = decoder.rotation((following[..., None] + place).reshape(1, -1).expand(decoder.axes, -1))
        given = tokens_after(texts, anchors, rows, 0)
        ids = torch.full_like(given, self.mask)
        ids[..., 0] = given[..., 0]
        scale = self.settings.embedding_scale * (self.shared.scale if self.settings.scaled else 1.0)
        out = F.embedding(ids.flatten(), self.shared.embedding).to(self.dtype) * scale
        causal = place[:, None] >= place

        def attention(index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
            old = decoder.entries(index, vectors, before).unflatten(0, (clips, -1))
            window = None if decoder.windows is None else decoder.windows[index]
            sees = visible_rows(lengths, place, old.shape[1], window)
            own = torch.ones_like(causal) if index in decoder.both_ways else causal
            query, new = (one.unflatten(0, (clips, count, rows)) for one in (query, entries))
            return attend(query * decoder.scaling, old, new, sees, own)

        for index in range(decoder.depth):
            out = decoder.block(index, out, rotation, attention)
        drafted = rows - self.first
        hidden = decoder.norm(out).view(clips * count, rows, -1)[:, self.first :]
        return self._scores(hidden, given[..., :drafted].reshape(-1, drafted), (clips, count, drafted))

    def _scores(self, hidden: torch.Tensor, before: torch.Tensor, shape: tuple[int, int, int]) -> HeadScores:
        """Return the scores of states (N, n, hidden) after the tokens before them (N, n)."""
        decoder, (blocks, drafted, _) = self.decoder, hidden.shape
        words = self.shared.vocabulary
        logits = decoder.logits(hidden.flatten(0, 1))[:, :words].view(blocks, drafted, -1)
        scores, embedding = logits, None
        if self.settings.markov:
            steps, memory = list[MarkovStep](), None
            each = 1 if self.settings.markov_kind == "rnn" else drafted  # a state is carried along the block
            for at in range(0, drafted, each):
                tokens, states = before[:, at : at + each].flatten(), hidden[:, at : at + each].flatten(0, 1)
                steps.append(decoder.markov_step(tokens, states, memory))
                memory = steps[-1].memory
            scores = logits + torch.cat([step.bias[:, :words].view(blocks, each, -1) for step in steps], 1)
            embedding = torch.cat([step.embedding.view(blocks, each, -1) for step in steps], 1).flatten(0, 1)
        if self.settings.rank:
            ids = torch.arange(words, device=before.device)[None]
            pairs = decoder.pair_scores(before.reshape(-1, 1), ids, hidden.flatten(0, 1))
            scores = scores + pairs.view_as(scores)
        sure = decoder.confidences(hidden.flatten(0, 1), embedding).view(shape) if self.settings.confidence else None
        return HeadScores(scores.view(*shape, -1), logits.view(*shape, -1) if self.settings.rank else None, sure)

    def token_losses(self, scores: torch.Tensor, wanted: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """See :meth:`TrainedHead.token_losses`: total variation and cross-entropy (DSpark, arXiv 2607.05147)."""
        variation = 1 - torch.minimum(scores.softmax(-1), shares).sum(-1)
        return VARIATION * variation + ENTROPY * cross_entropies(scores, wanted)


def visible_rows(lengths: torch.Tensor, place: torch.Tensor, most: int, window: int | None) -> torch.Tensor:
    """Return which rows of its text each row of a draft sees, (G, K, r, C) bool.

    Args:
        lengths: (G, K) rows of the text before each draft.
        place: (r,) of the rows behind them.
        most: C, rows of the longest text.
        window: of a sliding-window block; None if it sees everything.
    """
    row = torch.arange(most, device=lengths.device)
    sees = (row < lengths[..., None, None]).expand(-1, -1, len(place), -1)
    return sees if window is None else sees & (lengths[..., None, None] + place[:, None] - row < window)


def attend(
    query: torch.Tensor, old: torch.Tensor, new: torch.Tensor, sees: torch.Tensor, own: torch.Tensor
) -> torch.Tensor:
    """Return the attention of many drafts to the texts before them and to their own rows.

    Args:
        query: (G, K, r, heads, d) scaled, of K drafts in each of G texts.
        old: (G, C, 2, kv_heads, d) keys and values of the texts' rows.
        new: (G, K, m, 2, kv_heads, d) of the drafts' rows.
        sees: (G, K, r, C) bool, rows of the text that a row sees.
        own: (r, m) bool, rows of its draft that it sees.

    Returns:
        (G * K * r, heads * d).
    """
    clips, count, rows, _, width = query.shape
    most, kv_heads = old.shape[1], old.shape[3]
    query = query.reshape(clips, count * rows, kv_heads, -1, width).permute(0, 2, 3, 1, 4)  # (G, kv, groups, K * r, d)
    keys, values = old.permute(2, 0, 3, 1, 4)[:, :, :, None]  # (G, kv, 1, C, d)
    new_keys, new_values = new.permute(3, 0, 4, 1, 2, 5)[:, :, :, None]  # (G, kv, 1, K, m, d)
    early = query @ keys.transpose(-1, -2)
    early = early.masked_fill(~sees.reshape(clips, 1, 1, count * rows, most), float("-inf"))
    late = (query.unflatten(3, (count, rows)) @ new_keys.transpose(-1, -2)).masked_fill(~own, float("-inf"))
    shares = torch.cat([early, late.flatten(3, 4)], dim=-1).float().softmax(-1).to(query.dtype)
    mixed: torch.Tensor = shares[..., :most] @ values
    mixed = mixed + (shares[..., most:].unflatten(3, (count, rows)) @ new_values).flatten(3, 4)
    return mixed.permute(0, 3, 1, 2, 4).reshape(clips * count * rows, -1)


def cross_entropies(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropies (..., n) of scores (..., n, V) and tokens (..., n), 0 behind the end."""
    losses = F.cross_entropy(scores.flatten(0, -2), wanted.flatten(), ignore_index=-100, reduction="none")
    return losses.view_as(wanted)


def tokens_after(texts: Sequence[TextStates], anchors: torch.Tensor, rows: int, end: int = -100) -> torch.Tensor:
    """Return the tokens (G, K, rows) of G captions from each anchor (G, K) on, ``end`` after their end."""
    padded = (torch.tensor([*text.tokens, *[end] * rows], device=anchors.device) for text in texts)
    places = anchors[..., None] + torch.arange(rows, device=anchors.device)
    return torch.stack([tokens[place] for tokens, place in zip(padded, places, strict=True)])
