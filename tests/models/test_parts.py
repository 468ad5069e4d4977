"""Models over several places, and quantised ones.

What waits on the disk has weights on no device at all: who works with it must not look at weights to find out where to
compute. That is also what goes wrong where the parts of a model are on several GPUs.
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from tests.checkpoints import checkpoint, llava, llava_onevision, qwen
from tests.checkpoints.llava import LlavaKind
from tests.checkpoints.llava_onevision import TIED, stock
from tests.engine.passing import forward
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.auto import draft_placement
from vidspec.decoding.captioner_models import notes_on
from vidspec.engine.forward import Engine
from vidspec.engine.taps import Taps
from vidspec.errors import DeviceError, ModelError, ProfileError
from vidspec.models import hub, loading, video_language_model
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement, resolve_placement

pytestmark = pytest.mark.usefixtures("library_verbosity")

CPU = Placement(torch.device("cpu"), torch.float32)


LANGUAGE = {
    "model.language_model.embed_tokens": "disk",
    "model.language_model.layers.0": "cpu",
    "model.language_model.layers.1": "disk",
    "model.language_model.layers.2": "cpu",
    "model.language_model.layers.3": "disk",
    "model.language_model.norm": "disk",
    "model.language_model.rotary_emb": "cpu",
    "lm_head": "disk",
}
CLIP = {"model.vision_tower": "cpu", "model.multi_modal_projector": "disk", **LANGUAGE}
NEWLINE = {"model.image_newline": "cpu", **CLIP}
QWEN = {"model.visual": "cpu", **LANGUAGE}


def llava_pixels(model):
    return model.preprocess(llava.clip(2, 60, 90))


def onevision_pixels(_model):
    return llava_onevision.pixels(2)


QWEN25, QWEN3 = (qwen.QwenKind(name, tied=False) for name in (qwen.QWEN25, qwen.QWEN3))
FAMILIES = {
    "llava": (LlavaKind(), CLIP, llava_pixels),
    "llava_next": (LlavaKind(family="llava_next"), NEWLINE, llava_pixels),
    "llava_onevision": (llava_onevision.UNTIED, NEWLINE, onevision_pixels),
    "qwen2_5_vl": (QWEN25, QWEN, qwen.pixels),
    "qwen3_vl": (QWEN3, QWEN, qwen.pixels),
}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:The following device_map keys")
def test_a_model_in_parts(family, capfd):
    kind, parts, pixels = FAMILIES[family]
    folder = str(checkpoint(kind, max_shard_size="100kB"))
    assert len(list(Path(folder).glob("*.safetensors"))) > 3
    whole = load_model(folder, resolve_placement("cpu", decoder="stock"))
    spread = load_model(folder, resolve_placement("cpu", device_map=parts))
    assert spread.language.embed_tokens.weight.is_meta and spread.model.lm_head.weight.is_meta
    assert (spread.device, spread.dtype, spread.vocabulary) == (whole.device, torch.float32, whole.vocabulary)
    seen = []
    for model in (whole, spread):
        engine, shown = Engine(model), pixels(model)
        prefix = model.prefix(model.encode(shown), "Describe the video.")
        taps = Taps(rows=prefix.text_rows_after_video, visual=prefix.visual.index, attention=True, hidden=(0, 2, 4))
        state = engine.prefill(prefix, 8, taps)
        passed = forward(engine, state, [30, 41, 77])
        pooled = model.encode(shown, pooled=True).features
        seen.append([state.logits, passed.logits, passed.hidden, taps.attention_scores, *taps.states.values(), pooled])
    for ours, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-5)  # weights of a model in parts have one layout
    assert capfd.readouterr().err.count("meta device") == 0


OPTIONAL = ("accelerate", "bitsandbytes")


@pytest.fixture
def asked(checkpoints, monkeypatch):
    """Record the calls of the library, without doing them."""
    seen = {}

    def from_pretrained(source, **options):
        seen.update(options)
        return stock(TIED), {"missing_keys": []}

    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", from_pretrained)
    whole = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: whole("torch" if name in OPTIONAL else name))
    return lambda where: (load_model(str(checkpoints["tied"]), where), seen)[1]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("split", ["auto", "balanced"])
def test_split_over_all_devices(asked, split):
    options = asked(resolve_placement("cpu", "bfloat16", device_map=split))
    assert options["device_map"] == split and options["dtype"] == torch.bfloat16
    assert "quantization_config" not in options


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised(asked, bits):
    options = asked(resolve_placement("cpu", "bfloat16", quantization=f"{bits}bit"))
    chosen = options["quantization_config"]
    assert (chosen.load_in_8bit, chosen.load_in_4bit) == (bits == 8, bits == 4)
    assert chosen.bnb_4bit_compute_dtype == torch.bfloat16 and chosen.bnb_4bit_quant_type == "nf4"
    assert options["device_map"] == {"": "cpu"}  # quantised weights cannot be moved afterwards
    assert asked(resolve_placement("cpu", quantization=f"{bits}bit", device_map="auto"))["device_map"] == "auto"


def test_whole_models_need_no_accelerate(asked):
    assert not {"device_map", "quantization_config"} & set(asked(CPU))


@pytest.mark.parametrize(
    "options, package", [({"device_map": "auto"}, "accelerate"), ({"quantization": "4bit"}, "bitsandbytes")]
)
def test_packages_that_are_not_there(checkpoints, monkeypatch, options, package):
    whole = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else whole(name))
    with pytest.raises(DeviceError, match=rf"models\.\w+.*: {package} is not installed") as caught:
        load_model(str(checkpoints["tied"]), resolve_placement("cpu", **options))
    assert caught.value.hint == f"pip install {package}" and caught.value.exit_code == 3


def test_out_of_memory_of_all_devices(checkpoints, monkeypatch):
    def full(*_args, **_kwargs):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", full)
    with pytest.raises(DeviceError, match="does not fit on all devices together") as caught:
        load_model(str(checkpoints["tied"]), resolve_placement("cpu", device_map="auto"))
    assert caught.value.kind == "memory"


# Profiles say where models go.


def placed(monkeypatch, **settings):
    """Return the devices of draft and target by a profile, in the order they are loaded."""
    seen = []

    def stop_at_the_second(name, where, **_options):
        seen.append((name, where))
        if len(seen) == 2:
            raise ModelError("enough")

    monkeypatch.setattr(hub, "require_models", lambda names: [])
    monkeypatch.setattr("vidspec.decoding.captioner_models.read_config", lambda name: None)
    monkeypatch.setattr(loading, "load_model", stop_at_the_second)
    keys = {f"models.{key}": value for key, value in settings.items()}
    with pytest.raises(ModelError, match="enough"):
        Captioner.from_profile("vanilla-sd", overrides={"models.target": "big", "models.draft": "small", **keys})
    return dict(seen), [name for name, _ in seen]


@pytest.mark.full
def test_a_target_is_split_and_its_draft_is_not(monkeypatch):
    """The draft comes first: a map of the target counts the memory that is left."""
    where, order = placed(monkeypatch, device_map="balanced", draft_device="cpu", dtype="bfloat16")
    assert order == ["small", "big"]
    assert (where["big"].device_map, where["small"].device_map) == ("balanced", None)
    assert where["small"].device == torch.device("cpu") and where["small"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("gpus", "settings", "target", "draft"),
    [
        (1, {}, "cuda:0", "cuda:0"),
        (2, {}, "cuda:0", "cuda:1"),
        (4, {}, "cuda:0", "cuda:1"),
        (2, {"device": "cuda"}, "cuda:0", "cuda:0"),
        (2, {"device": "cuda:1"}, "cuda:1", "cuda:1"),
        (2, {"device": "cpu"}, "cpu", "cpu"),
        (2, {"draft_device": "cuda:0"}, "cuda:0", "cuda:0"),
        (2, {"draft_device": "cpu"}, "cuda:0", "cpu"),
        (2, {"device_map": "auto"}, "cuda:0", "cuda:0"),
    ],
)
def test_a_draft_goes_on_a_second_gpu_unless_a_device_is_named(monkeypatch, gpus, settings, target, draft):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    where, _ = placed(monkeypatch, **settings)
    assert (where["big"].device, where["small"].device) == (torch.device(target), torch.device(draft))


@pytest.mark.parametrize(
    ("name", "more", "own"),
    [
        ("vanilla-sd", {}, "cuda:1"),
        ("parallelvlm", {}, "cuda:1"),
        ("vanilla-sd", {"workers.target": "cuda:0"}, "cuda:0"),
        ("vanilla-sd", {"workers.draft": "cuda:0"}, "cuda:0"),
        ("self-sd", {}, "cuda:0"),
        ("self-sd", {"draft.kind": "sparse_kv", "prune.method": "none"}, "cuda:0"),
        ("eagle3", {"models.target": "a", "models.draft": "b"}, "cuda:0"),
        ("ngram", {}, "cuda:0"),
    ],
)
def test_what_shares_the_targets_cache_or_states_stays_with_it(monkeypatch, name, more, own):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert draft_placement(profiles.load(name, more, env={})).device == torch.device(own)


def test_models_that_work_at_the_same_time_on_one_gpu_are_noted_once(monkeypatch):
    stock, decoder = SimpleNamespace(generation_config=None), SimpleNamespace(eager=None)
    model = SimpleNamespace(device=torch.device("cuda:0"), name="m", notes=(), model=stock, decoder=decoder)

    def notes(name, device):
        profile = profiles.load(name, env={})
        slot = SimpleNamespace(device=torch.device(device)) if profile.concurrent else None
        target = SimpleNamespace(model=model)
        none = dict.fromkeys(("draft", "drafter", "head"))
        return notes_on(SimpleNamespace(profile=profile, target=target, slot=slot, **none))

    (line,) = notes("parallelvlm", "cuda:0")
    assert "parallelvlm: target and draft are both on cuda:0" in line and "\n" not in line
    assert notes("parallelvlm", "cuda:1") == notes("vanilla-sd", "cuda:0") == ()


def test_only_the_target_is_quantised(monkeypatch):
    where, _ = placed(monkeypatch, quantization="4bit")
    assert (where["big"].quantization, where["small"].quantization) == ("4bit", None)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("device_map", "everywhere", "models.device_map"),
        ("quantization", "2bit", "models.quantization"),
        ("draft_device", "tpu", "models.draft_device"),
        ("device", "cpu", "models.device: cpu excludes models.device_map.*models.draft_device"),
    ],
)
def test_keys_that_make_no_sense(key, value, message):
    with pytest.raises(ProfileError, match=message):
        profiles.load("vanilla-sd", {"models.device_map": "auto", f"models.{key}": value}, env={})


def test_what_fusing_leaves_goes_back_to_the_device_once(monkeypatch):
    """The parts of fused matrices, of a decoder or of a tower, which the allocator would keep."""
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    model = llava_onevision.adapter(TIED)
    assert not emptied
    monkeypatch.setattr(type(model), "device", torch.device("cuda:0"))
    monkeypatch.setattr(video_language_model, "load_block_kernels", lambda device: None)
    model.prepare("stock")
    assert emptied == [1]
    model.prepare("fused")
    assert emptied == [1, 1]
