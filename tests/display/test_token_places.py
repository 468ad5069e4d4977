"""The tokens of every family find their places over the frames that they were made from."""

import pytest

from tests.model_pairs import ADAPTERS
from tests.tiers import full_but
from vidspec import video
from vidspec.config import profiles
from vidspec.config.schema import names
from vidspec.decoding.prefill import TargetPrompt
from vidspec.display import heatmap
from vidspec.display.pages.pictures import draw_clip
from vidspec.embedded.samples import shipped


def test_no_family_is_forgotten():
    assert set(ADAPTERS) == set(names("families"))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", full_but(["llava_onevision", "qwen2_5_vl"], ADAPTERS))
def test_the_upper_left_token_is_drawn_there(monkeypatch, family):
    model = ADAPTERS[family]()
    clip = video.read(shipped()[0], frames=5, max_pixels=80 * 60)
    prefix = model.prefix(model.encode(model.preprocess(clip)), "Describe the video.")
    visual = prefix.visual
    # Kept are the upper left token of every raster and of every frame; that of the tiles lies below the whole's.
    corner = (visual.column == 0) & ((visual.row == 0) | (visual.row == (visual.views[0][0] if visual.views else 0)))
    prompt = TargetPrompt(prefix, kept=corner.nonzero()[:, 0])
    event = prompt.prefilled(profiles.load("sd-attention", env={}), 0.1)
    steps, rows, columns = event.grid
    assert len(event.cells) == event.visual_tokens and max(event.cells) < steps * rows * columns
    drawn = []
    monkeypatch.setattr(heatmap, "veil", lambda mask, *size: drawn.append(mask))
    draw_clip(clip, event, 5)
    layers = event.views or ((rows, columns),)
    assert steps == (3 if family.startswith(("qwen", "video_salmonn", "glm")) else 5)
    assert len(drawn) == steps * len(layers)
    for number, mask in enumerate(drawn):
        assert mask.shape == layers[number % len(layers)]
        seen = number // len(layers) in visual.frame[corner].tolist()  # VideoLLaMA 3 drops tokens that do not change
        assert mask[0, 0] == mask.sum() == seen
