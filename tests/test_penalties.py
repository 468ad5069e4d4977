"""Penalties under speculation: texts are those of ``generate`` with the same processors, drawn ones as probable."""

from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, LogitsProcessor, LogitsProcessorList

from research.stock_inputs import stock_inputs
from tests.acceptance.sequences import SIGNIFICANCE, exact_distribution, p_value
from tests.checkpoints import copy_checkpoint
from tests.checkpoints.readable import tokenizer
from tests.decoding.toys import GREEDY, ToyEngine, blend, greedy_text, on_tables, proposed, random_table, rounds_of
from tests.decoding.workers.pairs import named_requests
from tests.drafting.literal_ensemble import literal_weights
from tests.drafting.toy_ensemble import ensemble
from tests.engine import standin
from tests.engine.test_penalties import processed
from tests.model_pairs import Pair
from tests.ready_clips import serve_captions
from tests.tiers import full_but, in_turn
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.decoding.workers.draft import DraftText
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.tree import AdaptiveDrafter
from vidspec.embedded.samples import shipped
from vidspec.engine import forward
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.engine.requests import run_to_completion
from vidspec.engine.sampling import Sampling

pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")

# On tables, with a prompt that only the penalties know.

VOCABULARY, LENGTH, PROMPT = 24, 40, [3, 1, 3, 2]
ROUND, FREE = random_table(20, VOCABULARY), random_table(21, VOCABULARY)
#: Most of it depends on the last token alone, so that texts go round in circles.
TARGET = blend(FREE, lambda prefix: ROUND(prefix[-1:]), 0.75)
OTHER = blend(TARGET, random_table(22, VOCABULARY), 0.3)
EACH = [
    Penalties(repetition_penalty=2.0),
    Penalties(presence_penalty=1.0),
    Penalties(no_repeat_ngram=2),
    Penalties(1.3, 0.4, 3),
]
LIMITS = StoppingRules(LENGTH)


def penalised(table, penalties, prompt=PROMPT):
    """The table whose logits are those that transformers makes of it."""
    return cache(lambda prefix: processed(penalties, prompt, prefix, table(prefix)))


def contexts(count):
    return [blend(TARGET, random_table(30 + at, VOCABULARY), 0.2 + 0.1 * at) for at in range(count)]


def adaptive(table):
    engine = ToyEngine(table)
    return AdaptiveDrafter(engine, engine.open())


RNG = torch.Generator()
DRAFTERS = {
    "chain": lambda table: {"draft": table, "gamma": 4},
    "tree": lambda table: {"draft": table, "gamma": 3, "tree": "0 1 2 00 01 10 000 001"},
    "adaptive": lambda table: {"draft": adaptive(table), "gamma": 6},
    "ensemble": lambda table: {"draft": ensemble([table, *contexts(1)], GREEDY, RNG), "gamma": 4},
    "weighted": lambda table: {"draft": ensemble([table, *contexts(2)], GREEDY, RNG, "grid"), "gamma": 4},
}


def written(penalties, **drafting):
    """Text and counts of drafted and accepted tokens."""
    one = on_tables(TARGET, LIMITS, history=PenaltyHistory(penalties, PROMPT), **drafting)
    rounds = rounds_of(sequential if drafting else autoregressive, one)
    return one.token_ids, sum(step.drafted for step in rounds), sum(step.accepted for step in rounds)


@pytest.mark.parametrize("penalties", EACH, ids=str)
def test_plain_decoding_of_a_table(penalties):
    expected = greedy_text(penalised(TARGET, penalties), LIMITS)
    assert written(penalties)[0] == expected != greedy_text(TARGET, LIMITS)


@pytest.mark.sample(quick=5)
@pytest.mark.parametrize("penalties", EACH, ids=str)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_texts_of_a_table(kind, penalties):
    text, drafted, accepted = written(penalties, **DRAFTERS[kind](OTHER))
    assert text == greedy_text(penalised(TARGET, penalties), LIMITS)
    assert 0 < accepted < drafted


@pytest.mark.sample(quick=4)
@pytest.mark.parametrize("penalties", EACH, ids=str)
@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
def test_a_draft_that_equals_the_target_follows_its_penalties(kind, penalties):
    """So no window, or branch of a tree, is cut short, which is not so where it follows none."""
    _, drafted, accepted = written(penalties, **DRAFTERS[kind](TARGET))
    one = on_tables(TARGET, LIMITS, history=PenaltyHistory(penalties, PROMPT), **DRAFTERS[kind](TARGET))
    one.drafting.drafter.history = None
    rounds = rounds_of(sequential, one)
    assert one.token_ids == greedy_text(penalised(TARGET, penalties), LIMITS)
    assert sum(step.accepted for step in rounds) < accepted
    assert accepted == (29 if kind == "tree" else drafted)  # 3 of each round's 4 tokens, 2 of the last 3


@pytest.mark.parametrize("penalties", EACH, ids=str)
def test_a_draft_beside_the_target_follows_them_wherever_it_is_cut(penalties):
    engine, table = ToyEngine(TARGET), penalised(TARGET, penalties)
    text, expected = DraftText(engine, engine.start(), PenaltyHistory(penalties, PROMPT)), []
    for keep, tokens in [(0, []), (3, [5]), (6, [1, 2]), (7, [0])]:
        text.cut(keep, tokens)
        expected[keep:] = tokens
        for _ in range(6):
            expected.append(int(table(tuple(expected)).argmax()))
            assert run_to_completion(text.extend()) == expected[-1]
    assert text.tokens == expected


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("penalties", EACH, ids=str)
def test_weights_of_an_ensemble_rest_on_penalised_distributions(penalties):
    """At every verified position, the one of a bonus too, which its contexts read a round later."""
    tables, history = contexts(2), PenaltyHistory(penalties, PROMPT)
    own, judge = [penalised(table, penalties) for table in tables], penalised(TARGET, penalties)
    drafter = ensemble(tables, GREEDY, RNG, "inverse")
    one = on_tables(TARGET, LIMITS, draft=drafter, gamma=3, history=history)
    rounds = rounds_of(sequential, one)
    start, positions = 1, []
    for step in rounds[1:]:
        if step.weights:
            assert step.weights == pytest.approx(literal_weights("inverse", positions, 2, "kl", None), abs=2e-4)
        for at in range(start, start + len(step.token_ids)):
            prefix = tuple(one.token_ids[:at])
            each = [table(prefix).softmax(-1).tolist() for table in own]
            positions.append((judge(prefix).softmax(-1).tolist(), each, one.token_ids[at]))
        start += len(step.token_ids)
    assert any(step.accepted == step.drafted > 0 for step in rounds)  # a bonus


@pytest.mark.parametrize("penalties", EACH, ids=str)
@pytest.mark.parametrize("kind", ["chain", "ensemble"])
def test_a_drawn_window_carries_the_distributions_it_was_drawn_from(kind, penalties):
    """Penalised ones: by others the target would judge it wrongly."""
    sampling, history = Sampling(0.9, 0.8), PenaltyHistory(penalties, PROMPT)
    rng = torch.Generator().manual_seed(1)
    tables = [OTHER] if kind == "chain" else [OTHER, *contexts(1)]
    drafter = ensemble(tables, sampling, rng)
    if kind == "chain":
        engine = ToyEngine(OTHER)
        drafter = ChainDrafter(engine, engine.open(), sampling, rng)
    history.add([4])
    drafter.history = history
    drafter.begin(4)
    window = proposed(drafter, 5)
    for at, q in enumerate(window.probs):
        prefix = (4, *window.tokens[:at])
        each = torch.stack([penalised(table, penalties)(prefix) for table in tables])
        mean = Sampling(0.9).distribution(each).mean(0)
        assert torch.allclose(q, sampling.nucleus(mean[None])[0], atol=1e-6) and q[window.tokens[at]] > 0


# Drawn texts.

SMALL = random_table(11, 4, 1.2)
SMALL_DRAFT = blend(SMALL, random_table(12, 4, 1.5), 0.6)
SHORT = StoppingRules(3, frozenset({3}))
DRAWN = Penalties(1.5, 0.5, 2)
SAMPLING = Sampling(0.8, 0.9)
#: Between the penalties and the text stands a first token that is always 0: windows of two fit into texts of three.
WAYS = {
    "plain": {},
    "chain": {"draft": True, "gamma": 2},
    "greedy chain": {"draft": True, "gamma": 2, "draft_sampling": GREEDY},
    "tree": {"draft": True, "gamma": 2, "tree": "0 1 00 01 10"},
    "ensemble": {"gamma": 2},
}


def shifted(table):
    first = torch.tensor([99.0, 0.0, 0.0, 0.0])
    return lambda prefix: table(prefix[1:]) if prefix else first


def draws(way, count, penalties=DRAWN):
    rng = torch.Generator().manual_seed(9)
    for _ in range(count):
        given = dict(WAYS[way])
        if given.get("draft"):
            given["draft"] = shifted(SMALL_DRAFT)
        elif given:
            tables = [shifted(SMALL_DRAFT), shifted(random_table(13, 4, 1.2))]
            given["draft"] = ensemble(tables, SAMPLING, rng)
        limits, history = StoppingRules(4, SHORT.eos), PenaltyHistory(penalties, [1])
        one = on_tables(shifted(SMALL), limits, sampling=SAMPLING, rng=rng, history=history, **given)
        rounds_of(sequential if given else autoregressive, one)
        assert one.token_ids[0] == 0
        yield tuple(one.token_ids[1:])


def distribution():
    """Distribution of texts behind the first token, which the penalties count."""
    return exact_distribution(cache(lambda prefix: processed(DRAWN, [1], (0, *prefix), SMALL(prefix))), SAMPLING, SHORT)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_drawn_texts_have_the_penalised_distribution(way):
    assert p_value(draws(way, 2000), distribution()) > SIGNIFICANCE


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("way", ["chain", "greedy chain", "tree"])
def test_rows_that_forget_drafted_tokens_are_found(way, monkeypatch):
    after = PenaltyHistory.changes_for_paths
    monkeypatch.setattr(
        PenaltyHistory, "changes_for_paths", lambda self, paths, *more: after(self, [()] * len(paths), *more)
    )
    assert p_value(draws(way, 2000), distribution()) < SIGNIFICANCE


# On checkpoints.

CLIPS = {path.stem: path for path in shipped()}
TOKENS = 40
SETTINGS = {
    "repetition": {"generate.repetition_penalty": 1.4},
    "presence": {"generate.presence_penalty": 1.5},
    "ngram": {"generate.no_repeat_ngram": 3},
    "all": {"generate.repetition_penalty": 1.2, "generate.presence_penalty": 0.5, "generate.no_repeat_ngram": 4},
}
STRICT = {"accept.lam": 0, "accept.tolerance": False}
PROFILES = {
    "ar": {},
    "vanilla-sd": {},
    "vanilla-sd-auto": {},
    "sd-tree": {},
    "sd-adaptive-tree": {},
    "specvlm": {},
    "self-sd": {},
    "self-int8": {},
    "std": {},
    "onsd": {},
    "ngram": {"draft.kind": "ngram"},
    "suffix": {},
    "hybrid": {},
    "token-recycling": {},
    "tabed-mt": {},
    "tabed-mtcp-star": {},
    "parallelvlm": {},
    "hippo": {},
    "lvspec": STRICT,
    "lvspec-tree": STRICT,
}
#: Drafts by few or no tokens at all here, as a random model's text has little to look up; or by as many as times allow.
SELDOM = {"ar", "vanilla-sd-auto", "sd-adaptive-tree", "ngram", "suffix", "hybrid", "token-recycling", "parallelvlm"}


class Presence(LogitsProcessor):
    """The penalty that transformers lacks, on generated tokens."""

    def __init__(self, penalty, prompt):
        self.penalty, self.prompt = penalty, prompt

    def __call__(self, input_ids, scores):
        for row, ids in zip(scores, input_ids, strict=True):
            row[ids[self.prompt :].unique()] -= self.penalty
        return scores


class Repeating(Pair):
    """Random models whose head knows a few tokens, among them some of the prompt, and no end: texts repeat."""

    def __init__(self, folder):
        roles = {"target": 0.0, "draft": 0.05}
        target, draft = (copy_checkpoint(folder / role, "readable", noise=noise) for role, noise in roles.items())
        prompt = tokenizer().encode("Describe this video in detail.", add_special_tokens=False)
        known = torch.tensor(sorted({*prompt[:8], *range(300, 312)}))
        for one in (target, draft):
            weights = load_file(one / "model.safetensors")
            (name,) = (key for key in weights if key.endswith("lm_head.weight"))
            head = weights[name]
            kept = head[known] + torch.randn(len(known), head.shape[1], generator=torch.Generator().manual_seed(4)) / 4
            weights[name] = torch.zeros_like(head).index_copy_(0, known, kept / 2)
            save_file(weights, one / "model.safetensors", metadata={"format": "pt"})
        super().__init__(target, draft, TOKENS, **{"video.frames": 4})
        self.stock = AutoModelForImageTextToText.from_pretrained(target, dtype=torch.float32).eval()
        self.generated = cache(self._generated)

    @torch.inference_mode()
    def _generated(self, clip, settings):
        """Return the tokens that ``generate`` chooses."""
        captioner = self.captioner("ar")
        pixels = self.target.preprocess(captioner.client.inputs.read(CLIPS[clip]))
        prefix = self.target.prefix(self.target.encode(pixels), captioner.client.profile.generate.prompt)
        wanted = {key.removeprefix("generate."): value for key, value in SETTINGS.get(settings, {}).items()}
        more = LogitsProcessorList()
        if "presence_penalty" in wanted:
            more.append(Presence(wanted["presence_penalty"], prefix.length))
        ids = self.stock.generate(
            **stock_inputs(self.target, pixels, prefix),
            max_new_tokens=TOKENS,
            do_sample=False,
            repetition_penalty=wanted.get("repetition_penalty", 1.0),
            no_repeat_ngram_size=wanted.get("no_repeat_ngram", 0),
            logits_processor=more,
        )
        return ids[0, prefix.length :].tolist()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    made = Repeating(tmp_path_factory.mktemp("repeating"))
    yield made
    made.close()


def served(captioner, batch):
    """Return the records of all clips, by name."""
    return serve_captions(captioner, named_requests(captioner, CLIPS), batch)


@pytest.mark.full
@pytest.mark.parametrize("settings", full_but(["all"], SETTINGS))
def test_generate_repeats_itself_without(pair, settings):
    """Else the texts below would say little."""
    for clip in CLIPS:
        plain, penalised = pair.generated(clip, ""), pair.generated(clip, settings)
        assert len(penalised) == len(plain) == TOKENS and penalised != plain
        assert len(set(penalised)) > len(set(plain)) or settings == "ngram"


@pytest.mark.sample(quick=1, full=10)
@pytest.mark.parametrize(
    ("profile", "settings", "batch"),
    full_but(
        [("ar", "all", 4), ("vanilla-sd", "all", 1), ("sd-tree", "ngram", 4)],
        in_turn([(profile, settings, batch) for profile in PROFILES for settings in SETTINGS for batch in (1, 4)], 5),
    ),
)
def test_texts_are_those_of_generate(pair, profile, settings, batch):
    captioner = pair.captioner(profile, {**SETTINGS[settings], **PROFILES[profile]})
    records = served(captioner, batch)
    assert {clip: record.token_ids for clip, record in records.items()} == {
        clip: pair.generated(clip, settings) for clip in CLIPS
    }
    if profile not in SELDOM:
        drafted, accepted = (sum(one.counters[name] for one in records.values()) for name in ("drafted", "accepted"))
        assert 0 < accepted < drafted


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("profile", ["vanilla-sd", "sd-tree"])
def test_replayed_passes(pair, monkeypatch, profile):
    """A device feeds drafted tokens back by itself: those of chains, but for runs, and of trees without penalties."""
    fed_back = []
    for model in (pair.target, pair.draft):
        monkeypatch.setattr(model.decoder, "graphs", ReplayedPasses(model.decoder, standin.attention))
    for name in ("replay_chains", "replay_trees"):
        call = getattr(forward, name)
        monkeypatch.setattr(forward, name, lambda *given, call=call: fed_back.append(call(*given)) or fed_back[-1])
    for settings in ("all", "presence", ""):
        captioner = pair.captioner(profile, SETTINGS.get(settings))
        fed_back.clear()
        texts = {clip: record.token_ids for clip, record in served(captioner, 4).items()}
        assert texts == {clip: pair.generated(clip, settings) for clip in CLIPS}
        assert any(fed_back) == (not settings or (profile, settings) == ("vanilla-sd", "presence"))
        assert any(step.graphs.captured for step in (pair.target.decoder, pair.draft.decoder))


@pytest.mark.full
@pytest.mark.parametrize("profile", ["vanilla-sd-auto", "sd-tree", "hybrid", "parallelvlm", "tabed-mtcp-star"])
def test_drawn_texts_are_those_of_plain_decoding_where_drafts_are_greedy(pair, profile):
    drawn = {**SETTINGS["all"], "generate.temperature": 0.8, "generate.seed": 3, "draft.gamma": "auto"}
    plain = pair.captioner("ar", {key: value for key, value in drawn.items() if key != "draft.gamma"})
    captioner = pair.captioner(profile, drawn if profile != "sd-tree" else {**drawn, "draft.gamma": 5})
    assert captioner.client.profile.token_for_token
    texts = {clip: record.token_ids for clip, record in served(captioner, 4).items()}
    assert texts == {clip: record.token_ids for clip, record in served(plain, 1).items()}
    assert texts != {clip: pair.generated(clip, "all") for clip in CLIPS}
