"""The reference of a profile's keys, from the schema: their options, values, defaults and meaning. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vidspec.acceptance.base import rules
from vidspec.cli.keys import FLAGS, choices
from vidspec.config.profiles import KEYS
from vidspec.config.schema import Profile
from vidspec.drafting.base import drafters
from vidspec.lossy import lossy
from vidspec.pruning.base import pruners
from vidspec.registry import Registry, options_of
from vidspec.schedule import schedules

_PARTS: dict[str, Registry[Any]] = {
    registry.key.partition(".")[0]: registry for registry in (drafters, pruners, rules, lossy)
}
_ROUND = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1"}


class KeyReference(NamedTuple):
    """One key: its path with the options that set it, values or bounds, the default as in YAML, and its meaning."""

    key: str
    values: str
    default: str
    about: str


def key_sections() -> dict[str, tuple[str, list[KeyReference]]]:
    """Return each section's description and keys, in the order of the schema."""
    return {
        section: ((field.annotation.__doc__ or "").split("\n")[0], list(_keys(section, field.annotation)))
        for section, field in Profile.model_fields.items()
        if section not in KEYS and isinstance(field.annotation, type)
    }


def _keys(section: str, model: type[BaseModel]) -> Iterator[KeyReference]:
    owners = _owners(_PARTS[section]) if section in _PARTS else {}
    for name, field in model.model_fields.items():
        key = f"{section}.{name}"
        default = field.get_default(call_default_factory=True)
        of = f"{', '.join(owners[name])}: " if name in owners else ""
        yield KeyReference(
            ", ".join((key, *(flag for flag, of_key in FLAGS.items() if of_key == key))),
            _values(key, field),
            "null" if default is None else default if isinstance(default, str) else json.dumps(default),
            f"{of}{field.description}.",
        )


def _owners(registry: Registry[Any]) -> dict[str, list[str]]:
    """Return the built-in parts that take each key of their section."""
    owners: dict[str, list[str]] = {}
    for name in sorted(registry.modules()):
        for key in options_of(registry.get(name), *registry.known).model_fields:  # type: ignore[arg-type]
            owners.setdefault(key, []).append(name)
    return {key: names for key, names in owners.items() if key in registry.section_keys()}


def _values(key: str, field: FieldInfo) -> str:
    """Return a key's named values, or its bounds."""
    named: tuple[str, ...] = choices(field)
    for part in (*_PARTS.values(), schedules):
        if part.key == key:
            named = tuple(sorted({*part.always, *part.modules()}))
    if named:
        return ", ".join(named)
    low = next((f"{bound.ge:g}" for bound in field.metadata if isinstance(bound, Ge)), "")
    low = next((f"above {bound.gt:g}" for bound in field.metadata if isinstance(bound, Gt)), low)
    high = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
    return f"{low} to {_ROUND.get(high, high)}" if high is not None else f"{low} or more" if low else ""  # type: ignore[call-overload]
