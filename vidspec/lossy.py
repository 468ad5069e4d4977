"""The contract of methods that change what the target itself reads, for comparison, and their registry. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from vidspec.registry import OptionConflict, Registry

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.engine.requests import Steps
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["LossyMethod", "lossy"]


class LossyMethod(ABC):
    """Writes the text of a clip with a target that reads less than its whole prompt.

    The parameters of its constructor are keys of a profile's ``lossy`` section; all have defaults.

    Attributes:
        shares: length of ``lossy.keep``.
    """

    shares: ClassVar[int] = 1

    def check(self, profile: Profile) -> Iterable[OptionConflict]:
        """Yield conflicts of its options with the rest of a profile."""
        return ()

    @abstractmethod
    def prepare(self, target: VideoLanguageModel) -> None:
        """Check that the target can be run so.

        Raises:
            ProfileError: blocks of its family need all rows.
            ModelError: it has too few blocks.
        """

    @abstractmethod
    def run(self, sequence: Any) -> Steps[None]:
        """Read the prompt of a clip and write its whole text, as :meth:`vidspec.schedule.Schedule.run`."""


lossy: Registry[LossyMethod] = Registry(
    LossyMethod, "lossy", "vidspec.baselines.methods", "lossy method", "lossy.method", always=("none",)
)
