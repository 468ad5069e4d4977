"""``schedule.kind: race``: texts stay the target's, the fastest of the candidates is kept, and records say so."""

import gc
from dataclasses import replace

import pytest
from decoding import checkpoints

from vidspec import autotune
from vidspec.autotune import best
from vidspec.captioner import Captioner
from vidspec.cli import main
from vidspec.config import profiles
from vidspec.drafting.lookup import Lookup
from vidspec.embedded.samples import shipped
from vidspec.engine.requests import PrefillPrompt
from vidspec.errors import GenerationError
from vidspec.events.events import Finished, Round
from vidspec.models import loading
from vidspec.models.placement import placement
from vidspec.models.request import Request

PLACE = placement("cpu", "float32")
CLIPS = shipped()
TOKENS = 48
VANILLA, SELF = "vanilla-sd+draft.gamma=auto", ["self-sd+draft.gamma=auto", "self-int8+draft.gamma=auto"]
WITH_MODEL, WITHOUT = [VANILLA, "sd-adaptive-tree", "hybrid", "ar"], ["suffix", "ngram", *SELF, "ar"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target, near = checkpoints.save(folder / "target"), checkpoints.save(folder / "draft", noise=0.02)
    return {"target": loading.load(str(target), PLACE), "draft": loading.load(str(near), PLACE)}


@pytest.fixture(scope="module")
def plain(models):
    captioner = Captioner(profiles.load("ar", asked(), env={}), models["target"], None)
    return {clip: captioner.caption(clip).token_ids for clip in CLIPS}


@pytest.fixture
def at_once(monkeypatch):
    """A race is held on the second clip, whatever it costs."""
    monkeypatch.setattr(autotune, "SHARE", 1e9)


def asked(**more):
    return {"generate.max_new_tokens": TOKENS, "models.threads": 1, **more}


def auto(models, draft=True, **more):
    named = {"models.pair": None, "models.target": "t", "models.draft": "d" if draft else None}
    profile = profiles.load("auto", asked(**{**named, **more}), env={})
    return Captioner(profile, models["target"], models["draft"] if draft else None)


def clocked(monkeypatch, seconds):
    """Rounds of profiles end after so many seconds a token, by drafter and topology; what was begun, in its order."""
    decode, begun = autotune.decode, []

    def virtual(sequence):
        draft, emit = sequence.setup.profile.draft, sequence.emit
        way = draft.topology if draft.kind == "model" else draft.kind
        begun.append(way)

        def clocked(event):
            if isinstance(event, Round):
                tokens = len(sequence.token_ids) + len(event.token_ids)
                event = replace(event, elapsed=(tokens - 1) * seconds[way])
            emit(event)

        sequence.emit = clocked
        return decode(sequence)

    monkeypatch.setattr(autotune, "decode", virtual)
    return begun


@pytest.mark.parametrize("draft", [True, False], ids=["a draft", "the target alone"])
def test_every_clip_has_the_text_of_plain_decoding(models, plain, draft, at_once):
    captioner = auto(models, draft)
    names = WITH_MODEL if draft else WITHOUT
    for clip in CLIPS:
        record = captioner.caption(clip)
        assert record.token_ids == plain[clip] and record.lossless, clip.name
    assert list(captioner.autotune.result.rates) == names
    assert all(captioner.autotune.result.rates.values())
    gc.collect()
    assert models["target"].decoder.slab.used == models["draft"].decoder.slab.used == 0


class Given:
    """Clips that are all there from the start."""

    def __init__(self, captioner, paths):
        self.left = [Request(str(path), captioner.read(path), key=(n, path)) for n, path in enumerate(paths)]

    @property
    def over(self):
        return not self.left

    def take(self):
        return self.left.pop(0) if self.left else None


@pytest.mark.full
@pytest.mark.parametrize("draft", [True, False], ids=["a draft", "the target alone"])
def test_clips_at_once_have_the_texts_of_plain_decoding(models, plain, draft, at_once):
    captioner, ended = auto(models, draft), {}
    for key, said in captioner.serve(Given(captioner, [*CLIPS[1:], *CLIPS]), batch=4):
        assert not isinstance(said, Exception)
        if isinstance(said, Finished):
            ended[key] = said.caption
    assert {key: one.token_ids for key, one in ended.items()} == {key: plain[key[1]] for key in ended}
    assert len(ended) == 2 * len(CLIPS) - 1 and sum("plan" in one.timings for one in ended.values()) == 1
    assert captioner.autotune.result is not None


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"chain": 0.1, "adaptive": 0.05, "hybrid": 0.2}, "sd-adaptive-tree"),
        ({"chain": 0.1, "adaptive": 0.2, "hybrid": 0.05}, "hybrid"),
        ({"chain": 0.1, "adaptive": 0.099, "hybrid": 0.2}, VANILLA),
        ({"chain": 0.1, "adaptive": 0.2, "hybrid": 0.2, "none": 0.05}, "ar"),
    ],
)
def test_the_fastest_is_kept_and_said(models, plain, monkeypatch, at_once, seconds, chosen):
    begun = clocked(monkeypatch, {"none": 0.3, **seconds})
    captioner = auto(models)
    first, raced, later = (captioner.caption(clip) for clip in (CLIPS[1], CLIPS[2], CLIPS[3]))
    turn = ["chain", "adaptive", "hybrid", "none"]
    assert begun[:9] == ["chain", *turn, *turn]
    again = [way for way in turn if seconds.get(way, 0.3) < min(seconds.values()) / autotune.CLOSE]
    kept = begun[-1]
    assert begun[9:] == [*again, kept, kept]
    assert first.schedule["why"].startswith(f"{VANILLA}: a race is held once") and "plan" not in first.timings
    why = later.schedule["why"]
    assert raced.schedule["why"] == why and why.startswith(f"{chosen} by a race over 32 tokens of one clip: ")
    assert f"sd-adaptive-tree {1 / seconds['adaptive']:.0f} tokens/s" in why
    assert raced.schedule["kind"] == ("autoregressive" if chosen == "ar" else "sequential")
    assert raced.timings["plan"] > 0 and "plan" not in later.timings
    assert [one.token_ids for one in (first, raced, later)] == [plain[CLIPS[n]] for n in (1, 2, 3)]


def test_equal_rates_are_the_defaults():
    assert best([95.1, 100.0]) == 0 and best([94.9, 100.0]) == 1
    assert best([None, 1.0]) == 1 and best([None, None]) == 0


@pytest.mark.full
def test_a_race_waits_until_it_costs_little(models):
    captioner = auto(models)
    captioner.caption(CLIPS[1])
    assert captioner.caption(CLIPS[2]).timings.get("plan") is None
    captioner.autotune._spent_s += 1e9
    assert captioner.caption(CLIPS[1]).timings["plan"] > 0
    captioner.forget()
    assert captioner.autotune.result is None and captioner.caption(CLIPS[1]).timings.get("plan") is None


@pytest.mark.full
def test_prompts_are_read_once(models, monkeypatch, at_once):
    """By all candidates and by the clip; those that show their draft less of it read it once more."""
    captioner = auto(models)
    captioner.caption(CLIPS[1])
    prompts = []
    made = PrefillPrompt.__init__

    def watched(self, engine, prompt, *args, **more):
        prompts.append((engine.model, more.get("cached") is not None))
        made(self, engine, prompt, *args, **more)

    monkeypatch.setattr(PrefillPrompt, "__init__", watched)
    captioner.caption(CLIPS[2])
    whole = [model for model, held in prompts if not held]
    assert sorted(map(id, whole)) == sorted(map(id, models.values())) and len(prompts) > 10


@pytest.mark.full
def test_drafters_do_not_remember_the_texts_of_a_race(models, monkeypatch, at_once):
    captioner = auto(models, draft=False)
    captioner.caption(CLIPS[1])
    finished, finish = [], Lookup.finish
    monkeypatch.setattr(Lookup, "finish", lambda self, ids: (finished.append(ids), finish(self, ids))[1])
    monkeypatch.setattr(autotune, "TIE", 1.0)  # the default is kept
    text = captioner.caption(CLIPS[2]).token_ids
    assert captioner.autotune.result is not None and finished == [text]


def test_a_candidate_that_fails_is_left_out(models, plain, monkeypatch, at_once):
    captioner, decode = auto(models), autotune.decode

    def failing(sequence):
        if sequence.setup.profile.draft.kind == "hybrid":
            raise GenerationError("no memory", kind="memory")
        return (yield from decode(sequence))

    monkeypatch.setattr(autotune, "decode", failing)
    assert [captioner.caption(CLIPS[n]).token_ids for n in (1, 2)] == [plain[CLIPS[n]] for n in (1, 2)]
    assert captioner.autotune.result.rates["hybrid"] is None
    assert "hybrid failed" in captioner.autotune.result.why


@pytest.mark.full
def test_texts_too_short_decide_nothing(models, at_once):
    captioner = auto(models, **{"generate.max_new_tokens": 5})
    records = [captioner.caption(CLIPS[1]) for _ in range(autotune.RACES + 2)]
    assert captioner.autotune.result is None
    assert ["plan" in one.timings for one in records] == [False, *autotune.RACES * [True], False]
    assert records[-1].schedule["why"] == f"{VANILLA}: texts are too short for a race"


def test_drawn_texts_do_not_depend_on_the_race(models, at_once):
    settings = {"generate.temperature": 0.8, "generate.seed": 3}
    one = Captioner(profiles.load("ar", asked(**settings), env={}), models["target"], None)
    captioner = auto(models, **settings)
    for clip in CLIPS[1:]:
        assert captioner.caption(clip).token_ids == one.caption(clip).token_ids
    assert captioner.autotune.result is not None


def test_nothing_loose_is_chosen_unless_it_is_asked_for(models):
    assert auto(models).caption(CLIPS[1]).loose is None
    loose = auto(models, **{"accept.rule": "lvspec"}).caption(CLIPS[1])
    assert loose.lossless is False and loose.loose is not None


@pytest.mark.full
def test_turns_of_a_dialogue_are_not_raced(models, at_once):
    dialogue = auto(models).dialogue(CLIPS[1])
    for question in ("What moves?", "And then?"):
        *_, last = dialogue.stream(question)
        assert "plan" not in last.caption.timings


def test_the_command_line_says_what_was_chosen(tmp_path, capsys, at_once):
    args = ["caption", str(CLIPS[1]), str(CLIPS[2]), "-p", "auto", "-v", "--batch", "1", "--frames", "4"]
    args += ["--set", "models.threads=1", "--max-new-tokens", "40", "--output-dir", str(tmp_path)]
    assert main(args) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("schedule: ")]
    assert len(said) == 2 and said[0].startswith(f"schedule: {VANILLA}: a race is held once")
    assert all(f"{name} " in said[1] for name in WITH_MODEL) and "by a race over 32 tokens" in said[1]


def test_profiles_of_earlier_versions_are_raced(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text("base: vanilla-sd\ndraft: {gamma: auto}\nschedule: {kind: plan}\n")
    profile = profiles.load(str(file), env={})
    assert profile.races and profile.schedule.kind == "race"
    assert profile.model_dump(exclude={"name", "about"}) == profiles.load("auto", env={}).model_dump(
        exclude={"name", "about"}
    )


@pytest.mark.parametrize("draft", [True, False], ids=["a draft", "the target alone"])
def test_candidates_are_packaged_profiles(models, draft):
    for one in auto(models, draft).autotune.candidates:
        name, _, differs = one.name.partition("+")
        named = profiles.load(name, dict([differs.split("=")]) if differs else None, env={})
        for section in ("draft", "prune", "schedule", "accept"):
            assert getattr(one.setup.profile, section) == getattr(named, section), (one.name, section)


@pytest.mark.full
def test_a_named_drafter_without_a_model_comes_first(models):
    assert [one.name for one in auto(models, **{"draft.kind": "ngram"}).autotune.candidates] == ["ngram", *WITH_MODEL]
    names = [one.name for one in auto(models, draft=False, **{"draft.kind": "ngram"}).autotune.candidates]
    assert names == ["ngram", "suffix", *SELF, "ar"]


def test_both_ways_of_the_schedule_auto_are_whole_profiles():
    chosen = profiles.load("parallelvlm", {"schedule.kind": "auto"}, env={})
    in_turns, beside = (profiles.override(chosen, way) for way in autotune._WAYS.values())
    assert (in_turns.schedule.kind, in_turns.draft.gamma) == ("sequential", "auto")
    assert in_turns.schedule.prefill == "sequential"
    assert (beside.schedule.kind, beside.draft.gamma) == ("parallel", "auto")
    assert beside.schedule.prefill == "parallel" and in_turns.prune == beside.prune
