"""Escape untrusted text (names, prompts, captions) for terminals, JSON, CSV and subtitles. Pure.

A terminal obeys control characters (ESC and the C1 range among them), and bidirectional overrides change how a line
reads; both become escapes such as ``\\x1b`` and ``\\u202e``. JSON escapes read back as the original characters.
Spreadsheets run cells that begin like a formula, and players interpret ``<`` and ``-->`` in subtitles.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

__all__ = [
    "HALF_CHARACTER",
    "VALUE",
    "cell",
    "escape_text",
    "json_text",
    "mark_value",
    "one_line",
    "srt_cue",
    "vtt_cue",
    "without_marks",
]

#: A value within a prompt, between marks that no text has; see :func:`mark_value`.
VALUE = re.compile("\ue000([^\ue000\ue001]*)\ue001")
_MARKS = dict.fromkeys(map(ord, "\ue000\ue001"))

#: A lone surrogate: a byte that is not UTF-8, or half of an escape of JSON. No model and no file takes it.
HALF_CHARACTER = re.compile("[\\ud800-\\udfff]")
#: C0 except tab and line feed, DEL, C1; embeddings, overrides and isolates of the Unicode bidirectional algorithm; lone
#: surrogates, which stand for bytes of a name that are not UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: The same plus the line ends that some JSON readers know; these plus tab and line feed.
_JSON = re.compile(_CONTROL.pattern[:-1] + "\u2028\u2029]")
_BREAKING = re.compile(_JSON.pattern[:-1] + "\t\n]")
#: Beginning of a formula in some spreadsheet, with or without leading blanks (OWASP, CSV injection).
_FORMULA = re.compile("[\t\r]|\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]")


def escape_text(text: str) -> str:
    r"""Escape ``text`` that stands on its own lines; tabs and line feeds stay.

    >>> escape_text("a\x1b[31m\nb")
    'a\\x1b[31m\nb'
    """
    return _CONTROL.sub(_escape_match, text)


def one_line(text: str) -> str:
    r"""Escape ``text`` that stands within a line.

    >>> one_line("a\tb\nc\x9b")
    'a\\tb\\nc\\x9b'
    """
    return _BREAKING.sub(_escape_match, text)


def json_text(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return ``value`` as readable JSON with control characters escaped. Arguments as for ``json.dumps``.

    Raises:
        ValueError: it contains a number that is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=default)
    return _JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def cell(text: str, *, lines: bool = True) -> str:
    """Escape ``text`` for a CSV cell, on several lines if ``lines``.

    A cell that begins like a formula gets a leading ``'``.
    """
    guard = "'" if _FORMULA.match(text) else ""
    return guard + (escape_text(text) if lines else one_line(text))


#: A character without width that keeps players from reading codes; no caption needs it.
WORD_JOINER = "\u2060"
#: Places within tags, codes and arrows of SubRip.
_SRT_CODES = re.compile(r"(?<=<)(?=[a-zA-Z/])|(?<=\{)(?=[\\a-zA-Z])|(?<=--)(?=>)")


def vtt_cue(text: str) -> str:
    """Escape a line of WebVTT, where players interpret ``<``, ``&`` and ``-->``."""
    return html.escape(one_line(text), quote=False)


def srt_cue(text: str) -> str:
    """Escape a line of SubRip, which has no entities: a word joiner, which has no width, parts what players interpret.

    That is tags (``<i>``, ``</font>``), override codes (``{\\an8}``, ``{y:i}``) and ``-->``.
    """
    return _SRT_CODES.sub(WORD_JOINER, one_line(text))


def mark_value(text: str) -> str:
    """Mark a value that fills a prompt if it may hold control tokens of a model, which are plain text there."""
    text = without_marks(text)
    return f"\ue000{text}\ue001" if any(sign in text for sign in "<[|]>") else text


def without_marks(text: str) -> str:
    """Return a text without the marks of :func:`mark_value`."""
    return text.translate(_MARKS)


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
