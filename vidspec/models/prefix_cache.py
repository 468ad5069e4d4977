"""What questions about a clip leave for others: caches, and how much of a new prompt is in them already.

An entry of a cache depends on the rows up to its own and on nothing else, so what a new prompt begins with need not be
read again where an earlier sequence begins with the same rows: the same tokens at the same positions, of the same clip.
How far that goes is compared row by row. A template that writes earlier turns differently once others follow, or an
answer that is cut into other tokens when it is read than when it was written, shortens it and changes no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from vidspec.engine.decoder import LanguageModel
    from vidspec.engine.slab import KVSpan
    from vidspec.models.base import EmbeddedPrompt, VideoLanguageModel, VisionOutput

__all__ = ["PrefixCache", "PrefixHit"]

#: Where a row that is no visual token is in the video.
NOWHERE = -2


class PrefixHit(NamedTuple):
    """A sequence whose first ``rows`` entries a new prompt begins with."""

    span: KVSpan
    rows: int


@dataclass(eq=False)
class _CachedSequence:
    """A sequence, and (k, n) what each of its known rows is made from; the first ``prompt`` of them were read."""

    model: LanguageModel
    span: KVSpan
    rows: torch.Tensor
    prompt: int
    following: int


@dataclass(eq=False)
class PrefixCache:
    """The caches of one dialogue, or of one of several prompts.

    Attributes:
        seen: what each model saw in the clip, and whether pooled.
        kept: the pruner that chose, and the visual tokens that it left the draft.
        states: of the visual tokens, for rules that compare them.
        description: of a frame, where an ensemble has a context of that kind.
        reading_s: seconds that the first question took to read the clip and its prompts.
        reused: of this question's prompt, how many rows each model found in a cache.
    """

    seen: dict[tuple[VideoLanguageModel, bool], VisionOutput] = field(default_factory=dict)
    kept: tuple[object, torch.Tensor] | None = None
    states: torch.Tensor | None = None
    description: str | None = None
    reading_s: float | None = None
    reused: dict[LanguageModel, int] = field(default_factory=dict)
    _earlier: list[_CachedSequence] = field(default_factory=list)
    _now: list[_CachedSequence] = field(default_factory=list)

    def fork(self) -> PrefixCache:
        """For another prompt about the same clip, which is asked at the same time."""
        fields = self.seen, self.kept, self.states, self.description, self.reading_s
        return PrefixCache(*fields, _earlier=list(self._now))

    def begin(self) -> None:
        """A turn begins."""
        self._earlier += self._now
        self._now, self.reused = [], {}

    def end(self) -> None:
        """It is answered, or has read its prompts: the sequences of others are not needed any more."""
        self._earlier.clear()

    def find(self, model: LanguageModel, prefix: EmbeddedPrompt) -> PrefixHit | None:
        """The sequence that holds most of the beginning of a prompt; the last row of a prompt is always to be read."""
        if model.decoder.cached is not None:  # states of recurrent blocks cannot be taken from the middle
            return None
        rows, best = _rows(prefix), None
        for left in self._earlier:
            if left.model is model:
                count = min(_common(left.rows, rows), left.span.length, prefix.length - 1)
                if count > 0 and (best is None or count > best.rows):
                    best = PrefixHit(left.span, count)
        return best

    def read(self, model: LanguageModel, prefix: EmbeddedPrompt, span: KVSpan, start: PrefixHit | None) -> None:
        """A prompt was read, from ``start`` on."""
        rows = _rows(prefix)
        import torch

        self.reused[model] = max(self.reused.get(model, 0), start.rows if start else 0)
        self._now = [
            one for one in self._now if not (one.model is model and torch.equal(one.rows[:, : one.prompt], rows))
        ]
        self._now.append(_CachedSequence(model, span, rows, prefix.length, prefix.next_position))
        if start is not None:  # all that is needed of it has been copied
            self._earlier = [one for one in self._earlier if one.span is not start.span]

    def add_text(self, spans: Sequence[KVSpan], token_ids: Sequence[int]) -> None:
        """These sequences hold, behind their prompts, a text or its beginning."""
        import torch

        for left in self._now:
            if any(span is left.span for span in spans):
                count = min(len(token_ids), left.span.length - left.prompt)
                text = torch.full((len(left.rows), max(0, count)), NOWHERE)
                text[0] = torch.tensor(token_ids[: max(0, count)], dtype=torch.long)
                text[1:-3] = torch.arange(left.following, left.following + max(0, count))
                left.rows = torch.cat([left.rows[:, : left.prompt], text], dim=1)


def _rows(prefix: EmbeddedPrompt) -> torch.Tensor:
    """(1 + axes + 3, L) token, position on each axis, and frame, row and column of each row of a prompt."""
    import torch

    visual = prefix.visual
    places = torch.full((3, prefix.length), NOWHERE)
    places[:, visual.index.cpu()] = torch.stack([visual.frame, visual.row, visual.column]).cpu()
    positions = prefix.positions.reshape(-1, prefix.length).cpu()
    return torch.cat([prefix.token_ids[None].cpu(), positions, places])


def _common(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many columns both begin with."""
    most = min(one.shape[1], other.shape[1])
    differs = (one[:, :most] != other[:, :most]).any(dim=0).nonzero()
    return int(differs[0]) if len(differs) else most
