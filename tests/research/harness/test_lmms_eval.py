"""The model of LMMs-Eval without the harness: what its strings mean, what is shown, and the answers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from research.lmms_eval.answering import Answering, Totals
from research.lmms_eval.arguments import overrides_of, wanted
from research.lmms_eval.visuals import shown
from tests.research.harness.standin import CLIP, GREEDY, OTHER, PROMPT, own, under
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.sections import VideoSection
from vidspec.errors import ProfileError, UsageError, VideoError
from vidspec.models import loading

pytestmark = pytest.mark.full


@pytest.fixture
def answering(captioner):
    return Answering(captioner)


# --- what strings mean


def test_model_arguments_are_overrides():
    given = {"target": "big", "draft": "small", "dtype": "float32", "max_frames_num": 8, "prune.alpha": 0.5}
    assert overrides_of(given) == {
        "models.target": "big",
        "models.draft": "small",
        "models.dtype": "float32",
        "video.frames": 8,
        "prune.alpha": 0.5,
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pretraind": "big"}, "there is no 'pretraind'; did you mean pretrained?"),
        ({"gamma": 4}, "such as draft.gamma=4"),
        ({"target": "big", "pretrained": "other"}, "pretrained sets models.target, which is set already"),
        ({"frames": 8, "video.frames": 16}, "video.frames sets video.frames, which is set already"),
    ],
)
def test_model_arguments_that_are_none(given, message):
    with pytest.raises(UsageError) as error:
        overrides_of(given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("kwargs", "overrides"),
    [
        ({}, {}),
        ({"max_new_tokens": None, "temperature": None}, {}),
        ({"max_new_tokens": 16, "temperature": 0}, {"generate.max_new_tokens": 16, "generate.temperature": 0.0}),
        ({"max_gen_toks": 16}, {"generate.max_new_tokens": 16}),
        ({"temperature": 0, "top_p": 0}, {"generate.temperature": 0.0}),
        ({"temperature": 0.7, "top_p": 0.9}, {"generate.temperature": 0.7, "generate.top_p": 0.9}),
        ({"temperature": 0.7, "top_p": 0.9, "do_sample": False}, {"generate.temperature": 0.0}),
        ({"do_sample": True}, {"generate.temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.2}, {"generate.temperature": 0.2}),
        ({"top_p": 0.9}, {"generate.top_p": 0.9}),
    ],
)
def test_generation_kwargs_are_overrides(kwargs, overrides):
    assert wanted(kwargs).overrides == overrides


def test_until():
    assert wanted({"until": "\n"}).until == ("\n",)
    assert wanted({"until": ["\n\n", "", "USER:"]}).until == ("USER:",)
    assert wanted({}).until == ()


def test_keys_without_effect_are_told():
    assert wanted({"max_new_tokens": 4, "image_aspect_ratio": "pad", "top_k": 5}).unread == (
        "image_aspect_ratio",
        "top_k",
    )


def test_there_is_no_beam_search():
    with pytest.raises(UsageError, match="num_beams 4"):
        wanted({"num_beams": 4})


# --- what is shown


def images(count, size=(40, 30), mode="RGB"):
    return [Image.new(mode, size, index if mode == "L" else (index, 0, 0)) for index in range(count)]


@pytest.mark.parametrize("visual", [CLIP, [CLIP], (Path(CLIP),), [[CLIP]]])
def test_one_video(visual):
    assert shown(visual, VideoSection()) == CLIP


def test_images_are_the_frames_of_a_video():
    clip = shown(images(10), VideoSection(frames=4))
    assert clip.frames.shape == (4, 30, 40, 3) and clip.frames.dtype == np.uint8
    assert clip.frames[:, 0, 0, 0].tolist() == [0, 3, 6, 9] == clip.timestamps.tolist()
    assert (clip.facts.width, clip.facts.height, clip.facts.frame_count) == (40, 30, 10)


def test_images_are_all_taken_and_made_smaller():
    clip = shown([images(3, mode="L")], VideoSection(fps=2, max_pixels=300))
    assert clip.frames.shape == (3, 15, 20, 3)
    assert clip.frames[:, 5, 5, 1].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("visual", "message"),
    [
        (None, "no video"),
        ([], "no video"),
        ([CLIP, OTHER], "2 videos"),
        ([CLIP, *images(1)], "a video and images"),
        ([*images(1), *images(1, (10, 10))], "images of 2 sizes"),
        ([np.zeros(3)], "a ndarray"),
    ],
)
def test_no_video_or_several(visual, message):
    with pytest.raises(UsageError, match=message):
        shown(visual, VideoSection())


# --- answers


def test_the_answer_is_the_captioners_own(answering, captioner):
    text, record = answering.answer(PROMPT, GREEDY, [CLIP], "clip")
    plain = own(captioner, max_new_tokens=24)
    assert (text, record.token_ids) == (plain.caption, plain.token_ids)
    assert text and 9 < len(record.token_ids) <= 24
    assert answering.answer("Another question?", GREEDY, [CLIP], "clip")[0] != text


def test_frames_as_images_give_the_same_answer(answering, captioner):
    frames = [Image.fromarray(frame) for frame in captioner.client.inputs.read(CLIP).frames]
    text, record = answering.answer(PROMPT, GREEDY, frames, "frames")
    assert text == answering.answer(PROMPT, GREEDY, [CLIP], "clip")[0]
    assert record.path == "frames" and record.video["frames"] == 6


def test_an_empty_question_is_the_profiles(answering, captioner):
    asking = Answering(under(captioner, prompt=PROMPT))
    assert asking.answer("", GREEDY, [CLIP], "clip")[0] == own(captioner, max_new_tokens=24).caption


def test_places_for_images_are_taken_out_of_the_question(answering):
    assert (
        answering.answer(f"<image>\n{PROMPT}<video>", GREEDY, [CLIP], "clip")[0]
        == answering.answer(PROMPT, GREEDY, [CLIP], "clip")[0]
    )


def test_until_cuts_the_answer(answering):
    text, record = answering.answer(PROMPT, GREEDY, [CLIP], "clip")
    late, early = text[9:12], text[4:7]
    assert text.index(early) < text.index(late)
    cut, whole = answering.answer(PROMPT, {**GREEDY, "until": [late, early]}, [CLIP], "clip")
    assert cut == text[: text.index(early)]
    assert whole.token_ids == record.token_ids


def test_settings_are_honoured_over_the_same_models(answering, captioner, monkeypatch):
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("models were loaded again"))
    sampled = {"max_new_tokens": 12, "temperature": 1.5, "top_p": 0.9, "do_sample": True}
    drawn = answering.answer(PROMPT, sampled, [CLIP], "clip")[1]
    assert drawn.token_ids == own(captioner, max_new_tokens=12, temperature=1.5, top_p=0.9).token_ids
    greedy = answering.answer(PROMPT, GREEDY, [CLIP], "clip")[1]
    assert greedy.token_ids[:12] != drawn.token_ids

    one, two = (answering.under(wanted(kwargs).overrides) for kwargs in (sampled, GREEDY))
    assert one is not two and one is answering.under(wanted(sampled).overrides)
    assert one.client.setup.target.model is two.client.setup.target.model is captioner.client.setup.target.model
    assert one.client.setup.draft.model is two.client.setup.draft.model is captioner.client.setup.draft.model
    assert answering.under({}) is captioner


def test_repeats_are_draws_of_their_own(answering):
    sampled = {"max_new_tokens": 12, "temperature": 1.5}
    first, again, second = (
        answering.answer(PROMPT, sampled, [CLIP], "clip", repeat)[1].token_ids for repeat in (0, 0, 1)
    )
    assert first == again != second
    assert answering.under({}, repeat=1) is answering.captioner


def test_errors_of_a_request(answering, captioner):
    with pytest.raises(VideoError, match=r"gone\.mp4"):
        answering.answer(PROMPT, GREEDY, ["gone.mp4"], "clip")
    lossy = Answering(
        Captioner(
            profiles.override(captioner.client.profile, {"accept.rule": "lvspec"}),
            captioner.client.setup.target.model,
            captioner.client.setup.draft.model,
        )
    )
    with pytest.raises(ProfileError, match="lvspec compares greedy choices"):
        lossy.answer(PROMPT, {"temperature": 0.7}, [CLIP], "clip")


def test_totals(answering):
    records = [answering.answer(PROMPT, GREEDY, [clip], "clip")[1] for clip in (CLIP, OTHER)]
    totals = Totals()
    for record in records:
        totals.add(record)
    rates = totals.rates
    counters = [record.counters for record in records]
    rounds = [length for each in counters for length in each["accepted_lengths"]]
    assert rates["tau"] == sum(rounds) / len(rounds) > 0
    decoding = sum(record.timings["decode"] for record in records)
    assert rates["decode_tokens_per_s"] == (sum(each["emitted"] for each in counters) - 2) / decoding
    assert rates["loose_share"] == 0
    emitted = sum(len(record.token_ids) for record in records)
    assert str(totals).startswith(f"2 answers, {emitted} tokens, ") and f"tau {rates['tau']:.2f}" in str(totals)
    totals.loose, totals.tokens = 12, 48
    assert str(totals).endswith("25.0% of the tokens loosely accepted")
    assert Totals().rates == {} and str(Totals()).startswith("0 answers, 0 tokens")
