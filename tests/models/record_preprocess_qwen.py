"""Records what the library's Qwen and GLM video processors make of frames, for ``test_preprocess_qwen.py``.

Run as ``record_preprocess.py`` is: ``python record_preprocess_qwen.py fixtures/preprocess_qwen.npz`` in this folder.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

#: Configs of the published checkpoints, small ones, and ones that cap clips of many frames.
CONFIGS = {
    "qwen2_5_vl": {"min_pixels": 3136, "max_pixels": 12845056, "cap_pixels_per_frame": False},
    "qwen2_5_vl-size": {
        "size": {"shortest_edge": 6272, "longest_edge": 50176},
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
        "cap_pixels_per_frame": False,
    },
    "qwen2_5_vl-small": {"patch_size": 4, "min_pixels": 256, "max_pixels": 1280, "cap_pixels_per_frame": False},
    "qwen2_5_vl-plain": {"cap_pixels_per_frame": False},
    "qwen2_5_vl-capped": {"cap_pixels_per_frame": True, "max_video_tokens": 4000},
    "qwen3_vl": {
        "size": {"shortest_edge": 4096, "longest_edge": 25165824},
        "patch_size": 16,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "cap_pixels_per_frame": False,
    },
    "qwen3_vl-small": {
        "size": {"shortest_edge": 3000, "longest_edge": 200000},
        "resample": 2,
        "cap_pixels_per_frame": False,
    },
    "qwen3_vl-plain": {"cap_pixels_per_frame": False},
    "qwen3_vl-capped": {
        "size": {"shortest_edge": 4096, "longest_edge": 2000000},
        "max_video_tokens": 40,
        "cap_pixels_per_frame": True,
    },
    "qwen3_omni_moe": {
        "size": {"shortest_edge": 131072, "longest_edge": 786432},
        "patch_size": 16,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "cap_pixels_per_frame": False,
    },
    "glm4v": {"size": {"shortest_edge": 12544, "longest_edge": 47040000}},
    "video_llama_3": {"min_pixels": 12544, "max_pixels": 12845056},
    "video_llama_3-small": {"min_pixels": 3136, "max_pixels": 60000},
    "glm4v-small": {"size": {"shortest_edge": 3136, "longest_edge": 60000}},
}
#: name: (config, frames, height, width)
CASES = {
    "whole": ("qwen2_5_vl", 2, 72, 97),
    "odd_clip": ("qwen2_5_vl-size", 3, 180, 320),
    "one_frame": ("qwen2_5_vl-size", 1, 97, 61),
    "tiny": ("qwen2_5_vl-size", 2, 9, 14),
    "small": ("qwen2_5_vl-small", 5, 36, 64),
    "same": ("qwen2_5_vl-small", 4, 32, 24),
    "steps": ("qwen3_vl", 5, 97, 131),
    "low": ("qwen3_vl", 2, 11, 90),
    "squeezed": ("qwen3_vl-small", 7, 180, 320),
    "portrait": ("qwen3_vl-capped", 4, 320, 180),
    "raised": ("qwen3_omni_moe", 3, 97, 131),
    "pairs": ("glm4v", 3, 97, 131),
    "shrunk": ("glm4v-small", 4, 180, 320),
    "halves": ("video_llama_3-small", 3, 180, 320),
    "alone": ("video_llama_3", 1, 97, 131),
}
#: Clips whose sizes are recorded, for each config.
SIZES = 300
#: Every so manieth number of the patches is recorded.
STEP = 97


def frames(name: str) -> NDArray[np.uint8]:
    """(T, H, W, 3): waves, hard edges and noise; the same on every machine."""
    _, count, height, width = CASES[name]
    rng = np.random.RandomState(sum(map(ord, name)))
    y, x = np.mgrid[:height, :width]
    waves = [np.stack([(x * (c + 2) + y * (3 - c) + 17 * t) % 200 for c in range(3)], -1) for t in range(count)]
    shown = np.stack(waves) + rng.randint(-20, 20, (count, height, width, 3))
    shown[:, height // 4 : height // 2, width // 3 : width // 2] = 255
    if name == "halves":  # the left one stands still, and then the whole
        shown[1:, :, : width // 2] = shown[0, :, : width // 2]
        shown[2:] = shown[1]
    return np.clip(shown, 0, 255).astype(np.uint8)


def clips(config: str) -> list[tuple[int, int, int]]:
    """Frames, height and width of clips of all kinds."""
    rng = np.random.RandomState(sum(map(ord, config)))
    sides = np.exp(rng.uniform(np.log(4), np.log(2500), (SIZES, 2))).astype(int)
    counts = np.exp(rng.uniform(np.log(2), np.log(900), SIZES)).astype(int)
    chosen = zip(counts.tolist(), sides.tolist(), strict=True)
    return [(t, h, w) for t, (h, w) in chosen if max(h, w) <= 150 * min(h, w)]


def processor(config: str):
    from transformers.models.glm46v.video_processing_glm46v import Glm46VVideoProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.models.video_llama_3.video_processing_video_llama_3 import VideoLlama3VideoProcessor

    kinds = {
        "qwen2_5_vl": Qwen2VLVideoProcessor,
        "qwen3_omni_moe": Qwen2VLVideoProcessor,
        "qwen3_vl": Qwen3VLVideoProcessor,
        "glm4v": Glm46VVideoProcessor,
        "video_llama_3": VideoLlama3VideoProcessor,
    }
    kind = kinds[config.partition("-")[0]]
    return kind(**CONFIGS[config], do_sample_frames=False)


def library_sizes(config: str) -> NDArray[np.int32]:
    """(clips, 2): what the library would resize them to."""
    from transformers.image_processing_backends import TorchvisionBackend

    made = processor(config)
    patched, TorchvisionBackend.resize = TorchvisionBackend.resize, lambda self, image, size, resample: size
    try:
        found = []
        for count, height, width in clips(config):
            video = SimpleNamespace(shape=(1, count, 3, height, width))
            factor = made.patch_size * made.merge_size
            options = {"factor": factor, "temporal_factor": made.temporal_patch_size}
            if "cap_pixels_per_frame" in CONFIGS[config]:
                options["cap_pixels_per_frame"] = made.cap_pixels_per_frame
            got = made.resize(video, made.size, 3, **options)
            found.append((got.height, got.width))
    finally:
        TorchvisionBackend.resize = patched
    return np.array(found, dtype=np.int32)


def main(path: str) -> None:
    import torch
    from record_preprocess import with_torchvision

    kept = with_torchvision()  # noqa: F841
    found = {f"{config}_sizes": library_sizes(config) for config in CONFIGS}
    for name, (config, *_) in CASES.items():
        video = torch.from_numpy(frames(name)).permute(0, 3, 1, 2)
        made = processor(config)(videos=[video], return_tensors="pt")
        values = made["pixel_values_videos"].numpy()
        found[name] = values.reshape(-1)[::STEP]
        found[f"{name}_means"] = values.mean(1, dtype=np.float64).astype(np.float32)[::3]
        if "video_compression_mask" in made:
            found[f"{name}_kept"] = made["video_compression_mask"].numpy()
        found[f"{name}_grid"] = made["video_grid_thw"][0].numpy()
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
