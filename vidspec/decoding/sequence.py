"""The state of one clip from its read frames to its caption."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from vidspec.decoding.loop import LoopClient
from vidspec.engine.requests import Steps
from vidspec.events.events import Event, InputsReleased, Prefilled, RejectedToken, Restarted, Round

if TYPE_CHECKING:
    from vidspec.decoding.limits import StoppingRules
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.decoding.target import Target
    from vidspec.draft_length.window import DraftWindow
    from vidspec.drafting.base import Drafter
    from vidspec.events.trace import Trace
    from vidspec.models.detokenizer import Detokenizer
    from vidspec.models.request import CaptionRequest

__all__ = ["Drafting", "Sequence"]

#: Trace spans of reading a clip and its prompts.
READING = ("decode_video", "preprocess", "vision", "caption", "target_prefill", "prune", "draft_prefill")


@dataclass
class Drafting:
    """The draft's side of a sequence, once both prompts have been read.

    Attributes:
        drafter: has begun with the target's first token.
        gamma: the draft window, or the largest that ``window`` may choose.
        window: chooses the draft window during decoding; None for ``gamma``, or if the drafter chooses it itself.
        opened: the clip's place among those whose windows follow measured times, if they do.
    """

    drafter: Drafter
    gamma: int
    window: DraftWindow | None = None
    opened: DraftWindow | None = None


class Sequence(LoopClient):
    """One clip: its request, the state of its decoding, and its emitted events and tokens.

    Args:
        job: frames and prompt.
        setup: models and parts.
        trace: times all work on the clip.
        key: identifies it in the loop; that of the request if None.

    Attributes:
        events: emitted by :meth:`emit` and not taken yet.
        limits: the stopping rules, from :meth:`attempt` on.
        target: the target's side, from its prefill on.
        drafting: the draft's side; None if the profile has none, or another process drafts.
        prefilled, released, rounds, token_ids: emitted in this attempt.
        text: text of the rounds, without reasoning; None for token ids only.
        draft_forwards: passes of the draft, prefill excluded.
        text_start: time of ``Prefilled``, in seconds of the trace.
        shared: True if it ever shared the models with other clips.
    """

    target: Target
    limits: StoppingRules

    def __init__(
        self, job: CaptionRequest, setup: DecodingSetup, trace: Trace | None = None, key: Hashable = None
    ) -> None:
        super().__init__(job.key if key is None else key, trace=trace)
        self.job, self.setup = job, setup
        self.events: deque[Event] = deque()
        self.text: Detokenizer | None = None
        self.drafting: Drafting | None = None
        self.prefilled: Prefilled | None = None
        self.released: InputsReleased | None = None
        self.rounds: list[Round] = []
        self.token_ids: list[int] = []
        self.draft_forwards = 0
        self.text_start = 0.0
        self.deadline = None if job.timeout is None else time.monotonic() + job.timeout - job.spent
        self.shared = False

    def restart(self, why: str) -> None:
        """Emit ``Restarted`` and begin the text again, with frames that are read again if they were released."""
        self.end_attempt()
        self.emit(Restarted(why))
        self.restore_frames()
        self.attempt()

    def restore_frames(self) -> None:
        """Read the frames again if an earlier attempt has released them."""
        if self.job.reread is not None and not self.job.frames.frames.size:
            self.job = replace(self.job, clip=self.job.reread())

    def attempt(self) -> None:
        """Begin the text, or begin it again with nothing emitted."""
        from vidspec.models.detokenizer import Detokenizer

        model, self.limits = self.setup.target.model, self.setup.limits
        self.text = Detokenizer(model.tokenizer, self.setup.profile.generate.stop, thinks=model.template.thinks)
        self.drafting, self.prefilled, self.released = None, None, None
        self.rounds, self.token_ids, self.draft_forwards, self.text_start = [], [], 0, 0.0

    def end_attempt(self) -> None:
        """Close what the attempt has opened."""
        if self.drafting is not None:
            self.draft_forwards = self.drafting.drafter.forwards
            if self.drafting.opened is not None:
                self.drafting.opened.close()

    @cached_property
    def seed(self) -> int:
        """Seed of the clip's random numbers."""
        return self.job.seed(self.drawn_seed or self.setup.profile.generate.seed)

    @cached_property
    def drawn_seed(self) -> int | None:
        """Seed drawn for this text, if the profile's is -1; as ``generate.seed`` it gives the text again."""
        return 1 + secrets.randbelow(2**48 - 1) if self.setup.profile.generate.seed < 0 else None

    @property
    def kind(self) -> str:
        """Kind of the schedule."""
        return self.setup.profile.schedule.kind

    @property
    def reading_s(self) -> float:
        """Seconds of reading the clip and its prompts."""
        totals = self.trace.totals()
        spent = 0.0 if "decode_video" in totals else self.job.spent
        return spent + sum(totals.get(kind, 0.0) for kind in READING)

    def add_text(
        self, token_ids: tuple[int, ...], rejected: tuple[RejectedToken, ...] = ()
    ) -> tuple[tuple[str, ...], tuple[RejectedToken, ...]]:
        """Add the tokens of the next round to the text.

        Returns:
            The text that each token adds, and those of ``rejected`` that these tokens replace, with the text that they
            would have added.
        """
        if self.text is None:
            return (), tuple([one for one in rejected if one.at < len(token_ids)])
        texts, previews = list[str](), list[RejectedToken]()
        for at, token in enumerate(token_ids):
            for missed in rejected:
                if missed.at == at:
                    previews.append(RejectedToken(at, missed.token, self.text.preview(missed.token)))
            texts.append(self.text.add(token))
        return tuple(texts), tuple(previews)

    def emit(self, event: Event) -> None:
        """Emit an event."""
        if isinstance(event, Round):
            self.rounds.append(event)
        elif isinstance(event, Prefilled):
            self.prefilled = event = replace(event, schedule=self.kind)
            self.text_start = event.elapsed
        elif isinstance(event, InputsReleased):
            self.released = event
            if (cache := self.job.cache) is not None and cache.reading_s is None:
                cache.reading_s = self.reading_s
            if self.job.reread is not None:
                _ = self.seed  # computed from the frames, which are dropped now
            self.job = self.job.without_pixels()
        self.events.append(event)

    def emit_round(self, token_ids: tuple[int, ...], make: Callable[[], Round], *, last: bool = True) -> None:
        """Emit a round, perhaps while a device computes the next pass.

        Args:
            token_ids: its tokens, added at once.
            make: adds them to the text and returns the event.
            last: False if a pass of the clip follows in any case.
        """
        self.token_ids += token_ids
        if last or not self.overlaps:
            self.emit(make())
        else:
            self.later = lambda: self.emit(make())

    def emit_first(self) -> bool:
        """Emit the round of the prefill's token; return True if the text ends there."""
        token = self.target.first()
        texts, _ = self.add_text((token,))
        first = Round((token,), ("target",), 0, 0, 0.0, texts=texts, probabilities=self.target.probabilities)
        self.emit_round((token,), lambda: first)
        return self.limits.is_finished([token])


#: Writes the text of a sequence, a round per target pass.
ScheduleFunction: TypeAlias = Callable[[Sequence], Steps[None]]
