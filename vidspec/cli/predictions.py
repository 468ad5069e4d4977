"""Predicted speeds of a target on a card, for ``vidspec models NAME``. No torch."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from vidspec.models.recommended import Card, SpeedPrediction, TargetPredictions, workload

__all__ = ["CardPredictions"]


@dataclass(frozen=True)
class CardPredictions:
    """Predictions for one clip of a target on a card.

    Attributes:
        card: where.
        target: its name.
        predicted: for that target there.
        missing: a draft that the user named, if it is not in the table.
    """

    card: Card
    target: str
    predicted: TargetPredictions
    missing: str | None = None

    @property
    def fits(self) -> bool:
        """True if the target fits, as it is or rounded; also if that is not known."""
        return any(one.fits is not False for one in [*self.predicted.found, self.predicted.rounded])

    @property
    def is_too_large(self) -> bool:
        """True if the target does not fit the card in four bits either."""
        size = self.predicted.rounded.bytes
        return not self.fits and size is not None and size > self.card.usable

    @property
    def command(self) -> str:
        """The command that is predicted the fastest of those that fit; the list of models if none does."""
        if self.is_too_large:
            return "vidspec models"
        return f"vidspec caption clip.mp4 --target {shlex.quote(self.target)} {self.predicted.arguments}"

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values for the table, the fastest draft first."""
        plain, *drafts = self.predicted.found
        clip = f"one clip of {workload().frames} frames"
        rows = [f"{self.card.name}, {clip}, nothing measured: plain decoding {_rate(plain)}{_memory(plain)}"]
        if launches := self.predicted.eager_launches:
            rows[0] += f"; kernel by kernel, {launches:,} launches a pass"
        for one in sorted(drafts, key=lambda one: -one.gain):
            assert one.draft is not None
            beta, source = one.draft.assumed
            if not one.gamma:
                rows.append(f"{one.name}: does not pay (acceptance {beta:g} assumed)")
                continue
            paid = f"{_rate(one)}, {one.gain:.2f}x, {one.gamma} drafted at a time{_memory(one)}"
            rows.append(f"{one.name}: {paid}; acceptance {beta:g} assumed: {source}")
        if self.missing is not None:
            rows.append(f"{self.missing}: not in the table of predictions")
        rounded = self.predicted.rounded
        rows.append(f"models.weights int4, other texts: plain decoding {_rate(rounded)}{_memory(rounded)}")
        if self.is_too_large:
            rows.append("it does not fit this card in any form; vidspec models lists smaller ones")
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
            for one in self.predicted.found
        ]
        return {"card": self.card._asdict(), "measured": False, "predictions": rows, "command": self.command}


def _rate(one: SpeedPrediction) -> str:
    return f"{one.tokens_per_s:.0f} tokens/s"


def _memory(one: SpeedPrediction) -> str:
    if one.bytes is None:
        return ""
    return f"; {one.bytes / 2**30:.1f} GiB" + (", too much" if one.fits is False else "")
