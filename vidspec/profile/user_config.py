"""The user's own defaults: ``config.yaml`` in the user's folder, laid under variables and flags. No torch.

Under the user's own profiles too, but over the packaged ones: the models, frames and prompts that those name are there
so that they work at once. It holds ``profile``, ``format`` and the sections ``models``, ``video`` and ``generate`` of a
profile; a method of one's own is a profile of one's own::

    profile: specvlm-chain
    format: jsonl
    models: {target: llava-hf/llava-onevision-qwen2-7b-ov-hf, draft: llava-hf/llava-onevision-qwen2-0.5b-ov-hf}
    video: {frames: 64}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidspec.errors import ProfileError, UsageError

__all__ = ["DEFAULT_PROFILE", "PAIRED", "Defaults", "Resolved", "config_path", "read_config", "resolve"]

DEFAULT_PROFILE = "vanilla-sd"
#: Where a draft comes from that nobody named.
PAIRED = "vidspec pairs"
OWN_KEYS = ("profile", "format")
SECTIONS = ("models", "video", "generate")
#: Keys of which one speaks for all: a config's word on one of them counts only if nobody else spoke of any.
_TOGETHER = (
    frozenset({"video.frames", "video.fps"}),
    frozenset({"models.pair", "models.target", "models.draft"}),
)


@dataclass(frozen=True)
class Defaults:
    """A config file as it is: ``profile`` and ``format`` if it names them, and keys of a profile, dotted."""

    path: Path
    profile: str | None = None
    format: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """A profile under all layers, and where each value of it was set.

    ``sources`` maps dotted keys to ``flag``, a variable's name, a file's path, ``default``, or :data:`PAIRED`.
    """

    profile: Any
    sources: Mapping[str, str]


def config_path() -> Path:
    """Where the config is, if there is one."""
    import platformdirs

    return Path(platformdirs.user_config_dir("vidspec")) / "config.yaml"


def read_config(path: Path | None = None) -> Defaults:
    """The user's config; empty if there is none.

    Raises:
        UsageError: it cannot be read, is not YAML, or holds a key that is not known.
    """
    from vidspec.profile.yaml_files import read_yaml

    path = config_path() if path is None else path
    if not path.is_file():
        return Defaults(path)
    data = read_yaml(path)
    if data is None:
        return Defaults(path)
    if not isinstance(data, dict):
        raise UsageError(f"{path}: must be a mapping of keys, not {type(data).__name__}")
    own = {key: data.pop(key, None) for key in OWN_KEYS}
    for key, value in own.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{path}: {key}: must be text, not {type(value).__name__}")
    return Defaults(path, own["profile"], own["format"], _checked(path, _dotted(data)))


def resolve(
    name: str | None,
    overrides: Mapping[str, object],
    defaults: Defaults,
    env: Mapping[str, str] | None = None,
) -> Resolved:
    """The profile to use: a flag wins over a ``VIDSPEC_*`` variable, that over the profile, that over the config.

    Args:
        name: of the profile, or its file; None for the config's, else the built-in default.
        overrides: flags, by dotted key.
        defaults: the config.
        env: the environment; ``os.environ`` if None.

    Raises:
        ProfileError: as ``vidspec.profile.profiles.load``.
    """
    from vidspec.profile import profiles

    env = os.environ if env is None else env
    name = name or defaults.profile or DEFAULT_PROFILE
    file, said, packaged = _said_by_profile(name)
    variables = {
        variable.removeprefix(profiles.PREFIX).lower().replace("__", ".", 1): variable
        for variable, value in env.items()
        if variable.startswith(profiles.PREFIX) and "__" in variable and value != ""
    }
    spoken = {*(() if packaged else said), *variables, *overrides}
    under = {
        key: value
        for key, value in defaults.keys.items()
        if spoken.isdisjoint(next((group for group in _TOGETHER if key in group), {key}))
    }
    profile = profiles.load(name, {**under, **overrides}, env)
    sources = {}
    for key in _dotted(profile.model_dump()):
        if key in overrides:
            sources[key] = "flag"
        elif key in variables:
            sources[key] = variables[key]
        elif key in under:
            sources[key] = str(defaults.path)
        elif key in said and not _taken_back(key, under):
            sources[key] = file
        else:
            sources[key] = PAIRED if key == "models.draft" and profile.models.draft else "default"
    return Resolved(profile, sources)


def _taken_back(key: str, under: Mapping[str, Any]) -> bool:
    """Whether the config's word on another key leaves ``key`` at its default."""
    return any(key in group and not group.isdisjoint(under) for group in _TOGETHER)


def _said_by_profile(name: str) -> tuple[str, set[str], bool]:
    """The file of a profile, the keys that it sets (none where it cannot be read, which ``load`` reports), and whether
    it came with vidspec."""
    from vidspec.profile import profiles
    from vidspec.profile.yaml_files import read_yaml

    path, source = profiles.files().get(name, (Path(name).expanduser(), ""))
    packaged = source == "packaged"
    try:
        data = read_yaml(path)
    except UsageError:
        return str(path), set(), packaged
    return str(path), set(_dotted(data)) if isinstance(data, dict) else set(), packaged


def _checked(path: Path, keys: dict[str, Any]) -> dict[str, Any]:
    """``keys`` if a profile has each of them; otherwise the complaint that a profile would get."""
    from vidspec.profile import profiles

    sections = profiles.parse({"name": "config"}).model_dump()
    known = {f"{name}.{key}" for name, section in sections.items() if isinstance(section, dict) for key in section}
    for key in keys:
        if key not in known:
            try:
                profiles.parse({"name": "config", **_nested({key: keys[key]})})
            except ProfileError as error:
                raise UsageError(f"{path}: {error.message}") from None
            raise UsageError(f"{path}: {key}: is not a key of a config")
        if key.partition(".")[0] not in SECTIONS:
            raise UsageError(
                f"{path}: {key}: is part of a method", hint="put it into a profile, and name that with profile:"
            )
    return keys


def _dotted(data: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": deep for inner, deep in value.items()}
        elif value is not None:
            flat[str(key)] = value
    return flat


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in flat.items():
        section, dot, inner = key.partition(".")
        if dot:
            data.setdefault(section, {})[inner] = value
        else:
            data[key] = value
    return data
