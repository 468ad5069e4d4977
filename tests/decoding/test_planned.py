"""``schedule: plan``: the text stays the target's own, whatever is measured and chosen on the way."""

import pytest
import torch

from decoding import checkpoints
from vidspec import profiles
from vidspec.captioner import Captioner
from vidspec.decoding import planned
from vidspec.decoding.events import Round
from vidspec.decoding.planned import SAMPLES, Planner
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, UsageError
from vidspec.models import loading
from vidspec.planning.plan import PLAIN, Plan

PLACE = loading.placement("cpu", "float32")
CLIPS = shipped()
LONG = CLIPS[1]  # the text of the first is too short to judge drafters by
TOKENS = 72


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target, near = checkpoints.save(folder / "target"), checkpoints.save(folder / "draft", noise=0.02)
    return {"target": loading.load(str(target), PLACE), "draft": loading.load(str(near), PLACE)}


@pytest.fixture(scope="module")
def plain(models):
    captioner = Captioner(profiles.load("ar", asked(), env={}), models["target"], None)
    return {clip: captioner.caption(clip).token_ids for clip in CLIPS}


def asked(**more):
    return {"generate.max_new_tokens": TOKENS, "models.threads": 1, **more}


def auto(models, draft=True, **more):
    named = {"models.pair": None, "models.target": "t", "models.draft": "d" if draft else None}
    profile = profiles.load("auto", asked(**{**named, **more}), env={})
    return Captioner(profile, models["target"], models["draft"] if draft else None)


@pytest.mark.parametrize("draft", [True, False], ids=["a draft", "the target alone"])
def test_every_clip_has_the_text_of_plain_decoding(models, plain, draft):
    captioner = auto(models, draft)
    for clip in CLIPS:
        record = captioner.caption(clip)
        assert record.token_ids == plain[clip], clip.name
        assert record.lossless and record.profile == "auto"
    plan = captioner.chooser.plan
    assert plan is not None and record.schedule["why"] == plan.why
    kinds = {way.overrides["draft.kind"] for way in plan.ways if way.schedule != "autoregressive"}
    assert kinds <= ({"model", "text_only"} if draft else {"self", "sparse_kv"}) and kinds


def test_measuring_counts_as_time_of_the_first_clip_alone(models):
    captioner = auto(models)
    first, second = (captioner.caption(LONG) for _ in range(2))
    assert 0 < first.timings["plan"] < first.timings["end_to_end"]
    assert "plan" not in second.timings
    captioner.forget()
    assert captioner.chooser.plan is None
    assert "plan" in captioner.caption(LONG).timings


@pytest.mark.parametrize("at", range(5))
def test_a_clip_goes_on_with_any_drafter_that_was_tried(models, plain, at, monkeypatch):
    """Whichever drafter is judged best, it knows the text as if it had drafted from the start."""
    captioner = auto(models)
    planner = captioner.chooser
    option = planner.candidates[at]
    monkeypatch.setattr(planned.Planner, "settle", _only(planned.Planner.settle, option.name))
    monkeypatch.setattr("vidspec.decoding.trial.BUDGET", 1e9)
    record = captioner.caption(LONG)
    assert record.token_ids == plain[LONG]
    again = captioner.caption(LONG)
    assert again.token_ids == plain[LONG]
    assert again.counters["visual_tokens_kept"] == _kept(option, again.counters["visual_tokens"])


def _only(settle, name):
    def alone(self, trial, conditions):
        plan = settle(self, trial, conditions)
        way = next(w for w in plan.ways if w.name == name and w.topology == "chain")
        self.plan = Plan((way, PLAIN), way, "the test wants it", plan.measured)
        return self.plan

    return alone


def _kept(option, tokens):
    if option.overrides["draft.kind"] == "text_only":
        return 0
    return max(1, round((1 - option.overrides["prune.alpha"]) * tokens))


def test_acceptance_is_what_drafting_would_have_had(models, plain):
    """Read at once, a drafter proposes behind each token what it proposes there step by step."""
    captioner = auto(models)
    found = captioner.plan(LONG, tokens=40).measured
    text = plain[LONG]
    one = Captioner(profiles.load("vanilla-sd", asked(**{"draft.gamma": 1}), env={}), models["target"], models["draft"])
    rounds = [event for event in one.stream(LONG) if isinstance(event, Round)]
    at, hits, asked_at = 1, {}, found["judged"]
    for step in rounds[1:]:
        if step.drafted:
            hits[at] = bool(step.accepted)
        at += len(step.token_ids)
    judged = [hits[i] for i in range(1, asked_at + 1) if i in hits]
    share = next(d for d in found["drafts"] if d["name"] == "model, whole video")["matched"] / asked_at
    # A window of one skips the token behind an accepted one, so the two look at slightly different places.
    assert len(judged) > asked_at / 3 and abs(share - sum(judged) / len(judged)) < 0.25
    assert text[:2] == [token for step in rounds for token in step.token_ids][:2]


def test_nothing_loose_is_chosen_unless_it_is_asked_for(models):
    assert auto(models).caption(LONG).loose is None
    loose = auto(models, **{"accept.rule": "lvspec"}).caption(LONG)
    assert loose.lossless is False and loose.loose is not None


def test_sampled_text_does_not_depend_on_what_was_measured(models):
    settings = {"generate.temperature": 0.8, "generate.seed": 3}
    one = Captioner(profiles.load("ar", asked(**settings), env={}), models["target"], None).caption(LONG)
    assert auto(models, **settings).caption(LONG).token_ids == one.token_ids


class Told:
    """A planner that has measured nothing and is told what clips cost."""

    def __init__(self, models, beside=2.0, turns=1.9):
        self.planner: Planner = auto(models).chooser
        base = PLAIN.__class__("model", "sequential", "chain", {}, 0.0, 5, 0.8, 4.0, 1.0, 2.0, turns)
        self.turns = base
        self.beside = base.__class__("model", "parallel", "chain", {}, 0.0, 5, 0.8, 4.0, 1.0, 2.0, beside)
        ways = tuple(sorted((self.turns, self.beside, PLAIN), key=lambda way: -way.end_to_end))
        self.planner.plan = Plan(ways, ways[0], "predicted")

    def clips(self, seconds, count):
        seen = []
        for _ in range(count):
            way = self.planner._next(self.planner.plan)
            seen.append(way.schedule)
            self.planner._trials.setdefault(way.label, []).append(seconds[way.schedule])
        return seen


@pytest.mark.parametrize(("beside", "kept"), [(0.5, "parallel"), (2.0, "sequential")])
def test_two_workers_are_tried_and_kept_if_they_are_faster(models, beside, kept):
    told = Told(models)
    seen = told.clips({"parallel": beside, "sequential": 1.0}, 2 * SAMPLES + 4)
    assert seen == ["parallel"] * SAMPLES + ["sequential"] * SAMPLES + [kept] * 4
    assert "measured" in told.planner.plan.why


def test_two_workers_that_promise_little_are_not_tried(models):
    assert set(Told(models, beside=1.2).clips({"sequential": 1.0}, 8)) == {"sequential"}


def test_other_frames_are_measured_anew(models):
    captioner = auto(models)
    captioner.caption(LONG)
    few = captioner.read(LONG).__class__
    clip = captioner.read(LONG)
    short = few(clip.frames[:8], clip.timestamps[:8], clip.facts)
    assert "plan" in captioner.caption(LONG, clip=short).timings


def test_what_cannot_be_planned_says_so(models):
    named = Captioner(profiles.load("ar", asked(), env={}), models["target"], None)
    with pytest.raises(UsageError, match="names its schedule"):
        named.plan(LONG)
    short = auto(models, **{"generate.max_new_tokens": 8})
    with pytest.raises(GenerationError, match="says nothing"):
        short.plan(LONG)
    assert short.caption(LONG).token_ids


def test_the_target_cache_is_untouched(models):
    """The state after the trial's passes is that before them."""
    captioner = auto(models)
    planner = captioner.chooser
    seen = {}
    measure = planned.Trial.measure

    def watched(self, *args):
        span = self.run.job.target.span
        length, before = span.length, [layer.clone() for layer in _entries(span)]
        result = measure(self, *args)
        same = all(torch.equal(a, b) for a, b in zip(before, _entries(span), strict=True))
        seen["same"] = span.length == length and same
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned.Trial, "measure", watched)
        captioner.caption(LONG)
    assert seen["same"] and planner.plan is not None


def _entries(span):
    return span.slab.layers(span.start, span.start + span.length)
