"""Trains a head in a process of its own until an event, at which the process ends as SIGKILL ends it.

Arguments: the captions, the user's cache, the folder of the head, steps, the class of the event, and how many of these
come first.
"""

import os
import signal
import sys

import platformdirs
import torch

captions, cache, out, steps, kind, count = sys.argv[1:]
platformdirs.user_cache_dir = lambda name: cache
torch.set_num_threads(1)

from vidspec.training.train import train  # noqa: E402  it reads the folder above

left = int(count)
for event in train(captions, steps=int(steps), out=out):
    left -= type(event).__name__ == kind
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
