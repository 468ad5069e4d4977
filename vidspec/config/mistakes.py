"""Says in one line what pydantic found wrong with settings; the key comes first."""

from __future__ import annotations

from pydantic import ValidationError

__all__ = ["mistake"]

#: Characters of a wrong value that a message repeats.
LONGEST = 80


def mistake(error: ValidationError) -> tuple[str, str]:
    """The key of the first problem, empty where it is one of several keys together, and the message."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "combination":
        return "", first["msg"]
    key = ".".join(str(part) for part in first["loc"])
    given = "" if first["type"] in ("name", "missing") else f", not {_quoted(first['input'])}"
    text = first["msg"].replace("Input should be", "must be").replace("String should", "must")
    return key, f"{key}: {text[:1].lower()}{text[1:]}{given}"


def _quoted(value: object) -> str:
    """As much of what was given as helps."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
