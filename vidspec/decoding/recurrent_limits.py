"""Refusal of profiles that roll back more than the states of a target with recurrent blocks can."""

from __future__ import annotations

from collections.abc import Callable

from vidspec.config.schema import Profile
from vidspec.engine.recurrent import REACH
from vidspec.errors import ProfileError, option

#: Limits of recurrent states: key, why, the nearest valid choice, and a test whether a profile exceeds them.
STATES: tuple[tuple[str, str, str, Callable[[Profile], bool]], ...] = (
    (
        f"{option('draft.topology')}: tree or adaptive",
        "have one past",
        "chain",
        lambda p: _drafts(p) and p.draft.topology != "chain",
    ),
    (
        f"{option('draft.kind')}: sparse_kv, or self with {option('draft.prefill')} gather",
        "cannot be chosen from",
        f"{option('draft.kind', 'model')}, or {option('draft.prefill', 'again')}",
        lambda p: p.drafter is not None and p.drafter.gathers and not p.concurrent,
    ),
    (option("lossy.method"), "cannot be pruned", "none", lambda p: p.prunes_the_target),
    (
        f"{option('draft.gamma')} above {REACH // 2}",
        f"go back by {REACH} tokens",
        f"at most {REACH // 2}",
        lambda p: _drafts(p) and p.draft.gamma != "auto" and p.draft.gamma > REACH // 2,
    ),
    (
        f"{option('schedule.startup')}: fit",
        f"go back by {REACH} tokens",
        option("schedule.startup", "window"),
        lambda p: p.schedule.kind == "parallel" and p.schedule.startup == "fit",
    ),
    (
        f"{option('prune.when')}: late",
        "cannot be chosen from",
        option("prune.when", "wait"),
        lambda p: p.prune.when == "late" and p.schedule.prefill == "parallel",
    ),
)


def _drafts(profile: Profile) -> bool:
    return profile.draft.kind != "none"


def check_states(profile: Profile, target: str) -> None:
    """Reject profiles that a target with recurrent blocks does not support: the rollback of its states is bounded.

    Raises:
        ProfileError: with the nearest valid choice.
    """
    for key, reason, choice, exceeds in STATES:
        if exceeds(profile):
            raise ProfileError(f"{key}: states of recurrent blocks ({target}) {reason}; nearest valid choice: {choice}")
