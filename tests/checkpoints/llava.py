"""Small random LLaVA-1.5 and LLaVA-NeXT models with the real layout: CLIP, Llama or Mistral, a tokenizer like Llama's.

As in ``llava_onevision``, attention is peaked and the two best logits lie far further apart than rounding errors.
"""

from __future__ import annotations

import functools
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tests.checkpoints.recipe import draw_weight, save_files
from vidspec.models.base import families

#: Three patches per side, an odd number.
IMAGE_SIZE, PATCH, SIDE = 42, 14, 3
HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 4, 4, 2
RESOLUTIONS = [[42, 84], [84, 42], [84, 84], [126, 42], [42, 126]]
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": IMAGE_SIZE},
    "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "do_center_crop": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 1 / 255,
}
NEXT_PROCESSOR = {
    **PROCESSOR,
    "image_processor_type": "LlavaNextImageProcessor",
    "image_grid_pinpoints": RESOLUTIONS,
    "do_pad": True,
}
CORPUS = ["USER: Describe the video. ASSISTANT: The video shows a red circle that moves to the left.", "[INST] [/INST]"]


@dataclass(frozen=True)
class LlavaKind:
    """Variant of a checkpoint.

    ``padding`` is how many rows its head has beyond the tokenizer; ``noise`` how far all weights are from those of
    the same kind without any, in their own deviations.
    """

    family: str = "llava"
    text: str = "llama"
    window: int | None = None
    padding: int = 14
    select: str = "default"
    layer: int | tuple[int, ...] = -2
    tokenizer: str = "legacy"
    seed: int = 0
    noise: float = 0.0

    @property
    def processor(self) -> dict:
        return PROCESSOR if self.family == "llava" else NEXT_PROCESSOR


@functools.cache
def tokenizer(kind: str = "legacy") -> PreTrainedTokenizerFast:
    """Byte fallback, a space put before text, ``<s>`` before it all, as published LLaVA checkpoints have it.

    ``legacy`` puts a space before every part between special tokens, ``first`` before the first only, ``bare`` has no
    ``<s>``, ``foreign`` has other words.
    """
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if kind == "first":
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    corpus = [text[::-1] for text in CORPUS] if kind == "foreign" else CORPUS
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    inner.train_from_iterator(corpus * 4, trainer)
    # What the trainer called special are the bytes: only the first three are.
    layout = json.loads(inner.to_str())
    layout["added_tokens"] = layout["added_tokens"][:3]
    inner = Tokenizer.from_str(json.dumps(layout))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if kind != "bare":
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    inner.add_special_tokens([AddedToken("<image>", special=True, normalized=False), "<pad>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def config(kind: LlavaKind) -> transformers.PreTrainedConfig:
    words = tokenizer(kind.tokenizer)
    text = {
        "model_type": kind.text,
        "vocab_size": len(words) + kind.padding,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": words.pad_token_id,
        **({"sliding_window": kind.window} if kind.text == "mistral" else {}),
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH,
        "projection_dim": 16,
        "vocab_size": 100,
    }
    shared = {
        "vision_config": vision,
        "text_config": text,
        "image_token_index": words.convert_tokens_to_ids("<image>"),
        "vision_feature_select_strategy": kind.select,
        "vision_feature_layer": kind.layer if isinstance(kind.layer, int) else list(kind.layer),
        "image_seq_length": SIDE**2,
    }
    if kind.family == "llava":
        return transformers.LlavaConfig(**shared)
    return transformers.LlavaNextConfig(**shared, image_grid_pinpoints=RESOLUTIONS)


def stock(kind: LlavaKind, attention: str = "sdpa"):
    """A new model of ``kind``, untouched by vidspec; the same numbers at every call."""
    made = transformers.AutoModelForImageTextToText.from_config(config(kind)).eval()
    made.set_attn_implementation(attention)
    rng = torch.Generator().manual_seed(kind.seed)
    with torch.no_grad():
        for name, weight in sorted(made.named_parameters()):
            weight.copy_(draw_weight(name, torch.randn(weight.shape, generator=rng)))
            if kind.noise:
                disturbed = torch.Generator().manual_seed(kind.seed + zlib.crc32(name.encode()))
                weight.add_(kind.noise * weight.std() * torch.randn(weight.shape, generator=disturbed))
        made.lm_head.weight[len(tokenizer(kind.tokenizer)) :] = 0  # trained models never say a word that is padding
    made.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0, do_sample=False)
    return made


def adapter(kind: LlavaKind, decoder: str = "auto", **options: object):
    """The same model behind vidspec's interface."""
    made = families.get(kind.family)("tiny", stock(kind), tokenizer(kind.tokenizer), kind.processor, **options)
    made.prepare(decoder, packed=False)
    return made


def save(folder: Path, family: str, *, max_shard_size: str | None = None, **options: Any) -> None:
    """Write a checkpoint as the library lays it out."""
    kind = LlavaKind(family, **options)
    files = {"preprocessor_config.json": kind.processor}
    save_files(folder, stock(kind), tokenizer(kind.tokenizer), files, max_shard_size=max_shard_size)


def clip(frames: int, height: int, width: int, seed: int = 0) -> SimpleNamespace:
    """Noise with a bright corner, half a second apart."""
    shown = np.random.RandomState(seed).randint(0, 200, (frames, height, width, 3)).astype(np.uint8)
    shown[:, : height // 3, width // 2 :] = 255
    return SimpleNamespace(frames=shown, timestamps=np.arange(frames) * 0.5)
