"""A clip and a question as one model reads them, timed."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vidspec.engine.asks import Asks, Lane, Look, timed
from vidspec.models.base import Pixels, Prefix, Seen, VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.telling.trace import Trace
    from vidspec.video import Clip

__all__ = ["Question", "read", "read_text"]


@dataclass(frozen=True)
class Question:
    """What is asked about which clip.

    ``system`` None leaves the system prompt to the model's template. ``ahead`` is what was made of the clip before its
    turn, by model: pixels, or the visual tokens seen in them.
    """

    clip: Clip
    prompt: str
    system: str | None = None
    ahead: Mapping[VideoLanguageModel, Pixels | Seen] = field(default_factory=dict)


def read(
    model: VideoLanguageModel, question: Question, trace: Trace, worker: Lane, *, pooled: bool = False
) -> Asks[Prefix]:
    """The prompt with the video in it, embedded.

    Args:
        model: the model that will read it.
        question: clip and prompt.
        trace: where preprocessing and the vision tower are timed.
        worker: the lane they are timed in.
        pooled: average the tower's features 2 x 2 before the projector.
    """
    made = question.ahead.get(model)
    if isinstance(made, Seen) and not pooled:
        seen = made
    else:
        with trace.span("preprocess", worker):
            pixels = made if isinstance(made, Pixels) else model.preprocess(question.clip)
        seen, _ = yield from timed(trace, "vision", worker, _seen, model.seeing(pixels, pooled=pooled), worker)
    with trace.span("vision", worker):
        return model.prefix(seen, question.prompt, question.system)


def _seen(steps: Generator[None, None, Seen], worker: Lane) -> Asks[Seen]:
    """Each step of the vision tower in its turn."""
    found: list[Seen] = []

    def step() -> None:
        try:
            next(steps)
        except StopIteration as end:
            found.append(end.value)

    while not found:
        yield Look(step, worker)
    return found[0]


def read_text(model: VideoLanguageModel, question: Question, instead: str) -> Prefix:
    """The prompt with a text where the video would be."""
    return model.text_prefix(instead, question.prompt, question.system)
