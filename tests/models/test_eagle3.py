"""Layouts of EAGLE-3 heads that are read, and those that are refused in one line."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints.eagle3 import DRAFTED, config, save, tensors
from tests.checkpoints.qwen import HIDDEN, LAYERS, QWEN25, QwenKind, adapter
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.errors import ModelError
from vidspec.models import eagle3
from vidspec.models.placement import resolve_placement

KIND = QwenKind(QWEN25)
PLACE = resolve_placement("cpu", "float32")


@pytest.fixture(scope="module")
def target():
    return adapter(KIND)


def load(folder, target, settings=None, weights=None):
    return eagle3.load_eagle3(str(save(folder, settings or config(KIND), weights or tensors(KIND))), target, PLACE)


def choices(head, seed=0):
    """Logits and state of a few pairs, by the target's ids."""
    rng = torch.Generator().manual_seed(seed)
    states = torch.randn(5, 3 * HIDDEN, generator=rng)
    positions = torch.arange(5).expand(head.decoder.axes, -1)
    fed = head.fed(head.embed(torch.arange(5)), head.joined(states), positions)
    engine = Engine(head)
    (passed,) = engine.run([Rows(engine.open(8), prompt=fed, stretch=(0, 5), tapped=(1,))])
    return dict(zip(head.tokens.tolist(), passed.logits[-1].tolist(), strict=True)), passed.tapped


@pytest.mark.parametrize("normed", [False, True], ids=["state", "normed"])
def test_of_a_prompt_its_block_goes_on_with_the_last_row_alone(tmp_path, target, monkeypatch, normed):
    head = load(tmp_path, target, {**config(KIND), "norm_before_residual": normed})
    counts, block, every = [], head.decoder.block, torch.arange(5)
    monkeypatch.setattr(head.decoder, "block", lambda *given: counts.append(len(out := block(*given))) or out)
    states = torch.randn(5, 3 * HIDDEN, generator=torch.Generator().manual_seed(0))
    fed = head.fed(head.embed(every), head.joined(states), every.expand(head.decoder.axes, -1))
    engine = Engine(head)
    (whole,) = engine.run([Rows(engine.open(8), prompt=fed, stretch=(0, 5), tapped=(1,))])
    span = engine.open(8)
    first, last = (engine.run([Rows(span, prompt=fed, stretch=part)])[0] for part in [(0, 3), (3, 5)])
    assert counts == [5, 0, 1] and not len(first.logits)
    torch.testing.assert_close(last.logits, whole.logits, rtol=1e-4, atol=1e-4)


def without(weights, *keys):
    return {key: value for key, value in weights.items() if key not in keys}


def speculators(weights):
    """Names of that package, whose block is the first of a list."""
    return {key.replace("midlayer.", "layers.0."): value for key, value in weights.items()}


def test_other_layouts_are_the_same_head(tmp_path, target):
    plain, states = choices(load(tmp_path / "plain", target))
    assert len(plain) == DRAFTED and states.shape == (5, HIDDEN)
    given = config(KIND)
    inner = {key: given.pop(key) for key in list(given) if key not in ("draft_vocab_size", "eagle_config")}
    nested = {**given, "architectures": ["Eagle3Speculator"], "transformer_layer_config": inner}
    named = {f"model.{key}" if "midlayer" in key else key: value for key, value in tensors(KIND).items()}
    table = target.embed(torch.arange(target.vocabulary)).clone()
    for name, settings, weights in (
        ("nested", nested, speculators(tensors(KIND))),
        ("named", config(KIND), named),
        ("embeddings", config(KIND), {**tensors(KIND), "embed_tokens.weight": table}),
        ("no t2d", config(KIND), without(tensors(KIND), "t2d")),
    ):
        assert choices(load(tmp_path / name, target, settings, weights))[0] == pytest.approx(plain, abs=1e-5)


def test_shards_are_one_head(tmp_path, target):
    weights, folder = tensors(KIND), tmp_path / "shards"
    save(folder, config(KIND), weights)
    (folder / "model.safetensors").unlink()
    files = {"one.safetensors": list(weights)[:5], "two.safetensors": list(weights)[5:]}
    for file, keys in files.items():
        save_file({key: weights[key] for key in keys}, folder / file)
    index = {"weight_map": {key: file for file, keys in files.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    got, expected = (
        choices(eagle3.load_eagle3(str(folder), target, PLACE))[0],
        choices(load(tmp_path / "one", target))[0],
    )
    assert got == pytest.approx(expected, abs=1e-4)  # weights at other addresses round otherwise


def test_a_head_of_the_whole_vocabulary_proposes_what_the_target_can_emit(tmp_path, target):
    size = config(KIND)["vocab_size"]
    weights = without(tensors(KIND), "d2t", "t2d") | {"lm_head.weight": torch.randn(size, HIDDEN)}
    head = load(tmp_path, target, config(KIND, draft_vocab_size=None), weights)
    assert head.tokens.tolist() == list(range(target.vocabulary)) and target.vocabulary < size
    assert len(choices(head)[0]) == target.vocabulary


def test_which_states_are_read(tmp_path, target):
    """By default those of EAGLE's own code; named ones are inputs of blocks at vLLM's place, outputs at SGLang's."""
    default = config(KIND, eagle_config=None)
    outputs, inputs = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}, {"eagle_config": None}
    inputs["eagle_aux_hidden_state_layer_ids"] = [0, 1, 3]
    assert load(tmp_path, target, default).blocks == (2, LAYERS // 2, LAYERS - 3)
    assert load(tmp_path, target, config(KIND, **outputs)).blocks == (1, 2, 4)
    assert load(tmp_path, target, config(KIND, **inputs)).blocks == (0, 1, 3)
    assert load(tmp_path, target).needs == {"hidden@1", "hidden@2", "hidden@3"}


def test_positions_count_on_as_many_axes_as_the_config_has(tmp_path, target):
    assert load(tmp_path, target).decoder.axes == 3
    assert load(tmp_path, target, config(KIND, rope_scaling=None)).decoder.axes == 1


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({}, lambda w: without(w, "fc.weight"), "is not an EAGLE-3 head: fc.weight is not in its files"),
        ({}, lambda w: without(w, "lm_head.weight"), "lm_head.weight is not in its files"),
        ({}, lambda w: w | {"fc.scale": torch.ones(1)}, "has the tensor fc.scale, which is not known"),
        ({}, lambda w: without(w, "d2t"), "proposes 200 of 384 ids, and no d2t says which"),
        ({}, lambda w: w | {"d2t": w["d2t"] + 300}, "its d2t maps outside the vocabulary"),
        ({}, lambda w: w | {"d2t": w["d2t"] * 0 - torch.arange(DRAFTED)}, "or to one id twice"),
        ({}, lambda w: w | {"d2t": w["d2t"][:7].clone()}, r"d2t has the shape \(7,\), and its config says \(200,\)"),
        ({"draft_vocab_size": 150}, lambda w: w, r"d2t has the shape \(200,\), and its config says \(150,\)"),
        ({"num_key_value_heads": 4}, lambda w: w, r"k_proj.weight has the shape \(48, 128\)"),
        ({"vocab_size": 100, "draft_vocab_size": 100}, lambda w: w, "was made for a vocabulary of 100, and tiny has"),
        ({"hidden_size": 32}, lambda w: w, "is 32 wide, has no embeddings of its own, and tiny's are 64 wide"),
        ({}, lambda w: w | {"fc.weight": torch.ones(64, 96)}, "joins 96 numbers, and 3 states of tiny have 192"),
        ({"num_hidden_layers": 2}, lambda w: w, "has 2 blocks, and heads of one are read"),
        ({"hidden_act": "gelu"}, lambda w: w, "has the activation gelu"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [4, 4, 5]}}, lambda w: w, "13 of 12 frequencies"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, lambda w: w, "rotary positions of type dynamic"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9, 2]}}, lambda w: w, "blocks 2, 10, 3 of a target"),
        ({"hidden_size": "wide"}, lambda w: w, "cannot be loaded: "),
        ({"norm_before_fc": True}, lambda w: w, "input_norm.weight is not in its files"),
        ({"fc_norm": True}, lambda w: w, "fc_norm.0.weight is not in its files"),
        ({}, lambda w: w | {"input_norm.weight": torch.ones(192)}, "has the tensor input_norm.weight, which is not"),
        (
            {"norm_before_fc": True},
            lambda w: w | {"input_norm.weight": torch.ones(9)},
            r"input_norm.weight has the shape",
        ),
        ({"parallel_drafting": True}, lambda w: w, "its config says parallel_drafting: true"),
        ({"is_causal": False}, lambda w: w, "its config says is_causal: false"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, lambda w: w, "its config says use_mtp_layernorm: true"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, target, settings, change, message):
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path, target, config(KIND, **settings), change(tensors(KIND)))
    assert caught.value.message.startswith(f"{tmp_path}: ")


def test_keys_that_are_not_read_are_told_in_one_note(tmp_path, target):
    own = {"speculators_version": "0.9", "mixes_depths": [2], "eagle_config": {"gate": 1}, "image_token_id": None}
    head = load(tmp_path, target, config(KIND, **own), tensors(KIND))
    assert head.notes == (f"{tmp_path}: keys of its config that are not read: gate, mixes_depths",)


def test_files_that_are_missing_or_broken(tmp_path, target):
    with pytest.raises(ModelError, match=r"no such folder"):
        eagle3.load_eagle3(str(tmp_path / "nowhere"), target, PLACE)
    folder = save(tmp_path, config(KIND), tensors(KIND))
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="cannot be loaded"):
        eagle3.load_eagle3(str(folder), target, PLACE)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(ModelError, match="its weights are pickled"):
        eagle3.load_eagle3(str(folder), target, PLACE)
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"cannot be loaded|pickled"):
        eagle3.load_eagle3(str(folder), target, PLACE)
