"""Configs and tensors of block heads in the published layouts, and what is refused of them.

Two layouts are read: that of the authors (``DFlashDraftModel``, ``DFlash2DraftModel``), whose keys stand at the top
level and in ``dflash_config``, and that of ``speculators`` (``speculators_model_type`` of ``dflash``, ``dflash2`` or
``dspark``), whose blocks are described by ``transformer_layer_config``. The second numbers tapped states by the block
that reads them, one more than the first, trains with unscaled embeddings and logits, and with one position per row
although its config inherits the target's ``mrope_section``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import torch

from vidspec.engine.rotary import STATIC_ROPE, mrope_sections
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import unread_keys_note
from vidspec.models.head import block_shapes, plain_rope
from vidspec.models.video_language_model import VideoLanguageModel

#: Kinds of Markov heads (DSpark, arXiv 2607.05147).
MarkovKind: TypeAlias = Literal["vanilla", "gated", "rnn"]

#: Keys of ``Qwen3Config`` that do not describe the blocks.
_NOT_OF_BLOCKS = {"architectures", "dtype", "max_window_layers", "model_type", "transformers_version"}
#: Kinds of block heads of ``speculators``, with the defaults of their configs.
_SPECULATORS: Mapping[str, Mapping[str, Any]] = {
    "dflash": {},
    "dflash2": {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16},
    "dspark": {
        "sample_from_anchor": True,
        "markov_rank": 256,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
SELECTOR, CODEBOOKS = "candidate_selector", ("predecessor_codebook", "successor_codebook")
MARKOV, CONFIDENCE = "markov_head", "confidence_head.proj"


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
        first: first row of a block that drafts: 0 if the row of the last emitted token does (``sample_from_anchor``).
        draft_vocabulary: ids of the head's own output head; None if it uses the target's.
        markov, markov_kind: rank of the Markov head, 0 for none; its kind.
        confidence, confidence_markov: has a confidence head; which also reads the Markov embedding.
        one_axis: trained with one position per row, whatever ``mrope_section`` says.
        scaled: reads embeddings as the target scales them, and logits as its output head caps them.
        notes: the note on keys of the config that are not read; empty without any.
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
    first: int = 1
    draft_vocabulary: int | None = None
    markov: int = 0
    markov_kind: MarkovKind = "vanilla"
    confidence: bool = False
    confidence_markov: bool = False
    one_axis: bool = False
    scaled: bool = True
    notes: tuple[str, ...] = ()

    @property
    def most(self) -> int:
        """Tokens that a block drafts at most."""
        return self.size - self.first


def block_config(name: str, given: Mapping[str, Any]) -> tuple[StockConfig, BlockSettings]:
    """Return a head's config as a ``Qwen3Config``, and its settings.

    Args:
        name: the name the user gave.
        given: its config.json.

    Raises:
        ModelError: it is not a block head.
    """
    import transformers

    one_axis = "speculators_model_type" in given
    if one_axis:
        given = _speculators_config(name, given)
    own = dict(given.get("dflash_config") or {})
    if not (own or "mask_token_id" in given):
        raise ModelError(
            f"{name}: is not a block head: its config has no dflash_config",
            hint="--draft takes the head of the target, with draft.kind: dflash",
            kind="unreadable",
        )
    of_blocks = {*transformers.Qwen3Config().to_dict(), "rope_scaling", "rope_theta"} - _NOT_OF_BLOCKS
    blocks_of = {key: value for key, value in given.items() if key in of_blocks and value is not None}
    plain_rope(blocks_of)
    if "sliding_attention" in (given.get("layer_types") or ()):
        blocks_of.setdefault("use_sliding_window", True)  # without it Qwen3Config drops the window
    config = transformers.Qwen3Config(**blocks_of)

    read = {"dflash_config", "quantization_config"}

    def key_of(key: str, default: Any = None) -> Any:
        read.add(key)
        found = own.get(key, given.get(key))
        return default if found is None else found

    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * int(config.num_hidden_layers))
    causal = key_of("is_causal", key_of("causal"))
    sees = [kind != "sliding_attention" if causal is None else not causal for kind in kinds]
    layers, blocks = int(key_of("num_target_layers", 0)), int(config.num_hidden_layers)
    cap, markov = float(key_of("final_logit_softcapping", 0.0)), int(key_of("markov_rank", 0))
    reduced = key_of("draft_vocab_size", config.vocab_size)
    kind = str(key_of("markov_head_type", "vanilla"))
    if kind not in get_args(MarkovKind):
        raise ModelError(f"{name}: its markov_head_type {kind} is not one of {', '.join(get_args(MarkovKind))}")
    settings = BlockSettings(
        size=int(key_of("block_size", 16)),
        mask=None if key_of("mask_token_id") is None else int(key_of("mask_token_id")),
        mask_token=str(key_of("mask_token", "<|MASK|>")),
        taps=tuple(map(int, key_of("target_layer_ids") or _default_taps(layers, blocks))),
        both_ways=frozenset(index for index, both in enumerate(sees) if both),
        embedding_scale=float(key_of("input_embedding_scale", 1.0)),
        multiplier=float(key_of("output_multiplier", 1.0)),
        soft_cap=cap if cap > 0 else None,
        kernel=int(key_of("conv_kernel_size", 0)),
        kernel_group=int(key_of("conv_group_size", 16)),
        rank=int(key_of("selector_rank", 0)),
        candidates=int(key_of("selector_top_k", 0)),
        first=0 if key_of("sample_from_anchor", False) else 1,
        draft_vocabulary=None if reduced == config.vocab_size else int(reduced),
        markov=markov,
        markov_kind=cast("MarkovKind", kind),
        confidence=bool(key_of("enable_confidence_head", False)),
        confidence_markov=bool(markov and key_of("confidence_head_with_markov", False)),
        one_axis=one_axis,
        scaled=not one_axis,
    )
    return config, settings._replace(notes=unread_keys_note(name, [given, own], read))


def _speculators_config(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of ``speculators`` in the authors' keys, with its defaults (0.9).

    Raises:
        ModelError: it is of a kind that is no block head.
    """
    kind = given["speculators_model_type"]
    if kind not in _SPECULATORS:
        raise ModelError(
            f"{name}: is a head of the kind {kind}, and block heads are {', '.join(_SPECULATORS)}",
            hint="an EAGLE-3 head needs draft.kind: eagle3" if kind == "eagle3" else "name a head of another kind",
            kind="unreadable",
        )
    elsewhere = {"architectures", "aux_hidden_state_layer_ids", "dtype", "sliding_window_non_causal"}
    own = {key: value for key, value in given.items() if key not in {*elsewhere, "transformer_layer_config"}}
    ids = given.get("aux_hidden_state_layer_ids")
    if not ids:
        raise ModelError(f"{name}: its config has no aux_hidden_state_layer_ids", kind="unreadable")
    non_causal = given.get("sliding_window_non_causal", kind == "dflash2")
    return {
        **given.get("transformer_layer_config", {}),
        **_SPECULATORS[kind],
        **own,
        "block_size": given.get("block_size", 8),
        "target_layer_ids": [int(block) - 1 for block in ids],
        "is_causal": False if non_causal else None,
    }


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
    from transformers.activations import ACT2FN

    rope = getattr(config, "rope_parameters", None) or {}
    hidden, layers = int(target.language.config.hidden_size), target.layers
    beyond = [block for block in settings.taps if not -1 <= block < layers]
    for broken, problem in (
        (config.hidden_act not in ACT2FN, f"has the activation {config.hidden_act}, which is not known"),
        (rope.get("rope_type", "default") not in STATIC_ROPE, f"has rotary positions of type {rope.get('rope_type')}"),
        (
            not settings.one_axis and not sections_fit(config),
            f"its mrope_section {mrope_sections(rope)} does not fit",
        ),
        (
            settings.kernel > 0 and hidden % max(1, settings.kernel_group) > 0,
            f"its conv_group_size {settings.kernel_group} does not divide {hidden}",
        ),
        (settings.rank > 0 and settings.candidates < 1, "its selector has no selector_top_k"),
        (settings.most < 1, f"has blocks of {settings.size} tokens, and two is the least"),
        (bool(beyond), f"reads states of block {beyond[0] if beyond else 0} of a target that has {layers}"),
        (int(config.hidden_size) != hidden, f"is {config.hidden_size} wide, and {target.name} is {hidden} wide"),
        (
            int(config.vocab_size) < target.vocabulary,
            f"was made for a vocabulary of {config.vocab_size}, and {target.name} has {target.vocabulary} ids",
        ),
    ):
        if broken:
            raise ModelError(f"{name}: {problem}", hint="name the head that was trained for this target")


def head_shapes(config: StockConfig, settings: BlockSettings, target_hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a head's tensors by name, for a target with states of ``target_hidden`` numbers."""
    hidden, width = int(config.hidden_size), int(config.head_dim)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, len(settings.taps) * target_hidden)}
    shapes |= {f"{norm}.weight": (hidden,) for norm in ("norm", "hidden_norm")}
    if settings.draft_vocabulary is not None:
        shapes["lm_head.weight"] = settings.draft_vocabulary, hidden
    shapes |= _markov_shapes(settings, int(config.vocab_size), hidden)
    if settings.rank:
        shapes |= {f"{SELECTOR}.{book}": (int(config.vocab_size), settings.rank) for book in CODEBOOKS}
        shapes[f"{SELECTOR}.hidden_projection.weight"] = settings.rank, hidden
    for index in range(int(config.num_hidden_layers)):
        of = f"layers.{index}"
        shapes |= block_shapes(config, of, hidden, bias=bool(getattr(config, "attention_bias", False)))
        shapes |= {f"{of}.self_attn.{norm}.weight": (width,) for norm in ("q_norm", "k_norm")}
        shapes |= {f"{of}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        if settings.kernel:
            numbers = 2 * settings.kernel * (hidden // settings.kernel_group)
            for part in ("attention_conv", "mlp_conv"):
                shapes[f"{of}.{part}.base_kernel"] = 2, settings.kernel, hidden
                shapes[f"{of}.{part}.kernel_projection.weight"] = numbers, hidden
    return shapes


def _markov_shapes(settings: BlockSettings, vocabulary: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Markov head and of a confidence head, with their shapes."""
    rank, shapes = settings.markov, dict[str, tuple[int, ...]]()
    if rank:
        shapes[f"{MARKOV}.markov_w1.weight"] = vocabulary, rank
        shapes[f"{MARKOV}.markov_w2.weight"] = settings.draft_vocabulary or vocabulary, rank
        if settings.markov_kind == "gated":
            shapes |= {f"{MARKOV}.gate_proj.weight": (rank, hidden + rank), f"{MARKOV}.gate_proj.bias": (rank,)}
        elif settings.markov_kind == "rnn":
            joint = 3 * rank, 2 * rank + hidden
            shapes |= {f"{MARKOV}.joint_proj.weight": joint, f"{MARKOV}.joint_proj.bias": joint[:1]}
    if settings.confidence:
        shapes |= {f"{CONFIDENCE}.weight": (1, hidden + rank * settings.confidence_markov), f"{CONFIDENCE}.bias": (1,)}
    return shapes


def rotated_width(config: StockConfig) -> int:
    """Return how much of the width of a head is rotated (``partial_rotary_factor``)."""
    return int(config.head_dim * float((config.rope_parameters or {}).get("partial_rotary_factor", 1.0)))


def sections_fit(config: StockConfig) -> bool:
    """Return True if the sections of M-RoPE in a head's config, if it has any, have all its frequencies."""
    sections = mrope_sections(config.rope_parameters)
    return sections is None or 2 * sum(sections) == rotated_width(config)


def place_rotated_first(config: StockConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Reorder queries and keys of heads that rotate a share of their width, so that rotated pairs are half of it apart.

    Products of queries and keys stay the same. The rest of the width has the frequency 0.
    """
    width, turned = int(config.head_dim), rotated_width(config)
    if turned == width:
        return
    half, rest = torch.arange(turned // 2), torch.arange(turned, width)
    order = torch.cat([half, rest[: len(rest) // 2], half + turned // 2, rest[len(rest) // 2 :]])
    for key, tensor in tensors.items():
        if key.endswith((".q_norm.weight", ".k_norm.weight")):
            tensors[key] = tensor[order]
        elif ".q_proj." in key or ".k_proj." in key:
            tensors[key] = tensor.view(-1, width, *tensor.shape[1:])[:, order].reshape(tensor.shape)
