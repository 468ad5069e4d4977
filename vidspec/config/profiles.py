"""Finds, merges and lists profiles: models, drafter, pruner, schedule and acceptance rule of a captioner. No torch.

``load`` finds a profile by name or file and merges the layers: flags win over ``VIDSPEC_*`` variables, these over the
profile, the profile over its base, the base over defaults. Every mistake is a :class:`~vidspec.errors.ProfileError`
whose message begins with the key's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pydantic import BaseModel, ValidationError

from vidspec.acceptance.base import rules
from vidspec.config.files import LAST, ProfileEntry, ProfileStore, describe_error, named_file, packaged_folder
from vidspec.config.schema import EXCLUSIVE_KEYS, Profile
from vidspec.drafting.base import drafters
from vidspec.errors import ProfileError, option
from vidspec.escaping import one_line
from vidspec.lossy import lossy
from vidspec.pruning.base import pruners
from vidspec.registry import nearest

PREFIX = "VIDSPEC_"
#: Variables that are not keys of a profile. All others with a double underscore are:
#: ``VIDSPEC_PRUNE__ALPHA=0.8`` sets ``prune.alpha``.
RESERVED_VARIABLES = ("VIDSPEC_PROFILE", "VIDSPEC_DEBUG", "VIDSPEC_LAYOUT")

#: Options belong to the part that a key names: naming another part drops them.
_OWNERS = {f"{part.key.partition('.')[0]}.options": part.key for part in (drafters, pruners, rules, lossy)}

#: Order of listed groups; other groups that files name, such as ``ablations``, come last.
ORDER = ("recommended", "exact", "parallel", "loose", "lossy")


class ProfileInfo(NamedTuple):
    """Listing entry of a profile.

    ``source`` is ``user`` or ``packaged``. ``group`` is set by its file or derived: ``exact`` or ``parallel`` if the
    profile is lossless, ``loose`` or ``lossy`` if not. ``chosen`` profiles are listed by default: the user's own, and
    packaged ones whose file names a rank in their group.
    """

    name: str
    about: str
    path: Path
    source: str
    group: str
    chosen: bool


def available() -> list[ProfileInfo]:
    """Return all profiles, recommended ones first. An unreadable one is listed with its error."""
    store, found = ProfileStore(), []
    for name, entry in store.all().items():
        about, kind = str(entry.keys.get("about") or ""), "exact"
        try:
            layers = [layer for _, layer in layers_of(store.chain(entry))]
            kind = _kind({key: value for key, (value, _) in _merge_keys(layers).items()})
        except ProfileError as error:
            about = f"unreadable: {error.message}"
        if kind in ("loose", "lossy") and "not lossless" not in about.lower():
            about = f"{about} Not lossless."
        group = one_line(entry.group or kind)
        place = ORDER.index(group) if group in ORDER else len(ORDER)
        chosen = entry.source == "user" or entry.rank != LAST
        info = ProfileInfo(one_line(name), one_line(" ".join(about.split())), entry.path, entry.source, group, chosen)
        found.append((place, group, entry.rank, info))
    return [info for *_, info in sorted(found)]


def exists(name: str) -> bool:
    """Return True if a profile of this name or file exists; it need not be valid."""
    if (file := named_file(name)) is not None:
        return file[0].is_file()
    return name in ProfileStore().all()


def _kind(keys: Mapping[str, object]) -> str:
    """Return the group that follows from a profile's keys."""
    if keys.get("lossy.method", "none") not in (None, "none"):
        return "lossy"
    with suppress(ProfileError):  # a rule of a plugin, which listing does not load
        if isinstance(rule := keys.get("accept.rule"), str) and not rules.get(rule).lossless:
            return "loose"
    return "parallel" if keys.get("schedule.kind") == "parallel" else "exact"


def load(
    name_or_path: str,
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> Profile:
    """Load a profile and apply the environment's and the caller's overrides.

    Args:
        name_or_path: a file (it ends in .yaml or .yml, or contains a path separator), or a name that is looked up in
            the user's folder, then among the packaged ones.
        overrides: values by dotted key, such as ``{"prune.alpha": 0.8}``; text is converted to the key's type.
        env: the environment to read ``VIDSPEC_<SECTION>__<KEY>`` from; ``os.environ`` if None.

    Raises:
        ProfileError: not found, unreadable, or with an unknown key, a wrong value or an impossible combination.
    """
    layers = (layer for _, layer in layers_of(ProfileStore().chain(name_or_path)))
    return merge_layers(*layers, from_env(os.environ if env is None else env), from_flags(overrides))[0]


def override(profile: Profile, overrides: Mapping[str, object] | None) -> Profile:
    """Return ``profile`` with some keys overridden, under the same rules as :func:`load`."""
    return merge_layers(_layer(profile.model_dump()), from_flags(overrides))[0] if overrides else profile


def parse(data: Mapping[str, object]) -> Profile:
    """Build a profile from nested values, without lookup or environment.

    Raises:
        ProfileError: an unknown key, a wrong value or an impossible combination.
    """
    return merge_layers(_layer(data))[0]


def group_equal_profiles(named: Mapping[str, Profile]) -> dict[str, tuple[str, ...]]:
    """Group profiles that differ in name and description only: the first name of each group, and its other names."""
    found: dict[str, list[str]] = {}
    for name, profile in named.items():
        found.setdefault(profile.model_dump_json(exclude={"name", "about"}), []).append(name)
    return {first: tuple(others) for first, *others in found.values()}


def parse_setting(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``, an override of the command line, and strip both parts.

    Raises:
        ValueError: no key or no equals sign.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


#: Dotted keys, each with its value and source; the source is empty for values of the caller.
ProfileLayer: TypeAlias = dict[str, tuple[object, str]]


def layers_of(chain: Sequence[ProfileEntry]) -> list[tuple[str, ProfileLayer]]:
    """Return the layers of a profile, preceded by its bases, each with its source."""
    layers, plugins = [], list[object]()
    for entry in chain:
        keys = {"name": entry.name, **entry.keys}
        if entry is not chain[-1]:  # name and description are not inherited
            keys = {key: value for key, value in keys.items() if key not in ("name", "about")}
        if "plugins" in keys:
            keys["plugins"] = _resolve_plugins(entry.path, keys["plugins"])
            if isinstance(keys["plugins"], list):
                keys["plugins"] = plugins = [*plugins, *keys["plugins"]]
        layers.append((entry.source, _layer(keys, entry.origin)))
    return layers


def from_env(env: Mapping[str, str]) -> ProfileLayer:
    """Return the layer that ``VIDSPEC_*`` variables set.

    Raises:
        ProfileError: a variable is no key, but has the name of one or nearly that of another variable.
    """
    layer: ProfileLayer = {}
    sections_of = {
        last: section for section, _, last in (key.rpartition(".") for key in sorted(KEYS, reverse=True)) if section
    }
    reserved = {name.removeprefix(PREFIX).lower(): name for name in RESERVED_VARIABLES}
    for variable, value in sorted(env.items()):
        if not variable.startswith(PREFIX) or variable in RESERVED_VARIABLES or value == "":
            continue
        words = variable.removeprefix(PREFIX).lower()
        section, double, key = words.partition("__")
        if double:
            layer[f"{section}.{key}"] = (_null(f"{section}.{key}", value), variable)
        elif (section := words.partition("_")[0]) in Profile.model_fields and words != section:
            right = f"{PREFIX}{section.upper()}__{words.removeprefix(section + '_').upper()}"
            raise ProfileError(f"{variable}: not a key; did you mean {right}?")
        elif words in sections_of:
            right = f"{PREFIX}{sections_of[words]}__{words}".upper()
            raise ProfileError(f"{variable}: not a key; did you mean {right}?")
        elif close := nearest(words, reserved):
            raise ProfileError(f"{variable}: not a variable of vidspec; did you mean {reserved[close]}?")
    return layer


def from_flags(overrides: Mapping[str, object] | None) -> ProfileLayer:
    """Return the layer of a caller's overrides.

    Raises:
        ProfileError: they are not a dictionary with texts as keys.
    """
    overrides = overrides or {}
    if not isinstance(overrides, Mapping) or not all(isinstance(key, str) for key in overrides):
        raise ProfileError("overrides: must be a dictionary with dotted keys", hint='{"prune.alpha": 0.8}')
    return {key: (_null(key, value), "") for key, value in overrides.items()}


def _null(key: str, value: object) -> object:
    return None if value == "null" and key != "generate.prompt" else value


def merge_layers(*layers: ProfileLayer) -> tuple[Profile, dict[str, str]]:
    """Merge layers into a profile, each over those before it, and return the source of each key set.

    Raises:
        ProfileError: an unknown key, a wrong value or an impossible combination.
    """
    merged = _merge_keys(layers)
    origins = {key: origin for key, (_, origin) in merged.items()}
    for key in origins:
        if key not in KEYS:
            raise _error(f"{option(key)}: {unknown(key)}", origins, key)
    sections: dict[str, dict[str, object]] = {}
    for key, (value, _) in merged.items():
        section, _, inner = key.partition(".")
        sections.setdefault(section, {})[inner] = value
    try:
        return Profile.model_validate({section: keys.get("", keys) for section, keys in sections.items()}), origins
    except ValidationError as error:
        key, problem = describe_error(error)
        whole = ".".join(part for part in key.split(".") if not part.isdigit())  # without the number of a value
        raise _error(f"{option(whole)}: {problem}" if key else problem, origins, whole) from None


def _merge_keys(layers: Iterable[ProfileLayer]) -> ProfileLayer:
    """Merge layers by key, the last one wins; a layer drops earlier keys that it excludes."""
    merged: ProfileLayer = {}
    for layer in layers:
        given = {key for key, (value, _) in layer.items() if value is not None}
        pairs = [pair for sides in EXCLUSIVE_KEYS for pair in (sides, sides[::-1])]
        dropped = {key for group, rivals in pairs if not given.isdisjoint(group) for key in rivals}
        if "prune.method" in layer and "none" in (layer["prune.method"][0], merged.get("prune.method", ("none",))[0]):
            dropped.add("prune.alpha")  # an alpha belongs to its method: 0 without one
        dropped |= {
            options
            for options, owner in _OWNERS.items()
            if owner in layer and layer[owner][0] != merged.get(owner, (None,))[0]
        }
        merged = {key: one for key, one in merged.items() if key not in dropped}
        for key, one in layer.items():
            options, _, option = key.partition(".options.")
            if option and (mapping := f"{options}.options") in KEYS:
                before = merged.get(mapping, ({}, ""))[0]
                key, one = mapping, ({**(before if isinstance(before, Mapping) else {}), option: one[0]}, one[1])
            merged[key] = one
    return merged


def _error(message: str, origins: Mapping[str, str], key: str) -> ProfileError:
    """Return the error of merged layers, with the user's variables and files that set their keys."""
    packaged = f"{packaged_folder()}{os.sep}"
    sources = {key: origin for key, origin in origins.items() if origin and not origin.startswith(packaged)}
    origin = origins.get(key)
    hint = f"set by {origin}" if origin and not origin.startswith(PREFIX) else None  # a variable is named instead
    return ProfileError(message, hint=hint, sources=sources)


def _resolve_plugins(profile: Path, plugins: object) -> object:
    """Resolve plugin files relative to the folder of the profile's file."""
    if isinstance(plugins, str):
        plugins = [plugins]
    if not isinstance(plugins, list):
        return plugins
    return [str(profile.parent / Path(file).expanduser()) if isinstance(file, str) else file for file in plugins]


def flatten_keys(data: Mapping[str, object]) -> dict[str, object]:
    """Flatten ``{"prune": {"alpha": 1}}`` to ``{"prune.alpha": 1}``; only the two levels of a profile."""
    flat: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": deep for inner, deep in value.items()}
        elif value is not None or str(key) not in _SECTIONS:
            flat[str(key)] = value
    return flat


def _layer(data: Mapping[str, object], origin: str = "") -> ProfileLayer:
    return {key: (value, origin) for key, value in flatten_keys(data).items()}


_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Profile.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
#: Every key a profile may hold, dotted.
KEYS = frozenset(
    {key for key in Profile.model_fields if key not in _SECTIONS}
    | {f"{section}.{key}" for section, model in _SECTIONS.items() for key in model.model_fields}
)


def unknown(key: str) -> str:
    if key in _SECTIONS:
        return f"is a section of keys, such as {key}.{next(iter(_SECTIONS[key].model_fields))}"
    section, _, last = key.rpartition(".")
    same = sorted(known for known in KEYS if known.rpartition(".")[2] == last)
    if section and section not in _SECTIONS and (meant := nearest(section, _SECTIONS)):
        key = f"{meant}.{last}"
    close = key if key in KEYS else same[0] if same else nearest(key, (*KEYS, *_SECTIONS))
    return f"unknown key; did you mean {close}?" if close else f"unknown key; sections: {', '.join(_SECTIONS)}"
