"""The layer for multi-token prediction in a checkpoint: layouts that are read, and those refused in one line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints.mtp import EXPERTS, FAMILY, save, tensors
from tests.checkpoints.qwen import HIDDEN, LAYERS, QwenKind, adapter
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.errors import ModelError
from vidspec.models import loading, mtp
from vidspec.models.placement import resolve_placement

DENSE, EXPERT = QwenKind(FAMILY), QwenKind(f"{FAMILY}_moe")
PLACE = resolve_placement("cpu", "float32")


def load(folder, weights, kind=DENSE):
    return mtp.load_mtp(loading.load_model(str(save(kind, folder, weights)), PLACE))


def choices(head):
    """Logits of a few pairs."""
    states = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0))
    fed = head.fed(head.embed(torch.arange(5)), head.joined(states), torch.arange(5).expand(3, -1))
    engine = Engine(head)
    (passed,) = engine.run([Rows(engine.open(8), prompt=fed, stretch=(0, 5))])
    return passed.logits[-1]


def apart(weights):
    """Experts as tensors of their own."""
    experts = "mtp.layers.0.mlp.experts"
    found = {key: value for key, value in weights.items() if not key.startswith(experts)}
    for one in range(EXPERTS):
        gate, up = weights[f"{experts}.gate_up_proj"][one].chunk(2)
        down = weights[f"{experts}.down_proj"][one]
        for name, value in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            found[f"{experts}.{one}.{name}.weight"] = value.clone()
    return found


@pytest.mark.full
def test_experts_together_or_apart_are_one_layer(tmp_path):
    together = load(tmp_path / "together", tensors(EXPERT), EXPERT)
    assert together.blocks == (LAYERS,) and together.needs == {f"hidden@{LAYERS}"}
    found = choices(together)
    assert found.shape == (together.target.vocabulary,)
    assert torch.equal(choices(load(tmp_path / "apart", apart(tensors(EXPERT)), EXPERT)), found)


@pytest.mark.full
def test_of_several_files_only_those_with_the_layer_are_read(tmp_path):
    folder, target = save(DENSE, tmp_path, tensors(DENSE)), adapter(DENSE)
    weights = load_file(folder / "model.safetensors")
    expected = choices(load(tmp_path / "one", tensors(DENSE)))
    (folder / "model.safetensors").unlink()
    save_file({key: value for key, value in weights.items() if key.startswith("mtp.")}, folder / "two.safetensors")
    places = {key: "two.safetensors" if key.startswith("mtp.") else "one.safetensors" for key in weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    target.source = str(folder)
    torch.testing.assert_close(choices(mtp.load_mtp(target)), expected, rtol=0, atol=1e-4)  # other addresses


def without(key):
    return lambda weights: {one: value for one, value in weights.items() if one != key}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (DENSE, lambda w: {}, "has no MTP layer: no tensor's name begins with mtp."),
        (DENSE, without("mtp.fc.weight"), "mtp.fc.weight is not in its files"),
        (
            DENSE,
            lambda w: w | {"mtp.layers.1.mlp.up_proj.weight": torch.ones(1)},
            "the tensor mtp.layers.1.*, which is not",
        ),
        (DENSE, lambda w: w | {"mtp.fc.weight_scale": torch.ones(1)}, "the tensor mtp.fc.weight_scale, which is not"),
        (DENSE, lambda w: w | {"mtp.fc.weight": torch.ones(HIDDEN, HIDDEN)}, "mtp.fc.weight has the shape"),
        (
            EXPERT,
            lambda w: without("mtp.layers.0.mlp.experts.1.up_proj.weight")(apart(w)),
            "experts .* have different shapes",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, kind, change, message):
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path, change(tensors(kind)), kind)
    assert caught.value.message.startswith(f"{tmp_path}: ")


def test_files_that_are_broken(tmp_path):
    target = loading.load_model(str(save(DENSE, tmp_path, tensors(DENSE))), PLACE)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="cannot be loaded"):
        mtp.load_mtp(target)
