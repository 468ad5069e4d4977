"""The built-in pair's architecture: LLaVA-OneVision configs, tokenizer and chat template. No weights, no training."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vidspec.embedded.captions import PROMPTS, caption
from vidspec.embedded.world import draw_scene

if TYPE_CHECKING:
    from transformers import LlavaOnevisionConfig, PreTrainedTokenizerFast

__all__ = ["CELLS", "DRAFT", "IMAGE_SIZE", "TARGET", "Size", "build_tokenizer", "config", "prompt_text"]

IMAGE_SIZE = 96
PATCH = 12
#: Patches per row and column; the projector's output is pooled 2 x 2, so a frame is (CELLS / 2) ** 2 visual tokens.
CELLS = IMAGE_SIZE // PATCH
VOCABULARY = 768
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")


@dataclass(frozen=True)
class Size:
    """Widths and depths of one model of the pair."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_intermediate: int


#: ``layers`` is the depth the target is shipped with; it is trained at half of it first, then grown.
TARGET = Size(256, 12, 4, 2, 512, 160, 4, 5, 640)
DRAFT = Size(128, 2, 2, 1, 320, 96, 2, 4, 256)


def build_tokenizer(samples: int = 4000, seed: int = 7) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer of the pair on its own captions; any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from vidspec.models.llava_onevision import CHAT_TEMPLATE

    rng = random.Random(seed)

    def corpus() -> Iterable[str]:
        for _ in range(samples):
            yield caption(draw_scene(rng), rng)
        yield from PROMPTS
        yield from ("user", "assistant", "system", "\n")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIALS),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def prompt_text(prompt: str) -> str:
    """What the family's chat template renders for one video and a prompt; the training text before the caption."""
    return f"<|im_start|>user <video>\n{prompt}<|im_end|><|im_start|>assistant\n"


def config(size: Size, tokenizer: PreTrainedTokenizerFast, *, layers: int | None = None) -> LlavaOnevisionConfig:
    """The stock ``transformers`` config of one model of the pair."""
    from transformers import LlavaOnevisionConfig

    ids = {token: tokenizer.get_vocab()[token] for token in SPECIALS}
    depth = size.layers if layers is None else layers
    settings: dict[str, Any] = dict(
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": size.vision_hidden,
            "intermediate_size": size.vision_intermediate,
            "num_hidden_layers": size.vision_layers,
            "num_attention_heads": size.vision_heads,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH,
            "vision_use_head": False,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": VOCABULARY,
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "num_hidden_layers": depth,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "max_position_embeddings": 8192,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        image_token_index=ids["<image>"],
        video_token_index=ids["<video>"],
        image_token_id=ids["<image>"],
        video_token_id=ids["<video>"],
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
    )
    return LlavaOnevisionConfig(**settings)
