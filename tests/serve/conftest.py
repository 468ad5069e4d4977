from functools import partial

import httpx
import pytest


@pytest.fixture(scope="session", autouse=True)
def patient_requests():
    """Requests that name no timeout wait longer than httpx's five seconds: the machine may be busy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("get", "post", "request", "stream"):
            patch.setattr(httpx, name, partial(getattr(httpx, name), timeout=120))
        yield
