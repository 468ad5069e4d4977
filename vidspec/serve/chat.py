"""Parse a request of OpenAI's chat API. Reads no media and decodes no base64."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from vidspec.models.request import DialogueTurn
from vidspec.serve.config import ApiError

__all__ = ["ChatRequest", "Media", "parse_chat"]

#: Fields of sampling and length, with the keys of the profile's section ``generate`` that they set.
OPTIONS = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
}
WHOLE = {"max_tokens", "max_completion_tokens", "top_k", "seed"}
#: Fields that cannot be served, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none",),
    "logit_bias": ({},),
    "frequency_penalty": (0, 0.0),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "echo": (False,),
    "prompt_logprobs": (),
}
#: Other fields that are read; those of one client's bookkeeping change no answer.
KNOWN = {"model", "messages", "stream", "stream_options", "stop", "response_format", "media_io_kwargs"}
KNOWN |= {"mm_processor_kwargs", "vidspec", "user", "store", "metadata", "service_tier", "parallel_tool_calls"}
#: Text that some clients send with frames, to tell their times.
FRAME_NOTE = re.compile(r"\[Video: \d{1,6} frames sampled at (\d{1,4}(?:\.\d{1,6})?) ?fps[^\]]{0,200}\]\s*")
#: Characters of a JSON Schema, and of the text in a request.
MAX_SCHEMA, MAX_TEXT = 1 << 16, 1 << 20
#: Frames per second of pictures that say nothing of their times.
FRAME_RATE = 2.0


class Media(NamedTuple):
    """The video of a request.

    Attributes:
        kind: a file, or pictures that are a video's frames (a single one: an image).
        urls: URL of the file, or of each picture.
        field: its place in the request, for messages.
        fps: frames per second of pictures.
    """

    kind: Literal["file", "frames"]
    urls: tuple[str, ...]
    field: str
    fps: float = FRAME_RATE


@dataclass
class ChatRequest:
    """A parsed request.

    Attributes:
        sampling: number of frames or their rate, as ``vidspec.video.read`` takes them; empty for the profile's.
        generate: keys of the profile's section ``generate``.
        named: the request's field of each such key.
        usage: True to end a stream with the usage.
        details: True to add to a stream what the page shows.
    """

    prompt: str
    media: Media
    system: str | None = None
    earlier: tuple[DialogueTurn, ...] = ()
    model: str | None = None
    sampling: dict[str, float | int | None] = field(default_factory=dict)
    generate: dict[str, object] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    usage: bool = False
    details: bool = False


class _Turn(NamedTuple):
    role: str
    text: str


def parse_chat(body: object, warn: Callable[[str], None]) -> ChatRequest:
    """Parse the body of a request.

    Args:
        body: as ``json.loads`` returns it.
        warn: called with each field that is not known, and ignored.

    Raises:
        ApiError: names the field that is wrong or cannot be served.
    """
    if not isinstance(body, dict):
        raise ApiError("the request must be a JSON object")
    for name, value in body.items():
        if name in UNSUPPORTED:
            if value is not None and value not in UNSUPPORTED[name]:
                raise ApiError(f"{name} is not supported", name, code="unsupported_parameter")
        elif name not in KNOWN and name not in OPTIONS:
            warn(name)
    sampling: dict[str, float | int | None] = {}
    turns, system, media = _messages(body.get("messages"), sampling)
    _video_options(body, sampling)
    if media.kind == "frames" and sampling.get("fps"):
        media = media._replace(fps=float(sampling["fps"] or 0))
    pairs = zip(turns[:-1:2], turns[1::2], strict=True)
    request = ChatRequest(
        turns[-1].text or "",
        media,
        system,
        tuple(DialogueTurn(question.text, answer.text) for question, answer in pairs),
        _typed(body, "model", str),
        sampling,
    )
    _generate_options(body, request)
    stream = _typed(body, "stream_options", dict) or {}
    request.stream = bool(_typed(body, "stream", bool))
    request.usage = bool(_typed(stream, "include_usage", bool, "stream_options."))
    own = _typed(body, "vidspec", dict) or {}
    request.details = bool(_typed(own, "details", bool, "vidspec."))
    return request


def _typed(values: Mapping[str, Any], name: str, kind: type, prefix: str = "") -> Any:
    value = values.get(name)
    if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        words = {str: "text", dict: "an object", list: "a list", bool: "true or false"}
        raise ApiError(f"{prefix}{name} must be {words[kind]}", f"{prefix}{name}")
    return value


def _number(values: Mapping[str, Any], name: str, prefix: str = "", *, whole: bool = False) -> float | int | None:
    value = values.get(name)
    if value is None:
        return None
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not abs(value) < 2**53:
        raise ApiError(f"{prefix}{name} must be a {'whole ' if whole else ''}number", f"{prefix}{name}")
    return value


def _messages(messages: object, sampling: dict[str, float | int | None]) -> tuple[list[_Turn], str | None, Media]:
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages must be a list with a message", "messages")
    turns: list[_Turn] = []
    system: list[str] = []
    media: Media | None = None
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "developer", "user", "assistant"):
            raise ApiError(f"{where}.role must be system, user or assistant", f"{where}.role")
        text, found = _content(message.get("content"), f"{where}.content", sampling)
        if found is not None and (role != "user" or turns or media is not None):
            raise ApiError(f"{found.field}: the video belongs into the first message of the user", found.field)
        media = media or found
        if role in ("system", "developer"):
            if turns:
                raise ApiError(f"{where}: a system message comes first", where)
            system.append(text)
        elif role != ("assistant" if len(turns) % 2 else "user"):
            raise ApiError(f"{where}.role: messages of user and assistant alternate", f"{where}.role")
        else:
            turns.append(_Turn(role, text))
    if len(turns) % 2 == 0:
        raise ApiError("messages must end with one of the user", "messages")
    if media is None:
        raise ApiError("messages must have a video_url, a file or an image_url", "messages")
    if sum(len(turn.text) for turn in turns) + sum(map(len, system)) > MAX_TEXT:
        raise ApiError(f"messages have more than {MAX_TEXT} characters of text", "messages")
    return turns, "\n".join(system) or None, media


def _content(content: object, where: str, sampling: dict[str, float | int | None]) -> tuple[str, Media | None]:
    """Return the text and the video of a message."""
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise ApiError(f"{where} must be text or a list of parts", where)
    texts: list[str] = []
    pictures: list[str] = []
    media: Media | None = None
    for number, part in enumerate(content):
        place = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(_typed(part, "text", str, f"{place}.") or "")
        elif kind == "image_url":
            pictures.append(_url(part, "image_url", "url", place))
        elif kind in ("video_url", "file"):
            if media is not None:
                raise ApiError(f"{place}: a message may have one video", place)
            media = _file(part, kind, place, sampling)
        else:
            raise ApiError(f"{place}.type must be text, image_url, video_url or file", f"{place}.type")
    if pictures and media is not None:
        raise ApiError(f"{where}: a message has either a video or images", where)
    text = "\n".join(texts)
    if pictures:
        note = FRAME_NOTE.search(text)
        rate = float(note[1]) if note and float(note[1]) > 0 else FRAME_RATE
        media, text = Media("frames", tuple(pictures), where, rate), FRAME_NOTE.sub("", text)
    return text, media


def _url(part: Mapping[str, Any], kind: str, name: str, place: str) -> str:
    value = part.get(kind)
    url = value.get(name) if isinstance(value, dict) else value if name == "url" else None
    if not isinstance(url, str) or not url:
        raise ApiError(f"{place}.{kind}.{name} must be text", f"{place}.{kind}.{name}")
    return url


def _file(part: Mapping[str, Any], kind: str, place: str, sampling: dict[str, float | int | None]) -> Media:
    name = "url" if kind == "video_url" else "file_data"
    url = _url(part, kind, name, place)
    if kind == "file" and not url.startswith("data:"):
        url = f"data:;base64,{url}"
    if isinstance(part[kind], dict):
        _take_sampling(part[kind], f"{place}.{kind}.", sampling)
    header, comma, _ = url[:64].partition(",")
    if comma and header.lower() == "data:video/jpeg;base64":  # vLLM's frames, one after the other
        whole = tuple(f"data:image/jpeg;base64,{one}" for one in url[len(header) + 1 :].split(","))
        return Media("frames", whole, place)
    return Media("file", (url,), place)


def _take_sampling(values: Mapping[str, Any], prefix: str, sampling: dict[str, float | int | None]) -> None:
    for name in ("num_frames", "nframes"):
        if (frames := _number(values, name, prefix, whole=True)) is not None and frames != -1:
            if frames < 1:
                raise ApiError(f"{prefix}{name} must be 1 or more", f"{prefix}{name}")
            sampling |= {"frames": frames, "fps": None}
    if (fps := _number(values, "fps", prefix)) is not None and fps != -1 and not sampling.get("frames"):
        if not 0 < fps <= 1000:
            raise ApiError(f"{prefix}fps must be more than 0, and at most 1000", f"{prefix}fps")
        sampling |= {"fps": float(fps), "frames": None}


def _video_options(body: Mapping[str, Any], sampling: dict[str, float | int | None]) -> None:
    media = _typed(body, "media_io_kwargs", dict) or {}
    _take_sampling(_typed(media, "video", dict, "media_io_kwargs.") or {}, "media_io_kwargs.video.", sampling)
    _take_sampling(_typed(body, "mm_processor_kwargs", dict) or {}, "mm_processor_kwargs.", sampling)


def _generate_options(body: Mapping[str, Any], request: ChatRequest) -> None:
    for name, key in OPTIONS.items():
        if (value := _number(body, name, whole=name in WHOLE)) is not None:
            request.generate[key] = max(0, value) if key == "top_k" else value  # -1 is none
            request.named[key] = name
    stop = body.get("stop")
    if stop:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(one, str) and one for one in stops):
            raise ApiError("stop must be text, or a list of at most 16", "stop")
        request.generate["stop"] = tuple(stops)
        request.named["stop"] = "stop"
    form = _typed(body, "response_format", dict) or {}
    if form.get("type") not in (None, "text", "json_object", "json_schema"):
        raise ApiError("response_format.type must be text, json_object or json_schema", "response_format.type")
    if form.get("type") in ("json_object", "json_schema"):
        schema: object = {"type": "object"}
        if form["type"] == "json_schema":
            schema = (_typed(form, "json_schema", dict, "response_format.") or {}).get("schema")
        text = json.dumps(schema, ensure_ascii=False)
        if not isinstance(schema, dict) or len(text) > MAX_SCHEMA:
            where = "response_format.json_schema.schema"
            raise ApiError(f"{where} must be an object of at most {MAX_SCHEMA} characters", where)
        request.generate["json_schema"], request.named["json_schema"] = text, "response_format"
