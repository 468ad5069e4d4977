"""Text as soon as it is certain, and options of single calls, with small random models."""

import pytest

from tests.fake_captioner import record
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.sections import GenerateSection
from vidspec.decoding.text_stream import TextStream
from vidspec.embedded.samples import shipped
from vidspec.errors import ArgumentError, GenerationError, ProfileError
from vidspec.events.events import Finished, Restarted, Round
from vidspec.models.request import CaptionOptions, CaptionRequest

CLIP = str(shipped()[0])
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 5, "max_new_tokens": 12}
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}


def emitted(*texts):
    return Round(tuple(range(len(texts))), ("draft",) * len(texts), 0, 0, 0.0, texts=texts)


def finished(text):
    return Finished(record(caption=text))


def other(captioner, name="vanilla-sd", **overrides):
    """The same models under another profile."""
    profile = profiles.load(name, {"video.frames": 4, "generate.max_new_tokens": 24, **overrides}, env={})
    draft = captioner.client.setup.draft.model if profile.draft.has_model else None
    return Captioner(profile, captioner.client.setup.target.model, draft)


def test_text_is_held_back_until_it_is_certain():
    stream = TextStream(["###", "END"])
    events = [emitted(" A", "", "é"), emitted(" red #"), emitted("1 E"), emitted("N", "D of"), finished("Aé red #1")]
    assert [stream.add(event) for event in events] == ["Aé", " red", " #1", "", ""]
    stream = TextStream(["###"])
    assert [stream.add(event) for event in (emitted("A #"), emitted("#"), finished("A ##"))] == ["A", "", " ##"]


def test_a_restarted_text_goes_on_and_another_is_an_error():
    stream = TextStream()
    events = [emitted("A red"), Restarted("lost"), emitted("A"), emitted(" red circle")]
    assert [stream.add(event) for event in events] == ["A red", "", "", " circle"]
    assert stream.add(finished("A red circle moves")) == " moves"
    with pytest.raises(GenerationError, match="the text changed"):
        stream.add(finished("A blue circle"))


@pytest.mark.parametrize("name", full_but(["vanilla-sd"], ["vanilla-sd", "ar", "specvlm", "suffix"]))
def test_streamed_text_is_the_caption(small_captioner, name):
    captioner = other(small_captioner, name)
    whole = captioner.caption(CLIP).caption
    middle = whole[len(whole) // 2 :][:4]
    for options in ({}, SAMPLED, {"stop": middle}, {"max_new_tokens": 3}):
        pieces = list(captioner.stream_text(CLIP, **options))
        assert "".join(pieces) == captioner.caption(CLIP, **options).caption
        assert all(pieces) and (len(pieces) > 2 or options)
    assert "".join(captioner.stream_text(CLIP, stop=middle)) == whole[: whole.index(middle)].strip()


@pytest.mark.full
@pytest.mark.sample(quick=1, full=3)
@pytest.mark.parametrize("name", full_but(["vanilla-sd"], ["vanilla-sd", "ar", "specvlm", "fly"]))
@pytest.mark.parametrize("options", [{"max_new_tokens": 5}, SAMPLED, {"repetition_penalty": 1.3}])
def test_options_of_a_call_are_those_of_a_profile(small_captioner, name, options):
    if name == "fly" and "temperature" in options:
        pytest.skip("it compares greedy choices")
    captioner = other(small_captioner, name)
    expected = other(small_captioner, name, **{f"generate.{key}": value for key, value in options.items()})
    before, wanted = captioner.caption(CLIP), expected.caption(CLIP)
    found = captioner.caption(CLIP, **options)
    assert (found.token_ids, found.seed, found.ended) == (wanted.token_ids, wanted.seed, wanted.ended)
    assert found.token_ids != before.token_ids == captioner.caption(CLIP).token_ids  # other calls keep the profile's
    assert captioner.caption(CLIP, prompt=None, temperature=None).token_ids == before.token_ids
    (answer,) = captioner.captions(CLIP, ["What moves?"], **options)
    assert answer.token_ids == expected.captions(CLIP, ["What moves?"])[0].token_ids
    assert captioner.dialogue(CLIP, **options).ask("What moves?").token_ids == answer.token_ids
    assert captioner.caption(CLIP, **options, plain=True).token_ids == expected.caption(CLIP, plain=True).token_ids


@pytest.mark.full
def test_a_schema_for_one_call(small_captioner):
    pytest.importorskip("llguidance")
    assert small_captioner.caption(CLIP, schema=SCHEMA, max_new_tokens=40).data["sure"] in (True, False)
    assert small_captioner.caption(CLIP).data is None
    pieces = []
    with pytest.raises(GenerationError, match="was cut by the token limit"):
        pieces += small_captioner.stream_text(CLIP, schema=SCHEMA, max_new_tokens=2)


@pytest.mark.full
def test_wrong_options_are_refused_by_the_call_itself(small_captioner):
    with pytest.raises(ProfileError, match=r"generate\.temperature"):
        small_captioner.stream(CLIP, temperature=-1)
    with pytest.raises(ProfileError, match=r"generate\.max_new_tokens"):
        small_captioner.stream_text(CLIP, max_new_tokens=0)
    with pytest.raises(ArgumentError, match=r"no argument 'max_tokens' \(did you mean max_new_tokens\?\)"):
        small_captioner.caption(CLIP, max_tokens=3)
    with pytest.raises(ArgumentError, match=r"stream_text\(\): the prompt is empty"):
        small_captioner.stream_text(CLIP, prompt=" ")
    with pytest.raises(GenerationError, match="the prompt is empty"):
        small_captioner.captions(CLIP, ["What moves?", ""])
    with pytest.raises(ArgumentError, match="the question is empty"):
        small_captioner.dialogue(CLIP).ask(" ")
    for half in ({"prompt": "what\udcff?"}, {"system": "\ud800"}):
        with pytest.raises(GenerationError, match="bytes that are not UTF-8"):
            small_captioner.caption(CLIP, **half)
    with pytest.raises(GenerationError, match="bytes that are not UTF-8"):
        small_captioner.dialogue(CLIP).ask("what\udcff?")
    with pytest.raises(GenerationError) as found:  # before frames are decoded
        small_captioner.caption(CLIP, max_new_tokens=10**6)
    assert found.value.kind == "context"


def test_every_key_of_generation_is_an_option_of_a_call():
    keys = {"schema" if key == "json_schema" else key for key in GenerateSection.model_fields}
    assert keys <= CaptionOptions.__annotations__.keys()
    assert CaptionOptions.__annotations__.keys() - keys <= CaptionRequest.__dataclass_fields__.keys()
