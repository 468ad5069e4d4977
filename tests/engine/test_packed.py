"""Layers with packed weights give what ``nn.Linear`` gives, and stay ``nn.Linear`` for everything else."""

import copy
import pickle

import pytest
import torch
from decoding import checkpoints
from torch import nn
from torch.nn import functional as F

from vidspec import profiles
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.engine import packed
from vidspec.engine.attention import _for_groups, _repeated
from vidspec.engine.forward import Engine
from vidspec.engine.packed import PackedLinear, available, pack, pays
from vidspec.models import loading

pytestmark = pytest.mark.skipif(not available(), reason="this build of torch has no packed linear layers")

CLIP = shipped()[0]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def linear(outputs=70, inputs=50, bias=True):
    torch.manual_seed(0)
    with torch.inference_mode(False):  # weights made in it have no version, and are not packed
        return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


@pytest.fixture
def counted(monkeypatch):
    """Inputs that went to oneDNN's kernel, by their shape."""
    shapes, kernel = [], packed._pointwise
    monkeypatch.setattr(packed, "_pointwise", lambda x, *rest: shapes.append(tuple(x.shape)) or kernel(x, *rest))
    return shapes


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(packed, "SMALLEST", 1)


@torch.inference_mode()
@pytest.mark.parametrize("large", [1, 2**20])
@pytest.mark.parametrize("bias", [True, False])
def test_all_row_counts_equal_linear(bias, large, counted, monkeypatch):
    monkeypatch.setattr(packed, "_LARGE", large)
    plain = linear(bias=bias)
    layer = PackedLinear.of(plain)
    for rows in (1, 2, 3, 4, 5, 6, 7, 11, 26, 64, 700):
        x = torch.randn(1, rows, 50)
        torch.testing.assert_close(layer(x), plain(x), **CLOSE)
        assert layer(x).shape == (1, rows, 70)
    assert {shape[-2] for shape in counted} == {2, 3, 4, 5, 6, 7, 11, 26, 64, 700} - ({2, 3} if large == 1 else set())


@torch.inference_mode()
def test_shapes_and_strides(counted):
    plain = linear()
    layer = PackedLinear.of(plain)
    inputs = [
        torch.randn(50),
        torch.randn(3, 50),
        torch.randn(4, 5, 50),
        torch.randn(2, 3, 2, 50),
        torch.randn(50, 6).t(),
        torch.randn(1, 9, 100)[:, ::2, :50],
        torch.randn(2, 7, 50)[:, -1:],
        torch.randn(1, 1, 50).expand(2, 6, 50),
    ]
    for x in inputs:
        torch.testing.assert_close(layer(x), plain(x), **CLOSE)
    assert len(counted) == len(inputs) - 1
    assert layer(torch.empty(0, 50)).shape == (0, 70)


@torch.inference_mode()
def test_one_row_is_linear_itself(counted):
    plain, x = linear(), torch.randn(1, 1, 50)
    assert torch.equal(PackedLinear.of(plain)(x), plain(x))
    assert not counted


def test_other_dtypes_and_devices_are_not_packed(counted):
    x = torch.randn(3, 50)
    for dtype in (torch.float64, torch.bfloat16):
        layer = PackedLinear.of(linear().to(dtype))
        assert layer.packed_bytes == 0
        with torch.inference_mode():
            assert torch.equal(layer(x.to(dtype)), F.linear(x.to(dtype), layer.weight, layer.bias))
    assert PackedLinear.of(linear().to("meta")).packed_bytes == 0
    assert not counted


def test_gradients_and_autocast_take_the_usual_way(counted):
    layer, x = PackedLinear.of(linear().requires_grad_(True)), torch.randn(3, 50)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert not counted


@torch.no_grad()
def test_the_copy_follows_the_weight(counted):
    layer, x = PackedLinear.of(linear()), torch.randn(3, 50)

    def check():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), **CLOSE)

    layer.weight.mul_(2)
    check()
    layer.load_state_dict({"weight": torch.randn(70, 50), "bias": torch.randn(70)})
    check()
    layer.weight = nn.Parameter(torch.randn(70, 50))
    check()
    assert len(counted) == 3
    layer.weight.data = torch.randn(70, 50)
    check()
    layer.to(torch.bfloat16)
    assert layer(x.bfloat16()).dtype is torch.bfloat16 and layer.packed_bytes == 0
    layer.float()
    check()
    assert len(counted) == 5


def test_copies_and_pickles(counted):
    layer, x = PackedLinear.of(linear()), torch.randn(3, 50)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.inference_mode():
            torch.testing.assert_close(other(x), layer(x), **CLOSE)
    assert len(counted) == 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(70, 50)
        self.inner = nn.Sequential(nn.Linear(50, 50), nn.GELU(), nn.Linear(50, 3))
        self.head = nn.Linear(50, 70, bias=False)
        self.head.weight = self.embed.weight


def test_pack_replaces_what_is_large_enough(monkeypatch):
    monkeypatch.setattr(packed, "SMALLEST", 2500)
    model, x = Model(), torch.randn(4, 50)
    before, names = {key: value.clone() for key, value in model.state_dict().items()}, list(model.state_dict())
    assert pack(model, True) == 4 * (2500 + 3500)
    kinds = [type(one) for one in (model.inner[0], model.inner[2], model.head)]
    assert kinds == [PackedLinear, nn.Linear, PackedLinear]
    assert model.head.weight is model.embed.weight
    assert list(model.state_dict()) == names
    assert model.head.state_dict()._metadata == Model().head.state_dict()._metadata
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    fresh = Model()
    fresh.load_state_dict(model.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(model.inner(x), fresh.inner(x), **CLOSE)
    assert pack(model, True) == 0


def test_layers_of_others_stay(any_size):
    class Quantized(nn.Linear):
        pass

    hooked, moved = nn.Linear(50, 50), nn.Linear(50, 50)
    hooked.register_forward_pre_hook(lambda *_: None)
    moved.forward = moved.forward  # as accelerate does
    model = nn.Sequential(Quantized(50, 50), hooked, moved, nn.Linear(50, 50).bfloat16())
    assert pack(model, True) == 0


def test_when_it_packs(any_size, monkeypatch):
    monkeypatch.setattr(packed.platform, "machine", lambda: "x86_64")
    copies = 4 * (2500 + 150 + 3500)
    for free, expected in ((2 * copies, True), (2 * copies - 1, False), (None, True)):
        monkeypatch.setattr(packed.memory, "available", lambda free=free: free)
        assert pays(Model()) is expected
        assert bool(pack(Model())) is expected
        assert pack(Model(), True) == copies
    assert pack(Model(), False) == 0
    monkeypatch.setattr(packed.platform, "machine", lambda: "aarch64")
    assert pack(Model()) == 0 and pack(Model(), True) == copies
    monkeypatch.setattr(packed, "available", lambda: False)
    assert pack(Model(), True) == 0


def test_free_memory_is_plausible():
    free = packed.memory.available()
    assert free is None or 2**20 < free < 2**60


def test_missing_operators(monkeypatch):
    class Nothing:
        pass

    monkeypatch.setattr(torch.ops, "mkldnn", Nothing())
    assert not available()


@pytest.fixture
def folders(tmp_path):
    return checkpoints.save(tmp_path / "target"), checkpoints.save(tmp_path / "draft", noise=0.03)


def layers(model):
    return [one for one in model.model.modules() if isinstance(one, PackedLinear)]


def test_loading(folders, any_size):
    plain = loading.load(str(folders[0]), loading.placement("cpu", "float32", packed=False))
    fast = loading.load(str(folders[0]), loading.placement("cpu", "float32", packed=True))
    assert not layers(plain) and layers(fast)
    assert not layers(loading.load(str(folders[0]), loading.Placement(torch.device("cpu"), torch.float32)))
    assert not layers(loading.load(str(folders[0]), loading.placement("cpu", "bfloat16", packed=True)))
    ours, theirs = fast.model.state_dict(), plain.model.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)
    prefix = plain.text_prefix("a red circle", "Describe the video.")
    for ids in ([40], [40, 41], [40, 41, 77, 60, 38, 90]):
        logits = [Engine(one).forward(Engine(one).prefill(prefix, 8), ids).logits for one in (plain, fast)]
        torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-3)


def captions(folders, switch, *names):
    """Token ids of each profile."""
    settings = {
        "models.pair": None,
        "models.target": str(folders[0]),
        "models.draft": str(folders[1]),
        "models.dtype": "float32",
        "models.device": "cpu",
        "models.threads": 1,
        "models.packed": switch,
        "generate.max_new_tokens": 32,
    }
    found = []
    for name in names:
        with Captioner.from_profile(profiles.load(name, settings, env={})) as captioner:
            assert bool(layers(captioner.target.model)) is switch
            if captioner.draft is not None:
                assert bool(layers(captioner.draft.model)) is switch
            if captioner.slot is not None:
                assert captioner.slot._start.where.packed is switch
            found.append(captioner.caption(CLIP).token_ids)
    return found


def test_captions_are_equal(folders, any_size):
    (plain,) = captions(folders, False, "ar")
    assert len(plain) > 8
    assert captions(folders, True, "ar", "vanilla-sd", "parallelvlm") == [plain] * 3


def test_a_mask_is_repeated_once():
    mask = torch.zeros(1, 1, 2, 5)
    mask[0, 0, 0, 4] = float("-inf")
    first = _for_groups(mask, 3)
    assert first is _for_groups(mask, 3) and torch.equal(first, mask.repeat(1, 1, 3, 1))
    assert _for_groups(mask, 2).shape == (1, 1, 4, 5)
    assert mask in _repeated
    held = len(_repeated)
    del mask
    assert len(_repeated) == held - 1
