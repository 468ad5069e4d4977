"""The interface between the halves: codes of patches and of visual tokens on grids of any shape."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from research.training.architecture import Grid
from research.training.codes import _INDEX, _LONG, Codes, pool, pool_shares, shares
from research.world.scene import draw_scene

pytestmark = pytest.mark.full

GRID = Grid(4, 4)


def test_every_property_has_a_direction_of_its_own():
    codes = Codes(128)
    product = codes.directions @ codes.directions.T
    assert torch.allclose(product, torch.eye(len(codes.directions)), atol=1e-5)
    assert not torch.allclose(Codes(256).directions[:, :128], codes.directions)


def test_patch_codes_say_what_covers_a_patch():
    scene, codes = draw_scene(random.Random(5), count=2), Codes(128)
    share = shares(scene, [0.0], GRID)
    patches = codes.patches(scene, share)
    thing = scene.things[0]
    row, column = np.unravel_index(share[0, 0].argmax(), (8, 8))
    found = codes.directions @ (patches[0, row, column] - codes.places(8, 8)[row, column])
    assert found[_INDEX[f"colour:{thing.colour}"]] == pytest.approx(_LONG * share[0, 0, row, column], abs=1e-4)
    others = [k for name, k in _INDEX.items() if name.startswith("colour:") and name != f"colour:{thing.colour}"]
    covered_by_other = share[1, 0, row, column]
    assert found[others].abs().sum() == pytest.approx(_LONG * covered_by_other, abs=1e-3)


def test_pooling_codes_is_what_the_stock_model_does_to_features():
    patches = torch.randn(2, 8, 8, 16)
    pooled = torch.nn.functional.interpolate(patches.permute(0, 3, 1, 2), size=(4, 4), mode="bilinear")
    assert torch.allclose(pool(patches), pooled.permute(0, 2, 3, 1), atol=1e-6)


@pytest.mark.parametrize("grid", [Grid(4, 4), Grid(5, 7, frames=2), Grid(8, 4, frames=2)])
def test_a_tokens_code_is_the_mean_over_its_patches_and_frames(grid):
    scene, codes = draw_scene(random.Random(1), count=3), Codes(128)
    share = shares(scene, np.linspace(0, 1, 6), grid)
    assert share.shape == (3, 6, 2 * grid.rows, 2 * grid.columns)
    expected = pool(codes.patches(scene, share))
    expected = expected.reshape(-1, grid.frames, *expected.shape[1:]).mean(dim=1)
    tokens = codes.tokens(scene, share, grid)
    assert tokens.shape == (6 // grid.frames, grid.rows, grid.columns, 128)
    assert torch.allclose(tokens, expected, atol=1e-5)
    assert pool_shares(share, grid).max() <= 1


def test_places_of_eight_cells_are_the_directions_and_of_others_lie_between():
    codes = Codes(128)
    eight = codes.places(8, 8)
    x, y = (codes.directions[_INDEX[f"{axis}:0"] :][:8] for axis in "xy")
    assert torch.allclose(eight, y[:, None] + x[None, :], atol=1e-6)
    found = codes.places(10, 14) @ codes.directions.T
    columns = found[:, :, _INDEX["x:0"] : _INDEX["x:0"] + 8]
    rows = found[:, :, _INDEX["y:0"] : _INDEX["y:0"] + 8]
    assert torch.allclose(columns.sum(-1), torch.ones(10, 14), atol=1e-5)
    centre = (columns * torch.arange(8)).sum(-1)[0]
    assert (centre.diff() > 0).all() and centre[7] == pytest.approx((7.5 / 14) * 8 - 0.5, abs=1e-4)
    assert ((rows * torch.arange(8)).sum(-1)[:, 0].diff() > 0).all()
    assert (columns > 1e-4).sum(-1).max() == 2
