"""One draft model that reads several contexts and drafts from the mean of their distributions (TABED 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from vidspec.bounds import MANY
from vidspec.drafting.base import Drafter, DrafterKind, drafters
from vidspec.errors import option
from vidspec.registry import OptionConflict, key

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps
    from vidspec.models.base import EmbeddedPrompt


@drafters.register("ensemble")
class EnsembleDraft(DrafterKind):
    """TABED's contexts M, T, C, P in one batch of the draft model; their prompts are read separately."""

    def __init__(
        self,
        contexts: Annotated[
            tuple[Literal["video", "text", "caption", "pooled"], ...], key("what the draft is shown", min_length=1)
        ] = ("video", "text"),
        weights: Annotated[
            Literal["equal", "grid", "softmax", "inverse"], key("how the distributions are weighed")
        ] = "equal",
        divergence: Annotated[Literal["kl", "tvd"], key("from the target, which the weights follow")] = "kl",
        history: Annotated[int | None, key("over how many of the last tokens; null: all", ge=1, le=MANY)] = None,
    ) -> None:
        self.contexts: tuple[str, ...] = contexts
        self.weights, self.divergence, self.history = weights, divergence, history
        self.sees = "kept" if "video" in contexts else "all" if "pooled" in contexts else "nothing"

    def check(self, profile: Profile) -> Iterator[OptionConflict]:
        once = list(dict.fromkeys(self.contexts))
        if len(once) < len(self.contexts):
            yield OptionConflict("draft.contexts", "names a context twice", option("draft.contexts", once))
        if (method := profile.prune.method) != "none" and "video" not in once:
            reason = f"{method} prunes the context video, which {option('draft.contexts')} lacks"
            yield OptionConflict("prune.method", reason, option("prune.method", "none"))

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        from vidspec.drafting.ensemble_chain import AdaptiveEnsembleChain, ContextErrors, EnsembleChain

        engine = clip.drafting()
        prefixes, spans = [], []
        for context in self.contexts:
            prefixes.append((yield from prefix_of(context, clip)))
        for prefix in prefixes:
            read = yield from clip.read(engine, prefix)
            spans.append(read.span)
        if self.weights == "equal":
            return EnsembleChain(engine, spans, clip.sampling, clip.rng)
        evidence = ContextErrors(self.weights, len(prefixes), self.divergence, self.history)
        return AdaptiveEnsembleChain(engine, spans, clip.sampling, clip.rng, evidence)


def prefix_of(context: str, clip: DraftContext) -> Steps[EmbeddedPrompt]:
    """Return the draft model's prompt in one context (TABED 4.1, 6.1, 6.2, App. I.2).

    Args:
        context: ``video`` (M, the kept visual tokens), ``text`` (T, a newline), ``caption`` (C, ``image:`` and a short
            caption) or ``pooled`` (P, all visual tokens after 2 x 2 pooling before the projector).
        clip: the inputs of the prompt.

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
