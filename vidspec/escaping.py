"""What makes texts of others harmless where they are shown or written: names, prompts and captions. Pure.

A terminal obeys control characters (ESC and the C1 range among them), and bidirectional overrides make a line read as
another; they become escapes such as ``\\x1b`` and ``\\u202e``, in JSON such that they are read back as what they were.
Spreadsheets run cells that begin like a formula, and players read ``<`` and ``-->`` in subtitles.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

__all__ = ["cell", "cue", "escape_text", "json_text", "one_line"]

#: C0 but tab and line feed, DEL, C1; embeddings, overrides and isolates of the Unicode bidirectional algorithm; halves
#: of surrogates, which stand for bytes of a name that are not UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Those, and what else ends a line of JSON for some reader; those, and what else ends a line or a column.
_JSON = re.compile(_CONTROL.pattern[:-1] + "\u2028\u2029]")
_BREAKING = re.compile(_JSON.pattern[:-1] + "\t\n]")
#: How a formula begins for some spreadsheet, after blanks or not (OWASP, CSV injection).
_FORMULA = re.compile("[\t\r]|\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]")


def escape_text(text: str) -> str:
    r"""``text`` on lines of its own, tabs and line feeds as they are.

    >>> shown("a\x1b[31m\nb")
    'a\\x1b[31m\nb'
    """
    return _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""``text`` as a part of a line.

    >>> one_line("a\tb\nc\x9b")
    'a\\tb\\nc\\x9b'
    """
    return _BREAKING.sub(_escaped, text)


def json_text(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """``value`` as JSON, readable but for what a terminal would obey; reads back as it was. Arguments as of ``json``.

    Raises:
        ValueError: it holds a number that is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=default)
    return _JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell(text: str, *, raw: bool = False, lines: bool = True) -> str:
    """``text`` for a cell of CSV, of several lines if ``lines``: one that begins like a formula gets a ``'`` before it
    unless ``raw``."""
    guard = "'" if not raw and _FORMULA.match(text) else ""
    return guard + (escape_text(text) if lines else one_line(text))


def cue(text: str) -> str:
    """A line of SRT or VTT: ``<``, ``&`` and ``-->`` mean something to a player."""
    return html.escape(one_line(text), quote=False)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
