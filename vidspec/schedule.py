"""The contract of schedules, and their registry. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from vidspec.registry import OptionConflict, Registry

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.engine.requests import Steps

__all__ = ["Schedule", "schedules"]


class Schedule:
    """Order of the work of target and draft.

    Attributes:
        drafts: True if it needs a drafter.
        concurrent: True if target and draft work at the same time, the draft in a process of its own.
    """

    drafts: ClassVar[bool] = True
    concurrent: ClassVar[bool] = False

    @staticmethod
    def run(sequence: Any) -> Steps[None]:
        """Read the prompts of a :class:`~vidspec.decoding.sequence.Sequence` and write its whole text.

        Emits ``Prefilled``, a round per target pass, of which the first is the prefill's own token, and
        ``InputsReleased`` once no frames are needed any more.
        """
        raise NotImplementedError

    @classmethod
    def check(cls, profile: Profile) -> Iterable[OptionConflict]:
        """Yield conflicts of the schedule with the rest of a profile."""
        return ()


schedules: Registry[Schedule] = Registry(
    Schedule, "schedules", "vidspec.decoding.schedules", "schedule", "schedule.kind"
)
