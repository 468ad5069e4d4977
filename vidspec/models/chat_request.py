"""Requests of OpenAI's chat API, parsed by pydantic models. Reads no media and decodes no base64."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, BeforeValidator, FailFast, Field, StrictBool, StrictFloat, StrictInt, ValidationError

from vidspec.errors import VidspecError, spell_argument
from vidspec.models.request import CaptionOptions, CaptionRequest, DialogueTurn, make_request

#: Fields that cannot be served, unless their value asks for nothing; those that clients send and no answer depends on.
UNSUPPORTED = {"logprobs", "top_logprobs", "prompt_logprobs", "tools", "tool_choice", "functions", "function_call"}
UNSUPPORTED |= {"n", "best_of", "logit_bias", "frequency_penalty", "audio", "modalities", "prediction", "echo"}
#: Other servers' names of constraints on the text: a client could not see that they are ignored.
UNSUPPORTED |= {"structured_outputs", "structural_tag", "grammar", "json_schema", "schema", "regex", "ebnf", "format"}
UNSUPPORTED |= {"bad_words", "allowed_token_ids", "stop_token_ids", "min_tokens", "logits_processors", "nvext"}
_GUIDED = "guided_"
IGNORED = {"user", "store", "metadata", "service_tier", "parallel_tool_calls"}
#: Values that ask for nothing; those of ``n`` and ``best_of``.
NOTHING: tuple[object, ...] = (None, False, 0, [], {}, "none", "auto", ["text"])
ONE = (None, 1)
#: Text that some clients send with frames, to tell their times.
FRAME_NOTE = re.compile(r"\[Video: \d{1,6} frames sampled at (\d{1,4}(?:\.\d{1,6})?) ?fps[^\]]{0,200}\]\s*")
#: Characters of a JSON Schema, of a stop string, and of the text in a request; bytes of a request without its media.
MAX_SCHEMA, MAX_STOP, MAX_TEXT, MAX_JSON = 1 << 16, 1024, 1 << 20, 2 << 20
#: Commas and opening brackets of a request, and those for each frame: parsed, a JSON value of two bytes takes hundreds.
MAX_VALUES, FRAME_VALUES = 1 << 16, 8
#: Messages, and parts of one.
MAX_MESSAGES, MAX_PARTS = 1024, 1 << 16
#: Frames per second of pictures that say nothing of their times.
FRAME_RATE = 2.0

_EMPTY = BeforeValidator(lambda value: {} if value is None else value)
_UNSET = BeforeValidator(lambda value: None if value == -1 else value)
_TEXT: TypeAlias = Annotated[str, Field(min_length=1)]
_COUNT: TypeAlias = Annotated[Annotated[StrictInt, Field(ge=1)] | None, _UNSET]
_RATE: TypeAlias = Annotated[Annotated[StrictFloat, Field(gt=0, le=1000)] | None, _UNSET]


class ChatError(VidspecError):
    """A request that is wrong or cannot be served.

    Args:
        message: names the field.
        param: the field of the request that is to blame.
        status: of HTTP.
        code: short machine-readable word.
    """

    stage = "request"
    kind = "invalid"

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message, kind=code)
        self.param, self.status, self.code = param, status, code


class _FrameChoice(BaseModel):
    num_frames: _COUNT = None
    nframes: _COUNT = None
    fps: _RATE = None


class _File(_FrameChoice):
    url: _TEXT = Field(validation_alias="file_data")


class _Inline(_FrameChoice):
    url: _TEXT = Field(validation_alias="data")


class _Link(_FrameChoice):
    url: _TEXT


_Url: TypeAlias = Annotated[_Link, BeforeValidator(lambda one: {"url": one} if isinstance(one, str) else one)]


class _Frames(_FrameChoice):
    url: str = ""
    frames: Annotated[list[_TEXT], Field(max_length=MAX_PARTS), FailFast()] = []

    @classmethod
    def named(cls, one: object) -> object:
        return {"url": one} if isinstance(one, str) else {"frames": one} if isinstance(one, list) else one


class _Part(_FrameChoice):
    type: Literal["text", "image_url", "video_url", "file", "input_video", "video"]
    text: str | None = None
    image_url: _Url | None = None
    video_url: _Url | None = None
    file: _File | None = None
    input_video: _Inline | None = None
    video: Annotated[_Frames, BeforeValidator(_Frames.named)] | None = None

    def source(self, place: str) -> _File | _Link | _Inline | _Frames:
        found: _File | _Link | _Inline | _Frames | None = getattr(self, self.type)
        if found is None or not (found.url or getattr(found, "frames", None)):
            raise ChatError(f"{place}.{self.type} is missing", f"{place}.{self.type}")
        return found


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[_Part],
        Field(max_length=MAX_PARTS),
        FailFast(),
        BeforeValidator(lambda one: [{"type": "text", "text": one}] if isinstance(one, str) else one),
    ]


class _VideoOptions(BaseModel):
    video: Annotated[_FrameChoice, _EMPTY] = _FrameChoice()


class _StreamOptions(BaseModel):
    include_usage: StrictBool | None = None


class _OwnOptions(BaseModel):
    details: StrictBool | None = None


class _Schema(BaseModel):
    content: dict[str, Any] | None = Field(default=None, alias="schema")


class _Format(_Schema, extra="forbid"):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: Annotated[_Schema, _EMPTY] = _Schema()


class _Options(BaseModel):
    """Fields for keys of the profile's section ``generate``, which checks their values."""

    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: Annotated[StrictInt | None, BeforeValidator(lambda value: 0 if value == -1 else value)] = None
    min_p: StrictFloat | None = None
    seed: StrictInt | None = None
    presence_penalty: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    stop: Annotated[
        Annotated[list[Annotated[_TEXT, Field(max_length=MAX_STOP)]], Field(max_length=16)] | None,
        BeforeValidator(lambda one: [one] if isinstance(one, str) and one else one or None),
    ] = None


class _Body(_Options, extra="allow"):
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()]
    model: str | None = None
    stream: StrictBool | None = None
    stream_options: Annotated[_StreamOptions, _EMPTY] = _StreamOptions()
    response_format: Annotated[_Format, _EMPTY] = _Format()
    media_io_kwargs: Annotated[_VideoOptions, _EMPTY] = _VideoOptions()
    mm_processor_kwargs: Annotated[_FrameChoice, _EMPTY] = _FrameChoice()
    vidspec: Annotated[_OwnOptions, _EMPTY] = _OwnOptions()

    @property
    def options(self) -> dict[str, Any]:
        """Fields of the section ``generate`` that are given."""
        return {name: value for name in _Options.model_fields if (value := getattr(self, name)) is not None}


class Media(NamedTuple):
    """The video of a request.

    Attributes:
        kind: a file, or pictures that are a video's frames (a single one: an image).
        urls: URL of the file, or of each picture; emptied once they are fetched, since they may be large.
        field: its place in the request, for messages.
        fps: frames per second of pictures.
    """

    kind: Literal["file", "frames"]
    urls: list[str]
    field: str
    fps: float = FRAME_RATE


class ChatRequest(NamedTuple):
    """A parsed request.

    Attributes:
        caption: prompt, earlier turns and options; without its clip.
        media: the clip.
        sampling: number of frames or their rate, as ``vidspec.video.read`` takes them; empty for the profile's.
        named: the request's field of each key of the section ``generate``.
        body: all fields.
        nbytes: bytes of the body as it came.
    """

    caption: CaptionRequest
    media: Media
    sampling: dict[str, float | int | None]
    named: dict[str, str]
    body: _Body
    nbytes: int

    def spell(self, name: str, value: object) -> str:
        """Spell an option as the field of the request that sets it."""
        key = self.named.get(name.removeprefix("generate."))
        return spell_argument(name, value) if key is None else key if value is None else f"{key}: {json.dumps(value)}"


def parse_chat(content: bytes | bytearray, warn: Callable[[str], None], max_frames: int = 512) -> ChatRequest:
    """Parse the body of a request; takes memory of a few times its size, whatever is in it.

    Args:
        content: its bytes.
        warn: called with each field that is not known, and ignored.
        max_frames: a URL with more frames is split at the first ones only.

    Raises:
        ChatError: names the field that is wrong or cannot be served.
    """
    most = MAX_VALUES + FRAME_VALUES * max_frames
    if sum(map(content.count, (b",", b"[", b"{"))) > most:
        raise ChatError(f"the request has more than {most} JSON values", status=413, code="too_large")
    try:
        body = _Body.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(error) from None
    unknown = body.model_extra or {}
    for name, value in unknown.items():
        known = name in UNSUPPORTED or name.startswith(_GUIDED)
        if known and value not in (ONE if name in ("n", "best_of") else NOTHING):
            raise ChatError(f"{name[:60]} is not supported", name[:60], code="unsupported_parameter")
        if not known and name not in IGNORED:
            warn(name)
    texts, system, media, samplings = _read_messages(body.messages, max_frames)
    escapes = sum(map(content.count, (rb"\n", rb"\r", rb"\/")))  # of line breaks and slashes in base64
    if len(content) - escapes - sum(map(len, media.urls)) > MAX_JSON:
        raise ChatError(f"the request has more than {MAX_JSON} bytes beside its media", status=413, code="too_large")
    body.messages.clear()  # they may be large; the media have what is needed
    unknown.clear()
    sampling = _merge_samplings((*samplings, body.media_io_kwargs.video, body.mm_processor_kwargs))
    if media.kind == "frames" and (fps := sampling.get("fps")):
        media = media._replace(fps=float(fps))
    named = {"max_new_tokens" if name.startswith("max_") else name: name for name in body.options}
    options = CaptionOptions(prompt=texts[-1] if texts[-1].strip() else None, system=system)
    options["earlier"] = tuple(map(DialogueTurn, texts[:-1:2], texts[1::2]))
    options |= {key: getattr(body, name) for key, name in named.items()}  # type: ignore[typeddict-item]
    if body.response_format.type != "text" or body.response_format.content is not None:
        options["schema"], named["json_schema"] = _schema_text(body.response_format), "response_format"
    caption = replace(make_request("serve", media.field, options), estimates_speedup=bool(body.vidspec.details))
    return ChatRequest(caption, media, sampling, named, body, len(content))


def _refusal(error: ValidationError) -> ChatError:
    """Return the first error of a body with the field's name, as in ``messages[0].content[1].type``."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return ChatError("the request is no JSON")
    place = first["loc"]
    if place[:1] != ("messages",):  # a list is told as a whole
        place = tuple(one for one in place if isinstance(one, str))
    name = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in place)[1:]
    text = first["msg"].replace("Input should be", "must be").replace("should", "must")
    return ChatError(f"{name or 'the request'}: {text[:1].lower()}{text[1:]}", name or None)


def _read_messages(
    messages: Sequence[_Message], max_frames: int
) -> tuple[list[str], str | None, Media, list[_FrameChoice]]:
    """Return the texts of user and assistant in turn, the system prompt, the video and its sampling."""
    texts, system, samplings = list[str](), list[str](), list[_FrameChoice]()
    media: Media | None = None
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        text, found = _read_parts(message.content, f"{where}.content", samplings, max_frames)
        if found is not None and (message.role != "user" or texts or media is not None):
            raise ChatError(f"{found.field}: the video belongs into the first message of the user", found.field)
        media = media or found
        if message.role in ("system", "developer"):
            if texts:
                raise ChatError(f"{where}: a system message comes first", where)
            system.append(text)
        elif message.role != ("assistant" if len(texts) % 2 else "user"):
            raise ChatError(f"{where}.role: messages of user and assistant alternate", f"{where}.role")
        else:
            texts.append(text)
    if len(texts) % 2 == 0:
        raise ChatError("messages must end with one of the user", "messages")
    if media is None:
        raise ChatError("messages must have a video_url, a file or an image_url", "messages")
    if sum(map(len, texts + system)) > MAX_TEXT:
        raise ChatError(f"messages have more than {MAX_TEXT} characters of text", "messages")
    return texts, "\n".join(system) or None, media, samplings


def _read_parts(
    parts: Sequence[_Part], where: str, samplings: list[_FrameChoice], max_frames: int
) -> tuple[str, Media | None]:
    """Return the text and the video of a message."""
    texts, pictures = list[str](), list[str]()
    media: Media | None = None
    for number, part in enumerate(parts):
        place = f"{where}[{number}]"
        if part.type == "text":
            texts.append(part.text or "")
        elif part.type == "image_url":
            pictures.append(part.source(place).url)
        elif media is not None:
            raise ChatError(f"{place}: a message may have one video", place)
        else:
            source = part.source(place)
            samplings += part, source
            if isinstance(source, _Frames) and source.frames:
                media = Media("frames", source.frames, place)
            else:
                media = _file_media(source.url, place, max_frames, base64=isinstance(source, _File | _Inline))
    text = "\n".join(texts)
    if pictures and media is not None:
        raise ChatError(f"{where}: a message has either a video or images", where)
    if pictures:
        note = FRAME_NOTE.search(text)
        rate = float(note[1]) if note and float(note[1]) > 0 else FRAME_RATE
        media, text = Media("frames", pictures, where, rate), FRAME_NOTE.sub("", text)
    return text, media


def _file_media(url: str, place: str, max_frames: int, *, base64: bool) -> Media:
    if base64 and not url.startswith("data:"):
        url = f"data:;base64,{url}"
    header, comma, _ = url[:64].partition(",")
    if comma and header.lower() == "data:video/jpeg;base64":  # vLLM's frames, one after the other
        coded = url[len(header) + 1 :].split(",", max_frames)
        frames = [f"data:image/jpeg;base64,{one}" for one in coded]
        return Media("frames", frames, place)
    return Media("file", [url], place)


def _merge_samplings(samplings: Sequence[_FrameChoice]) -> dict[str, float | int | None]:
    """Return the last number of frames, else the last rate."""
    merged: dict[str, float | int | None] = {}
    for one in samplings:
        if frames := one.nframes or one.num_frames:
            merged = {"frames": frames, "fps": None}
        elif one.fps and not merged.get("frames"):
            merged = {"fps": one.fps, "frames": None}
    return merged


def _schema_text(form: _Format) -> str:
    schema = form.json_schema.content or form.content
    if form.type == "json_object":
        schema = schema or {"type": "object"}
    text = json.dumps(schema, ensure_ascii=False)
    if schema is None or len(text) > MAX_SCHEMA:
        where = "response_format.json_schema.schema"
        raise ChatError(f"{where} must be an object of at most {MAX_SCHEMA} characters", where)
    return text
