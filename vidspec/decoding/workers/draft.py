"""The draft's side: what runs in its process. It looks at its messages between any two forward passes."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import torch

from vidspec import video
from vidspec.decoding.protocol import Abort, DraftMessage, Failed, PrefillDraft, Propose, Proposed, Ready, Rollback
from vidspec.decoding.trace import Trace
from vidspec.decoding.workers.frames import copied
from vidspec.decoding.workers.messages import (
    Answer,
    CloseClip,
    Loaded,
    OpenClip,
    Order,
    Spans,
    Start,
    Taken,
    Unloadable,
)
from vidspec.decoding.workers.text import DraftText
from vidspec.drafting.opening import Opening
from vidspec.engine.device import synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.sampling import Sampling
from vidspec.errors import VidspecError
from vidspec.models import loading
from vidspec.models.identity import identity
from vidspec.models.prompt import Question
from vidspec.registry import drafters

__all__ = ["DraftClip", "serve"]


class DraftClip:
    """One clip on the draft's side.

    Args:
        order: the clip as the process was told of it.
        engine: the drafting model.
    """

    def __init__(self, order: OpenClip, engine: Engine) -> None:
        self.number, self.engine = order.clip, engine
        self.trace = Trace(synchroniser(engine.model.device))
        self.opening = Opening(
            profile=order.profile,
            question=_question(order),
            sampling=Sampling(),  # ids travel, distributions do not: a greedy draft is exact by the one-hot rule
            rng=torch.Generator(),
            room=order.room,
            trace=self.trace,
            tokens=None,
            kept=None,
            draft=engine,
        )
        self._kind = drafters.get(order.profile.draft.kind)
        self._look = order.eager
        self._text: DraftText | None = None
        self._prefill: PrefillDraft | None = None
        self._eos: frozenset[int] = frozenset()
        self._epoch, self._until = 0, 0

    @property
    def forwards(self) -> int:
        return self._text.forwards if self._text else 0

    def take(self, message: DraftMessage, visual: int | None) -> None:
        """Remember what is to be done; nothing is computed here but a rollback."""
        if isinstance(message, PrefillDraft):
            self._prefill, self.opening.tokens = message, visual
        elif isinstance(message, Propose):
            if message.epoch == self._epoch:
                self._until = message.until
        elif isinstance(message, Rollback):
            self._epoch, self._until = message.epoch, 0
            if self._text is None:
                raise RuntimeError("told to roll back before its prompt was read")
            with self.trace.span("rollback", "draft"):
                self._text.cut(message.keep, message.tokens)
        elif isinstance(message, Abort):
            self._until = 0
            # What was asked before the prompt is read is not wanted any more; the prompt still is.

    @property
    def busy(self) -> bool:
        """Whether there is something to do without a further message."""
        return self._look or self._prefill is not None or self._proposes

    @property
    def _proposes(self) -> bool:
        text = self._text
        return (
            text is not None and len(text.tokens) < self._until and not (text.tokens and text.tokens[-1] in self._eos)
        )

    def work(self) -> Ready | Proposed | None:
        """The next piece of work: a look at the clip, the prompt, or one forward pass."""
        begun = time.perf_counter()
        if self._prefill is not None:
            order, self._prefill, self._look = self._prefill, None, False
            if order.kept is not None:
                self.opening.kept = torch.tensor(order.kept, dtype=torch.long)
            prefix = self._kind.prompt(self.opening)
            self._text = DraftText(self.engine, self.opening.read(self.engine, prefix))
            self._eos = order.eos
            return Ready("draft", time.perf_counter() - begun)
        if self._look:
            self._look = False
            self._kind.look(self.opening)
            return None
        if self._text is None:
            return None
        first = not self._text.tokens
        with self.trace.span("draft", "draft", (("epoch", self._epoch), ("position", len(self._text.tokens)))):
            token = self._text.extend()
        seconds = 0.0 if first else time.perf_counter() - begun
        return Proposed(self._epoch, len(self._text.tokens) - 1, token, seconds)

    def spans(self) -> Spans:
        """What has been done."""
        origin = self.trace.origin
        shifted = (replace(span, start=span.start + origin, end=span.end + origin) for span in self.trace.spans)
        return Spans(self.number, tuple(shifted), self.forwards)


def serve(connection: Connection, start: Start) -> None:
    """The process: load the model, then work on one clip at a time until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's business; it ends this one
    number = -1
    try:
        if start.threads is not None:
            torch.set_num_threads(start.threads)
        try:
            engine = Engine(loading.load(start.model, start.where, text=True))
        except VidspecError as error:
            connection.send(Unloadable(error.message, error.hint, error.kind, traceback.format_exc()))
            return
        connection.send(Loaded(identity(engine.model)))
        clip: DraftClip | None = None
        while True:
            while not (clip and clip.busy) or connection.poll():
                order = connection.recv()
                if isinstance(order, OpenClip):
                    number = order.clip
                    clip = DraftClip(order, engine)
                    connection.send(Taken(number))
                elif isinstance(order, CloseClip):
                    mine = clip is not None and clip.number == order.clip
                    connection.send(clip.spans() if clip and mine else Spans(order.clip, (), 0))
                    clip = None if mine else clip
                elif clip is not None and isinstance(order, Order) and order.clip == clip.number:
                    clip.take(order.message, order.visual)
            if clip is not None and (result := clip.work()) is not None:
                connection.send(Answer(clip.number, result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody is there any more
    except Exception as error:
        failed = Failed("draft", f"{type(error).__name__}: {error}", traceback.format_exc())
        with contextlib.suppress(OSError):
            connection.send(Answer(number, failed))


def _question(order: OpenClip) -> Question:
    """The clip; its frames are copied out of the shared block, which belongs to the other process."""
    facts = video.SourceFacts("", 0.0, order.shape[2], order.shape[1], "", "", 0.0, False, 0, order.shape[0], "")
    clip = video.Clip(copied(order.memory, order.shape), np.array(order.timestamps), facts)
    return Question(clip, order.prompt, order.system)
