"""Small random captioning models of three kinds, saved as the library lays them out: image alone, task, instruction."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

WORDS = ["a", "red", "blue", "circle", "square", "moves", "left", "right", "two", "many", ".", "what", "image"]
SIDE = 32
CHAT = (
    "{% for message in messages %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<image>{% else %} {{ content['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def tokenizer(specials: list[str], **roles: str) -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate([*specials, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=roles["unk_token"]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, **roles)


def disturbed(model: torch.nn.Module, scale: float = 1.0) -> torch.nn.Module:
    """Weights so large that what is said depends on what is seen."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.dim() > 1:
                weight.copy_(scale * torch.randn(weight.shape, generator=rng) / weight[0].numel() ** 0.5)
    return model.eval()


def save_blip(folder: Path) -> None:
    words = tokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[DEC]"],
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", bos_token="[DEC]",
    )  # fmt: skip
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    text = {"vocab_size": len(words), "encoder_hidden_size": 32, "projection_dim": 16, "bos_token_id": 4}
    text |= {"eos_token_id": 2, "pad_token_id": 0, "sep_token_id": 3}
    config = transformers.BlipConfig(
        text_config={**size, **text},
        vision_config={**size, "image_size": SIDE, "patch_size": 8, "projection_dim": 16},
    )
    disturbed(transformers.BlipForConditionalGeneration(config), 2.0).save_pretrained(folder)
    pictures = BlipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    transformers.BlipProcessor(pictures, words).save_pretrained(folder)


def save_florence(folder: Path) -> None:
    words = tokenizer(
        ["<s>", "<pad>", "</s>", "<unk>", "<image>"],
        bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    text = {"vocab_size": len(words), "d_model": 32, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    for side in ("encoder", "decoder"):
        text |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
    config = transformers.Florence2Config(
        text_config={"model_type": "bart", "decoder_start_token_id": 2, **text},
        vision_config={
            "embed_dim": [8, 8, 16, 16], "depths": [1] * 4, "num_heads": [1] * 4, "num_groups": [1] * 4,
            "window_size": 2, "projection_dim": 32,
        },
        image_token_id=4,
    )  # fmt: skip
    disturbed(transformers.Florence2ForConditionalGeneration(config), 2.0).save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"height": 64, "width": 64}, do_center_crop=False)
    pictures.image_seq_length = 5  # 2 x 2 features and their mean
    transformers.Florence2Processor(pictures, words).save_pretrained(folder)


def save_llava(folder: Path) -> None:
    words = tokenizer(
        ["<s>", "<pad>", "</s>", "<unk>", "<image>"],
        bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **size, "image_size": SIDE, "patch_size": 8},
        text_config={"model_type": "llama", **size, "vocab_size": len(words), "eos_token_id": 2, "pad_token_id": 1},
        image_token_id=4,
    )
    disturbed(transformers.LlavaForConditionalGeneration(config), 2.0).save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = transformers.LlavaProcessor(
        pictures, words, patch_size=8, vision_feature_select_strategy="default", chat_template=CHAT,
        num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(folder)


SAVE = {"blip": save_blip, "florence2": save_florence, "image_llava": save_llava}


def save(folder: Path, kind: str) -> None:
    """Write a checkpoint as the library lays it out."""
    SAVE[kind](folder)
