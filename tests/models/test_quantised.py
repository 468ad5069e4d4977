"""Checkpoints as quantising libraries write them: read without these libraries, they give what the libraries give.

The files, and the script by which the libraries wrote them, are in ``quantised/``.
"""

import json
import shutil
from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.quantised import make
from tests.tiers import in_turn
from vidspec.bench.measure import model_weight_bytes
from vidspec.captioner import Captioner
from vidspec.cli import main
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.engine.layouts import stored_bytes
from vidspec.errors import ModelError
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement

CPU = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture
def checkpoint(tmp_path):
    return lambda name: make.assemble(name, tmp_path)


def refused(folder):
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), CPU, text=True)
    assert "\n" not in caught.value.message and caught.value.kind == "unreadable"
    return caught.value


@pytest.mark.sample(quick=4)
@pytest.mark.parametrize("name", make.FORMATS)
def test_as_the_library_that_wrote_it(checkpoint, name):
    """The libraries computed in float16 where they did not in float32; codes of four bits meet bfloat16 rows here."""
    rounded = KEPT.get(name, (8,))[0] == 4
    theirs = load_file(make.HERE / f"{name}.out.safetensors")
    model = load_model(str(checkpoint(name)), CPU, text=True)
    assert (model.decoder.name, model.dtype) == ("fused", torch.float32)
    if "mlp.down_proj" in theirs:
        down = model.decoder.blocks[0].down.dense(torch.float32, model.device)[: make.SOME, : make.ROWS]
        rtol, atol = (2**-7, 2**-8) if rounded else (1e-3, 1e-4)
        torch.testing.assert_close(down, theirs["mlp.down_proj"], rtol=rtol, atol=atol)
    prefix = model.text_prefix(theirs["ids"].tolist())
    logits = Engine(model).prefill(prefix, 4).logits[: make.ROWS]
    torch.testing.assert_close(logits, theirs["logits"][-1], rtol=0, atol=0.1 if rounded else 0.02)  # up to 16


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_the_dtype_of_the_model(checkpoint, dtype):
    model = load_model(str(checkpoint("gptq")), Placement(torch.device("cpu"), dtype), text=True)
    assert {weight.dtype for weight in model.model.parameters()} == {dtype}


#: Formats whose codes stay: bits of a code, inputs that share a scale (0 for all), bytes of a scale with its zero.
KEPT = {
    "gptq": (4, 32, 4),
    "awq": (4, 32, 4),
    "ct_int4": (4, 32, 4),
    "ct_int8": (8, 0, 4),
    "bnb_int8": (8, 0, 4),
}


def dequantised(folder, monkeypatch, where=CPU):
    with monkeypatch.context() as patched:
        patched.setattr(Placement, "keeps_codes", False)
        return load_model(str(folder), where, text=True)


def generated(model, prompts, new=12):
    """Greedy tokens of prompts that are read and continued together."""
    engine = Engine(model)
    read = [engine.prefill(model.text_prefix(ids), new + 1) for ids in prompts]
    tokens = engine.greedy([(one.span, [int(one.logits.argmax())], new) for one in read])
    for one in read:
        one.span.free()
    return tokens


@pytest.mark.sample(quick=1, full=7)
@pytest.mark.parametrize("decoder", ["fused", "stock"])
@pytest.mark.parametrize("name", KEPT)
def test_codes_stay(checkpoint, monkeypatch, capsys, name, decoder):
    """In the bytes that are foreseen, near the dequantised weights' numbers, the same alone and among other clips."""
    folder, (bits, group, scale) = checkpoint(name), KEPT[name]
    model = load_model(str(folder), replace(CPU, decoder=decoder), text=True)
    plain = dequantised(folder, monkeypatch, replace(CPU, decoder=decoder))
    assert model.decoder.name == decoder and model.codes == f"int{bits}" and plain.codes is None
    shapes = [layer.weight.shape for layer in make.linears(dequantised(folder, monkeypatch).model).values()]
    codes = sum(out * (inner * bits // 8 + scale * (inner // (group or inner))) for out, inner in shapes)
    assert (
        stored_bytes(model.decoder.matrices, copies=False) == codes
        and stored_bytes(plain.decoder.matrices, copies=False) == 0
    )
    if decoder == "fused":
        saved = sum(4 * shape.numel() for shape in shapes) - codes
        assert model_weight_bytes(model) == model_weight_bytes(plain) - saved
    assert main(["models", str(folder), "--format", "json"]) == 0
    foreseen = json.loads(capsys.readouterr().out)
    assert foreseen["codes"] == codes
    assert decoder == "stock" or foreseen["weights"] == codes + sum(one.nbytes for one in model.model.parameters())
    prompts = [make.IDS[start:] for start in range(4)]
    together = generated(model, prompts)
    assert together == [generated(model, [ids])[0] for ids in prompts]
    assert bits == 4 or together == generated(plain, prompts)
    logits, expected = (Engine(one).prefill(one.text_prefix(make.IDS), 1).logits for one in (model, plain))
    assert (logits - expected).norm() < (2**-7 if bits == 4 else 1e-5) * expected.norm()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", ["gptq_order", "ct_fp8", "ct_fp8_block", "fp8", "bnb_nf4"])
def test_what_no_layout_holds_becomes_plain(checkpoint, capsys, name):
    folder = checkpoint(name)
    model = load_model(str(folder), CPU, text=True)
    assert model.codes is None and stored_bytes(model.decoder.matrices, copies=False) == 0
    assert main(["models", str(folder), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dtype"], found["codes"]) == ("float32", 0)


@pytest.mark.full
def test_of_layers_that_are_one_product_all_keep_codes_or_none(checkpoint, monkeypatch):
    """Some publishers leave single layers as they are."""
    folder = checkpoint("ct_int4")
    tensors, plain = load_file(folder / "second.safetensors"), dequantised(folder, monkeypatch)
    key, weight = plain.decoder.blocks[0].qkv.shape[0], make.linears(plain.model)["self_attn.k_proj"].weight
    layer = "language_model.model.layers.0.self_attn.k_proj"
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(layer)}
    save_file({**tensors, f"{layer}.weight": weight.half().contiguous()}, folder / "second.safetensors")
    index = {key: "second.safetensors" for key in [*tensors, f"{layer}.weight"]}
    index |= dict.fromkeys(load_file(folder / "first.safetensors"), "first.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    model = load_model(str(folder), CPU, text=True)
    assert model.decoder.blocks[0].qkv.nbytes == 0 and model.decoder.blocks[0].qkv.shape[0] == key
    assert model.decoder.blocks[0].gate_up.nbytes > 0
    logits, expected = (Engine(one).prefill(one.text_prefix(make.IDS), 1).logits for one in (model, plain))
    assert (logits - expected).norm() < 2**-7 * expected.norm()


@pytest.mark.full
@pytest.mark.sample(quick=1, full=2)
@pytest.mark.parametrize(
    ("name", "decoder", "profile"),
    in_turn(product(["ct_int4", "ct_int8"], ["fused", "stock"], ["self-sd", "self-int8", "self-int4"]), 2),
)
def test_a_target_of_codes_drafts_for_itself(checkpoint, name, decoder, profile):
    overrides = {"models.target": str(checkpoint(name)), "models.device": "cpu", "models.decoder": decoder}
    overrides |= {"video.frames": 2, "generate.max_new_tokens": 8}
    records = []
    for one in ("ar", profile):
        with Captioner.from_profile(one, overrides=overrides) as captioner:
            records.append(captioner.caption(shipped()[0]))
    assert records[0].token_ids == records[1].token_ids and records[1].counters["drafted"] > 0
    assert records[1].models["weights"] == f"{name.removeprefix('ct_')}, as stored"


@pytest.mark.parametrize(
    "changed, what",
    [
        ({"quant_method": "aqlm"}, "by aqlm"),
        ({"version": "gemv"}, "by awq in version gemv"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "by compressed-tensors in format marlin-24"),
    ],
)
def test_methods_that_are_not_read(checkpoint, changed, what):
    folder = checkpoint("awq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changed
    (folder / "config.json").write_text(json.dumps(config))
    error = refused(folder)
    assert f"is quantised {what}, which is not read" in error.message and "AWQ" in error.hint


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name, lost", [("gptq", "scales"), ("ct_int4", "weight_scale"), ("bnb_nf4", "absmax")])
def test_tensors_that_are_missing(checkpoint, name, lost):
    folder = checkpoint(name)
    kept = {key: tensor for key, tensor in load_file(folder / "second.safetensors").items() if not key.endswith(lost)}
    save_file(kept, folder / "second.safetensors", {"format": "pt"})
    assert "cannot be loaded" in refused(folder).message


def test_weights_of_several_dtypes_run_the_stock_blocks(checkpoint):
    model = load_model(str(checkpoint("fp8")), CPU)
    model.language.layers[0].mlp.up_proj.bfloat16()
    model.prepare()
    assert (model.decoder.name, model.decoder.why) == (
        "stock",
        "its weights are of several dtypes (name one with --dtype)",
    )


ADAPTER = make.HERE / "adapter"


def with_adapter(folder, adapter):
    return load_model(str(folder), replace(CPU, adapter=str(adapter)))


def test_an_adapter_is_merged_as_peft_does(checkpoint):
    """With alpha of its own for a layer, by rsLoRA, into a checkpoint that is quantised."""
    folder = checkpoint("fp8")
    theirs, model, alone = (
        load_file(make.HERE / "adapter.out.safetensors"),
        with_adapter(folder, ADAPTER),
        load_model(str(folder), CPU),
    )
    assert model.decoder.name == "fused"
    layers, before = make.linears(model.model), make.linears(alone.model)
    for key in ("self_attn.q_proj", "mlp.down_proj"):
        ours = layers[key].weight[: make.SOME, : make.ROWS]
        torch.testing.assert_close(ours, theirs[key], rtol=0, atol=1e-6)
        assert not torch.equal(ours, before[key].weight[: make.SOME, : make.ROWS])
    logits = Engine(model).prefill(model.text_prefix(make.IDS), 4).logits[: make.ROWS]
    torch.testing.assert_close(logits, theirs["logits"][-1], rtol=0, atol=1e-4)


@pytest.mark.full
def test_an_adapter_of_another_model(checkpoint, tmp_path):
    folder = checkpoint("fp8")
    adapter = shutil.copytree(ADAPTER, tmp_path / "adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {key: torch.cat([tensor, tensor]) for key, tensor in tensors.items()}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(ModelError, match="was trained for another model than") as caught:
        with_adapter(folder, adapter)
    assert "\n" not in caught.value.message and caught.value.hint.startswith("its base is ")
    save_file(
        {key.replace("layers.0", "layers.7"): tensor for key, tensor in tensors.items()},
        adapter / "adapter_model.safetensors",
    )
    with pytest.raises(ModelError, match="has no such layer"):
        with_adapter(folder, adapter)


@pytest.mark.full
def test_adapters_that_are_no_plain_lora(checkpoint, tmp_path):
    folder = checkpoint("fp8")
    with pytest.raises(ModelError, match="is not an adapter that vidspec can read"):
        with_adapter(folder, tmp_path / "nowhere")
    adapter = shutil.copytree(ADAPTER, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for changed, what in (({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "peft_type IA3")):
        (adapter / "adapter_config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ModelError, match=rf"is not a LoRA of linear layers alone \({what}\)"):
            with_adapter(folder, adapter)


@pytest.mark.full
def test_the_record_names_the_adapter(checkpoint):
    overrides = {"models.target": str(checkpoint("fp8")), "models.adapter": str(ADAPTER), "models.device": "cpu"}
    overrides |= {"video.frames": 2, "generate.max_new_tokens": 2}
    with Captioner.from_profile("ar", overrides=overrides) as captioner:
        record = captioner.caption(shipped()[0]).to_dict()
    assert record["models"]["adapter"] == str(ADAPTER)
