"""Records what the library's SmolVLM video processor makes of frames; ``test_smolvlm.py`` compares with ours.

Run as ``record_preprocess.py`` is: ``python record_preprocess_smolvlm.py fixtures/preprocess_smolvlm.npz`` in this
folder.
"""

from __future__ import annotations

import copy
import sys

import numpy as np
from numpy.typing import NDArray

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 1}
SAMPLED = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 80}}
#: Configs: keys as the published ones have them, the size of videos in either place, and none at all.
CONFIGS = {
    "both": {**HALF, "size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 64}, "video_sampling": SAMPLED},
    "sampled": {**HALF, "image_std": [0.2] * 3, "max_image_size": {"longest_edge": 48}, "video_sampling": SAMPLED},
    "plain": {},
}
#: name: (config, frames, height, width)
CASES = {
    "wide": ("both", 2, 72, 97),
    "tall": ("both", 1, 131, 60),
    "square": ("sampled", 2, 48, 48),
    "low": ("sampled", 1, 11, 90),
    "defaults": ("plain", 1, 180, 320),
}
#: Every so manieth pixel is recorded.
STEP = 7


def frames(name: str) -> NDArray[np.uint8]:
    """(T, H, W, 3) of noise; the same on every machine."""
    _, count, height, width = CASES[name]
    return np.random.RandomState(sum(map(ord, name))).randint(0, 256, (count, height, width, 3), dtype=np.uint8)


def library(name: str) -> NDArray[np.float32]:
    """(T, 3, S, S) from the library's processor."""
    import torch
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    processor = SmolVLMVideoProcessor(**copy.deepcopy(CONFIGS[CASES[name][0]]))
    video = torch.from_numpy(frames(name)).permute(0, 3, 1, 2)
    return processor(videos=[video], return_tensors="pt")["pixel_values"][0].numpy()


def main(path: str) -> None:
    from record_preprocess import with_torchvision

    kept = with_torchvision()  # noqa: F841
    np.savez_compressed(path, **{name: library(name)[..., ::STEP, ::STEP] for name in CASES})


if __name__ == "__main__":
    main(sys.argv[1])
