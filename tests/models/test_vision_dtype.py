"""A vision tower in float32: of bfloat16 models on CPUs that are faster so, of float16 ones on GPUs before 8.0."""

import json

import pytest
import torch

from tests.model_pairs import ADAPTERS
from tests.models.quantised import make
from tests.models.test_bytes import clip
from vidspec.bench.measure import model_weight_bytes
from vidspec.captioner import Captioner
from vidspec.cli import main
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.models import loading, placement
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement


@pytest.fixture
def machine(monkeypatch):
    """A CPU that is slow in bfloat16 or not, with so many bytes of memory."""

    def set_up(slow, free):
        monkeypatch.setattr(placement, "has_slow_half_precision", lambda: slow)
        monkeypatch.setattr("vidspec.memory.available_memory", lambda: free)

    return set_up


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", ADAPTERS)
def test_features_are_those_of_a_float32_tower(family):
    model, whole = ADAPTERS[family](), ADAPTERS[family]()
    model.model.bfloat16()
    model.vision_dtype = torch.bfloat16
    whole.model.bfloat16().float()
    model.prepare(packed=False)
    pixels = model.preprocess(clip())
    half = model.encode(pixels).features
    loading.set_vision_dtype(model, torch.float32)
    seen, expected = model.encode(pixels), whole.encode(pixels)
    torch.testing.assert_close(seen.features, expected.features)
    assert seen.features.dtype is torch.float32 and not torch.equal(half.float(), seen.features)
    prefix = model.prefix(seen, "What is seen?")
    assert model.dtype is torch.bfloat16 and prefix.embeds.dtype is torch.bfloat16
    assert Engine(model).prefill(prefix, 1).logits.isfinite().all()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("slow", "free", "dtype", "tower"),
    [
        (True, 10**9, "bfloat16", torch.float32),
        (True, 10**5, "bfloat16", torch.bfloat16),
        (False, 10**9, "bfloat16", torch.bfloat16),
        (True, None, "bfloat16", torch.float32),
        (True, 10**5, "auto", torch.bfloat16),
        (True, 10**9, "float32", torch.float32),
    ],
)
def test_where_it_is_chosen(machine, tmp_path, capsys, slow, free, dtype, tower):
    machine(slow, free)
    folder = make.assemble("fp8", tmp_path)
    model = load_model(str(folder), placement.resolve_placement("cpu", dtype))
    assert {weight.dtype for weight in model.model.model.vision_tower.parameters()} == {tower}
    assert model.vision_dtype is tower
    main(["models", str(folder), "--format", "json", *([] if dtype == "auto" else ["--dtype", dtype])])
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] + found["packed_bytes"] == model_weight_bytes(model) - sum(
        buffer.nbytes for buffer in model.model.buffers()
    )


@pytest.mark.full
def test_captions_are_written_from_it(machine, tmp_path):
    machine(True, 10**9)
    overrides = {"models.target": str(make.assemble("fp8", tmp_path)), "models.device": "cpu"}
    overrides |= {"models.dtype": "bfloat16", "video.frames": 2, "generate.max_new_tokens": 4}
    with Captioner.from_profile("self-specvlm", overrides=overrides) as captioner:
        assert captioner.client.setup.target.model.vision_dtype is torch.float32
        assert captioner.caption(shipped()[0]).token_ids


@pytest.mark.parametrize(
    ("capability", "dtype", "split", "tower"),
    [
        ((7, 5), torch.float16, None, torch.float32),
        ((8, 0), torch.float16, None, None),
        ((7, 5), torch.float32, None, None),
        ((7, 5), torch.float16, "auto", None),
    ],
)
def test_a_gpu_without_bfloat16_runs_the_tower_in_float32(monkeypatch, capability, dtype, split, tower):
    """Numbers in the last projection of Qwen2.5-VL's tower exceed float16."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    where = Placement(torch.device("cuda:0"), dtype, device_map=split)
    assert where.settled == (tower is None) and placement.fit_placement(where, 1, 1).vision is tower


def test_split_models_stay_as_they_are(machine):
    machine(True, None)
    half = Placement(torch.device("cpu"), torch.bfloat16, device_map="auto")
    assert half.settled and placement.fit_placement(half, 1, 1) == half
