"""Captioners on one pair of small random models and, where possible, on one draft process."""

import os
import signal
import time
from functools import cache

from tests.checkpoints import checkpoint
from tests.ready_clips import read_requests
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped

CLIPS = {path.stem: path for path in shipped()}
CLIP = CLIPS["one-object"]
TOKENS = 150


def named_requests(captioner, names):
    """Return requests for the clips of ``CLIPS`` with these names."""
    return read_requests(captioner, {name: CLIPS[name] for name in names})


class Pairs:
    """A target and a draft that is the target with noise in its weights."""

    def __init__(self):
        self.folders = checkpoint("readable"), checkpoint("readable", noise=0.05)
        self.first = self.loaded()
        self.model, self.slot = self.first.client.setup.target.model, self.first.client.setup.slot
        self.plain = cache(lambda clip: self.sharing("ar").caption(CLIPS[clip]).token_ids)

    def settings(self, **more):
        target, draft = self.folders
        return {
            "models.pair": None,
            "models.target": str(target),
            "models.draft": str(draft),
            "models.threads": 1,  # two that wait for each other are slow on a busy machine
            "generate.max_new_tokens": TOKENS,
            "workers.timeout": 60.0,
            **more,
        }

    def loaded(self, name="parallelvlm", **more):
        """A captioner with models and a process of its own."""
        return Captioner.from_profile(profiles.load(name, self.settings(**more), env={}))

    def sharing(self, name="parallelvlm", target=None, **more):
        """A captioner with the target and the process that all share; not to be closed."""
        profile = profiles.load(name, self.settings(**more), env={})
        return Captioner(profile, target or self.model, None, slot=self.slot if profile.concurrent else None)

    @property
    def pid(self):
        return self.slot.process.process.pid

    def close(self):
        self.slot.target = self.model
        self.first.close()


def gone(pid, seconds=60.0):
    """Return True if a process ends, and is collected, within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False
