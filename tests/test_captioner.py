"""From a path to a record, with small random models: events, record, errors and the life of a captioner."""

import gc
import json
import pickle
import sys
import threading
import weakref

import jsonschema
import numpy as np
import pytest
import torch

from tests.checkpoints import checkpoint, readable
from tests.ready_clips import ReadyClips, serve_captions
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding import decode, engine_thread
from vidspec.decoding.auto import ROWS, explain
from vidspec.decoding.captioner_models import models_record
from vidspec.decoding.tickets import Ticket
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.engine.slab import Slab
from vidspec.errors import ArgumentError, GenerationError, ModelError, ProfileError, VideoError
from vidspec.events.events import Finished, InputsReleased, Opened, Prefilled, PrefillProgress, Round
from vidspec.events.record import RECORD_KEYS
from vidspec.models import loading
from vidspec.models.request import CaptionRequest, DialogueTurn
from vidspec.runs.schema import record_schema
from vidspec.video.base import Clip

CLIP = str(shipped()[1])
FRAMES = 6
#: Four pooled features a frame, and the newline.
VISUAL = FRAMES * readable.CELLS**2 + 1


@pytest.fixture(scope="module")
def pair():
    return checkpoint("readable"), checkpoint("readable", noise=0.05)


@pytest.fixture(scope="module")
def settings_(pair):
    return {
        "models.target": str(pair[0]),
        "models.draft": str(pair[1]),
        "models.device": "cpu",
        "models.dtype": "float32",
        "video.frames": FRAMES,
        "generate.max_new_tokens": 30,
    }


@pytest.fixture(scope="module")
def captioner(settings_):
    with Captioner.from_profile("sd-attention", overrides={**settings_, "prune.alpha": 0.5}) as captioner:
        yield captioner


@pytest.fixture(scope="module")
def events(captioner):
    return list(captioner.stream(CLIP))


@pytest.fixture(scope="module")
def record(events):
    return events[-1].caption


def other(captioner, overrides):
    """The same models under other settings."""
    profile = profiles.override(captioner.client.profile, overrides)
    return Captioner(profile, captioner.client.setup.target.model, captioner.client.setup.draft.model)


def members(made):
    return {name for name in dir(made) if not name.startswith("_")}


def test_what_a_user_sees_is_short(captioner):
    made = {"from_pretrained", "from_profile", "close"}
    one_clip = {"caption", "stream", "stream_text", "captions", "dialogue"}
    assert members(captioner) == made | one_clip | {"caption_many", "client"} and len(members(captioner)) <= 10
    assert len(members(captioner.client)) <= 12 and len(members(captioner.client.inputs)) <= 12


def test_values_left_open_are_reported_with_the_reason(captioner):
    assert [one.key for one in explain(captioner.client.setup)] == ["models.decoder", "chat template"]
    chain = {"draft.topology": "chain", "draft.gamma": "auto"}
    again = other(captioner, {"models.device": "auto", "models.dtype": "auto", **chain})
    choices = {key: value for key, value, why in explain(again.client.setup) if why}
    machine = {"models.device", "models.draft_device", "models.dtype", "models.decoder", "draft.gamma"}
    assert choices.keys() == machine | {"chat template"}
    assert choices["models.dtype"] == "float32" and choices["draft.gamma"] == f"at most {ROWS}"


def test_events_come_in_order(events):
    kinds = [type(event) for event in events]
    assert kinds[:4] == [Opened, Prefilled, Round, InputsReleased] and kinds[-1] is Finished
    assert len(kinds) > 5 and set(kinds[4:-1]) == {Round}


def test_the_first_token_is_there_before_the_draft_looks(captioner, record, monkeypatch):
    model, looked = captioner.client.setup.draft.model, []
    encode = model._chunk
    monkeypatch.setattr(model, "_chunk", lambda *args: looked.append(1) or encode(*args))
    said, over = [], threading.Event()

    def deliver(event):
        said.append((event, bool(looked)))
        if isinstance(event, Finished | Exception):
            over.set()

    captioner.client.submit(captioner.client.inputs.read_request(CaptionRequest(CLIP)), Ticket(deliver))
    assert over.wait(60)
    emitted = 0
    for event, had_looked in said:
        emitted += isinstance(event, Round)
        assert had_looked == (emitted > 1 or isinstance(event, InputsReleased | Finished))
    assert event.caption.token_ids == record.token_ids
    one = captioner.caption(CLIP, max_new_tokens=1)
    assert len(looked) == 1 and one.token_ids == record.token_ids[:1] and one.timings["decode"] == 0


@pytest.mark.full
def test_models_that_preprocess_alike_share_pixels(captioner, record, monkeypatch):
    models, done = (captioner.client.setup.target.model, captioner.client.setup.draft.model), []
    for model in models:
        preprocess = model.preprocess
        monkeypatch.setattr(model, "preprocess", lambda clip, m=model, run=preprocess: done.append(m) or run(clip))
    assert captioner.caption(CLIP).token_ids == record.token_ids and done == [models[0]]
    monkeypatch.setattr(models[1], "_processor", {**models[1]._processor, "image_mean": [0.1, 0.1, 0.1]})
    assert captioner.caption(CLIP).token_ids == record.token_ids and done == [models[0], *models]


def test_opened(events):
    opened = events[0]
    assert opened.path == CLIP and opened.frames == len(opened.timestamps) == FRAMES
    assert opened.facts.codec == "h264" and (opened.facts.width, opened.facts.height) == (320, 240)


def test_prefilled(events):
    prefilled = events[1]
    assert prefilled.visual_tokens == VISUAL < prefilled.prompt_tokens
    assert events[-1].caption.counters["prompt_tokens"] == prefilled.prompt_tokens
    assert len(prefilled.kept) == max(1, round(0.5 * VISUAL)) == sum(prefilled.kept_per_frame)
    assert list(prefilled.kept) == sorted(set(prefilled.kept)) and prefilled.kept[-1] == VISUAL - 1
    assert prefilled.tokens_per_frame == (4,) * (FRAMES - 1) + (5,)  # the newline goes with the last frame
    per_frame = [sum(min(i // 4, FRAMES - 1) == frame for i in prefilled.kept) for frame in range(FRAMES)]
    assert list(prefilled.kept_per_frame) == per_frame
    assert prefilled.elapsed > 0
    ((name, ranks),) = prefilled.signals  # what the pruner went by
    assert name == "attention" and len(ranks) == VISUAL
    highest = sorted(range(VISUAL - 1), key=ranks.__getitem__)[-(len(prefilled.kept) - 1) :]  # the newline stays anyway
    assert set(highest) == set(prefilled.kept[:-1])


def test_the_rounds_are_the_record(events, record, captioner):
    rounds = [event for event in events if isinstance(event, Round)]
    assert [token for step in rounds for token in step.token_ids] == record.token_ids
    assert all(len(step.texts) == len(step.token_ids) for step in rounds)
    assert "".join(text for step in rounds for text in step.texts).strip() == record.caption != ""
    decoded = captioner.client.setup.target.model.tokenizer.decode(record.token_ids, skip_special_tokens=True)
    assert decoded.strip() == record.caption


def test_the_record_satisfies_its_schema(record):
    written = json.loads(record.to_json())
    assert tuple(written) == RECORD_KEYS
    jsonschema.Draft202012Validator(record_schema()).validate(written)
    assert written["error"] is None


def test_the_record_says_what_was_done(record, pair):
    assert record.lossless is True and record.profile == "sd-attention" and record.path == CLIP
    assert record.models == {
        "target": str(pair[0]), "draft": str(pair[1]), "family": "llava_onevision", "dtype": "float32", "device": "cpu",
        "decoder": "fused", "weights": None,
    }  # fmt: skip
    counters = record.counters
    assert counters["emitted"] == len(record.token_ids) <= 30
    assert counters["drafted"] > counters["accepted"] > 0 < counters["corrections"]
    assert sum(counters["accepted_lengths"]) == counters["accepted"]
    assert (counters["visual_tokens"], counters["visual_tokens_kept"]) == (VISUAL, round(0.5 * VISUAL))
    assert sum(record.kept_per_frame) == counters["visual_tokens_kept"]
    assert record.video["frames"] == FRAMES == len(record.video["timestamps"])


def test_timings(record, events):
    timings = record.timings
    kinds = {"decode_video", "preprocess", "vision", "target_prefill", "prune", "draft_prefill", "draft", "verify"}
    assert kinds <= set(timings) and all(seconds >= 0 for seconds in timings.values())
    assert timings["time_to_first_token"] == events[1].elapsed
    assert timings["time_to_first_token"] + timings["decode"] <= timings["end_to_end"]
    read = timings["draft_reading"]
    assert read == events[3].elapsed - events[1].elapsed and timings["draft_prefill"] <= read
    assert read + sum(timings[kind] for kind in ("draft", "verify")) <= timings["decode"] == events[-2].elapsed
    assert record.speed["tokens_per_s"] == (len(record.token_ids) - 1) / timings["decode"]
    assert {span.worker for span in record.trace.spans} == {"target", "draft"}


def test_caption_is_the_streams_last_word(captioner, record):
    again = captioner.caption(CLIP)
    assert (again.caption, again.token_ids, again.counters) == (record.caption, record.token_ids, record.counters)


def test_a_prompt_without_a_video_is_answered_by_the_target_alone(captioner, record):
    """Beside a clip, by plain decoding, as the stock model continues the same tokens."""
    model, asked = captioner.client.setup.target.model, {"x": "What is a circle?", "y": "A square, then?"}
    texts = [CaptionRequest(path, Clip.empty(), prompt=prompt, key=path) for path, prompt in asked.items()]
    found = serve_captions(
        captioner, [texts[0], CaptionRequest(CLIP, captioner.client.inputs.read(CLIP), key="clip"), texts[1]], 3
    )
    assert found["clip"].token_ids == record.token_ids
    for key, prompt in asked.items():
        ids = model.template.ids_without_video(prompt)
        assert model.visual_id not in ids and found[key].lossless
        padding = list(range(model.vocabulary, model.known_ids))  # random here, never emitted
        stock = model.model.generate(
            input_ids=torch.tensor([ids]), max_new_tokens=30, do_sample=False, suppress_tokens=padding
        )
        assert found[key].token_ids == stock[0, len(ids) :].tolist()
        assert found[key].counters["drafted"] == found[key].counters["visual_tokens"] == 0


@pytest.mark.full
def test_a_prompt_of_several_passes_says_how_far_it_is(captioner, record, monkeypatch):
    monkeypatch.setattr(Engine, "chunk", 16)
    monkeypatch.setattr(engine_thread, "EVERY", 0.0)
    events = list(captioner.stream(CLIP))
    read = [event.tokens for event in events if isinstance(event, PrefillProgress)]
    prompt = next(event.prompt_tokens for event in events if isinstance(event, Prefilled))
    assert read == list(range(16, prompt, 16)) and {event.prompt_tokens for event in events[1 : len(read)]} == {prompt}
    kinds = [type(event) for event in events]
    assert kinds[0] is Opened and kinds[len(read) + 1] is Prefilled and events[-1].caption.token_ids == record.token_ids


def test_the_baseline_is_plain_decoding_of_the_same_text(captioner, record):
    plain = captioner.caption(CLIP, plain=True)
    assert plain.token_ids == record.token_ids and plain.caption == record.caption
    assert plain.models["draft"] is None and plain.kept_per_frame == [] and plain.lossless is True
    assert plain.counters["target_forwards"] == len(plain.token_ids) - 1 > record.counters["target_forwards"]
    assert (plain.counters["drafted"], plain.counters["draft_forwards"]) == (0, 0)
    assert not {"draft", "prune", "draft_prefill"} & set(plain.timings)
    jsonschema.Draft202012Validator(record_schema()).validate(json.loads(plain.to_json()))


def test_every_call_decodes_without_a_draft_on_request(captioner, record):
    few = {"plain": True, "max_new_tokens": 3}
    *_, streamed = captioner.stream(CLIP, **few)
    (one,), (listed,) = captioner.captions(CLIP, ["What moves?"], **few), captioner.caption_many([CLIP], **few)
    answer = captioner.dialogue(CLIP, **few).ask("What moves?")
    for made in (streamed.caption, one, listed, answer):
        assert made.models["draft"] is None and len(made.token_ids) == 3
    assert listed.token_ids == streamed.caption.token_ids == record.token_ids[:3] and one.token_ids == answer.token_ids
    with pytest.raises(ArgumentError, match="a question has no argument 'plain'"):
        captioner.dialogue(CLIP).ask("What moves?", plain=True)


def test_many_clips_are_encoded_before_their_turn(captioner, monkeypatch, record):
    """And a later call for one clip has all cores again."""
    vision, fed = captioner.client.inputs.vision, []
    prepare = vision.prepare
    monkeypatch.setattr(vision, "prepare", lambda clip: fed.append(prepare(clip)))
    for made in captioner.caption_many([CLIP] * 3, batch=2):
        assert made.token_ids == record.token_ids and made.kept_per_frame == record.kept_per_frame
        assert vision.has_feed
        assert "preprocess" not in made.timings and "preprocess" in record.timings  # nor was the tower run in its turn
    assert len(fed) == 3 and min(fed) > 0 and not vision.has_feed


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("positions", ["original", "compact"])
def test_the_draft_reads_what_was_kept(captioner, monkeypatch, events, positions):
    again, read = other(captioner, {"prune.positions": positions}), []
    reading = again.client.setup.draft.start_prefill
    monkeypatch.setattr(
        again.client.setup.draft,
        "start_prefill",
        lambda prefix, *given, **how: read.append(prefix) or reading(prefix, *given, **how),
    )
    assert again.caption(CLIP).token_ids == events[-1].caption.token_ids
    (prefix,) = read
    total, kept = events[1].prompt_tokens, events[1].kept
    first = int(prefix.visual.index[0])
    assert prefix.length == total - VISUAL + len(kept)
    if positions == "compact":
        assert prefix.positions[0].tolist() == list(range(prefix.length)) and prefix.next_position == prefix.length
    else:
        behind = range(first + VISUAL, total)
        assert prefix.positions[0].tolist() == [*range(first), *(first + i for i in kept), *behind]
        assert prefix.next_position == total


def test_a_prompt_replaces_the_profiles(captioner, events, record):
    question = "Which colour is the thing on the left, and where does it go?"
    asked = list(captioner.stream(CLIP, prompt=question))
    tokens = captioner.client.setup.target.model.tokenizer.encode
    longer = len(tokens(question)) - len(tokens(captioner.client.profile.generate.prompt))
    assert asked[1].prompt_tokens == events[1].prompt_tokens + longer != events[1].prompt_tokens
    assert (
        asked[-1].caption.token_ids
        == captioner.caption(CLIP, prompt=question, plain=True).token_ids
        != record.token_ids
    )


def test_a_part_of_a_clip(captioner, record):
    part = captioner.caption(CLIP, start=2.0, end=4.0)
    shown = part.video["timestamps"]
    assert 2 <= shown[0] < shown[-1] <= 4
    assert part.token_ids == captioner.caption(CLIP, start=2.0, end=4.0, plain=True).token_ids != record.token_ids


def test_a_text_of_one_token(captioner, record):
    one = other(captioner, {"generate.max_new_tokens": 1}).caption(CLIP)
    assert one.token_ids == record.token_ids[:1]
    assert one.timings["decode"] == 0 and one.speed == {"tokens_per_s": None, "estimate": None}
    jsonschema.Draft202012Validator(record_schema()).validate(json.loads(one.to_json()))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("changes", [{}, {"generate.max_new_tokens": 30 + 64}], ids=["no room", "room"])
def test_estimate_times_plain_steps_and_changes_nothing_else(captioner, monkeypatch, changes):
    one = other(captioner, changes)
    before = one.caption(CLIP)
    assert before.speed["estimate"] is None, "a verification does not tell what a plain pass costs"
    timed = []
    monkeypatch.setattr(decode, "fmean", lambda times: timed.extend(times) or 0.5)
    monkeypatch.setattr(decode, "MEDIAN_RATIO", 100.0)  # this machine may be busy
    one.client.estimates_speedup = True
    after = one.caption(CLIP)

    def kinds(caption):
        return [span.kind for span in caption.trace.spans if span.kind != "collect"]

    assert (after.token_ids, after.counters, kinds(after)) == (before.token_ids, before.counters, kinds(before))
    # Of each half those up to its median are counted, however busy the machine is.
    assert decode.LEAST / 2 <= len(timed) <= decode.MOST and min(timed) > 0
    assert after.speed["estimate"] == pytest.approx(0.5 * (len(after.token_ids) - 1) / after.timings["decode"])


def test_an_estimate_reads_no_clip_again(captioner):
    """The frames have been released by then."""
    client = other(captioner, {"generate.max_new_tokens": 24}).client
    clip = client.inputs.read(CLIP)
    again = []
    request = CaptionRequest(str(CLIP), clip, estimates_speedup=True, reread=lambda: again.append(clip) or clip)
    events = [event for _, event in client.serve(ReadyClips([request]), batch=1)]
    assert any(isinstance(event, Finished) for event in events) and not again


def test_no_estimate_where_plain_steps_change_their_time(captioner, monkeypatch):
    one = other(captioner, {})
    one.client.estimates_speedup = True
    medians = iter((1.0, 1.2))
    monkeypatch.setattr(decode, "median", lambda times: next(medians))
    assert one.caption(CLIP).speed["estimate"] is None


@pytest.mark.full
def test_no_estimate_for_clips_that_share_the_models_or_a_cache(captioner):
    one = other(captioner, {})
    one.client.estimates_speedup = True
    assert [each.speed["estimate"] for each in one.captions(CLIP, ["What?", "Where?"])] == [None, None]


@pytest.mark.full
def test_sampling_is_repeated_by_its_seed(captioner, record):
    def sampled(seed):
        settings = {"generate.temperature": 1.5, "generate.top_p": 0.95, "generate.seed": seed}
        return other(captioner, settings).caption(CLIP)

    assert sampled(1).token_ids == sampled(1).token_ids
    assert len({tuple(sampled(seed).token_ids) for seed in range(4)}) == 4
    assert sampled(1).token_ids != record.token_ids
    assert sampled(1).lossless is True


def test_the_seed_minus_one_is_another_for_each_text_and_is_named(captioner):
    def sampled(seed):
        settings = {"generate.temperature": 1.5, "generate.seed": seed}
        return other(captioner, settings).caption(CLIP)

    first, second = sampled(-1), sampled(-1)
    assert first.seed != second.seed and first.token_ids != second.token_ids
    assert sampled(first.seed).token_ids == first.token_ids


def test_captions_and_events_can_be_pickled(events):
    for event, again in zip(events, pickle.loads(pickle.dumps(events)), strict=True):
        assert again == event
    trace = again.caption.trace
    assert trace.spans == events[-1].caption.trace.spans and trace.now() > 0


@pytest.mark.parametrize("prompts", ["What moves?", b"What moves?", [], [None], 3])
def test_prompts_are_a_list_of_texts(captioner, prompts):
    with pytest.raises(ArgumentError, match=r"captions.. takes a list of prompts"):
        captioner.captions(CLIP, prompts)


@pytest.mark.parametrize("method", ["caption", "stream", "stream_text", "dialogue"])
def test_a_call_takes_one_clip(captioner, method):
    with pytest.raises(ArgumentError, match=rf"{method}.. takes the path of one clip, not a list"):
        getattr(captioner, method)([CLIP, CLIP])
    with pytest.raises(ArgumentError, match=r"captions.. takes the path of one clip"):
        captioner.captions([CLIP], ["What moves?"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": 5}, "prompt must be a text, not a int"),
        ({"system": b"x"}, "system must be a text, not a bytes"),
        ({"start": "1"}, "start must be seconds, not a str"),
        ({"end": [1]}, "end must be seconds, not a list"),
        ({"plain": "no"}, "plain must be True or False, not a str"),
        ({"clip": np.zeros((2, 4, 4, 3), np.uint8)}, r"clip must be a vidspec\.video\.Clip, not a ndarray"),
        ({"earlier": "ab"}, "earlier must be pairs of a question and its answer"),
        ({"earlier": 5}, "earlier must be pairs of a question and its answer"),
        ({"earlier": [("What moves?", None)]}, "earlier must be pairs of a question and its answer"),
    ],
)
def test_an_option_of_another_type(captioner, options, message):
    with pytest.raises(ArgumentError, match=rf"caption\(\): {message}"):
        captioner.caption(CLIP, **options)


def test_frames_that_were_read_have_no_other_part_and_are_one_clip(captioner):
    clip = Clip.of(np.zeros((2, 28, 28, 3), np.uint8), [0.0, 1.0])
    for name in ("start", "end"):
        with pytest.raises(ArgumentError, match=rf"caption\(\): clip and {name} exclude each other"):
            captioner.caption(CLIP, clip=clip, **{name: 1.0})
    with pytest.raises(ArgumentError, match=r"caption_many\(\) reads its clips, and takes no clip"):
        captioner.caption_many([CLIP, CLIP], clip=clip)


def test_earlier_turns_are_plain_pairs_too(captioner):
    turns = (DialogueTurn("What moves?", "A circle."),)
    expected = captioner.caption(CLIP, prompt="Where to?", earlier=turns, max_new_tokens=8)
    for earlier in ([("What moves?", "A circle.")], [["What moves?", "A circle."]]):
        assert (
            captioner.caption(CLIP, prompt="Where to?", earlier=earlier, max_new_tokens=8).token_ids
            == expected.token_ids
        )
    assert captioner.caption(CLIP, earlier=None, max_new_tokens=2).token_ids


def test_texts_of_an_iterator_are_those_of_each_call(captioner, record):
    """Calls with equal options share their setup; an iterator may lie where an earlier one did, with the same repr."""

    class Texts:
        def __init__(self, *texts):
            self.rest = list(texts)

        def __iter__(self):
            return self

        def __next__(self):
            if not self.rest:
                raise StopIteration
            return self.rest.pop()

        def __repr__(self):
            return "<Texts object at 0x7f>"

    for end in (5, 8):
        stop = record.caption[end : end + 3]
        text = captioner.caption(CLIP, stop=Texts(stop)).caption
        assert text == record.caption[: record.caption.index(stop)].strip()


def test_a_missing_file(captioner, tmp_path):
    with pytest.raises(VideoError) as caught:
        captioner.caption(tmp_path / "nothing.mp4")
    assert caught.value.kind == "missing"


def test_a_failure_leaves_the_captioner_usable(captioner, tmp_path, record):
    with pytest.raises(VideoError):
        captioner.caption(tmp_path / "nothing.mp4")
    assert captioner.caption(CLIP).token_ids == record.token_ids


@pytest.mark.full
@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_a_prompt_that_is_too_long(settings_, events, more, fits):
    """The context holds the prompt and all new tokens, or the clip is refused before any prefill."""
    context = events[1].prompt_tokens + 30
    short = checkpoint("readable", context=context)
    settings = {**settings_, "models.target": str(short), "generate.max_new_tokens": 30 + more}
    with Captioner.from_profile("vanilla-sd", overrides=settings) as captioner:
        if fits:
            assert captioner.caption(CLIP).caption
            return
        with pytest.raises(GenerationError, match=f"exceed the model's {context}") as caught:
            captioner.caption(CLIP)
    assert caught.value.kind == "context" and "--frames" in caught.value.hint


@pytest.mark.parametrize(("free", "kind"), [(None, "context"), (1000, "memory")])
def test_a_clip_is_refused_before_it_is_decoded(captioner, monkeypatch, free, kind):
    """By its number of tokens, or by what their keys and values take."""
    monkeypatch.setattr("vidspec.video.decode_av.AvDecoder.frames", lambda *_: pytest.fail("it was decoded"))
    monkeypatch.setattr("vidspec.decoding.admission.free_memory", lambda device: free)
    monkeypatch.setattr("vidspec.decoding.admission._context_length", lambda model: 1000)
    fps = 100.0 if kind == "context" else 1.0
    # What earlier clips left behind in the slab counts for nothing.
    monkeypatch.setattr(Slab, "growth_bytes", lambda slab, room: room * slab.entry_bytes)
    with pytest.raises(GenerationError) as caught:
        other(captioner, {"video.frames": None, "video.fps": fps}).client.inputs.read(CLIP)
    assert caught.value.kind == kind and "--fps" in caught.value.hint and CLIP in caught.value.message


def test_memory_that_does_not_suffice(captioner, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(captioner.client.setup.target, "run", full)
    with pytest.raises(GenerationError, match=f"{FRAMES} frames") as caught:
        captioner.caption(CLIP)
    assert caught.value.kind == "memory"


@pytest.mark.full
def test_models_that_see_frames_differently(settings_):
    finer = checkpoint("readable", image_size=48)
    settings = {**settings_, "models.draft": str(finer), "prune.method": "uniform"}
    with (
        Captioner.from_profile("vanilla-sd", overrides=settings) as captioner,
        pytest.raises(ModelError, match=f"{VISUAL} and {FRAMES * 9 + 1} visual tokens"),
    ):
        captioner.caption(CLIP)


def test_a_profile_is_a_name_a_file_or_loaded(tmp_path):
    with pytest.raises(ProfileError, match=r"none\.yaml"):
        Captioner.from_profile(tmp_path / "none.yaml")
    with pytest.raises(ArgumentError, match="not a NoneType"):
        Captioner.from_profile(None)


def test_missing_built_in_models(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "embedded_folder", lambda pair, role: tmp_path / role)
    with pytest.raises(ModelError, match="built-in"):
        Captioner.from_profile("ar")


@pytest.mark.full
def test_plain_decoding_loads_no_draft(settings_):
    settings = {**settings_, "models.draft": "/nowhere"}
    with Captioner.from_profile("ar", overrides=settings) as captioner:
        assert captioner.client.setup.draft is None and models_record(captioner.client.setup)["draft"] is None
        *_, finished = captioner.stream(CLIP)
    assert finished.caption.kept_per_frame == []


def test_closing_lets_go_of_the_models(captioner):
    model, before = captioner.client.setup.target.model, sys.getrefcount(captioner.client.setup.target.model)
    with other(captioner, {}) as again:
        assert again.client.setup.target.model is model
        assert sys.getrefcount(model) > before
    assert sys.getrefcount(model) <= before  # less where Python 3.14 borrows a reference
    again.close()  # once more does nothing


def test_closes_when_its_block_fails(captioner):
    with pytest.raises(KeyError), other(captioner, {}) as again:
        raise KeyError
    assert not hasattr(again, "target")


@pytest.mark.full
def test_what_is_prepared_is_used_once_and_changes_nothing(captioner, monkeypatch):
    clip = captioner.client.inputs.read(CLIP)
    expected = captioner.caption("clip", clip=clip).token_ids
    held = captioner.client.inputs.vision.prepare(clip)
    widths = [
        engine.model.language.config.hidden_size
        for engine in (captioner.client.setup.target, captioner.client.setup.draft)
    ]
    assert held == VISUAL * sum(widths) * 4  # what target and draft have seen
    models = [captioner.client.setup.target.model, captioner.client.setup.draft.model]
    for model in models:
        monkeypatch.setattr(model, "preprocess", None)
    assert captioner.caption("clip", clip=clip).token_ids == expected
    with pytest.raises(TypeError):
        captioner.caption("clip", clip=clip)
    monkeypatch.undo()
    captioner.client.inputs.vision.prepare(clip)
    kept = weakref.ref(clip)
    del clip
    gc.collect()
    assert kept() is None


def test_a_draft_process_does_not_make_a_profile_parallel(captioner):
    """A bench hands one process to all its captioners; only those of a parallel profile use it."""
    alone = Captioner(
        captioner.client.profile, captioner.client.setup.target.model, captioner.client.setup.draft.model, slot=object()
    )
    assert alone.client.setup.slot is None
    assert alone.caption(CLIP).schedule["kind"] == "sequential"
