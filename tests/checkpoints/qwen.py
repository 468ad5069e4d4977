"""Small random Qwen-VL models with the real layout: windowed towers, M-RoPE, deepstack, padded heads.

The tokenizer is a small byte-level BPE with the real one's pre-tokenizer and its special tokens at the end, in order.
Weights are far from the usual tiny initialisation, as in ``checkpoints``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints.recipe import draw_weight, draw_weights, greedy_generation, save_files
from vidspec.models.base import Pixels, families
from vidspec.models.preprocess import patchify

#: Pattern of the published tokenizers of both generations.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
MORE = ("<tool_call>", "</tool_call>", "<|fim_prefix|>")
CORPUS = (
    "You are a helpful assistant. Describe the video. system user assistant seconds",
    "A small red circle moves from the left to the right while a large blue square stays where it was.",
)
QWEN2, QWEN25, QWEN3 = "qwen2_vl", "qwen2_5_vl", "qwen3_vl"
CLASSES = {QWEN25: "Qwen2_5_VL", QWEN3: "Qwen3VL"}
#: Families whose blocks are not fused: mixtures of experts, and hybrids with recurrent blocks.
HYBRIDS = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}
STOCK = {"qwen3_vl_moe": "Qwen3VLMoe", **HYBRIDS}
EVERY = {QWEN2: "Qwen2VL", **CLASSES, **STOCK}
PATCH, HIDDEN, LAYERS, HEADS, KV_HEADS = 4, 64, 4, 4, 2
#: Two frames a step, 2 x 2 patches a token; 8 pixels a side of a token.
UNIT = 2 * PATCH
DEEPSTACK = (0, 1, 2)
TOKENS_PER_SECOND = 2


@dataclass(frozen=True)
class QwenKind:
    """Variant of a checkpoint.

    ``padding`` is how many rows its head has beyond the tokenizer; ``noise`` how far all weights are from those of
    the same kind without any, in their own deviations.
    """

    family: str = QWEN25
    tied: bool = True
    padding: int = 7
    corpus: int = 0
    seed: int = 0
    layers: int = LAYERS
    noise: float = 0.0


@functools.cache
def tokenizer(corpus: int = 0) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.BPE())
    words.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360 + corpus, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words.train_from_iterator([*CORPUS, "xyzzy " * corpus], trainer)
    words.add_special_tokens(list(SPECIALS))
    words.add_tokens(list(MORE))
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIALS),
        clean_up_tokenization_spaces=False,
    )


def processor(family: str) -> dict[str, object]:
    """A video processor's config, keys as the published ones have them."""
    common = {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": 2, "resample": 3, "rescale_factor": 1 / 255}
    if family in (QWEN2, QWEN25):
        mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
        return {**common, "min_pixels": 4 * UNIT**2, "max_pixels": 20 * UNIT**2, "image_mean": mean, "image_std": std}
    size = {"shortest_edge": 4 * UNIT**2, "longest_edge": 100 * UNIT**2}
    return {**common, "size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def config(kind: QwenKind) -> transformers.PreTrainedConfig:
    words = tokenizer(kind.corpus)
    ids = words.get_vocab()
    vision = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": PATCH}
    vision |= {"spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": HIDDEN}
    text = {
        "vocab_size": len(words) + kind.padding,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": kind.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": kind.tied,
    }
    ends = {"bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": 1e4}
    if kind.family == QWEN2:
        del vision["intermediate_size"], vision["out_hidden_size"]
        vision |= {"hidden_size": HIDDEN, "embed_dim": 32, "mlp_ratio": 2}
        rope["mrope_section"] = [2, 3, 3]
    elif kind.family == QWEN25:
        vision |= {"window_size": 3 * UNIT, "fullatt_block_indexes": [1, 3], "tokens_per_second": TOKENS_PER_SECOND}
        rope["mrope_section"] = [2, 3, 3]
    else:
        vision |= {"num_position_embeddings": 36}
        if kind.family not in HYBRIDS:
            vision |= {"deepstack_visual_indexes": list(DEEPSTACK)}
        rope |= {"mrope_section": [6, 3, 3], "mrope_interleaved": True}
        text["head_dim"] = 24  # not hidden / heads, as in the published ones
    if kind.family in HYBRIDS:
        rope |= {"mrope_section": [2, 1, 1], "partial_rotary_factor": 1 / 3}
        text |= {"linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4}
        text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    if kind.family.endswith("_moe"):
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        if kind.family in HYBRIDS:
            text["shared_expert_intermediate_size"] = 32
    return getattr(transformers, f"{EVERY[kind.family]}Config")(
        vision_config=vision,
        text_config={**text, **ends, "rope_parameters": rope},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=kind.tied,
        **ends,
    )


def draw_qwen_weight(family: str, name: str, noise: torch.Tensor) -> torch.Tensor:
    if name.endswith(("A_log", "dt_bias")):
        return 0.5 * noise - 1  # states that last for tens of rows
    centred = family in HYBRIDS and "language_model" in name and "linear_attn" not in name
    return draw_weight(name, noise, norms=("norm", "ln_q"), centred=centred)


def stock(kind: QwenKind, attention: str = "sdpa") -> transformers.PreTrainedModel:
    """A new model of ``kind``, untouched by vidspec; the same numbers at every call."""
    made = getattr(transformers, f"{EVERY[kind.family]}ForConditionalGeneration")(config(kind)).eval()
    made.set_attn_implementation(attention)
    draw_weights(made, partial(draw_qwen_weight, kind.family), noise=kind.noise, seed=kind.seed)
    made.generation_config = greedy_generation(tokenizer(kind.corpus))
    return made


def adapter(kind: QwenKind, decoder: str = "auto"):
    """The same model behind vidspec's interface."""
    family = families.get(kind.family)
    made = family("tiny", stock(kind), tokenizer(kind.corpus), processor(kind.family))
    made.prepare(decoder, packed=False)
    return made


def save(folder: Path, family: str, *, max_shard_size: str | None = None, **options: Any) -> None:
    """Write a checkpoint as the library lays it out."""
    kind = QwenKind(family, **options)
    files = {"video_preprocessor_config.json": processor(family)}
    save_files(folder, stock(kind), tokenizer(kind.corpus), files, max_shard_size=max_shard_size)


def pixels(model, frames: int = 6, rows: int = 3, columns: int = 5, seed: int = 0, every: float = 0.7) -> Pixels:
    """A clip of noise: ``rows`` x ``columns`` visual tokens for each two frames, a step every ``every`` seconds."""
    rng = torch.Generator().manual_seed(seed)
    values, grid = patchify(torch.randn(frames, 3, rows * UNIT, columns * UNIT, generator=rng), model.rules)
    return Pixels(values, grid, tuple(0.25 + every * step for step in range(grid[0])))
