"""Heads beside small random targets: what they draft whatever was accepted, and texts of plain decoding."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.checkpoints import checkpoint
from tests.checkpoints import eagle3 as heads
from tests.checkpoints import mtp as mtp_layers
from tests.checkpoints.mtp import FAMILY as HYBRID
from tests.checkpoints.qwen import LAYERS, QWEN3, QWEN25, QwenKind, adapter
from tests.engine import standin
from tests.ready_clips import serve_captions
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.drafting.base import NO_DRAFT
from vidspec.drafting.drafters.hybrid import HybridDrafter
from vidspec.drafting.tree import HeadChain, HeadTree
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError, ProfileError
from vidspec.events.events import Prefilled
from vidspec.models import eagle3, loading, mtp
from vidspec.models.head import HeadRows
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest
from vidspec.video import Clip, SourceFacts

GAMMA, TOKENS = 4, 30
PLACE = resolve_placement("cpu", "float32")
FACTS = SourceFacts("", 4.0, 40, 24, "none", "none", 1.0, False, 0, 6, "none")


def clip(seed):
    frames = np.random.default_rng(seed).integers(0, 255, (6, 24, 40, 3), dtype=np.uint8)
    return Clip(frames, np.arange(6) * 0.7, FACTS)


class HeadPair:
    """A target and a head of it, by the profile that drafts with such heads."""

    def __init__(self, profile, target, head):
        self.profile, self.target, self.head = profile, target, head

    def captioner(self, name=None, head=None, **settings):
        name = name or self.profile
        same = {"models.target": "target", "models.draft": self.head.name, "generate.max_new_tokens": TOKENS}
        same |= {} if name == "ar" else {"draft.gamma": GAMMA}
        profile = profiles.load(name, {**same, **settings}, env={})
        return Captioner(profile, self.target, None, head=None if name == "ar" else head or self.head)

    def texts(self, captioner, batch, count=4):
        requests = [CaptionRequest(str(seed), clip(seed), key=str(seed)) for seed in range(count)]
        return {key: caption.token_ids for key, caption in serve_captions(captioner, requests, batch).items()}


class Drawn(HeadPair):
    """The same of a random target."""

    def __init__(self, family, folder):
        self.kind = QwenKind(family, tied=False)
        if family == HYBRID:
            self.weights = mtp_layers.tensors(self.kind)
            target = loading.load_model(str(mtp_layers.save(self.kind, folder, self.weights)), PLACE)
            super().__init__("mtp", target, mtp.load_mtp(target))
        else:
            target, self.weights = adapter(self.kind), heads.tensors(self.kind)
            heads.save(folder, heads.config(self.kind), self.weights)
            super().__init__("eagle3", target, eagle3.load_eagle3(str(folder), target, PLACE))
        target.eos = frozenset()

    def expected(self, text, count, kept=None, axis=None, one_axis=False, **options):
        """Return the head's draft behind a clip's prompt and ``text``, and the least distance of its choices."""
        target, generate = self.target, profiles.load("eagle3", env={}).generate
        prefix = target.prefix(target.encode(target.preprocess(clip(0))), generate.prompt, generate.system)
        behind = torch.tensor(text[:-1], dtype=torch.long)
        after = prefix.next_position + torch.arange(len(behind))
        whole = HeadRows(
            torch.cat([prefix.embeds, target.embed(behind)[None]], dim=1),
            torch.cat([prefix.positions, after.expand(3, 1, -1)], dim=-1),
        )
        watch = Taps(rows=torch.arange(1), visual=prefix.visual.index, hidden=range(LAYERS + 1))
        # Deepstack features are added to the rows they belong to.
        Engine(target).prefill(_Shown(whole, prefix), room=1, taps=watch)
        places = torch.arange(len(whole.positions[0, 0]))[None] if one_axis else whole.positions[:, 0]
        rows = (
            torch.arange(whole.length)
            if kept is None
            else torch.cat([prefix.rows_kept(kept), torch.arange(prefix.length, whole.length)])
        )
        table = target.embed(torch.arange(target.vocabulary))
        pairs = [table, torch.cat([whole.embeds[0, rows[1:]], table[text[-1:]]])]
        if self.profile == "mtp":
            states = mtp_layers.normed(watch.states[LAYERS], target.language.norm.weight.detach())
            judge = target.model.lm_head.weight.detach()[: target.vocabulary]
            return mtp_layers.drafts(self.weights, judge, *pairs, states[rows], places[:, rows], count)
        states = torch.cat([watch.states[block] for block in (1, 2, 3)], dim=1)
        axis = axis or heads.SECTIONS[self.kind.family][1]
        return heads.drafts(self.weights, axis, *pairs, states[rows], places[:, rows], count, **options)


class _Shown:
    """A prompt with the visual tokens of another that it begins with."""

    def __init__(self, fed, prefix):
        self.embeds, self.positions, self.length = fed.embeds, fed.positions, fed.length
        self.visual, self.bidirectional = prefix.visual, prefix.bidirectional
        self.next_position = fed.length


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    made = {}

    def pair(family):
        if family not in made:
            made[family] = Drawn(family, tmp_path_factory.mktemp(family))
        return made[family]

    return pair


def watched(monkeypatch, change=lambda chain, tokens: tokens):
    """Windows in their order: what had been emitted, what the head drafted; the target gets what ``change`` says."""
    rounds, emitted = [], []
    begin, propose, read = HeadChain.begin, HeadChain.propose, HeadChain.read

    def begins(self, token):
        emitted[:] = [token]
        begin(self, token)

    def proposes(self, gamma):
        draft = yield from propose(self, gamma)
        rounds.append((list(emitted), draft.tokens))
        self._draft = type(draft)(tuple(change(list(emitted), draft.tokens)), draft.parents)
        return self._draft

    def reads(self, tokens, passed):
        emitted.extend(tokens)
        read(self, tokens, passed)

    monkeypatch.setattr(HeadChain, "begin", begins)
    monkeypatch.setattr(HeadChain, "propose", proposes)
    monkeypatch.setattr(HeadChain, "read", reads)
    return rounds


def right_for_a_while(plain):
    """The first n (modulo its length and one) tokens of the n-th window are the target's, the others are not."""
    counter = iter(range(10**6))

    def change(emitted, tokens):
        right = next(counter) % (len(tokens) + 1)
        truth = [*plain, *[0] * len(tokens)][len(emitted) : len(emitted) + len(tokens)]
        wrong = [token + 1 if token == true else token for token, true in zip(tokens, truth, strict=True)]
        return [*truth[:right], *wrong[right:]]

    return change


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", full_but([HYBRID, QWEN25], [QWEN25, QWEN3, HYBRID]))
@pytest.mark.parametrize("visual", full_but(["pruned"], ["all", "none", "pruned"]))
def test_a_head_drafts_what_a_plain_pass_over_all_pairs_gives(pairs, monkeypatch, family, visual):
    """Behind every outcome of a window: nothing, some or all of it accepted."""
    pair = pairs(family)
    plain = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    rounds = watched(monkeypatch, right_for_a_while(plain))
    settings = {"draft.options.visual": "none"} if visual == "none" else {}
    settings |= {"prune.method": "uniform", "prune.alpha": 0.5} if visual == "pruned" else {}
    captioner = pair.captioner(**settings)
    events = list(captioner.stream("", clip=clip(0)))
    assert list(events[-1].caption.token_ids) == plain
    kept = torch.tensor(next(event for event in events if isinstance(event, Prefilled)).kept, dtype=torch.long)
    assert len(kept) == {"all": 45, "none": 0, "pruned": 22}[visual]
    lengths = [len(emitted) for emitted, _ in rounds]
    assert {after - before - 1 for before, after in pairwise(lengths)} == set(range(GAMMA + 1))
    for emitted, tokens in rounds:
        found, margin = pair.expected(emitted, len(tokens), kept)
        assert margin > 1e-4
        assert list(tokens) == found


def test_a_head_whose_positions_are_off_by_one_is_found(pairs, monkeypatch):
    """By the test above: texts stay those of plain decoding."""
    make = HeadTree.__init__

    def makes(self, engine, span, *rest):
        span.offset += 1
        make(self, engine, span, *rest)

    monkeypatch.setattr(HeadTree, "__init__", makes)
    with pytest.raises(AssertionError, match="=="):
        test_a_head_drafts_what_a_plain_pass_over_all_pairs_gives(pairs, monkeypatch, QWEN25, "pruned")


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("family", full_but([QWEN25], [QWEN25, QWEN3, HYBRID]))
def test_texts_are_those_of_plain_decoding(pairs, family):
    pair = pairs(family)
    plain = pair.texts(pair.captioner("ar"), 1)
    assert len(plain) == 4 and len(set(map(tuple, plain.values()))) > 1
    for batch in (1, 4):
        assert pair.texts(pair.captioner(), batch) == plain
    assert pair.texts(pair.captioner(**{"draft.gamma": "auto"}), 4) == plain
    for topology in ("tree", "adaptive") if family != HYBRID else ():
        for batch in (1, 16):
            assert pair.texts(pair.captioner(**{"draft.topology": topology}), batch) == plain
    hybrid = {"draft.kind": "hybrid", "draft.options.of": pair.profile, "draft.options.settings": {"visual": "none"}}
    assert pair.texts(pair.captioner(**hybrid), 4) == plain


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", [QWEN25, HYBRID])
def test_replayed_passes_draft_the_same(pairs, monkeypatch, family):
    """As a GPU replays them, with what stands for its attention kernel."""
    pair, decoder = pairs(family), pairs(family).head.decoder
    found = []
    for graphs in (None, ReplayedPasses(decoder, standin.attention)):
        monkeypatch.setattr(decoder, "graphs", graphs)
        with monkeypatch.context() as inner:
            rounds = watched(inner, right_for_a_while(list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)))
            found.append((pair.captioner().caption("", clip=clip(0)).token_ids, rounds))
        assert decoder.graphs is graphs
    assert found[0] == found[1] and decoder.graphs.captured


@pytest.mark.full
@pytest.mark.parametrize("name", ["embedded", "embedded-qwen"])
def test_texts_of_the_built_in_targets_are_those_of_plain_decoding(name, tmp_path, monkeypatch):
    """Also of one whose positions have one axis; and where some of every window is accepted."""
    target = loading.load_model(str(loading.embedded_folder(name, "target")), PLACE)
    hidden = target.embed(torch.zeros(1, dtype=torch.long)).shape[1]
    settings = heads.config(QwenKind(QWEN25), hidden_size=hidden, vocab_size=target.vocabulary)
    settings |= {"rope_scaling": None, "eagle_config": None}
    folder = heads.save(tmp_path, settings, heads.layout(hidden, target.vocabulary))
    pair = HeadPair("eagle3", target, eagle3.load_eagle3(str(folder), target, PLACE))
    assert pair.head.blocks == (2, 6, 9)
    plain = pair.texts(pair.captioner("ar"), 1)
    for batch in (1, 4):
        assert pair.texts(pair.captioner(), batch) == plain
    rounds = watched(monkeypatch, right_for_a_while(list(plain["0"])))
    assert pair.captioner().caption("", clip=clip(0)).token_ids == plain["0"]
    assert len(rounds) < len(plain["0"]) * 2 / 3


@pytest.mark.parametrize("family", full_but([QWEN25], [QWEN25, HYBRID]))
@pytest.mark.full
def test_drawn_texts_are_those_of_plain_decoding(pairs, family):
    pair = pairs(family)
    drawn = {"generate.temperature": 0.7, "generate.seed": 5}
    assert pair.captioner(**drawn).client.profile.token_for_token
    plain = pair.texts(pair.captioner("ar", **drawn), 1)
    assert plain != pair.texts(pair.captioner("ar"), 1)
    for batch in (1, 4):
        assert pair.texts(pair.captioner(**drawn), batch) == plain


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("family", full_but([QWEN25], [QWEN25, QWEN3, HYBRID]))
def test_a_head_follows_penalties(pairs, monkeypatch, family):
    """Also one whose vocabulary is its own: it drafts no token twice where none may occur twice."""
    pair = pairs(family)
    once = {"generate.no_repeat_ngram": 1}
    plain = pair.texts(pair.captioner("ar", **once), 1)
    assert plain != pair.texts(pair.captioner("ar"), 1)
    for batch in (1, 4):
        assert pair.texts(pair.captioner(**once), batch) == plain
    for settings in (once, {}):
        rounds = watched(monkeypatch, right_for_a_while(list(plain["0"])))
        pair.captioner(**settings).caption("", clip=clip(0))
        twice = [len({*emitted, *tokens}) < len({*emitted}) + len(tokens) for emitted, tokens in rounds]
        assert any(tokens for _, tokens in rounds) and any(twice) == (not settings)
        monkeypatch.undo()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", [QWEN25, HYBRID])
def test_the_record_names_the_head(pairs, family):
    pair = pairs(family)
    record = pair.captioner().caption("", clip=clip(0))
    assert record.models["draft"] == pair.head.name
    assert record.counters["draft_forwards"] > 0


def knows(captioner, *texts):
    """A hybrid's captioner, whose lookup remembers texts."""
    for text in texts:
        captioner.client.setup.drafter.lookup.memory.add(text)
    return captioner


@pytest.mark.parametrize("family", [QWEN25])
@pytest.mark.parametrize("topology", ["chain", "tree"])
def test_behind_a_window_that_lookup_continues_a_head_drafts_the_same(pairs, monkeypatch, family, topology):
    """Also behind branches beside its own tokens; lookup knows half of the text, and is wrong after it."""
    pair = pairs(family)
    plain = list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    rounds = watched(monkeypatch, right_for_a_while(plain))
    settings = {"draft.gamma": "auto", "draft.topology": topology, "draft.options.window": 2}
    captioner = pair.captioner(f"hybrid-{pair.profile}", **settings)
    caption = knows(captioner, plain[4:20], plain[22:25]).caption("", clip=clip(0))
    assert list(caption.token_ids) == plain
    assert max(caption.counters["accepted_lengths"]) > 2 and len(rounds) > 4
    for emitted, tokens in rounds:
        found, margin = pair.expected(emitted, len(tokens))
        assert margin > 1e-4 and list(tokens) == found


@pytest.mark.full
def test_beside_what_is_looked_up_a_head_hears_of_every_token(pairs, monkeypatch):
    """Its drafts behind another drafter's windows are those it would make had it followed from the first token on."""
    pair = pairs(QWEN25)
    monkeypatch.setattr(HybridDrafter, "propose", in_turns)
    rounds = watched(monkeypatch)
    settings = {"draft.kind": "hybrid", "draft.options.of": pair.profile, "draft.options.least": 1}
    record = pair.captioner(**settings).caption("", clip=clip(0))
    assert list(record.token_ids) == list(pair.captioner("ar").caption("", clip=clip(0)).token_ids)
    skipped = [len(after) - len(before) for (before, _), (after, _) in pairwise(rounds)]
    assert len(rounds) > 4 and max(skipped) > 1
    for emitted, tokens in rounds:
        found, _ = pair.expected(emitted, len(tokens))
        assert list(tokens) == found


def in_turns(self, gamma):
    """Two windows of what is looked up, of tokens that the target takes or not, then one of the model."""
    self.turn = getattr(self, "turn", 0) + 1
    self._drafted, self._looked_up = NO_DRAFT, []
    found = self.lookup.proposal(gamma)
    if found.tokens and self.turn % 3:
        return self._add(NO_DRAFT, found, -1)
    self._drafted = yield from self.model.propose(min(gamma, GAMMA))
    return self._drafted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"models.draft": None},
            "models.draft: is needed, since this profile drafts with a head of its own; nearest valid choice: name the",
        ),
        ({"schedule.kind": "parallel"}, "eagle3 needs more of the target than token ids"),
        ({"draft.options.visual": "some"}, r"draft.options.visual: .*'all' or 'none'"),
        ({"draft.options.visual": "none", "prune.method": "uniform", "prune.alpha": 0.5}, "eagle3 chooses itself"),
    ],
)
def test_what_does_not_go_together(settings, message):
    with pytest.raises(ProfileError, match=message):
        profiles.load("eagle3", {"models.target": "target", "models.draft": "head", **settings}, env={})


@pytest.mark.full
def test_heads_and_models_are_not_taken_for_each_other(pairs):
    pair, model = pairs(QWEN25), checkpoint(QWEN25)
    with pytest.raises(ModelError, match=r"is a head of another model \(EAGLE-3\), not a model"):
        loading.load_model(pair.head.name, PLACE, text=True)
    with pytest.raises(ModelError, match=r"is not an EAGLE-3 head: fc\.weight is not in its files"):
        eagle3.load_eagle3(str(model), pair.target, PLACE)
    with pytest.raises(ModelError, match=r"draft\.kind eagle3 needs a head of .*, which has none here"):
        Captioner(profiles.load("eagle3", env={}), pair.target, None)
    with pytest.raises(ModelError, match=r"^embedded/target: has no MTP layer: no tensor's name begins with mtp\."):
        Captioner.from_profile("mtp")


@pytest.mark.full
@pytest.mark.parametrize("family", full_but([HYBRID], [QWEN25, HYBRID]))
def test_a_profile_loads_its_head(pairs, family):
    """By folders, as the command line names them; a layer lies in its target's."""
    pair = pairs(family)
    named = {"models.target": pair.head.name, "generate.max_new_tokens": 8}
    if family == QWEN25:
        model = checkpoint(QWEN25, tied=False)
        named |= {"models.target": str(model), "models.draft": pair.head.name}
    with Captioner.from_profile(profiles.load(pair.profile, named, env={})) as captioner:
        captioner.client.warm_up()
        record = captioner.caption("", clip=clip(0))
        assert record.token_ids == captioner.caption("", clip=clip(0), plain=True).token_ids
    assert record.models["draft"] == pair.head.name
    assert record.counters["draft_forwards"] > 0


@pytest.mark.full
def test_a_head_with_one_axis_counts_the_tokens_of_the_prompt(pairs, monkeypatch, tmp_path):
    pair = pairs(QWEN3)
    folder = heads.save(tmp_path, heads.config(pair.kind, rope_scaling=None, norm_before_residual=True), pair.weights)
    rounds = watched(monkeypatch)
    pair.captioner(head=eagle3.load_eagle3(str(folder), pair.target, PLACE)).caption("", clip=clip(0))
    for emitted, tokens in rounds[:5]:
        found, _ = pair.expected(emitted, len(tokens), axis=[0] * (heads.WIDTH // 2), one_axis=True, norm_first=True)
        assert list(tokens) == found


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("norms", ["norm_before_fc", "fc_norm"])
def test_a_head_with_further_norms(pairs, monkeypatch, tmp_path, norms):
    """EAGLE-3.1: norms before ``fc``, and the state after the last norm for the next step."""
    pair, rng = pairs(QWEN3), torch.Generator().manual_seed(5)
    width = pair.weights["fc.weight"].shape[1]
    named = {"input_norm": width} if norms == "norm_before_fc" else {f"fc_norm.{at}": width // 3 for at in range(3)}
    more = {f"{name}.weight": 1 + torch.rand(size, generator=rng) for name, size in named.items()}
    monkeypatch.setattr(pair, "weights", pair.weights | more)
    folder = heads.save(tmp_path, heads.config(pair.kind, norm_output=True, **{norms: True}), pair.weights)
    rounds = watched(monkeypatch)
    pair.captioner(head=eagle3.load_eagle3(str(folder), pair.target, PLACE)).caption("", clip=clip(0))
    for emitted, tokens in rounds[:5]:
        assert list(tokens) == pair.expected(emitted, len(tokens), norm_output=True)[0]


@pytest.mark.parametrize("family", full_but([QWEN3], [QWEN3, HYBRID]))
@pytest.mark.full
def test_several_questions_about_a_clip(pairs, family):
    """Heads look at the target's prefill, which reads the whole prompt of each."""
    pair, questions = pairs(family), ("What is there?", "What moves?")
    fast, plain = pair.captioner(), pair.captioner("ar")
    dialogue = fast.dialogue("0", clip=clip(0))
    for question in questions:
        said = dialogue.exchanges
        answer = dialogue.ask(question)
        assert answer.token_ids == plain.caption("0", clip=clip(0), prompt=question, earlier=said).token_ids
        assert (answer.question["reused"], answer.question["reused_by_draft"]) == (0, None)
    together = fast.captions("0", questions, clip=clip(0))
    alone = [plain.caption("0", clip=clip(0), prompt=question) for question in questions]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
