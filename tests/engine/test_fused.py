"""The fused decoder against the stock one: every kind of block, same weights, one copy of them."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers

from tests.checkpoints import checkpoint, qwen
from tests.engine.families import FAMILIES, case, stock_logits
from tests.engine.passing import forward
from vidspec.engine.decoders import decoder_of
from vidspec.engine.forward import Engine
from vidspec.engine.fused import unsupported_reason
from vidspec.engine.huge_pages import _SHARED as SHARED
from vidspec.engine.layouts import stored_bytes
from vidspec.engine.rotary import mrope_axes
from vidspec.engine.rows import Rows

SIZE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
TEXTS = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "llama": {},
    "mistral": {"sliding_window": None},
    "windows": {"sliding_window": 7},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "biased": {"attention_bias": True, "mlp_bias": True},
}
KINDS = {"windows": "mistral", "yarn": "llama", "biased": "llama"}


def text_model(name, seed=0):
    """A causal language model with weights that are not all alike, norms included."""
    kind = KINDS.get(name, name)
    config = transformers.AutoConfig.for_model(kind, **SIZE, **TEXTS[name])
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim > 1 else 0.1) + (weight.ndim == 1))
    return model


def engine_of(model, kind="auto"):
    decoder = decoder_of(model.model, model.lm_head, kind, packed=False)
    device = torch.device("cpu")
    return Engine(SimpleNamespace(decoder=decoder, device=device, dtype=torch.float32, vocabulary=97, name="t"))


IDS = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("name", TEXTS)
def test_language_models_equal_the_stock_forward(name):
    """A prompt, single tokens, a window and what generate says."""
    model, stock = text_model(name), text_model(name)
    engine = engine_of(model, "fused")
    assert engine.model.decoder.name == "fused"
    with torch.inference_mode():
        expected = stock(torch.tensor([IDS])).logits[0]
        scale = float(expected.abs().max())
        span, rows = engine.open(60), []
        for some in (IDS[:20], IDS[20:21], IDS[21:22], IDS[22:30], IDS[30:]):
            rows.append(engine.run([Rows(span, some)])[0].logits)
        torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-5 * max(1.0, scale))
        # Fusing took the weights over: the stock modules go on as before.
        torch.testing.assert_close(model(torch.tensor([IDS])).logits[0], expected, rtol=0, atol=1e-5 * max(1.0, scale))
        made = stock.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False, eos_token_id=None)
        text, logits = [], rows[-1][-1]
        while len(text) < 12:
            text.append(int(logits.argmax()))
            logits = engine.run([Rows(span, text[-1:])])[0].logits[-1]
    assert text == made[0, len(IDS) :].tolist()


@pytest.mark.parametrize("name", ["qwen3", "windows"])
def test_stock_blocks_behind_the_same_door(name):
    one, other = engine_of(text_model(name), "fused"), engine_of(text_model(name), "stock")
    passed = []
    for engine in (one, other):
        spans = [engine.open(60), engine.open(60)]
        engine.run([Rows(spans[0], IDS[:20]), Rows(spans[1], IDS[5:16])])
        passed.append(engine.run([Rows(spans[0], IDS[20:24], [-1, 0, 0, 1]), Rows(spans[1], IDS[16:18])]))
    for ours, theirs in zip(*passed, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(ours.hidden, theirs.hidden, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("sections", "interleaved", "first"),
    [([16, 24, 24], False, "0" * 16 + "1" * 24 + "2" * 24), ([24, 20, 20], True, "012" * 20 + "0000")],
)
def test_axes_of_rotary_frequencies_follow_the_sections(sections, interleaved, first):
    """Those of Qwen2.5-VL and Qwen3-VL; no version of the library needs to say them."""
    axes = mrope_axes(64, sections, interleaved=interleaved)
    assert "".join(map(str, axes.tolist())) == first


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_qwen_is_fused_whatever_helper_its_rotary_module_has(family):
    """The axes follow the config: frequencies and their scaling are all that every version's module has."""
    model, prefix = qwen.adapter(qwen.QwenKind(family)), case(family)[1]
    with torch.inference_mode():
        expected = stock_logits(model, prefix, IDS[:3])
    bare, rotary = torch.nn.Module(), model.language.rotary_emb
    bare.inv_freq, bare.attention_scaling, bare.rope_type = rotary.inv_freq, rotary.attention_scaling, "default"
    model.language.rotary_emb = bare
    model.prepare(packed=False)
    assert model.decoder.name == "fused" and model.decoder.axes == 3
    engine = Engine(model)
    read = engine.prefill(prefix, 9)
    found = torch.cat([read.logits[None], forward(engine, read, IDS[:3]).logits])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_sections_that_leave_frequencies_over_run_the_stock_blocks(monkeypatch):
    model, _ = case("qwen2_5_vl")
    language, head = model.model.model.language_model, model.model.lm_head
    assert unsupported_reason(language, head) is None
    monkeypatch.setitem(language.config.rope_parameters, "mrope_section", [1, 1, 1])
    assert "do not divide" in unsupported_reason(language, head)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"glm4v"}))  # whose blocks stay stock
def test_no_parameter_is_held_twice(family):
    model, _ = case(family)
    assert model.decoder.name == "fused" and stored_bytes(model.decoder.matrices) == 0
    storages, used, shared = {}, {}, {}
    for weight in model.model.parameters():
        storage = weight.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        (shared if storage.nbytes() > SHARED else used)[weight.data_ptr()] = weight.nbytes
    assert sum(size for size in storages.values() if size <= SHARED) == sum(used.values())
    decoder = {weight.data_ptr(): weight.nbytes for weight in model.language.parameters()}
    blocks = {one.weight.data_ptr(): one.weight for one in model.decoder.matrices[1:]}
    assert sum(size for at, size in decoder.items() if at in shared) == sum(weight.nbytes for weight in blocks.values())
    mine = [matrix.weight for block in model.decoder.blocks for matrix in block.matrices]
    assert all(weight.untyped_storage().data_ptr() in storages for weight in mine)


def test_what_is_not_covered():
    for change, reason in (
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"model_type": "gemma"}, "blocks of gemma"),
    ):
        model = text_model("llama")
        for key, value in change.items():
            setattr(model.config, key, value) if key != "model_type" else None
        language = model.model
        if "model_type" in change:
            config = SimpleNamespace(**{**language.config.to_dict(), **change})
            language = SimpleNamespace(config=config, layers=language.layers, rotary_emb=language.rotary_emb)
        assert (unsupported_reason(language, model.lm_head) or "").startswith(reason)
    model = text_model("llama")

    class Quantised(torch.nn.Linear):
        """A library's quantised layer."""

    model.model.layers[1].mlp.up_proj = Quantised(64, 96, bias=False)
    assert "quantised" in (unsupported_reason(model.model, model.lm_head) or "")
    with pytest.raises(ValueError, match="quantised"):
        decoder_of(model.model, model.lm_head, "fused")
    assert decoder_of(model.model, model.lm_head).name == "stock"
    dynamic = text_model("llama")
    dynamic.model.rotary_emb.rope_type = "dynamic"
    assert "depend on the length" in (unsupported_reason(dynamic.model, dynamic.lm_head) or "")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_half_precision_agrees_with_float32(family):
    """To what bfloat16 can tell: its logits lie within its steps of the float32 ones."""
    kind = qwen.QwenKind(family)
    exact = qwen.adapter(kind)
    half = qwen.adapter(kind)
    half.model.bfloat16()
    half.prepare("fused", packed=False)
    rows = []
    for model in (exact, half):
        prefix = model.text_prefix(model.template.ids_with_text("\n", "Describe the video."))
        engine = Engine(model)
        rows.append(forward(engine, engine.prefill(prefix, 9), IDS[:9]).logits.float())
    assert half.decoder.slab.dtype == torch.bfloat16
    scale = rows[0].abs().max()
    assert (rows[0] - rows[1]).abs().max() < 0.06 * scale
    assert (rows[0].argmax(-1) == rows[1].argmax(-1)).float().mean() > 0.7


MEMORY = """
import gc, resource, sys, torch
from pathlib import Path
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
where = resolve_placement("cpu", "float32", "fused", packed=sys.argv[2] == "packed")
small = loading.load_model(sys.argv[3], where)  # what is imported and allocated by the first model
del small
gc.collect()
before = resident()
model = loading.load_model(sys.argv[1], where)
gc.collect()
weights = sum({p.data_ptr(): p.nbytes for p in model.model.parameters()}.values())
copies = sum(matrix.nbytes for matrix in model.matrices)
print(resident() - before, weights, copies, model.decoder.name)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Checkpoints of a family: one of 107 million parameters, and a small one."""
    small, folder = checkpoint("qwen2_5_vl", tied=False), tmp_path_factory.mktemp("large")
    config = transformers.AutoConfig.from_pretrained(small)
    text = config.text_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 1024, 4096, 7
    text.layer_types = ["full_attention"] * 7
    text.num_attention_heads, text.num_key_value_heads = 16, 4
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [16, 8, 8]}
    config.vision_config.out_hidden_size = 1024
    with torch.device("meta"):  # no numbers are drawn for weights that nobody computes with
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.to_empty(device="cpu").save_pretrained(folder)
    for file in small.iterdir():
        if not (folder / file.name).exists() and file.suffix in (".json", ".jinja", ".txt"):
            (folder / file.name).write_bytes(file.read_bytes())
    return folder, small


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc, which is Linux's")
@pytest.mark.parametrize("packed", ["packed", "plain"])
def test_a_loaded_model_takes_its_weights_once(packed, large):
    """Resident memory after loading is the weights, in the layers or packed, plus second copies."""
    folder, small = map(str, large)
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, folder, packed, small], capture_output=True, text=True, check=True
    )
    grown, weights, copies, name = ran.stdout.split()
    assert name == "fused" and int(weights) + int(copies) > 4.2e8
    assert packed == "packed" or copies == "0"
    measured = 4 * (2**22) * 4  # the largest weight that is timed in four layouts, which the allocator may keep
    assert int(grown) <= 1.05 * int(weights) + int(copies) + measured
