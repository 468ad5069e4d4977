"""Records what the library's MiniCPM-V 4.6 video processor makes of frames, for ``test_minicpmv.py``.

Run as ``record_preprocess.py`` is: ``python record_preprocess_minicpmv.py fixtures/preprocess_minicpmv.npz`` in its
folder.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

#: Frames, height, width, settings: shown whole, in slices, and with four times the tokens.
CASES: dict[str, tuple[int, int, int, dict[str, object]]] = {
    "whole": (1, 97, 131, {}),
    "slices": (2, 540, 960, {}),
    "tall": (1, 901, 283, {}),
    "few": (1, 1080, 1920, {"max_slice_nums": 4}),
    "unsliced": (1, 720, 1280, {"slice_mode": False}),
    "fine": (1, 540, 960, {"downsample_mode": "4x"}),
}
#: Every so many numbers of the patches are recorded.
STEP = 1499


def frames(name: str) -> NDArray[np.uint8]:
    count, height, width, _ = CASES[name]
    rng = np.random.RandomState(sum(map(ord, name)))
    t, y, x = np.ogrid[:count, :height, :width]
    waves = np.stack([(x * (c + 2) + y * (3 - c) + 17 * t) % 200 for c in range(3)], -1)
    return np.clip(waves + rng.randint(-20, 20, (count, height, width, 3)), 0, 255).astype(np.uint8)


def main(path: str) -> None:
    import torch
    from record_preprocess import with_torchvision

    kept = with_torchvision()  # noqa: F841
    from transformers.models.minicpmv4_6.video_processing_minicpmv4_6 import MiniCPMV4_6VideoProcessor

    found = {}
    for name, (*_, settings) in CASES.items():
        video = torch.from_numpy(frames(name)).permute(0, 3, 1, 2)
        made = MiniCPMV4_6VideoProcessor(**settings)(videos=[video], return_tensors="pt", do_sample_frames=False)
        found[name] = made["pixel_values_videos"].numpy().reshape(-1)[::STEP]
        found[f"{name}_sizes"] = made["target_sizes_videos"].numpy()
        found[f"{name}_grids"] = made["grids_videos"].numpy()
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
