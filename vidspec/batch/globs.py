"""Globs over paths, as ``--include`` and ``--exclude`` take them; looks at no file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

__all__ = ["matches"]


def matches(relative: str, patterns: Iterable[str]) -> bool:
    """Whether ``relative``, a path with ``/``, is meant by one of ``patterns``.

    A pattern without ``/`` is compared with every part of the path, so that ``tmp`` means a folder of that name and all
    that is in it; one with ``/`` is compared with the whole path and its leading folders. ``*`` and ``?`` stay within
    a part, ``**`` crosses them, ``[ab]`` is one of these characters.
    """
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    leading = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    for pattern in patterns:
        wanted = pattern.removeprefix("./").rstrip("/")
        candidates = leading if "/" in wanted else parts
        if any(_compiled(wanted).fullmatch(candidate) for candidate in candidates):
            return True
    return False


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        elif pattern[at] == "[" and (close := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : close].replace("\\", "\\\\")
            out, at = out + "[" + ("^" + inner[1:] if inner[0] == "!" else inner) + "]", close + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return re.compile(out, re.DOTALL)
