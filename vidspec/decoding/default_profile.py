"""The profile of a run: flags, variables, the user's config, and a default for a target that is named alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vidspec.config.user_config import (
    BUILT_IN_PROFILE,
    DEFAULT_PROFILE,
    TRAINED,
    ResolvedProfile,
    UserConfig,
    resolve,
    sets_a_method,
)
from vidspec.models import machine

if TYPE_CHECKING:
    from vidspec.models.own_heads import OwnHead

_LOG = logging.getLogger("vidspec")

#: Profile of a target that is named alone and has no listed draft, without a GPU of the table. It needs no second
#: model and gains time on both grounds, alone and in folders (research.studies.real_language).
LONE_TARGET = "suffix"


def resolve_profile(name: str | None, overrides: Mapping[str, object], defaults: UserConfig) -> ResolvedProfile:
    """Resolve the profile of a run; without a named one, the default for a lone target follows this GPU.

    A head that was trained here for the target's weights drafts if it gained, unless another draft is predicted to gain
    more. A target for which no draft is listed has :data:`LONE_TARGET`, with a note. The block head of a built-in pair
    drafts unless the user has set an option of a method.

    Args:
        name: of the profile; None for the default.
        overrides: flags, by dotted key.
        defaults: the user's config.

    Raises:
        ProfileError: as :func:`~vidspec.config.user_config.resolve`.
    """
    if name is not None or defaults.profile is not None:
        return resolve(name, overrides, defaults)
    from vidspec.config.profiles import from_env

    variables = {key: value for key, (value, _) in from_env(os.environ).items()}
    keys = {**defaults.keys, **variables, **overrides}
    if "models.target" not in keys and not sets_a_method(keys):
        return resolve(BUILT_IN_PROFILE, overrides, defaults)
    head, chosen = _own_head(keys), None
    if "models.target" in keys and machine.has_gpu():
        from vidspec.decoding import auto
        from vidspec.models.known_pairs import cached_models

        cached = {name for name, whole in cached_models(machine.model_cache()).items() if whole}
        chosen = auto.default_draft(keys, cached)
    if head is not None and (chosen is None or head.decode >= chosen.gain):
        why = f"trained here on {head.clips} captions, measured {head.decode:.2f}x plain decoding"
        _LOG.debug("profile: own-head: %s: %s", head.name, why)
        return resolve(name, overrides, defaults, chosen=head.keys, source=TRAINED)
    if chosen is not None:
        _LOG.debug("profile: %s: %s", chosen.keys.get("name", DEFAULT_PROFILE), chosen.why)
        return resolve(name, overrides, defaults, chosen=chosen.keys)
    if (target := _target_without_draft(keys)) is not None:
        note = (
            f"no draft is listed for {target}, so it drafts from earlier captions (profile {LONE_TARGET}); --draft "
            "NAME adds a smaller model of its family, vidspec train makes a head for it"
        )
        return replace(resolve(LONE_TARGET, overrides, defaults), note=note)
    return resolve(name, overrides, defaults)


def _own_head(keys: Mapping[str, object]) -> OwnHead | None:
    """Return the head that was trained for a target that is named alone; None without one that gains."""
    from vidspec.models.own_heads import find_head

    target, adapter = keys.get("models.target"), keys.get("models.adapter")
    if not isinstance(target, str) or sets_a_method(keys):
        return None
    return find_head(target, None if adapter is None else str(adapter))


def _target_without_draft(keys: Mapping[str, object]) -> str | None:
    """Return the target if it is named alone and no draft is listed for it."""
    from vidspec.models.known_pairs import listed_draft

    target = keys.get("models.target")
    alone = isinstance(target, str) and not sets_a_method(keys) and listed_draft(target) is None
    return str(target) if alone else None
