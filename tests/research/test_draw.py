"""``python -m research.draw`` draws what it always drew for a seed."""

import hashlib

import av
import numpy as np
import pytest

from research import draw as module
from research.world.drawing import frames
from research.world.samples import draw_sample, read_truth

#: A seed whose scene needs no function that machines round differently; recorded when ``vidspec sample`` drew.
SEED = 256
TRUTH = "b5b41be1941f2773a4b7fe2a0951386e57f0c297ad2038dfc01851fd2409935a"
PICTURES = "3a41d73e542c34038f0139302a6f9445aa8453fc0c5c170e306514ed500bd0dc"
CLIP = "a26ceb5ed3db8bf968ddeefa067261b192bbe54932f5e9986198511c583ac646"
#: The encoder's bytes are its version's.
ENCODER = (62, 28, 102)


def digest(content):
    return hashlib.sha256(content).hexdigest()


def test_a_seed_draws_the_recorded_bytes(command, tmp_path):
    ran = command("draw", "--out", "clips", "--count", "1", "--seed", str(SEED))
    assert (ran.code, ran.out) == (0, "clips/clip-0000.mp4\n")
    out = tmp_path / "clips"
    assert digest((out / "truth.json").read_bytes()) == TRUTH
    ((seed, _),) = read_truth(out).values()
    assert digest(frames(draw_sample(seed).scene, np.linspace(0, 1, 4)).tobytes()) == PICTURES
    if av.library_versions["libavcodec"] == ENCODER:
        assert digest((out / "clip-0000.mp4").read_bytes()) == CLIP


def test_what_cannot_be_written(command, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    ran = command("draw", "--out", "file")
    assert (ran.code, ran.err) == (2, "error: --out file: is not a folder\n")

    def full(out, count, seed):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "draw", full)
    ran = command("draw", "--out", "d")
    assert (ran.code, ran.err) == (1, "error: d: cannot be written: No space left on device\n")


@pytest.mark.parametrize("args", [("--count", "0"), ("--seed", "-1")])
def test_bad_numbers_end_in_one_line(command, args):
    ran = command("draw", "--out", "d", *args)
    assert ran.code == 2 and args[0] in ran.err and ran.err.count("\n") == 1
