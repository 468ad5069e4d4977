"""Labels of benchmarks: a profile followed by overrides, such as ``fly+accept.theta=0.1``. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from vidspec.config import profiles
from vidspec.config.files import named_file
from vidspec.config.schema import Profile
from vidspec.errors import UsageError

#: The label of the draft model by itself. It is not a profile, and only research measures it.
DRAFT = "draft"
#: Hint for keys of the models, which measured profiles share.
MODEL_OPTIONS = "set --pair, --target, --draft, --device, --dtype, --weights or --threads"
_EXAMPLE = "write it like fly+accept.window=2+accept.theta=0.1"


def parse(label: str) -> tuple[str, dict[str, str]]:
    """Split a label into profile and overrides: ``fly+accept.theta=0.1`` is ``fly`` with one key overridden.

    Args:
        label: a profile's name or file, then any number of ``+KEY=VALUE``. Values contain no ``+``; names of files and
            profiles may if a file or profile of that name exists.

    Returns:
        the profile as :func:`vidspec.config.profiles.load` takes it, and values by dotted key, text as with ``--set``;
        the profile's schema gives them their types.

    Raises:
        UsageError: no profile, an override that is not ``KEY=VALUE``, or a repeated key.
    """
    parts = label.split("+")
    cut = next((cut for cut in range(len(parts), 1, -1) if _exists_with_plus("+".join(parts[:cut]))), 1)
    name, overrides = "+".join(parts[:cut]).strip(), dict[str, str]()
    if not name:
        raise UsageError(f"{label}: names no profile", hint=_EXAMPLE)
    for setting in parts[cut:]:
        try:
            key, value = profiles.parse_setting(setting)
        except ValueError:
            raise UsageError(f"{label}: {setting or 'nothing'} is not KEY=VALUE", hint=_EXAMPLE) from None
        if key in overrides:
            raise UsageError(f"{label}: {key} is set twice")
        overrides[key] = value
    return name, overrides


def load(label: str, overrides: Mapping[str, object] | None = None) -> Profile:
    """Load the profile of a label; the label's own overrides win over ``overrides``.

    Raises:
        ProfileError: no such profile, or invalid overrides.
        UsageError: not a label.
    """
    name, own = parse(label)
    return profiles.load(name, {**(overrides or {}), **own})


def split(text: str) -> list[str]:
    """Split labels at commas outside brackets: ``pdrop+lossy.keep=[1,1,1],ar`` are two."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _exists_with_plus(name: str) -> bool:
    """Return True if a text with ``+`` is the name of one profile or file."""
    return profiles.exists(name.strip()) if named_file(name) else "=" not in name and profiles.exists(name.strip())
