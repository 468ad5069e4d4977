"""Options of a run and keys of a profile as keywords of Python."""

from __future__ import annotations

from collections.abc import Mapping

from vidspec.config.run_spec import RunSpec
from vidspec.config.sections import Flag, GenerateSection, ModelsSection, VideoSection
from vidspec.errors import UsageError, spell_argument
from vidspec.registry import nearest

__all__ = ["spell_keyword", "split_keywords"]

#: Key of the profile of each keyword that is one.
KEYWORDS: dict[str, str] = {
    name: f"{section}.{name}"
    for section, model in (("models", ModelsSection), ("video", VideoSection), ("generate", GenerateSection))
    for name, field in model.model_fields.items()
    if any(isinstance(one, Flag) for one in field.metadata)
}


def split_keywords(options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the fields of a run among keywords, and the keys of its profile by dotted name.

    A key of a profile that is an option of the command line is a keyword of the same name, such as ``frames``.

    Raises:
        UsageError: a keyword is neither, a key is set twice, or the overrides are no mapping.
    """
    given = options.get("overrides") or {}
    if not isinstance(given, Mapping):
        raise UsageError("overrides: must be a dictionary with dotted keys", hint='{"prune.alpha": 0.8}')
    overrides = dict(given)
    fields: dict[str, object] = {}
    for name, value in options.items():
        if name in RunSpec.model_fields and name != "overrides":
            fields[name] = value
        elif name in KEYWORDS and KEYWORDS[name] in overrides:
            raise UsageError(f"{name}: is set twice, {KEYWORDS[name]} in overrides too")
        elif name in KEYWORDS:
            overrides |= {} if value is None else {KEYWORDS[name]: value}
        elif name != "overrides":
            close = nearest(name, [*RunSpec.model_fields, *KEYWORDS])
            raise UsageError(f"{name}: is not an option of a run", hint=f"did you mean {close}?" if close else None)
    return fields, overrides


def spell_keyword(name: str, value: object) -> str:
    """Spell an option as a keyword of :func:`vidspec.run`: ``segment='30s'``, and ``frames=4`` for ``video.frames``."""
    keyword = name.rpartition(".")[2]
    if KEYWORDS.get(keyword) == name:
        return spell_argument(keyword, value)
    if "." in name and value is not None:
        return f'overrides={{"{name}": {value!r}}}'
    return spell_argument(name, value)
