"""Runs a command of ``vidspec`` without models over and over, each time killed at a random moment, until it ends.

``kill_and_resume.py SEED KILLS SECONDS ARGS...`` prints how often it was killed and the exit code of the last run. A
clip takes a few milliseconds. The runs are forks of this process, which has imported everything before.
"""

import os
import random
import signal
import sys
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

SECONDS_A_CLIP = 0.004


class SlowCaptioner(FakeCaptioner):
    def stream(self, path, **asked):
        for event in super().stream(path, **asked):
            time.sleep(SECONDS_A_CLIP / 5)
            yield event


def once(args, until_killed):
    child = os.fork()
    if child == 0:
        # The kernel ends it, as SIGKILL does: this process may be too late on a busy machine.
        signal.setitimer(signal.ITIMER_REAL, until_killed)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os._exit(main(args))
    return child


def run(seed, kills, seconds, args):
    rng = random.Random(seed)
    module = ModuleType("vidspec.captioner")
    module.Captioner = SlowCaptioner
    sys.modules["vidspec.captioner"] = module
    vidspec.runs.executors.local.ClipReader = vidspec.runs.segment_files.ClipReader = FakeReader
    done = 0
    while True:
        child = once(args, rng.uniform(0.0, seconds) if done < kills else 0.0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return done, os.WEXITSTATUS(status)
        done += 1


if __name__ == "__main__":
    print(*run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
