"""EAGLE-3 heads as parameters: the pass that trains them drafts from the head's own states, as inference does."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from vidspec.models.dflash import LEAST
from vidspec.models.eagle3 import Eagle3Decoder, StateProjection, canonical_key, head_config, load_eagle3, tap_blocks
from vidspec.models.head import read_head
from vidspec.models.placement import Placement
from vidspec.training.head import (
    HeadScores,
    SharedWeights,
    TrainedHead,
    attend,
    tokens_after,
    visible_rows,
)
from vidspec.training.states import TextStates

if TYPE_CHECKING:
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["TrainedChain"]


class TrainedChain(TrainedHead):
    """An EAGLE-3 head whose tensors are parameters.

    A pair joins the target's state of a row and the embedding of the next row's token. The first token of a draft comes
    from the target's states, each later one from the head's own state before it (training-time test; Li et al. 2025,
    arXiv 2503.01840, Sec. 3.2). Seven tokens are drafted, and the loss falls by a factor of 0.8, as the authors train.

    Args:
        name: hub id or folder.
        target: its target.
        shared: of that target.

    Raises:
        ModelError: it is no EAGLE-3 head, or does not fit the target.
    """

    kind = "eagle3"
    depth, size, first, whole, fall = 1, 7, 0, True, 0.8

    def __init__(self, name: str, target: VideoLanguageModel, shared: SharedWeights) -> None:
        loaded = load_eagle3(name, target, Placement(target.device, target.dtype))  # refuses what does not fit
        config, tensors = read_head(name, "an EAGLE-3 head")
        config.pop("quantization_config", None)  # tensors are numbers now, and written as such
        names = {key: canonical_key(key) for key in tensors}
        fixed = {key for key, known in names.items() if known in ("d2t", "t2d", "embed_tokens.weight")}
        learned = {key: tensor for key, tensor in tensors.items() if key not in fixed}
        super().__init__(config, learned, {key: tensors[key] for key in fixed}, shared)
        device, self._names = shared.embedding.device, names
        held = {names[key]: tensors[key].to(device) for key in fixed}
        self._stock = head_config(deepcopy(config))
        self.taps = tap_blocks(name, self._stock, target.layers)
        self.hidden, self.heads = loaded.decoder.hidden, loaded.decoder.heads
        self.one_axis = loaded.one_axis or loaded.decoder.axes == 1
        self._embedding = held.get("embed_tokens.weight")
        self._ids = torch.arange(len(tensors[next(key for key in learned if names[key] == "lm_head.weight")])).to(
            device
        )
        if "d2t" in held:
            self._ids = self._ids + held["d2t"].long()

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        if self._embedding is not None:
            return F.embedding(ids, self._embedding).to(self.dtype)
        return F.embedding(ids, self.shared.embedding).to(self.dtype) * self.shared.scale

    def forward(self, texts: Sequence[TextStates], anchors: torch.Tensor, rows: int) -> HeadScores:
        (clips, count), device = anchors.shape, anchors.device
        cast = {self._names[key]: tensor for key, tensor in self._cast().items()}
        decoder = Eagle3Decoder(self._stock, {key: one for key, one in cast.items() if not key.startswith("fc")})
        states, places = self._padded(texts, decoder.axes)
        joined = StateProjection(cast, float(self._stock.rms_norm_eps))(states)
        pairs = [torch.tensor([*text.prompt[1:], *text.tokens], device=device) for text in texts]
        embeddings = self._embed(torch.nn.utils.rnn.pad_sequence(pairs, batch_first=True))
        context, rows_read = _PairEntries(), torch.cat([embeddings, joined], -1).flatten(0, 1)
        decoder.block(0, rows_read, decoder.rotation(places.flatten(1)), context)
        old = context.entries.unflatten(0, (clips, -1))
        lengths = anchors + torch.tensor([text.prompt_rows - 1 for text in texts], device=device)[:, None]
        following = anchors + torch.tensor([text.following - 1 for text in texts], device=device)[:, None]
        tokens = tokens_after(texts, anchors, rows, 0)
        state = joined[torch.arange(clips, device=device)[:, None], lengths].flatten(0, 1)
        own, found = list[torch.Tensor](), list[torch.Tensor]()

        def attention(index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
            own.append(entries.view(clips, count, *entries.shape[1:]))
            last = torch.tensor([len(own) - 1], device=device)
            sees = visible_rows(lengths, last, old.shape[1], None if decoder.windows is None else decoder.windows[0])
            every = torch.ones(1, len(own), dtype=torch.bool, device=device)
            query = query.view(clips, count, 1, *query.shape[1:]) * decoder.scaling
            return attend(query, old, torch.stack(own, 2), sees, every)

        for at in range(rows):
            pair = torch.cat([self._embed(tokens[..., at].flatten()), state], -1)
            rotation = decoder.rotation((following + at).reshape(1, -1).expand(decoder.axes, -1))
            state = decoder.block(0, pair, rotation, attention)
            found.append(self._spread(decoder.logits(decoder.norm(state))))
        return HeadScores(torch.stack(found, 1).unflatten(0, (clips, count)))

    def _spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (n, V) of all of the target's ids, those that the head cannot draft the least."""
        words = self.shared.vocabulary
        known = self._ids < words  # the others are padding
        every = logits.new_full((len(logits), words), LEAST)
        return every.index_copy(1, self._ids[known], logits[:, known])

    def token_losses(self, scores: torch.Tensor, wanted: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """See :meth:`TrainedHead.token_losses`: cross-entropy with the target's shares of the ids it drafts."""
        drafted = shares * (scores > LEAST)
        drafted = drafted / drafted.sum(-1, keepdim=True).clamp(min=1e-6)
        return -(drafted * scores.log_softmax(-1)).sum(-1)


class _PairEntries:
    """Attention of pairs that are context only: it keeps their keys and values, and no row goes on."""

    def __call__(self, index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        self.entries = entries
        return query.new_empty(0, query.shape[1] * query.shape[2])

    def needed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return none of the rows."""
        return rows[:0]
