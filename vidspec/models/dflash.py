"""Block heads (DFlash, arXiv 2602.06036): loading, checks and the blocks that fill masked positions.

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
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from vidspec.engine.decoder import AttendFunction, Decoder, sliding_windows
from vidspec.engine.rotary import STATIC_ROPE, RotaryPositions, RotaryTables, mrope_sections, rotate
from vidspec.engine.slab import Slab
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import check_kernels, load_error, refuse_assistant, weight_source
from vidspec.models.head import Head, HeadDecoder, other_device_reason, target_embedding
from vidspec.models.hub import retries_offline
from vidspec.models.placement import Placement
from vidspec.models.quantised import read_head_tensors
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import weight_file

__all__ = ["BlockDecoder", "BlockHead", "BlockSettings", "block_config", "load_block_head"]

#: Keys of a config that are read or have no effect on a draft, apart from those of ``Qwen3Config`` below.
_KNOWN = frozenset(
    {
        *("architectures", "auto_map", "attention_dropout", "block_size", "bos_token_id", "causal", "dflash_config"),
        *("dtype", "eos_token_id", "final_logit_softcapping", "initializer_range", "input_embedding_scale"),
        *("is_causal", "mask_token", "mask_token_id", "max_window_layers", "model_type", "num_target_layers"),
        *(
            "output_multiplier",
            "pad_token_id",
            "quantization_config",
            "target_layer_ids",
            "tie_word_embeddings",
            "torch_dtype",
        ),
        *("transformers_version", "use_cache", "conv_kernel_size", "conv_group_size"),
        *("selector_rank", "selector_top_k"),
    }
)
_QWEN3 = frozenset(
    {
        *("attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size", "layer_types"),
        *("max_position_embeddings", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
        *("rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "use_sliding_window"),
        "vocab_size",
    }
)
_SELECTOR, _CODEBOOKS = "candidate_selector", ("predecessor_codebook", "successor_codebook")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class BlockSettings(NamedTuple):
    """Settings of a block head beyond its blocks.

    Attributes:
        size: tokens of a block: the last emitted one, then masked ones.
        mask: token id of a masked position; None if the config has a mask token instead.
        mask_token: its text.
        taps: target blocks whose output is read.
        both_ways: blocks of the head in which a draft's rows see each other.
        embedding_scale, multiplier: factors of the target's embeddings and of the logits.
        soft_cap: bound of the logits; None for none.
        kernel, kernel_group: rows of the convolutions, 0 for none; channels that share a row's coefficients.
        rank, candidates: width of the selector's codebooks, 0 for none; tokens of each position that it scores.
    """

    size: int
    mask: int | None
    mask_token: str
    taps: tuple[int, ...]
    both_ways: frozenset[int]
    embedding_scale: float = 1.0
    multiplier: float = 1.0
    soft_cap: float | None = None
    kernel: int = 0
    kernel_group: int = 16
    rank: int = 0
    candidates: int = 0


class BlockDecoder(HeadDecoder):
    """Blocks of Qwen3's form as a :class:`~vidspec.engine.decoder.Decoder`.

    Args:
        config: the head's config as a ``Qwen3Config``.
        settings: of the head.
        tensors: by published name, on their device and in their dtype.
        budget: bytes of the slab.
    """

    reads_context = True

    def __init__(
        self,
        config: StockConfig,
        settings: BlockSettings,
        tensors: Mapping[str, torch.Tensor],
        budget: int | None = None,
    ) -> None:
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

        self.tensors, self._budget, self.settings = tensors, budget, settings
        self.hidden, self._eps = int(config.hidden_size), float(config.rms_norm_eps)
        self.depth, self.width = int(config.num_hidden_layers), int(config.head_dim)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.logit_width, self.pass_width = int(config.vocab_size), 3 * int(config.intermediate_size) + 10 * self.hidden
        self.scaling, self.windows, self.both_ways = self.width**-0.5, sliding_windows(config), settings.both_ways
        like = tensors["fc.weight"]
        self.device, rope = like.device, config.rope_parameters
        interleaved = bool(rope.get("mrope_interleaved"))
        self._positions = RotaryPositions(Qwen3RotaryEmbedding(config), rope, like, interleaved=interleaved)
        self.axes = self._positions.axes
        self._target: Decoder | None = None

    def bind_target(self, target: VideoLanguageModel) -> None:
        """Take the embedding and the output head of the target."""
        self._target = target.decoder
        embed, scale = target_embedding(target, self.device), self.settings.embedding_scale
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
        """Return a block's rotated keys and its values (n, 2, kv_heads, d) of normed rows or context vectors."""
        of = f"layers.{index}.self_attn"
        key, value = (
            self._linear(f"{of}.{name}", rows).view(len(rows), self.kv_heads, self.width)
            for name in ("k_proj", "v_proj")
        )
        return torch.stack([rotate(self._rms_norm(f"{of}.k_norm", key), rotation), value], dim=1)

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
        gate = F.silu(self._linear(f"{of}.mlp.gate_proj", inner))
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
        assert self._target is not None
        logits = self._target.logits(hidden)
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
        projected = self._linear(f"{_SELECTOR}.hidden_projection", hidden)
        first = self.tensors[f"{_SELECTOR}.predecessor_codebook"][before] * projected[:, None]
        return first @ self.tensors[f"{_SELECTOR}.successor_codebook"][tokens].transpose(1, 2)

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _rms_norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, rows.shape[-1:], self.tensors[f"{name}.weight"], self._eps)


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
        size: tokens of a block, the last emitted one included.
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
        self.name, self.target, self.device = name, target, device
        self.vocabulary, self.tokens = target.vocabulary, torch.arange(target.vocabulary)
        self.size, self.mask = settings.size, _mask_id(name, settings, target)
        self.blocks = tuple(block + 1 for block in settings.taps)  # the input of the next one
        self.candidates = min(settings.candidates, target.vocabulary) if settings.rank else 0
        self.whole = bool(settings.both_ways or settings.kernel)
        _check_target(name, config, settings, target)
        _check_tensors(name, config, settings, tensors, target)
        placed = {key: tensor.to(device, target.dtype).contiguous() for key, tensor in tensors.items()}
        self.decoder = BlockDecoder(config, settings, placed)
        self.decoder.bind_target(target)

    @torch.inference_mode()
    def joined(self, states: torch.Tensor) -> torch.Tensor:
        return self.decoder.context(states.to(self.device))


@retries_offline
def load_block_head(name: str, target: VideoLanguageModel, where: Placement) -> BlockHead:
    """Load a block head for a target, without running code or reading pickles of its repository.

    Args:
        name: hub id or folder.
        target: the model it was trained for.
        where: its device; the dtype is the target's.

    Raises:
        ModelError: not found, not such a head, of an unknown layout, or for another target.
    """
    source = weight_source(name, "a block head")
    try:
        check_kernels(name, source)
        refuse_assistant(name, source)
        given = json.loads(weight_file(source, "config.json").read_text(encoding="utf-8"))
        config, settings = block_config(name, given)
        tensors = {key.removeprefix("model."): tensor for key, tensor in read_head_tensors(name, source, given).items()}
    except ModelError:
        raise
    except Exception as error:  # from the hub, broken JSON or safetensors, or values of the config
        raise load_error(name, error) from error
    return BlockHead(name, config, settings, tensors, target, where.device)


def block_config(name: str, given: Mapping[str, Any]) -> tuple[StockConfig, BlockSettings]:
    """Return a head's config as a ``Qwen3Config``, and its settings.

    Args:
        name: the name the user gave.
        given: its config.json.

    Raises:
        ModelError: it is not a block head, or has a key that is not known.
    """
    import transformers

    own = dict(given.get("dflash_config") or {})
    if not (own or "mask_token_id" in given):
        raise ModelError(
            f"{name}: is not a block head: its config has no dflash_config",
            hint="--draft takes the head of the target, with draft.kind: dflash",
            kind="unreadable",
        )
    unknown = [
        key for key, value in {**given, **own}.items() if key not in _KNOWN | _QWEN3 and value not in (None, False)
    ]
    if unknown:
        raise ModelError(f"{name}: its config has {unknown[0]}, which is not known", kind="unreadable")
    blocks_of = {key: value for key, value in given.items() if key in _QWEN3 and value is not None}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := blocks_of.get(key), dict) and (rope.get("rope_type") or rope.get("type")) == "mrope":
            blocks_of[key] = {**{k: v for k, v in rope.items() if k != "type"}, "rope_type": "default"}
    if "sliding_attention" in (given.get("layer_types") or ()):
        blocks_of.setdefault("use_sliding_window", True)  # without it Qwen3Config drops the window
    config = transformers.Qwen3Config(**blocks_of)

    def key_of(key: str, default: Any = None) -> Any:
        found = own.get(key, given.get(key))
        return default if found is None else found

    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * int(config.num_hidden_layers))
    causal = key_of("is_causal", key_of("causal"))
    sees = [kind != "sliding_attention" if causal is None else not causal for kind in kinds]
    layers, blocks = int(key_of("num_target_layers", 0)), int(config.num_hidden_layers)
    cap = float(key_of("final_logit_softcapping", 0.0))
    return config, BlockSettings(
        int(key_of("block_size", 16)),
        None if key_of("mask_token_id") is None else int(key_of("mask_token_id")),
        str(key_of("mask_token", "<|MASK|>")),
        tuple(map(int, key_of("target_layer_ids") or _default_taps(layers, blocks))),
        frozenset(index for index, both in enumerate(sees) if both),
        float(key_of("input_embedding_scale", 1.0)),
        float(key_of("output_multiplier", 1.0)),
        cap if cap > 0 else None,
        int(key_of("conv_kernel_size", 0)),
        int(key_of("conv_group_size", 16)),
        int(key_of("selector_rank", 0)),
        int(key_of("selector_top_k", 0)),
    )


def _default_taps(layers: int, blocks: int) -> list[int]:
    """Return the target blocks that a head reads if its config names none: spread from the second to the third last."""
    if blocks == 1 or layers < 4:
        return [layers // 2]
    return [round(1 + index * (layers - 4) / (blocks - 1)) for index in range(blocks)]


def _mask_id(name: str, settings: BlockSettings, target: VideoLanguageModel) -> int:
    mask = settings.mask
    if mask is None:
        mask = target.tokenizer.get_vocab().get(settings.mask_token)
    if mask is None or not 0 <= mask < int(target.model.lm_head.weight.shape[0]):
        raise ModelError(
            f"{name}: its mask token {settings.mask_token if mask is None else mask} is not one of {target.name}",
            hint="name the head that was trained for this target",
            kind="tokenizer",
        )
    return mask


def _check_target(name: str, config: StockConfig, settings: BlockSettings, target: VideoLanguageModel) -> None:
    """Refuse a head of another target, and what its blocks do not compute.

    Raises:
        ModelError: the first difference.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    hidden, layers = int(target.language.config.hidden_size), target.layers
    sections, beyond = mrope_sections(rope), [block for block in settings.taps if not 0 <= block < layers]
    for broken, problem in (
        (config.hidden_act != "silu", f"has the activation {config.hidden_act}, and silu is what is computed"),
        (rope.get("rope_type", "default") not in STATIC_ROPE, f"has rotary positions of type {rope.get('rope_type')}"),
        (
            sections is not None and 2 * sum(sections) != int(config.head_dim),
            f"its mrope_section {sections} does not fit",
        ),
        (
            settings.kernel > 0 and hidden % max(1, settings.kernel_group) > 0,
            f"its conv_group_size {settings.kernel_group} does not divide {hidden}",
        ),
        (settings.rank > 0 and settings.candidates < 1, "its selector has no selector_top_k"),
        (settings.size < 2, f"has blocks of {settings.size} tokens, and two is the least"),
        (bool(beyond), f"reads states of block {beyond[0] if beyond else 0} of a target that has {layers}"),
        (int(config.hidden_size) != hidden, f"is {config.hidden_size} wide, and {target.name} is {hidden} wide"),
        (
            int(config.vocab_size) < target.vocabulary,
            f"was made for a vocabulary of {config.vocab_size}, and {target.name} has {target.vocabulary} ids",
        ),
    ):
        if broken:
            raise ModelError(f"{name}: {problem}", hint="name the head that was trained for this target")


def _check_tensors(
    name: str,
    config: StockConfig,
    settings: BlockSettings,
    tensors: Mapping[str, torch.Tensor],
    target: VideoLanguageModel,
) -> None:
    """Refuse missing and unknown tensors, and shapes that differ from the config.

    Raises:
        ModelError: the first difference.
    """
    hidden, inner, width = int(config.hidden_size), int(config.intermediate_size), int(config.head_dim)
    heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    joined = len(settings.taps) * int(target.language.config.hidden_size)
    expected: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, joined)}
    expected |= {f"{norm}.weight": (hidden,) for norm in ("norm", "hidden_norm")}
    if settings.rank:
        expected |= {f"{_SELECTOR}.{book}": (int(config.vocab_size), settings.rank) for book in _CODEBOOKS}
        expected[f"{_SELECTOR}.hidden_projection.weight"] = settings.rank, hidden
    rows = {"q_proj": heads * width, "k_proj": kv_heads * width, "v_proj": kv_heads * width, "o_proj": hidden}
    for index in range(int(config.num_hidden_layers)):
        of = f"layers.{index}"
        for projection in _PROJECTIONS:
            columns = heads * width if projection == "o_proj" else hidden
            expected[f"{of}.self_attn.{projection}.weight"] = rows[projection], columns
            if getattr(config, "attention_bias", False):
                expected[f"{of}.self_attn.{projection}.bias"] = (rows[projection],)
        expected |= {f"{of}.self_attn.{norm}.weight": (width,) for norm in ("q_norm", "k_norm")}
        expected |= {f"{of}.mlp.{part}.weight": (inner, hidden) for part in ("gate_proj", "up_proj")}
        expected[f"{of}.mlp.down_proj.weight"] = hidden, inner
        expected |= {f"{of}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        if settings.kernel:
            numbers = 2 * settings.kernel * (hidden // settings.kernel_group)
            for part in ("attention_conv", "mlp_conv"):
                expected[f"{of}.{part}.base_kernel"] = 2, settings.kernel, hidden
                expected[f"{of}.{part}.kernel_projection.weight"] = numbers, hidden
    for key in sorted({*expected, *tensors}):
        if key not in tensors:
            raise ModelError(f"{name}: {key} is not in its files", kind="unreadable")
        if key not in expected:
            raise ModelError(f"{name}: has the tensor {key}, which is not known", kind="unreadable")
        if (shape := tuple(tensors[key].shape)) != expected[key]:
            raise ModelError(
                f"{name}: {key} has the shape {shape}, and its config says {expected[key]}", kind="unreadable"
            )
