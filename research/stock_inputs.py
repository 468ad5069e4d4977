"""Inputs of the stock models of transformers for a prompt that vidspec made, to compare both."""

from functools import singledispatch
from typing import Any

import torch

from vidspec.errors import ModelError
from vidspec.models.base import EmbeddedPrompt, Pixels
from vidspec.models.families.gemma4 import Gemma4
from vidspec.models.families.llava import Llava
from vidspec.models.families.minicpmv4_6 import MiniCPMV46
from vidspec.models.families.molmo2 import Molmo2
from vidspec.models.families.qwen2_5_omni import Qwen25Omni
from vidspec.models.families.qwen2_5_vl import Qwen25VL, seconds_per_step
from vidspec.models.families.smolvlm import SmolVLM
from vidspec.models.families.video_llama_3 import VideoLlama3
from vidspec.models.families.video_salmonn2_plus import VideoSalmonn2Plus
from vidspec.models.video_language_model import VideoLanguageModel


def stock_inputs(model: VideoLanguageModel, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    """Return the arguments of the stock ``forward`` and ``generate`` for the same prompt."""
    ids = prefix.token_ids[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **stock_pixels(model, pixels, prefix)}


@singledispatch
def stock_pixels(model: VideoLanguageModel, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    """Return the family's part of :func:`stock_inputs`."""
    return {"pixel_values_videos": pixels.on(model.device, model.vision_dtype)[None]}


@stock_pixels.register
def _(model: Llava, pixels: Pixels, prefix: EmbeddedPrompt | None = None) -> dict[str, Any]:
    return model.tower_inputs(pixels)


@stock_pixels.register
def _(model: SmolVLM, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    return {"pixel_values": pixels.on(model.device, model.vision_dtype)[None]}


@stock_pixels.register
def _(model: Gemma4, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    values, places = model.patches(pixels)
    token_types = 2 * (prefix.token_ids[None] == model.visual_id).long()
    extra = {"num_frames_per_video": torch.tensor([len(values)]), "mm_token_type_ids": token_types}
    return {"pixel_values_videos": values, "video_position_ids": places, **extra}


@stock_pixels.register
def _(model: Molmo2, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    kinds = torch.zeros_like(prefix.token_ids)
    kinds[prefix.bidirectional] = 1
    return {**model.tower_inputs(pixels), "mm_token_type_ids": kinds[None]}


@stock_pixels.register
def _(model: MiniCPMV46, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    inputs = {f"{name}_videos": value for name, value in model.tower_inputs(pixels).items()}
    return {**inputs, "downsample_mode": model.mode}


@stock_pixels.register
def _(model: Qwen25VL, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    token_types = torch.zeros_like(prefix.token_ids)
    token_types[prefix.visual.index] = 2  # 0 text, 1 image, 2 video
    inputs: dict[str, Any] = {
        "mm_token_type_ids": token_types[None],
        "pixel_values_videos": pixels.on(model.device, model.vision_dtype),
        "video_grid_thw": torch.tensor([pixels.grid], device=model.device),
    }
    if model.step_positions is None:
        inputs["second_per_grid_ts"] = torch.tensor([seconds_per_step(pixels.seconds)], device=model.device)
    return inputs


@stock_pixels.register
def _(model: VideoLlama3, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    mask = {"video_compression_mask": model.changed(pixels).flatten()} if model.compresses else {}
    return {**model.tower_inputs(pixels), **mask}


@stock_pixels.register
def _(model: Qwen25Omni, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    given = stock_pixels.dispatch(Qwen25VL)(model, pixels, prefix)
    del given["mm_token_type_ids"]
    given["video_second_per_grid"] = given.pop("second_per_grid_ts")
    if pixels.sound is not None:
        spectrum = pixels.sound[None].to(model.device, model.vision_dtype)
        given |= {"input_features": spectrum, "use_audio_in_video": True}
        given["feature_attention_mask"] = torch.ones_like(spectrum[:, 0], dtype=torch.long)
    return given


@stock_pixels.register
def _(model: VideoSalmonn2Plus, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, Any]:
    raise ModelError(f"{model.name}: transformers has no code for a video_SALMONN2_plus", kind="family")
