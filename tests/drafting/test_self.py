"""A target that drafts for itself on its own KV cache, with copies of its weights as codes."""

from functools import cache

import pytest
import torch

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.checkpoints import checkpoint
from tests.decoding.toys import emit_window
from tests.engine.passing import forward, poison
from tests.model_pairs import Pair
from tests.tiers import full_but
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.bench.measure import pass_bytes
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.captioner_models import models_record
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.target import Target
from vidspec.drafting.chain import ChainDrafter
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.engine.layouts import stored_bytes
from vidspec.engine.requests import run_to_completion
from vidspec.engine.sampling import Sampling
from vidspec.errors import DeviceError, ProfileError
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

CLIP = next(path for path in shipped() if path.stem == "one-object")


@pytest.fixture(scope="module")
def folder():
    return checkpoint("readable")


@pytest.fixture(scope="module")
def pair(folder):
    made = Pair(folder, checkpoint("readable", noise=0.05), tokens=40)
    yield made
    made.close()


TREE, ADAPTIVE = {"draft.topology": "tree"}, {"draft.topology": "adaptive"}
WAYS = [
    ("self-int8", {}),
    ("self-int4", {}),
    ("self-int4", TREE),
    ("self-int8", ADAPTIVE),
    ("self-int8", {"draft.gamma": "auto"}),
    ("self-int8", {"models.decoder": "stock"}),
]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("name", "overrides"), full_but(WAYS[:3], WAYS))
def test_no_entry_that_a_draft_wrote_is_read_by_the_target(pair, monkeypatch, name, overrides):
    rows = Target.rows

    def verified(target, draft):
        poison(target.span)
        return rows(target, draft)

    monkeypatch.setattr(Target, "rows", verified)
    record = pair.captioner(name, overrides).caption(CLIP)
    assert record.token_ids == pair.plain(CLIP)
    assert record.counters["accepted"] > 0 and record.counters["draft_forwards"] > 0


def test_it_takes_no_second_prefill_and_no_second_cache(pair):
    captioner = pair.captioner("self-int8")
    with captioner:
        record, slab = captioner.caption(CLIP), pair.target.decoder.slab
        assert "draft_prefill" not in record.timings and "draft_prefill" not in record.trace.totals()
        assert record.models["draft"] is None and record.lossless
        engine = captioner.client.setup.self_draft
    assert engine.model.decoder.slab is slab and engine.model is pair.target.quantised_copy("int8")
    copies, weights = (
        stored_bytes(engine.model.decoder.matrices),
        sum(p.nbytes for p in pair.target.language.layers.parameters()),
    )
    assert 0 < copies < 0.6 * weights  # of small layers scales are a good part
    assert engine.model.embed is not None and engine.model.decoder.embedding is pair.target.decoder.embedding


@pytest.mark.full
def test_drawn_texts_have_the_targets_distribution(pair):
    model, sampling, limits = pair.target, Sampling(2.0, 0.5), StoppingRules(3, frozenset(), False)
    engine, prefix = Engine(model), model.text_prefix(model.template.ids_with_text("\n", "What moves?"))
    read = engine.prefill(prefix, 40)

    @cache
    def table(text):
        read.span.rollback(prefix.length)
        return forward(engine, read, text).logits[-1] if text else read.logits

    def text(rng):
        read.span.rollback(prefix.length)
        target = Target(engine, read, sampling, rng)
        drafter = ChainDrafter(Engine(model.quantised_copy("int4")), read.span.make_follower(), sampling, rng)
        tokens = [target.first()]
        drafter.begin(tokens[0])
        while len(tokens) < limits.max_new_tokens:
            draft = run_to_completion(drafter.propose(min(2, limits.max_new_tokens - len(tokens) - 1)))
            (passed,) = engine.run([target.rows(draft)])
            verdict = ExactRule()(draft, passed, rng)
            tokens += [*(draft.tokens[node] for node in verdict.path), verdict.token]
            target.commit(verdict.path, verdict.token, passed)
            emit_window(drafter, draft, verdict.path, verdict.token)
        return tuple(tokens[: limits.max_new_tokens])

    with torch.inference_mode():
        exact = exact_distribution(table, sampling, limits)
        rng = torch.Generator().manual_seed(0)
        assert p_value((text(rng) for _ in range(700)), exact) > SIGNIFICANCE
    assert len(exact) > 50


@pytest.mark.full
@pytest.mark.sample(quick=1, full=2)
@pytest.mark.parametrize("decoder", ["fused", "stock"])
@pytest.mark.parametrize("weights", full_but(["int8"], ["int8", "int4"]))
def test_a_target_of_codes_is_what_lossless_means_then(folder, pair, weights, decoder):
    """Windows, rows of other clips and the draft change nothing about it either."""

    def captioned(name, **more):
        settings = {"models.target": str(folder), "models.weights": weights, "models.decoder": decoder}
        settings |= {"generate.max_new_tokens": 40, "models.device": "cpu", **more}
        with Captioner.from_profile(profiles.load(name, settings, env={})) as captioner:
            assert (
                sum(layer.nbytes for layer in captioner.client.setup.target.model.language.layers.parameters()) < 10**4
            )
            model = captioner.client.setup.target.model
            # A tied table is looked up in and not multiplied with: its codes are read in its place.
            assert (
                stored_bytes(model.decoder.matrices, copies=False)
                < pass_bytes(model)
                < stored_bytes(model.decoder.matrices, copies=False) + 2 * 10**4
            )
            assert pass_bytes(model) < 0.4 * pass_bytes(pair.target)
            return captioner.caption(CLIP)

    plain, drafted = captioned("ar"), captioned("self-int4" if decoder == "fused" else "self-sd")
    assert plain.token_ids == drafted.token_ids and drafted.counters["accepted"] > 0
    assert plain.models["weights"] == weights and models_record(pair.captioner("ar").client.setup)["weights"] is None


@pytest.mark.full
@pytest.mark.parametrize("precision", full_but(["int8"], ["int8", "int4"]))
def test_a_draft_model_of_codes(folder, pair, precision):
    settings = {"models.target": str(folder), "models.draft": pair.draft.source, "models.device": "cpu"}
    settings |= {"generate.max_new_tokens": 40, "draft.precision": precision}
    with Captioner.from_profile(profiles.load("vanilla-sd", settings, env={})) as captioner:
        record, decoder = captioner.caption(CLIP), captioner.client.setup.draft.model.decoder
        assert stored_bytes(captioner.client.setup.target.model.decoder.matrices) == 0
    assert (
        record.token_ids == pair.plain(CLIP) and record.counters["accepted"] > 0 and stored_bytes(decoder.matrices) > 0
    )


def test_what_cannot_be_quantised_is_refused(folder):
    model = loading.load_model(str(folder), resolve_placement("cpu", "float32", "stock", weights="int8"))
    assert model.decoder.unquantisable_reason == "its linear layers are quantised or adapted"
    with pytest.raises(ProfileError, match=r"draft.precision int8: .*nearest valid choice: as-target"):
        Captioner(profiles.load("self-int8", env={}), model, None)
    with pytest.raises(DeviceError, match=r"weights as int4: .* quantised or adapted"):
        loading.prepare_decoder(model, resolve_placement("cpu", "float32", "stock", weights="int4"))


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("ngram", {"draft.precision": "int8"}, "draft.precision: int8 applies to the weights of a model that drafts"),
        ("ar", {"draft.precision": "int4"}, "draft.precision: int4"),
        ("ar", {"models.weights": "int8", "models.quantization": "8bit"}, "models.weights: int8 excludes"),
        ("ar", {"models.weights": "int8", "models.device_map": "auto"}, "excludes models.device_map"),
    ],
)
def test_combinations_that_make_no_sense(name, overrides, message):
    with pytest.raises(ProfileError, match=message):
        profiles.load(name, overrides, env={})
