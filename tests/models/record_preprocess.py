"""Records what the library's video processor makes of a few frames; ``test_preprocess.py`` compares with ours.

Where torchvision can be imported, run ``python record_preprocess.py fixtures/preprocess.npz`` in this folder. One that
has no build for the installed torch will do: ``pip install --no-deps --target /tmp/tv torchvision``, then run with
``PYTHONPATH=/tmp/tv``; the two operators whose absence keeps it from importing are declared here. Tests take such a
folder from ``VIDSPEC_TEST_TORCHVISION`` instead, because transformers itself breaks in a process that finds it.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

HALF, CLIP = ((0.5, 0.5, 0.5),) * 2, ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
#: name: (frames, height, width, size they are resized to, (mean, std), resample)
CASES = {
    "up": (2, 36, 64, 384, HALF, 3),
    "up_odd": (1, 97, 131, 384, HALF, 3),
    "same": (1, 384, 384, 384, HALF, 3),
    "down": (1, 480, 853, 384, HALF, 3),
    "down_portrait": (1, 1081, 607, 384, CLIP, 3),
    "small_up": (3, 35, 51, 96, HALF, 3),
    "small_same": (1, 96, 96, 96, HALF, 3),
    "small_down": (2, 720, 1280, 96, HALF, 3),
    "small_mixed": (1, 41, 333, 96, CLIP, 3),
    "bilinear": (1, 123, 77, 96, HALF, 2),
    "bilinear_down": (1, 480, 640, 96, HALF, 2),
}
#: Every so manieth pixel is recorded, per output size.
STEP = {384: 11, 96: 5}


def frames(name: str) -> NDArray[np.uint8]:
    """(T, H, W, 3): waves, hard edges and noise; the same on every machine."""
    count, height, width, *_ = CASES[name]
    rng = np.random.RandomState(sum(map(ord, name)))
    y, x = np.mgrid[:height, :width]
    made = []
    for frame in range(count):
        phase = rng.randint(0, 50, 3)
        waves = np.stack([(x * (c + 2) + y * (3 - c) + phase[c] * (frame + 1)) % 200 for c in range(3)], -1)
        waves[height // 4 : height // 2, width // 3 : width // 2] = 255
        waves[height // 2 :, : width // 5] = 0
        made.append(np.clip(waves + rng.randint(-20, 20, waves.shape), 0, 255))
    return np.stack(made).astype(np.uint8)


def library(name: str) -> NDArray[np.float32]:
    """(T, 3, S, S) from the library's processor."""
    import torch
    from transformers.models.llava_onevision.video_processing_llava_onevision import LlavaOnevisionVideoProcessor

    *_, size, (mean, std), resample = CASES[name]
    processor = LlavaOnevisionVideoProcessor(
        size={"height": size, "width": size}, image_mean=list(mean), image_std=list(std), resample=resample
    )
    video = torch.from_numpy(frames(name)).permute(0, 3, 1, 2)
    return processor(videos=[video], return_tensors="pt")["pixel_values_videos"][0].numpy()


def with_torchvision() -> object:
    """Make torchvision importable; what is returned must be kept."""
    import torch

    declared = torch.library.Library("torchvision", "DEF")
    try:
        import torchvision
    except (RuntimeError, ImportError):
        sys.modules.pop("torchvision", None)
        for operator in ("nms", "qnms"):
            declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401
    return declared


def main(path: str) -> None:
    kept = with_torchvision()  # noqa: F841
    found = {}
    for name, (*_, size, _, _) in CASES.items():
        whole = library(name)
        found[name] = whole[..., :: STEP[size], :: STEP[size]]
        found[f"{name}_mean"] = whole.mean((-1, -2), dtype=np.float64)
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
