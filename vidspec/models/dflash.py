"""Block heads (DFlash, arXiv 2602.06036): loading, and the blocks that fill masked positions.

Each row that the target has read gives a context vector: its states after several blocks of the target, concatenated,
projected by ``fc`` and normed. Every block of the head attends from a draft's rows to keys and values of all context
vectors, by its own projections, and of the draft's rows. Keys and values of context vectors are kept, and nothing else
of a row of the target enters the head: no block runs over a prompt.

The layout is that of published checkpoints (``DFlashDraftModel``): blocks of Qwen3's form, ``fc``, ``hidden_norm`` and
``norm``; embedding and output head are the target's. Keys of the head itself stand in ``dflash_config`` or at the top
level of config.json. A draft's rows see each other both ways, except in sliding-window blocks, unless the config says
``is_causal`` (or ``causal``) for all.

The second version (``DFlash2DraftModel``) adds two things. Around attention and MLP, the rows of a block are convolved
with the rows before them, by coefficients that depend on the row (``attention_conv``, ``mlp_conv``). And a selector
scores pairs: the logit of a token at a position is raised by how well it follows the one chosen before it, given the
position's state (``candidate_selector``), so that the tokens of a block belong together. A config may name either.

DSpark (arXiv 2607.05147) adds two others. A Markov head gives the logits of a position a low-rank bias by the token
before it (``markov_head``), so that the tokens of a block are chosen from left to right after one pass; a gate of the
position's state, or a state that is carried along the block, may shape it. And a confidence head estimates how probably
a position is accepted if all before it are (``confidence_head``). Both are read in the layout of ``speculators``, in
which the row of the last emitted token may draft too, and a head may have an output head over fewer ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn import functional as F

from vidspec.engine.block_kernels import rms_norm
from vidspec.engine.decoder import AttendFunction, sliding_windows
from vidspec.engine.rotary import RotaryPositions, RotaryTables, rotate
from vidspec.engine.slab import Slab
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import checkpoint_errors
from vidspec.models.dflash_checkpoint import (
    CONFIDENCE,
    MARKOV,
    SELECTOR,
    BlockSettings,
    block_config,
    check_target,
    head_shapes,
    mask_id,
    place_rotated_first,
    rotated_width,
    sections_fit,
)
from vidspec.models.head import Head, HeadDecoder, check_tensors, other_device_reason, read_head, target_embedding
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel

#: Logit of an id that a head cannot draft: finite, as all logits must be.
LEAST = -1e4


class MarkovStep(NamedTuple):
    """Output of a Markov head for a position, given the token before it.

    Attributes:
        bias: (1, V) added to the logits of the position.
        embedding: (1, rank) of the token before.
        memory: (1, rank) carried to the next position by a head of the kind ``rnn``.
    """

    bias: torch.Tensor
    embedding: torch.Tensor
    memory: torch.Tensor


class BlockDecoder(HeadDecoder):
    """Blocks of Qwen3's form as a :class:`~vidspec.engine.decoder.Decoder`.

    Args:
        config: the head's config as a ``Qwen3Config``.
        settings: of the head.
        tensors: by published name, on their device and in their dtype.
        ids: (draft vocabulary,) the target's id of each logit of the head's own output head; None with the target's.
        budget: bytes of the slab.
    """

    reads_context = True

    def __init__(
        self,
        config: StockConfig,
        settings: BlockSettings,
        tensors: Mapping[str, torch.Tensor],
        ids: torch.Tensor | None = None,
        budget: int | None = None,
    ) -> None:
        from transformers.activations import ACT2FN
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

        self.tensors, self._budget, self.settings, self._ids = dict(tensors), budget, settings, ids
        self._activation: Callable[[torch.Tensor], torch.Tensor] = ACT2FN[config.hidden_act]
        self.hidden, self._eps = int(config.hidden_size), float(config.rms_norm_eps)
        self.depth, self.width = int(config.num_hidden_layers), int(config.head_dim)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.logit_width, self.pass_width = int(config.vocab_size), 3 * int(config.intermediate_size) + 10 * self.hidden
        self.scaling, self.windows, self.both_ways = self.width**-0.5, sliding_windows(config), settings.both_ways
        like = tensors["fc.weight"]
        self.device, rope = like.device, config.rope_parameters
        interleaved = bool(rope.get("mrope_interleaved"))
        turned = rotated_width(config)
        plain = {**config.to_dict(), "head_dim": turned, "rope_parameters": {**rope, "partial_rotary_factor": 1.0}}
        rotary = Qwen3RotaryEmbedding(type(config)(**plain))
        rotary.register_buffer("inv_freq", F.pad(rotary.inv_freq, (0, (self.width - turned) // 2)))  # the rest stays
        fitting = rope if sections_fit(config) else {}  # those of a wider target are inherited, and not used
        self._positions = RotaryPositions(rotary, fitting, like, interleaved=interleaved)
        self.axes = self._positions.axes
        #: Output head of the target, which maps states (n, hidden) to logits; set before a pass.
        self.target_logits: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._target_cap: float | None = None  # of the target's logits, without which the head was trained

    def bind_target(self, target: VideoLanguageModel) -> None:
        """Take the embedding and the output head of the target, for drafting."""
        self._context_weights = self._join_context_weights()  # before a pass is captured with their addresses
        self.target_logits = target.decoder.logits
        embed, scale = target_embedding(target, self.device), self.settings.embedding_scale
        if not self.settings.scaled:
            language = target.language
            scale /= float(getattr(language.embed_tokens, "scalar_embed_scale", 1.0))
            self._target_cap = getattr(language.config, "final_logit_softcapping", None)
        scaled = embed if scale == 1 else lambda ids: embed(ids) * scale
        self.bind(scaled, None, other_device_reason(target, self.device))

    @cached_property
    def slab(self) -> Slab:
        dtype = self.tensors["fc.weight"].dtype
        return Slab(self.kv_heads, self.width, dtype, [self.device] * self.depth, self._budget)

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        return self._positions.tables(positions)

    def context(self, states: torch.Tensor) -> torch.Tensor:
        """Return the context vectors (n, hidden) of the target's states (n, blocks * target's hidden)."""
        return self._rms_norm("hidden_norm", self._linear("fc", states))

    def entries(self, index: int, rows: torch.Tensor, rotation: RotaryTables) -> torch.Tensor:
        """Return a block's rotated keys and its values (n, 2, kv_heads, d) of normed rows (n, hidden)."""
        of = f"layers.{index}.self_attn"
        key, value = (
            self._linear(f"{of}.{name}", rows).view(len(rows), self.kv_heads, self.width)
            for name in ("k_proj", "v_proj")
        )
        return torch.stack([rotate(self._rms_norm(f"{of}.k_norm", key), rotation), value], dim=1)

    def context_entries(self, vectors: torch.Tensor, rotation: RotaryTables) -> torch.Tensor:
        """Return rotated keys and values of all blocks, (depth, 2, kv_heads, n, d), of context vectors (n, hidden)."""
        weight, bias, norms = self._context_weights
        shape = len(vectors), self.depth, 2, self.kv_heads, self.width
        keys, values = F.linear(vectors, weight, bias).view(shape).unbind(2)
        keys = F.rms_norm(keys, keys.shape[-1:], None, self._eps) * norms
        turned = rotate(keys.flatten(1, 2), rotation).view_as(values)
        return torch.stack([turned, values]).permute(2, 0, 3, 1, 4)

    def _join_context_weights(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Join the weights, and the biases, of all blocks' keys and values, so that the tensors are views of them.

        Returns:
            Weight and bias, None without, of all projections; and the key norms' weights (depth, 1, d).
        """
        names = [f"layers.{index}.self_attn.{name}" for index in range(self.depth) for name in ("k_proj", "v_proj")]
        joined: list[torch.Tensor | None] = []
        for kind in ("weight", "bias"):
            parts = {key: self.tensors[key] for name in names if (key := f"{name}.{kind}") in self.tensors}
            whole = torch.cat([*parts.values()]) if parts else None
            if whole is not None:
                views = whole.split([len(part) for part in parts.values()])
                self.tensors.update(zip(parts, views, strict=True))
            joined.append(whole)
        weight, bias = joined
        assert weight is not None
        norms = [self.tensors[f"layers.{index}.self_attn.k_norm.weight"] for index in range(self.depth)]
        return weight, bias, torch.stack(norms)[:, None]

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        of, kernel = f"layers.{index}", self.settings.kernel
        normed = self._rms_norm(f"{of}.input_layernorm", rows)
        after = None
        if kernel:
            normed, after = self._convolve_before(f"{of}.attention_conv", normed)
        query = self._linear(f"{of}.self_attn.q_proj", normed).view(len(rows), self.heads, self.width)
        query = rotate(self._rms_norm(f"{of}.self_attn.q_norm", query), rotation)
        attended = attention(index, query, self.entries(index, normed, rotation))
        mixed = self._linear(f"{of}.self_attn.o_proj", attended)
        if after is not None:
            mixed = self._convolve(f"{of}.attention_conv", mixed, after, 1)
        rows = rows + mixed
        inner = self._rms_norm(f"{of}.post_attention_layernorm", rows)
        if kernel:
            inner, after = self._convolve_before(f"{of}.mlp_conv", inner)
        gate = self._activation(self._linear(f"{of}.mlp.gate_proj", inner))
        mixed = self._linear(f"{of}.mlp.down_proj", gate * self._linear(f"{of}.mlp.up_proj", inner))
        if after is not None:
            mixed = self._convolve(f"{of}.mlp_conv", mixed, after, 1)
        return rows + mixed

    def _convolve_before(self, name: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a part's input after its convolution, and the coefficients of that of its output."""
        groups = self.hidden // self.settings.kernel_group
        before, after = self._linear(f"{name}.kernel_projection", rows).view(len(rows), 2, -1, groups).unbind(1)
        return self._convolve(name, rows, before, 0), after

    def _convolve(self, name: str, rows: torch.Tensor, given: torch.Tensor, side: int) -> torch.Tensor:
        """Sum each row of a whole block and those before it, weighted by channel.

        Args:
            name: of the convolution.
            rows: (n, hidden) of blocks, one after the other.
            given: (n, kernel, groups), added to the weights of each group's channels.
            side: 0 for the input of a part, 1 for its output.
        """
        base = self.tensors[f"{name}.base_kernel"][side].view(self.settings.kernel, -1, self.settings.kernel_group)
        grouped = rows.view(len(rows), -1, self.settings.kernel_group)
        total = (base[0] + given[:, 0, :, None]) * grouped
        place = torch.arange(len(rows), device=rows.device) % self.settings.size
        for back in range(1, self.settings.kernel):
            earlier = F.pad(grouped[: len(rows) - back], (0, 0, 0, 0, back, 0))
            earlier = torch.where((place >= back)[:, None, None], earlier, 0)  # none of another block
            total = total + (base[back] + given[:, back, :, None]) * earlier
        return total.view(len(rows), -1)

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        return self._rms_norm("norm", rows)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._ids is not None:
            return self._spread(self._linear("lm_head", hidden), LEAST)
        assert self.target_logits is not None
        logits = self.target_logits(hidden)
        if self._target_cap is not None:
            logits = self._target_cap * torch.atanh((logits / self._target_cap).clamp(-0.999999, 0.999999))
        if self.settings.multiplier != 1:
            logits = logits * self.settings.multiplier
        if (cap := self.settings.soft_cap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def pair_scores(self, before: torch.Tensor, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the selector adds to the logits of tokens after others: (n, b, c).

        Args:
            before: (n, b) tokens that may stand before each position.
            tokens: (n, c) of the position.
            hidden: (n, hidden) of the position, after the norm.
        """
        projected = self._linear(f"{SELECTOR}.hidden_projection", hidden)
        first = self.tensors[f"{SELECTOR}.predecessor_codebook"][before] * projected[:, None]
        return first @ self.tensors[f"{SELECTOR}.successor_codebook"][tokens].transpose(1, 2)

    def markov_step(self, before: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor | None = None) -> MarkovStep:
        """Return what the Markov head makes of the next position of a block.

        Args:
            before: (1,) the token before the position.
            hidden: (1, hidden) of the position, after the norm.
            memory: (1, rank) of the position before; None for the first.
        """
        embedding = F.embedding(before, self.tensors[f"{MARKOV}.markov_w1.weight"])
        memory, shaped = torch.zeros_like(embedding) if memory is None else memory, embedding
        if self.settings.markov_kind == "gated":
            gate = self._linear(f"{MARKOV}.gate_proj", torch.cat([hidden, embedding], dim=-1))
            shaped = gate.sigmoid() * embedding
        elif self.settings.markov_kind == "rnn":
            joined = self._linear(f"{MARKOV}.joint_proj", torch.cat([memory, embedding, hidden], dim=-1))
            gate, candidate, out = joined.chunk(3, dim=-1)
            memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh()
            shaped = out.tanh()
        bias = self._linear(f"{MARKOV}.markov_w2", shaped)
        return MarkovStep(bias if self._ids is None else self._spread(bias, 0.0), embedding, memory)

    def confidences(self, hidden: torch.Tensor, embedding: torch.Tensor | None = None) -> torch.Tensor:
        """Return (n,) float32: how probably positions are accepted if those before them are.

        Args:
            hidden: (n, hidden) of the positions, after the norm.
            embedding: (n, rank) of the tokens before, for a head that reads them.
        """
        if self.settings.confidence_markov and embedding is not None:
            hidden = torch.cat([hidden, embedding], dim=-1)
        return self._linear(CONFIDENCE, hidden)[:, 0].float().sigmoid()

    def _spread(self, values: torch.Tensor, rest: float) -> torch.Tensor:
        """Return values (n, draft vocabulary) at the target's ids, and ``rest`` at all others."""
        assert self._ids is not None
        return values.new_full((len(values), self.logit_width), rest).index_copy_(1, self._ids, values)

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _rms_norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, self.tensors[f"{name}.weight"], self._eps)


class BlockHead(Head):
    """A loaded block head.

    Args:
        name: the name the user gave.
        config: its config as a ``Qwen3Config``.
        settings: of the head.
        tensors: by published name.
        target: the model whose states, embeddings and output head it reads.
        device: device of the head; its dtype is the target's.

    Attributes:
        size: rows of a block, that of the last emitted token included.
        first: the first of them that drafts.
        most: tokens that a block drafts at most.
        in_turn: True if each token of a block is chosen after the one before it.
        markov, recurrent, confident: True with a Markov head, with one of the kind ``rnn``, and with a confidence head.
        mask: id of a masked position.
        candidates: tokens of each position among which a selector chooses; 0 without one.
        whole: True if a block is drafted whole, whatever is proposed of it.
    """

    decoder: BlockDecoder

    def __init__(
        self,
        name: str,
        config: StockConfig,
        settings: BlockSettings,
        tensors: Mapping[str, torch.Tensor],
        target: VideoLanguageModel,
        device: torch.device,
    ) -> None:
        self.name, self.target, self.device, self.notes = name, target, device, settings.notes
        self.vocabulary, self.tokens = target.vocabulary, torch.arange(target.vocabulary)
        self.size, self.first, self.most = settings.size, settings.first, settings.most
        self.markov, self.confident = settings.markov > 0, settings.confidence
        self.recurrent = self.markov and settings.markov_kind == "rnn"
        self.in_turn, self.mask = bool(settings.markov or settings.rank), mask_id(name, settings, target)
        self.blocks = tuple(block + 1 for block in settings.taps)  # the input of the next one
        self.candidates = min(settings.candidates, target.vocabulary) if settings.rank else 0
        self.one_axis, self.whole = settings.one_axis, bool(settings.both_ways or settings.kernel)
        check_target(name, config, settings, target)
        ids, tensors = draft_ids(name, dict(tensors), settings)
        check_tensors(name, tensors, head_shapes(config, settings, int(target.language.config.hidden_size)))
        place_rotated_first(config, tensors)
        placed = {key: tensor.to(device, target.dtype).contiguous() for key, tensor in tensors.items()}
        self.decoder = BlockDecoder(config, settings, placed, None if ids is None else ids.to(device))
        self.decoder.bind_target(target)

    @torch.inference_mode()
    def joined(self, states: torch.Tensor) -> torch.Tensor:
        return self.decoder.context(states.to(self.device))


def draft_ids(
    name: str, tensors: dict[str, torch.Tensor], settings: BlockSettings
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """Return the target's ids of a reduced vocabulary, None without one, and the tensors that are computed with.

    ``d2t`` holds what is added to a draft id; ``t2d``, and copies of the target's embedding, head and norm, which
    ``speculators`` may save, are left out.

    Raises:
        ModelError: there is no ``d2t``, or one of another length.
    """
    offsets, count = tensors.pop("d2t", None), settings.draft_vocabulary
    for key in ("t2d", "embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"):
        tensors.pop(key, None)
    if count is None:
        tensors.pop("lm_head.weight", None)
        return None, tensors
    if offsets is None or len(offsets) != count:
        raise ModelError(f"{name}: has no d2t of {count} ids, as many as its draft_vocab_size", kind="unreadable")
    return torch.arange(count) + offsets.long(), tensors


def load_block_head(name: str, target: VideoLanguageModel, where: Placement) -> BlockHead:
    """Load a block head for a target.

    Args:
        name: hub id or folder.
        target: the model it was trained for.
        where: its device; the dtype is the target's.

    Raises:
        ModelError: not found, not such a head, of an unknown layout, or for another target.
    """
    given, tensors = read_head(name, "a block head")
    with checkpoint_errors(name):
        config, settings = block_config(name, given)
    return BlockHead(name, config, settings, tensors, target, where.device)
