"""Engine requests, as a clip's decoding yields them: passes of a model, other device work, messages of another worker.

A part of a decoding (a drafter, a schedule) is a generator that yields requests and is sent their answers. The answers
come from the loop (:mod:`vidspec.decoding.loop`), which packs the rows of many clips, or from
:func:`run_to_completion`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from vidspec.engine.rows import ChainRule, HeadState, PassResult, Rows

if TYPE_CHECKING:
    import torch

    from vidspec.engine.forward import Engine
    from vidspec.engine.history import TextHistory
    from vidspec.engine.rows import Prompt
    from vidspec.engine.sampling import Sampling
    from vidspec.engine.slab import KVSpan
    from vidspec.engine.taps import Taps
    from vidspec.events.wake import WakeEvent

__all__ = [
    "Chain",
    "Encode",
    "EngineRequest",
    "Forward",
    "ModelLane",
    "PrefillPrompt",
    "Receive",
    "StaticTree",
    "Steps",
    "run_to_completion",
]

T = TypeVar("T")

#: Worker of a request.
ModelLane: TypeAlias = Literal["target", "draft"]


class _BaseRequest:
    """Base of all requests; the loop dispatches on the class in every turn.

    Attributes:
        lane: worker of the request.
        seconds: total time of its passes; set with the answer.
        answer: set by the loop.
    """

    lane: ModelLane = "target"
    seconds: float = 0.0
    answer: Any = None

    def run(self) -> None:
        """Compute the answer now, without rows of other clips."""
        raise NotImplementedError


class Forward(_BaseRequest):
    """Rows of one sequence, or of several, in one pass; the answer is a ``PassResult`` for each.

    Args:
        engine: the model's engine.
        rows: the rows of each sequence.
        lane: worker of the request.
        grows: True if a tree grows with it.
    """

    #: True if its rows can be split over several passes.
    splittable = False
    grows = False

    def __init__(
        self, engine: Engine, rows: Sequence[Rows], lane: ModelLane = "target", *, grows: bool = False
    ) -> None:
        self.engine, self.rows, self.lane, self.grows = engine, rows, lane, grows

    def parts(self, limit: int) -> Sequence[Rows]:
        """Return its rows for the next pass, which may have ``limit`` rows of a prompt."""
        return self.rows

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        """Take the result of a pass; return True once the request is answered.

        Raises:
            ModelError: some logits are not finite.
        """
        if not all([result.finite for result in passed]):
            self.engine.check(passed)
        self.answer = list(passed)
        return True

    def run(self) -> None:
        while not self.add_result(self.engine.run(self.parts(self.engine.chunk))):
            pass


class Chain(Forward):
    """Continuation of tokens, one pass for each new token; the answer is the ``gamma`` new token ids.

    ``token_ids`` and ``gamma`` are the remaining work, as passes may be run one by one.

    Args:
        engine: the model's engine.
        span: the sequence; it grows by all tokens but the last.
        token_ids: tokens to read, at least one.
        gamma: tokens to add, at least one.
        lane: worker of the request.
        history: penalties and grammar of the new tokens.
        path: tokens between its text and the first new one.
        sampling: how the new tokens are drawn; None for the likeliest ones.
        uniforms: one number in [0, 1) for each drawn token.
        states: for a head, the state that it reads with each token.
        ids: for a head, the token id of each logit, on the host; for ``history``.

    Attributes:
        probs: with the answer, the distributions (1, V) or (gamma, V) of drawn tokens, to concatenate.
    """

    def __init__(
        self,
        engine: Engine,
        span: KVSpan,
        token_ids: Sequence[int],
        gamma: int,
        lane: ModelLane = "draft",
        *,
        history: TextHistory | None = None,
        path: Sequence[int] = (),
        sampling: Sampling | None = None,
        uniforms: Sequence[float] = (),
        states: Sequence[HeadState] = (),
        ids: torch.Tensor | None = None,
    ) -> None:
        self.engine, self.rows, self.lane = engine, (), lane
        self.states, self.ids = states, ids
        self.span, self.token_ids, self.gamma = span, list(token_ids), gamma
        self.history, self.path = history, path
        self.sampling, self.uniforms = sampling, uniforms
        self.probs: list[torch.Tensor] = []
        self.answer = []

    @property
    def rule(self) -> ChainRule | None:
        """Rule of the remaining tokens; None if they are the likeliest ones."""
        if self.history is None and self.sampling is None:
            return None
        done = len(self.answer)
        return ChainRule(self.history, [*self.path, *self.answer], self.sampling, self.uniforms[done:])

    def parts(self, limit: int) -> Sequence[Rows]:
        processor, draw, tapped = None, None, (self.engine.model.decoder.depth,) if self.states else ()
        if self.history is not None:
            processor = self.history.changes_for_paths([[*self.path, *self.answer]], self.ids)
        if self.sampling is not None:
            from vidspec.engine.sampling import DrawRule

            draw = DrawRule(self.sampling, (self.uniforms[len(self.answer)],), keeps_probs=True)
        states = self.states
        return [Rows(self.span, self.token_ids, tapped=tapped, draw=draw, processor=processor, head_states=states)]

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        self.engine.check(passed)
        token = passed[0].chosen[-1]
        self.answer.append(token)
        if passed[0].probs is not None:
            self.probs.append(passed[0].probs)
        self.token_ids, self.gamma, self.states = [token], self.gamma - 1, passed[0].own_states[-1:]
        return self.gamma == 0


class StaticTree(Forward):
    """Greedy tree of a known shape, one pass for each level of nodes with children; the answer is all nodes' tokens.

    Args:
        engine: the model's engine.
        span: the sequence; it grows by the tokens to read and by the nodes with children, level by level.
        token_ids: tokens to read before the tree, at least one.
        parents: of each node, -1 for the first ones; parents come first.
        ranks: of each node, 0 for the likeliest token after its parent.
        history: penalties and grammar of the new tokens.
        states: for a head, the state that it reads with each token.
        ids: for a head, the token id of each logit, on the host; for ``history``.

    Attributes:
        after: for a head, its state after each node of the last level.
        levels: nodes that each pass reads; -1 stands for the tokens before the tree.
        children: by node, in the order of nodes.
    """

    grows = True

    def __init__(
        self,
        engine: Engine,
        span: KVSpan,
        token_ids: Sequence[int],
        parents: Sequence[int],
        ranks: Sequence[int],
        *,
        history: TextHistory | None = None,
        states: Sequence[HeadState] = (),
        ids: torch.Tensor | None = None,
    ) -> None:
        self.engine, self.rows, self.lane = engine, (), "draft"
        self.states, self.ids, self.after = states, ids, dict[int, HeadState]()
        self.span, self.token_ids, self.parents, self.ranks, self.history = span, token_ids, parents, ranks, history
        self.children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            self.children.setdefault(parent, []).append(node)
        self.levels: list[list[int]] = [[-1]]
        while following := [node for node in self.grown(len(self.levels) - 1) if node in self.children]:
            self.levels.append(following)
        self.done = 0  # levels
        self.answer = [0] * len(parents)

    def grown(self, level: int) -> list[int]:
        """Return the nodes that the pass over a level adds."""
        return [child for node in self.levels[level] for child in self.children[node]]

    def level_rows(self, level: int) -> Rows:
        """Return the rows of the pass over a level."""
        nodes, top = self.levels[level], 1 + max(self.ranks[child] for child in self.grown(level))
        changes = None
        if self.history is not None:
            changes = self.history.changes_for_paths([self._path(node) for node in nodes], self.ids)
        tapped = (self.engine.model.decoder.depth,) if self.states else ()
        if level == 0:
            return Rows(self.span, self.token_ids, tapped=tapped, top=top, processor=changes, head_states=self.states)
        read = [node for before in self.levels[1 : level + 1] for node in before]
        entry = {-1: -1, **{node: index for index, node in enumerate(read)}}
        above = [entry[self.parents[node]] for node in read]
        tokens = [self.answer[node] for node in nodes]
        states = [self.after[self.parents[node]] for node in nodes] if self.after else ()
        return Rows(self.span, tokens, above, tapped=tapped, top=top, processor=changes, head_states=states)

    def _path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self._path(self.parents[node]), self.answer[node]]

    def parts(self, limit: int) -> Sequence[Rows]:
        return [self.level_rows(self.done)]

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        self.engine.check(passed)
        nodes = self.levels[self.done]
        self.after = dict(zip(nodes, passed[0].own_states[-len(nodes) :], strict=False))
        for node, (tokens, _) in zip(nodes, passed[0].top[-len(nodes) :], strict=True):
            for child in self.children[node]:
                self.answer[child] = tokens[self.ranks[child]]
        self.done += 1
        return self.done == len(self.levels)


class PrefillPrompt(Forward):
    """Prefill of a prompt into a new sequence, in as many passes as it takes; the answer is a ``PrefillResult``.

    Args:
        engine: the model's engine.
        prompt: embeddings and positions.
        room: further entries that the sequence must hold: max_new_tokens and one window.
        taps: observers of the passes.
        states: True to keep the last states of the N visual tokens.
        lane: worker of the request.
        cached: a sequence and the number of its first rows that equal the prompt's; they are not read again.
    """

    splittable = True

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        room: int,
        taps: Taps | None = None,
        *,
        states: bool = False,
        lane: ModelLane = "target",
        cached: tuple[KVSpan, int] | None = None,
    ) -> None:
        super().__init__(engine, (), lane)
        self.reading = engine.start_prefill(prompt, room, taps, states=states, cached=cached)

    def parts(self, limit: int) -> Sequence[Rows]:
        return [self.reading.rows(limit)]

    def add_result(self, passed: Sequence[PassResult]) -> bool:
        self.answer = self.reading.add_result(passed[0])
        return self.answer is not None


class Encode(_BaseRequest):
    """Device work other than a pass, such as a chunk of a vision tower; the answer is the result of ``call``."""

    def __init__(self, call: Callable[[], object], lane: ModelLane = "target") -> None:
        self.call, self.lane = call, lane

    def partners(self, waiting: Sequence[Encode]) -> Sequence[Encode]:
        """Return the requests of other clips, among those that wait, that are answered with this one."""
        return ()

    def run_with(self, others: Sequence[Encode]) -> None:
        """Compute the answer, and those of :meth:`partners`."""
        self.answer = self.call()

    def run(self) -> None:
        self.run_with(())


class Mailbox(Protocol):
    """Incoming messages of another worker.

    Attributes:
        wake: set with each message; a loop that waits for messages replaces it with its own.
    """

    wake: WakeEvent

    def take(self) -> list[Any]:
        """Return the messages that have arrived, in order; never wait."""
        ...


class Receive(_BaseRequest):
    """Wait for messages; the answer is the list in ``mailbox``, empty if none arrives within ``timeout`` seconds."""

    def __init__(self, mailbox: Mailbox, timeout: float, lane: ModelLane = "target") -> None:
        self.mailbox, self.timeout, self.lane = mailbox, timeout, lane
        self.until = time.monotonic() + timeout

    def run(self) -> None:
        while not (messages := self.mailbox.take()) and (left := self.until - time.monotonic()) > 0:
            self.mailbox.wake.wait(left)
        self.answer = messages


#: Any request of a decoding; ``Chain``, ``StaticTree`` and ``PrefillPrompt`` are kinds of ``Forward``.
EngineRequest: TypeAlias = Forward | Encode | Receive

#: A part of a decoding: yields requests, is sent their answers, and returns a T.
Steps: TypeAlias = Generator[EngineRequest, Any, T]


def run_to_completion(steps: Steps[T]) -> T:
    """Run a part of a decoding without other clips, and return its result."""
    answer: object = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        begun = time.perf_counter()
        request.run()
        request.seconds, answer = time.perf_counter() - begun, request.answer
