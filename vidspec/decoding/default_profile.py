"""The profile of a run: flags, variables, the user's config and, for a target named alone, this machine's GPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from vidspec.config.user_config import DEFAULT_PROFILE, ResolvedProfile, UserConfig, resolve, user_keys
from vidspec.models import machine

__all__ = ["resolve_profile"]

_LOG = logging.getLogger("vidspec")


def resolve_profile(name: str | None, overrides: Mapping[str, object], defaults: UserConfig) -> ResolvedProfile:
    """Resolve the profile of a run; without a named one, the default for a lone target follows this GPU.

    Args:
        name: of the profile; None for the default.
        overrides: flags, by dotted key.
        defaults: the user's config.

    Raises:
        ProfileError: as :func:`~vidspec.config.user_config.resolve`.
    """
    chosen = None
    if name is None and defaults.profile is None and "models.target" in (keys := user_keys(overrides, defaults)):
        if machine.has_gpu():
            from vidspec.decoding import auto
            from vidspec.models.known_pairs import cached_models

            cached = {name for name, whole in cached_models(machine.model_cache()).items() if whole}
            chosen = auto.default_draft(keys, cached)
        if chosen is not None:
            _LOG.debug("profile: %s: %s", chosen.keys.get("name", DEFAULT_PROFILE), chosen.why)
    return resolve(name, overrides, defaults, chosen=chosen and chosen.keys)
