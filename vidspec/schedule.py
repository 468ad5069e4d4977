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
        beside: True if target and draft work at the same time, each in its own worker.
    """

    drafts: ClassVar[bool] = True
    beside: ClassVar[bool] = False

    @staticmethod
    def run(sequence: Any) -> Steps[None]:
        """Continue the text of a :class:`~vidspec.decoding.sequence.Sequence` after its first token.

        Not called if ``beside``: workers decode the clip.
        """
        raise NotImplementedError

    @classmethod
    def check(cls, profile: Profile) -> Iterable[OptionConflict]:
        """Yield conflicts of the schedule with the rest of a profile."""
        return ()


schedules: Registry[Schedule] = Registry(
    Schedule, "schedules", "vidspec.decoding.schedules", "schedule", "schedule.kind"
)
