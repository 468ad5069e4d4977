"""Draft heads of published shapes with random weights, for targets of :mod:`research.random_decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from research.random_decoder import Language
from research.sizes import Size
from vidspec.engine.head_states import StateInputs
from vidspec.models.dflash import BlockDecoder, BlockHead
from vidspec.models.dflash_checkpoint import CODEBOOKS, CONFIDENCE, MARKOV, SELECTOR, BlockSettings, block_config
from vidspec.models.eagle3 import Eagle3Decoder, StateProjection, default_tap_blocks, head_config
from vidspec.models.head import PROJECTIONS
from vidspec.models.video_language_model import VideoLanguageModel

#: Ids that published EAGLE-3 heads propose.
DRAFTED = 32_000
#: Blocks, tokens of a block and tapped target blocks of published DFlash heads.
BLOCKS, BLOCK, TAPS = 5, 16, 5
#: Kinds of block heads, by keys of their configs.
BLOCK_HEADS: Mapping[str, Mapping[str, object]] = {
    "dflash": {},
    "dspark": {"markov_rank": 256, "enable_confidence_head": True, "confidence_head_with_markov": True},
    "selector": {"selector_rank": 256, "selector_top_k": 16, "is_causal": True},
}


@dataclass(frozen=True, eq=False)
class RandomHead(Language):
    """A head with random weights.

    Attributes:
        tokens: the target's id of each of its own ids.
        blocks: target blocks whose input it reads.
        size, mask: of a block head: tokens of a block, and the id of a masked position.
        first, whole, candidates, markov, recurrent, in_turn, confident: as of
            :class:`~vidspec.models.dflash.BlockHead`.
    """

    tokens: torch.Tensor
    blocks: tuple[int, ...]
    size: int = 0
    mask: int = 0
    first: int = 1
    whole: bool = True
    candidates: int = 0
    markov: bool = False
    recurrent: bool = False
    in_turn: bool = False
    confident: bool = False

    @property
    def most(self) -> int:
        """Tokens that a block drafts at most."""
        return self.size - self.first


@torch.inference_mode()
def random_eagle3(target: Language, shape: Size) -> RandomHead:
    """Return an EAGLE-3 head as wide as its target, whose ids are spread over the target's."""
    drafted, taps = min(DRAFTED, shape.vocabulary), default_tap_blocks(shape.layers)
    tensors = _tensors(target, _block(shape, "midlayer", 2 * shape.hidden))
    tensors |= _tensors(
        target,
        {
            "fc.weight": (shape.hidden, len(taps) * shape.hidden),
            "lm_head.weight": (drafted, shape.hidden),
            **{f"{norm}.weight": (shape.hidden,) for norm in ("norm", "midlayer.hidden_norm")},
        },
    )
    decoder = Eagle3Decoder(head_config(_config(shape, 1)), tensors, packed="auto")
    ids = torch.arange(drafted) * (shape.vocabulary // drafted)
    project = StateProjection(tensors, _EPS)
    inputs = StateInputs(shape.hidden, project, ids.to(target.device), int(ids[-1]) + 1)
    decoder.bind(target.decoder.embed, inputs, None)
    return RandomHead(decoder, target.device, drafted, _bytes(tensors), target.known_ids, ids, taps)


@torch.inference_mode()
def random_block_head(target: Language, shape: Size, kind: str = "dflash") -> RandomHead:
    """Return a block head as wide as its target, whose last id is the mask."""
    config, settings, tensors = _block_head(target, shape, kind)
    decoder = BlockDecoder(config, settings, tensors)
    decoder.bind_target(cast(VideoLanguageModel, target))
    read = _bytes(tensors) + shape.head * decoder.slab.dtype.itemsize  # its logits are of the target's output head
    return RandomHead(
        decoder,
        target.device,
        shape.vocabulary,
        read,
        target.known_ids,
        torch.arange(shape.vocabulary),
        tuple(block + 1 for block in settings.taps),
        settings.size,
        shape.vocabulary - 1,
        whole=bool(settings.both_ways),
        candidates=settings.candidates if settings.rank else 0,
        markov=settings.markov > 0,
        in_turn=bool(settings.markov or settings.rank),
        confident=settings.confidence,
    )


@torch.inference_mode()
def random_dflash(target: VideoLanguageModel, shape: Size) -> BlockHead:
    """Return a block head for a model with a vision tower."""
    config, settings, tensors = _block_head(cast(Language, target), shape, "dflash")
    return BlockHead("random", config, settings, tensors, target, target.device)


def _block_head(target: Language, shape: Size, kind: str) -> tuple[Any, BlockSettings, dict[str, torch.Tensor]]:
    taps = [round(at * (shape.layers - 1) / (TAPS - 1)) for at in range(TAPS)]
    own = {"target_layer_ids": taps, "mask_token_id": shape.vocabulary - 1, **BLOCK_HEADS[kind]}
    config, settings = block_config("random", {**_config(shape, BLOCKS), "block_size": BLOCK, "dflash_config": own})
    shapes = {"fc.weight": (shape.hidden, TAPS * shape.hidden), "norm.weight": (shape.hidden,)}
    shapes["hidden_norm.weight"] = (shape.hidden,)
    for index in range(BLOCKS):
        shapes |= _block(shape, f"layers.{index}", shape.hidden)
        shapes |= {f"layers.{index}.self_attn.{norm}.weight": (shape.width,) for norm in ("q_norm", "k_norm")}
    tables = [f"{MARKOV}.markov_w{number}.weight" for number in (1, 2)] if settings.markov else []
    if settings.rank:
        tables = [f"{SELECTOR}.{book}" for book in CODEBOOKS]
        shapes[f"{SELECTOR}.hidden_projection.weight"] = settings.rank, shape.hidden
    shapes |= {table: (shape.vocabulary, settings.markov or settings.rank) for table in tables}
    if settings.confidence:
        shapes |= {f"{CONFIDENCE}.weight": (1, shape.hidden + settings.markov), f"{CONFIDENCE}.bias": (1,)}
    return config, settings, _tensors(target, shapes)


_EPS = 1e-6


def _config(shape: Size, layers: int) -> dict[str, Any]:
    """Return a head's config with the target's shape of blocks."""
    return {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width,
        "num_hidden_layers": layers,
        "num_target_layers": shape.layers,
        "rms_norm_eps": _EPS,
        "hidden_act": "silu",
        "rope_theta": 1e6,
        "vocab_size": shape.vocabulary,
    }


def _block(shape: Size, of: str, inputs: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's weights; queries, keys and values read ``inputs`` numbers."""
    entries, hidden, inner = shape.kv_heads * shape.width, shape.hidden, shape.inner
    projections = (hidden, inputs), (entries, inputs), (entries, inputs), (hidden, hidden)
    found: dict[str, tuple[int, ...]] = {
        f"{of}.self_attn.{name}.weight": one for name, one in zip(PROJECTIONS, projections, strict=True)
    }
    found |= {f"{of}.mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")}
    found[f"{of}.mlp.down_proj.weight"] = hidden, inner
    return found | {f"{of}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}


def _tensors(target: Language, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return random matrices, and norms of ones, beside the target's cache in its dtype."""
    like = torch.empty((), dtype=target.decoder.slab.dtype, device=target.device)
    return {
        name: like.new_ones(shape) if len(shape) == 1 else like.new_empty(shape).normal_(std=shape[1] ** -0.5)
        for name, shape in shapes.items()
    }


def _bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
