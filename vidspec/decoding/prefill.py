"""Prefill in turns, the target's prompt and then the draft's, for the schedules that alternate between them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch

from vidspec.acceptance.base import for_clip
from vidspec.decoding.background import BackgroundTask
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.setup import prefilled
from vidspec.decoding.target import Target
from vidspec.drafting.context import DraftContext
from vidspec.engine.device import use_one_core
from vidspec.engine.requests import Steps
from vidspec.engine.rows import PrefillResult
from vidspec.engine.sampling import Sampling
from vidspec.engine.taps import Taps
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.image_captioner import ImageCaptioner
from vidspec.models.prefix_cache import PrefixHit
from vidspec.pruning.base import attention_ranks, make_taps
from vidspec.pruning.target.engine import kept_per_layer

__all__ = ["run_in_turns"]

GREEDY = Sampling(0.0, 1.0)


def run_in_turns(sequence: Sequence) -> Steps[None]:
    """Prefill the target, then the draft, then run the profile's schedule."""
    setup, trace, cache = sequence.setup, sequence.trace, sequence.job.cache
    prefix = yield from setup.read(sequence.job, trace)
    hit = setup.find_prefix(cache, prefix)
    taps = make_taps(setup.needs, prefix) if hit is None else None
    read, description = yield from _read_prompt(sequence, prefix, taps, hit)
    kept = setup.kept(prefix, taps, trace, cache=cache, hit=hit)
    sequence.rng = torch.Generator().manual_seed(sequence.seed)
    drafter = None
    if setup.drafter is not None:
        context = _draft_context(sequence, prefix, kept, read, taps, description)
        drafter = sequence.drafter = yield from setup.drafter.open(context)
        del context
    signals = attention_ranks(taps)
    del taps, hit  # observations can be as large as the prompt
    tapped, history = drafter.tapped if drafter is not None else (), setup.history(prefix)
    probs = sequence.job.return_probs
    sequence.target = Target(
        setup.target, read, setup.sampling, sequence.rng, tapped, return_probs=probs, history=history
    )
    if drafter is not None:
        drafter.history = history
    sequence.limits = setup.limits
    sequence.acceptance = for_clip(setup.acceptance, read.visual_states) if setup.acceptance else None
    sequence.gamma = setup.window if setup.profile.draft.gamma == "auto" else setup.profile.draft.gamma
    window = sequence.window = setup.pace.window() if setup.pace else None
    if drafter is not None and drafter.paces and setup.pace and window:
        drafter.set_pace(setup.pace, window)
        sequence.window = None
    per_layer = kept_per_layer(read.span)
    sequence.emit(prefilled(setup.profile, prefix, kept, trace.now(), description, per_layer, signals))
    del prefix  # its embeddings are not needed any more
    try:
        yield from setup.schedule(sequence)
    finally:
        if window is not None:
            window.close()
        if drafter is not None:
            sequence.draft_forwards = drafter.forwards
    if cache is not None:
        spans = drafter.spans if drafter is not None else ()
        cache.add_text([read.span, *spans], sequence.token_ids)


def _draft_context(
    sequence: Sequence,
    prefix: EmbeddedPrompt,
    kept: torch.Tensor,
    read: PrefillResult,
    taps: Taps | None,
    description: str | None,
) -> DraftContext:
    setup = sequence.setup
    # A window size that depends on times must not decide which random numbers a token gets.
    draws = setup.drafter is not None and setup.drafter.draws and setup.profile.draft.gamma != "auto"
    return DraftContext(
        profile=setup.profile,
        request=sequence.job,
        sampling=setup.sampling if draws else GREEDY,
        rng=sequence.rng,
        room=setup.room,
        trace=sequence.trace,
        tokens=len(prefix.visual),
        kept=kept,
        draft=setup.draft,
        head=setup.head,
        self_draft=setup.self_draft,
        target=setup.target,
        prefix=prefix,
        read_by_target=read,
        taps=taps,
        caption=description,
    )


def _read_prompt(
    sequence: Sequence, prefix: EmbeddedPrompt, taps: Taps | None, hit: PrefixHit | None
) -> Steps[tuple[PrefillResult, str | None]]:
    """Prefill the target; return the result and the caption for an ensemble's context, if one needs it.

    The captioner needs nothing from the target, and runs during its prefill if it can (TABED 6.2).
    """
    setup, trace, cache = sequence.setup, sequence.trace, sequence.job.cache
    description = cache.description if cache is not None else None
    captioner = setup.describe if description is None else None
    with ExitStack() as meanwhile:
        task: BackgroundTask[str] | None = None
        if captioner is not None and captioner.beside:
            task = BackgroundTask(partial(_caption_frames, sequence, captioner))
            meanwhile.enter_context(captioner.sharing())
        elif captioner is not None:
            with trace.span("caption", "draft"):
                description = yield from captioner.steps(sequence.job.frames)
        with trace.span("target_prefill"):
            read = yield from setup.prefill(prefix, taps, cache, hit)
        if task is not None:
            description = yield from task.answer()
    if cache is not None:
        cache.description = description
    return read, description


def _caption_frames(sequence: Sequence, captioner: ImageCaptioner) -> str:
    """Return the captioner's text; runs in another thread."""
    use_one_core()
    begun = sequence.trace.elapsed()
    text = captioner(sequence.job.frames)
    sequence.trace.add("caption", "draft", begun, sequence.trace.elapsed())
    return text
