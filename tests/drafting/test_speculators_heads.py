"""Block heads in the layout of ``speculators``: DFlash and DSpark, against a plain computation of what they draft."""

import json
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.checkpoints import dflash as heads
from tests.checkpoints.qwen import QWEN3, QWEN25, QwenKind, adapter
from tests.decoding.toys import SharedToyEngine, on_tables, random_table, shifted, text_steps, turn
from tests.drafting.test_blocks import EVERY, BlockPair, TappedTable, ToyBlocks, clip, right_for_a_while, watched
from tests.drafting.test_heads import PLACE, HeadPair
from tests.tiers import full_but
from vidspec import cli
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.sequential import sequential
from vidspec.draft_length.blocks import BlockController
from vidspec.drafting.block import BlockDrafter
from vidspec.embedded.samples import shipped
from vidspec.engine.rows import PassResult
from vidspec.engine.sampling import Sampling
from vidspec.errors import ModelError
from vidspec.models import dflash, loading
from vidspec.models.checkpoint_config import head_kind
from vidspec.models.dflash import BlockDecoder
from vidspec.models.dflash_checkpoint import BlockSettings

#: Kinds of heads: type, keys of the config, Markov head, ids of its own output head.
KINDS = {
    "dflash": ("dflash", {}, None, None),
    "from the anchor": ("dflash", {"sample_from_anchor": True}, None, None),
    "causal windows": ("dflash", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 20}, None, None),
    "non-causal windows": (
        "dflash",
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 20, "sliding_window_non_causal": True},
        None,
        None,
    ),
    "vanilla": ("dspark", {"markov_rank": 6}, "vanilla", None),
    "gated": ("dspark", {"markov_rank": 6, "markov_head_type": "gated", "sample_from_anchor": False}, "gated", None),
    "rnn": ("dspark", {"markov_rank": 6, "markov_head_type": "rnn"}, "rnn", None),
    "rnn after the anchor": (
        "dspark",
        {"markov_rank": 6, "markov_head_type": "rnn", "sample_from_anchor": False},
        "rnn",
        None,
    ),
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
    "the target's axes": (
        "dspark",
        {"markov_rank": 6, "rope_parameters": {"rope_theta": heads.THETA, "mrope_section": [4, 4, 4]}},
        "vanilla",
        None,
    ),
}
#: Keys of the profile.
SETTINGS = {"the target's axes": {"draft.options.axes": "target"}}


class SpeculatorsPair(BlockPair):
    """A random target and a random head."""

    def __init__(self, family, folder, name):
        model, more, self.markov, drafted = KINDS[name]
        sliding = "windows" in name
        self.kind, self.causal = QwenKind(family, tied=False), (name == "causal windows",) * 2
        self.windows = ((20 if sliding else EVERY),) * 2
        self.share = 0.5 if name == "partly rotated" else 1.0
        self.sections = (4, 4, 4) if name in SETTINGS else ()
        target = adapter(self.kind)
        self.weights = heads.tensors()
        if self.markov:
            self.weights |= heads.dspark_tensors(len(target.model.lm_head.weight), self.markov, drafted=drafted)
        heads.save(folder, heads.speculators_config(self.kind, model, **more), self.weights)
        HeadPair.__init__(self, "dflash", target, dflash.load_block_head(str(folder), target, PLACE))
        target.eos = frozenset()

    def drafts(self, emitted, kept, count):
        """Tokens, confidences and logits of the first ``count`` positions behind a text."""
        first = self.head.first
        logits, states = (part[: first + count] for part in self.block(emitted, kept))
        if "lm_head.weight" in self.weights:
            logits = states @ self.weights["lm_head.weight"].double().T
        if self.markov:
            return heads.dspark_path(self.weights, self.markov, logits, states, emitted[-1], first)
        logits = logits[first:]
        return logits.argmax(-1).tolist(), logits.softmax(-1).max(-1).values.tolist(), logits


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made = {}

    def pair(name, family=QWEN25):
        if (name, family) not in made:
            made[name, family] = SpeculatorsPair(family, tmp_path_factory.mktemp("head"), name)
        return made[name, family]

    return pair


@pytest.mark.parametrize(
    "name", full_but(["rnn after the anchor", "fewer ids", "non-causal windows", "the target's axes"], KINDS)
)
@pytest.mark.parametrize("family", full_but([QWEN25], [QWEN25, QWEN3]))
def test_a_head_drafts_what_a_plain_pass_over_all_context_gives(pairs, monkeypatch, family, name):
    """Logits to 1e-5 of the largest, behind windows of which nothing, each number of tokens, or all was accepted."""
    pair, found, biases = pairs(name, family), [], []
    most, long = pair.head.most, {"generate.max_new_tokens": 70}
    plain = list(pair.captioner("ar", **long).caption("", clip=clip(0)).token_ids)
    choose, step = BlockDrafter._choose, pair.head.decoder.markov_step

    def chooses(self, passed, gamma):
        drafted = slice(self.engine.model.first, self.engine.model.first + gamma)
        found.append((passed.logits[drafted], biases := []))
        monkeypatch.setattr(pair.head.decoder, "markov_step", lambda *given: _kept(step(*given), biases))
        return choose(self, passed, gamma)

    monkeypatch.setattr(BlockDrafter, "_choose", chooses)
    rounds = watched(monkeypatch, right_for_a_while(plain))
    settings = {**long, "draft.gamma": most, "draft.options.visual": "none", **SETTINGS.get(name, {})}
    caption = pair.captioner(**settings).caption("", clip=clip(0))
    assert list(caption.token_ids) == plain
    lengths = [len(emitted) for emitted, _ in rounds]
    assert {after - before - 1 for before, after in pairwise(lengths)} == set(range(most + 1))
    none, ids = torch.empty(0, dtype=torch.long), pair.head.decoder._ids
    drafted = [one for one in rounds if one[1]]
    assert len(drafted) == len(found) >= most
    for (own, biases), (emitted, tokens) in zip(found, drafted, strict=True):
        expected, _, logits = pair.drafts(emitted, none, len(tokens))
        assert list(tokens) == expected and (len(biases) >= len(tokens) if pair.markov else not biases)
        own = own + torch.cat(biases[-len(own) :])[:, : own.shape[1]] if biases else own
        own = own[:, : logits.shape[1]] if ids is None else own[:, ids]
        assert float((own - logits).abs().max()) < 1e-5 * float(logits.abs().max())


def _kept(step, biases):
    biases.append(step.bias)
    return step


@pytest.mark.parametrize("name", full_but(["gated"], KINDS))
def test_texts_are_those_of_plain_decoding(pairs, name):
    pair = pairs(name)
    plain, own = pair.texts(pair.captioner("ar"), 1), SETTINGS.get(name, {})
    for batch, settings in ((1, {}), (4, {"draft.gamma": "auto"}), (16, {"generate.no_repeat_ngram": 2})):
        if settings.get("generate.no_repeat_ngram"):
            plain = pair.texts(pair.captioner("ar", **settings), 1)
        assert pair.texts(pair.captioner(**settings, **own), batch) == plain


@pytest.mark.parametrize("name", full_but(["rnn"], ["vanilla", "gated", "rnn"]))
def test_drawn_texts_do_not_depend_on_the_batch(pairs, name):
    """Measured windows give plain decoding's by seed; given ones take other draws, the same at any batch."""
    pair, drawn = pairs(name), {"generate.temperature": 0.7, "generate.seed": 5}
    plain = pair.texts(pair.captioner("ar", **drawn), 1)
    assert plain != pair.texts(pair.captioner("ar"), 1)
    alone = pair.texts(pair.captioner(**drawn), 1)
    for batch in (1, 4, 16):
        assert pair.texts(pair.captioner(**drawn, **{"draft.gamma": "auto"}), batch) == plain
        assert pair.texts(pair.captioner(**drawn), batch) == alone


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


class ToyMarkov(ToyBlocks):
    """A block head that is a table of the last token and the position, with a real Markov head."""

    def __init__(self, table, kind):
        super().__init__(table)
        self.states = random_table(14, heads.HIDDEN)
        self.model.in_turn = self.model.markov = True
        self.model.recurrent = kind == "rnn"
        self.model.decoder = decoder = BlockDecoder.__new__(BlockDecoder)
        decoder.graphs, decoder._ids = None, None
        decoder.tensors = heads.dspark_tensors(4, kind)
        decoder.settings = BlockSettings(4, 9, "", (0,), frozenset(), markov=6, markov_kind=kind)

    def _passed(self, rows):
        last = rows.token_ids[0]
        return PassResult(super()._passed(rows).logits, torch.stack([self.states((last, row)) for row in range(4)]))


@pytest.mark.parametrize(("kind", "batch"), full_but([("rnn", 4)], product(("vanilla", "gated", "rnn"), (1, 4, 16))))
def test_drawn_texts_have_the_targets_distribution(kind, batch):
    """q of a position depends on the token before it; without its bias texts would be others."""
    assert drawn_texts(kind, batch) > SIGNIFICANCE


@pytest.mark.full
def test_a_distribution_without_the_bias_is_found(monkeypatch):
    """By the test above: tokens are drawn with the bias, and verified as if without it."""
    choose = BlockDrafter._choose_in_turn

    def chooses(self, logits, hidden, lead):
        tokens, _ = choose(self, logits, hidden, lead)
        return tokens, self.sampling.distribution(logits)

    monkeypatch.setattr(BlockDrafter, "_choose_in_turn", chooses)
    assert drawn_texts("vanilla", 1) < SIGNIFICANCE


def drawn_texts(kind, batch):
    """The p-value of 800 texts, ``batch`` at once."""
    sampling, texts = Sampling(0.8, 0.9), []
    table, limits = shifted(random_table(11, 4, 1.2)), StoppingRules(4, frozenset({3}))
    for start in range(0, 800, batch):
        shared, blocks, loop, those = SharedTapped(), ToyMarkov(random_table(12, 4, 1.5), kind), Loop(), []
        for seed in range(start, start + batch):
            rng = torch.Generator().manual_seed(seed)
            drafter = BlockDrafter(blocks, blocks.open(), sampling, rng)
            one = on_tables(table, limits, draft=drafter, gamma=3, sampling=sampling, rule=ExactRule(), rng=rng)
            one.target.engine, one.target.span, one.target.tapped = shared, shared.start_of(table), (1,)
            one.key, one.steps = seed, text_steps(sequential, one)
            loop.begin(one)
            those.append(one)
        while len(loop):
            turn(loop)
        texts += [tuple(one.token_ids[1:]) for one in those]
    return p_value(texts, exact_distribution(random_table(11, 4, 1.2), sampling, StoppingRules(3, limits.eos)))


class SharedTapped(SharedToyEngine):
    """One target for all texts, whose passes return states."""

    _passed = TappedTable._passed


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("eagle3", {}, "is a head of the kind eagle3, and block heads are dflash, dflash2, dspark"),
        ("dflash", {"aux_hidden_state_layer_ids": None}, "has no aux_hidden_state_layer_ids"),
        ("dflash", {"aux_hidden_state_layer_ids": [1, 2, 9]}, "reads states of block 8 of a target that has 4"),
        ("dflash", {"draft_vocab_size": 70}, "has no d2t of 70 ids"),
        ("dflash", {"hidden_size": 48}, "is 48 wide, and .* is 64 wide"),
        ("dspark", {"markov_head_type": "deep"}, "markov_head_type deep is not one of vanilla, gated, rnn"),
        ("dspark", {"markov_rank": 6}, "confidence_head.proj.bias is not in its files"),
    ],
)
def test_heads_that_are_refused(pairs, tmp_path, model, more, message):
    pair = pairs("dflash")
    folder = heads.save(tmp_path, heads.speculators_config(pair.kind, model, **more), heads.tensors())
    with pytest.raises(ModelError, match=message):
        dflash.load_block_head(str(folder), pair.target, PLACE)


@pytest.mark.full
def test_the_command_line_drafts_with_one(tmp_path, capsys):
    """The shipped head in this layout: the same windows are accepted, and the text is plain decoding's."""
    shipped_head, target = (str(loading.embedded_folder("embedded-qwen", role)) for role in ("block_head", "target"))
    converted = str(heads.in_speculators_layout(Path(shipped_head), tmp_path / "head"))
    common = ["caption", str(shipped()[0]), "--target", target, "--frames", "4", "--max-new-tokens", "48"]
    common += ["--dtype", "float32", "--format", "json"]
    records = []
    for more in (["ar"], ["sparrow", "--draft", converted], ["sparrow", "--draft", shipped_head]):
        gamma = [] if more == ["ar"] else ["--set", "draft.gamma=7"]
        code = cli.main([*common, "--profile", *more, *gamma])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        records.append(json.loads(printed.out))
    plain, drafted, same = records
    assert plain["token_ids"] == drafted["token_ids"] == same["token_ids"]
    assert drafted["counters"]["accepted_lengths"] == same["counters"]["accepted_lengths"]
    assert drafted["counters"]["target_forwards"] < plain["counters"]["target_forwards"] / 2
    assert head_kind(converted) == "dflash"


@pytest.mark.parametrize("written", ["DSparkDraftModel", "DSparkSpeculator", "DFlashDraftModel", "DFlash2DraftModel"])
def test_its_class_names_the_kind(tmp_path, written):
    kind = QwenKind(QWEN25, tied=False)
    (tmp_path / "config.json").write_text(
        json.dumps(heads.speculators_config(kind, "dspark", architectures=[written])), encoding="utf-8"
    )
    assert head_kind(str(tmp_path)) == "dflash"


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
