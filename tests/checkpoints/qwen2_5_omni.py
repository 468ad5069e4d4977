"""Small random Qwen2.5-Omni models with the real layout: the thinker's three towers, time on an axis of its own.

The tokenizer is the one of ``qwen`` under the names that the published one gives its special tokens;
weights are far from the usual tiny initialisation, as there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.checkpoints.qwen import CORPUS, HEADS, HIDDEN, KV_HEADS, LAYERS, MORE, SPLIT
from tests.checkpoints.recipe import draw_weight, draw_weights, greedy_generation
from vidspec.models.base import Pixels
from vidspec.models.families.qwen2_5_omni import CHAT_TEMPLATE, Qwen25Omni
from vidspec.models.preprocess import patchify

#: By the attributes that the library's processor reads of the published tokenizer.
NAMED = {
    "audio_token": "<|AUDIO|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
}
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values())
#: Pixels of a side of a patch, as the published ones: the processor's smallest frame has 128 tokens of 28 x 28.
PATCH, UNIT = 14, 28
BINS, RATE, CHUNK = 16, 25, 2
#: The published ``preprocessor_config.json``, but for the number of bins and of seconds.
PROCESSOR: dict[str, Any] = {
    "chunk_length": 12,
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": BINS,
    "hop_length": 160,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_pixels": 3136,
    "n_fft": 400,
    "padding_side": "right",
    "padding_value": 0.0,
    "patch_size": PATCH,
    "return_attention_mask": True,
    "sampling_rate": 16000,
    "temporal_patch_size": 2,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.BPE())
    words.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    )
    words.add_special_tokens(list(SPECIALS))
    words.add_tokens(list(MORE))
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        extra_special_tokens=NAMED,
    )


def config(layers: int = LAYERS, padding: int = 7) -> transformers.Qwen2_5OmniConfig:
    """Config of the whole model; talker and vocoder are the library's smallest, as nobody builds them."""
    words = tokenizer()
    ids = words.get_vocab()
    text = {
        "vocab_size": len(words) + padding,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
    }
    vision = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": PATCH}
    vision |= {"window_size": 3 * UNIT, "fullatt_block_indexes": [1, 3], "out_hidden_size": HIDDEN}
    sound = {"num_mel_bins": BINS, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48}
    sound |= {"d_model": 32, "max_source_positions": 1500, "n_window": 100, "output_dim": HIDDEN}
    thinker = {
        "text_config": text,
        "vision_config": vision,
        "audio_config": sound,
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"],
        "position_id_per_seconds": RATE,
        "seconds_per_chunk": CHUNK,
    }
    return transformers.Qwen2_5OmniConfig(thinker_config=thinker)


def stock(seed: int = 0, layers: int = LAYERS, padding: int = 7, noise: float = 0.0) -> Any:
    """A new thinker, untouched by vidspec; the same numbers at every call, ``noise`` away from those without any."""
    made = transformers.Qwen2_5OmniThinkerForConditionalGeneration(config(layers, padding).thinker_config).eval()
    made.set_attn_implementation("sdpa")
    draw_weights(made, partial(draw_weight, norms=("norm", "ln_")), noise=noise, seed=seed)
    made.generation_config = greedy_generation(tokenizer())
    return made


def adapter(seed: int = 0, decoder: str = "auto") -> Qwen25Omni:
    """The same model behind vidspec's interface."""
    made = Qwen25Omni("tiny", stock(seed), tokenizer(), {**PROCESSOR, "feature_extractor": PROCESSOR})
    made.prepare(decoder, packed=False)
    return made


def save(folder: Path, _kind: str, **options: Any) -> None:
    """Write a checkpoint as it is published."""
    whole = config(options.get("layers", LAYERS), options.get("padding", 7))
    save_thinker(folder, published(stock(**options)), whole, tokenizer(), PROCESSOR, CHAT_TEMPLATE)


def save_thinker(
    folder: Path,
    weights: dict[str, torch.Tensor],
    whole: Any,
    words: PreTrainedTokenizerFast,
    processor: dict[str, Any],
    template: str,
) -> None:
    """Write the thinker's weights under its name, beside those of other parts."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"thinker.{name}": weight for name, weight in weights.items()}
    weights["talker.codec_head.weight"] = torch.zeros(2, 2)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    whole.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def published(model: Any) -> dict[str, torch.Tensor]:
    """The weights under the names that the thinker's parts had before ``model`` stood ahead of them."""
    found = {}
    for name, weight in model.state_dict().items():
        rest = name.removeprefix("model.")
        found[rest.replace("language_model.", "model.", 1)] = weight.clone()
    return found


def pixels(
    model: Qwen25Omni,
    frames: int = 6,
    rows: int = 3,
    columns: int = 5,
    seed: int = 0,
    every: float = 0.7,
    heard: float = 0.0,
    unit: int = UNIT,
) -> Pixels:
    """A clip of noise: ``rows`` x ``columns`` visual tokens for each two frames, a step every ``every`` seconds, of
    which so many are ``heard``."""
    rng = torch.Generator().manual_seed(seed)
    values, grid = patchify(torch.randn(frames, 3, rows * unit, columns * unit, generator=rng), model.rules)
    made = Pixels(values, grid, tuple(0.25 + every * step for step in range(grid[0])))
    return replace(made, sound=model.spectrum(sound(heard, seed))) if heard else made


def sound(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """(S,) noise that swells and fades."""
    time = np.arange(int(seconds * 16000)) / 16000
    noise = np.random.RandomState(seed).standard_normal(len(time)) * (1 + np.sin(5 * time))
    return (0.1 * noise).astype(np.float32)
