"""``schedule: plan``: the text stays the target's own, whatever is measured and chosen on the way."""

import gc
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from decoding import checkpoints
from tiers import full_but

from vidspec.captioner import Captioner
from vidspec.choosing import planned
from vidspec.choosing.plan import PLAIN, Plan
from vidspec.choosing.planned import CLEARLY, SAMPLES, SHORT, Planner
from vidspec.config import profiles
from vidspec.draft_length.batch import SIZES
from vidspec.draft_length.pace import Pace
from vidspec.drafting.base import FreeDrafter
from vidspec.drafting.memory_file import MemoryFile
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, UsageError
from vidspec.events.events import Finished, Load, Round
from vidspec.models import loading
from vidspec.models.identity import identity
from vidspec.models.request import Request
from vidspec.registry import drafters

PLACE = loading.placement("cpu", "float32")
CLIPS = shipped()
LONG = CLIPS[1]  # the text of the first is too short to judge drafters by
TOKENS = 72
pytestmark = pytest.mark.usefixtures("forked_drafts")


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
    captioner = Captioner(profile, models["target"], models["draft"] if draft else None)
    captioner.chooser.worthwhile = True  # to measure the first clip
    return captioner


@pytest.mark.parametrize("draft", full_but([True], [True, False]), ids=["a draft", "the target alone"])
def test_every_clip_has_the_text_of_plain_decoding(models, plain, draft):
    captioner = auto(models, draft)
    for clip in CLIPS:
        record = captioner.caption(clip)
        assert record.token_ids == plain[clip], clip.name
        assert record.lossless and record.profile == "auto"
    plan = captioner.chooser.plan
    assert plan is not None and record.schedule["why"] == plan.why
    kinds = {way.overrides["draft.kind"] for way in plan.ways if way.schedule != "autoregressive"}
    with_a_model = {"model", "text_only", "hybrid"} if draft else {"self", "sparse_kv"}
    assert kinds & with_a_model and kinds <= {"ngram", "suffix", *with_a_model}


@pytest.mark.full
@pytest.mark.parametrize(
    ("draft", "names"),
    [
        (
            True,
            [
                "model, whole video",
                "ngram, from the text",
                "suffix, from the text",
                "hybrid, whole video",
                "model, a tenth by attention",
                "model, half evenly",
                "model, a tenth evenly",
                "text_only, no video",
            ],
        ),
        (
            False,
            [
                "self, a tenth by attention",
                "ngram, from the text",
                "suffix, from the text",
                "self, half evenly",
                "self, a tenth evenly",
                "sparse_kv, entries of its own choice",
            ],
        ),
    ],
    ids=["a draft", "the target alone"],
)
def test_all_drafters_that_make_sense_are_candidates(models, draft, names, monkeypatch):
    monkeypatch.setattr("vidspec.choosing.trial.BUDGET", 1e9)
    captioner = auto(models, draft)
    assert [one.name for one in captioner.chooser.candidates] == names
    plan = captioner.plan(LONG, tokens=32)
    assert [one["name"] for one in plan.measured["drafts"]] == names
    trees = {way.name for way in plan.ways if way.topology == "adaptive"}
    assert trees == {name for name in names if name.split(",")[0] in ("model", "self", "sparse_kv", "text_only")}
    assert {way.name for way in plan.ways if way.topology == "chain"} == {*names, PLAIN.name}


class Knowing(FreeDrafter):
    """Knows a text; no part of the package, as one from a plugin."""

    text_of_all: ClassVar[list[int]] = []

    def guess(self, gamma):
        return self.text_of_all[len(self.text) :][:gamma]


@pytest.fixture
def knowing(monkeypatch, plain):
    monkeypatch.setattr(Knowing, "text_of_all", plain[LONG])
    drafters.register("knowing")(Knowing)
    yield "knowing, from the text"
    del drafters._entries["knowing"]


@pytest.mark.full
def test_a_drafter_of_others_is_considered_and_costs_no_pass(models, plain, knowing, monkeypatch):
    """What passes take is virtual."""

    def pass_s(self, engine, spans, rows):
        return (1 if engine.model is models["target"] else 0.2) * (1 + 0.01 * rows)

    monkeypatch.setattr(planned.Trial, "_pass_s", pass_s)
    captioner = auto(models)
    plan = captioner.plan(LONG, tokens=32)
    (measured,) = [one for one in plan.measured["drafts"] if one["name"] == knowing]
    assert measured["matched"] > 0.7 * plan.measured["judged"] and measured["tq"] < plan.measured["tp"]["1"]
    assert plan.chosen.name == knowing, "nobody else knows the text"
    record = captioner.caption(LONG)
    assert record.token_ids == plain[LONG]
    assert record.counters["draft_forwards"] == 0 and record.counters["target_forwards"] < 0.6 * len(plain[LONG])
    profile = profiles.override(captioner.profile, dict(plan.chosen.overrides))
    assert profile.drafts_for_free and profile.draft.gamma == "auto"


@pytest.mark.full
def test_a_first_clip_that_may_be_the_only_one_is_not_measured(models, plain):
    captioner = auto(models)
    captioner.forget()
    first, second = captioner.caption(LONG), captioner.caption(LONG)
    assert first.token_ids == second.token_ids == plain[LONG]
    assert "plan" not in first.timings and "plan" in second.timings
    assert first.schedule["kind"] == "sequential" and "first clip" in first.schedule["why"]


@pytest.mark.full
def test_measuring_counts_as_time_of_the_first_clip_alone(models):
    captioner = auto(models)
    first, second = (captioner.caption(LONG) for _ in range(2))
    assert 0 < first.timings["plan"] < first.timings["end_to_end"]
    assert "plan" not in second.timings
    captioner.forget()
    captioner.chooser.worthwhile = True
    assert captioner.chooser.plan is None
    assert "plan" in captioner.caption(LONG).timings


@pytest.mark.parametrize("at", full_but([5], range(8)))
def test_a_clip_goes_on_with_any_drafter_that_was_tried(models, plain, at, monkeypatch):
    """Whichever drafter is judged best, it knows the text as if it had drafted from the start."""
    captioner = auto(models)
    planner = captioner.chooser
    option = planner.candidates[at]
    monkeypatch.setattr(planned.Planner, "settle", _only(planned.Planner.settle, option.name))
    monkeypatch.setattr("vidspec.choosing.trial.BUDGET", 1e9)
    record = captioner.caption(LONG)
    assert record.token_ids == plain[LONG]
    again = captioner.caption(LONG)
    assert again.token_ids == plain[LONG]
    assert again.counters["visual_tokens_kept"] == _kept(option, again.counters["visual_tokens"])


@pytest.mark.full
def test_what_is_written_on_the_way_is_remembered(models, plain, tmp_path, monkeypatch):
    """By the clip that was measured, from where it goes on with the chosen drafter, and by those behind it."""
    monkeypatch.setattr(planned.Planner, "settle", _only(planned.Planner.settle, "suffix, from the text"))
    file = tmp_path / "captions"
    captioner = auto(models, **{"draft.memory": str(file)})
    records = [captioner.caption(LONG) for _ in range(3)]
    assert all(record.token_ids == plain[LONG] for record in records)
    passes = [record.counters["target_forwards"] for record in records]
    assert max(passes[1:]) < 0.6 * len(plain[LONG]), "the first one's text is known"
    captioner.close()
    known = MemoryFile(file, identity(models["target"]).tokenizer, 1000).read()
    assert list(known) == 3 * [-1, *plain[LONG]]


@pytest.mark.full
def test_what_is_to_be_forgotten_is_so_by_all_that_may_draft(models, monkeypatch):
    monkeypatch.setattr(planned.Planner, "settle", _only(planned.Planner.settle, "suffix, from the text"))
    captioner = auto(models)
    passes = [captioner.caption(LONG).counters["target_forwards"] for _ in range(2)]
    captioner.forget(plan=False)
    passes.append(captioner.caption(LONG).counters["target_forwards"])
    assert captioner.chooser.plan is not None and passes[2] > 1.5 * passes[1]


def _only(settle, name):
    def alone(self, trial, conditions, batch=1):
        plan = settle(self, trial, conditions, batch)
        way = next(w for w in plan.ways if w.name == name and w.topology == "chain")
        self.plan = Plan((way, PLAIN), way, "the test wants it", plan.measured)
        return self.plan

    return alone


def _kept(option, tokens):
    if option.overrides["draft.kind"] in ("text_only", "ngram", "suffix"):
        return 0
    return max(1, round((1 - option.overrides["prune.alpha"]) * tokens))


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_two_workers_that_promise_little_are_not_tried(models):
    assert set(Told(models, beside=1.2).clips({"sequential": 1.0}, 8)) == {"sequential"}


@pytest.mark.full
def test_other_frames_are_measured_anew(models):
    captioner = auto(models)
    captioner.caption(LONG)
    few = captioner.read(LONG).__class__
    clip = captioner.read(LONG)
    short = few(clip.frames[:8], clip.timestamps[:8], clip.facts)
    assert "plan" in captioner.caption(LONG, clip=short).timings


@pytest.mark.full
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


# Several clips at once


FEW = 40
SHORTER = {"generate.max_new_tokens": FEW}


class Given:
    """Clips that are all there from the start, each with its number and path for a key."""

    def __init__(self, captioner, paths):
        read = {path: captioner.read(path) for path in dict.fromkeys(paths)}
        self.left = [Request(str(path), read[path], key=(n, path)) for n, path in enumerate(paths)]

    @property
    def over(self):
        return not self.left

    def take(self):
        return self.left.pop(0) if self.left else None


def folder(captioner, source, batch):
    """What clips were captioned with, by key, and how many were in flight at most."""
    ended, together = {}, 0
    for key, said in captioner.serve(source, batch=batch):
        if isinstance(said, Load):
            together = max(together, said.clips)
        elif isinstance(said, Exception):
            raise said
        elif isinstance(said, Finished):
            ended[key] = said.caption
    return ended, together


@pytest.fixture
def told_of_all(monkeypatch):
    monkeypatch.setattr("vidspec.decoding.serving.EVERY", 0.0)
    monkeypatch.setattr("vidspec.choosing.trial.PACKING", 1e9)  # a busy machine leaves nothing out


@pytest.mark.parametrize("draft", full_but([False], [True, False]), ids=["a draft", "the target alone"])
@pytest.mark.parametrize("batch", full_but([None], [None, 3]))
def test_a_folder_has_the_texts_of_plain_decoding(models, plain, draft, batch, told_of_all):
    captioner = auto(models, draft, **SHORTER)
    ended, together = folder(captioner, Given(captioner, [LONG, *CLIPS, LONG]), batch)
    assert {key: caption.token_ids for key, caption in ended.items()} == {key: plain[key[1]][:FEW] for key in ended}
    plan = captioner.chooser.plan
    sizes = {way.batch for way in plan.ways}
    assert sizes == ({1, 2, *SIZES} if batch is None else {3})
    assert plan.chosen.clips_per_s and all(way.schedule != "parallel" for way in plan.ways)
    assert together == 3 if batch else 1 <= together <= plan.chosen.batch
    measured = [caption for caption in ended.values() if "plan" in caption.timings]
    assert len(measured) == 1 and measured[0].path == str(LONG), "the first is measured and no other"
    assert {"4x1", "4x5", "16x3"} == set(plan.measured["tp_packed"]) or batch == 3
    gc.collect()
    assert models["target"].decoder.slab.used == models["draft"].decoder.slab.used == 0


@pytest.mark.full
def test_what_passes_of_several_clips_take_is_measured_on_copies(models, monkeypatch, told_of_all):
    """Passes are run, and what they take is virtual."""
    captioner, seen = auto(models, **SHORTER), []
    slab = models["target"].decoder.slab
    measure, settle, run = planned.Trial.measure, Planner.settle, planned.Trial._pass_s

    def pass_s(self, engine, spans, rows):
        assert len({(span.start, span.room) for span in spans}) == len(spans) and run(self, engine, spans, rows) > 0
        return (1 if engine.model is models["target"] else 0.2) * (1 + 0.1 * len(spans) + 0.01 * rows * len(spans))

    def watched(self, *args):
        gc.collect()
        span, used = self.run.job.target.span, slab.used
        before = [layer.clone() for layer in _entries(span)]
        conditions = measure(self, *args)
        assert all(torch.equal(a, b) for a, b in zip(before, _entries(span), strict=True)) and slab.used == used
        return conditions

    def settled(self, trial, conditions, batch=1):
        seen.append((trial, conditions))
        return settle(self, trial, conditions, batch)

    monkeypatch.setattr(planned.Trial, "_pass_s", pass_s)
    monkeypatch.setattr(planned.Trial, "measure", watched)
    monkeypatch.setattr(Planner, "settle", settled)
    plan = captioner.plan(LONG, batch=None)
    ((trial, conditions),) = seen
    for clips in (4, 8, 16, 32):
        for rows in (1, 4):
            expected = 1 + 0.1 * clips + 0.01 * clips * rows
            assert conditions.verify_many(clips, clips * rows) == pytest.approx(expected, rel=0.1)
        assert all(one.tq_many is None for one in trial.drafts if one.name.endswith("from the text")), "no pass"
        for one in (one for one in trial.drafts if one.tq_many is not None):
            assert one.tq_many(clips) == pytest.approx(0.2 * (1 + 0.11 * clips)) and one.tq_many(1) == one.tq
    assert 0 < conditions.ahead < conditions.first and trial.most == SIZES[-1]
    assert plan.chosen.batch == 32, "on such a machine more clips always gain"
    assert captioner.plan(LONG).measured.keys() == {"judged", "first", "tp", "drafts"}, "one clip needs none of it"
    assert seen[-1][1].verify_many is None


@pytest.mark.full
def test_without_memory_for_a_second_clip_there_is_one_at_a_time(models, plain, monkeypatch, told_of_all):
    captioner = auto(models, **SHORTER)
    monkeypatch.setattr("vidspec.choosing.trial.free_memory", lambda device: -1)
    ended, together = folder(captioner, Given(captioner, 3 * [LONG]), None)
    assert together == captioner.chooser.plan.chosen.batch == 1
    assert all(caption.token_ids == plain[LONG][:FEW] for caption in ended.values())


@pytest.mark.full
def test_copies_that_find_no_room_leave_nothing_behind(models, plain, monkeypatch, told_of_all):
    """The slab's budget is enough for the clip and not for another."""
    captioner = auto(models, **SHORTER)
    slab = models["target"].decoder.slab
    together = planned.Trial._together

    def crowded(self, engine, span, clips, widths):
        with monkeypatch.context() as patch:
            patch.setattr(slab, "capacity", max(end for end in slab._used.values()))
            patch.setattr(slab, "budget", 1)
            return together(self, engine, span, clips, widths)

    monkeypatch.setattr(planned.Trial, "_together", crowded)
    ended, at_once = folder(captioner, Given(captioner, 2 * [LONG]), None)
    gc.collect()
    assert at_once == 1 and "tp_packed" not in captioner.chooser.plan.measured and slab.used == 0
    assert all(caption.token_ids == plain[LONG][:FEW] for caption in ended.values())


@pytest.mark.full
def test_a_measurement_serves_runs_that_it_tells_of(models, told_of_all):
    captioner = auto(models, **SHORTER)
    planner = captioner.chooser
    assert planner.most(None) == planner.most(4) == 1, "the next clip is to be measured"
    captioner.caption(LONG)
    assert planner.most(1) == 1 and planner.plan.chosen.batch == 1
    ended, _ = folder(captioner, Given(captioner, 2 * [LONG]), 4)
    assert sum("plan" in caption.timings for caption in ended.values()) == 1, "nothing was known of several clips"
    assert planner.most(4) == 4 and planner.plan.chosen.batch == 4
    assert planner.most(2) == 2 and {way.batch for way in planner.plan.ways} == {2}
    assert "plan" not in captioner.caption(LONG).timings
    assert {way.batch for way in planner.plan.ways} == {1}
    assert planner.most(None) == 1, "the most at once were four"


@pytest.mark.full
def test_in_company_nobody_is_measured_anew_and_windows_keep_what_they_heard(models, plain, monkeypatch, told_of_all):
    learned = []
    learn = Pace.learn
    monkeypatch.setattr(Pace, "learn", lambda self, *args: (learned.append(self), learn(self, *args))[1])
    captioner = auto(models, **SHORTER)
    source = Given(captioner, 5 * [LONG])
    small = profiles.load("auto", asked(**{"models.target": "t", "models.draft": "d", "video.frames": 2}), env={})
    other = Captioner(small, models["target"], models["draft"])
    read = other.read(LONG)
    source.left.insert(3, Request(str(LONG), read, key="other"))
    ended, _ = folder(captioner, source, 4)
    assert [key for key, caption in ended.items() if "plan" in caption.timings] == [(0, LONG)]
    assert sum(pace is captioner.pace for pace in learned) <= 1, "once, by the clip that was measured"
    again, _ = folder(captioner, Given(other, [LONG]), 4)
    assert all("plan" in caption.timings for caption in again.values()), "without company it is"


def test_texts_too_short_to_measure_are_captioned_in_company(models, told_of_all):
    captioner = auto(models, **{"generate.max_new_tokens": 5})
    expected = captioner.baseline(LONG).token_ids
    ended, together = folder(captioner, Given(captioner, (SHORT + 4) * [LONG]), 4)
    assert together == 4 and all(caption.token_ids == expected for caption in ended.values())
    why = [caption.schedule["why"] for caption in ended.values()]
    assert why[:SHORT] == ["measuring"] * SHORT and all("too short" in one for one in why[SHORT:])
    assert captioner.chooser.plan is None and captioner.chooser.most(1) == 1 and captioner.chooser.most(None) is None


@pytest.mark.full
def test_a_shorter_beginning_is_tried_where_texts_are_short(models, told_of_all):
    captioner = auto(models, **{"generate.max_new_tokens": 24})
    ended, _ = folder(captioner, Given(captioner, 4 * [LONG]), None)
    assert [("plan" in caption.timings) for caption in ended.values()] == [False, True, False, False]
    assert captioner.chooser.plan is not None


@pytest.mark.full
@pytest.mark.parametrize(
    ("rate", "places", "schedules"),
    [
        (1.01 * CLEARLY, ("cuda:0", "cuda:1"), ["parallel", "sequential"]),
        (0.99 * CLEARLY, ("cuda:0", "cuda:1"), ["sequential"]),
        (9.0, ("cuda:0", "cuda:0"), ["sequential"]),
        (9.0, ("cpu", "cpu"), ["sequential"]),
    ],
)
def test_two_workers_in_company_need_a_device_each_and_promise_clearly_more(models, rate, places, schedules):
    told = Told(models)
    own, other = (SimpleNamespace(device=torch.device(place)) for place in places)
    told.planner.target, told.planner.slot = own, other
    ranked = [planned.replace(way, batch=8, clips_per_s=n) for way, n in ((told.beside, rate), (told.turns, 1.0))]
    assert [way.schedule for way in told.planner._in_company(ranked)] == schedules
