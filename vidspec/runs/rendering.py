"""Rendering of prompts and captions: fields in braces, templates, one line. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from string import Formatter

from vidspec.errors import UsageError
from vidspec.registry import nearest

__all__ = [
    "check_names",
    "check_template",
    "column_text",
    "fill_fields",
    "has_field",
    "names_in_braces",
    "render_caption",
    "rendered_beginning",
    "template_fields",
    "whole_words",
]

#: A name in braces, with a comma after it.
_FIELD = re.compile(r"\{([^{}]+)\}(\s*,\s*)?")
#: Names of fields; JSON in braces is none.
_NAME = re.compile(r"[\w .:/-]*")
#: End of a word, and of each character in scripts without blanks between words.
_WORD_ENDS = re.compile("(?<=\\S)(?=\\s)|(?<=[\u3001-\u30ff\u3400-\u9fff\uff01-\uff60])")


def check_template(template: str, origin: str, fields: Collection[str] | None = None) -> None:
    """Reject a template that lacks ``{caption}`` or has a field of another name than ``fields``.

    Args:
        template: text with fields in braces; ``{{`` and ``}}`` are braces of its own.
        origin: option or key, for the message.
        fields: known names besides ``caption``; None to allow any.

    Raises:
        UsageError: naming the field.
    """
    hint = f"{origin} 'ohwx, {{caption}}'"
    try:
        parts = [(name, form) for _, name, *form in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise UsageError(f"{origin}: {error}; write other braces as {{{{ and }}}}", hint=hint) from None
    if strange := [name for name, _ in parts if not _NAME.fullmatch(name)]:
        message = f"{origin}: {{{strange[0]}}} is not a field; write other braces as {{{{ and }}}}"
        raise UsageError(message, hint=f'{origin} \'{{{{"text": "{{caption}}"}}}}\'')
    known = dict.fromkeys(("caption", *([name for name, _ in parts] if fields is None else fields)))
    if other := [name for name, form in parts if name not in known or any(form)]:
        listed = ", ".join(f"{{{name}}}" for name in known)
        raise UsageError(f"{origin}: has no field but {listed}, not {{{other[0]}}}", hint=hint)
    if "caption" not in dict(parts):
        raise UsageError(f"{origin}: lacks {{caption}}", hint=hint)


def template_fields(template: str | None) -> set[str]:
    """Return the names of the fields of a template, without ``caption``."""
    return {name for _, name, *_ in Formatter().parse(template or "") if name} - {"caption"}


def column_text(value: object) -> str:
    """Return a value of a manifest's column as text: a list joined by commas, other values than text as JSON."""
    if isinstance(value, str):
        return value
    return ", ".join(map(column_text, value)) if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def fill_fields(text: str, fields: Mapping[str, str]) -> str:
    """Return a prompt with the known names in braces replaced; all other braces stay.

    An empty value takes the comma after it along.
    """

    def filled(found: re.Match[str]) -> str:
        value = fields.get(found[1])
        return found[0] if value is None else value and value + (found[2] or "")

    return _FIELD.sub(filled, text) if fields else text


def check_names(text: str, origin: str, fields: Collection[str]) -> None:
    """Reject a prompt with a name in braces that is a known one misspelt; all others are text.

    Raises:
        UsageError: naming the field.
    """
    for name in names_in_braces(text) - set(fields):
        if (meant := nearest(name, fields)) is not None:
            raise UsageError(f"{origin}: there is no field {{{name}}}", hint=f"did you mean {{{meant}}}?")


def names_in_braces(text: str) -> set[str]:
    """Return all names in braces in a prompt, known or not."""
    return {name for name, _ in _FIELD.findall(text)}


def has_field(text: str, fields: Collection[str]) -> bool:
    """Return True if :func:`fill_fields` would replace something."""
    return any(name in fields for name in names_in_braces(text))


def whole_words(text: str) -> str:
    """Return the beginning of an unfinished text without its last word, which may be incomplete."""
    return text[: max((end.start() for end in _WORD_ENDS.finditer(text)), default=0)].lstrip()


def rendered_beginning(words: str, template: str | None, fields: Mapping[str, str] | None = None) -> str:
    """Return the beginning of :func:`render_caption` for a caption that begins with these complete words."""
    return _fill_template(template, {**(fields or {}), "caption": "\0"}).partition("\0")[0] + words


def render_caption(caption: str, template: str, fields: Mapping[str, str] | None = None) -> str:
    """Return a caption in a template.

    Args:
        caption: the caption.
        template: see :func:`check_template`.
        fields: values of the other fields; missing ones are empty.
    """
    return _fill_template(template, {**(fields or {}), "caption": caption})


def _fill_template(template: str | None, fields: Mapping[str, str]) -> str:
    """Fill a template; an empty field takes a comma next to it along."""
    filled, empty = "", False
    for text, name, *_ in Formatter().parse("{caption}" if template is None else template):
        value = "" if name is None else fields.get(name, "")
        filled += (re.sub(r"^\s*,\s*", "", text) if empty else text) + value
        empty = not value and name not in (None, "caption")
    return re.sub(r"\s*,\s*$", "", filled) if empty else filled
