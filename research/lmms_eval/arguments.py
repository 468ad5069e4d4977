"""Conversion of command-line and task arguments to keys of a profile; no torch, no harness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vidspec.errors import UsageError
from vidspec.registry import nearest

#: Model arguments that are keys of the profile, among them the names that the harness's own models use.
KEYS = {
    "target": "models.target",
    "pretrained": "models.target",
    "draft": "models.draft",
    "pair": "models.pair",
    "device": "models.device",
    "dtype": "models.dtype",
    "frames": "video.frames",
    "max_frames": "video.frames",
    "max_frames_num": "video.frames",
    "max_num_frames": "video.frames",
    "fps": "video.fps",
}
#: The harness's default ``until``: the delimiter of few-shot examples.
DELIMITER = "\n\n"
#: Keys of ``generation_kwargs`` that are read here.
READ = frozenset({"max_new_tokens", "max_gen_toks", "temperature", "top_p", "do_sample", "num_beams", "until"})


class Wanted(NamedTuple):
    """Options of a request: overrides of the profile, strings that end the answer, and ignored keys."""

    overrides: dict[str, object]
    until: tuple[str, ...]
    unread: tuple[str, ...]


def overrides_of(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return ``--model_args`` as overrides of a profile.

    Args:
        arguments: by name; one with a dot is a key of the profile.

    Raises:
        UsageError: there is no argument of that name, or two set the same key.
    """
    found: dict[str, object] = {}
    for name, value in arguments.items():
        key = name if "." in name else KEYS.get(name)
        if key is None:
            close = nearest(name, ("profile", *KEYS))
            meant = f"; did you mean {close}?" if close else ""
            raise UsageError(
                f"model_args: there is no {name!r}{meant}",
                hint="a key of the profile is written with its section, such as draft.gamma=4",
            )
        if key in found:
            raise UsageError(f"model_args: {name} sets {key}, which is set already")
        found[key] = value
    return found


def wanted(kwargs: Mapping[str, Any]) -> Wanted:
    """Return the options in a task's ``generation_kwargs``; missing ones are the profile's.

    ``do_sample: false`` is greedy whatever the temperature, and ``do_sample: true`` without one is temperature 1, as
    in ``transformers``. The harness's default ``until``, a blank line, ends no answer: it would cut a caption of
    several paragraphs, and the harness's own video models pass over it too.

    Raises:
        UsageError: beam search.
    """
    given = {key: value for key, value in kwargs.items() if value is not None}
    if int(given.get("num_beams", 1)) != 1:
        raise UsageError(
            f"generation_kwargs: num_beams {given['num_beams']}: there is no beam search", hint="num_beams: 1"
        )
    overrides: dict[str, object] = {}
    tokens = given.get("max_new_tokens", given.get("max_gen_toks"))
    if tokens is not None:
        overrides["generate.max_new_tokens"] = tokens
    temperature, sample = given.get("temperature"), given.get("do_sample")
    if sample is not None and not sample:
        temperature = 0.0
    elif sample and temperature is None:
        temperature = 1.0
    if temperature is not None:
        overrides["generate.temperature"] = float(temperature)
    if "top_p" in given and temperature != 0:
        overrides["generate.top_p"] = float(given["top_p"])
    until = given.get("until", ())
    ends = (until,) if isinstance(until, str) else tuple(until)
    return Wanted(
        overrides,
        tuple(end for end in ends if end not in ("", DELIMITER)),
        tuple(key for key in given if key not in READ),
    )
