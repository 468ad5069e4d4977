"""Frames that were decoded before: a clip of their own, captioned without a video library."""

import math
import subprocess
import sys

import numpy as np
import pytest

from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.video import Clip, read

CODE = """
import sys
sys.modules["av"] = sys.modules["decord"] = None  # importing either is an error
import numpy as np
from vidspec import Captioner
from vidspec.video import Clip
saved = np.load(sys.argv[1])
settings = {"models.device": "cpu", "models.threads": 1, "generate.max_new_tokens": 12}
with Captioner.from_profile("vanilla-sd", overrides=settings) as captioner:
    print(captioner.caption("clip.npz", clip=Clip.of(saved["frames"], saved["timestamps"])).token_ids)
"""


@pytest.mark.full
def test_a_machine_without_a_video_library_captions_them(tmp_path):
    from vidspec import Captioner

    clip = read(shipped()[0], frames=8)
    np.savez(tmp_path / "clip.npz", frames=clip.frames, timestamps=clip.timestamps)
    ran = subprocess.run([sys.executable, "-c", CODE, str(tmp_path / "clip.npz")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    settings = {"models.device": "cpu", "models.threads": 1, "generate.max_new_tokens": 12}
    with Captioner.from_profile("vanilla-sd", overrides=settings) as captioner:
        assert ran.stdout.splitlines()[-1] == str(captioner.caption("", clip=clip).token_ids)


def test_importing_the_library_imports_no_decoder():
    code = (
        "import sys, vidspec, vidspec.video; from vidspec.video import Clip; print({'av', 'decord'} & {*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "set()\n", ran.stderr


def test_facts_follow_from_frames_and_times():
    clip = Clip.of(np.zeros((4, 6, 8, 3), np.uint8), [1.0, 1.5, 2.0, 2.5])
    assert (clip.facts.height, clip.facts.width, clip.facts.frame_count, clip.facts.fps) == (6, 8, 4, 2.0)
    assert clip.facts.duration_s == 3.0 and clip.timestamps.dtype == np.float64
    assert Clip.of(np.zeros((1, 6, 8, 3), np.uint8), [0.0]).facts.duration_s == 0.0


@pytest.mark.parametrize(
    ("shape", "dtype", "times"),
    [((4, 6, 8, 3), np.float32, 4), ((4, 3, 6, 8), np.uint8, 4), ((6, 8, 3), np.uint8, 6), ((4, 6, 8, 3), np.uint8, 3),
     ((0, 6, 8, 3), np.uint8, 0), ((4, 0, 8, 3), np.uint8, 4)],
)  # fmt: skip
def test_what_are_no_frames_is_refused(shape, dtype, times):
    with pytest.raises(UsageError, match="frames"):
        Clip.of(np.zeros(shape, dtype), range(times))


@pytest.mark.parametrize("times", [[0.0, math.nan], [0.0, math.inf], [1.0, 0.0], ["a", "b"], None, 5])
def test_what_are_no_times_is_refused(times):
    with pytest.raises(UsageError, match="times"):
        Clip.of(np.zeros((2, 6, 8, 3), np.uint8), times)
    with pytest.raises(UsageError, match="frames must be an array, not a list"):
        Clip.of([np.zeros((6, 8, 3), np.uint8)], [0.0])
