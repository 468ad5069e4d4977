"""Rendering of captions: in a template, on one line. Pure."""

from __future__ import annotations

import re
from string import Formatter

from vidspec.errors import UsageError

__all__ = ["check_template", "render_caption", "rendered_beginning", "whole_words"]

#: End of a word, and of each character in scripts without blanks between words.
_WORD_ENDS = re.compile("(?<=\\S)(?=\\s)|(?<=[\u3001-\u30ff\u3400-\u9fff\uff01-\uff60])")


def check_template(template: str, origin: str) -> None:
    """Reject a template that is not text around ``{caption}``.

    Args:
        template: format string as for ``str.format``.
        origin: option or key, for the message.

    Raises:
        UsageError: the template has another field or none.
    """
    hint = f"{origin} 'ohwx, {{caption}}'"
    try:
        parts = [part[1:] for part in Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise UsageError(f"{origin}: {error}; braces of its own are written {{{{ and }}}}", hint=hint) from None
    if other := [name for name, *form in parts if name != "caption" or any(form)]:
        raise UsageError(f"{origin}: has no field but {{caption}}, not {{{other[0]}}}", hint=hint)
    if not parts:
        raise UsageError(f"{origin}: lacks {{caption}}", hint=hint)


def whole_words(text: str) -> str:
    """Return the beginning of an unfinished text without its last word, which may be incomplete."""
    return text[: max((end.start() for end in _WORD_ENDS.finditer(text)), default=0)].lstrip()


def rendered_beginning(words: str, template: str | None, *, single_line: bool) -> str:
    """Return the beginning of :func:`render_caption` for a caption that begins with these complete words."""
    head = "" if template is None else template.format(caption="\0").partition("\0")[0]
    return " ".join((head + words).split()) if single_line else head + words


def render_caption(caption: str, template: str | None, *, single_line: bool) -> str:
    """Return a caption in a template; with ``single_line`` each run of blanks and line breaks becomes one blank."""
    text = caption if template is None else template.format(caption=caption)
    return " ".join(text.split()) if single_line else text
