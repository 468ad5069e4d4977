"""Runs commands of ``vidspec`` without models, each killed at random moments and started again until it ends.

Reads a request per line, a JSON object of ``folder``, ``kills`` and ``args``, and answers with the number of kills and
the exit code of the last run. A clip takes a few milliseconds. The runs are forks of this process, which has imported
everything before.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import filelock  # noqa: F401
import srt  # noqa: F401
import webvtt  # noqa: F401

import vidspec.cli.terminal
import vidspec.config.user_config
import vidspec.runs.executors.local
import vidspec.runs.segment_files
from tests.fake_captioner import FakeCaptioner, FakeReader
from vidspec.cli import main

SECONDS_A_CLIP = 0.002
#: Runs are killed within so many seconds.
SECONDS_TO_KILL = 0.25
#: A run that takes longer hangs.
LIMIT = 300.0


class SlowCaptioner(FakeCaptioner):
    def stream(self, path, **asked):
        for event in super().stream(path, **asked):
            time.sleep(SECONDS_A_CLIP / 5)
            yield event


def once(folder, args, until_killed):
    """Run a command; return the status of its process."""
    child = os.fork()
    if child == 0:
        # The kernel ends it, as SIGKILL does: this process may be too late on a busy machine.
        signal.setitimer(signal.ITIMER_REAL, until_killed)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
        os.chdir(folder)
        os.environ["XDG_CONFIG_HOME"], tempfile.tempdir = folder, os.path.dirname(folder)
        os._exit(main(args))
    return os.waitpid(child, 0)[1]


def run(folder, kills, args):
    rng = random.Random(7)
    for done in range(kills):
        status = once(folder, args, rng.uniform(0.0, SECONDS_TO_KILL))
        if os.WIFEXITED(status):
            return done, os.WEXITSTATUS(status)
    return kills, os.waitstatus_to_exitcode(once(folder, args, LIMIT))


if __name__ == "__main__":
    module = ModuleType("vidspec.captioner")
    module.Captioner = SlowCaptioner
    sys.modules["vidspec.captioner"] = module
    vidspec.runs.executors.local.ClipReader = vidspec.runs.segment_files.ClipReader = FakeReader
    os.fsync = lambda number: None  # the kernel keeps what a killed process has written
    for line in sys.stdin:
        print(*run(**json.loads(line)), flush=True)
