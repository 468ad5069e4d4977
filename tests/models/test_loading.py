import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants as hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.checkpoints import checkpoint, copy_checkpoint
from tests.checkpoints.llava import LlavaKind
from tests.checkpoints.llava_onevision import (
    IMAGE_SIZE,
    PADDED,
    PROCESSOR,
    TIED,
    UNTIED,
    adapter,
    config,
    pixels,
    stock,
    tokenizer,
)
from tests.engine.passing import forward
from vidspec.engine.forward import Engine
from vidspec.errors import DeviceError, ModelError
from vidspec.models.identity import check_identity, model_identity
from vidspec.models.loading import _vocabulary_difference, check_pair, embedded_folder, load_model, prepare_decoder
from vidspec.models.placement import Placement, cpu_dtype, resolve_placement

pytestmark = pytest.mark.usefixtures("library_verbosity")

CPU = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)


def refused(name, kind, error=ModelError):
    with pytest.raises(error) as caught:
        load_model(str(name), CPU)
    assert caught.value.exit_code == 3 and caught.value.kind == kind
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("name, kind", [("tied", TIED), ("untied", UNTIED), ("padded", PADDED)])
def test_load(checkpoints, name, kind):
    model, reference = load_model(str(checkpoints[name]), CPU), stock(kind)
    assert (model.name, model.family, model.dtype) == (str(checkpoints[name]), "llava_onevision", torch.float32)
    loaded = model.model.state_dict()
    assert all(torch.equal(loaded[key], weight) for key, weight in reference.state_dict().items())
    assert model.tokenizer.get_vocab() == tokenizer().get_vocab()
    assert model.eos == {tokenizer().eos_token_id}
    assert model.rules.height == model.rules.width == IMAGE_SIZE
    assert model.decoder.name == "fused"


def test_missing_folder(tmp_path):
    error = refused(tmp_path / "nowhere", "model")
    assert str(tmp_path / "nowhere") in error.message and "hub id" in error.hint


def test_folder_without_config(tmp_path):
    assert str(tmp_path) in refused(tmp_path, "model").message


def test_home_folder(copy, monkeypatch):
    monkeypatch.setenv("HOME", str(copy.parent))
    assert load_model("~/model", CPU).layers == 4
    (copy / "model.safetensors").write_bytes(b"nothing")
    assert "~/model: cannot be loaded" in refused("~/model", "unreadable").message


def test_unsupported_family(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    message = refused(tmp_path, "family").message
    assert "gpt2" in message and "llava_onevision" in message


def test_unknown_family(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    assert "no-such-type" in refused(tmp_path, "family").message


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (
            "video_llava",
            "type video_llava are not supported; nearest: video_llama_3; supported: gemma4",
        ),
        (
            "qwen3_6",
            "type qwen3_6 are not supported; nearest: qwen3_5; supported: gemma4, gemma",
        ),
        (
            "internvl_chat",
            "type internvl_chat are not supported; nearest: internvl; supported",
        ),
        ("gpt2", "type gpt2 are not supported; supported:"),
    ],
)
def test_an_unsupported_family_is_told_its_nearest(tmp_path, family, said):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    error = refused(tmp_path, "family")
    assert said in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": null}'])
def test_damaged_config(copy, text):
    (copy / "config.json").write_text(text)
    assert str(copy) in refused(copy, "unreadable").message


def test_damaged_weights(copy):
    file = copy / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"\x00" * len(whole), b""):
        file.write_bytes(damaged)
        assert str(copy) in refused(copy, "unreadable").message


def test_no_weights(copy):
    (copy / "model.safetensors").unlink()
    assert str(copy) in refused(copy, "unreadable").message


def test_weights_that_lack_some(copy):
    """The library would fill them with random numbers."""
    file = copy / "model.safetensors"
    weights = load_file(file)
    gone = next(name for name in weights if name.endswith("layers.1.mlp.down_proj.weight"))
    save_file({name: weight for name, weight in weights.items() if name != gone}, file, metadata={"format": "pt"})
    assert "1 weights are not in the files" in refused(copy, "unreadable").message


def test_weights_of_another_shape(copy):
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 80
    (copy / "config.json").write_text(json.dumps(config))
    message = refused(copy, "unreadable").message
    assert str(copy) in message and "12 weights have another shape" in message
    assert "layers.0.mlp.down_proj.weight first: 64 x 96 in the files, 64 x 80 by the config" in message


def test_another_vocabulary(copy):
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["vocab_size"] += 8
    (copy / "config.json").write_text(json.dumps(config))
    message = refused(copy, "unreadable").message
    assert "embed_tokens.weight first: " in message and "in the files" in message


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("key", ["model.language_model.layers.9.mlp.up_proj.weight", "model.extra.weight"])
def test_tensors_that_the_model_does_not_have(copy, key):
    file = copy / "model.safetensors"
    save_file({**load_file(file), key: torch.ones(2, 2)}, file, metadata={"format": "pt"})
    assert f"1 tensors of its files are not part of the model, {key} first" in refused(copy, "unreadable").message


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "key",
    [
        "model.language_model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.vision_tower.vision_model.embeddings.position_ids",
        "mtp.layers.0.mlp.up_proj.weight",
        "model.language_model.layers.0.self_attn.k_proj.k_scale",
        "model.language_model.layers.0.mlp.up_proj.input_scale",
    ],
)
def test_tensors_that_no_model_needs(copy, key):
    file = copy / "model.safetensors"
    save_file({**load_file(file), key: torch.ones(2)}, file, metadata={"format": "pt"})
    assert load_model(str(copy), CPU).layers == 4


def test_no_tokenizer(copy):
    for file in copy.glob("tokenizer*"):
        file.unlink()
    assert str(copy) in refused(copy, "unreadable").message


def test_damaged_processor(copy):
    (copy / "video_preprocessor_config.json").write_text("{")
    assert str(copy) in refused(copy, "unreadable").message


def test_missing_hub_model_offline(offline):
    error = refused("vidspec-tests/not-there", "missing")
    assert "vidspec-tests/not-there" in error.message and str(hub.HF_HUB_CACHE) in error.message
    assert "offline" in error.message
    assert "`vidspec models get NAME`" in error.hint


def test_name_that_the_hub_cannot_have(offline):
    assert "models get a" not in refused("a/b/c", "missing").hint


@pytest.mark.full
def test_sharded(checkpoints, tmp_path):
    copy_checkpoint(tmp_path, UNTIED, max_shard_size="100kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded, whole = load_model(str(tmp_path), CPU), load_model(str(checkpoints["untied"]), CPU)
    theirs = whole.model.state_dict()
    assert all(torch.equal(weight, theirs[key]) for key, weight in loaded.model.state_dict().items())
    next(iter(sorted(tmp_path.glob("*.safetensors")))).unlink()
    assert str(tmp_path) in refused(tmp_path, "unreadable").message


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes_decode(checkpoints, dtype):
    model = load_model(str(checkpoints["tied"]), resolve_placement("cpu", dtype))
    assert model.dtype == getattr(torch, dtype)
    engine = Engine(model)
    prefix = model.prefix(model.encode(pixels(2)), "Describe the video.")
    state = engine.prefill(prefix, room=8)
    alone = [forward(engine, state, [token]).logits[0] for token in (300, 41, 77)]
    state.span.rollback(prefix.length)
    together = forward(engine, state, [300, 41, 77]).logits
    assert together.dtype == model.dtype and state.span.slab.dtype == model.dtype
    atol = 1e-4 if dtype == "float32" else 0.5  # logits reach 20, where bfloat16 steps by 1/8
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=atol)


def test_half_precision_file_in_float32(tmp_path):
    copy_checkpoint(tmp_path, TIED)
    stock(TIED).half().save_pretrained(tmp_path)
    assert load_model(str(tmp_path), CPU).dtype == torch.float32


def test_placement():
    assert resolve_placement("cpu") == Placement(torch.device("cpu"), torch.float32, packed="auto", fitted=True)
    half = Placement(torch.device("cpu"), torch.bfloat16, "stock", packed="auto")
    assert resolve_placement("cpu", "bfloat16", "stock") == half


def test_placement_prefers_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolve_placement() == resolve_placement("cuda") == Placement(torch.device("cuda:0"), torch.bfloat16)
    assert resolve_placement("cuda:0", "float16").dtype == torch.float16
    with pytest.raises(DeviceError, match="has 1 CUDA devices"):
        resolve_placement("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_placement("cuda:1").device == torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_placement("cuda") == resolve_placement("cuda:1")


def test_cudnns_attention_is_off_on_cuda(monkeypatch):
    told = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", told.append)
    model = adapter(TIED)
    prepare_decoder(model, Placement(torch.device("cpu"), torch.float32))
    assert told == []
    prepare_decoder(model, Placement(torch.device("cuda:0"), torch.bfloat16))
    assert told == [False]


@pytest.mark.parametrize("name", ["cuda:97", "tpu", "cuda:x", ""])
def test_no_such_device(name):
    with pytest.raises(DeviceError) as caught:
        resolve_placement(name)
    assert caught.value.exit_code == 3 and name in caught.value.message and caught.value.hint


def test_no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="0 CUDA devices"):
        resolve_placement("cuda")
    assert resolve_placement().device.type == "cpu"


@pytest.mark.full
def test_a_model_that_cannot_be_fused(checkpoints, copy):
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["hidden_act"] = "gelu"
    (copy / "config.json").write_text(json.dumps(config))
    assert load_model(str(copy), CPU).decoder.why == "activation gelu is not fused"
    with pytest.raises(DeviceError, match="activation gelu is not fused") as caught:
        load_model(str(copy), resolve_placement("cpu", decoder="fused"))
    assert caught.value.exit_code == 3 and "models.decoder: auto" in caught.value.hint
    stock_blocks = load_model(str(checkpoints["tied"]), resolve_placement("cpu", decoder="stock")).decoder
    assert (stock_blocks.name, stock_blocks.why) == ("stock", "as told")


def test_out_of_memory(checkpoints, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "to", full)
    assert refused(checkpoints["tied"], "memory", DeviceError).hint


def full(*_args, **_kwargs):
    raise torch.OutOfMemoryError("no room")


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")])
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_out_of_memory_while_weights_are_laid_out(checkpoints, monkeypatch, weights, error):
    """While they are fused, or rounded: the hint names the formats and decoders that are left."""

    def full(*_):
        raise error

    monkeypatch.setattr("vidspec.engine.fused._Block.__init__", full)
    with pytest.raises(DeviceError, match="laying out its weights on cpu: memory does not suffice") as caught:
        load_model(str(checkpoints["tied"]), Placement(torch.device("cpu"), torch.float32, weights=weights))
    assert caught.value.kind == "memory" and "models.decoder: stock" in caught.value.hint
    assert ("models.weights: int4" in caught.value.hint) == (weights != "int4") and "\n" not in str(caught.value)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("DefaultCPUAllocator: no memory")])
@pytest.mark.parametrize("decoder", ["fused", "stock"])
def test_out_of_memory_while_copies_are_rounded(checkpoints, monkeypatch, decoder, error):
    """The copy is made again when memory is free."""

    def lacking(*_):
        raise error

    model = load_model(str(checkpoints["tied"]), resolve_placement("cpu", decoder=decoder))
    with monkeypatch.context() as patched:
        for precision in ("int8", "int4"):
            patched.setattr("vidspec.engine.quantised.Int8Matrix.of", lacking)
            patched.setattr("vidspec.engine.quantised.Int4Matrix.of", lacking)
            with pytest.raises(DeviceError, match=f"a copy of its weights in {precision}: memory") as caught:
                model.quantised_copy(precision)
            assert ("draft.precision: int4" in caught.value.hint) == (precision == "int8")
    assert model.quantised_copy("int8").decoder is not model.decoder


def test_processor_inside_the_processors_config(copy):
    (copy / "video_preprocessor_config.json").unlink()
    nested = {"video_processor": {"size": {"height": 48, "width": 36}, "image_mean": [0.1, 0.2, 0.3]}}
    (copy / "processor_config.json").write_text(json.dumps(nested))
    rules = load_model(str(copy), CPU).rules
    assert (rules.height, rules.width, rules.mean) == (48, 36, (0.1, 0.2, 0.3))


def test_processor_of_the_images(copy):
    (copy / "video_preprocessor_config.json").rename(copy / "preprocessor_config.json")
    (copy / "processor_config.json").write_text(json.dumps({"processor_class": "LlavaOnevisionProcessor"}))
    assert load_model(str(copy), CPU).rules.height == IMAGE_SIZE


def test_no_processor(copy):
    """Defaults would give other pixels, and other captions, without a word."""
    (copy / "video_preprocessor_config.json").unlink()
    assert "neither preprocessor_config.json nor video_preprocessor_config.json" in refused(copy, "unreadable").message
    (copy / "processor_config.json").write_text(json.dumps({"processor_class": "LlavaOnevisionProcessor"}))
    assert "neither preprocessor_config.json nor" in refused(copy, "unreadable").message


@pytest.mark.full
def test_templates(copy):
    (copy / "chat_template.json").write_text(json.dumps({"chat_template": "old <video>"}))
    (copy / "chat_template.jinja").write_text("new <video>")
    both = load_model(str(copy), CPU)
    assert (
        both.template.source
        == transformers.ProcessorMixin.get_processor_dict(copy)[0]["chat_template"]
        == "old <video>"
    )
    assert both.notes == (f"{copy}: its chat template is that of chat_template.json, not of chat_template.jinja",)
    (copy / "chat_template.json").unlink()
    (copy / "chat_template.jinja").write_text("new <video>", "utf-8-sig")
    assert load_model(str(copy), CPU).template.source == "new <video>", "without a byte order mark"


def test_special_tokens_that_only_the_tokenizer_adds(copy):
    """As by the library's processor: unless the template writes BOS itself."""
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    config = json.loads((copy / "tokenizer_config.json").read_text())
    token = next(one for one in tokenizer["added_tokens"] if one["special"])
    first, whole = {"SpecialToken": {"id": token["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    kept = {"id": token["content"], "ids": [token["id"]], "tokens": [token["content"]]}
    processor = {"type": "TemplateProcessing", "single": [first, whole], "pair": [first, whole]}
    tokenizer["post_processor"] = {**processor, "special_tokens": {token["content"]: kept}}
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": token["content"]}))
    model = load_model(str(copy), CPU)
    template, written = model.template, (copy / "chat_template.jinja").read_text()
    text = template.rendered("What is there?")
    ids = template.ids_with_text(template.video_text, "What is there?")
    assert ids == model.tokenizer(text)["input_ids"] and ids[:1] == [token["id"]]
    (copy / "chat_template.jinja").write_text("{{ bos_token }}" + written)
    template = load_model(str(copy), CPU).template
    assert template.ids_with_text(template.video_text, "What is there?") == ids


def with_tokenizer_template(copy, template):
    for file in copy.glob("chat_template*"):
        file.unlink()
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("several", [False, True])
def test_a_template_in_the_tokenizers_config_only(copy, several):
    """As older tools save it; of several the default one."""
    template = "{% for c in messages[0]['content'] %}{{ c['text'] or '<video>' }}{% endfor %}CAPTION:"
    named = [{"name": "tools", "template": "none"}, {"name": "default", "template": template}]
    with_tokenizer_template(copy, named if several else template)
    model = load_model(str(copy), CPU)
    assert (model.template.rendered("P"), model.template.origin) == ("<video>PCAPTION:", "tokenizer_config.json")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("template", ["{{ messages[0]['content'] + 'x' }}", "text only", "{% if %}"])
def test_a_template_for_text_only_is_not_used(copy, template):
    with_tokenizer_template(copy, template)
    model = load_model(str(copy), CPU)
    assert model.template.source == model.default_template() and model.template.origin is None


@pytest.mark.full
def test_pairs(checkpoints):
    target, padded, foreign = (load_model(str(checkpoints[name]), CPU) for name in ("untied", "padded", "foreign"))
    check_pair(target, target)
    check_pair(target, padded)
    check_pair(padded, target)
    with pytest.raises(ModelError, match="different tokenizers") as caught:
        check_pair(target, foreign)
    assert caught.value.kind == "tokenizer" and caught.value.exit_code == 3
    assert target.name in caught.value.message and foreign.name in caught.value.message
    entries = [len(one.tokenizer.get_vocab()) for one in (target, foreign)]
    kind, message = type(target.tokenizer).__name__, caught.value.message
    assert f": {kind} with {entries[0]} entries, {kind} with {entries[1]} entries; " in message
    with pytest.raises(ModelError, match=f"{kind} with {entries[0]} entries, {kind} with {entries[1]}"):
        check_identity(model_identity(target), model_identity(foreign))


def test_the_difference_of_two_vocabularies():
    """The padded id is of one of them only, and two words changed places."""
    ours = {"a": 0, "b": 1, "c": 2, "d": 3}
    found = _vocabulary_difference(ours, {"a": 0, "c": 1, "b": 2, "d": 3, "<pad>": 4})
    assert found == "; 2 entries are the same, the first other one is 'b', with the ids 1 and 2"
    found = _vocabulary_difference(ours, {**ours, "<pad>": 4})
    assert found == "; 4 entries are the same, the first other one is '<pad>', with the ids absent and 4"


def test_pairs_of_two_families(checkpoints):
    target, other = (load_model(str(checkpoints["tied"]), CPU) for _ in range(2))
    other.family = "other"
    with pytest.raises(ModelError, match=r"family llava_onevision.*of other"):
        check_pair(target, other)


@pytest.mark.full
def test_pairs_of_llava_and_llava_next():
    """TABED's: a LLaVA-1.5 drafts for LLaVA-NeXT. Words must be the same nevertheless."""
    kinds = LlavaKind(family="llava_next"), LlavaKind(padding=62, seed=1), LlavaKind(tokenizer="foreign")
    target, draft, foreign = (load_model(str(checkpoint(kind)), CPU) for kind in kinds)
    check_pair(target, draft)
    check_pair(draft, target)
    assert target.vocabulary == draft.vocabulary
    with pytest.raises(ModelError, match="different tokenizers") as caught:
        check_pair(target, foreign)
    assert caught.value.kind == "tokenizer"


def test_pairs_of_heads_shorter_than_the_tokenizer(checkpoints):
    target, draft = (load_model(str(checkpoints["tied"]), CPU) for _ in range(2))
    draft.vocabulary -= 3
    with pytest.raises(ModelError, match="no common vocabulary"):
        check_pair(target, draft)


def test_embedded_folder():
    assert embedded_folder("embedded", "target").parts[-3:] == ("embedded", "pair", "target")


# Checkpoints that are not quite what they seem.


def test_adapters_are_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "x/y", "peft_type": "LORA"}))
    error = refused(tmp_path, "model")
    assert "LoRA" in error.message and f"--adapter {tmp_path}" in error.hint


def test_image_processor_inside_the_processors_config(tmp_path):
    copy_checkpoint(tmp_path, LlavaKind())
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"size": {"shortest_edge": 31}}}))
    assert load_model(str(tmp_path), CPU).rules.edge == 31


def test_models_without_ears_have_no_note(checkpoints):
    assert load_model(str(checkpoints["tied"]), CPU).notes == ()


@pytest.mark.full
@pytest.mark.parametrize("saved, dtype", [("bfloat16", "float32"), ("bfloat16", "bfloat16")])
def test_memory_after_loading(checkpoints, tmp_path, saved, dtype):
    """No more than a tenth beyond what the layouts take: neither mapped files nor freed weights stay."""
    wide = config(UNTIED)
    text = wide.text_config  # layers as small as those whose memory the C library keeps
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 512, 2048, 24
    text.layer_types = ["full_attention"] * text.num_hidden_layers
    with torch.device("meta"):
        made = transformers.LlavaOnevisionForConditionalGeneration(wide).to(getattr(torch, saved))
    made.to_empty(device="cpu").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    command = [sys.executable, Path(__file__).with_name("resident.py"), checkpoints["tied"], tmp_path, dtype]
    for _ in range(2):  # layouts are measured in the first, which oneDNN's kernels for them stay in
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    taken, laid_out = map(int, printed.split())
    assert laid_out > 2**26 and taken < 1.1 * laid_out


GIB = 1 << 30


@pytest.mark.parametrize(
    "numbers, free, fast, dtype",
    [
        (GIB // 2, 24 * GIB, True, torch.float32),  # 4 GiB with packed copies
        (8 * GIB, 24 * GIB, True, torch.bfloat16),
        (2 * GIB, 24 * GIB, True, torch.float32),  # 16 of 18
        (3 * GIB, 24 * GIB, True, torch.bfloat16),
        (3 * GIB, 24 * GIB, False, torch.float32),  # bfloat16 is emulated
        (8 * GIB, 24 * GIB, False, torch.bfloat16),
        (8 * GIB, None, True, torch.float32),
    ],
)
def test_the_dtype_on_a_cpu_follows_from_memory(numbers, free, fast, dtype):
    assert cpu_dtype(numbers, free, fast) is dtype


@pytest.mark.full
def test_a_model_that_does_not_fit_in_float32(checkpoints, monkeypatch):
    monkeypatch.setattr("vidspec.memory.available_memory", lambda: 2**20)
    assert load_model(str(checkpoints["tied"]), resolve_placement("cpu")).dtype is torch.bfloat16
    assert load_model(str(checkpoints["tied"]), resolve_placement("cpu", "float32")).dtype is torch.float32
