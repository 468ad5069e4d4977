"""Pydantic validators of single values of a profile, and parsers of a run's."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from vidspec.bounds import COLDEST, HOTTEST, MANY, WIDEST
from vidspec.drafting.static_tree import parse_tree
from vidspec.errors import UsageError, option
from vidspec.escaping import HALF_CHARACTER

#: Seconds of the shortest segment; hours of video in shorter ones would be more parts than memory holds.
SHORTEST_SEGMENT = 0.1


def tree(text: str) -> str:
    if len(text.split()) > WIDEST:
        raise PydanticCustomError("tree", "{text}", {"text": f"must have at most {WIDEST} nodes"})
    try:
        parse_tree(text)
    except ValueError as error:
        raise PydanticCustomError("tree", "{text}", {"text": str(error)}) from error
    return text


def gamma(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(WIDEST)):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WIDEST:
        return value
    raise PydanticCustomError("gamma", "must be auto or a whole number from 1 to {widest}", {"widest": WIDEST})


def temperature(value: float) -> float:
    if value == 0 or COLDEST <= value <= HOTTEST:
        return value
    raise PydanticCustomError(
        "temperature", "must be 0 or from {coldest} to {hottest}", {"coldest": COLDEST, "hottest": int(HOTTEST)}
    )


def packed(value: object) -> object:
    chosen = {"auto": "auto", "true": True, "false": False}.get(str(value).lower())
    if chosen is None:
        raise PydanticCustomError("packed", "must be auto, true or false")
    return chosen


def device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", name):
        raise PydanticCustomError("device", "must be auto, cpu, cuda, cuda:N, xpu, xpu:N or mps")
    return name


def words(value: object) -> object:
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        return value
    empty = isinstance(value, str)  # an empty text is no word, an empty item of a list a mistake
    return [word.strip() for line in lines for word in line.split(",") if word.strip() or not (empty or line)]


def strings(value: object) -> object:
    return [value] if isinstance(value, str) else value


def shares(value: object) -> object:
    if isinstance(value, str):
        return [share.strip() for share in value.strip("[] ").split(",")]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


def json_schema(value: object) -> object:
    """Return a schema as JSON text; ``value`` may be a file's path."""
    text = value
    if isinstance(text, str):
        try:
            value = json.loads(text if text.lstrip().startswith("{") else Path(text).read_bytes())
        except OSError as error:
            raise PydanticCustomError("file", "{text}", {"text": f"{text}: {error.strerror}"}) from error
        except ValueError as error:
            raise PydanticCustomError("json_schema", "{text}", {"text": f"must be JSON ({error})"}) from error
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PydanticCustomError("json_schema", "must be a JSON Schema: an object, or a file with one")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, RecursionError) as error:
        raise PydanticCustomError("json_schema", "{text}", {"text": f"must be JSON ({error})"}) from error


def parse_seconds(text: str) -> float:
    """Parse ``90``, ``1.5``, ``30s``, ``2m``, ``1h``, ``1:30`` or ``0:01:30.5`` as seconds.

    Raises:
        ValueError: the text has none of these forms.
    """
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", text.strip())
    if clock:
        return int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
    unit = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|sec|m|min|h)?", text.strip())
    if not unit:
        raise ValueError(f"{text!r} is not a time")
    return float(unit[1]) * {"m": 60, "min": 60, "h": 3600}.get(unit[2] or "s", 1)


def parse_time(value: object, where: str) -> float | None:
    """Parse a time of a manifest or a run to seconds; None if unset.

    Raises:
        UsageError: it is not a time; the message begins with ``where``.
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        time = parse_seconds(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        raise UsageError(f"{where} {value!r}: must be seconds or [hh:]mm:ss, from 0") from None
    if not (math.isfinite(time) and time >= 0):
        raise UsageError(f"{where} {value!r}: must be zero or more seconds")
    return time


def seconds(value: object, field: ValidationInfo) -> float | None:
    return parse_time(value, option(field.field_name or ""))


def parse_timeout(value: float | None) -> float | None:
    if value is not None and not 0 < value <= MANY:
        raise UsageError(f"{option('timeout', value)}: must be more than 0 seconds, and at most {MANY}")
    return value


def filled(example: str) -> AfterValidator:
    """Return a validator that refuses a text without a visible character, alone or among several."""

    def check(value: Any, field: ValidationInfo) -> Any:
        name = field.field_name or ""
        if any(not one.strip() for one in ((value,) if isinstance(value, str) else value or ())):
            raise UsageError(f"{option(name)}: is empty", hint=option(name, example))
        return value

    return AfterValidator(check)


def require_text(name: str, value: object) -> None:
    """Refuse a text, or several, with lone surrogates: bytes that were not UTF-8, as in a script saved as Latin-1.

    Raises:
        UsageError: begins with ``name``.
    """
    values = value if isinstance(value, tuple) else (value,)
    if any(isinstance(one, str) and HALF_CHARACTER.search(one) for one in values):
        raise UsageError(f"{name}: holds bytes that are not UTF-8", hint="save the script as UTF-8")


def parse_size(text: str, origin: str) -> int:
    """Parse a size with or without a unit, in bytes; ``origin`` names it in the error."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " ")) if found else 0
    if not 0 < size < 2**63:
        raise UsageError(f"{origin} {text}: must be a size, such as 500MB or 2GiB")
    return size


def parse_segment(value: object) -> float | Literal["scenes"] | None:
    """Parse the length of a segment: ``scenes``, seconds (``30s``, ``2m``, ``1:30``), or None.

    Raises:
        UsageError: it is none of these.
    """
    if value is None or value == "scenes":
        return value
    try:
        length = parse_seconds(str(value))
    except ValueError:
        length = 0.0
    if not (math.isfinite(length) and length >= SHORTEST_SEGMENT):
        what = f"must be scenes or a length such as 30s, of {SHORTEST_SEGMENT:g} s or more"
        raise UsageError(f"{option('segment', value)}: {what}")
    return length


def parse_count(value: object, field: ValidationInfo) -> int | Literal["auto"] | None:
    """Parse a number of clips or captioners, or ``auto``.

    Raises:
        UsageError: it is neither.
    """
    text = str(value)
    if value is None or value == "auto":
        return value
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MANY):
        raise UsageError(f"{option(field.field_name or '', value)}: must be auto or a number, 1 or more")
    return int(text)
