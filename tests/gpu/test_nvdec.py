"""On an NVIDIA GPU: its decoder gives the frames that software gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.places import cuda_only
from vidspec import video
from vidspec.embedded.samples import shipped

pytestmark = [pytest.mark.gpu, cuda_only]


def test_frames_are_those_of_software():
    pytest.importorskip("av", reason="PyAV, which reads video, is not installed")
    from vidspec.video.decode_hardware import refusal_reason

    if (why := refusal_reason("nvdec")) is not None:
        pytest.skip(f"the driver here decodes no video: {why}")
    for clip in shipped():
        there, here = (video.read(clip, frames=32, decoder=name) for name in ("nvdec", "av"))
        assert there.facts.decoder == "nvdec" and np.array_equal(there.timestamps, here.timestamps)
        assert np.array_equal(there.frames, here.frames), clip
