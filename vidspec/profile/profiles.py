"""Profiles: which models, draft, pruner, schedule and rule make up one way of captioning; no torch here.

``load`` finds a profile by name or file and lays the layers over each other: a flag wins over a ``VIDSPEC_*`` variable,
that over the profile, that over the default. Every mistake is one :class:`~vidspec.errors.ProfileError` whose message
begins with the key's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ValidationError

from vidspec.errors import ProfileError
from vidspec.escaping import one_line
from vidspec.profile.schema import LOSSY, Profile
from vidspec.profile.yaml_files import read_yaml
from vidspec.registry import nearest

__all__ = [
    "GROUPS",
    "RESERVED_VARIABLES",
    "Profile",
    "ProfileInfo",
    "available",
    "files",
    "load",
    "override",
    "parse",
    "same",
    "setting",
]

PREFIX = "VIDSPEC_"
#: Variables of vidspec that are not keys of a profile. All others that hold a double underscore are keys:
#: ``VIDSPEC_PRUNE__ALPHA=0.8`` sets ``prune.alpha``.
RESERVED_VARIABLES = ("VIDSPEC_PROFILE", "VIDSPEC_DEBUG")

#: Setting a key on the left in a layer takes back what the layers below said about the keys on the right.
_EXCLUDES: dict[str, tuple[str, ...]] = {
    "video.frames": ("video.fps",),
    "video.fps": ("video.frames",),
    "lossy.keep": ("lossy.retention",),
    "lossy.retention": ("lossy.keep",),
    "models.pair": ("models.target", "models.draft"),
    "models.target": ("models.pair",),
    "models.draft": ("models.pair",),
}


#: In which order profiles are listed: what to begin with, what keeps the text (in turns, at the same time), what does
#: not (by acceptance, by pruning the target), and what papers compare their methods with.
GROUPS = ("recommended", "exact", "parallel", "loose", "lossy", "ablations")
RECOMMENDED = ("auto", "vanilla-sd", "specvlm", "parallelvlm", "self-sd", "ar")
ABLATIONS = frozenset(
    "fly-minus hippo-dycoke hippo-fastvid hippo-frame hippo-no-attn hippo-no-spa hippo-no-temp hippo-no-vpsd "  # noqa: SIM905
    "hippo-random hippo-sequential-no-attn hippo-sequential-no-spa hippo-sequential-no-temp lvspec-0.2 lvspec-0.5 "
    "lvspec-0.9 lvspec-no-shift parallelvlm-alpha-0 parallelvlm-alpha-0.5 parallelvlm-attention "
    "parallelvlm-similarity parallelvlm-uv-attention random-loose sd-attention sd-dycoke sd-fastvid sd-frame sd-rand "
    "sd-uniform sd-window-end sd-window-front sd-window-middle tabed-c tabed-m tabed-p tabed-t".split()
)
#: Characters of a wrong value that a message repeats.
LONGEST = 80


class ProfileInfo(NamedTuple):
    """A profile that can be named: ``source`` is ``user`` or ``packaged``, ``group`` one of :data:`GROUPS`."""

    name: str
    about: str
    path: Path
    source: str
    group: str


def user_folder() -> Path:
    """Where a user's own profiles live; one there hides a packaged one of the same name."""
    import platformdirs

    return Path(platformdirs.user_config_dir("vidspec")) / "profiles"


def packaged_folder() -> Path:
    """The profiles that come with vidspec: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parents[1]
    installed = here / "_profiles"
    return installed if installed.is_dir() else here.parent / "profiles"


def available() -> list[ProfileInfo]:
    """All profiles that can be named, by name. One that cannot be read is listed and says so."""
    found = []
    for name, (path, source) in sorted(files().items()):
        group = "exact"
        try:
            data = _read(path)
            about, group = one_line(_about(data)), _group(data)
        except ProfileError as error:
            about = f"unreadable: {error.message}"
        if source == "packaged":
            group = "recommended" if name in RECOMMENDED else "ablations" if name in ABLATIONS else group
        found.append(ProfileInfo(name, about, path, source, group))
    return found


def _group(data: Mapping[str, Any]) -> str:
    """What a profile's file makes of it, whoever wrote it."""

    def said(section: str, key: str) -> Any:
        return data[section].get(key) if isinstance(data.get(section), Mapping) else None

    if said("lossy", "method") not in (None, "none"):
        return "lossy"
    if said("accept", "rule") in LOSSY:
        return "loose"
    return "parallel" if said("schedule", "kind") == "parallel" else "exact"


def files() -> dict[str, tuple[Path, str]]:
    """File and source of every profile that can be named, unread."""
    found: dict[str, tuple[Path, str]] = {}
    for source, folder in (("packaged", packaged_folder()), ("user", user_folder())):
        for path in sorted(file for ending in ("*.yaml", "*.yml") for file in folder.glob(ending)):
            found[path.stem] = path, source
    return found


def _about(data: Mapping[str, Any]) -> str:
    """What a profile's file says of itself, and whether it is lossy in case it does not say so."""
    about = " ".join(str(data.get("about") or "").split())
    return (
        f"{about} Not lossless.".strip()
        if _group(data) in ("loose", "lossy") and "not lossless" not in about.lower()
        else about
    )


def load(
    name_or_path: str,
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> Profile:
    """The profile called ``name_or_path`` under the environment's and the caller's settings.

    Args:
        name_or_path: a file (it ends in .yaml or .yml, or holds a path separator), or a name that is looked up in the
            user's folder, then among the packaged ones.
        overrides: values by dotted key, such as ``{"prune.alpha": 0.8}``; text is converted to the key's type.
        env: the environment to read ``VIDSPEC_<SECTION>__<KEY>`` from; ``os.environ`` if None.

    Raises:
        ProfileError: it cannot be found or read, has an unknown key, a wrong value or an impossible combination.
    """
    path = _find(name_or_path)
    data = {"name": path.stem, **_read(path)}
    if "plugins" in data:
        data["plugins"] = _beside(path, data["plugins"])
    origins = dict.fromkeys(_dotted(data), str(path))
    return _layered(data, origins, (_from_env(os.environ if env is None else env), _from_flags(overrides)))


def override(profile: Profile, overrides: Mapping[str, object] | None) -> Profile:
    """``profile`` with some keys set anew, under the same rules as :func:`load`."""
    return _layered(profile.model_dump(), {}, (_from_flags(overrides),)) if overrides else profile


def parse(data: Mapping[str, Any]) -> Profile:
    """A profile from nested values, without lookup or environment.

    Raises:
        ProfileError: an unknown key, a wrong value or an impossible combination.
    """
    return _layered(dict(data), {}, ())


def same(named: Mapping[str, Profile]) -> dict[str, tuple[str, ...]]:
    """The first name of each way of captioning with its other names, whatever the profiles say of themselves."""
    found: dict[str, list[str]] = {}
    for name, profile in named.items():
        found.setdefault(profile.model_dump_json(exclude={"name", "about"}), []).append(name)
    return {first: tuple(others) for first, *others in found.values()}


def setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE``, as a command line writes an override, without the blanks around either.

    Raises:
        ValueError: it has no key or no equals sign.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


Layer: TypeAlias = dict[str, tuple[object, str]]  # dotted key -> its value and where it was set


def _from_env(env: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for variable, value in sorted(env.items()):
        if not variable.startswith(PREFIX) or variable in RESERVED_VARIABLES or value == "":
            continue
        words = variable.removeprefix(PREFIX).lower()
        section, double, key = words.partition("__")
        if double:
            layer[f"{section}.{key}"] = (value, variable)
        elif (section := words.partition("_")[0]) in Profile.model_fields and words != section:
            right = f"{PREFIX}{section.upper()}__{words.removeprefix(section + '_').upper()}"
            raise ProfileError(f"{variable}: not a key; did you mean {right}?")
    return layer


def _from_flags(overrides: Mapping[str, object] | None) -> Layer:
    return {key: (value, "") for key, value in (overrides or {}).items()}  # whoever calls knows what it passed


def _layered(data: dict[str, Any], origins: dict[str, str], layers: tuple[Layer, ...]) -> Profile:
    """Lay ``layers`` over ``data``, each taking back what it contradicts, and validate the outcome."""
    flat = _dotted(data)
    for layer in layers:
        dropped = {other for key, (value, _) in layer.items() if value is not None for other in _EXCLUDES.get(key, ())}
        if "prune.method" in layer and "none" in (layer["prune.method"][0], flat.get("prune.method", "none")):
            dropped.add("prune.alpha")  # an alpha belongs to its method: 0 without one
        flat = {key: value for key, value in flat.items() if key not in dropped}
        for key, (value, origin) in layer.items():
            flat[key] = None if value == "null" and key != "generate.prompt" else value
            origins[key] = origin
    for key in flat:
        if key not in _KEYS:
            raise ProfileError(f"{key}: {_unknown(key)}", hint=_set_by(origins.get(key)))
    try:
        return Profile.model_validate(_nested(flat))
    except ValidationError as error:
        raise _translated(error, origins) from None


def _beside(profile: Path, plugins: object) -> object:
    """Files that a profile names, found from where it lies."""
    if isinstance(plugins, str):
        plugins = [plugins]
    if not isinstance(plugins, list):
        return plugins
    return [str(profile.parent / Path(file).expanduser()) if isinstance(file, str) else file for file in plugins]


def _dotted(data: Mapping[str, Any]) -> dict[str, Any]:
    """``{"prune": {"alpha": 1}}`` as ``{"prune.alpha": 1}``; only the two levels a profile has."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": deep for inner, deep in value.items()}
        elif value is not None or str(key) not in _SECTIONS:
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


_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Profile.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
#: Every key a profile may hold, dotted.
_KEYS = frozenset(
    {key for key in Profile.model_fields if key not in _SECTIONS}
    | {f"{section}.{key}" for section, model in _SECTIONS.items() for key in model.model_fields}
)


#: Keys of earlier versions, and why they are gone.
_GONE = {
    "models.attention": (
        "cannot be chosen any more: all passes run vidspec's own attention, on torch's flash kernels where there are "
        "any; the kernels of transformers know no windows of several sequences. Leave it out"
    )
}


def _unknown(key: str) -> str:
    if key in _GONE:
        return _GONE[key]
    if key in _SECTIONS:
        return f"is a section of keys, such as {key}.{next(iter(_SECTIONS[key].model_fields))}"
    last = key.rpartition(".")[2]
    same = sorted(known for known in _KEYS if known.rpartition(".")[2] == last)
    close = same[0] if same else nearest(key, (*_KEYS, *_SECTIONS))
    return f"unknown key; did you mean {close}?" if close else f"unknown key; sections: {', '.join(_SECTIONS)}"


def _translated(error: ValidationError, origins: Mapping[str, str]) -> ProfileError:
    """The first problem that pydantic found, as one line that begins with the key."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "combination":
        return ProfileError(first["msg"])
    given = "" if first["type"] in ("name", "missing") else f", not {_quoted(first['input'])}"
    text = first["msg"].replace("Input should be", "must be").replace("String should", "must")
    return ProfileError(f"{key}: {text[:1].lower()}{text[1:]}{given}", hint=_set_by(origins.get(key)))


def _quoted(value: object) -> str:
    """As much of what was given as helps."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _set_by(origin: str | None) -> str | None:
    return f"set by {origin}" if origin else None


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path or "/" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise ProfileError(f"{name_or_path}: there is no such profile file")
        return path
    known = files()
    if name_or_path not in known:
        close = nearest(name_or_path, known)
        meant = f"; did you mean {close}?" if close else ""
        raise ProfileError(f"no profile is called {name_or_path!r}{meant}", hint="`vidspec profiles` lists them")
    return known[name_or_path][0]


def _read(path: Path) -> dict[str, Any]:
    data = read_yaml(path, ProfileError)
    if not isinstance(data, dict):
        raise ProfileError(f"{path}: a profile is a mapping of keys, not {type(data).__name__}")
    return data
