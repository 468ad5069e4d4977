"""Predicted speeds of a target on a card, for ``vidspec models NAME``. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from vidspec.draft_length.cards import Card
from vidspec.draft_length.prediction import SpeedPrediction, best_arguments

__all__ = ["CardPredictions"]


@dataclass(frozen=True)
class CardPredictions:
    """Predictions for one clip of a target on a card.

    Attributes:
        card: where.
        target: its name.
        found: plain decoding, then all drafts.
        rounded: plain decoding of the target rounded to four bits, which gives other texts; None if it is rounded.
    """

    card: Card
    target: str
    found: Sequence[SpeedPrediction]
    rounded: SpeedPrediction | None = None

    @property
    def command(self) -> str:
        """The command that is predicted the fastest of those that fit."""
        arguments = best_arguments(self.found, self.rounded)
        return f"vidspec caption clip.mp4 --target {shlex.quote(self.target)} {arguments}"

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values for the table, the fastest draft first."""
        plain, *drafts = self.found
        rows = [f"{self.card.name}, one clip, nothing measured: plain decoding {_rate(plain)}"]
        for one in sorted(drafts, key=lambda one: -one.gain):
            assert one.draft is not None
            paid = f"{_rate(one)}, {one.gain:.2f}x, {one.gamma} drafted at a time" if one.gamma else "does not pay"
            beta, source = one.draft.assumed
            rows.append(f"{one.name}: {paid}{_memory(one) if one.gamma else ''}; acceptance {beta:g} assumed: {source}")
        if self.rounded is not None:
            rows.append(
                f"models.weights int4, other texts: plain decoding {_rate(self.rounded)}{_memory(self.rounded)}"
            )
        return [("predicted", row) for row in rows]

    def to_dict(self) -> dict[str, object]:
        """Return the object for ``--format json``."""
        rows = [
            {
                "draft": None if one.draft is None else one.name,
                "gamma": one.gamma,
                "tokens_per_s": round(one.tokens_per_s, 1),
                "gain": round(one.gain, 3),
                "bytes": one.bytes,
                "fits": one.fits,
                "acceptance": None if one.draft is None else one.draft.assumed._asdict(),
            }
            for one in self.found
        ]
        return {"card": self.card._asdict(), "measured": False, "predictions": rows, "command": self.command}


def _rate(one: SpeedPrediction) -> str:
    return f"{one.tokens_per_s:.0f} tokens/s"


def _memory(one: SpeedPrediction) -> str:
    if one.bytes is None:
        return ""
    return f"; {one.bytes / 2**30:.1f} GiB" + (", too much for it" if one.fits is False else "")
