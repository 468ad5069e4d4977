import torch

from tests.pruning.given import irregular_tokens, visual_tokens
from vidspec.pruning.base import token_grid, token_places


def test_cells_are_where_the_grid_has_the_tokens():
    for visual in (visual_tokens(3, 2, 5), irregular_tokens(4, 3, 4), visual_tokens(1, 1, 1, newline=False)):
        grid, cells = token_places(visual)
        expected = token_grid(visual)
        assert grid == tuple(expected.shape) and len(cells) == len(visual)
        for token, cell in enumerate(cells):
            if cell < 0:
                assert visual.row[token] < 0
            else:
                assert int(expected.flatten()[cell]) == token


def test_tokens_without_any_place():
    visual = visual_tokens(2, 1, 2, newline=False)
    nowhere = torch.full((4,), -1)
    lost = type(visual)(visual.index, visual.frame, nowhere, nowhere, visual.required, visual.features)
    assert token_places(lost) == ((2, 0, 0), (-1,) * 4)
