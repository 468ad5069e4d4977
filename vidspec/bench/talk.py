"""A turn of a dialogue as something to be measured: what is said before it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vidspec.captioner import Captioner
from vidspec.config.profiles import Profile
from vidspec.events.record import Caption

__all__ = ["Talk", "of_turn"]


class Talk(NamedTuple):
    """Asks about each clip, and gives the last answer.

    Attributes:
        captioner: who answers.
        questions: one after the other.
    """

    captioner: Captioner
    questions: Sequence[str]

    @property
    def profile(self) -> Profile:
        """The captioner's."""
        return self.captioner.profile

    def caption(self, path: str | Path) -> Caption:
        """The answer to the last question."""
        dialogue = self.captioner.dialogue(path)
        return [dialogue.ask(question) for question in self.questions][-1]

    def forget(self, *, plan: bool = True) -> None:
        """As the captioner does."""
        self.captioner.forget(plan=plan)


def of_turn(name: str, turn: int) -> str:
    """What a contender is called in a turn, from 0."""
    return f"{name}, turn {turn + 1}" if turn else name
