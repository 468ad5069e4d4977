"""LLaVA-NeXT's tiles: which resolution, which pixels, which tokens, and where their newlines are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

from research.stock_inputs import stock_pixels
from tests.checkpoints.llava import IMAGE_SIZE, PATCH, RESOLUTIONS, SIDE, LlavaKind, adapter, clip, stock
from tests.models.test_llava import mute
from vidspec.models.frame_rules import best_resolution, unpadded_cells
from vidspec.pruning.base import token_grid

KIND = LlavaKind(family="llava_next")
PUBLISHED = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@pytest.fixture(scope="module")
def model():
    return adapter(KIND)


def test_best_resolution_is_the_librarys():
    rng = np.random.RandomState(0)
    sizes = [(int(h), int(w)) for h, w in rng.randint(20, 1500, (400, 2))]
    for size in [*sizes, (336, 336), (720, 1280), (1280, 720), (1080, 1920), (672, 672)]:
        for resolutions in (PUBLISHED, PUBLISHED[::-1], RESOLUTIONS):
            assert best_resolution(size, resolutions) == tuple(select_best_resolution(size, resolutions))


def test_unpadding_is_the_librarys():
    rng = np.random.RandomState(1)
    for height, width in rng.randint(20, 1500, (300, 2)).tolist():
        for tall, wide in ((48, 48), (24, 72), (6, 6), (9, 3)):
            cells = torch.arange(tall * wide).reshape(1, tall, wide)
            rows, columns = unpadded_cells((height, width), (tall, wide))
            assert torch.equal(cells[:, rows, columns], unpad_image(cells, (height, width)))


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("size", [(60, 90), (90, 60), (84, 84), (30, 200), (200, 30), (42, 84), (41, 43)], ids=str)
def test_tokens_are_the_stock_models(model, size):
    pixels = model.preprocess(clip(2, *size))
    seen = model.encode(pixels)
    inputs = stock_pixels(model, pixels)
    expected = stock(KIND).get_image_features(**inputs).pooler_output
    torch.testing.assert_close(seen.features, torch.cat(list(expected)), rtol=0, atol=1e-4)
    newline = (seen.row < 0).nonzero()[:, 0]
    assert torch.equal(seen.features[newline], model.model.model.image_newline.expand(len(newline), -1))
    assert torch.equal(seen.row < 0, seen.column < 0) and 0 < len(newline) < len(seen) / 2
    assert seen.frame.tolist() == sorted(seen.frame.tolist()) and seen.frame.bincount().tolist() == [len(seen) // 2] * 2


def test_places(model):
    """60 x 90 pixels fill 4 of 6 rows of the 2 x 2 tiles."""
    seen = model.encode(model.preprocess(clip(1, 60, 90)))
    whole = [(r, c) for r in range(SIDE) for c in range(SIDE)]
    tiles = [place for r in range(4) for place in [*((SIDE + r, c) for c in range(6)), (-1, -1)]]
    assert list(zip(seen.row.tolist(), seen.column.tolist(), strict=True)) == whole + tiles
    assert seen.grid == (1, SIDE + 4, 6)


def test_newlines_stay_and_no_two_tokens_share_a_place(model):
    seen = model.encode(model.preprocess(clip(2, 60, 90)))
    visual = model.prefix(seen, "Describe.").visual
    assert torch.equal(visual.required, seen.row < 0) and int(visual.required.sum()) == 2 * 4
    grid = token_grid(visual)
    assert grid.shape == seen.grid and int((grid >= 0).sum()) == len(seen) - 8


def test_cells_are_where_their_pixels_are():
    """A patch of a tile changes the token of its place in the whole picture, and no other."""
    model = mute(adapter(KIND))
    plain = model.preprocess(clip(2, 60, 90))
    assert plain.values.shape == (2, 5, 3, IMAGE_SIZE, IMAGE_SIZE)
    before = model.encode(plain)
    for tile, (row, column) in ((1, (0, 0)), (2, (0, 3)), (3, (3, 0)), (4, (3, 3))):
        values = plain.values.clone()
        values[1, tile, :, PATCH : 2 * PATCH, 2 * PATCH :] += 3.0
        seen = model.encode(replace(plain, stored=values, rules=None))
        moved = (seen.features - before.features).abs().amax(-1).nonzero()[:, 0]
        # One row of padding above is cut off; rows of the whole come first.
        expected = (1, SIDE + row + 1 - 1, column + 2)
        assert [(int(seen.frame[i]), int(seen.row[i]), int(seen.column[i])) for i in moved] == [expected]


def test_pooled_tokens(model):
    """Each tile alone is averaged 2 x 2 before the projector; what is padding is cut from the smaller tiles."""
    pixels = model.preprocess(clip(2, 60, 90))
    seen = model.encode(pixels, pooled=True)
    whole = stock(KIND).model
    tower = whole.vision_tower(pixels.values.flatten(0, 1), output_hidden_states=True).hidden_states[-2][:, 1:]
    cells = tower.reshape(2, 5, SIDE, SIDE, -1)
    half = torch.stack(
        [torch.stack([cells[:, :, r : r + 2, c : c + 2].mean((2, 3)) for c in (0, 2)], dim=2) for r in (0, 2)],
        dim=2,
    )
    made = whole.multi_modal_projector(half)
    rows = []
    for frame in made:
        rows += list(frame[0].flatten(0, 1))
        picture = torch.cat([torch.cat([frame[1], frame[2]], dim=1), torch.cat([frame[3], frame[4]], dim=1)])
        for line in unpad_image(picture.permute(2, 0, 1), (60, 90)).permute(1, 2, 0):
            rows += [*line, whole.image_newline]
    torch.testing.assert_close(seen.features, torch.stack(rows), rtol=0, atol=1e-4)
    assert len(seen) < len(model.encode(pixels)) / 1.5


def test_grid_is_of_the_frames_own_pixels(model):
    assert model.preprocess(clip(2, 60, 90)).grid == (2, 60, 90)
