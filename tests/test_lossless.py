"""In float32 on the CPU every lossless method gives the token ids of plain decoding (docs/research/metrics.md, test 1).

``VIDSPEC_LOSSLESS_CLIPS=50`` draws more clips than the usual six, and shows the built-in pair all the shipped ones
under every profile.
"""

import os
from collections import Counter

import pytest
from PIL import Image

from research.world.samples import draw
from tests.acceptance.wrong_rules import AcceptsAll
from tests.decoding.workers.pairs import named_requests
from tests.model_pairs import PLACE, Pair, pair_checkpoints
from tests.packaged import packaged
from tests.ready_clips import ReadyClips
from tests.tiers import full_but, in_turn
from vidspec import video
from vidspec.acceptance.base import Verdict, rules
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.target import Target
from vidspec.drafting.base import Draft
from vidspec.drafting.chain import ChainDrafter
from vidspec.embedded.samples import shipped
from vidspec.events.compare import first_difference
from vidspec.events.events import Finished
from vidspec.models import loading
from vidspec.models.base import families
from vidspec.pruning.base import pruners


def speculates_losslessly(profile):
    """Heads are made for one target: theirs are in ``drafting/test_heads.py``."""
    return profile.draft.kind != "none" and rules.get(profile.accept.rule).lossless and not profile.draft.has_head


def different():
    """Names of the lossless ones; of profiles that differ in name and description alone, as papers call them, one."""
    by_settings = {}
    for name, profile in packaged().items():
        if speculates_losslessly(profile):
            by_settings.setdefault(profile.model_dump_json(exclude={"name", "about"}), name)
    return list(by_settings.values())


def goes_back(name):
    """Return True if recurrent states can follow; others are refused, see ``models/test_hybrid_profiles.py``."""
    profile = packaged()[name]
    draft, schedule = profile.draft, profile.schedule
    chosen = draft.kind == "sparse_kv" or (draft.kind == "self" and draft.prefill == "gather")
    return draft.topology == "chain" and not chosen and (schedule.kind, schedule.startup) != ("parallel", "fit")


LOSSLESS = different()
#: Families of the same blocks and prompts as one of these have their own, shorter tests in ``tests/models``.
_OWN = {
    "gemma4",
    "gemma4_unified",
    "glm4v",
    "glm46v",
    "glm4v_moe",
    "internvl",
    "minicpmv4_6",
    "molmo2",
    "qwen2_vl",
    "smolvlm",
    "qwen2_5_omni",
    "qwen3_omni_moe",
    "video_llama_3",
    "video_salmonn2_plus",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
}
DENSE = sorted({*families.names()} - _OWN)
HYBRID = "qwen3_5"
FAMILIES = [*DENSE, HYBRID]
CLIPS = {path.stem: path for path in shipped()}
USUAL = 6
DRAWN = int(os.environ.get("VIDSPEC_LOSSLESS_CLIPS", USUAL))
BUILT_IN = ("embedded", "embedded-qwen")
PRODUCT = [
    (family, *one) for family in FAMILIES for one in enumerate(LOSSLESS) if family != HYBRID or goes_back(one[1])
]
#: A chain, a tree, both models at once: what ``make test`` shows of every family.
SHAPES = ("vanilla-sd", "specvlm", "parallelvlm")
#: One for each way of drafting: of one family and of the built-in pairs.
MECHANISMS = (
    "hippo",
    "hybrid",
    "parallelvlm",
    "sd-adaptive-tree",
    "self-int8",
    "self-sd",
    "specvlm",
    "std",
    "tabed-mtcp-star",
    "vanilla-sd",
)
pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")


@pytest.fixture(scope="module")
def random_pairs():
    """Pairs of small random models, by family."""
    pairs = {}

    def pair(family):
        if family not in pairs:
            # A frame of the LLaVA families is hundreds of tokens.
            few = {"video.frames": 6} if family in ("llava", "llava_next") else {}
            pairs[family] = Pair(*pair_checkpoints(family), tokens=48, **few)
        return pairs[family]

    yield pair
    for one in pairs.values():
        one.close()


@pytest.fixture(scope="module")
def random_pair(random_pairs):
    return random_pairs("llava_onevision")


@pytest.fixture(scope="module")
def built_in_pairs():
    pairs = {}

    def pair(name):
        if name not in pairs:
            pairs[name] = Pair(*(loading.embedded_folder(name, role) for role in ("target", "draft")), tokens=24)
        return pairs[name]

    yield pair
    for one in pairs.values():
        one.close()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("drawn"), DRAWN, seed=2026)


def check(pair, captioner, clip):
    record = captioner.caption(clip)
    at = first_difference(record.token_ids, pair.plain(clip))
    assert at is None, f"{captioner.client.profile.name} leaves plain decoding of {clip} at token {at}"
    assert len(record.token_ids) <= pair.tokens
    return record


def test_profiles_are_found():
    assert {"vanilla-sd", "sd-rand", "sd-uniform", "sd-attention"} <= set(LOSSLESS) and "ar" not in LOSSLESS
    assert len(CLIPS) == 4


@pytest.mark.sample(quick=8, full=55)
@pytest.mark.parametrize(
    ("family", "number", "profile"),
    full_but(
        [one for one in PRODUCT if one[2] in (MECHANISMS if one[0] == "llava_onevision" else SHAPES)],
        in_turn(PRODUCT, 8),
    ),
)
def test_every_profile_on_every_family(random_pairs, family, number, profile):
    """Small random models. Clips take turns; all of them in a longer run."""
    pair = random_pairs(family)
    captioner = pair.captioner(profile)
    for clip in turns(number):
        check(pair, captioner, clip)


@pytest.mark.full
@pytest.mark.sample(quick=1, full=26)
@pytest.mark.parametrize(
    ("name", "number", "profile"),
    full_but(
        [(BUILT_IN[at % 2], LOSSLESS.index(one), one) for at, one in enumerate(MECHANISMS)],
        in_turn([(name, *one) for name in BUILT_IN for one in enumerate(LOSSLESS)], 2),
    ),
)
def test_every_profile_on_the_built_in_pairs(built_in_pairs, name, number, profile):
    """Trained weights."""
    pair = built_in_pairs(name)
    captioner = pair.captioner(profile)
    for clip in turns(number):
        check(pair, captioner, clip)


def turns(number):
    """One of the shipped clips, or all."""
    return [CLIPS[sorted(CLIPS)[number % len(CLIPS)]]] if DRAWN <= USUAL else list(CLIPS.values())


@pytest.mark.full
@pytest.mark.parametrize(("gamma", "alpha"), [(1, 0.5), (3, 0), (3, 0.99), (8, 0.5)])
def test_any_window_and_any_share(random_pair, gamma, alpha):
    captioner = random_pair.captioner("sd-attention-chain", {"draft.gamma": gamma, "prune.alpha": alpha})
    lengths = set()
    for clip in CLIPS.values():
        lengths |= set(check(random_pair, captioner, clip).counters["accepted_lengths"])
    # The gate says little unless windows are rejected early, late and not at all.
    assert lengths >= ({0, 1, gamma} if alpha < 0.99 else {0, 1})


NOTHING_LOOSE = {"accept.rule": "lvspec", "accept.lam": 0, "accept.tolerance": False}
BESIDE = {**NOTHING_LOOSE, "schedule.kind": "parallel"}


def check_nothing_loose(pair, profile, overrides, clips):
    captioner = pair.captioner(profile, overrides)
    for clip in clips:
        assert check(pair, captioner, clip).loose == {"share": 0.0, "tokens": []}


@pytest.mark.full
@pytest.mark.sample(full=2)
@pytest.mark.parametrize("family", full_but(["llava_onevision"], in_turn(DENSE, 3)))
@pytest.mark.parametrize("profile", full_but(["lvspec"], ["lvspec", "lvspec-tree"]))
def test_lvspec_without_anything_loose(random_pairs, family, profile):
    """A chain and two."""
    check_nothing_loose(random_pairs(family), profile, NOTHING_LOOSE, CLIPS.values())


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "family"), full_but([(DENSE.index("llava_onevision"), "llava_onevision")], in_turn(enumerate(DENSE), 2))
)
@pytest.mark.parametrize(("profile", "overrides"), [("specvlm", NOTHING_LOOSE), ("lvspec", BESIDE)])
def test_lvspec_without_anything_loose_on_a_tree_and_in_parallel(random_pairs, number, family, profile, overrides):
    check_nothing_loose(random_pairs(family), profile, overrides, turns(number))


@pytest.mark.full
@pytest.mark.parametrize("name", BUILT_IN)
def test_hippo_of_four_clips_at_once_on_the_built_in_pairs(built_in_pairs, name):
    pair = built_in_pairs(name)
    captioner = pair.captioner("hippo")
    texts = {
        clip: event.caption.token_ids
        for clip, event in captioner.client.serve(ReadyClips(named_requests(captioner, list(CLIPS))), batch=4)
        if isinstance(event, Finished)
    }
    assert texts == {clip: pair.plain(path) for clip, path in CLIPS.items()}


@pytest.mark.full
@pytest.mark.parametrize("name", BUILT_IN)
def test_lvspec_without_anything_loose_on_the_built_in_pairs(built_in_pairs, name):
    check_nothing_loose(built_in_pairs(name), "lvspec", NOTHING_LOOSE, CLIPS.values())
    check_nothing_loose(built_in_pairs(name), "lvspec", BESIDE, [CLIPS["two-objects"]])


#: Settings under which a method that prunes the target drops nothing.
EVERYTHING = {
    "fastv": {"lossy.keep": [1.0]},
    "pdrop": {"lossy.keep": [1.0, 1.0, 1.0]},
    "sparsevlm": {"lossy.keep": [1.0, 1.0, 1.0]},
    "dycoke": {"lossy.merge": 0.0, "lossy.keep": [1.0]},
}


@pytest.mark.full
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("method", EVERYTHING)
def test_a_target_that_is_pruned_of_nothing(built_in_pairs, name, method):
    """``tests/baselines/test_engine.py`` has every family."""
    pair = built_in_pairs(name)
    record = check(pair, pair.captioner(method, EVERYTHING[method]), CLIPS["three-objects"])
    assert record.lossy["kept"] == [record.counters["visual_tokens"]] * len(record.lossy["kept"])


@pytest.mark.parametrize("method", full_but(["hippo", "uv"], [name for name in pruners.names() if name != "none"]))
def test_any_pruner(random_pair, method):
    captioner = random_pair.captioner("sd-uniform", {"prune.method": method, "prune.alpha": 0.8})
    check(random_pair, captioner, CLIPS["one-object"])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("positions", ["original", "compact"])
def test_renumbered_positions(random_pair, positions):
    captioner = random_pair.captioner("sd-uniform", {"prune.positions": positions})
    check(random_pair, captioner, CLIPS["one-object"])


AUTO = {"draft.gamma": "auto"}
GREEDY_DRAFTS = [
    ("sd-tree", {}),
    ("self-specvlm", {}),
    ("lvspec-tree", {"accept.rule": "exact"}),
    *((profile, AUTO) for profile in ("vanilla-sd", "std", "onsd", "tabed-mtcp-star")),
]


@pytest.mark.parametrize(("profile", "overrides"), full_but([GREEDY_DRAFTS[0], GREEDY_DRAFTS[3]], GREEDY_DRAFTS))
def test_drawn_texts_are_those_of_plain_decoding_where_drafts_are_greedy(random_pair, profile, overrides):
    """Beside the target: ``tests/decoding/workers/test_side_by_side.py``."""
    drawn = {"generate.temperature": 0.7, "generate.top_p": 0.95, "generate.seed": 5}
    drawn |= {"generate.top_k": 40, "generate.min_p": 0.01}
    plain = random_pair.captioner("ar", drawn)
    captioner = random_pair.captioner(profile, {**drawn, **overrides})
    assert captioner.client.profile.token_for_token
    record = captioner.caption(CLIPS["one-object"])
    assert record.token_ids == plain.caption(CLIPS["one-object"]).token_ids != random_pair.plain(CLIPS["one-object"])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("profile", ["vanilla-sd", "std", "onsd"])
def test_drawn_texts_are_others_where_the_draft_draws_too(random_pair, profile):
    drawn = {"generate.temperature": 0.7, "generate.seed": 5}
    captioner = random_pair.captioner(profile, drawn)
    assert not captioner.client.profile.token_for_token
    plain = random_pair.captioner("ar", drawn).caption(CLIPS["one-object"])
    assert captioner.caption(CLIPS["one-object"]).token_ids != plain.token_ids


@pytest.mark.full
def test_drawn_clips(random_pair, built_in_pairs, drawn):
    assert len(drawn) == DRAWN
    for number, clip in enumerate(drawn):
        profile = LOSSLESS[number % len(LOSSLESS)]
        for pair in (random_pair, *(built_in_pairs(name) for name in BUILT_IN)):
            check(pair, pair.captioner(profile), clip)


class AcceptsOneMore:
    """Almost right: takes the drafted token at the first mismatch too."""

    lossless = True

    def __call__(self, draft, passed, rng):
        choices = passed.chosen
        agree = next((i for i, token in enumerate(draft.tokens) if token != choices[i]), len(draft.tokens))
        accepted = min(agree + 1, len(draft.tokens))
        return Verdict.chain(accepted, choices[accepted])


@pytest.mark.parametrize("rule", [AcceptsAll, AcceptsOneMore])
def test_the_gate_can_fail(random_pair, rule):
    captioner = random_pair.captioner("vanilla-sd")
    captioner.client.setup.acceptance = rule()
    with pytest.raises(AssertionError, match="leaves plain decoding"):
        check(random_pair, captioner, CLIPS["one-object"])


def leave_a_row(side):
    """A row of the rejected tokens stays, at its position."""
    side.span.length += 1
    side.span.offset -= 1


def move_positions(side):
    """Further rows come one position too late."""
    side.span.offset += 1


@pytest.mark.parametrize("profile", ["vanilla-sd", "specvlm"])
@pytest.mark.parametrize("fault", [leave_a_row, move_positions])
def test_a_fault_of_the_target_after_a_rejection_is_found(random_pair, monkeypatch, fault, profile):
    """In a chain and in a tree. The texts of trained models often stay as they are."""
    commit, faults = Target.commit, Counter()

    def commits(target, path, token, passed):
        commit(target, path, token, passed)
        if len(path) < max(target._draft.depths, default=0) and faults[target] < 3:  # there is room for a few
            faults[target] += 1
            fault(target)

    plain = {clip: random_pair.plain(clip) for clip in CLIPS.values()}
    monkeypatch.setattr(Target, "commit", commits)
    captioner = random_pair.captioner(profile, {"draft.gamma": 4})
    assert any(captioner.caption(clip).token_ids != text for clip, text in plain.items())


@pytest.fixture
def spoiled(monkeypatch):
    """Windows of a chain whose first 0, 1, ... tokens are the draft's, and the next one another: how many of each."""
    kept, propose = [], ChainDrafter.propose

    def proposes(drafter, gamma):
        tokens = list((yield from propose(drafter, gamma)).tokens)
        kept.append(len(kept) % (gamma + 1))
        if kept[-1] < gamma:
            tokens[kept[-1]] += 1
        drafter._window = tuple(tokens)
        return Draft.chain(tokens)

    monkeypatch.setattr(ChainDrafter, "propose", proposes)
    return kept


@pytest.mark.parametrize("fault", [None, leave_a_row, move_positions])
def test_a_fault_of_a_draft_after_a_rejection_is_found(random_pair, monkeypatch, spoiled, fault):
    """A draft with the target's weights is accepted up to its first spoiled token; texts stay those of the target."""
    read = ChainDrafter.read

    def reads(drafter, tokens, passed):
        rejected = len(passed.path) < len(drafter._window)
        read(drafter, tokens, passed)
        if rejected and fault is not None:
            fault(drafter)

    monkeypatch.setattr(ChainDrafter, "read", reads)
    twin = loading.load_model(random_pair.target.source, PLACE)
    settings = {"generate.max_new_tokens": random_pair.tokens, "draft.gamma": 4}
    captioner = Captioner(profiles.load("vanilla-sd", settings, env={}), random_pair.target, twin)
    whole = []
    for clip in CLIPS.values():
        spoiled.clear()
        *lengths, _ = check(random_pair, captioner, clip).counters["accepted_lengths"]  # the last window is cut
        assert len(lengths) > 3
        whole.append(lengths == spoiled[: len(lengths)])
    assert all(whole) if fault is None else not all(whole)


@pytest.mark.parametrize("profile", full_but(["specvlm", "parallelvlm"], ["vanilla-sd", "specvlm", "parallelvlm"]))
def test_loops_are_stopped_at_the_same_token(random_pair, profile):
    """Random models fall into loops; with ``stop_loops`` every method must leave them where plain decoding does."""
    stop = {"generate.stop_loops": True, "generate.max_new_tokens": 200}
    clip = CLIPS[sorted(CLIPS)[1]]
    plain, fast = (random_pair.captioner(name, stop).caption(clip) for name in ("ar", profile))
    assert plain.token_ids == fast.token_ids and len(plain.token_ids) < 200
    assert plain.ended == fast.ended == "loop"


@pytest.mark.sample(quick=1, full=4)
@pytest.mark.parametrize("family", full_but(["qwen2_5_vl", "smolvlm"], sorted(families.names())))
def test_a_picture_is_captioned_by_every_family(random_pairs, family, tmp_path):
    """As a clip of one frame, whatever number of frames its preprocessing makes groups of."""
    picture = tmp_path / "picture.png"
    Image.fromarray(video.read(CLIPS["one-object"], frames=1).frames[0]).save(picture)
    pair = random_pairs(family)
    plain, fast = (pair.captioner(name).caption(picture) for name in ("ar", "vanilla-sd"))
    assert plain.token_ids == fast.token_ids and plain.counters["visual_tokens"] > 0
    assert (plain.video["frames"], plain.video["decoder"]) == (1, "pillow")
