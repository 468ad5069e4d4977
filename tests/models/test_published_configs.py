"""Published configs, built without numbers: the shapes, sizes and memory that ``vidspec models`` lists.

Each fixture holds what of a checkpoint's ``config.json`` decides its shapes, and where that was found.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers

from research.prediction.drafts import cost_of_known, cost_of_model
from research.prediction.stock import STOCK_LAUNCHES, cost_of_stock
from vidspec.engine.recurrent import max_state_bytes
from vidspec.engine.stock import StockDecoder
from vidspec.models.base import families
from vidspec.models.known_pairs import known_pairs
from vidspec.models.loading import empty_model
from vidspec.models.video_salmonn import salmonn_config

FOLDER = Path(__file__).parent / "fixtures" / "configs"
PUBLISHED = {found["name"]: found for found in (json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")))}
KNOWN = {model.name: model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}


def built(name, folder):
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name]["config"]))
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        made = families.get(config.model_type).config_of(config)
        return transformers.AutoModelForImageTextToText.from_config(made, dtype=torch.bfloat16)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_listed_is_what_the_config_makes(name, tmp_path):
    model, listed = built(name, tmp_path), KNOWN[name]
    assert PUBLISHED[name]["source"] and PUBLISHED[name]["config"]["model_type"] == listed.family
    language = families.get(listed.family).language_of(model)
    decoder = StockDecoder(language, model.lm_head, "")
    slab = decoder.slab
    assert len(slab) == listed.layers
    assert {tuple(key.shape) for key in slab.keys_and_values(0, 0)[0]} == {(1, listed.kv_heads, 0, listed.head_dim)}
    assert slab.entry_bytes == 2 * listed.kv_per_token
    assert sum(weight.numel() for weight in model.parameters()) == listed.parameters
    assert model.lm_head.weight.shape[0] == listed.vocabulary
    assert language.config.max_position_embeddings == listed.context
    assert decoder.axes == (3 if listed.family.startswith("qwen") else 1)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("name", [name for name in PUBLISHED if KNOWN[name].read])
def test_listed_cost_is_that_of_the_config(name, tmp_path):
    model, listed = built(name, tmp_path), KNOWN[name]
    language = families.get(listed.family).language_of(model)
    decoder = StockDecoder(language, model.lm_head, "")
    stock = listed.family in STOCK_LAUNCHES
    assert cost_of_known(listed) == (cost_of_stock if stock else cost_of_model)(language, model.lm_head, decoder)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("size", ["3B", "7B"])
def test_video_salmonn_is_qwen_and_the_authors_defaults(size):
    config = PUBLISHED[f"Qwen/Qwen2.5-VL-{size}-Instruct"]["config"]
    plain = transformers.Qwen2_5_VLConfig.from_dict({**config, "architectures": ["video_SALMONN2_plus"]})
    listed = KNOWN[f"tsinghua-ee/video-SALMONN2_plus_{size}_full"]
    model = empty_model(families.get(listed.family), salmonn_config(listed.name, plain), torch.bfloat16)
    assert sum(weight.numel() for weight in model.parameters()) == listed.parameters
    assert model.lm_head.weight.shape[0] == listed.vocabulary


def test_drafts_have_their_targets_vocabulary():
    """Heads are padded to round numbers; anything else is another tokenizer."""
    for pair in known_pairs():
        if pair.draft is not None and pair.target.vocabulary and pair.draft.vocabulary:
            assert abs(pair.target.vocabulary - pair.draft.vocabulary) < 1024, pair


def test_states_of_a_clip(tmp_path):
    """Qwen3.5-9B: a state of 32 x 128 x 128 float32 in 24 blocks, of which at most 14 are kept, and their rows."""
    language = families.get("qwen3_5").language_of(built("Qwen/Qwen3.5-9B", tmp_path))
    state = 24 * 32 * 128 * 128 * 4
    assert 14 * state < max_state_bytes(language.config, torch.bfloat16) < 16 * state


def test_there_are_fixtures_for_most_families():
    assert len(PUBLISHED) >= 15
    assert {"qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "smolvlm", "llava"} <= {
        KNOWN[name].family for name in PUBLISHED
    }
