"""Inputs of a drafter at the start of a clip, and the chain or tree over a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch

from vidspec.drafting.base import Drafter
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.static_tree import parse_tree
from vidspec.drafting.tree import AdaptiveDrafter, TreeDrafter
from vidspec.engine.forward import Engine
from vidspec.engine.requests import PrefillPrompt, Steps
from vidspec.engine.rows import PrefillResult
from vidspec.engine.sampling import Sampling
from vidspec.errors import ModelError
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.prompt import encode_prompt
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.engine.rows import Prompt
    from vidspec.engine.slab import KVSpan
    from vidspec.engine.taps import Taps
    from vidspec.events.trace import Trace
    from vidspec.models.head import Head

__all__ = ["DraftContext"]


@dataclass
class DraftContext:
    """Inputs of a drafter; most need few of them.

    Attributes:
        profile: settings.
        request: the clip and its prompt.
        sampling: how drafted tokens are chosen.
        rng: CPU generator; the clip's own, which emitted tokens take numbers of, only if drafted tokens are sampled.
        room: cache entries needed after the prompt: max_new_tokens and one window.
        trace: times work in the draft's lane.
        tokens: N, the target's visual tokens; None if not known (yet).
        kept: (K,) sorted indices of those the drafter may see; all if None.
        draft: the draft model's engine, if the profile has one.
        head: the engine of a head over the target's states, if the profile has one.
        self_draft: the engine of a target that drafts for itself, with the target's weights or copies of them as codes,
            over the target's slab.
        target, prefix, read_by_target, taps: the target's engine, its prompt, the prefill of that prompt, and signals
            observed during it, for drafters that share its weights; they may copy from the span, or write after it as
            a follower, see :meth:`~vidspec.engine.slab.KVSpan.make_follower`.
        caption: a short caption of the video by another model, for TABED's context C.
        texts: token ids of the target's prompt with each of these texts in place of the video, for a target in another
            process.
    """

    profile: Profile
    request: CaptionRequest
    sampling: Sampling
    rng: torch.Generator
    room: int
    trace: Trace
    tokens: int | None
    kept: torch.Tensor | None
    draft: Engine[VideoLanguageModel] | None = None
    head: Engine[Head] | None = None
    self_draft: Engine[VideoLanguageModel] | None = None
    target: Engine[VideoLanguageModel] | None = None
    prefix: EmbeddedPrompt | None = None
    read_by_target: PrefillResult | None = None
    taps: Taps | None = None
    caption: str | None = None
    texts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    _own: EmbeddedPrompt | None = None

    def release(self) -> None:
        """Release the clip and its embeddings once the prompt has been read; :meth:`rows` needs neither."""
        self._own, self.request = None, replace(self.request, clip=None, ahead={})

    def drafting(self) -> Engine[VideoLanguageModel]:
        """The draft model's engine."""
        if self.draft is None:
            raise ValueError(f"draft.kind {self.profile.draft.kind} needs a draft model")
        return self.draft

    def own(self, *, pooled: bool = False) -> Steps[EmbeddedPrompt]:
        """Return the draft model's own prompt with all visual tokens, encoded once by its own vision tower."""
        if pooled:
            return (yield from encode_prompt(self.drafting().model, self.request, self.trace, "draft", pooled=True))
        if self._own is None:
            self._own = yield from encode_prompt(self.drafting().model, self.request, self.trace, "draft")
        return self._own

    def kept_of_own(self) -> Steps[EmbeddedPrompt]:
        """Return the draft model's own prompt with the kept visual tokens."""
        return self.pruned((yield from self.own()))

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Ids of the text of the target's prompt, visual and audio tokens left out."""
        return () if self.prefix is None else self.prefix.text_ids

    def text(self, instead: str) -> EmbeddedPrompt:
        """Return the target's prompt with a text in place of the video, for the draft model."""
        ids = self.texts.get(instead)
        if ids is None:
            if self.target is None:
                raise ValueError(f"the target did not say what its prompt is with {instead!r} for the video")
            ids = self.request.text_ids(self.target.model, instead)
        return self.drafting().model.text_prefix(ids)

    def pruned(self, prefix: EmbeddedPrompt) -> EmbeddedPrompt:
        """Return ``prefix`` with only the kept visual tokens.

        Raises:
            ModelError: see :meth:`rows`.
        """
        if self.kept is None or len(self.rows(prefix)) == prefix.length:
            return prefix
        return prefix.keep(self.kept.to(prefix.embeds.device), compact=self.profile.prune.positions == "compact")

    def rows(self, prefix: EmbeddedPrompt) -> torch.Tensor:
        """Return the rows of ``prefix``, sorted, without the pruned visual tokens.

        Raises:
            ModelError: its number of visual tokens differs from the target's, and some are to be pruned.
        """
        if self.kept is None or len(self.kept) == self.tokens:
            return torch.arange(prefix.length, device=prefix.embeds.device)
        if self.tokens not in (None, len(prefix.visual)):
            raise ModelError(
                f"target and draft see a frame differently: {self.tokens} and {len(prefix.visual)} visual tokens",
                hint="take both from one family and generation, or prune.method: none",
            )
        return prefix.rows_kept(self.kept.to(prefix.embeds.device))

    def read(self, engine: Engine, prefix: Prompt) -> Steps[PrefillResult]:
        """Prefill a prompt, timed as the draft's; a prefix cached by earlier turns of a dialogue is not read again.

        A head's prompt consists of the target's states, and is read whole.
        """
        cache = self.request.cache if isinstance(prefix, EmbeddedPrompt) else None
        hit = cache.find(engine.model, cast(EmbeddedPrompt, prefix)) if cache is not None else None
        with self.trace.span("draft_prefill", "draft"):
            found = yield PrefillPrompt(engine, prefix, self.room, lane="draft", cached=hit)
        if cache is not None:
            cache.read(engine.model, cast(EmbeddedPrompt, prefix), found.span, hit)
        return found  # type: ignore[no-any-return]

    def walker(self, engine: Engine, span: KVSpan) -> Drafter:
        """Return a drafter of the profile's topology over a prompt that has been read."""
        wanted = self.profile.draft
        if wanted.topology == "tree":
            return TreeDrafter(engine, span, parse_tree(wanted.tree))
        if wanted.topology == "adaptive":
            return AdaptiveDrafter(engine, span)
        return ChainDrafter(engine, span, self.sampling, self.rng)
