"""Several questions about a clip: each answer is what a fresh prefill gives, though caches are gone on with."""

import gc
import json
from contextlib import closing

import jsonschema
import pytest

from tests.checkpoints import checkpoint
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.errors import ArgumentError, GenerationError, ProfileError, UsageError
from vidspec.events.events import Prefilled
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.models.request import DialogueTurn
from vidspec.runs.feed import Feed
from vidspec.runs.job import Job
from vidspec.runs.run import caption_jobs
from vidspec.runs.schema import record_schema

CLIP = str(shipped()[1])
QUESTIONS = ("Describe the video.", "Where does the circle go?", "And then?")
FEW = {"generate.max_new_tokens": 14, "video.frames": 4}


#: Arguments of ``checkpoint``.
FAMILIES = {
    "llava_onevision": ("readable", {}),
    **{name: (name, {}) for name in ("llava", "llava_next", "internvl")},
    **{name: (name, {"tied": False}) for name in ("qwen2_5_vl", "qwen3_vl", "qwen3_5")},
}


@pytest.fixture(scope="module")
def pair_of():
    made = {}

    def pair(family):
        if family not in made:
            place, (kind, options) = resolve_placement("cpu", "float32"), FAMILIES[family]
            made[family] = [
                loading.load_model(str(checkpoint(kind, noise=noise, **options)), place) for noise in (0.0, 0.05)
            ]
        return made[family]

    return pair


def captioner(pair, name="vanilla-sd", **settings):
    name, *more = name.split("+")
    profile = profiles.load(name, {**FEW, **settings, **dict(one.split("=") for one in more)}, env={})
    return Captioner(profile, pair[0], pair[1] if profile.draft.has_model else None)


def talked(captioner, clip=CLIP, questions=QUESTIONS):
    dialogue = captioner.dialogue(clip)
    return [dialogue.ask(question) for question in questions]


def told_anew(captioner, answers, clip=CLIP):
    """Return each turn's tokens from a new prefill of all that was said before it."""
    said, tokens = (), []
    for one in answers:
        tokens.append(captioner.caption(clip, prompt=one.question["prompt"], earlier=said).token_ids)
        said = (*said, DialogueTurn(one.question["prompt"], one.caption))
    return tokens


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("family", full_but(["llava_onevision"], sorted(FAMILIES)))
def test_every_answer_is_that_of_a_fresh_prefill(pair_of, family):
    fast, plain = captioner(pair_of(family)), captioner(pair_of(family), "ar")
    answers = talked(fast)
    assert [one.token_ids for one in answers] == told_anew(plain, answers)
    assert [one.question["index"] for one in answers] == [0, 1, 2]
    for one in answers[1:]:
        visual = one.counters["visual_tokens"]
        if family == "qwen3_5":  # its states cannot be gone on with from the middle
            assert one.question["reused"] == 0
        else:
            assert one.question["reused"] > visual and one.question["reused_by_draft"] > visual


@pytest.mark.full
@pytest.mark.sample(quick=1, full=3)
@pytest.mark.parametrize("family", full_but(["qwen2_5_vl"], ["llava_onevision", "qwen2_5_vl"]))
@pytest.mark.parametrize(
    "name",
    full_but(
        ["specvlm-chain", "sd-tree", "std", "suffix"],
        [
            "specvlm-chain",
            "sd-tree",
            "sd-tree+draft.topology=adaptive",
            "self-sd",
            "tabed-mtcp",
            "tabed-mt-star",
            "std",
            "onsd",
            "suffix",
            "hybrid",
            "ar",
            "lvspec",
        ],
    ),
)
def test_drafters(pair_of, family, name):
    fast = captioner(pair_of(family), name)
    answers = talked(fast)
    if fast.client.profile.lossless:
        assert [one.token_ids for one in answers] == told_anew(captioner(pair_of(family), "ar"), answers)
    assert (answers[1].question["reused"] == 0) == (name == "std")  # which looks at the target's prefill


@pytest.mark.full
@pytest.mark.parametrize("name", full_but(["hippo"], ["parallelvlm", "hippo"]))
def test_beside_each_other(pair_of, forked_drafts, name):
    with captioner(pair_of("llava_onevision"), name, **{"models.dtype": "float32"}) as fast:
        answers = talked(fast, questions=QUESTIONS[:2])
    assert [one.token_ids for one in answers] == told_anew(captioner(pair_of("llava_onevision"), "ar"), answers)


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", full_but([], ["ar", "vanilla-sd", "sd-tree", "tabed-mtcp-star", "suffix", "self-sd"]))
def test_sampled(pair_of, name):
    """The same draws from the same distributions, of the draft too; a pruner would choose anew for each question."""
    heated = {"generate.temperature": 0.8}
    answers = talked(captioner(pair_of("llava_onevision"), name, **heated))
    anew = captioner(pair_of("llava_onevision"), name, **heated)  # as little remembered as of the talk
    assert [one.token_ids for one in answers] == told_anew(anew, answers)


class CaptionersReader:
    """Reads in this process."""

    def __init__(self, captioner):
        self.captioner = captioner

    def read(self, path, start, end, video, check=None):
        return self.captioner.client.inputs.read(path)

    def close(self):
        pass


@pytest.mark.sample(full=2)
@pytest.mark.parametrize(
    ("name", "temperature"),
    full_but([], [("vanilla-sd", 0.8), ("specvlm-chain", 0.0), ("tabed-mt-star", 0.0)]),
)
def test_in_company(pair_of, name, temperature):
    heated, how = {"generate.temperature": temperature}, RunSpec(turn=QUESTIONS[:2], batch=4)
    fast = captioner(pair_of("llava_onevision"), name, **heated)
    clips = [str(clip) for clip in shipped()[:4]]
    with closing(
        Feed(
            [Job(clip, number=at) for at, clip in enumerate(clips)], how, fast.client.profile, [CaptionersReader(fast)]
        )
    ) as feed:
        found = list(caption_jobs(fast, feed, how))
    for clip in clips:
        answers = [one.caption for one in found if one.path == clip]
        assert [one.token_ids for one in answers] == told_anew(
            captioner(pair_of("llava_onevision"), name, **heated), answers, clip
        )


def asked_at_once(captioner, clip=CLIP):
    """Ask each prompt alone, and all together."""
    return [captioner.caption(clip, prompt=one).token_ids for one in QUESTIONS], captioner.captions(clip, QUESTIONS)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("family", full_but(["qwen2_5_vl"], sorted(FAMILIES)))
def test_prompts_at_once(pair_of, family):
    alone, together = asked_at_once(captioner(pair_of(family)))
    assert [one.token_ids for one in together] == alone
    assert [(one.question["kind"], one.question["index"]) for one in together] == [("prompt", at) for at in range(3)]
    assert together[0].question["reused"] == together[0].question["reused_by_draft"] == 0
    for one in together[1:]:
        visual = one.counters["visual_tokens"]
        if family == "qwen3_5":  # its states cannot be gone on with from the middle
            assert one.question["reused"] == 0
        else:
            assert one.question["reused"] > visual and one.question["reused_by_draft"] > visual


@pytest.mark.sample(full=3)
@pytest.mark.parametrize(
    "name",
    full_but([], ["specvlm-chain", "tabed-mtcp-star", "self-sd", "std", "hybrid", "ar"]),
)
def test_prompts_at_once_by(pair_of, name):
    fast = captioner(pair_of("llava_onevision"), name)
    alone, together = asked_at_once(fast)
    assert [one.token_ids for one in together] == alone
    whole = name == "std"  # which looks at the target's prefill
    assert [one.question["reused"] == 0 for one in together] == [True, whole, whole]


@pytest.mark.full
def test_prompts_drawn_at_once(pair_of):
    fast = captioner(pair_of("llava_onevision"), **{"generate.temperature": 0.8})
    alone, together = asked_at_once(fast)
    assert [one.token_ids for one in together] == alone


@pytest.mark.full
def test_prompts_at_once_beside_each_other(pair_of, forked_drafts):
    with captioner(pair_of("llava_onevision"), "parallelvlm", **{"models.dtype": "float32"}) as fast:
        alone, together = asked_at_once(fast)
    assert [one.token_ids for one in together] == alone


@pytest.mark.full
def test_what_prompts_held_is_given_back(pair_of):
    fast = captioner(pair_of("llava_onevision"))
    before = fast.client.setup.target.model.decoder.slab.used
    fast.captions(CLIP, QUESTIONS)
    assert fast.client.setup.target.model.decoder.slab.used == before
    with pytest.raises(GenerationError, match="exceed"):
        fast.captions(CLIP, [QUESTIONS[0], 40_000 * "word "])
    fast.client.thread.call(gc.collect)  # what was cancelled, and the error
    assert fast.client.setup.target.model.decoder.slab.used == before


@pytest.mark.full
def test_what_is_pruned_stays(pair_of):
    dialogue = captioner(pair_of("llava_onevision"), "sd-attention", **{"prune.alpha": 0.5}).dialogue(CLIP)
    kept = [[one.kept for one in dialogue.stream(text) if isinstance(one, Prefilled)] for text in QUESTIONS]
    assert kept[0] == kept[1] == kept[2] and kept[0][0]


@pytest.mark.full
@pytest.mark.parametrize("pair", ["embedded", "embedded-qwen"])
def test_the_built_in_pairs(pair):
    with Captioner.from_profile("vanilla-sd", overrides={"models.pair": pair, "models.dtype": "float32"}) as fast:
        answers = talked(fast, questions=("Describe the video.", "Describe the video."))
        assert [one.token_ids for one in answers] == told_anew(fast, answers)
        first, second = answers
        prompt = second.counters["visual_tokens"]
        if pair == "embedded-qwen":  # OneVision's template writes an answer otherwise than it asks for one: read again
            prompt += len(first.token_ids)
        assert second.question["reused"] > prompt and second.question["reused_by_draft"] > prompt
        assert first.question == {
            "kind": "turn",
            "index": 0,
            "prompt": "Describe the video.",
            "reused": 0,
            "reused_by_draft": 0,
            "saved_s": 0.0,
        }
        assert second.question["saved_s"] > 0
        for one in answers:
            jsonschema.Draft202012Validator(record_schema()).validate(json.loads(one.to_json()))


@pytest.mark.full
def test_a_turn_that_is_given_up_was_not_asked(pair_of):
    fast = captioner(pair_of("llava_onevision"))
    dialogue = fast.dialogue(CLIP)
    first = dialogue.ask(QUESTIONS[0])
    events = dialogue.stream("Never mind.")
    assert any(isinstance(one, Prefilled) for one in events)  # and no further
    events.close()
    assert dialogue.exchanges == (DialogueTurn(QUESTIONS[0], first.caption),)
    second = dialogue.ask(QUESTIONS[1])
    assert second.question["index"] == 1 and second.question["reused"] > second.counters["visual_tokens"]
    anew = fast.caption(CLIP, prompt=QUESTIONS[1], earlier=dialogue.exchanges[:1])
    assert second.token_ids == anew.token_ids


@pytest.mark.full
def test_options_of_one_question(pair_of):
    fast = captioner(pair_of("llava_onevision"))
    dialogue = fast.dialogue(CLIP, repetition_penalty=1.2)
    own = [{"max_new_tokens": 3}, {"temperature": 0.9, "seed": 4}, {"stop": " circle", "repetition_penalty": 1.0}]
    for question, options in zip(QUESTIONS, own, strict=True):
        earlier = dialogue.exchanges
        found = dialogue.ask(question, **options)
        anew = fast.caption(CLIP, prompt=question, earlier=earlier, **{"repetition_penalty": 1.2, **options})
        assert found.token_ids == anew.token_ids and (found.question["reused"] > 0) == bool(earlier)
    with pytest.raises(ArgumentError, match="no argument 'start'"):
        dialogue.ask("And then?", start=1.0)
    with pytest.raises(ProfileError, match=r"generate\.temperature"):
        dialogue.ask("And then?", temperature=-1)
    assert len(dialogue.exchanges) == len(QUESTIONS)


def test_the_last_question_again(pair_of):
    dialogue = captioner(pair_of("llava_onevision"), **{"generate.temperature": 1.0}).dialogue(CLIP)
    with pytest.raises(UsageError, match="nothing was asked"):
        next(dialogue.again())
    first, second = (dialogue.ask(question) for question in QUESTIONS[:2])
    again = list(dialogue.again())[-1].caption
    assert again.question["index"] == 1 and again.token_ids != second.token_ids
    assert [one.answer for one in dialogue.exchanges] == [first.caption, again.caption]
    next(dialogue.again())  # given up: what was answered stays
    assert [one.answer for one in dialogue.exchanges] == [first.caption, again.caption]


@pytest.mark.full
def test_a_template_that_rewrites_what_was_said(pair_of):
    target, draft = pair_of("llava_onevision")
    fast = captioner((target, draft))
    before = target.template.source
    rewrites = "{{ messages | length }}" + before  # the very first token changes with each turn
    try:
        target.template.source = draft.template.source = rewrites
        answers = talked(fast)
        assert [one.token_ids for one in answers] == told_anew(fast, answers)
        assert [one.question["reused"] for one in answers] == [0, 0, 0]
    finally:
        target.template.source = draft.template.source = before


@pytest.mark.full
def test_a_dialogue_that_has_become_too_long():
    place = resolve_placement("cpu", "float32")
    target = loading.load_model(str(checkpoint("readable", context=100)), place)
    dialogue = captioner((target, None), "ar").dialogue(CLIP)
    with pytest.raises(GenerationError, match="exceed the model's 100"):
        for _ in range(20):
            dialogue.ask("Describe the video.")
    assert len(dialogue.exchanges) >= 1


@pytest.mark.full
def test_caches_of_turns_that_are_over_are_given_back(pair_of):
    fast = captioner(pair_of("llava_onevision"))
    slab = fast.client.setup.target.model.decoder.slab
    before = slab.used
    dialogue = fast.dialogue(CLIP)
    used = []
    for question in QUESTIONS:
        read = next(one for one in list(dialogue.stream(question)) if isinstance(one, Prefilled))
        used.append(slab.used - before == read.prompt_tokens + fast.client.setup.room)
    assert used == [True, True, True]
    del dialogue
    assert slab.used == before
