from functools import partial

import httpx
import pytest

from vidspec.captioner import Captioner


@pytest.fixture(scope="session", autouse=True)
def patient_requests():
    """Requests that name no timeout wait longer than httpx's five seconds: the machine may be busy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("get", "post", "request", "stream"):
            patch.setattr(httpx, name, partial(getattr(httpx, name), timeout=120))
        yield


@pytest.fixture(scope="session")
def captioner():
    """A captioner of the built-in pair: vanilla-sd, four frames and 20 tokens of a clip."""
    overrides = {"video.frames": 4, "generate.max_new_tokens": 20, "models.device": "cpu"}
    with Captioner.from_profile("vanilla-sd", overrides=overrides) as loaded:
        yield loaded
