"""States of visual tokens that a prefill keeps for rules that look at the video."""

import torch

from tests.checkpoints.llava_onevision import TIED, pixels, stock

FRAMES = 2


def test_they_are_the_librarys_last_states_at_the_visual_positions(engine, prefix):
    """The last of its hidden states lies behind the final norm."""
    with torch.inference_mode():
        expected = stock(TIED, "eager")(
            input_ids=prefix.token_ids[None], pixel_values_videos=pixels(FRAMES).values[None], output_hidden_states=True
        ).hidden_states[-1][0, prefix.visual.index]
    kept = engine.prefill(prefix, 4, states=True).visual_states
    assert kept.shape == (len(prefix.visual), expected.shape[1]) and kept.dtype == engine.model.dtype
    torch.testing.assert_close(kept.norm(dim=-1), torch.ones(len(kept)))
    torch.testing.assert_close(kept, expected / expected.norm(dim=-1, keepdim=True), atol=1e-5, rtol=1e-4)
    assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size(), "it holds the whole prompt alive"


def test_they_are_kept_only_when_asked_for(engine, prefix):
    assert engine.prefill(prefix, 4).visual_states is None
