"""The study of adaptive windows: its useless draft, and its ratios."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from research.studies.draft_windows import add_noise, ratios


def test_noise_is_as_large_as_it_is_said_to_be(tmp_path):
    folder = tmp_path / "draft"
    folder.mkdir()
    weight = torch.randn(200, 200, dtype=torch.float32) * 0.1
    save_file({"weight": weight, "one": torch.ones(1)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    add_noise(folder, tmp_path / "noisy")
    noisy = load_file(tmp_path / "noisy" / "model.safetensors")
    assert (noisy["weight"] - weight).std() / weight.std() == pytest.approx(1.5, rel=0.05)
    assert noisy["one"] == 1 and (tmp_path / "noisy" / "config.json").is_file()


def test_ratios_are_those_of_the_same_clip_in_the_same_turn():
    def turns(*seconds):
        return [SimpleNamespace(timings={"decode": one}, token_ids=range(11)) for one in seconds]

    a, b = Path("a"), Path("b")
    found = ratios({a: turns(1.0, 2.0, 4.0), b: turns(1.0)}, {a: turns(1.0, 1.0, 1.0), b: turns(2.0)})
    assert found == [0.5, 2.0]
