"""A clip and a question as one model reads them, timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vidspec.models.base import Pixels, Prefix, VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.decoding.trace import Trace
    from vidspec.video import Clip

__all__ = ["Question", "read", "read_text"]


@dataclass(frozen=True)
class Question:
    """What is asked about which clip.

    ``system`` None leaves the system prompt to the model's template; ``ahead`` are pixels made before, by model.
    """

    clip: Clip
    prompt: str
    system: str | None = None
    ahead: Mapping[VideoLanguageModel, Pixels] = field(default_factory=dict)


def read(model: VideoLanguageModel, question: Question, trace: Trace, worker: str, *, pooled: bool = False) -> Prefix:
    """The prompt with the video in it, embedded.

    Args:
        model: the model that will read it.
        question: clip and prompt.
        trace: where preprocessing and the vision tower are timed.
        worker: the lane they are timed in.
        pooled: average the tower's features 2 x 2 before the projector.
    """
    with trace.span("preprocess", worker):
        pixels = question.ahead.get(model) or model.preprocess(question.clip)
    with trace.span("vision", worker):
        seen = model.see(pixels, pooled=pooled)
        return model.prefix(seen, question.prompt, question.system)


def read_text(model: VideoLanguageModel, question: Question, instead: str) -> Prefix:
    """The prompt with a text where the video would be."""
    return model.text_prefix(instead, question.prompt, question.system)
