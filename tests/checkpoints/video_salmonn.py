"""Small random video-SALMONN 2+ models, their config and weights laid out as the authors' code writes them.

The tokenizer is the one of ``qwen`` with an audio token at its end; patches are as large as the published ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import qwen
from tests.checkpoints.qwen2_5_omni import PATCH, UNIT, sound
from tests.checkpoints.recipe import draw_weight, draw_weights, extend_tokenizer, greedy_generation
from vidspec.models.base import Pixels
from vidspec.models.families.qwen2_5_vl import CHAT_TEMPLATE
from vidspec.models.families.video_salmonn2_plus import VideoSalmonn2Plus
from vidspec.models.preprocess import patchify
from vidspec.models.video_salmonn import VideoSalmonn, salmonn_config

#: Our names of weights, and the authors'.
NAMES = (
    (r"^model\.visual\.", "visual."),
    (r"^model\.language_model\.", "model."),
    (r"^audio\.qformer\.layernorm", "audio.qformer.bert.embeddings.LayerNorm"),
    (r"^audio\.qformer\.encoder", "audio.qformer.bert.encoder"),
    (r"(attention|crossattention)\.attention\.", r"\1.self."),
)
#: The published ``preprocessor_config.json``, which is Qwen2.5-VL's.
PROCESSOR: dict[str, Any] = {**qwen.processor(qwen.QWEN25), "patch_size": PATCH}
PROCESSOR |= {"min_pixels": 3136, "max_pixels": 12845056}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    words = extend_tokenizer(qwen.tokenizer(), [], eos_token="<|im_end|>", pad_token="<|endoftext|>")
    words.add_tokens(["<|audio_pad|>"])
    return words


def config(layers: int = qwen.LAYERS, padding: int = 7) -> dict[str, Any]:
    """The content of ``config.json``."""
    ids = tokenizer().get_vocab()
    vision = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": PATCH}
    vision |= {"window_size": 3 * UNIT, "fullatt_block_indexes": [1, 3], "out_hidden_size": qwen.HIDDEN}
    audio = {"model_type": "whisper", "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2}
    audio |= {"encoder_ffn_dim": 48, "d_model": 32, "max_source_positions": 1500, "second_per_window": 0.5}
    qformer = {"model_type": "bert", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    qformer |= {"intermediate_size": 64, "encoder_width": 32, "query_length": 1, "cross_attention_freq": 1}
    return {
        "architectures": ["video_SALMONN2_plus"],
        "model_type": "qwen2_5_vl",
        "vocab_size": len(ids) + padding,
        "hidden_size": qwen.HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": qwen.HEADS,
        "num_key_value_heads": qwen.KV_HEADS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
        "vision_config": vision,
        "audio_config": {**audio, "qformer_config": qformer},
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }


def stock(seed: int = 0, noise: float = 0.0, **options: int) -> Any:
    """A new model; the same numbers at every call, ``noise`` away from those without any."""
    plain = transformers.Qwen2_5_VLConfig.from_dict(config(**options))
    made = VideoSalmonn(salmonn_config("tiny", plain)).eval()
    draw_weights(made, partial(draw_weight, norms=("norm", "ln_q", "LayerNorm")), noise=noise, seed=seed)
    made.generation_config = greedy_generation(tokenizer())
    return made


def adapter(seed: int = 0, decoder: str = "auto") -> VideoSalmonn2Plus:
    """The same model behind vidspec's interface."""
    made = VideoSalmonn2Plus("tiny", stock(seed), tokenizer(), PROCESSOR)
    made.prepare(decoder, packed=False)
    return made


def save(folder: Path, _kind: str, **options: Any) -> None:
    """Write a checkpoint as it is published."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, weight in stock(**options).state_dict().items():
        for ours, theirs in NAMES:
            name = re.sub(ours, theirs, name)
        weights[name] = weight.clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    options = {key: options[key] for key in ("layers", "padding") if key in options}
    (folder / "config.json").write_text(json.dumps(config(**options)), encoding="utf-8")
    tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}), encoding="utf-8")


def pixels(
    model: VideoSalmonn2Plus, frames: int = 6, rows: int = 3, columns: int = 5, every: float = 0.7, heard: float = 0.0
) -> Pixels:
    """A clip of noise, a step every ``every`` seconds, of which so many are ``heard``."""
    rng = torch.Generator().manual_seed(0)
    values, grid = patchify(torch.randn(frames, 3, rows * UNIT, columns * UNIT, generator=rng), model.rules)
    made = Pixels(values, grid, tuple(0.25 + every * step for step in range(grid[0])))
    return replace(made, sound=model.spectrum(sound(heard))) if heard else made
