"""The user's defaults: ``config.yaml`` in the user's folder, overridden by variables and flags. No torch.

The user's own profiles override it too; it overrides the packaged profiles, whose models, frames and prompts are only
defaults. It holds ``profile``, ``format`` and the sections ``models``, ``video`` and ``generate`` of a profile. Keys of
a method belong in a profile::

    profile: specvlm-chain
    format: jsonl
    models: {target: llava-hf/llava-onevision-qwen2-7b-ov-hf, draft: llava-hf/llava-onevision-qwen2-0.5b-ov-hf}
    video: {frames: 64}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vidspec.errors import OutputError, UsageError

if TYPE_CHECKING:
    from vidspec.config.schema import Profile

#: The profile of models that the user names, and that of a built-in pair, which comes with a block head.
DEFAULT_PROFILE, BUILT_IN_PROFILE = "vanilla-sd-auto", "sparrow"
#: The source of a draft that was chosen by default.
PAIRED = "vidspec models"
#: The source of a value that was chosen for this machine.
CHOSEN = "predicted for this GPU"
#: The source of a draft that was trained for the target.
TRAINED = "vidspec train"
OWN_KEYS = ("profile", "format")
SECTIONS = ("models", "video", "generate")
#: Keys of the section ``models`` that choose them.
CHOICE = ("pair", "target", "draft")


#: Keys of plain decoding over those of the default profile.
PLAIN: Mapping[str, object] = {
    "name": "ar",
    "draft.kind": "none",
    "draft.gamma": 5,
    "schedule.kind": "autoregressive",
}
#: Sections of which a user who sets any key has chosen a method.
_METHOD = frozenset({"draft", "prune", "schedule", "accept", "lossy", "workers"})


@dataclass(frozen=True)
class UserConfig:
    """Contents of the config file: ``profile`` and ``format`` if set, and dotted keys of a profile."""

    path: Path
    profile: str | None = None
    format: str | None = None
    keys: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedProfile:
    """A profile with all layers merged, and the source of each value.

    ``sources`` maps dotted keys to ``flag``, a variable's name, a file (the profile's, its base's, the config),
    ``default``, or :data:`PAIRED`. ``models_named`` is True if the user chose the models, not a packaged profile.
    ``note`` is a line for the user about what was chosen for a target that was named alone.
    """

    profile: Profile
    sources: Mapping[str, str]
    models_named: bool = False
    note: str | None = None


def sets_a_method(keys: Mapping[str, object]) -> bool:
    """Return True if the user has named a draft or set an option of a method."""
    return any(key == "models.draft" or key.partition(".")[0] in _METHOD for key in keys)


def read_config(path: Path | None = None) -> UserConfig:
    """Read the user's config, that at ``path`` or in the user's folder; empty if there is none.

    Raises:
        UsageError: the file cannot be read, is not YAML, or has an unknown key.
    """
    import platformdirs

    from vidspec.config.files import read_yaml

    path = path or Path(platformdirs.user_config_dir("vidspec")) / "config.yaml"
    if not os.path.lexists(path):  # a link whose file is gone is an error: its settings would be missing in silence
        return UserConfig(path)
    data = read_yaml(path)
    if data is None:
        return UserConfig(path)
    if not isinstance(data, dict):
        raise UsageError(f"{path}: must be a mapping of keys, not {type(data).__name__}")
    own = {key: data.pop(key, None) for key in OWN_KEYS}
    for key, value in own.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{path}: {key}: must be text, not {type(value).__name__}")
    return UserConfig(path, own["profile"], own["format"], _check_keys(path, data))


def with_models(defaults: UserConfig, chosen: Mapping[str, str]) -> UserConfig:
    """Return the config with its choice of models replaced; ``chosen`` has keys of :data:`CHOICE`."""
    kept = {key: value for key, value in defaults.keys.items() if key not in {f"models.{name}" for name in CHOICE}}
    return replace(defaults, keys=kept | {f"models.{name}": value for name, value in chosen.items()})


def write_models(path: Path, chosen: Mapping[str, str]) -> None:
    """Write a choice of models into a config, which need not exist; one with comments is kept as ``FILE~``.

    Args:
        chosen: keys of :data:`CHOICE` with their values.

    Raises:
        OutputError: the file cannot be written.
    """
    import yaml

    from vidspec.files import behind_link, copy_to_backup, write_whole

    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    data = yaml.safe_load(text) or {}
    models = {key: value for key, value in (data.get("models") or {}).items() if key not in CHOICE} | dict(chosen)
    expected = {key: value for key, value in data.items() if key != "models"} | ({"models": models} if models else {})
    written = yaml.safe_dump(expected, default_flow_style=None, sort_keys=False, allow_unicode=True, width=1 << 20)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent}: cannot be made: {error.strerror or error}") from None
    if "#" in text:
        copy_to_backup(path)
    write_whole(behind_link(path), written if expected else "")


def resolve(
    name: str | None,
    overrides: Mapping[str, object],
    defaults: UserConfig,
    env: Mapping[str, str] | None = None,
    chosen: Mapping[str, object] | None = None,
    source: str = CHOSEN,
) -> ResolvedProfile:
    """Resolve the profile to use: flags win over ``VIDSPEC_*`` variables, these over the profile, that over the config.

    The config is also overridden by the user's own base profiles; it overrides packaged profiles.

    Args:
        name: of the profile, or its file; None for the config's or else the built-in default.
        overrides: flags, by dotted key.
        env: the environment; ``os.environ`` if None.
        chosen: keys over those of a packaged profile that were chosen for this machine, by dotted key.
        source: of the chosen keys.

    Raises:
        ProfileError: as ``vidspec.config.profiles.load``.
    """
    from vidspec.config import profiles
    from vidspec.config.files import ProfileStore
    from vidspec.config.schema import EXCLUSIVE_KEYS

    files = profiles.layers_of(ProfileStore().chain(name or defaults.profile or DEFAULT_PROFILE))
    packaged, own = ([layer for source, layer in files if (source == "packaged") is wanted] for wanted in (True, False))
    above = (*own, profiles.from_env(os.environ if env is None else env), profiles.from_flags(overrides))
    given = {key for layer in above for key in layer}
    # Of keys that exclude each other, the config sets one only if no layer above it sets any.
    rivals = ({*ours, *theirs} for ours, theirs in EXCLUSIVE_KEYS)
    hidden = given.union(*(keys for keys in rivals if not given.isdisjoint(keys)))
    under = {key: (value, str(defaults.path)) for key, value in defaults.keys.items() if key not in hidden}
    here = {key: (value, source) for key, value in (chosen or {}).items()}
    profile, origins = profiles.merge_layers(*packaged, here, under, *above)
    derived = {"models.draft": PAIRED} if profile.models.draft else {}
    values = profiles.flatten_keys(profile.model_dump())
    sources = {key: origins.get(key, derived.get(key, "default")) or "flag" for key in values}
    named = any(key in layer for layer in (under, *above) for key in ("models.pair", "models.target"))
    return ResolvedProfile(profile, sources, named)


def _check_keys(path: Path, data: Mapping[str, object]) -> dict[str, object]:
    """Return the dotted keys of a config.

    Raises:
        UsageError: a key is not one of a profile, or not allowed in a config.
    """
    from vidspec.config import profiles
    from vidspec.registry import nearest

    for key in (keys := profiles.flatten_keys(data)):
        section, inner, _ = key.partition(".")
        if key not in profiles.KEYS:
            close = None if inner else nearest(key, OWN_KEYS)
            meant = f"unknown key; did you mean {close}?" if close else profiles.unknown(key)
            raise UsageError(f"{path}: {key}: {meant}")
        if not inner:
            raise UsageError(f"{path}: {key}: is not a key of a config")
        if section not in SECTIONS:
            raise UsageError(
                f"{path}: {key}: is part of a method", hint="put it into a profile, and name that with profile:"
            )
    return keys
