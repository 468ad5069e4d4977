"""A pruner gets its options from the profile and its signals from the target's prefill, and no others are observed."""

from types import SimpleNamespace

import pytest
import torch

from tests.checkpoints import checkpoint, readable
from tests.pruning.given import visual_tokens
from vidspec import video
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.schema import names
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.engine.taps import Taps
from vidspec.events.events import Prefilled
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.pruning import base
from vidspec.pruning.base import Signals, evenly_spaced, kept_count, make_taps, token_grid, whole_frames
from vidspec.registry import build_part

METHODS = [name for name in names("pruning") if name != "none"]
VISUAL = frozenset({"visual_attention", "features"})
OPTIONS = {
    "sd-window-front": {"place": "front"},
    "sd-window-middle": {"place": "middle"},
    "sd-window-end": {"place": "end"},
    "specvlm-chain": {"lam_r": 0.4},
    "specvlm": {"lam_r": 0.4},
    "self-specvlm": {"lam_r": 0.4},
    "uv-sequential": {"layer": readable.SIZE.layers // 2},
    "hippo-sequential": {"attention_term": True, "temporal_term": True, "spatial_term": True, "needs": VISUAL},
    "hippo-sequential-no-attn": {
        "attention_term": False,
        "temporal_term": True,
        "spatial_term": True,
        "needs": frozenset({"features"}),
    },
    "hippo-sequential-no-temp": {
        "attention_term": True,
        "temporal_term": False,
        "spatial_term": True,
        "needs": VISUAL,
    },
    "hippo-sequential-no-spa": {"attention_term": True, "temporal_term": True, "spatial_term": False, "needs": VISUAL},
}


@pytest.fixture(scope="module")
def pair():
    place = resolve_placement("cpu", "float32")
    return [loading.load_model(str(checkpoint("readable")), place) for _ in range(2)]


def captioner(pair, profile, **settings):
    few = {"video.frames": 4, "generate.max_new_tokens": 3}
    return Captioner(profiles.load(profile, {**few, **settings}, env={}), *pair)


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(("profile", "options"), OPTIONS.items())
def test_options_of_the_profile_arrive(pair, profile, options):
    assert options.items() <= vars(captioner(pair, profile).client.setup.pruner).items()


def test_options_are_those_the_constructor_names():
    class Own:
        def __init__(self, layer=1):
            self.layer = layer

    assert build_part(Own, {"layer": 7, "alpha": 0.5}, depth=4).layer == 7
    assert build_part(type("Plain", (), {"needs": frozenset()}), {"layer": 7}, depth=4).needs == frozenset()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("method", METHODS)
def test_only_what_a_pruner_needs_is_observed(pair, method, monkeypatch):
    prefilled, given = [], []
    reading, signals_of = Engine.start_prefill, base.make_signals

    def spy(self, prefix, room, taps=None, **more):
        prefilled.append(taps)
        return reading(self, prefix, room, taps, **more)

    def seen(prefix, taps, seed):
        given.append(signals_of(prefix, taps, seed))
        return given[-1]

    monkeypatch.setattr(Engine, "start_prefill", spy)
    monkeypatch.setattr("vidspec.decoding.prefill.make_signals", seen)
    one = captioner(pair, "sd-uniform", **{"prune.method": method, "prune.alpha": 0.7})
    record = one.caption(shipped()[0])
    taps, of_draft = prefilled
    observed = {f"hidden@{layer}" for layer in taps.hidden} if taps else set()
    if taps:
        observed |= {f"attention@{block}" for block in taps.attention_at} | ({"attention"} if taps.attention else set())
        assert set(taps.states) == set(taps.hidden) and set(taps.block_scores) == set(taps.attention_at)
    assert observed == one.client.setup.pruner.needs - {"features"} and of_draft is None
    (signals,) = given
    n = record.counters["visual_tokens"]
    assert record.counters["visual_tokens_kept"] == kept_count(n, 0.7) == sum(record.kept_per_frame)
    assert (signals.attention is None) == ("attention" not in one.client.setup.pruner.needs)
    for layer, states in signals.hidden.items():
        assert f"hidden@{layer}" in one.client.setup.pruner.needs and states.shape[0] == record_length(signals)


def record_length(signals):
    """Rows of the prompt: the text behind the video ends it."""
    return int(signals.text[-1]) + 1


def test_one_block_can_be_watched_alone(pair):
    model = pair[0]
    prefix = model.prefix(model.encode(model.preprocess(video.read(shipped()[0], frames=2))), "Describe the video.")
    every = range(model.layers)
    all_, one = make_taps([f"attention@{block}" for block in every], prefix), make_taps(["attention@1"], prefix)
    Engine(model).prefill(prefix, 4, all_)
    Engine(model).prefill(prefix, 4, one)
    assert list(one.block_scores) == [1] and not one.states
    assert torch.equal(one.block_scores[1], all_.block_scores[1])
    assert not torch.equal(all_.block_scores[0], all_.block_scores[1])
    with pytest.raises(ValueError, match="not observed"):
        _ = one.attention_scores
    whole = Taps(rows=prefix.text_rows_after_video, visual=prefix.visual.index, attention=True)
    Engine(model).prefill(prefix, 4, whole)
    assert whole.block_scores == {}
    mean = torch.stack([all_.block_scores[block] for block in every]).mean(0)
    torch.testing.assert_close(whole.attention_scores, mean)


@pytest.mark.parametrize("need", ["atention", "hidden", "hidden@", "hidden@x", "features@1", "attention@-1"])
def test_a_signal_that_does_not_exist_is_refused(need):
    with pytest.raises(ValueError, match="there is no signal"):
        make_taps([need], prefix=None)


def test_what_the_softmax_runs_over_is_watched(pair):
    prefix = SimpleNamespace(text_rows_after_video=torch.tensor([9]), visual=SimpleNamespace(index=torch.arange(4)))
    for keys, need in (("all", "attention"), ("visual", "visual_attention")):
        one = captioner(pair, "sd-attention", **{"prune.keys": keys})
        assert one.client.setup.needs == {need}
        taps = make_taps(one.client.setup.needs, prefix)
        assert taps.attention and taps.keys == keys
        assert one.caption(shipped()[0]).token_ids
    with pytest.raises(ValueError, match="exclude each other"):
        make_taps(["attention", "visual_attention"], prefix)


@pytest.mark.full
def test_stock_blocks_show_the_same_signals():
    """Every pruner keeps the same tokens, whatever runs the blocks."""
    folder = str(checkpoint("readable"))
    found = []
    for decoder in ("fused", "stock"):
        model = loading.load_model(folder, resolve_placement("cpu", "float32", decoder))
        kept = {}
        for method in METHODS:
            one = captioner([model, model], "sd-uniform", **{"prune.method": method, "prune.alpha": 0.7})
            kept[method] = next(e.kept for e in one.stream(shipped()[0]) if isinstance(e, Prefilled))
        found.append(kept)
    assert found[0] == found[1] and len(set(found[0].values())) > 5


@pytest.mark.parametrize(
    ("count", "wanted", "places"), [(10, 0, []), (10, 1, [5]), (9, 3, [1, 4, 7]), (4, 4, [0, 1, 2, 3])]
)
def test_evenly_spaced(count, wanted, places):
    assert evenly_spaced(count, wanted).tolist() == places


def test_whole_frames_in_a_given_order():
    visual = visual_tokens(4, 1, 3)
    assert whole_frames([2, 0, 1, 3], visual, 0.5).tolist() == [0, 2, 6, 7, 8, 12]
    assert whole_frames([3, 2, 1, 0], visual, 0.7).tolist() == [9, 10, 11, 12]
    assert Signals(visual).hidden == {}


def test_token_grid():
    grid = token_grid(visual_tokens(2, 2, 3))
    assert grid.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
