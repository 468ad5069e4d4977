"""States of recurrent blocks: windows and rejections leave them as if each row had come alone."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.checkpoints.qwen import HYBRIDS, QwenKind, adapter, pixels
from tests.engine.passing import forward
from tests.tiers import full_but
from vidspec.engine.forward import Engine
from vidspec.engine.recurrent import NEAR, REACH, SPACING, delta_rule, linear_attention
from vidspec.engine.rows import Rows

PROMPT = "Describe the video."
#: Operators that a recurrent layer launches for the rows of one sequence.
OPERATORS = 65


@pytest.fixture(scope="module", params=full_but(["qwen3_5"], sorted(HYBRIDS)))
def engine(request):
    return Engine(adapter(QwenKind(request.param, tied=False, padding=0)))


@pytest.fixture(scope="module")
def prefix(engine):
    return engine.model.prefix(engine.model.encode(pixels(engine.model)), PROMPT)


def tokens(count, seed=0):
    return torch.randint(0, 300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def one_by_one(engine, prefix, text):
    read = engine.prefill(prefix, len(text))
    return torch.cat([forward(engine, read, [token]).logits for token in text])


def literal(query, key, value, gates, state):
    """The rule row by row; the outputs, and the state behind each row."""
    outs, states = [], []
    for q, k, v, (decay, beta) in zip(query, key, value, gates, strict=True):
        state = state * decay.exp()[:, None, None]
        change = (v - (state * k[..., None]).sum(-2)) * beta[:, None]
        state = state + k[..., None] * change[:, None]
        outs.append((state * q[..., None]).sum(-2) / q.shape[-1] ** 0.5)
        states.append(state)
    return torch.stack(outs), states


@pytest.mark.parametrize("rows", [1, 2, 6, 64])
@pytest.mark.parametrize("decay", [0.0, 0.05, 30.0], ids=["keeps all", "fades", "forgets"])
def test_a_window_at_once_is_the_rule_row_by_row(rows, decay):
    rng = torch.Generator().manual_seed(rows)
    query, key = (F.normalize(torch.randn(rows, 3, 16, generator=rng), dim=-1) for _ in range(2))
    key[rows // 2 :] = key[0]  # the hardest: all these rows change the same part
    value, state = torch.randn(rows, 3, 8, generator=rng), torch.randn(3, 16, 8, generator=rng)
    gates = torch.stack([-decay * torch.rand(rows, 3, generator=rng), torch.rand(rows, 3, generator=rng)], 1)
    expected, behind = literal(query, key, value, gates, state)
    out, last = delta_rule(query, key, value, gates, state)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(last, behind[-1], rtol=0, atol=1e-5)
    for kept in {1, 1 + rows // 2, rows}:  # the states that a rollback may need
        some = delta_rule(query[:kept], key[:kept], value[:kept], gates[:kept], state)[1]
        torch.testing.assert_close(some, behind[kept - 1], rtol=0, atol=1e-5)


class Operators(TorchDispatchMode):
    """Counts all that computes."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(args) if isinstance(one, torch.Tensor)}
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        views = all(one.untyped_storage().data_ptr() in given for one in made) and not func._schema.is_mutable
        self.count += not views
        return out


@torch.inference_mode()
def test_a_recurrent_layer_launches_as_much_for_a_window_as_for_a_token(engine, prefix):
    span, decoder, counts = engine.prefill(prefix, 200).span, engine.model.decoder, []
    module = decoder.language.layers[0].linear_attn
    for size in (1, 2, 6, 33):
        batch = [Rows(span, tokens(size))]
        with Operators() as operators:
            linear_attention(module, 0, decoder.embed(torch.tensor(batch[0].token_ids)), batch)
        counts.append(operators.count)
        span.length += size
    assert set(counts) == {OPERATORS}


def states(span):
    return {index: layer.marks[-1] for index, layer in span.states.layers.items()}


def test_three_of_four_blocks_keep_a_state(engine, prefix):
    decoder = engine.model.decoder
    assert decoder.name == "stock" and decoder.cached == (3,) and len(decoder.slab) == 1
    assert sorted(engine.prefill(prefix, 1).span.states.layers) == [0, 1, 2]


@pytest.mark.sample(quick=1, full=11)
@pytest.mark.parametrize("size", full_but([1, 5], range(1, 10)))
def test_windows_and_rejections_at_every_place(engine, prefix, size):
    """Each window is read with wrong tokens behind its first ``kept`` right ones, which are taken back."""
    text = tokens(40)
    expected = one_by_one(engine, prefix, text)
    read, at, number = engine.prefill(prefix, len(text) + size), 0, 0
    start = read.span.length
    while at < len(text):
        kept = 1 + number % size
        right = text[at : at + kept]
        wrong = tokens(size - kept, seed=number)
        logits = forward(engine, read, [*right, *wrong]).logits[: len(right)]
        torch.testing.assert_close(logits, expected[at : at + len(right)], rtol=0, atol=1e-4)
        at, number = at + len(right), number + 1
        read.span.rollback(start + at)
    alone = engine.prefill(prefix, len(text) + 1)
    for token in text:
        forward(engine, alone, [token])
    forward(engine, alone, [7])
    forward(engine, read, [7])
    for index, (place, state) in states(read.span).items():
        there, same = states(alone.span)[index]
        assert place == there
        torch.testing.assert_close(state, same, rtol=0, atol=1e-5)


@pytest.mark.full
@pytest.mark.sample(full=3)
@pytest.mark.parametrize("back", full_but([SPACING + 1], [1, 3, NEAR + 1, SPACING + 1, REACH]))
def test_going_back_after_two_hundred_tokens(engine, prefix, back):
    text = tokens(200)
    read = engine.prefill(prefix, 300)
    for token in text:
        forward(engine, read, [token])
    length = read.span.length
    expected = one_by_one(engine, prefix, [*text[: 200 - back], 5, 6])
    read.span.rollback(length - back)
    torch.testing.assert_close(forward(engine, read, [5, 6]).logits, expected[-2:], rtol=0, atol=1e-4)


@pytest.mark.full
def test_going_back_further_is_refused(engine, prefix):
    read = engine.prefill(prefix, 300)
    for token in tokens(200):
        forward(engine, read, [token])
    read.span.rollback(read.span.length - 2 * REACH)
    with pytest.raises(IndexError, match="cannot go back by more than 64 rows"):
        forward(engine, read, [5])


@pytest.mark.full
def test_what_is_kept_does_not_grow(engine, prefix):
    read, held = engine.prefill(prefix, 260), []
    for token in tokens(250):
        forward(engine, read, [token])
        held.append(read.span.states.nbytes)
    assert max(held[:125]) >= max(held[125:]) and max(held) > 0
    layer = read.span.states.layers[0]
    assert len(layer.marks) <= NEAR + REACH // SPACING + 2 and len(layer.gates) <= REACH + SPACING + NEAR


@pytest.mark.full
def test_states_take_no_more_than_is_said(engine, prefix):
    """Whatever the windows and rejections, within what a clip is admitted by; and that is not far more."""
    rng, most = torch.Generator().manual_seed(0), 0
    for size in (1, 3, 9, 33):
        read = engine.prefill(prefix, 600)
        for number in range(25):
            kept = int(torch.randint(0, size, (), generator=rng)) + 1
            forward(engine, read, tokens(size, seed=number))
            most = max(most, read.span.states.nbytes)
            read.span.rollback(read.span.length - size + kept)
    assert most <= engine.model.decoder.state_bytes < 2.5 * most


def test_a_prompt_in_stretches_beside_another_sequence(engine, prefix):
    """Two sequences in each pass, one of which reads its prompt in pieces."""
    whole, other = engine.prefill(prefix, 8), engine.prefill(prefix, 60)
    span = engine.open(prefix.length + 8, prefix.next_position - prefix.length)
    borders = [0, 11, 12, 40, prefix.length]
    for start, end in pairwise(borders):
        batch = [Rows(span, prompt=prefix, stretch=(start, end)), Rows(other.span, tokens(3, start))]
        engine.run(batch)
    logits = [forward(engine, one, [17]).logits for one in (whole.span, span)]
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-4)


def test_a_whole_sequence_is_copied_with_its_states(engine, prefix):
    """The two go on apart."""
    text, other = tokens(12), tokens(12, seed=1)
    expected = [one_by_one(engine, prefix, some) for some in (text, other)]
    read = engine.prefill(prefix, 16)
    again = read._replace(span=read.span.select(torch.arange(read.span.length), read.span.length + 16))
    again.span.offset = read.span.offset
    found = [(forward(engine, read, text[:5]).logits, forward(engine, again, other[:7]).logits)]
    found.append((forward(engine, read, text[5:]).logits, forward(engine, again, other[7:]).logits))
    for one, logits in zip(expected, zip(*found, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(logits), one, rtol=0, atol=1e-4)


def test_trees_and_selections_are_refused(engine, prefix):
    read = engine.prefill(prefix, 16)
    with pytest.raises(ValueError, match="no trees"):
        forward(engine, read, [5, 6], parents=[-1, -1])
    with pytest.raises(ValueError, match="cannot be selected from"):
        read.span.select(torch.arange(4), 8)
    forward(engine, read, [5, 6, 7])
    with pytest.raises(ValueError, match="no trees"):
        read.span.gather(prefix.length, [0, 2])
    read.span.gather(prefix.length, [0, 1])
    assert read.span.length == prefix.length + 2


def test_a_pass_over_a_prompt_that_fails_is_run_again(engine, prefix, monkeypatch):
    """Behind the recurrent blocks: their states have gone on, and go back to where the pass began."""
    expected, text = engine.prefill(prefix, 4), tokens(3)
    span = engine.open(prefix.length + 4, prefix.next_position - prefix.length)
    half, end = prefix.length // 2, prefix.length - 5
    engine.run([Rows(span, prompt=prefix, stretch=(0, half))])
    with monkeypatch.context() as patch:
        patch.setattr(engine.model.decoder, "norm", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.run([Rows(span, prompt=prefix, stretch=(half, end))])
    engine.run([Rows(span, prompt=prefix, stretch=(half, end - 2))])
    passed = engine.run([Rows(span, prompt=prefix, stretch=(end - 2, prefix.length))])[0]
    torch.testing.assert_close(passed.logits[-1], expected.logits, rtol=0, atol=1e-4)
    again = engine.run([Rows(span, text)])[0].logits
    torch.testing.assert_close(again, forward(engine, expected, text).logits, rtol=0, atol=1e-4)
