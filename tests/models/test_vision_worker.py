"""The process that looks at clips: it sees what the models see here, and its end costs nothing but time."""

import os
import signal
import time

import numpy as np
import pytest
import torch

from tests.checkpoints import checkpoint
from vidspec import video
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.models import loading, vision_ahead
from vidspec.models.placement import resolve_placement
from vidspec.models.vision_ahead import VisionWorker, is_available

PLACE = resolve_placement("cpu", "float32")


@pytest.fixture(scope="module")
def models():
    return [loading.load_model(str(checkpoint("readable", noise=noise)), PLACE) for noise in (0.0, 0.05)]


@pytest.fixture
def clip():
    return video.read(shipped()[0], frames=4)


@pytest.fixture
def looks(models):
    if not is_available(models):
        pytest.skip("needs Linux and two cores")
    one = VisionWorker(models)
    yield one
    one.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_sees_what_the_models_see(models, looks, clip):
    for _ in range(2):
        for model, seen in zip(models, looks.encode(clip), strict=True):
            expected = model.encode(model.preprocess(clip))
            assert torch.equal(seen.features, expected.features) and torch.equal(seen.row, expected.row)
            assert seen.grid == expected.grid and len(seen.deepstack) == len(expected.deepstack)


def test_what_goes_wrong_with_a_clip_is_said_and_the_next_is_seen(looks, clip):
    broken = video.Clip(np.zeros((1, 0, 0, 3), np.uint8), np.zeros(1), clip.facts)
    with pytest.raises(Exception, match=r".") as caught:
        looks.encode(broken)
    assert not isinstance(caught.value, OSError) and looks.alive
    assert len(looks.encode(clip)) == 2


def test_its_files_are_its_own(looks, clip, tmp_path):
    """Locks of the run must not be held by a process that outlives it."""
    looks.encode(clip)
    held = os.listdir(f"/proc/{looks.process.pid}/fd")
    assert len(held) <= 5  # the three standard ones, its pipe, and the listing's own where it counts


@pytest.mark.full
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_captioner_does_without_it(models, clip, end, monkeypatch):
    from vidspec.config import profiles

    settings = {"models.pair": None, "models.target": "t", "models.draft": "d", "generate.max_new_tokens": 8}
    captioner = Captioner(profiles.load("vanilla-sd", settings, env={}), *models)
    if not is_available(models):
        pytest.skip("needs Linux and two cores")
    captioner.client.inputs.vision.start_worker()
    process = captioner.client.inputs.vision.worker.process
    expected = captioner.caption("clip", clip=clip).token_ids
    held = captioner.client.inputs.vision.prepare(clip)
    assert held > 0 and captioner.caption("clip", clip=clip).token_ids == expected
    monkeypatch.setattr(vision_ahead, "PATIENCE", 0.5)
    os.kill(process.pid, signal.SIGKILL if end == "kill" else signal.SIGSTOP)
    for _ in range(2):
        assert captioner.client.inputs.vision.prepare(clip) == held
        assert captioner.caption("clip", clip=clip).token_ids == expected
    assert not captioner.client.inputs.vision.worker.alive and not alive(process.pid)
    captioner.close()


def test_it_ends_with_the_captioner(models):
    from vidspec.config import profiles

    if not is_available(models):
        pytest.skip("needs Linux and two cores")
    settings = {"models.pair": None, "models.target": "t", "models.draft": "d"}
    captioner = Captioner(profiles.load("ar", settings, env={}), models[0], None)
    captioner.client.inputs.vision.start_worker()
    captioner.client.inputs.vision.start_worker()
    pid = captioner.client.inputs.vision.worker.process.pid
    captioner.close()
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)
