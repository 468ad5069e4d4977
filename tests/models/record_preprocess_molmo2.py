"""Records what the library's Molmo 2 video processor makes of frames, for ``test_molmo2.py``.

Run as ``record_preprocess.py`` is: ``python record_preprocess_molmo2.py fixtures/preprocess_molmo2.npz`` in its folder.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

#: Frames, height, width: shrunk, stretched, both ways.
CASES = {"shrunk": (2, 540, 960), "stretched": (1, 97, 131), "both": (3, 720, 40)}
#: The class by itself leaves pixels as bytes.
SETTINGS = {"do_sample_frames": False, "do_rescale": True, "do_normalize": True}
#: Every so many numbers of the patches are recorded.
STEP = 977


def frames(name: str) -> NDArray[np.uint8]:
    count, height, width = CASES[name]
    rng = np.random.RandomState(sum(map(ord, name)))
    t, y, x = np.ogrid[:count, :height, :width]
    waves = np.stack([(x * (c + 2) + y * (3 - c) + 17 * t) % 200 for c in range(3)], -1)
    return np.clip(waves + rng.randint(-20, 20, (count, height, width, 3)), 0, 255).astype(np.uint8)


def main(path: str) -> None:
    import torch
    from record_preprocess import with_torchvision

    kept = with_torchvision()  # noqa: F841
    from transformers.models.molmo2.video_processing_molmo2 import Molmo2VideoProcessor

    found = {}
    for name in CASES:
        video = torch.from_numpy(frames(name)).permute(0, 3, 1, 2)
        made = Molmo2VideoProcessor(**SETTINGS)(videos=[video], return_tensors="pt")
        values = made["pixel_values_videos"].numpy()
        found[name] = values.reshape(-1)[::STEP]
        found[f"{name}_means"] = values.mean(-1, dtype=np.float64).astype(np.float32)[:, ::13]
        found[f"{name}_pooling"] = made["video_token_pooling"].numpy()
        found[f"{name}_grid"] = made["video_grids"][0].numpy()
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
