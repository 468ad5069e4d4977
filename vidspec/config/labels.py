"""How a bench names what it measures: a profile and, behind it, keys that are set otherwise; no torch."""

from __future__ import annotations

from collections.abc import Mapping

from vidspec.config import profiles
from vidspec.config.files import named_file
from vidspec.config.schema import Profile
from vidspec.errors import UsageError

__all__ = ["DRAFT", "load", "parse", "split"]

#: What stands among labels for the draft model by itself. It is no profile, and only research measures it.
DRAFT = "draft"
_SUCH_AS = "such as fly+accept.window=2+accept.theta=0.1"


def parse(label: str) -> tuple[str, dict[str, str]]:
    """A label's profile and overrides: ``fly+accept.theta=0.1`` is the profile ``fly`` with one key set anew.

    Args:
        label: a profile's name or file, then any number of ``+KEY=VALUE``. Values hold no ``+``; a file's name and a
            profile's may where there is one of that name.

    Returns:
        the profile as :func:`vidspec.config.profiles.load` takes it, and values by dotted key, text as with ``--set``;
        the profile's schema gives them their types.

    Raises:
        UsageError: no profile, something that is not ``KEY=VALUE``, or one key twice.
    """
    parts = label.split("+")
    cut = next((cut for cut in range(len(parts), 1, -1) if _holds_a_plus("+".join(parts[:cut]))), 1)
    name, overrides = "+".join(parts[:cut]).strip(), dict[str, str]()
    if not name:
        raise UsageError(f"{label}: names no profile", hint=_SUCH_AS)
    for setting in parts[cut:]:
        try:
            key, value = profiles.parse_setting(setting)
        except ValueError:
            raise UsageError(f"{label}: {setting or 'nothing'} is not KEY=VALUE", hint=_SUCH_AS) from None
        if key in overrides:
            raise UsageError(f"{label}: {key} is set twice")
        overrides[key] = value
    return name, overrides


def load(label: str, overrides: Mapping[str, object] | None = None) -> Profile:
    """The profile of a label; what the label sets wins over ``overrides``.

    Raises:
        ProfileError: there is no such profile, or it cannot be set so.
        UsageError: it is no label.
    """
    name, own = parse(label)
    return profiles.load(name, {**(overrides or {}), **own})


def split(text: str) -> list[str]:
    """Labels parted by commas; those inside brackets belong to a value: ``pdrop+lossy.keep=[1,1,1],ar`` are two."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _holds_a_plus(name: str) -> bool:
    """Whether this text with a ``+`` is the name of one profile or file."""
    return profiles.exists(name.strip()) if named_file(name) else "=" not in name and profiles.exists(name.strip())
