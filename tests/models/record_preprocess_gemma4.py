"""Records what the library's Gemma 4 video processor makes of frames; ``test_gemma4.py`` compares with ours.

Run as ``record_preprocess.py`` is: ``python record_preprocess_gemma4.py fixtures/preprocess_gemma4.npz`` in this
folder.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

#: name: (max_soft_tokens, frames, height, width)
CASES = {
    "wide": (70, 2, 180, 320),
    "tall": (140, 1, 131, 60),
    "same": (70, 1, 384, 384),
    "row": (70, 1, 16, 700),
    "column": (70, 1, 900, 20),
}
#: Every so manieth number is recorded.
STEP = 131


def frames(name: str) -> NDArray[np.uint8]:
    """(T, H, W, 3) of noise; the same on every machine."""
    _, count, height, width = CASES[name]
    return np.random.RandomState(sum(map(ord, name))).randint(0, 256, (count, height, width, 3), dtype=np.uint8)


def library(name: str, *, unified: bool = False) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Values (T, P, 768) and places (T, P, 2) of a frame's patches, padding left out, from the library's processor.

    Those of ``unified`` models are (T, P, 6912).
    """
    import torch
    from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor
    from transformers.models.gemma4_unified.video_processing_gemma4_unified import Gemma4UnifiedVideoProcessor

    processor = (Gemma4UnifiedVideoProcessor if unified else Gemma4VideoProcessor)(max_soft_tokens=CASES[name][0])
    video = torch.from_numpy(frames(name)).permute(0, 3, 1, 2)
    made = processor(videos=[video], return_tensors="pt", do_sample_frames=False)
    places = made["video_position_ids"]
    real = int((places[0] >= 0).all(-1).sum())
    return made["pixel_values_videos"][:, :real].numpy(), places[:, :real].numpy()


def main(path: str) -> None:
    from record_preprocess import with_torchvision

    kept = with_torchvision()  # noqa: F841
    found = {}
    for name in CASES:
        values, places = library(name)
        found |= {name: values.reshape(-1)[::STEP], f"{name}_places": places.astype(np.int16)[0]}
        name, (values, places) = f"{name}_unified", library(name, unified=True)
        found |= {name: values.reshape(-1)[:: 2 * STEP], f"{name}_places": places.astype(np.int16)[0]}
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
