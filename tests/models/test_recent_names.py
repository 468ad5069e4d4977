"""Models that are named in late 2026, by what their configs say: supported, or refused with the nearest."""

import json

import pytest

from tests.models.test_published_configs import PUBLISHED
from vidspec.cli.checkpoint import inspect
from vidspec.errors import ModelError
from vidspec.models import hub
from vidspec.models.known_pairs import known_pairs
from vidspec.models.unsupported import find_target_problem

#: ``XiaomiMiMo/MiMo-VL-7B-RL``, as its shapes are quoted on GitHub.
MIMO = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151680,
    "rope_scaling": {"mrope_section": [16, 24, 24], "type": "default"},
    "vision_config": {"hidden_size": 1280, "intermediate_size": 3456, "out_hidden_size": 4096},
}
#: Marlin's own class is for its helpers; its weights are Qwen3.5's.
MARLIN = {
    **PUBLISHED["Qwen/Qwen3.5-0.8B"]["config"],
    "architectures": ["MarlinForConditionalGeneration"],
    "auto_map": {"AutoModelForCausalLM": "modeling_marlin.MarlinForConditionalGeneration"},
}
KEYE = {
    "model_type": "KeyeVL1_5",
    "architectures": ["KeyeVL1_5ForConditionalGeneration"],
    "auto_map": {"AutoConfig": "configuration_keye_vl_1_5.KeyeVL1_5Config"},
}


def written(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("config", "family"),
    [
        (MIMO, "qwen2_5_vl"),
        (MARLIN, "qwen3_5"),
        (PUBLISHED["Qwen/Qwen3-Omni-30B-A3B-Instruct"]["config"], "qwen3_omni_moe"),
        (PUBLISHED["allenai/Molmo2-4B"]["config"], "molmo2"),
        (PUBLISHED["openbmb/MiniCPM-V-4.6"]["config"], "minicpmv4_6"),
    ],
)
def test_supported_by_layout(tmp_path, config, family):
    found = inspect(written(tmp_path, config))
    assert found.family == family and found.parameters > 0


def test_code_of_its_own_is_named_with_the_nearest(tmp_path):
    with pytest.raises(
        ModelError, match=r"type KeyeVL1_5 \(Keye-VL 1.5 with code of its own\).*nearest: qwen3_vl, such"
    ):
        inspect(written(tmp_path, KEYE))


def test_a_family_without_an_adapter_is_named_with_the_nearest(tmp_path):
    """Its positions follow a canvas; the model before it is the nearest."""
    with pytest.raises(
        ModelError,
        match=r"type minicpmv4_7 \(MiniCPM-V 4.7, with positions on a canvas\) are not supported; "
        "nearest: minicpmv4_6, such as openbmb/MiniCPM-V-4.6",
    ):
        inspect(written(tmp_path, {"model_type": "minicpmv4_7"}))


@pytest.mark.parametrize("text", ["llama", "qwen2_vl"])
def test_a_wrapper_with_anothers_type_is_refused_by_its_class(tmp_path, text):
    """Tarsier's configs say ``llava``; its tower's rows end in tokens that LLaVA has not, and Tarsier2 is Qwen2-VL."""
    config = {"model_type": "llava", "architectures": ["TarsierForConditionalGeneration"], "image_newline_idx": 32002}
    folder = written(tmp_path, {**config, "text_config": {"model_type": text}})
    with pytest.raises(ModelError, match=r"Tarsier2, with code of their own.*nearest: qwen2_vl, such as Qwen/Qwen2-VL"):
        inspect(folder)
    assert "Tarsier2, with code of their own" in find_target_problem(folder).what


def test_names_in_the_table():
    listed = {pair.target.name: pair.target.family for pair in known_pairs()}
    assert listed["Qwen/Qwen3.8-27B"] == listed["Qwen/Qwen3.6-27B"] == listed["NemoStation/Marlin-2B"] == "qwen3_5"
    assert listed["XiaomiMiMo/MiMo-VL-7B-RL"] == "qwen2_5_vl" and "nvidia/Cosmos-Reason2-8B" in listed


def test_a_name_that_is_not_listed_is_told_before_it_is_downloaded():
    assert hub.fetch_note("Qwen/Qwen3.8-27B") == "fetching Qwen/Qwen3.8-27B from the hub"
    assert hub.fetch_note("z-lab/Qwen3.5-4B-DFlash").endswith("from the hub")
    assert "not among the models" in hub.fetch_note("org/my-finetune")
