"""The packaged profiles as they are without settings, loaded once for all tests: their names are parameters."""

from __future__ import annotations

from functools import cache

from vidspec.config import profiles
from vidspec.config.schema import Profile


@cache
def packaged() -> dict[str, Profile]:
    """Return the packaged profiles by name, in order."""
    names = sorted(info.name for info in profiles.available() if info.source == "packaged")
    return {name: profiles.load(name, env={}) for name in names}
