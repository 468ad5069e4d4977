"""Prefix cache of several questions about a clip: vision outputs and KV entries that later prompts reuse.

A KV entry depends only on the rows up to its own, so a prompt reuses the entries of an earlier sequence as far as both
begin with the same rows: the same tokens at the same positions, of the same clip. Rows are compared one by one. A
template that renders earlier turns differently once others follow, or an answer that is tokenized differently than it
was generated, shortens the prefix and changes no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch

    from vidspec.engine.decoder import LanguageModel
    from vidspec.engine.slab import KVSpan
    from vidspec.models.base import EmbeddedPrompt, VisionOutput
    from vidspec.models.video_language_model import VideoLanguageModel

#: Vision outputs by model and pooling.
VisionOutputs: TypeAlias = "dict[tuple[VideoLanguageModel, bool], VisionOutput]"
#: Place in the video of rows that are not visual tokens.
NOWHERE = -2


class PrefixHit(NamedTuple):
    """A sequence whose first ``rows`` entries a new prompt can reuse."""

    span: KVSpan
    rows: int


@dataclass(eq=False)
class _CachedSequence:
    """A sequence and the keys (k, n) of its known rows, of which the first ``prompt`` are its prompt."""

    model: LanguageModel
    span: KVSpan
    rows: torch.Tensor
    prompt: int
    following: float


@dataclass(eq=False)
class PrefixCache:
    """Cache of one of several questions about a clip.

    Attributes:
        seen: vision output by model and pooling.
        kept: the pruner, and the visual tokens it kept for the draft.
        states: hidden states of the visual tokens, for rules that compare them.
        description: caption of a frame, if an ensemble has such a context.
        reading_s: seconds in which the first question read the clip and its prompts.
        reused: cached rows of the current prompt, by model.
    """

    seen: VisionOutputs = field(default_factory=dict)
    kept: tuple[object, torch.Tensor] | None = None
    states: torch.Tensor | None = None
    description: str | None = None
    reading_s: float | None = None
    reused: dict[LanguageModel, int] = field(default_factory=dict)
    _earlier_sequences: list[_CachedSequence] = field(default_factory=list)
    _current_sequences: list[_CachedSequence] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of its vision outputs and states, and of the KV entries reserved for its sequences."""
        spans = {id(one.span): one.span for one in (*self._earlier_sequences, *self._current_sequences)}
        held = sum(output.nbytes for output in self.seen.values()) + (0 if self.states is None else self.states.nbytes)
        return held + sum(span.room * span.slab.entry_bytes for span in spans.values())

    def fork(self) -> PrefixCache:
        """Return the cache of a further question about the same clip, which reuses these sequences."""
        fields = self.seen, self.kept, self.states, self.description, self.reading_s
        return PrefixCache(*fields, _earlier_sequences=list(self._current_sequences))

    def end(self) -> None:
        """Release the sequences of earlier questions, once its prompts are read."""
        self._earlier_sequences.clear()

    def find(self, model: LanguageModel, prefix: EmbeddedPrompt) -> PrefixHit | None:
        """Return the sequence with the longest common prefix; the last row of a prompt is never reused."""
        if model.decoder.cached is not None:  # recurrent states cannot be cut at a row
            return None
        rows, best = _row_keys(prefix), None
        for sequence in self._earlier_sequences:
            if sequence.model is model:
                count = min(_common_columns(sequence.rows, rows), sequence.span.length, prefix.length - 1)
                if len(prefix.bidirectional) and count <= int(prefix.bidirectional[-1]):
                    count = min(count, int(prefix.bidirectional[0]))
                if count > 0 and (best is None or count > best.rows):
                    best = PrefixHit(sequence.span, count)
        return best

    def read(self, model: LanguageModel, prefix: EmbeddedPrompt, span: KVSpan, start: PrefixHit | None) -> None:
        """Record a prompt that was read from ``start`` on."""
        rows = _row_keys(prefix)
        import torch

        self.reused[model] = max(self.reused.get(model, 0), start.rows if start else 0)
        self._current_sequences = [
            sequence
            for sequence in self._current_sequences
            if not (sequence.model is model and torch.equal(sequence.rows[:, : sequence.prompt], rows))
        ]
        self._current_sequences.append(_CachedSequence(model, span, rows, prefix.length, prefix.next_position))
        if start is not None:  # its reused entries have been copied
            self._earlier_sequences = [
                sequence for sequence in self._earlier_sequences if sequence.span is not start.span
            ]

    def add_text(self, spans: Sequence[KVSpan], token_ids: Sequence[int]) -> None:
        """Record the text, or its beginning, that these sequences hold after their prompts."""
        import torch

        for sequence in self._current_sequences:
            if any(span is sequence.span for span in spans):
                count = min(len(token_ids), sequence.span.length - sequence.prompt)
                text = torch.full((len(sequence.rows), max(0, count)), NOWHERE)
                text[0] = torch.tensor(token_ids[: max(0, count)], dtype=torch.long)
                text[1:-3] = torch.arange(sequence.following, sequence.following + max(0, count))
                sequence.rows = torch.cat([sequence.rows[:, : sequence.prompt], text], dim=1)


def _row_keys(prefix: EmbeddedPrompt) -> torch.Tensor:
    """Return the keys (1 + axes + 3, L) of a prompt's rows: token, position on each axis, frame, row and column."""
    import torch

    visual = prefix.visual
    places = torch.full((3, prefix.length), NOWHERE)
    places[:, visual.index.cpu()] = torch.stack([visual.frame, visual.row, visual.column]).cpu()
    positions = prefix.positions.reshape(-1, prefix.length).cpu()
    return torch.cat([prefix.token_ids[None].cpu(), positions, places])


def _common_columns(one: torch.Tensor, other: torch.Tensor) -> int:
    """Return the number of leading columns that are equal."""
    most = min(one.shape[1], other.shape[1])
    differs = (one[:, :most] != other[:, :most]).any(dim=0).nonzero()
    return int(differs[0]) if len(differs) else most
