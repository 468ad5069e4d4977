"""The state of a clip in flight, built from its events; counts and rates are derived. Draws nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from vidspec.events.compare import Counters, count_rounds, lengths, weights_by_context
from vidspec.events.events import Event, Finished, Opened, Origin, Prefilled, PrefillProgress, Restarted, Round
from vidspec.events.observer import RunObserver
from vidspec.events.record import Caption
from vidspec.events.tally import format_duration

#: Seconds without text after which the waiting time is shown.
FEW = 3.0


@dataclass
class PanelState:
    """State of one clip in flight; counts and rates are properties of its events.

    ``began`` is its start by ``time.monotonic``.
    """

    path: str = ""
    profile: str = ""
    began: float = 0.0
    opened: Opened | None = None
    reading: PrefillProgress | None = None
    prefilled: Prefilled | None = None
    rounds: list[Round] = field(default_factory=list)
    caption: Caption | None = None

    def apply(self, event: Event) -> None:
        if isinstance(event, Opened):
            self.opened = event
        elif isinstance(event, PrefillProgress):
            self.reading = event
        elif isinstance(event, Restarted):
            self.reading, self.prefilled, self.rounds = None, None, []
        elif isinstance(event, Prefilled):
            self.prefilled = event
        elif isinstance(event, Round):
            self.rounds.append(event)
        elif isinstance(event, Finished):
            self.caption = event.caption

    @property
    def phase(self) -> str:
        if self.caption is not None:
            return "failed" if self.caption.error else "done"
        if self.prefilled is not None:
            return "decoding"
        return "vision and prefill" if self.opened is not None else "reading frames"

    @property
    def drafts(self) -> bool:
        """True unless the clip is known to be decoded without a draft."""
        return self.prefilled is None or bool(self.prefilled.kept_per_frame) or self.counts.drafted > 0

    @property
    def stage(self) -> str:
        """Phase, progress, and the seconds since the clip began if they are more than a few."""
        far = f", {self.reading.tokens} of {self.reading.prompt_tokens} prompt tokens" if self.reading else ""
        seconds = time.monotonic() - self.began if self.began else 0.0
        return f"{self.phase}{far}" + (f", {format_duration(seconds)}" if seconds > FEW else "")

    @property
    def pieces(self) -> list[tuple[str, Origin]]:
        """Pieces of the caption so far, each with its origin."""
        return [piece for one in self.rounds for piece in zip(one.texts, one.origins, strict=False)]

    @property
    def counts(self) -> Counters:
        """Counters so far; passes of the draft are not known before the end."""
        return count_rounds(self.rounds, 0)

    @property
    def side_by_side(self) -> bool:
        """True if target and draft work at the same time."""
        return any(one.mode for one in self.rounds)

    @property
    def tau(self) -> float | None:
        """Accepted draft tokens per verification (docs/research/metrics.md)."""
        return lengths(self.counts)["tau"]

    @property
    def weights(self) -> dict[str, tuple[float, ...]]:
        """Weights of an ensemble's contexts, window by window."""
        return weights_by_context(self.prefilled.contexts if self.prefilled else (), self.rounds)

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate: tokens after the first over the time after the first."""
        seconds = self.rounds[-1].elapsed - self.rounds[0].elapsed if self.rounds else 0.0
        tokens = self.counts.emitted - len(self.rounds[0].token_ids) if self.rounds else 0
        return tokens / seconds if seconds > 0 else None

    @property
    def speedup(self) -> tuple[float | None, bool] | None:
        """Decode speed-up (None if the text is too short to measure), and True if measured, False if estimated."""
        speed = self.caption.speed if self.caption else {}
        if baseline := speed.get("baseline"):
            return baseline["decode"], True
        estimate = speed.get("estimate")
        return (estimate, False) if estimate is not None else None


class ClipStates(RunObserver):
    """Keeps a state for each clip in flight.

    Attributes:
        states: by clip number; :meth:`end` removes the entry.
    """

    def __init__(self) -> None:
        self.states: dict[int, PanelState] = {}

    def begin(self, number: int, path: str, total: int) -> None:
        self.states[number] = PanelState(path=path, began=time.monotonic())

    def event(self, number: int, event: Event) -> None:
        if number in self.states:
            self.states[number].apply(event)
