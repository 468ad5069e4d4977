"""Configs and tensors of block heads in the published layout, and what is refused of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from vidspec.engine.rotary import STATIC_ROPE, mrope_sections
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["CODEBOOKS", "SELECTOR", "BlockSettings", "block_config", "check_target", "check_tensors", "mask_id"]

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
SELECTOR, CODEBOOKS = "candidate_selector", ("predecessor_codebook", "successor_codebook")
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


def mask_id(name: str, settings: BlockSettings, target: VideoLanguageModel) -> int:
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


def check_target(name: str, config: StockConfig, settings: BlockSettings, target: VideoLanguageModel) -> None:
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


def check_tensors(
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
        expected |= {f"{SELECTOR}.{book}": (int(config.vocab_size), settings.rank) for book in CODEBOOKS}
        expected[f"{SELECTOR}.hidden_projection.weight"] = settings.rank, hidden
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
