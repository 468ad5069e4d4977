"""Block heads in the layout of ``speculators``: DFlash and DSpark, against a plain computation of what they draft."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.checkpoints import dflash as heads
from tests.checkpoints.qwen import QWEN3, QWEN25, QwenKind, adapter
from tests.decoding.toys import on_tables, random_table, rounds_of, shifted
from tests.drafting.test_blocks import BlockPair, TappedTable, ToyBlocks, clip, right_for_a_while, watched
from tests.drafting.test_heads import GAMMA, PLACE, HeadPair
from tests.tiers import full_but
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.sequential import sequential
from vidspec.draft_length.blocks import BlockController
from vidspec.drafting.block import BlockDrafter
from vidspec.engine.rows import PassResult
from vidspec.engine.sampling import Sampling
from vidspec.errors import ModelError
from vidspec.models import dflash

#: Kinds of heads: type, keys of the config, Markov head, ids of its own output head.
KINDS = {
    "dflash": ("dflash", {}, None, None),
    "from the anchor": ("dflash", {"sample_from_anchor": True}, None, None),
    "non-causal windows": (
        "dflash",
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 400, "sliding_window_non_causal": True},
        None,
        None,
    ),
    "vanilla": ("dspark", {"markov_rank": 6}, "vanilla", None),
    "gated": ("dspark", {"markov_rank": 6, "markov_head_type": "gated", "sample_from_anchor": False}, "gated", None),
    "rnn": ("dspark", {"markov_rank": 6, "markov_head_type": "rnn"}, "rnn", None),
    "fewer ids": ("dspark", {"markov_rank": 6, "draft_vocab_size": 70}, "vanilla", 70),
    "partly rotated": (
        "dspark",
        {"markov_rank": 6, "rope_parameters": {"rope_theta": heads.THETA, "partial_rotary_factor": 0.5}},
        "vanilla",
        None,
    ),
    "inherited sections": (
        "dspark",
        {"markov_rank": 6, "rope_parameters": {"rope_theta": heads.THETA, "mrope_section": [4, 4, 4]}},
        "vanilla",
        None,
    ),
}


class SpeculatorsPair(BlockPair):
    """A random target and a random head."""

    def __init__(self, family, folder, name):
        model, more, self.markov, drafted = KINDS[name]
        self.kind, self.causal, self.window = QwenKind(family, tied=False), (False, False), 10**6
        self.share = 0.5 if name == "partly rotated" else 1.0
        target = adapter(self.kind)
        self.weights = heads.tensors()
        if self.markov:
            self.weights |= heads.dspark_tensors(len(target.model.lm_head.weight), self.markov, drafted=drafted)
        heads.save(folder, heads.speculators_config(self.kind, model, **more), self.weights)
        HeadPair.__init__(self, "dflash", target, dflash.load_block_head(str(folder), target, PLACE))
        target.eos = frozenset()

    def drafts(self, emitted, kept, count):
        """Tokens, confidences and logits of the first ``count`` positions behind a text."""
        logits, states = (part[:count] for part in self.expected(emitted, kept))
        if "lm_head.weight" in self.weights:
            logits = states @ self.weights["lm_head.weight"].double().T
        if self.markov:
            return heads.dspark_path(self.weights, self.markov, logits, states, emitted[-1])
        return logits.argmax(-1).tolist(), logits.softmax(-1).max(-1).values.tolist(), logits


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made = {}

    def pair(name, family=QWEN25):
        if (name, family) not in made:
            made[name, family] = SpeculatorsPair(family, tmp_path_factory.mktemp("head"), name)
        return made[name, family]

    return pair


@pytest.mark.parametrize("name", full_but(["rnn", "fewer ids"], KINDS))
@pytest.mark.parametrize("family", full_but([QWEN25], [QWEN25, QWEN3]))
def test_a_head_drafts_what_a_plain_pass_over_all_context_gives(pairs, monkeypatch, family, name):
    """Behind every outcome of a window; its logits to 1e-5, where it chooses in turn."""
    pair, found = pairs(name, family), []
    plain = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    choose = BlockDrafter._choose_in_turn
    step = pair.head.decoder.markov_step

    def steps(before, hidden, memory=None):
        made = step(before, hidden, memory)
        found[-1].append((hidden, made.bias))
        return made

    monkeypatch.setattr(pair.head.decoder, "markov_step", steps)
    monkeypatch.setattr(
        BlockDrafter, "_choose_in_turn", lambda self, *given: (found.append([]), choose(self, *given))[1]
    )
    rounds = watched(monkeypatch, right_for_a_while(plain))
    caption = pair.captioner(**{"draft.options.visual": "none"}).caption("", clip=clip(0))
    assert list(caption.token_ids) == plain
    lengths = [len(emitted) for emitted, _ in rounds]
    assert {after - before - 1 for before, after in pairwise(lengths)} == set(range(GAMMA + 1))
    none = torch.empty(0, dtype=torch.long)
    for steps_of, (emitted, tokens) in zip(
        found or [[]] * len(rounds), filter(lambda one: one[1], rounds), strict=False
    ):
        expected, _, logits = pair.drafts(emitted, none, len(tokens))
        assert list(tokens) == expected
        if pair.markov:
            own = torch.cat([pair.head.decoder.logits(hidden) + bias for hidden, bias in steps_of])
            ids = pair.head.decoder._ids
            own = own[:, : logits.shape[1]] if ids is None else own[:, ids]
            assert float((own - logits).abs().max()) < 1e-5 * float(logits.abs().max())


@pytest.mark.parametrize("name", full_but(["gated"], KINDS))
def test_texts_are_those_of_plain_decoding(pairs, name):
    pair = pairs(name)
    plain = pair.texts(pair.captioner("ar"), 1)
    for batch, settings in ((1, {}), (4, {"draft.gamma": "auto"}), (16, {"generate.no_repeat_ngram": 2})):
        if settings.get("generate.no_repeat_ngram"):
            plain = pair.texts(pair.captioner("ar", **settings), 1)
        assert pair.texts(pair.captioner(**settings), batch) == plain


def test_confidences_end_the_window(pairs, monkeypatch):
    """The controller is given the head's confidences, not the probabilities of its tokens."""
    pair, given = pairs("rnn"), []
    window = BlockController.window
    monkeypatch.setattr(BlockController, "window", lambda self, sure: (given.append(list(sure)), window(self, sure))[1])
    rounds = watched(monkeypatch)
    pair.captioner(**{"draft.gamma": "auto", "draft.options.visual": "none"}).caption("", clip=clip(0))
    none = torch.empty(0, dtype=torch.long)
    emitted = next(emitted for emitted, tokens in rounds if tokens)
    _, expected, _ = pair.drafts(emitted, none, len(given[0]))
    assert given[0] == pytest.approx(expected, abs=1e-5) and len(given[0]) == heads.SIZE


@pytest.mark.full
def test_drawn_texts_have_the_targets_distribution():
    """With a Markov head, whose q of a position depends on the token before it; without its bias they would not."""
    sampling, rng = Sampling(0.8, 0.9), torch.Generator().manual_seed(8)
    target, draft = random_table(11, 4, 1.2), random_table(12, 4, 1.5)
    biases, limits, texts = random_table(13, 4, 1.5), StoppingRules(4, frozenset({3})), []

    class Markov(ToyBlocks):
        def _passed(self, rows):
            passed = super()._passed(rows)
            return PassResult(passed.logits, passed.logits)

    for _ in range(800):
        engine = Markov(draft)
        engine.model.in_turn = engine.model.markov = True
        engine.model.decoder = SimpleNamespace(
            graphs=None, markov_step=lambda before, _, memory: (biases((int(before),))[None], None, memory)
        )
        drafter = BlockDrafter(engine, engine.open(), sampling, rng)
        one = on_tables(shifted(target), limits, draft=drafter, gamma=3, sampling=sampling, rule=ExactRule(), rng=rng)
        one.target.engine.__class__, one.target.tapped = TappedTable, (1,)
        _, *text = [token for step in rounds_of(sequential, one) for token in step.token_ids]
        texts.append(tuple(text))
    assert p_value(texts, exact_distribution(target, sampling, StoppingRules(3, limits.eos))) > SIGNIFICANCE


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("eagle3", {}, "is a head of the kind eagle3, and block heads are dflash, dflash2, dspark"),
        ("dflash", {"aux_hidden_state_layer_ids": None}, "has no aux_hidden_state_layer_ids"),
        ("dflash", {"aux_hidden_state_layer_ids": [1, 2, 9]}, "reads states of block 8 of a target that has 4"),
        ("dflash", {"draft_vocab_size": 70}, "has no d2t of 70 ids"),
        ("dspark", {"markov_head_type": "deep"}, "markov_head_type deep is not one of vanilla, gated, rnn"),
        ("dspark", {"markov_rank": 6}, "confidence_head.proj.bias is not in its files"),
    ],
)
def test_heads_that_are_refused(pairs, tmp_path, model, more, message):
    pair = pairs("dflash")
    folder = heads.save(tmp_path, heads.speculators_config(pair.kind, model, **more), heads.tensors())
    with pytest.raises(ModelError, match=message):
        dflash.load_block_head(str(folder), pair.target, PLACE)


def test_one_key_of_the_profile_says_how_positions_are_counted(tmp_path):
    """A head of ``speculators`` with the target's sections counts rows; ``axes: target`` uses the target's axes."""
    kind = QwenKind(QWEN25, tied=False)
    sections = {"rope_theta": heads.THETA, "mrope_section": [4, 4, 4]}
    target = adapter(kind)
    target.eos = frozenset()
    found = {}
    for layout in ("speculators", "authors"):
        own = {"rope_parameters": {**sections, "rope_type": "default"}}
        given = (
            heads.speculators_config(kind, "dflash", **own) if layout == "speculators" else heads.config(kind, **own)
        )
        head = dflash.load_block_head(str(heads.save(tmp_path / layout, given, heads.tensors())), target, PLACE)
        pair = HeadPair("dflash", target, head)
        for axes in ("auto", "one", "target"):
            caption = pair.captioner(**{"draft.options.axes": axes, "draft.gamma": 7}).caption("", clip=clip(0))
            found[layout, axes] = caption.counters["accepted_lengths"], caption.token_ids
    assert found["speculators", "auto"] == found["speculators", "one"] == found["authors", "one"]
    assert found["authors", "auto"] == found["authors", "target"] == found["speculators", "target"]
