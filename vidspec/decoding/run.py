"""One clip through target and draft, from its frames to its last token."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from vidspec.acceptance.base import for_clip
from vidspec.decoding.background import BackgroundTask
from vidspec.decoding.base import Job, Target
from vidspec.decoding.setup import Setup, prefilled
from vidspec.draft_length.pace import Window
from vidspec.drafting.base import Drafter
from vidspec.drafting.context import DraftContext
from vidspec.engine.device import take_one_core
from vidspec.engine.requests import Steps, asked, overheard, timed
from vidspec.engine.rows import Prefill
from vidspec.engine.sampling import Sampling
from vidspec.engine.taps import Taps
from vidspec.events.events import Prefilled, Rejected, Round
from vidspec.events.trace import Trace
from vidspec.models.base import Prefix
from vidspec.models.detokenizer import Detokenizer
from vidspec.models.image_captioner import ImageCaptioner
from vidspec.models.prefix_cache import PrefixCache, PrefixHit
from vidspec.models.request import Request
from vidspec.pruning.base import ranked, taps_for
from vidspec.pruning.target.engine import kept_per_layer

__all__ = ["Choice", "Run", "SequentialRun"]

GREEDY = Sampling(0.0, 1.0)
#: What is timed before a text begins.
READING = ("decode_video", "preprocess", "vision", "caption", "target_prefill", "prune", "draft_prefill")


@dataclass(frozen=True)
class Choice:
    """Which schedule was chosen, and the measurement that decided."""

    kind: str
    why: str


class Run:
    """One clip: what captions it, and what it has said so far. To be used once.

    Args:
        setup: models and parts.
        request: frames and prompt.
        trace: where everything is timed.

    Attributes:
        choice: how its schedule was chosen; None where the profile names it.
        read, rounds: the events.
        finished: when the last of them came, in seconds of the trace.
    """

    choice: Choice | None = None
    read: Prefilled | None = None
    finished = 0.0

    def __init__(self, setup: Setup, request: Request, trace: Trace) -> None:
        self.setup, self.request, self.trace = setup, request, trace
        self.rounds: list[Round] = []

    @cached_property
    def text(self) -> Detokenizer:
        """Of the rounds."""
        return Detokenizer(self.setup.target.model.tokenizer)

    @cached_property
    def seed(self) -> int:
        """Of the clip's own random numbers."""
        return self.request.seed(self.setup.profile.generate.seed)

    @property
    def kind(self) -> str:
        """The schedule."""
        return self.choice.kind if self.choice else self.setup.profile.schedule.kind

    @property
    def draft_forwards(self) -> int:
        """Passes of the draft so far, prefill excluded."""
        raise NotImplementedError

    @property
    def reading_s(self) -> float:
        """Seconds from the clip's file to prompts that have been read."""
        totals = self.trace.totals()
        spent = 0.0 if "decode_video" in totals else self.request.spent
        return spent + sum(totals.get(kind, 0.0) for kind in READING)

    def events(self) -> Steps[None]:
        """Yields what is asked for, and ``Prefilled``, then a round per target pass; the first round is the prefill's
        own token."""
        raise NotImplementedError

    def told(self) -> Steps[None]:
        """:meth:`events`, remembered; rounds with what their tokens add to the text."""
        return overheard(self.events(), change=self._remembered)

    def _remembered(self, event: Prefilled | Round) -> Prefilled | Round:
        self.finished = self.trace.elapsed()
        if isinstance(event, Round):
            self.rounds.append(event)
            texts, others = list[str](), list[Rejected]()
            for at, token in enumerate(event.token_ids):
                others += [replace(one, text=self.text.instead(one.token)) for one in event.rejected if one.at == at]
                texts.append(self.text.add(token))
            return replace(event, texts=tuple(texts), rejected=tuple(others))
        held = self.request.held
        if held is not None and held.reading_s is None:
            held.reading_s = self.reading_s
        self.read = replace(event, schedule=self.kind, why=self.choice.why if self.choice else None)
        return self.read


class SequentialRun(Run):
    """In turns: the target reads, the draft reads, then the schedule alternates between them.

    Attributes:
        job: what the schedule works with, from ``Prefilled`` on.
        window: of its chains, where it is chosen; from then on too.
    """

    job: Job | None = None
    window: Window | None = None

    @property
    def draft_forwards(self) -> int:
        return self.job.drafter.forwards if self.job and self.job.drafter else 0

    def _led_by(self, job: Job, drafter: Drafter | None) -> None:
        """Who drafts, and chooses the windows."""
        job.drafter, job.window = drafter, self.window
        job.target.tapped = drafter.tapped if drafter is not None else ()
        if drafter is not None and drafter.paces and self.setup.pace and self.window:
            drafter.set_pace(self.setup.pace, self.window)
            job.window = None

    def _described(self, describe: ImageCaptioner) -> str:
        take_one_core()
        begun = self.trace.elapsed()
        text = str(describe(self.request.shown))
        self.trace.add("caption", "draft", begun, self.trace.elapsed())
        return text

    def _read_prompt(
        self, prefix: Prefix, taps: Taps | None, held: PrefixCache | None, start: PrefixHit | None
    ) -> Steps[tuple[Prefill, str | None]]:
        """The target's prompt, read, and the caption of an ensemble's context that wants one.

        The captioner needs nothing of the target, and works beside its prefill where it can (TABED 6.2).
        """
        setup, trace = self.setup, self.trace
        description = held.description if held is not None else None
        describe = setup.describe if description is None else None
        with ExitStack() as meanwhile:
            beside: BackgroundTask[str] | None = None
            if describe is not None and describe.beside:
                beside = BackgroundTask(partial(self._described, describe))
                meanwhile.enter_context(describe.sharing())
            elif describe is not None:
                description, _ = yield from timed(trace, "caption", "draft", describe, self.request.shown)
            read, _ = yield from timed(trace, "target_prefill", "target", setup.prefill, prefix, taps, held, start)
            if beside is not None:
                description = yield from beside.answer()
        if held is not None:
            held.description = description
        return read, description

    def events(self) -> Steps[None]:
        setup, trace = self.setup, self.trace
        prefix = yield from setup.read(self.request, trace)
        held = self.request.held
        start = setup.start(held, prefix)
        taps = taps_for(setup.needs, prefix) if start is None else None
        read, description = yield from self._read_prompt(prefix, taps, held, start)
        rng = torch.Generator().manual_seed(self.seed)
        kept = setup.kept(prefix, taps, trace, held=held, start=start)
        gamma = setup.profile.draft.gamma
        drafter: Drafter | None = None
        if setup.drafter is not None:
            context = DraftContext(
                profile=setup.profile,
                request=self.request,
                # A window that depends on times must not decide which random numbers a token gets.
                sampling=GREEDY if gamma == "auto" or not setup.drafter.draws else setup.sampling,
                rng=rng,
                room=setup.room,
                trace=trace,
                tokens=len(prefix.visual),
                kept=kept,
                draft=setup.draft,
                head=setup.head,
                target=setup.target,
                prefix=prefix,
                read_by_target=read,
                taps=taps,
                caption=description,
            )
            drafter = yield from asked(setup.drafter.open, context)
            del context
        signals = ranked(taps)
        del taps  # what was observed can be as large as the prompt
        window = self.window = setup.pace.window() if setup.pace else None
        self.job = Job(
            target=Target(setup.target, read, setup.sampling, rng, confident=self.request.confident),
            limits=setup.limits,
            trace=trace,
            rng=rng,
            acceptance=for_clip(setup.acceptance, read.visual_states) if setup.acceptance else None,
            gamma=setup.window if gamma == "auto" else gamma,
        )
        self._led_by(self.job, drafter)
        yield prefilled(setup.profile, prefix, kept, trace.now(), description, kept_per_layer(read.span), signals)
        del start
        try:
            yield from setup.schedule(self.job)
        finally:
            if window is not None:
                window.close()
        if held is not None:
            drafter = self.job.drafter
            spans = drafter.spans if drafter is not None else ()
            held.wrote([read.span, *spans], [token for step in self.rounds for token in step.token_ids])
