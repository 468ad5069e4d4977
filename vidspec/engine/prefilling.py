"""A prompt on its way into a new sequence, stretch by stretch. Runs no pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from vidspec.engine.rows import PassResult, PrefillResult, Prompt, Rows
from vidspec.engine.slab import KVSpan
from vidspec.engine.taps import Taps

if TYPE_CHECKING:
    from vidspec.engine.forward import Engine


class Prefilling:
    """A prefill in progress; its sequence is opened with its first rows.

    Args:
        engine, prompt, room, taps, states, cached: see :meth:`Engine.start_prefill`.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        room: int,
        taps: Taps | None,
        states: bool,
        cached: tuple[KVSpan, int] | None = None,
    ) -> None:
        self.engine, self.prompt, self.room, self.taps, self.states = engine, prompt, room, taps, states
        self.cached = cached
        self.span: KVSpan | None = None
        self._stretch = (0, 0)
        self._visual_states: list[torch.Tensor] = []

    def rows(self, most: int) -> Rows:
        """Return the next stretch of at most ``most`` rows.

        Raises:
            GenerationError: there is no room for the sequence.
        """
        length = self.prompt.length
        if self.span is None:
            self.span = self._open_span(length + self.room, self.prompt.next_position - length)
        start = self.span.length
        self._stretch = start, self._stretch_end(start, min(start + most, length))
        return Rows(self.span, prompt=self.prompt, stretch=self._stretch, taps=self.taps, states=self.states)

    def _stretch_end(self, start: int, end: int) -> int:
        """Return the end of a stretch, moved so that it cuts no run of rows that see each other."""
        index, bidirectional = self.prompt.visual.index, self.prompt.bidirectional
        if len(bidirectional) and int(bidirectional[0]) < end <= int(bidirectional[-1]):
            return int(bidirectional[-1]) + 1
        if not self.engine.model.decoder.mutual or end == self.prompt.length or not len(index):
            return end
        shown = torch.zeros(self.prompt.length + 1, dtype=torch.bool)
        shown[index.cpu()] = True
        uncut = (~(shown[:-1] & shown[1:])).nonzero()[:, 0] + 1  # ends after which no run continues
        fitting = uncut[(uncut > start) & (uncut <= end)]
        return int(fitting[-1] if len(fitting) else uncut[uncut > end][0])

    def _open_span(self, room: int, offset: float) -> KVSpan:
        if self.cached is None:
            return self.engine.open(room, offset)
        span, rows = self.cached
        self.cached = None
        chosen = span.select(torch.arange(rows), room)
        chosen.offset = offset
        return chosen

    @torch.inference_mode()
    def add_result(self, passed: PassResult) -> PrefillResult | None:
        """Add the result of the pass over the last stretch; return the prefill's result once the prompt is read."""
        if self.span is None:
            raise ValueError("nothing has been read yet")
        self.engine.check([passed])
        if self.taps is not None and self.taps.error is not None:
            raise self.taps.error
        start, end = self._stretch
        if self.states:
            index = self.prompt.visual.index.to(passed.hidden.device)
            self._visual_states.append(passed.hidden[index[(index >= start) & (index < end)] - start])
        if end < self.prompt.length:
            return None
        units = torch.cat(self._visual_states) if self.states else None
        if units is not None:  # normalised in float32, returned in their own dtype
            units = F.normalize(units.float(), dim=-1).to(units.dtype)
        return PrefillResult(self.span, passed.logits[-1], units)
