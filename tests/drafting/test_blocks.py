"""Block heads beside small random targets: what they draft whatever was accepted, and texts of plain decoding."""

import json
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace

import jsonschema
import pytest
import torch

from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.checkpoints import dflash as heads
from tests.checkpoints.qwen import LAYERS, QWEN3, QWEN25, QwenKind, adapter
from tests.decoding.toys import ToyEngine, on_tables, random_table, rounds_of, shifted
from tests.drafting.built_in_pairs import BuiltInPair
from tests.drafting.test_heads import GAMMA, PLACE, HeadPair, clip, knows, right_for_a_while
from tests.engine import standin
from tests.tiers import full_but, in_turn
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.config import profiles
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.sequential import sequential
from vidspec.draft_length.blocks import BlockController, BlockNode
from vidspec.drafting.base import Draft
from vidspec.drafting.block import BlockDrafter
from vidspec.engine.decoder import sliding_windows
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.engine.rows import PassResult
from vidspec.engine.sampling import Sampling
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError, ProfileError
from vidspec.events.events import Prefilled, Round
from vidspec.models import dflash, dflash_checkpoint, loading
from vidspec.models.head import HeadRows

#: Kinds of heads: keys of their config, and for each block whether its rows see no later ones.
KINDS = {
    "both ways": ({}, (False, False)),
    "causal": ({"is_causal": True}, (True, True)),
    "sliding": (
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20, "use_sliding_window": True},
        (True, False),
    ),
    "convolutions": ({"dflash_config": heads.CONVOLUTIONS}, (False, False)),
    "selector": ({"is_causal": True, "dflash_config": heads.SELECTOR}, (True, True)),
}
EVERY = 10**6
WINDOWS = {"sliding": (20, EVERY)}


class BlockPair(HeadPair):
    """A random target and a random block head."""

    share, sections = 1.0, ()

    def __init__(self, family, folder, kind="both ways"):
        self.kind, self.causal, self.windows = (
            QwenKind(family, tied=False),
            KINDS[kind][1],
            WINDOWS.get(kind, (EVERY,) * 2),
        )
        target = adapter(self.kind)
        given = {
            "second": kind == "convolutions",
            "vocabulary": (kind == "selector") * len(target.model.lm_head.weight),
        }
        self.weights = heads.tensors(**given)
        heads.save(folder, heads.config(self.kind, **KINDS[kind][0]), self.weights)
        super().__init__("dflash", target, dflash.load_block_head(str(folder), target, PLACE))
        target.eos = frozenset()

    def expected(self, text, kept=None):
        """Logits of the drafted rows of a block behind a clip's prompt and ``text``, and their states."""
        logits, states = self.block(text, kept)
        return logits[self.head.first :], states[self.head.first :]

    def block(self, text, kept=None):
        """The same of all rows."""
        target, generate = self.target, profiles.load("dflash", env={}).generate
        prefix = target.prefix(target.encode(target.preprocess(clip(0))), generate.prompt, generate.system)
        behind = torch.tensor(text[:-1], dtype=torch.long)
        after = prefix.next_position + torch.arange(len(behind))
        whole = HeadRows(
            torch.cat([prefix.embeds, target.embed(behind)[None]], dim=1),
            torch.cat([prefix.positions, after.expand(len(prefix.positions), 1, -1)], dim=-1),
        )
        watch = Taps(rows=torch.arange(1), visual=prefix.visual.index, hidden=range(LAYERS + 1))
        Engine(target).prefill(_Shown(whole, prefix), room=1, taps=watch)
        rows = torch.cat([prefix.rows_kept(kept), torch.arange(prefix.length, whole.length)])
        states = torch.cat([watch.states[block + 1] for block in heads.TAPS], dim=1)
        judge = target.model.lm_head.weight.detach()[: target.vocabulary]
        table = target.language.embed_tokens.weight.detach()
        places, start = rows, whole.length
        if self.sections:
            places, start = whole.positions[:, 0, rows], prefix.next_position + len(behind)
        options = {"causal": self.causal, "windows": self.windows, "share": self.share, "sections": self.sections}
        return heads.logits(self.weights, judge, table, states[rows], places, text[-1], start, **options)


class _Shown:
    """A prompt with the visual tokens of another that it begins with."""

    def __init__(self, fed, prefix):
        self.embeds, self.positions, self.length = fed.embeds, fed.positions, fed.length
        self.visual, self.bidirectional = prefix.visual, prefix.bidirectional
        self.next_position = fed.length


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made = {}

    def pair(family=QWEN25, kind="both ways"):
        if (family, kind) not in made:
            made[family, kind] = BlockPair(family, tmp_path_factory.mktemp("head"), kind)
        return made[family, kind]

    return pair


def watched(monkeypatch, change=lambda emitted, tokens: tokens):
    """Windows in their order: what had been emitted, what the head drafted; the target gets what ``change`` says."""
    rounds, emitted = [], []
    begin, propose, read = BlockDrafter.begin, BlockDrafter.propose, BlockDrafter.read

    def begins(self, token):
        emitted[:] = [token]
        begin(self, token)

    def proposes(self, gamma):
        draft = yield from propose(self, gamma)
        rounds.append((list(emitted), draft.tokens))
        self._draft = Draft.chain(change(list(emitted), draft.tokens), draft.probs)
        return self._draft

    def reads(self, tokens, passed):
        emitted.extend(tokens)
        read(self, tokens, passed)

    monkeypatch.setattr(BlockDrafter, "begin", begins)
    monkeypatch.setattr(BlockDrafter, "propose", proposes)
    monkeypatch.setattr(BlockDrafter, "read", reads)
    return rounds


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("family", "kind", "visual"),
    full_but(
        [
            (QWEN25, "both ways", "pruned"),
            (QWEN25, "causal", "none"),
            (QWEN25, "sliding", "all"),
            (QWEN25, "convolutions", "all"),
            (QWEN25, "selector", "none"),
        ],
        in_turn([(*one, visual) for one in product((QWEN25, QWEN3), KINDS) for visual in ("all", "none", "pruned")], 2),
    ),
)
def test_a_head_drafts_what_a_plain_pass_over_all_context_gives(pairs, monkeypatch, family, kind, visual):
    """Behind every outcome of a window: nothing, some or all of it accepted."""
    pair = pairs(family, kind)
    plain = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    rounds = watched(monkeypatch, right_for_a_while(plain))
    settings = {"draft.options.visual": "none"} if visual == "none" else {}
    settings |= {"prune.method": "uniform", "prune.alpha": 0.5} if visual == "pruned" else {}
    events = list(pair.captioner(**settings).stream("", clip=clip(0)))
    assert list(events[-1].caption.token_ids) == plain
    origins = {origin for event in events if isinstance(event, Round) for origin in event.origins}
    assert "block" in origins and "draft" not in origins
    kept = torch.tensor(next(event for event in events if isinstance(event, Prefilled)).kept, dtype=torch.long)
    assert len(kept) == {"all": 45, "none": 0, "pruned": 22}[visual]
    lengths = [len(emitted) for emitted, _ in rounds]
    assert {after - before - 1 for before, after in pairwise(lengths)} == set(range(GAMMA + 1))
    for emitted, tokens in (round for round in rounds if round[1]):
        logits, states = (part[: len(tokens)] for part in pair.expected(emitted, kept))
        if kind == "selector":
            assert list(tokens) == heads.path(pair.weights, logits, states, emitted[-1])
            continue
        best = logits.topk(2)
        assert float((best.values[:, 0] - best.values[:, 1]).min()) > 1e-5
        assert list(tokens) == best.indices[:, 0].tolist()


def test_a_head_whose_positions_are_off_by_one_is_found(pairs, monkeypatch):
    """By the test above: texts stay those of plain decoding."""
    make = BlockDrafter.__init__

    def makes(self, engine, span, *rest, **more):
        span.offset += 1
        make(self, engine, span, *rest, **more)

    monkeypatch.setattr(BlockDrafter, "__init__", makes)
    with pytest.raises(AssertionError, match="=="):
        test_a_head_drafts_what_a_plain_pass_over_all_context_gives(pairs, monkeypatch, QWEN25, "causal", "none")


@pytest.mark.parametrize("family", full_but([QWEN25], [QWEN25, QWEN3]))
def test_texts_are_those_of_plain_decoding(pairs, family):
    pair = pairs(family)
    plain = pair.texts(pair.captioner("ar"), 1)
    assert len(plain) == 4 and len(set(map(tuple, plain.values()))) > 1
    for batch in (1, 4):
        assert pair.texts(pair.captioner(), batch) == plain
    assert pair.texts(pair.captioner(**{"draft.gamma": "auto"}), 16) == plain
    drawn = {"generate.temperature": 0.7, "generate.seed": 5, "draft.gamma": "auto"}
    assert pair.captioner(**drawn).client.profile.token_for_token
    expected = pair.texts(pair.captioner("ar", **{**drawn, "draft.gamma": 5}), 1)
    assert expected != plain and pair.texts(pair.captioner(**drawn), 4) == expected


@pytest.mark.parametrize("kind", full_but(["selector"], ["both ways", "causal", "selector"]))
def test_texts_of_trees_from_one_block_are_those_of_plain_decoding(pairs, monkeypatch, kind):
    """Greedy and drawn; under penalties chains are drafted."""
    pair, drafted = pairs(QWEN25, kind), []
    read = BlockDrafter.read

    def reads(drafter, tokens, passed):
        drafted.append(drafter._draft)
        read(drafter, tokens, passed)

    monkeypatch.setattr(BlockDrafter, "read", reads)
    grown = {"draft.gamma": "auto", "draft.topology": "adaptive"}
    for settings in ({}, {"generate.temperature": 0.7, "generate.seed": 5}, {"generate.repetition_penalty": 1.3}):
        plain = pair.texts(pair.captioner("ar", **settings), 1)
        drafted.clear()
        for batch in (1, 4, 16):
            captioner = pair.captioner(**settings, **grown)
            assert captioner.client.profile.token_for_token
            assert pair.texts(captioner, batch) == plain
        assert any(not draft.is_chain for draft in drafted) != ("generate.repetition_penalty" in settings)


def test_a_tree_from_one_block_is_accepted_where_its_chain_is_not(pairs, monkeypatch):
    """The second-likeliest token of the first position is the target's: the chain would have been rejected at once."""
    pair = pairs(QWEN25, "both ways")
    plain, seen = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids), [0]
    read = BlockDrafter.read

    def trees(self, successors, positions):
        return [BlockNode(-1, 0, *successors(0, 0)[one]) for one in (1, 0)]

    def runs(self):
        passed = yield from run(self)
        first = self.engine.model.first
        _, shares = passed.top[first]
        passed.top = [
            *passed.top[:first],
            ([plain[seen[0] + 1], plain[seen[0]] + 1], shares[:2]),
            *passed.top[first + 1 :],
        ]
        return passed

    def reads(self, tokens, passed):
        if self._draft.tokens:
            assert passed.path == (1,) and len(self._draft.tokens) == 2
        seen[0] += len(tokens)
        read(self, tokens, passed)

    run = BlockDrafter._run
    monkeypatch.setattr(BlockDrafter, "_run", runs)
    monkeypatch.setattr(BlockDrafter, "read", reads)
    monkeypatch.setattr(BlockController, "tree", trees)
    monkeypatch.setattr(BlockController, "rest", lambda self: False)
    caption = pair.captioner(**{"draft.gamma": "auto", "draft.topology": "adaptive"}).caption("", clip=clip(0))
    assert list(caption.token_ids) == plain and set(caption.counters["accepted_lengths"]) <= {0, 1}
    assert caption.counters["accepted"] > 3


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("profile", full_but(["sparrow"], ["sparrow", "dflash", "dflash-specvlm", "hybrid-sparrow"]))
def test_texts_of_a_built_in_pair_are_those_of_plain_decoding(profile):
    """With the head that comes with it, which is right now and then."""
    pair = BuiltInPair("embedded-qwen")
    head = dflash.load_block_head(str(loading.embedded_folder(pair.name, "block_head")), pair.target, PLACE)
    plain = pair.texts(pair.captioner("ar"), 1)[0]
    for batch in (1, 4, 16):
        captioner = pair.captioner(profile, head=head)
        texts, captions = pair.texts(captioner, batch)
        assert texts == plain
    assert sum(caption.counters["accepted"] for caption in captions) > 0


@pytest.mark.parametrize("topology", ["chain", "tree"])
def test_behind_a_window_that_lookup_continues_a_head_drafts_the_same(pairs, monkeypatch, topology):
    """Also behind branches beside its own tokens; lookup knows half of the text, and is wrong after it."""
    pair = pairs(QWEN25, "causal")
    plain = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    rounds = watched(monkeypatch, right_for_a_while(plain))
    settings = {"draft.gamma": "auto", "draft.topology": topology, "draft.options.window": 2}
    captioner = pair.captioner("hybrid-dflash", **settings)
    caption = knows(captioner, plain[4:20], plain[22:25]).caption("", clip=clip(0))
    assert list(caption.token_ids) == plain
    assert max(caption.counters["accepted_lengths"]) > 2 and len(rounds) > 4
    for emitted, tokens in (round for round in rounds if round[1]):
        logits, _ = pair.expected(emitted)
        best = logits[: len(tokens)].topk(2)
        assert float((best.values[:, 0] - best.values[:, 1]).min()) > 1e-5
        assert list(tokens) == best.indices[:, 0].tolist()


@pytest.mark.parametrize("settings", [{}, {"draft.topology": "tree"}, {"draft.options.window": 3}], ids=str)
def test_texts_of_a_head_beside_lookup_are_those_of_plain_decoding(pairs, settings):
    pair = pairs(QWEN25)
    plain = pair.texts(pair.captioner("ar"), 1)
    for batch in (1, 4, 16):
        captioner = pair.captioner("hybrid-dflash", **{"draft.gamma": "auto", **settings})
        assert pair.texts(knows(captioner, *(text[5:] for text in plain.values())), batch) == plain


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", ["both ways", "causal", "convolutions", "selector"])
def test_replayed_passes_draft_the_same(pairs, monkeypatch, kind):
    """As a GPU replays them, with what stands for its attention kernel; context is appended before."""
    pair = pairs(QWEN25, kind)
    decoder, found = pair.head.decoder, []
    plain = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    for graphs in (None, ReplayedPasses(decoder, standin.attention)):
        monkeypatch.setattr(decoder, "graphs", graphs)
        with monkeypatch.context() as inner:
            rounds = watched(inner, right_for_a_while(plain))
            found.append((pair.captioner().caption("", clip=clip(0)).token_ids, rounds))
        assert decoder.graphs is graphs
    assert found[0] == found[1] and decoder.graphs.captured


@pytest.mark.full
def test_a_head_follows_penalties_position_by_position(pairs, monkeypatch):
    """It drafts no token twice where none may occur twice, and its texts are those of plain decoding, drawn or not."""
    pair, once = pairs(), {"generate.no_repeat_ngram": 1}
    plain = pair.texts(pair.captioner("ar", **once), 1)
    assert plain != pair.texts(pair.captioner("ar"), 1)
    assert pair.texts(pair.captioner(**once), 4) == plain
    for settings in (once, {}):
        rounds = watched(monkeypatch, right_for_a_while(list(plain["0"])))
        pair.captioner(**settings).caption("", clip=clip(0))
        twice = [len({*emitted, *tokens}) < len({*emitted}) + len(tokens) for emitted, tokens in rounds]
        assert any(tokens for _, tokens in rounds) and any(twice) == (not settings)
        monkeypatch.undo()
    drawn = pair.captioner(**once, **{"generate.temperature": 0.9}).caption("", clip=clip(0)).token_ids
    assert len({*drawn}) == len(drawn)


def test_json_by_schema_is_that_of_plain_decoding(pairs, monkeypatch):
    pair, schema = pairs(), {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema |= {"additionalProperties": False}
    ends = pair.target.tokenizer.convert_tokens_to_ids("<|im_end|>")
    monkeypatch.setattr(pair.target, "eos", frozenset([ends]))
    settings = {"generate.json_schema": json.dumps(schema)}
    plain = pair.captioner("ar", **settings).caption("", clip=clip(0))
    jsonschema.validate(plain.data, schema)
    rounds = watched(monkeypatch)
    for options in ({}, {"draft.gamma": "auto"}):
        assert pair.captioner(**settings, **options).caption("", clip=clip(0)).token_ids == plain.token_ids
    assert any(len(tokens) > 1 for _, tokens in rounds)


class TappedTable(ToyEngine):
    """A target whose passes return states."""

    def _passed(self, rows):
        return replace(ToyEngine._passed(self, rows), tapped=torch.zeros(len(rows), 1))


class ToyBlocks(ToyEngine):
    """A block head that is a table of the last token and the position, with a selector if it has ``candidates``."""

    def __init__(self, table, candidates=0):
        super().__init__(table)
        pairs = random_table(13, 4, 1.0)
        scores = lambda before, ids, _: torch.stack(  # noqa: E731
            [torch.stack([pairs((b,))[row] for b in some.tolist()]) for some, row in zip(before, ids, strict=True)]
        )
        decoder = SimpleNamespace(graphs=None, pair_scores=scores)
        given = {"name": "toy", "size": 4, "first": 1, "most": 3, "mask": 9, "blocks": (1,), "whole": True}
        given |= {"candidates": candidates, "in_turn": candidates > 0, "markov": False, "recurrent": False}
        given |= {"confident": False}
        vars(self.model).update(given, decoder=decoder)

    def _passed(self, rows):
        last, *masked = rows.token_ids
        assert masked == [9] * 3 and rows.context.row_count >= 1 - (not rows.span.length)
        rows.span.tokens += [*["read"] * rows.context.row_count, *rows.token_ids]
        rows.span.places += range(rows.context.row_count + 4)
        logits = torch.stack([self.tables[0]((last, place)) for place in range(4)])
        return PassResult(logits, logits)


@pytest.mark.full
@pytest.mark.parametrize(("penalised", "candidates"), [(False, 0), (True, 0), (False, 2), (True, 2)])
def test_drawn_texts_have_the_targets_distribution(penalised, candidates):
    """By rejection sampling with the distribution of each position, whatever drafts; wrong ones would show."""
    sampling, rng = Sampling(0.8, 0.9), torch.Generator().manual_seed(6)
    target, draft = random_table(11, 4, 1.2), random_table(12, 4, 1.5)
    limits, texts = StoppingRules(4, frozenset({3})), []
    for _ in range(800):
        engine = ToyBlocks(draft, candidates)
        drafter = BlockDrafter(engine, engine.open(), sampling, rng)
        history = PenaltyHistory(Penalties(1.3), [1]) if penalised else None
        drawn = {"sampling": sampling, "rule": ExactRule(), "rng": rng, "history": history}
        one = on_tables(shifted(target), limits, draft=drafter, gamma=2, **drawn)
        one.target.engine.__class__, one.target.tapped = TappedTable, (1,)
        first, *text = [token for step in rounds_of(sequential, one) for token in step.token_ids]
        assert first == 0
        texts.append(tuple(text))
    change = (lambda prefix: _penalised(target(prefix), [1, 0, *prefix])) if penalised else target
    exact = exact_distribution(change, sampling, StoppingRules(3, limits.eos))
    assert p_value(texts, exact) > SIGNIFICANCE


def _penalised(logits, seen):
    changed = logits.clone()
    for token in set(seen):
        changed[token] = logits[token] / 1.3 if logits[token] > 0 else logits[token] * 1.3
    return changed


def test_no_clip_moves_a_heads_weights(pairs):
    """Captured passes keep their addresses; keys and values of all blocks are one weight besides."""
    pair = pairs()
    decoder = pair.head.decoder
    places = {name: tensor.data_ptr() for name, tensor in decoder.tensors.items()}
    pair.captioner("dflash").caption("", clip=clip(0))
    assert {name: tensor.data_ptr() for name, tensor in decoder.tensors.items()} == places
    weight = decoder._context_weights[0]
    keys = [decoder.tensors[f"layers.{index}.self_attn.k_proj.weight"] for index in range(decoder.depth)]
    assert {key.untyped_storage().data_ptr() for key in keys} == {weight.data_ptr()}


def test_a_useless_head_rests(pairs):
    """Few blocks are drafted in a long text of which none is accepted."""
    pair = pairs()
    long = {"draft.gamma": "auto", "generate.max_new_tokens": 120}
    caption = pair.captioner(**long).caption("", clip=clip(0))
    assert len(caption.token_ids) == 120 and caption.counters["draft_forwards"] < 20
    assert caption.counters["accepted"] < 20


def test_a_head_without_a_token_worth_its_row_rests(pairs, monkeypatch):
    monkeypatch.setattr(BlockController, "window", lambda self, probabilities: 0)
    long = {"draft.gamma": "auto", "generate.max_new_tokens": 120}
    caption = pairs().captioner(**long).caption("", clip=clip(0))
    assert len(caption.token_ids) == 120 and caption.counters["draft_forwards"] < 20


def test_the_cache_holds_rows_of_the_text_alone_without_visual_tokens(pairs, monkeypatch):
    """An entry for each row of the target but the visual ones, whose states are not kept either."""
    pair, lengths, states = pairs(), [], []
    joined = Taps.joined_states
    monkeypatch.setattr(
        Taps, "joined_states", lambda self, *asked: (states.append(len(self.states[1])), joined(self, *asked))[1]
    )
    read = BlockDrafter.read

    def reads(self, tokens, passed):
        lengths.append(self.span.length)
        read(self, tokens, passed)

    monkeypatch.setattr(BlockDrafter, "read", reads)
    visual = {}
    for option in ("all", "none"):
        lengths.clear()
        pair.captioner(**{"draft.options.visual": option}).caption("", clip=clip(0))
        assert all(0 <= after - before <= GAMMA + 1 for before, after in pairwise(lengths))
        visual[option] = lengths[0]
    assert visual["all"] - visual["none"] == states[0] - states[1] == 45


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"models.draft": None},
            "models.draft: is needed, since this profile drafts with a head of its own; nearest valid choice: name the",
        ),
        ({"schedule.kind": "parallel"}, "dflash needs more of the target than token ids"),
        ({"draft.topology": "tree", "draft.gamma": 5}, "the tree of a block grows by the probabilities"),
        ({"draft.options.visual": "none", "prune.method": "uniform", "prune.alpha": 0.5}, "dflash chooses itself"),
    ],
)
def test_what_does_not_go_together(settings, message):
    with pytest.raises(ProfileError, match=message):
        profiles.load("dflash", {"models.target": "target", "models.draft": "head", **settings}, env={})


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"dflash_config": {"selector_rank": 8}}, None, "its selector has no selector_top_k"),
        ({"dflash_config": heads.SELECTOR}, None, "candidate_selector.hidden_projection.weight is not in its files"),
        ({"dflash_config": heads.CONVOLUTIONS}, None, "layers.0.attention_conv.base_kernel is not in its files"),
        ({"dflash_config": {"conv_kernel_size": 2, "conv_group_size": 24}}, None, "conv_group_size 24 does not divide"),
        ({"dflash_config": {"mask_token_id": 10**6}}, None, "its mask token 1000000 is not one of"),
        ({"dflash_config": {"mask_token_id": None}}, None, r"its mask token <\|MASK\|> is not one of"),
        ({"dflash_config": {"target_layer_ids": [0, 2, 4]}}, None, "reads states of block 4 of a target that has 4"),
        ({"hidden_size": 32}, None, "is 32 wide, and .* is 64 wide"),
        ({"vocab_size": 100}, None, "was made for a vocabulary of 100"),
        ({"num_key_value_heads": 4}, None, r"k_proj.weight has the shape \(48, 64\), and its config says \(96, 64\)"),
        ({}, lambda w: w.pop("fc.weight"), "fc.weight is not in its files"),
        ({}, lambda w: w.update({"fc.scale": torch.ones(1)}), "has the tensor fc.scale, which is not known"),
    ],
)
def test_heads_that_are_refused(pairs, tmp_path, settings, change, message):
    pair, weights = pairs(), heads.tensors()
    if change is not None:
        change(weights)
    folder = heads.save(tmp_path, heads.config(pair.kind, **settings), weights)
    with pytest.raises(ModelError, match=message):
        dflash.load_block_head(str(folder), pair.target, PLACE)


def test_keys_that_are_not_read_are_told_in_one_note(pairs, tmp_path):
    pair = pairs()
    settings = heads.config(pair.kind, sink_bias=1, dflash_config={"fc_layernorm": True, "gate": False})
    head = dflash.load_block_head(str(heads.save(tmp_path, settings, heads.tensors())), pair.target, PLACE)
    assert head.notes == (f"{tmp_path}: keys of its config that are not read: fc_layernorm, sink_bias",)


@pytest.mark.full
def test_other_places_of_keys_are_the_same_head(pairs, tmp_path):
    """Keys at the top level, names with ``model.``, a mask token by its text, matrices as codes with scales."""
    pair = pairs()
    plain = pair.captioner().caption("", clip=clip(0))
    settings = heads.config(pair.kind)
    own = settings.pop("dflash_config")
    token = pair.target.tokenizer.convert_ids_to_tokens(heads.MASK)
    top = settings | {"target_layer_ids": own["target_layer_ids"], "mask_token_id": heads.MASK}
    text = settings | {"dflash_config": {"target_layer_ids": own["target_layer_ids"], "mask_token": token}}
    named = {f"model.{key}": value for key, value in heads.tensors().items()}
    quantised = {}
    for key, value in heads.tensors().items():
        quantised[key] = value
        if value.dim() == 2:
            scale = value.abs().amax(1, keepdim=True) / 127
            quantised |= {key: (value / scale).round().to(torch.int8), f"{key}_scale": scale}
    args = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    codes = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"0": {"weights": args}}}
    nested = settings | {"dflash_config": own}
    layouts = {
        "top": (top, heads.tensors()),
        "text": (text, heads.tensors()),
        "named": (nested, named),
        "int8": (nested | {"quantization_config": codes}, quantised),
    }
    for name, (given, tensors) in layouts.items():
        head = dflash.load_block_head(str(heads.save(tmp_path / name, given, tensors)), pair.target, PLACE)
        for key, tensor in head.decoder.tensors.items():
            torch.testing.assert_close(tensor, pair.head.decoder.tensors[key], rtol=0, atol=0.02 * (name == "int8"))
        other = pair.captioner(head=head).caption("", clip=clip(0))
        assert name == "int8" or other.counters["accepted_lengths"] == plain.counters["accepted_lengths"]


def test_factors_change_embeddings_and_logits(pairs, tmp_path):
    pair = pairs()
    own = {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    folder = heads.save(tmp_path, heads.config(pair.kind, dflash_config=own), pair.weights)
    head, ids, hidden = dflash.load_block_head(str(folder), pair.target, PLACE), torch.arange(4), torch.randn(3, 64)
    assert torch.equal(head.decoder.embed(ids), 2 * pair.head.decoder.embed(ids))
    expected = 3 * torch.tanh(pair.head.decoder.logits(hidden) * 0.5 / 3)
    torch.testing.assert_close(head.decoder.logits(hidden), expected)


def test_the_config_of_a_published_head_of_the_second_version():
    """Its numbers stand in ``dflash_config``, and its windows count without ``use_sliding_window``."""
    own = {"block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
    own |= {"target_layer_ids": [5, 19, 33, 47, 61], "mask_token_id": 248070}
    given = {
        "architectures": ["DFlash2DraftModel"],
        "dtype": "bfloat16",
        "is_causal": False,
        "hidden_size": 5120,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "rope_parameters": {"rope_theta": 10_000_000, "rope_type": "default"},
        "dflash_config": own,
    }
    config, settings = dflash_checkpoint.block_config("head", given)
    assert (settings.size, settings.kernel, settings.kernel_group) == (8, 2, 16)
    assert (settings.rank, settings.candidates, settings.mask, settings.notes) == (256, 16, 248070, ())
    assert settings.both_ways == {0, 1, 2, 3, 4} and sliding_windows(config) == (2048,) * 5


def test_the_blocks_that_are_read_if_the_config_names_none(pairs):
    kind = pairs().kind
    settings = heads.config(kind, num_hidden_layers=5, num_target_layers=36)
    del settings["dflash_config"]["target_layer_ids"]
    assert dflash_checkpoint.block_config("head", settings)[1].taps == (1, 9, 17, 25, 33)
