"""Layouts of quantised checkpoints that no library here writes: packed in the test, compared with dequantised weights.

A variant replaces the weights of one block's linear layers in ``quantised/text.safetensors``.
"""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints import llava_onevision
from tests.models.quantised import make
from vidspec.engine.forward import Engine
from vidspec.errors import ModelError
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement
from vidspec.models.quantised import _read_fp4

CPU = Placement(torch.device("cpu"), torch.float32)
GROUP = 32


def written(folder, quantise, settings=None, *, modelopt=None):
    """A checkpoint whose layers ``quantise(name, weight)`` turns into tensors and the weight that they stand for.

    Returns the references by the names of the layers.
    """
    model, references = make.base("text").float(), {}
    layers = {f"model.layers.0.{name}": layer for name, layer in make.linears(model).items()}
    tensors = {key: tensor.half() for key, tensor in model.state_dict().items()}
    for name, layer in layers.items():
        del tensors[f"{name}.weight"]
        parts, references[name] = quantise(name, layer.weight.detach())
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Qwen2ForCausalLM"]} | ({} if settings is None else {"quantization_config": settings})
    (folder / "config.json").write_text(json.dumps(config))
    if modelopt is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(modelopt))
    llava_onevision.tokenizer().save_pretrained(folder)
    return references


def assert_read(folder, references, monkeypatch):
    """The weights are the references'; so are those of codes that stay, within the rounding of their product."""
    with monkeypatch.context() as patched:
        patched.setattr(Placement, "keeps_codes", False)
        plain = load_model(str(folder), CPU, text=True)
    layers = make.linears(plain.model)
    for name, reference in references.items():
        torch.testing.assert_close(
            layers[name.removeprefix("model.layers.0.")].weight, reference, rtol=1e-6, atol=1e-6, msg=name
        )
    kept = load_model(str(folder), CPU, text=True)
    logits, expected = (Engine(one).prefill(one.text_prefix(make.IDS), 1).logits for one in (kept, plain))
    assert (logits - expected).norm() < 2**-6 * expected.norm()


def refused(folder):
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), CPU, text=True)
    assert "\n" not in caught.value.message and caught.value.kind == "unreadable" and caught.value.hint
    return caught.value.message


def words_of(codes, bits):
    """Integers (n, m) as int32 words (n, m * bits / 32), the first in the lowest bits: a sum, so that -1 borrows."""
    whole = codes.long().unflatten(1, (-1, 32 // bits)) << torch.arange(0, 32, bits)
    whole = whole.sum(-1) & 0xFFFFFFFF
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).int()


def asymmetric(weight, bits, lowest=True):
    """Codes (out, in), scales and zero points (out, groups); with ``lowest`` every third zero point is 0."""
    parts = weight.unflatten(1, (-1, GROUP))
    least, most = parts.amin(-1).clamp_max(0), parts.amax(-1).clamp_min(0)
    if lowest:
        least.view(-1)[::3] = 0
    scales = ((most - least) / (2**bits - 1)).clamp_min(1e-4).half().float()
    zeros = (-least / scales).round().clamp_(0, 2**bits - 1)
    codes = (parts / scales[..., None] + zeros[..., None]).round().clamp_(0, 2**bits - 1)
    return codes.flatten(1), scales, zeros, ((codes - zeros[..., None]) * scales[..., None]).flatten(1)


def gptq(bits_of, less=1):
    def quantise(name, weight):
        bits = bits_of(name)
        codes, scales, zeros, reference = asymmetric(weight, bits)
        assert zeros.min() == 0 < zeros.max()
        parts = {"qweight": words_of(codes, bits).t(), "qzeros": words_of(zeros.t() - less, bits)}
        groups = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
        return parts | {"scales": scales.t().half(), "g_idx": groups}, reference

    return quantise


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq_with_zero_points_of_zero(tmp_path, monkeypatch, bits, version):
    """Version 1 subtracts 1 from whole words, so that a zero point of 0 borrows from the next one."""
    settings = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False, "desc_act": False}
    settings |= {"checkpoint_format": version}
    references = written(tmp_path, gptq(lambda _: bits, 1 if version == "gptq" else 0), settings)
    assert_read(tmp_path, references, monkeypatch)


@pytest.mark.full
def test_gptq_with_bits_for_each_layer(tmp_path, monkeypatch):
    """GPTQModel's ``dynamic``."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False}
    settings["dynamic"] = {r"+:.*(down|o)_proj": {"bits": 8}}
    references = written(tmp_path, gptq(lambda name: 8 if name.endswith(("down_proj", "o_proj")) else 4), settings)
    assert_read(tmp_path, references, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_auto_rounds_gptq_packing(tmp_path, monkeypatch, bits):
    settings = {"quant_method": "auto-round", "bits": bits, "group_size": GROUP, "sym": False, "data_type": "int"}
    settings["packing_format"] = "auto_round:auto_gptq"

    def without_order(name, weight):
        parts, reference = gptq(lambda _: bits)(name, weight)
        return {part: tensor for part, tensor in parts.items() if part != "g_idx"}, reference

    assert_read(tmp_path, written(tmp_path, without_order, settings), monkeypatch)


@pytest.mark.parametrize("packing", ["auto_round:llm_compressor", "auto_round:gptqmodel", None])
def test_other_packings_of_auto_round(tmp_path, packing):
    settings = {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "packing_format": packing}
    written(tmp_path, gptq(lambda _: 4), settings)
    assert f"is quantised by auto-round in packing {packing or 'of its own'}, which is not read" in refused(tmp_path)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors_with_zero_points_of_either_version(tmp_path, monkeypatch, bits, packed):
    """Packed along the outputs since 0.9.4, int8 (out, groups) before."""
    args = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    settings["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": args}}

    def quantise(name, weight):
        codes, scales, zeros, reference = asymmetric(weight, bits)
        points = words_of(zeros.t(), bits).t() if packed else (zeros - 2 ** (bits - 1)).to(torch.int8)
        parts = {"weight_packed": words_of(codes, bits), "weight_scale": scales.half(), "weight_zero_point": points}
        return parts | {"weight_shape": torch.tensor(weight.shape)}, reference

    assert_read(tmp_path, written(tmp_path, quantise, settings), monkeypatch)


def fp8(kind):
    """ModelOpt's: a scale in all, one for each output, or one for each block."""

    def quantise(name, weight):
        largest = {"FP8": weight.abs().amax(), "FP8_PER_CHANNEL_PER_TOKEN": weight.abs().amax(1)}.get(kind)
        scale = weight.abs().amax().view(1, 1, 1, 1) / 448 if largest is None else largest / 448  # below 128 x 128
        by_row = scale.view(-1, 1) if scale.dim() == 1 else scale.view(1, 1)
        codes = (weight / by_row).to(torch.float8_e4m3fn)
        parts = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.02)}
        if name.endswith("k_proj"):
            parts["k_scale"] = torch.tensor(1.0)
        return parts, codes.float() * by_row

    return quantise


ALGORITHMS = ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "fp8_pb_wo"]


@pytest.mark.full
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fp8_by_modelopt(tmp_path, monkeypatch, vidspec_models, algorithm, inside):
    """Its settings are in the config, or in a file of their own."""
    found = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    settings = {"quant_method": "modelopt", **found} if inside else None
    file = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": found}
    references = written(tmp_path, fp8(algorithm), settings, modelopt=None if inside else file)
    assert_read(tmp_path, references, monkeypatch)
    found = vidspec_models(tmp_path)
    assert found["codes"] == 0


@pytest.fixture
def vidspec_models(capsys):
    """Return the output of ``vidspec models FOLDER --format json``."""
    from vidspec.cli import main

    def printed(folder):
        capsys.readouterr()
        assert main(["models", str(folder), "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return printed


def test_other_algorithms_of_modelopt(tmp_path):
    written(tmp_path, fp8("FP8"), modelopt={"quantization": {"quant_algo": "NVFP4_AWQ", "group_size": 16}})
    assert "is quantised by modelopt in NVFP4_AWQ, which is not read" in refused(tmp_path)


def fp4(group, names, whole=None):
    """FP4 in groups: NVFP4's scales are E4M3 beside one for all, which ``whole`` names; MXFP4's are powers of two."""
    steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def quantise(name, weight):
        parts = weight.unflatten(1, (-1, group))
        scales, extra = parts.abs().amax(-1).clamp_min(1e-6) / 6, {}
        if whole is None:
            exponents = scales.log2().ceil()
            stored, scales = (exponents + 127).to(torch.uint8), exponents.exp2()
        else:
            largest = weight.abs().amax() / (6 * 448)
            stored = (scales / largest).clamp(2**-9, 448).to(torch.float8_e4m3fn)
            scales = stored.float() * largest
            extra = {whole: (1 / largest if "global" in whole else largest).view([1] if "global" in whole else [])}
        far = (parts.abs() / scales[..., None])[..., None] - steps
        codes = far.abs().argmin(-1) + 8 * (parts < 0)
        signs = torch.where(parts < 0, -1.0, 1.0)
        reference = (signs * steps[codes & 7] * scales[..., None]).flatten(1)
        low, high = codes.flatten(1).unflatten(1, (-1, 2)).unbind(-1)
        return {names[0]: (low | high << 4).to(torch.uint8), names[1]: stored, **extra}, reference

    return quantise


FP4 = {
    "compressed-tensors NVFP4": (16, ("weight_packed", "weight_scale"), "weight_global_scale"),
    "compressed-tensors MXFP4": (32, ("weight_packed", "weight_scale"), None),
    "modelopt NVFP4": (16, ("weight", "weight_scale"), "weight_scale_2"),
    "modelopt MXFP4": (32, ("weight", "weight_scale"), None),
}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("layout", FP4)
def test_fp4(tmp_path, monkeypatch, vidspec_models, layout):
    method, algorithm = layout.split()
    settings = {"quant_method": method, "quant_algo": algorithm, "group_size": FP4[layout][0]}
    if method == "compressed-tensors":
        args = {"num_bits": 4, "type": "float", "group_size": FP4[layout][0], "symmetric": True}
        settings = {"quant_method": method, "format": f"{algorithm.lower()}-pack-quantized"}
        settings["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": args}}
    references = written(tmp_path, fp4(*FP4[layout]), settings)
    assert_read(tmp_path, references, monkeypatch)
    found = vidspec_models(tmp_path)
    assert found["codes"] == 0


def test_fp4_of_stacked_experts():
    """One scale for all of each."""
    weight = torch.randn(3, 4, 32)
    made = [fp4(16, ("weight", "weight_scale"), "weight_scale_2")("", each) for each in weight]
    parts = {key: torch.stack([each[key] for each, _ in made]) for key in made[0][0]}
    found = _read_fp4(parts["weight"], {"scale": parts["weight_scale"], "weight_scale_2": parts["weight_scale_2"]})
    torch.testing.assert_close(found, torch.stack([reference for _, reference in made]))


def test_a_kv_cache_alone_that_modelopt_quantised(tmp_path, monkeypatch):
    def quantise(name, weight):
        scales = {f"{name[-6]}_scale": torch.tensor(0.5)} if name.endswith(("k_proj", "v_proj")) else {}
        return {"weight": weight.half(), **scales}, weight.half().float()

    file = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    assert_read(tmp_path, written(tmp_path, quantise, modelopt=file), monkeypatch)


def test_codes_that_no_settings_explain(tmp_path):
    written(tmp_path, fp8("FP8"))
    assert "layers.0.mlp.down_proj.weight is stored as F8_E4M3, and neither" in refused(tmp_path)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_codes_without_any_scale(tmp_path, dtype):
    written(tmp_path, lambda name, weight: ({"weight": (weight * 20).to(dtype)}, weight))
    message = refused(tmp_path)
    assert "down_proj.weight is stored as " in message and message.split("stored as ")[1][:2] in ("U8", "I8")


def test_a_layer_without_its_scale_among_others_that_have_theirs(tmp_path):
    def quantise(name, weight):
        parts, reference = fp8("FP8")(name, weight)
        return {key: part for key, part in parts.items() if key != "weight_scale" or "o_proj" not in name}, reference

    written(tmp_path, quantise, {"quant_method": "modelopt", "quant_algo": "FP8"})
    assert "self_attn.o_proj.weight is stored as F8_E4M3" in refused(tmp_path)


def test_scales_without_codes(tmp_path):
    """Orphans of weights that look like numbers, and scales that no reader takes (SmoothQuant's)."""
    for part in ("weight_scale", "pre_quant_scale"):
        written(tmp_path, lambda name, weight, part=part: ({"weight": weight, part: torch.ones(len(weight))}, weight))
        message = refused(tmp_path)
        assert "7 tensors of its files are not part of the model" in message and f"down_proj.{part} first" in message
