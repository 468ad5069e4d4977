"""The ensemble drafter: its cache, its history and its windows, on tables and on a real model."""

import random
from types import SimpleNamespace

import pytest
import torch

from tests.acceptance.sequences import reference_distribution
from tests.checkpoints import checkpoint
from tests.decoding.toys import GREEDY, blend, emit_window, on_tables, proposed, random_table, rounds_of
from tests.drafting.literal_ensemble import literal_mean, literal_weights
from tests.drafting.toy_ensemble import ensemble
from tests.engine.passing import forward, poison
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.drafters.ensemble import prefix_of
from vidspec.drafting.ensemble_chain import AdaptiveEnsembleChain, ContextErrors, EnsembleChain
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.engine.sampling import Sampling
from vidspec.models import loading
from vidspec.models.base import Pixels
from vidspec.models.placement import resolve_placement

ROOM = 80
VOCABULARY = 6
SOFT = Sampling(1.0)
TARGET = random_table(1, VOCABULARY, 2.0)
TABLES = [blend(TARGET, random_table(20 + i, VOCABULARY, 2.0), 0.2 + 0.2 * i) for i in range(4)]


def distribution(table, prefix, sampling=SOFT):
    return reference_distribution(table(tuple(prefix)), sampling)


def rounds(seed, count=9):
    """Window lengths and how many of each are accepted: none, some and all."""
    rng = random.Random(seed)
    for _ in range(count):
        gamma = rng.choice([0, 1, 3, 4])
        yield gamma, rng.randint(0, gamma) if rng.random() < 0.6 else gamma, rng.randrange(VOCABULARY)


@pytest.mark.sample(quick=5)
@pytest.mark.parametrize("history", [None, 1, 4])
@pytest.mark.parametrize("contexts", [2, 4])
@pytest.mark.parametrize("rule", ["grid", "softmax", "inverse"])
@pytest.mark.parametrize("seed", range(3))
def test_weights_rest_on_every_verified_position(seed, rule, contexts, history):
    """Positions of accepted tokens, of corrections and of bonuses, each once and at its own prefix."""
    tables = TABLES[:contexts]
    drafter = ensemble(tables, GREEDY, torch.Generator(), rule, divergence="kl", history=history)
    drafter.begin(2)
    text, positions = [2], []
    for gamma, accepted, token in rounds(seed):
        window = proposed(drafter, gamma)
        if gamma:
            expected = literal_weights(rule, positions, contexts, "kl", history)
            assert window.weights == pytest.approx(expected, abs=2e-4)
        prefixes = [[*text, *window.tokens[:i]] for i in range(gamma + 1)]
        logits = torch.stack([TARGET(tuple(prefix)) for prefix in prefixes])
        emit_window(drafter, window, range(accepted), token, logits)
        positions += [
            (distribution(TARGET, prefix), [distribution(table, prefix) for table in tables], emitted)
            for prefix, emitted in zip(prefixes, [*window.tokens[:accepted], token], strict=False)
        ]
        text += [*window.tokens[:accepted], token]
    assert len(positions) == len(text) - 1


@pytest.mark.parametrize("rule", ["equal", "grid"])
def test_greedy_windows_take_the_best_of_the_mixture(rule):
    drafter = ensemble(TABLES, GREEDY, torch.Generator(), rule)
    drafter.begin(2)
    text = [2]
    for gamma, accepted, token in rounds(5):
        window = proposed(drafter, gamma)
        assert window.probs is None and window.parents == tuple(range(-1, gamma - 1))
        assert len(window.weights) == (4 if gamma else 0)
        for i, drafted in enumerate(window.tokens):
            prefix = [*text, *window.tokens[:i]]
            mean = literal_mean(window.weights, [distribution(table, prefix) for table in TABLES])
            assert mean[drafted] == pytest.approx(max(mean))
        logits = torch.stack([TARGET((*text, i)) for i in range(gamma + 1)])
        emit_window(drafter, window, range(accepted), token, logits)
        text += [*window.tokens[:accepted], token]


@pytest.mark.parametrize("sampling", [SOFT, Sampling(0.7), Sampling(0.8, 0.6)], ids=str)
def test_sampled_windows_carry_the_mixture_they_were_drawn_from(sampling):
    """Temperature is each distribution's, top-p the mixture's."""
    drafter = ensemble(TABLES, sampling, torch.Generator().manual_seed(1))
    drafter.begin(2)
    window = proposed(drafter, 4)
    for i, drafted in enumerate(window.tokens):
        each = [distribution(table, [2, *window.tokens[:i]], Sampling(sampling.temperature)) for table in TABLES]
        mean = torch.tensor(literal_mean([0.25] * 4, each), dtype=torch.float64)
        assert window.probs[i].tolist() == pytest.approx(
            reference_distribution(mean.log(), Sampling(1.0, sampling.top_p)), abs=1e-5
        )
        assert window.probs[i, drafted] > 0


def test_labels_have_the_temperature_and_all_tokens():
    hot = Sampling(2.5, 0.5)
    drafter = ensemble(TABLES[:2], hot, torch.Generator().manual_seed(1), "inverse")
    drafter.begin(2)
    window = proposed(drafter, 1)
    logits = torch.stack([TARGET((2,)), TARGET((2, window.tokens[0]))])
    emit_window(drafter, window, (), 0, logits)
    plain = Sampling(2.5)
    seen = [(distribution(TARGET, [2], plain), [distribution(table, [2], plain) for table in TABLES[:2]], 0)]
    assert proposed(drafter, 1).weights == pytest.approx(literal_weights("inverse", seen, 2, "kl", None), abs=1e-4)


def test_one_pass_a_token():
    drafter = ensemble(TABLES, GREEDY, torch.Generator())
    drafter.begin(2)
    emit_window(drafter, proposed(drafter, 3), range(3), 4)  # the last drafted token and the bonus are read together
    proposed(drafter, 2)
    assert drafter.forwards == 5 and drafter.engine.passes == [4, 4, 4, 8, 4]


def test_the_schedule_tells_it_how_the_target_judged():
    drafter = ensemble(TABLES, GREEDY, torch.Generator(), "grid")
    told = []
    read = drafter.read
    drafter.read = lambda tokens, passed: (
        told.append((tuple(passed.path), tokens[-1], passed.logits)),
        read(tokens, passed),
    )
    limits = StoppingRules(30, frozenset())
    seen = rounds_of(sequential, on_tables(TARGET, limits, draft=drafter, gamma=4))
    text, at = [token for one in seen for token in one.token_ids], 1
    for one, (path, token, logits) in zip(seen[1:], told, strict=True):
        assert one is seen[-1] or token == one.token_ids[-1]
        assert path == tuple(range(one.accepted)) and len(logits) == one.drafted + 1
        for row in range(len(path) + 1):
            assert torch.equal(logits[row], TARGET(tuple(text[: at + row])))
        at += len(one.token_ids)
    weights = [one.weights for one in seen[1:]]
    assert weights[0] == (0.25,) * 4 and len(set(weights)) > 1
    assert all(sum(one) == pytest.approx(1) for one in weights if one)


# On a real model.


@pytest.fixture(scope="module")
def real():
    folder = checkpoint("readable", noise=0.05)
    model = loading.load_model(str(folder), resolve_placement("cpu", "float32"))
    values = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pixels = Pixels(values, (5, 4, 4), tuple(map(float, range(5))))
    prefixes = [
        model.prefix(model.encode(pixels), "What moves?"),
        model.text_prefix(model.template.ids_with_text("\n", "What moves?")),
        model.prefix(model.encode(pixels, pooled=True), "What moves?"),
    ]
    return Engine(model), prefixes


@torch.inference_mode()
def greedy_from_scratch(real, emitted, count):
    engine, prefixes = real
    text = list(emitted)
    for _ in range(count):
        rows = [forward(engine, engine.prefill(one, ROOM), text).logits[-1].softmax(-1) for one in prefixes]
        text.append(int(torch.stack(rows).mean(0).argmax()))
    return tuple(text[len(emitted) :])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("seed", range(3))
def test_after_any_commit_the_cache_stands_for_what_was_emitted(real, seed):
    engine, prefixes = real
    spans = [engine.prefill(prefix, ROOM).span for prefix in prefixes]
    drafter = EnsembleChain(engine, spans, GREEDY, torch.Generator())
    begun = [span.length for span in spans]
    drafter.begin(7)
    emitted = [7]
    for gamma, accepted, token in rounds(seed, 6):
        for span in spans:
            poison(span)
        window = proposed(drafter, gamma)
        assert window.tokens == greedy_from_scratch(real, emitted, gamma)
        emit_window(drafter, window, range(accepted), token + 40)
        emitted += [*window.tokens[:accepted], token + 40]
        assert all(span.length <= at + len(emitted) - 1 for span, at in zip(spans, begun, strict=True))


@pytest.mark.parametrize("accepted", range(4))
def test_each_number_of_accepted_tokens(real, accepted):
    engine, prefixes = real
    spans = [engine.prefill(prefix, ROOM).span for prefix in prefixes]
    drafter = AdaptiveEnsembleChain(engine, spans, GREEDY, torch.Generator(), ContextErrors("grid", 3))
    begun = [span.length for span in spans]
    drafter.begin(7)
    window = proposed(drafter, 3)
    assert [span.length for span in spans] == [at + 3 for at in begun]
    emit_window(drafter, window, range(accepted), 99, torch.zeros(4, engine.model.vocabulary))
    assert [span.length for span in spans] == [at + 1 + min(accepted, 2) for at in begun]


def test_contexts_are_tabeds():
    asked = []

    def own(pooled=False):
        yield from ()
        return "pooled video" if pooled else "video"

    clip = SimpleNamespace(
        own=own,
        pruned=lambda prefix: f"pruned {prefix}",
        text=lambda instead: asked.append(instead),
        caption="a red circle",
    )
    assert (
        run_to_completion(prefix_of("video", clip)) == "pruned video"
        and run_to_completion(prefix_of("pooled", clip)) == "pooled video"
    )
    run_to_completion(prefix_of("text", clip))
    run_to_completion(prefix_of("caption", clip))
    assert asked == ["\n", "image: a red circle"]
    clip.caption = None
    with pytest.raises(ValueError, match="caption"):
        run_to_completion(prefix_of("caption", clip))
