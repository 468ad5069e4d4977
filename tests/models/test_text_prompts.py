"""Prompts without a video, in every family: the template without a placeholder, read as the stock model reads it."""

import pytest
import torch

from tests.model_pairs import ADAPTERS
from tests.models.closeness import assert_close
from tests.tiers import full_but
from vidspec.engine.forward import Engine


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", full_but(["llava_onevision", "qwen2_5_vl"], sorted(ADAPTERS)))
def test_a_prompt_without_a_video(family):
    model = ADAPTERS[family]()
    ids = model.template.ids_without_video("What is a circle?", "Be brief.")
    assert model.visual_id not in ids and "What is a circle?" in model.tokenizer.decode(ids)
    assert len(ids) < model.template.text_token_count("What is a circle?", "Be brief.") + len(model.template.video_text)
    prefix = model.text_prefix(ids)
    with torch.inference_mode():
        stock = model.model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    assert_close(Engine(model).prefill(prefix, 4).logits, stock.logits[0, -1, : model.vocabulary])
