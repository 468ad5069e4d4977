"""Block heads as parameters: begun with the last blocks of a target, or read in any layout; and their training pass.

A new head has the form of DSpark (arXiv 2607.05147) in the layout of ``speculators``: blocks of Qwen3's form, a Markov
head, confidences. Its blocks are sliding-window ones with a window as long as the text, in which rows of a draft see
none after them: a draft of a few tokens is a pass of a few rows.
"""

from __future__ import annotations

import json
import os
import statistics
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

from vidspec.engine.fused import FusedDecoder
from vidspec.engine.matrix import Matrix
from vidspec.errors import ModelError
from vidspec.models.checkpoint_config import weight_source
from vidspec.models.dflash import LEAST, BlockDecoder, MarkovStep, draft_ids, load_block_head
from vidspec.models.dflash_checkpoint import block_config, mask_id, place_rotated_first
from vidspec.models.placement import Placement
from vidspec.models.quantised import read_head_tensors
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import weight_file
from vidspec.training.states import TextStates

__all__ = ["BlockScores", "SharedWeights", "TrainedBlocks"]

#: Tokens of a block, and most numbers of a token in the Markov head.
BLOCK, RANK = 16, 256
#: States of the target that a new head reads.
TAPS = 5
#: Share of the other tapped states in a new head's context beside the one that enters the copied blocks.
OTHERS = 0.1
_LINEARS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
_BLOCK_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


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
        output = _dense(target.decoder.head, table)
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
        self.decoder.bind_logits(lambda hidden: shared.logits(hidden, capped=self.settings.scaled))
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
        config = new_config(target, len(shared.output), blocks)
        layers = config["transformer_layer_config"]
        hidden, inner, width = layers["hidden_size"], layers["intermediate_size"], layers["head_dim"]
        heads, kv_heads, rank = layers["num_attention_heads"], layers["num_key_value_heads"], config["markov_rank"]
        taps, words = config["aux_hidden_state_layer_ids"], int(layers["vocab_size"])
        rng = torch.Generator().manual_seed(seed)

        def random(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=rng).mul_(columns**-0.5)

        made = {"fc.weight": OTHERS * random(hidden, len(taps) * hidden)}
        entering = taps.index(target.layers - blocks)
        made["fc.weight"][:, entering * hidden : (entering + 1) * hidden] += torch.eye(hidden)
        rows = (heads * width, kv_heads * width, kv_heads * width, hidden, inner, inner, hidden)
        columns = (hidden, hidden, hidden, heads * width, hidden, hidden, inner)
        shapes: dict[str, tuple[int, ...]] = dict(zip(sum(_LINEARS, ()), zip(rows, columns, strict=True), strict=True))
        shapes |= dict.fromkeys(_BLOCK_NORMS, (hidden,)) | dict.fromkeys(_HEAD_NORMS, (width,))
        for index in range(blocks):
            known = _block_weights(target, target.layers - blocks + index)
            for name, shape in shapes.items():
                begun = known.get(name)
                if begun is None or begun.shape != shape:
                    begun = torch.ones(shape) if len(shape) == 1 else random(*shape)
                made[f"layers.{index}.{name}.weight"] = begun.cpu()
        norm = _norm_weight(target.language, "norm")
        made["norm.weight"] = torch.ones(hidden) if norm is None else norm.cpu()
        made["hidden_norm.weight"] = made["layers.0.input_layernorm.weight"].clone()
        made["markov_head.markov_w1.weight"] = torch.randn(words, rank, generator=rng)
        made["markov_head.markov_w2.weight"] = torch.zeros(words, rank)
        made["confidence_head.proj.weight"] = torch.zeros(1, hidden + rank)
        made["confidence_head.proj.bias"] = torch.zeros(1)
        dtype = torch.float32 if target.device.type == "cpu" else target.dtype
        return cls(config, made, shared, int(config["mask_token_id"]), dtype)

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
        source = weight_source(name, "a block head")
        config = json.loads(weight_file(source, "config.json").read_text(encoding="utf-8"))
        tensors = {
            key.removeprefix("model."): tensor for key, tensor in read_head_tensors(name, source, config).items()
        }
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


def new_config(target: VideoLanguageModel, words: int, blocks: int) -> dict[str, Any]:
    """Return the config of a new head in the layout of ``speculators``.

    Raises:
        ModelError: the target has fewer blocks.
    """
    language, layers = target.language.config, target.layers
    last_block = language.per_layer_config[-1] if getattr(language, "per_layer_config", None) else language
    if not 1 <= blocks < layers:
        raise ModelError(f"{target.name} has {layers} blocks, and its head cannot have {blocks}", hint="--blocks 1")
    hidden, heads = int(language.hidden_size), int(last_block.num_attention_heads)
    inner = getattr(last_block, "intermediate_size", None)
    longest = int(language.max_position_embeddings)
    rope = getattr(language, "rope_parameters", None) or {}
    thetas = [
        part["rope_theta"]
        for part in (rope, *(one for one in rope.values() if isinstance(one, dict)))
        if "rope_theta" in part
    ]
    last = layers - blocks  # numbers states by the block that reads them
    taps = sorted({round(min(2, last) + at * (last - min(2, last)) / (TAPS - 1)) for at in range(TAPS)})
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK}],
            "verifier": {"name_or_path": _absolute(target.name), "architectures": [type(target.model).__name__]},
        },
        "transformer_layer_config": {
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": int(inner) if isinstance(inner, int) else 3 * hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": int(last_block.num_key_value_heads),
            "head_dim": int(getattr(last_block, "head_dim", None) or hidden // heads),
            "num_hidden_layers": blocks,
            "attention_bias": False,
            "rms_norm_eps": float(getattr(language, "rms_norm_eps", 1e-6)),
            "rope_parameters": {"rope_type": "default", "rope_theta": thetas[0] if thetas else 1e6},
            "max_position_embeddings": longest,
            "vocab_size": words,
            "layer_types": ["sliding_attention"] * blocks,
            "sliding_window": longest,
            "use_sliding_window": True,
        },
        "draft_vocab_size": words,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": taps,
        "mask_token_id": _mask_token(target, words),
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "markov_rank": max(16, min(RANK, hidden // 4)),
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _absolute(name: str) -> str:
    """Return a folder's name so that it is found from every working directory; a hub id as it is."""
    return os.path.abspath(name) if os.path.isdir(name) else name


def _mask_token(target: VideoLanguageModel, words: int) -> int:
    """Return an id for masked positions that no text has and whose embedding is not empty."""
    table: torch.Tensor = target.language.embed_tokens.weight.detach()
    usual = statistics.median(table[:256].float().norm(dim=-1).tolist())
    candidates: list[int] = [target.visual_id, words - 1, *sorted(target.eos)]
    fitting = [one for one in candidates if one < min(words, len(table))]
    return next((one for one in fitting if float(table[one].float().norm()) > 0.1 * usual), fitting[-1])


def _dense(layer: Any, like: torch.Tensor) -> torch.Tensor | None:
    """Return the weight (out, in) of a layer or matrix as numbers, on the device and in the dtype of ``like``."""
    matrix = getattr(layer, "matrix", layer)
    if isinstance(matrix, Matrix):
        return matrix.dense(like.dtype, like.device)
    weight: torch.Tensor | None = getattr(layer, "weight", None)
    if weight is None or weight.dim() != 2 or not weight.numel() or not weight.is_floating_point():
        return None
    return weight.detach().to(like)


def _block_weights(target: VideoLanguageModel, index: int) -> dict[str, torch.Tensor]:
    """Return weights of a block in float32 by the names that a head gives them, as far as the block has them."""
    layer, decoder, like = target.language.layers[index], target.decoder, target.language.embed_tokens.weight
    found: dict[str, torch.Tensor] = {}
    if isinstance(decoder, FusedDecoder):
        rows = [heads * decoder.width for heads in (decoder.heads, decoder.kv_heads, decoder.kv_heads)]
        for names, matrix in zip(_LINEARS, decoder.blocks[index].matrices, strict=True):
            weight = matrix.dense(like.dtype, like.device)
            parts = weight.split(rows if len(names) == 3 else len(weight) // len(names))
            found |= {name: part.float() for name, part in zip(names, parts, strict=True)}
    else:
        for name in sum(_LINEARS, ()):
            if (weight_of := _dense(_submodule(layer, name), like)) is not None:
                found[name] = weight_of.float()
    norms = ((name, _norm_weight(layer, name)) for name in (*_BLOCK_NORMS, *_HEAD_NORMS))
    return found | {name: weight for name, weight in norms if weight is not None}


def _submodule(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


@torch.no_grad()
def _norm_weight(module: Any, name: str) -> torch.Tensor | None:
    """Return what a norm multiplies with, whatever it stores: its output for ones; None if there is none."""
    norm = _submodule(module, name)
    weight = getattr(norm, "weight", None)
    if weight is None or weight.dim() != 1:
        return None
    made: torch.Tensor = norm(torch.ones(1, len(weight), dtype=weight.dtype, device=weight.device))[0].float()
    usable = bool(made.isfinite().all()) and float(made.abs().mean()) > 1e-3  # a norm that centres gives zeros
    return made if usable else None
