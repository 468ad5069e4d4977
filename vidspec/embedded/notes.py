"""Warnings about captions of the built-in models, which know drawn shapes only. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from vidspec.embedded import ships
from vidspec.embedded.prompts import PROMPTS, QUESTIONS, is_known

__all__ = ["NOTICE", "demo_notes"]

NOTICE = (
    "the built-in models know only drawn shapes; their captions of real video are wrong; `vidspec models` "
    "lists real models"
)


def demo_notes(pair: str | None, target: str | None, prompts: Iterable[str] = ()) -> list[str]:
    """Return warnings about captions of the built-in models; none for other models.

    Args:
        pair, target: as the profile names them.
        prompts: of the run.
    """
    if pair is None and not ships(target or ""):
        return []
    notes = [NOTICE]
    if untrained := sorted({prompt for prompt in prompts if not is_known(prompt)}):
        more = f" (and {len(untrained) - 1} more)" if len(untrained) > 1 else ""
        shown = " ".join(untrained[0].split())
        notes.append(
            f"the built-in models were not trained for the prompt {shown[:60]!r}{more}; their answer "
            f"is meaningless. They know {PROMPTS[0]!r} and similar prompts, and follow-up questions such as "
            f"{QUESTIONS['count']!r}"
        )
    return notes
