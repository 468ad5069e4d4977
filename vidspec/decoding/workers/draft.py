"""The draft worker, in its own process. It reads its messages between any two passes."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch

from vidspec import garbage
from vidspec.channel import Channel
from vidspec.decoding.loop import Loop, LoopClient
from vidspec.decoding.protocol import (
    CloseClip,
    DraftAnswer,
    DraftMessage,
    DraftSpans,
    OpenClip,
    PromptRead,
    Proposed,
    VisibleTokens,
    WorkerFailed,
)
from vidspec.decoding.text_history import make_history
from vidspec.drafting.base import drafter_of
from vidspec.drafting.chain import greedy_chain
from vidspec.drafting.context import DraftContext
from vidspec.engine.device import synchroniser
from vidspec.engine.forward import Engine
from vidspec.engine.history import TextHistory
from vidspec.engine.requests import Steps
from vidspec.engine.rows import PrefillResult
from vidspec.engine.sampling import Sampling
from vidspec.errors import GenerationError, VidspecError
from vidspec.events.trace import Trace
from vidspec.models import loading
from vidspec.models.base import EmbeddedPrompt
from vidspec.models.identity import model_identity
from vidspec.models.placement import Placement
from vidspec.models.quick_import import import_transformers
from vidspec.models.video_language_model import VideoLanguageModel


class DraftText:
    """Greedy continuation that can be cut back to any length.

    Args:
        engine: engine of the drafting model.
        prefill: result of the prompt's prefill.
        history: after the prompt, for penalties and a grammar; it grows with the text. None without either.
    """

    def __init__(self, engine: Engine, prefill: PrefillResult, history: TextHistory | None = None) -> None:
        self.engine, self.prefill, self.span, self.history = engine, prefill, prefill.span, history
        self.tokens: list[int] = []
        self.forwards = 0
        self._prompt = self.span.length
        self._recorded = 0  # tokens of the text that the history has

    def extend(self) -> Steps[int]:
        """Propose one more token: from the prompt's last logits at first, then from a pass over the unread tokens.

        If it is abandoned before its request is answered, nothing changes.
        """
        unread = self.tokens[self.span.length - self._prompt :]
        path = self._record()
        if unread:
            self.tokens += yield from greedy_chain(self.engine, self.span, unread, 1, self.history, path)
            self.forwards += 1
        else:
            logits = self.prefill.logits
            if self.history is not None:
                logits = self.history.changes_for_paths([()])(logits[None])
            self.tokens.append(int(logits.argmax()))
        return self.tokens[-1]

    def _record(self) -> Sequence[int]:
        """Add the new tokens to the history, and return those that it cannot take.

        A draft whose vocabulary has no token that the grammar allows proposes another, which will be rejected.
        """
        history = self.history
        for token in self.tokens[self._recorded :] if history is not None else ():
            assert history is not None
            try:
                history.add([token])
            except GenerationError:
                break
            self._recorded += 1
        return self.tokens[self._recorded :]

    def prune(self, rows: torch.Tensor) -> None:
        """Drop the prompt's entries except those at ``rows`` (K,), sorted, for good.

        They and all later entries keep their positions. Drafted tokens stay, with their entries as computed from the
        whole prompt.
        """
        self.span.offset += self._prompt - len(rows)
        self.span.gather(0, [*rows.tolist(), *range(self._prompt, self.span.length)])
        self._prompt = len(rows)

    def cut(self, keep: int, tokens: Sequence[int]) -> None:
        """Set the text to its first ``keep`` tokens and then ``tokens``.

        Raises:
            ValueError: the text is shorter than ``keep``.
        """
        if not 0 <= keep <= len(self.tokens):
            raise ValueError(f"cannot keep {keep} of {len(self.tokens)} tokens")
        if self.history is not None and keep < self._recorded:
            self.history, self._recorded = self.history.before(self._recorded - keep), keep
        self.tokens[keep:] = tokens
        read = self.span.length - self._prompt
        # At least one token must stay unread: logits come from the pass over it.
        self.span.rollback(self._prompt + min(read, keep, max(0, len(self.tokens) - 1)))


class DraftClip(LoopClient):
    """One clip in the draft worker.

    Args:
        number: of the clip.
        order: the message that opens it.
        engine: engine of the drafting model.
        emit: receives its results.
    """

    def __init__(
        self, number: int, order: OpenClip, engine: Engine[VideoLanguageModel], emit: Callable[[DraftAnswer], None]
    ) -> None:
        super().__init__(number, trace=Trace(synchroniser(engine.model.device)))
        self.engine, self.emit = engine, emit
        self.context = DraftContext(
            profile=order.profile,
            request=order.request,
            sampling=Sampling(),  # only ids are sent, no distributions: a greedy draft is exact by the one-hot rule
            rng=torch.Generator(),
            room=order.room,
            trace=self.trace,
            tokens=None,
            kept=None,
            draft=engine,
            texts=order.texts,
        )
        kind = drafter_of(order.profile.draft)
        if not kind.remote:
            raise RuntimeError(f"the drafter {order.profile.draft.kind} cannot work in a process of its own")
        self._kind = kind
        self._encode_now = order.eager
        self._text: DraftText | None = None
        self._kept = deque[VisibleTokens]()  # not followed yet
        self._prefix: EmbeddedPrompt | None = None
        self._eos = order.eos
        self._epoch, self._until = 0, 0

    @property
    def forwards(self) -> int:
        return self._text.forwards if self._text else 0

    @property
    def read(self) -> bool:
        """True once its prompt has been read."""
        return self._text is not None

    def take(self, message: DraftMessage) -> None:
        """Store a message; only a rollback is executed here."""
        if isinstance(message, VisibleTokens):
            self._kept.append(message)
            self.context.tokens = message.visual
            return
        if message.keep is not None:
            if self._text is None:
                raise RuntimeError("told to roll back before its prompt was read")
            self._epoch = message.epoch
            self.trace.lap()
            self._text.cut(message.keep, message.tokens)
            self.trace.lap("rollback", "draft")
        if message.epoch == self._epoch:
            self._until = message.until

    @property
    def _is_proposing(self) -> bool:
        text = self._text
        return (
            text is not None and len(text.tokens) < self._until and not (text.tokens and text.tokens[-1] in self._eos)
        )

    def work(self) -> Steps[None]:
        """Do all work that needs no further message: encode the clip, prefill, propose tokens.

        Once the prompt is read it may be abandoned at any request and begun again.
        """
        if self._encode_now:
            self._encode_now = False
            yield from self._kind.encode(self.context)
        if self._kept and self._text is None:
            self._follow_kept()
            prefix = yield from self._kind.prefix(self.context)
            read = yield from self.context.read(self.engine, prefix)
            history = make_history(self.context.profile.generate, self.engine.model, prefix.token_ids)
            self._text, self._prefix = DraftText(self.engine, read, history), prefix.outline()
            self.context.release()
            del prefix
            self.emit(PromptRead())
        if self._kept and self._text is not None and self._prefix is not None:
            self._follow_kept()
            with self.trace.span("prune", "draft"):
                self._text.prune(self.context.rows(self._prefix))
        while (text := self._text) is not None and self._is_proposing:
            position = len(text.tokens)
            about = (("epoch", self._epoch), ("position", position))
            self.trace.lap()
            token = yield from text.extend()
            seconds = self.trace.lap("draft", "draft", about)
            self.emit(Proposed(self._epoch, position, token, seconds if position else 0.0))

    def _follow_kept(self) -> None:
        kept = self._kept.popleft().indices
        self.context.kept = None if kept is None else torch.tensor(kept, dtype=torch.long)

    def spans(self) -> DraftSpans:
        """Return the timed work so far."""
        origin = self.trace.origin
        shifted = (span._replace(start=span.start + origin, end=span.end + origin) for span in self.trace.spans)
        return DraftSpans(tuple(shifted), self.forwards)


class DraftWorker:
    """Clips of the draft process. One pass extends all texts that propose, and prefills a stretch of other prompts.

    Args:
        engine: engine of the drafting model.
        send: sends to the other process.
    """

    def __init__(self, engine: Engine[VideoLanguageModel], send: Callable[[object], None]) -> None:
        self.engine, self.send = engine, send
        self._clips: dict[int, DraftClip] = {}
        self._loop = Loop(synchronise=synchroniser(engine.model.device))

    @property
    def busy(self) -> bool:
        """True if there is work that needs no further message."""
        return len(self._loop) > 0

    @property
    def has_clips(self) -> bool:
        """True if clips are open, which may wait for it."""
        return len(self._clips) > 0

    def add_collection(self, start: float, end: float) -> None:
        """Add a garbage collection to the traces of the open clips."""
        for clip in self._clips.values():
            clip.trace.add("collect", "draft", start - clip.trace.origin, end - clip.trace.origin)

    def take(self, number: int, message: OpenClip | DraftMessage | CloseClip) -> None:
        """Handle a message about a clip; called between two passes."""
        if isinstance(message, CloseClip):
            self._loop.drop(number)
            clip = self._clips.pop(number, None)
            self._emit(number, clip.spans() if clip else DraftSpans((), 0))
            return
        try:
            if isinstance(message, OpenClip):
                self._clips[number] = DraftClip(number, message, self.engine, partial(self._emit, number))
            elif number in self._clips:
                self._clips[number].take(message)
            else:
                return  # the clip has failed or is closed
        except Exception as error:
            self._fail(number, error)
            return
        clip = self._clips[number]
        if clip.read or number not in self._loop:
            self._loop.drop(number)  # restart its work, with the rows of the next pass
            clip.steps = clip.work()
            self._loop.begin(clip)
            self._check(clip)

    def turn(self) -> None:
        """Run one pass, or a step of encoding a clip."""
        for client in self._loop.turn():
            self._check(client)

    def _check(self, client: LoopClient) -> None:
        if client.error is not None:
            self._fail(cast(int, client.key), client.error)

    def _emit(self, number: int, answer: DraftAnswer) -> None:
        self.send((number, answer))

    def _fail(self, number: int, error: Exception) -> None:
        """Report one clip as failed; the others continue."""
        self._loop.drop(number)
        self._clips.pop(number, None)
        trace = "".join(traceback.format_exception(error))
        self._emit(number, WorkerFailed(f"{type(error).__name__}: {error}", trace))


def serve(channel: Channel, model: str, where: Placement) -> None:
    """Run the process: load the model, send its identity or error, then work on clips."""
    try:
        with garbage.loading(fresh=True):
            import_transformers()
            engine = Engine(loading.load_model(model, where, text=True))
    except VidspecError as error:
        failed = WorkerFailed(error.message, traceback.format_exc(), hint=error.hint, kind=error.kind)
        channel.send((None, failed))
        return
    channel.send((None, model_identity(engine.model)))
    worker = DraftWorker(engine, channel.send)
    with garbage.deferred(worker.add_collection):
        while True:
            while not worker.busy or channel.poll():
                if not worker.busy:
                    garbage.collect_if_due(busy=worker.has_clips)
                worker.take(*channel.receive())
            worker.turn()
