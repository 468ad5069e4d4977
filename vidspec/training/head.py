"""Block heads as parameters, new or read in any layout; their training pass, and their files."""

from __future__ import annotations

import json
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
from vidspec.models.dflash import LEAST, BlockDecoder, MarkovStep, draft_ids, load_block_head
from vidspec.models.dflash_checkpoint import block_config, mask_id, place_rotated_first
from vidspec.models.head import read_head
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.training.new_head import begin_head, dense_weight
from vidspec.training.states import TextStates

__all__ = ["BlockScores", "SharedWeights", "TrainedBlocks"]


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


class BlockScores(NamedTuple):
    """Output of a head for the drafted positions of blocks, each after the text's own tokens.

    Attributes:
        scores: (G, K, n, V) by which a token is chosen: logits with the Markov bias, or with a selector's score.
        logits: the same without a selector's score, which decide what it chooses from; None without a selector.
        confidences: (G, K, n) probabilities of acceptance; None without a confidence head.
    """

    scores: torch.Tensor
    logits: torch.Tensor | None
    confidences: torch.Tensor | None


class TrainedBlocks(nn.Module):
    """A block head whose tensors are parameters, in the decoder that drafts.

    Args:
        config: its config.json.
        tensors: by published name; they are copied in float32.
        shared: of its target.
        mask: id of a masked position.
        dtype: that passes compute in; parameters stay in float32.

    Attributes:
        taps: blocks of the target whose inputs it reads.
        size, first: rows of a block, and the first of them that drafts.
        whole: True if a block is trained and drafted whole.
        least: score of tokens that it cannot draft.
    """

    least = LEAST

    def __init__(
        self,
        config: dict[str, Any],
        tensors: Mapping[str, torch.Tensor],
        shared: SharedWeights,
        mask: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config, self.shared, self.mask, self.dtype = config, shared, mask, dtype
        stock, self.settings = block_config("the head", deepcopy(config))  # transformers writes to what it is given
        device = shared.embedding.device
        # Tensors that are no parameters are written as they were read.
        self.fixed = {name: tensor for name, tensor in tensors.items() if name in ("d2t", "t2d")}
        ids, learned = draft_ids("the head", dict(tensors), self.settings)
        self.parts = nn.ParameterList(tensor.to(device, torch.float32).contiguous() for tensor in learned.values())
        self.tensors: dict[str, torch.Tensor] = dict(zip(learned, self.parts, strict=True))
        self._stock, self._source = stock, self.tensors
        self.decoder = BlockDecoder(stock, self.settings, self._cast(), None if ids is None else ids.to(device))
        self.decoder.target_logits = lambda hidden: shared.logits(hidden, capped=self.settings.scaled)
        self.taps = tuple(block + 1 for block in self.settings.taps)
        self.size, self.first = self.settings.size, self.settings.first
        self.one_axis = self.settings.one_axis or self.decoder.axes == 1
        self.whole = bool(self.settings.both_ways or self.settings.kernel)

    def _cast(self) -> dict[str, torch.Tensor]:
        """Return the tensors as the decoder computes with them."""
        cast = {name: tensor.to(self.dtype) for name, tensor in self._source.items()}
        place_rotated_first(self._stock, cast)
        return cast

    @contextmanager
    def computing_with(self, weights: dict[str, torch.Tensor]) -> Iterator[None]:
        """Compute with other values of the tensors within the context."""
        self._source = weights
        try:
            yield
        finally:
            self._source = self.tensors

    @classmethod
    def new(cls, target: VideoLanguageModel, shared: SharedWeights, blocks: int, seed: int) -> TrainedBlocks:
        """Return a head begun with the target's last blocks over the states that enter them."""
        config, tensors = begin_head(target, len(shared.output), blocks, seed)
        dtype = torch.float32 if target.device.type == "cpu" else target.dtype
        return cls(config, tensors, shared, int(config["mask_token_id"]), dtype)

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
        dtype = torch.float32 if target.device.type == "cpu" else target.dtype
        config.pop("quantization_config", None)
        return cls(config, tensors, shared, mask_id(name, block_config(name, deepcopy(config))[1], target), dtype)

    def forward(self, texts: Sequence[TextStates], anchors: torch.Tensor, rows: int) -> BlockScores:
        """Return what the head makes of the tokens after each anchor.

        Args:
            texts: G captions, their states on the head's device.
            anchors: (G, K) index in the caption of the last token before each block.
            rows: of a block.
        """
        decoder, (clips, count), device = self.decoder, anchors.shape, anchors.device
        decoder.tensors.update(self._cast())
        most, axes = max(len(text.states) for text in texts), decoder.axes
        states = torch.zeros(clips, most, texts[0].states.shape[1], dtype=self.dtype, device=device)
        places = torch.zeros(clips, axes, most, device=device)
        for at, text in enumerate(texts):
            length = len(text.states)
            states[at, :length], places[at, :, :length] = text.states.to(self.dtype), text.places.to(device)[:axes]
        lengths = torch.tensor([text.prompt_rows for text in texts], device=device)[:, None] + anchors  # of contexts
        following = torch.tensor([text.following for text in texts], device=device)
        block_places = (following[:, None] + anchors)[..., None] + torch.arange(rows, device=device)
        vectors = decoder.context(states.flatten(0, 1))
        before = decoder.rotation(places.transpose(0, 1).flatten(1))
        rotation = decoder.rotation(block_places.reshape(1, -1).expand(axes, -1))
        given = torch.stack([tokens_after(text, a, rows, 0) for text, a in zip(texts, anchors, strict=True)])
        ids = torch.full_like(given, self.mask)
        ids[..., 0] = given[..., 0]
        scale = self.settings.embedding_scale * (self.shared.scale if self.settings.scaled else 1.0)
        out = F.embedding(ids.flatten(), self.shared.embedding).to(self.dtype) * scale
        attention = _TrainingAttention(decoder, vectors, before, lengths, most, rows)
        for index in range(decoder.depth):
            out = decoder.block(index, out, rotation, attention)
        drafted = rows - self.first
        hidden = decoder.norm(out).view(clips * count, rows, -1)[:, self.first :]
        return self._scores(hidden, given[..., :drafted].reshape(-1, drafted), (clips, count, drafted))

    def _scores(self, hidden: torch.Tensor, before: torch.Tensor, shape: tuple[int, int, int]) -> BlockScores:
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
        return BlockScores(scores.view(*shape, -1), logits.view(*shape, -1) if self.settings.rank else None, sure)

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        """Write the head in its layout, with other values of its tensors; whole, or not at all."""
        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        held = {name: weights[name].detach().to("cpu", dtype).contiguous() for name in self.tensors}
        save_file(held | self.fixed, part / "model.safetensors")
        config = self.config | {"dtype": str(dtype).removeprefix("torch.")}
        (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in part.iterdir():
            file.replace(folder / file.name)
        part.rmdir()


class _TrainingAttention:
    """Attention of many blocks behind places of several texts: to the context before each, and inside the block.

    Args:
        decoder: of the head.
        vectors: (G * C, hidden) context of all texts, padded to C rows.
        rotation: of these rows.
        lengths: (G, K) rows of the text before each block.
        most: C.
        rows: of a block.
    """

    def __init__(
        self,
        decoder: BlockDecoder,
        vectors: torch.Tensor,
        rotation: tuple[torch.Tensor, ...],
        lengths: torch.Tensor,
        most: int,
        rows: int,
    ) -> None:
        self.decoder, self.vectors, self.rotation, self.lengths, self.most = decoder, vectors, rotation, lengths, most
        clips, count = lengths.shape
        self.shape = clips, count, rows
        place = torch.arange(rows, device=lengths.device)
        self._own = place[:, None] >= place
        #: (G, K, rows, C): entries between each row and each row of the context.
        self._distance = lengths[..., None, None] + place[:, None] - torch.arange(most, device=lengths.device)
        self._before = (torch.arange(most, device=lengths.device) < lengths[..., None])[:, :, None]

    def __call__(self, index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        decoder, (clips, count, rows) = self.decoder, self.shape
        kv_heads, width, most = decoder.kv_heads, decoder.width, self.most
        sees, window = self._before, None if decoder.windows is None else decoder.windows[index]
        if window is not None and window < most + rows:
            sees = sees & (self._distance < window)
        mask = sees.expand(clips, count, rows, most).reshape(clips, 1, 1, count * rows, most)
        own = torch.ones_like(self._own) if index in decoder.both_ways else self._own
        old = decoder.entries(index, self.vectors, self.rotation).view(clips, most, 2, kv_heads, width)
        query = query.view(clips, count * rows, kv_heads, -1, width) * decoder.scaling
        query = query.permute(0, 2, 3, 1, 4)  # (G, kv, groups, K * rows, d)
        keys, values = old.permute(2, 0, 3, 1, 4)[:, :, :, None]  # (G, kv, 1, C, d)
        early = (query @ keys.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        new = entries.view(clips, count, rows, 2, kv_heads, width).permute(3, 0, 4, 1, 2, 5)
        new_keys, new_values = new[:, :, :, None]  # (G, kv, 1, K, rows, d)
        late = query.unflatten(3, (count, rows)) @ new_keys.transpose(-1, -2)
        late = late.masked_fill(~own, float("-inf"))
        shares = torch.cat([early, late.flatten(3, 4)], dim=-1).float().softmax(-1).to(query.dtype)
        mixed: torch.Tensor = shares[..., :most] @ values
        mixed = mixed + (shares[..., most:].unflatten(3, (count, rows)) @ new_values).flatten(3, 4)
        return mixed.permute(0, 3, 1, 2, 4).reshape(clips * count * rows, -1)


def tokens_after(text: TextStates, anchors: torch.Tensor, rows: int, end: int = -100) -> torch.Tensor:
    """Return the caption's tokens (K, rows) from each anchor (K,) on, ``end`` after its end."""
    padded = torch.tensor([*text.tokens, *[end] * rows], device=anchors.device)
    return padded[anchors[:, None] + torch.arange(rows, device=anchors.device)]
