"""What is said of a model of a family that is not supported: which family it is, and which supported ones are near."""

from __future__ import annotations

from vidspec.errors import ModelError
from vidspec.models.known_pairs import known
from vidspec.registry import families, nearest

__all__ = ["KIN", "unsupported"]

#: By a config's ``model_type``: what the models are called, and the supported family that is used for the same.
KIN = {
    "gemma3": ("Gemma 3", "gemma4"),
    "gemma3n": ("Gemma 3n", "gemma4"),
    "glm4v": ("GLM-4.1V", "qwen2_5_vl"),
    "glm46v": ("GLM-4.6V", "qwen3_vl"),
    "idefics2": ("Idefics2", "smolvlm"),
    "idefics3": ("Idefics3 and SmolVLM 1", "smolvlm"),
    "internvl_chat": ("InternVL with code of its own; take the checkpoint whose name ends in -HF", "internvl"),
    "llava_next_video": ("LLaVA-NeXT-Video", "llava_onevision"),
    "llava_onevision1_5": ("LLaVA-OneVision-1.5", "llava_onevision"),
    "minicpmv": ("MiniCPM-V with code of its own", "qwen2_5_vl"),
    "mllama": ("Llama 3.2 Vision", "llava_next"),
    "molmo2": ("Molmo 2", "qwen3_vl"),
    "qwen2_5_omni_thinker": ("Qwen2.5-Omni's thinker alone", "qwen2_5_omni"),
    "qwen2_vl": ("Qwen2-VL", "qwen2_5_vl"),
    "qwen3_omni_moe": ("Qwen3-Omni", "qwen2_5_omni"),
    "video_llama_3": ("VideoLLaMA 3", "qwen2_5_vl"),
    "video_llava": ("Video-LLaVA", "llava_onevision"),
    "vipllava": ("ViP-LLaVA", "llava"),
}


def unsupported(name: str, family: str, *, blind: bool = False) -> ModelError:
    """The error for a model of such a family; ``blind`` if it is a language model that may draft."""
    valid = families.names()
    title, near = KIN.get(family, (None, nearest(family, valid)))
    called = f"{family} ({title})" if title else family
    example = next((pair.target.name for pair in reversed(known()) if pair.target.family == near), None)
    meant = f"; nearest: {near}{f', such as {example}' if example else ''}" if near in valid else ""
    return ModelError(
        f"{name}: models of type {called} are not supported{meant}; supported: {', '.join(valid)}",
        hint="a language model without vision can draft: --profile onsd --draft" if blind else None,
        kind="family",
    )
