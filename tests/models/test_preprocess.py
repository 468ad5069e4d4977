from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models import record_preprocess
from tests.models.installed_processor import record_now
from tests.models.record_preprocess import CASES, STEP, frames
from vidspec.errors import ModelError
from vidspec.models import preprocess
from vidspec.models.preprocess import (
    ImageRules,
    PixelRules,
    channels_first,
    normalise,
    resize_and_crop,
    resize_to_square,
)

RECORDED = Path(__file__).parent / "fixtures" / "preprocess.npz"
MODES = {2: "bilinear", 3: "bicubic"}


def normalised(shown, rules):
    return normalise(resize_to_square(shown, rules), rules)


def ours(name):
    *_, size, (mean, std), resample = CASES[name]
    return normalised(frames(name), PixelRules(size, size, mean, std, MODES[resample])).numpy()


def compare(name, recorded):
    got, step = ours(name), STEP[CASES[name][3]]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[..., ::step, ::step], recorded[name], rtol=0, atol=1e-3)
    np.testing.assert_allclose(got.mean((-1, -2), dtype=np.float64), recorded[f"{name}_mean"], rtol=0, atol=1e-4)


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_recorded_processor(name):
    compare(name, np.load(RECORDED))


def test_equals_the_installed_processor(tmp_path):
    """On demand: where there is a torchvision, the library's processor runs, in a process of its own."""
    now, recorded = record_now(record_preprocess.__file__, tmp_path / "now.npz"), np.load(RECORDED)
    assert sorted(now) == sorted(recorded)
    for name in CASES:
        compare(name, now)


def test_fixture_is_small():
    assert RECORDED.stat().st_size < 100_000


def test_frames_do_not_influence_each_other():
    together = ours("small_up")
    rules = PixelRules(96, 96)
    for index, frame in enumerate(frames("small_up")):
        assert np.array_equal(normalised(frame[None], rules)[0].numpy(), together[index])


def test_values_without_resizing():
    levels = np.zeros((1, 2, 2, 3), np.uint8)
    levels[0, 0, 0], levels[0, 1, 1] = (255, 0, 51), (0, 255, 102)
    got = normalised(levels, PixelRules(2, 2, mean=(0.5, 0.4, 0.2), std=(0.5, 0.3, 0.1)))
    assert got.shape == (1, 3, 2, 2)
    torch.testing.assert_close(got[0, :, 0, 0], torch.tensor([1.0, -0.4 / 0.3, 0.0]))
    torch.testing.assert_close(got[0, :, 1, 1], torch.tensor([-1.0, 2.0, 2.0]))


def test_height_and_width_are_not_confused():
    wide = np.zeros((1, 20, 40, 3), np.uint8)
    wide[:, :, 20:] = 255  # the right half is white
    got = normalised(wide, PixelRules(8, 12))
    assert got.shape == (1, 3, 8, 12)
    assert (got[..., :5] < -0.9).all() and (got[..., 7:] > 0.9).all()


def test_sizes_that_no_memory_holds():
    """The size of the frame before it is cropped; a small crop hides it."""
    rules = ImageRules(PixelRules(8, 8), edge=10**6)
    with pytest.raises(ModelError, match=r"frames of 2000000 x 1000000 pixels, too many"):
        resize_and_crop(np.zeros((1, 20, 40, 3), np.uint8), rules)


def test_views_and_reversed_frames():
    whole = frames("up")
    rules = PixelRules(96, 96)
    view = whole[::-1, :, ::-1]
    assert torch.equal(normalised(view, rules), normalised(view.copy(), rules))


def test_input_is_not_changed():
    shown = frames("same")
    before = shown.copy()
    normalised(shown, PixelRules(384, 384))
    assert np.array_equal(shown, before)


def test_nearest_takes_pixels_as_they_are():
    shown = frames("small_up")
    got = normalised(shown, PixelRules(70, 102, mode="nearest"))
    plain = normalised(shown, PixelRules(35, 51))
    torch.testing.assert_close(got, plain.repeat_interleave(2, -1).repeat_interleave(2, -2))


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("name", CASES)
def test_devices_that_resize_floats_give_the_same_bytes(name):
    """The path of CUDA, here on the CPU."""
    *_, size, _, resample = CASES[name]
    pixels = channels_first(frames(name))
    ours, cpu = (way(pixels, size, size, MODES[resample]) for way in (preprocess.resize_as_floats, preprocess.resize))
    assert ours.dtype == torch.uint8
    apart = (ours.int() - cpu.int()).abs()
    assert apart.max() <= 2 and (apart > 0).float().mean() < 0.01 and (apart > 1).float().mean() < 1e-4


def test_bytes_go_to_cuda_from_pinned_memory_without_waiting(monkeypatch):
    done = []

    def pinned(tensor):
        done.append(("pinned", tensor.dtype))
        return tensor

    def copied(tensor, *args, **options):
        done.append((*args, options))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.Tensor, "to", copied)
    shown = np.tile(frames("small_up"), (40, 1, 1, 1))
    assert shown.nbytes > 2**15  # less is copied from where it is
    for device in ("cpu", "mps"):
        assert channels_first(shown, torch.device(device)).device.type == "cpu" and not done
    assert torch.equal(channels_first(shown, torch.device("cuda:1")), channels_first(shown))
    assert done == [("pinned", torch.uint8), (torch.device("cuda:1"), {"non_blocking": True})]


def test_rules_from_a_config():
    config = {
        "size": {"height": 384, "width": 320},
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "resample": 2,
        "rescale_factor": 0.5,
    }
    assert PixelRules.from_config(config, 96) == PixelRules(384, 320, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bilinear", 0.5)


@pytest.mark.parametrize("config", [{}, {"size": None, "image_mean": None, "image_std": None}])
def test_rules_without_a_config(config):
    assert PixelRules.from_config(config, 96) == PixelRules(96, 96, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")


def test_rules_with_one_edge():
    assert PixelRules.from_config({"size": {"shortest_edge": 224}}, 96) == PixelRules(224, 224)
