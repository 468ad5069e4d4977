"""The pruned target against the same model that reads all rows under masks, and against plain decoding."""

import pytest
import torch

from tests.engine.families import FAMILIES, ROOM, case, decode, stock_logits
from tests.engine.passing import forward
from vidspec.baselines.base import KeptTokens
from vidspec.baselines.engine import PrunedTargetEngine
from vidspec.baselines.methods.dycoke import DyCokeTargetPruner
from vidspec.baselines.methods.fastv import FastVPruner
from vidspec.baselines.methods.pdrop import PyramidDropPruner
from vidspec.baselines.methods.sparsevlm import SparseVLMPruner
from vidspec.baselines.pruner import TargetPruner
from vidspec.engine.forward import Engine

EVERYTHING = {
    "fastv": FastVPruner(keep=[1.0]),
    "pdrop": PyramidDropPruner(keep=[1.0, 1.0, 1.0]),
    "sparsevlm": SparseVLMPruner(keep=[1.0, 1.0, 1.0]),
    "dycoke": DyCokeTargetPruner(merge=0.0, keep=[1.0]),
}
CLOSE = {"rtol": 0, "atol": 2e-3}


class RecordingPruner(TargetPruner):
    """A method that notes, per stage, which of the prompt's visual tokens are left."""

    def __init__(self, method, visual):
        self.method, self.left, self.kept = method, torch.arange(len(visual)), {}

    def before(self, prefix):
        return self.method.before(prefix)

    def stages(self, depth):
        self.shares = self.method.stages(depth)
        self.waiting = sorted(self.shares)
        return self.shares

    def choose(self, reading, share) -> KeptTokens:
        choice = self.method.choose(reading, share)
        self.left = self.left[choice.kept]
        self.kept[self.waiting.pop(0)] = self.left
        return choice


def by_masks(model, prefix, text, hidden):
    """Logits of each place of ``text``, all rows read; ``hidden[layer]`` (rows, rows) is what rows do not see there."""
    rows = prefix.length + len(text) - 1
    causal = torch.ones(rows, rows, dtype=torch.bool).triu(1)

    def before(layer):
        def hook(_module, args, kwargs):
            unseen = causal | hidden[layer] if layer in hidden else causal
            unseen = unseen & ~torch.eye(rows, dtype=torch.bool)
            mask = torch.zeros(1, 1, rows, rows).masked_fill(unseen, float("-inf"))
            return args, {**kwargs, "attention_mask": mask}

        return hook

    blocks = enumerate(model.language.layers)
    handles = [block.register_forward_pre_hook(before(layer), with_kwargs=True) for layer, block in blocks]
    try:
        return stock_logits(model, prefix, text[:-1])
    finally:
        for handle in handles:
            handle.remove()


def unseen(prefix, rows, kept, first=0):
    """Rows from ``first`` on do not see the visual tokens that are not in ``kept``."""
    dropped = torch.ones(len(prefix.visual), dtype=torch.bool)
    dropped[kept] = False
    hidden = torch.zeros(rows, rows, dtype=torch.bool)
    hidden[first:, prefix.visual.index[dropped]] = True
    return hidden


@pytest.mark.sample(quick=12)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", EVERYTHING)
def test_keeping_everything_is_plain_decoding(family, method):
    model, prefix = case(family)
    plain, plain_logits, _ = decode(Engine(model), prefix)
    text, logits, _ = decode(PrunedTargetEngine(model, EVERYTHING[method]), prefix)
    assert text == plain and torch.equal(logits, plain_logits)


@pytest.mark.sample(quick=12)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "method",
    [
        FastVPruner(layer=1, keep=[0.4]),
        FastVPruner(layer=2, keep=[0.2]),
        PyramidDropPruner(keep=[0.6, 0.4, 0.2]),
        SparseVLMPruner(keep=[0.6, 0.5, 0.2], recycle=0),
    ],
    ids=["fastv-1", "fastv-2", "pdrop", "sparsevlm"],
)
def test_dropped_rows_are_rows_that_nobody_sees(family, method):
    """Positions, deepstack features and the cache of every layer: they give what masks give."""
    model, prefix = case(family)
    recorded = RecordingPruner(method, prefix.visual)
    text, logits, state = decode(PrunedTargetEngine(model, recorded), prefix)
    rows = prefix.length + len(text) - 1
    hidden, lengths, read, left = {}, [], [], len(prefix.visual)
    for layer in range(model.layers):
        if layer in recorded.kept:
            kept = recorded.kept[layer]
            left = len(kept)
            assert left == max(1, round(recorded.shares[layer] * len(prefix.visual))) < len(prefix.visual)
        if left < len(prefix.visual):
            hidden[layer] = unseen(prefix, rows, kept)
        lengths.append(rows - len(prefix.visual) + left)
        read.append(left)
    assert state.span.kept == tuple(read)
    assert hidden and state.span.lengths == tuple(lengths) and state.span.length == rows
    torch.testing.assert_close(logits, by_masks(model, prefix, text, hidden), **CLOSE)
    plain = Engine(model).prefill(prefix, ROOM).logits
    assert (logits[0] - plain).abs().max() > 10 * CLOSE["atol"]  # the masks matter


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_frames_are_a_shorter_prompt(family):
    model, prefix = case(family)
    method = DyCokeTargetPruner(merge=0.7, keep=[1.0])
    kept = method.before(prefix)
    text, logits, state = decode(PrunedTargetEngine(model, method), prefix)
    expected, expected_logits, other = decode(Engine(model), prefix.keep(kept))
    assert state.span.kept == (len(kept),) * model.layers
    assert len(kept) < len(prefix.visual) and text == expected and torch.equal(logits, expected_logits)
    assert (
        state.span.length == other.span.length
        and state.span.offset == other.span.offset > prefix.next_position - prefix.length
    )


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("similarity", [-1.0, 1.0], ids=["chosen once", "at every step"])
def test_entries_that_decoding_does_not_read(family, similarity):
    model, prefix = case(family)
    layer, chosen = 2, []
    engine = PrunedTargetEngine(model, DyCokeTargetPruner(merge=0.0, keep=[0.3], layer=layer, similarity=similarity))
    state = engine.prefill(prefix, ROOM)
    text, logits = [int(state.logits.argmax())], [state.logits]
    for _ in range(6):
        logits.append(forward(engine, state, text[-1:]).logits[-1])
        text.append(int(logits[-1].argmax()))
        chosen.append(state.span.chosen)
    rows = prefix.length + len(text) - 1
    hidden = torch.zeros(rows, rows, dtype=torch.bool)
    for step, entries in enumerate(chosen):
        read = torch.isin(prefix.visual.index, entries).nonzero()[:, 0]
        assert len(read) == max(1, round(0.3 * len(prefix.visual)))
        assert len(entries) == prefix.length - len(prefix.visual) + len(read)
        hidden[prefix.length + step] = unseen(prefix, rows, read)[0]
    expected = by_masks(model, prefix, text, dict.fromkeys(range(layer, model.layers), hidden))
    torch.testing.assert_close(torch.stack(logits), expected, **CLOSE)
    assert len({id(rows) for rows in chosen}) == (1 if similarity < 0 else len(chosen))
    assert state.span.lengths == (rows,) * model.layers  # nothing is lost
    later = model.layers - layer
    assert state.span.kept == (len(prefix.visual),) * layer + (len(read),) * later


def test_recycled_tokens_reach_the_next_block():
    """The state at a centre's place is the mean of its members'."""
    model, prefix = case("qwen3_vl")
    method = SparseVLMPruner(keep=[0.2, 0.2, 0.2], recycle=0.5, cluster=4)
    seen, entered = [], []
    choose = method.choose

    def noting(reading, share):
        seen.append((reading, choose(reading, share)))
        return seen[-1][1]

    method.choose = noting
    block = model.decoder.block

    def watched(index, rows, *rest):
        if index == 1:
            entered.append(rows)
        return block(index, rows, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.decoder, "block", watched)
        PrunedTargetEngine(model, method).prefill(prefix, ROOM)
    reading, (kept, into) = seen[0]
    visual, after = reading.visual, entered[0]
    assert len(after) == prefix.length - len(visual) + len(kept)
    assert int((into >= 0).sum()) > len(into[into >= 0].unique()) > 0
    rows = torch.ones(prefix.length, dtype=torch.bool)
    rows[visual.index] = False
    for place, token in enumerate(kept.tolist()):
        members = (into == token).nonzero()[:, 0]
        own = reading.states[visual.index[members if len(members) else [token]]].mean(dim=0)
        row = int(rows[: visual.index[token]].sum()) + place
        torch.testing.assert_close(after[row], own)


def test_prompts_without_a_video():
    model, _ = case("qwen2_5_vl")
    prefix = model.text_prefix(model.template.ids_with_text("\n", "Describe."))
    plain = decode(Engine(model), prefix)[0]
    for method in (
        FastVPruner(retention=0.4),
        PyramidDropPruner(retention=0.4),
        SparseVLMPruner(retention=0.4),
        DyCokeTargetPruner(retention=0.4),
    ):
        assert decode(PrunedTargetEngine(model, method), prefix)[0] == plain


def test_what_a_pruned_target_does_not_do():
    model, prefix = case("llava")
    engine = PrunedTargetEngine(model, FastVPruner(retention=0.4))
    state = engine.prefill(prefix, ROOM)
    with pytest.raises(ValueError, match="token by token"):
        forward(engine, state, [1, 2])
