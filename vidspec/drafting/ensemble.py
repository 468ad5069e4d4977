"""One draft model that is shown several contexts at once and drafts from the mean of their distributions (TABED 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vidspec.drafting.base import Drafter, DrafterKind
from vidspec.registry import drafters

if TYPE_CHECKING:
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps
    from vidspec.models.base import Prefix

__all__ = ["EnsembleDraft", "prefix_of"]


@drafters.register("ensemble")
class EnsembleDraft(DrafterKind):
    """Contexts M, T, C, P of TABED in one batch of the draft model; each prompt is read on its own first.

    Args:
        contexts: what the draft is shown; see :func:`prefix_of`.
        weights: how the distributions are weighed.
        divergence: from the target, which the weights follow.
        history: over how many of the last tokens; None for all.
    """

    def __init__(
        self,
        contexts: tuple[Literal["video", "text", "caption", "pooled"], ...] = ("video", "text"),
        weights: Literal["equal", "grid", "softmax", "inverse"] = "equal",
        divergence: Literal["kl", "tvd"] = "kl",
        history: int | None = None,
    ) -> None:
        self.contexts: tuple[str, ...] = contexts
        self.weights, self.divergence, self.history = weights, divergence, history
        self.sees = "kept" if "video" in contexts else "all" if "pooled" in contexts else "nothing"

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        from vidspec.drafting.ensemble_chain import AdaptiveEnsemble, Ensemble
        from vidspec.drafting.ensemble_weights import Evidence

        engine = clip.drafting()
        prefixes, spans = [], []
        for context in self.contexts:
            prefixes.append((yield from prefix_of(context, clip)))
        for prefix in prefixes:
            read = yield from clip.read(engine, prefix)
            spans.append(read.span)
        if self.weights == "equal":
            return Ensemble(engine, spans, clip.sampling, clip.rng)
        evidence = Evidence(self.weights, len(prefixes), self.divergence, self.history)
        return AdaptiveEnsemble(engine, spans, clip.sampling, clip.rng, evidence)


def prefix_of(context: str, clip: DraftContext) -> Steps[Prefix]:
    """The draft model's prompt in one context (TABED 4.1, 6.1, 6.2, App. I.2).

    Args:
        context: ``video`` (M, the kept visual tokens), ``text`` (T, a newline), ``caption`` (C, ``image:`` and a short
            caption) or ``pooled`` (P, all visual tokens after 2 x 2 pooling before the projector).
        clip: what the prompt is made from.

    Raises:
        ValueError: no caption was made.
    """
    if context == "video":
        return clip.pruned((yield from clip.own()))
    if context == "pooled":
        return (yield from clip.own(pooled=True))
    if context == "text":
        return clip.text("\n")
    if clip.caption is None:
        raise ValueError("draft.contexts caption needs a caption of the video")
    return clip.text(f"image: {clip.caption}")
