"""The bookkeeping of chains, on a real model: the draft's cache must always stand for what has been emitted."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoding.toys import emit_window, proposed
from tests.engine.passing import forward, poison
from vidspec.drafting.chain import ChainDrafter
from vidspec.engine.sampling import Sampling
from vidspec.models.base import Pixels

GREEDY = Sampling()
ROOM = 80


@pytest.fixture(scope="module", params=["everything seen", "pruned", "pruned and compact"])
def prefix(request, engine):
    model, frames = engine.model, 5
    pixels = torch.randn(frames, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    whole = model.prefix(model.encode(Pixels(pixels, (frames, 4, 4), tuple(map(float, range(frames))))), "What moves?")
    if request.param == "everything seen":
        return whole
    return whole.keep(torch.tensor([0, 3, 4, 11, 20]), compact="compact" in request.param)


@torch.inference_mode()
def logits_from_scratch(engine, prefix, emitted):
    """Logits after the prompt and ``emitted``, from a new cache each time."""
    return forward(engine, engine.prefill(prefix, ROOM), emitted).logits[-1]


def greedy_from_scratch(engine, prefix, emitted, count):
    text = list(emitted)
    for _ in range(count):
        text.append(int(logits_from_scratch(engine, prefix, text).argmax()))
    return tuple(text[len(emitted) :])


ROUND = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 600))


@pytest.mark.sample(quick=1)
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(0, 600), rounds=st.lists(ROUND, min_size=1, max_size=5))
def test_after_any_commit_it_proposes_the_greedy_continuation(engine, prefix, first, rounds):
    drafter = ChainDrafter(engine, engine.prefill(prefix, ROOM).span, GREEDY, torch.Generator())
    drafter.begin(first)
    emitted = [first]
    for gamma, accepted, correction in rounds:
        poison(drafter.span)
        window = proposed(drafter, gamma)
        assert window.tokens == greedy_from_scratch(engine, prefix, emitted, gamma)
        assert window.parents == tuple(range(-1, gamma - 1)) and window.probs is None
        accepted = min(accepted, gamma)
        emit_window(drafter, window, range(accepted), correction)
        emitted += [*window.tokens[:accepted], correction]
        # Read is at most what was emitted; the last token, the target's own, never.
        assert drafter.span.length <= prefix.length + len(emitted) - 1
    assert drafter.forwards == sum(gamma for gamma, _, _ in rounds)


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_each_number_of_accepted_tokens(engine, prefix, gamma):
    for accepted in range(gamma + 1):
        drafter = ChainDrafter(engine, engine.prefill(prefix, ROOM).span, GREEDY, torch.Generator())
        drafter.begin(7)
        window = proposed(drafter, gamma)
        assert drafter.span.length == prefix.length + gamma
        emit_window(drafter, window, range(accepted), 99)
        # The last drafted token was never read: after a full window it is read together with the bonus.
        assert drafter.span.length == prefix.length + 1 + min(accepted, gamma - 1)
        poison(drafter.span)
        emitted = [7, *window.tokens[:accepted], 99]
        assert proposed(drafter, 3).tokens == greedy_from_scratch(engine, prefix, emitted, 3)


def leave_an_entry(span):
    span.length, span.offset = span.length + 1, span.offset - 1


def move_positions(span):
    span.offset += 1


@pytest.mark.parametrize("fault", [leave_an_entry, move_positions])
def test_a_fault_of_the_cache_after_a_rejection_is_found(engine, prefix, fault):
    """By the comparison of all tests of this module."""
    drafter = ChainDrafter(engine, engine.prefill(prefix, ROOM).span, GREEDY, torch.Generator())
    drafter.begin(7)
    emitted, found = [7], []
    for token in (99, 5, 301, 42):
        emit_window(drafter, proposed(drafter, 4), (), token)
        emitted.append(token)
        fault(drafter.span)
        found.append(proposed(drafter, 4).tokens != greedy_from_scratch(engine, prefix, emitted, 4))
    assert any(found)


def test_what_is_emitted_while_it_proposes_nothing_is_read_later(engine, prefix):
    drafter = ChainDrafter(engine, engine.prefill(prefix, ROOM).span, GREEDY, torch.Generator())
    drafter.begin(7)
    for token in (8, 9):
        window = proposed(drafter, 0)
        assert window.tokens == ()
        emit_window(drafter, window, (), token)
    assert drafter.forwards == 0 and drafter.span.length == prefix.length
    assert proposed(drafter, 2).tokens == greedy_from_scratch(engine, prefix, [7, 8, 9], 2)


def test_sampled_windows_carry_the_distributions_they_were_drawn_from(engine, prefix):
    sampling = Sampling(1.5, 0.95)
    drafter = ChainDrafter(engine, engine.prefill(prefix, ROOM).span, sampling, torch.Generator().manual_seed(3))
    drafter.begin(7)
    emitted = [7]
    for accepted in (4, 1):
        window = proposed(drafter, 4)
        assert window.probs.shape == (4, engine.model.vocabulary)
        for i, token in enumerate(window.tokens):
            scratch = logits_from_scratch(engine, prefix, [*emitted, *window.tokens[:i]])
            assert torch.allclose(window.probs[i], sampling.distribution(scratch[None])[0], atol=1e-4)
            assert window.probs[i, token] > 0
        emit_window(drafter, window, range(accepted), 5)
        emitted += [*window.tokens[:accepted], 5]


def test_draws_again_the_same_by_seed(engine, prefix):
    def window(seed):
        drafter = ChainDrafter(
            engine, engine.prefill(prefix, ROOM).span, Sampling(5.0), torch.Generator().manual_seed(seed)
        )  # fmt: skip
        drafter.begin(7)
        return proposed(drafter, 5).tokens

    assert window(1) == window(1) != window(2)
