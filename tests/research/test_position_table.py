import json

import pytest

from research.position_bias import biases
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def contenders():
    few = {"video.frames": 6}
    made = {name: Captioner.from_profile(name, overrides=few) for name in ("sd-attention", "sd-window-front", "ar")}
    return {**made, "generate": object()}


def test_profiles_that_prune_are_measured(contenders):
    found = biases(contenders, shipped()[:2])
    assert list(found) == ["sd-attention", "sd-window-front"]
    front = found["sd-window-front"]
    assert (
        front.bins == pytest.approx([0.6, 0.4, *[0.0] * 8], abs=1e-6) and front.first.kept == 1 and front.last.kept == 0
    )
    assert front.first.all == pytest.approx(1 / 6) and front.rows.all == 0.5
    assert found["sd-attention"].bins != front.bins


def test_the_command_measures_profiles_that_prune(monkeypatch, command):
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "4")
    args = (str(shipped()[0]), "--profiles", "sd-window-front,ar")
    ran = command("position_bias", *args)
    assert (
        ran.code == 0 and "| sd-window-front | " in ran.out.rpartition("equal stretches")[2] and "| ar" not in ran.out
    )
    (measured,) = json.loads(command("position_bias", *args, "--format", "json").out).values()
    assert measured["first"]["kept"] > measured["first"]["all"] and measured["last"]["kept"] == 0


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("--profiles", "ar,vanilla-sd"), "--profiles ar,vanilla-sd: none of them prunes"),
        (("no.mp4",), "no.mp4: there is no such file"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("position_bias", *args)
    assert (ran.code, ran.out) == (2, "") and ran.err.splitlines()[-1].startswith(f"error: {complaint}")
