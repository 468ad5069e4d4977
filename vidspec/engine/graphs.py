"""Replayed passes: passes of few tokens, captured in CUDA graphs, once for each number of rows.

:mod:`vidspec.engine.graph_step` has one such pass and its table of rows.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from vidspec.engine.block_kernels import CAPABILITY, triton_absence, triton_problem
from vidspec.engine.choice_step import ChoiceStep, chain_kind, window_kind
from vidspec.engine.choices import ChoiceKind, read_back_tokens
from vidspec.engine.device import replay_refusal, to_device
from vidspec.engine.graph_step import MOST, GraphStep, ReplayedAttention, table_columns
from vidspec.engine.rows import ChainRule, PassResult, Rows
from vidspec.engine.slab import KVSpan
from vidspec.errors import DeviceError

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

    from vidspec.engine.decoder import ReplayableDecoder
    from vidspec.engine.requests import StaticTree

__all__ = [
    "FEWEST",
    "ROWS",
    "ReplayedPasses",
    "eager_reason",
    "eager_reason_by_shape",
    "make_graphs",
]

#: Most rows of a pass: 16 trees of 26 rows are one.
ROWS = 512
#: Most rows of a pass whose draws and penalties are captured, which keep some 30 bytes a logit; most captured choices.
CHOSEN, _MOST_CHOICES = 128, 32
#: Fewest rows of an unchained pass: a token and a window of up to 7 run the same kernels, so they round alike.
FEWEST = 8


def make_graphs(decoder: ReplayableDecoder) -> ReplayedPasses | None:
    """Return the replayed passes of a decoder; None if there are none, see :func:`eager_reason`."""
    on_gpu = decoder.device.type == "cuda"
    return ReplayedPasses(decoder) if on_gpu and eager_reason(decoder) is None else None


def eager_reason(decoder: ReplayableDecoder) -> str | None:
    """Return why a GPU would run passes of a decoder kernel by kernel; None if they can be replayed."""
    if (reason := eager_reason_by_shape(decoder.windows, decoder.width)) is not None:
        return reason
    device = decoder.device
    if (absence := triton_absence()) is not None:
        return absence
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        return f"the GPU has compute capability {capability[0]}.{capability[1]}, below {CAPABILITY[0]}.{CAPABILITY[1]}"
    return replay_refusal(device) if torch.version.hip is not None else triton_problem(device)


def eager_reason_by_shape(windows: Sequence[int | None] | None, width: int) -> str | None:
    """Return the reasons that hold on any GPU, from a fused decoder's sliding windows and head width."""
    if windows is not None and min(size for size in windows if size is not None) < MOST:
        return f"its blocks have sliding windows of fewer than {MOST} tokens"
    return None if width in (16, 32, 64, 128, 256) else f"its heads have {width} numbers"


class ReplayedPasses:
    """Passes of one decoder, captured if its device can.

    Args:
        decoder: decoder of token rows.
        attend: attention of a layer; the Triton kernels if None.
        capture: True to capture passes; else they run kernel by kernel.

    Attributes:
        preparing: seconds spent on compiling and capturing passes.
    """

    def __init__(
        self, decoder: ReplayableDecoder, attend: ReplayedAttention | None = None, *, capture: bool = True
    ) -> None:
        self.decoder: ReplayableDecoder = weakref.proxy(decoder)  # the decoder owns these passes
        self._attend = attend
        self.preparing = 0.0
        self.device = decoder.device
        self._can_capture = capture and self.device.type == "cuda"
        self._steps: dict[tuple[int, bool], tuple[GraphStep, Callable[[], None]]] = {}
        self._choices: dict[tuple[int, bool, ChoiceKind], tuple[ChoiceStep, Callable[[], None]]] = {}
        self._tapped: frozenset[int] = frozenset()  # all blocks that were tapped so far
        #: Slab version, vocabulary and tapped blocks that the steps were made for.
        self._steps_key: tuple[int, int, frozenset[int]] | None = None
        self._pool: _POOL_HANDLE | None = None
        self._stream: torch.cuda.Stream | None = None

    @property
    def captured(self) -> Collection[int]:
        """Numbers of rows with a captured pass."""
        return {count for count, _ in self._steps}

    @property
    def bytes_to_capture(self) -> int:
        """Bytes that passes and chains not captured yet keep, and the working memory of one, which all share."""
        kinds = {chained for _, chained in self._steps}
        if not self._can_capture or len(kinds) == 2:
            return 0
        kept = sum(sum(_counts(chained)) for chained in (False, True) if chained not in kinds)
        decoder, inputs = self.decoder, self.decoder.state_inputs
        states = len(self._tapped) if inputs is None else 2  # a head's input and output
        row = decoder.logit_width + decoder.hidden * (1 + states)
        working = 0 if kinds else ROWS * decoder.pass_width
        return (kept * row + working) * decoder.slab.dtype.itemsize

    def is_replayable(self, batch: Sequence[Rows]) -> bool:
        """Return True for few token rows without observers, in sequences with the same entries in all layers."""
        return sum(map(len, batch)) <= ROWS and all(map(_is_replayable, batch))

    def split_batch(self, batch: Sequence[Rows]) -> tuple[list[list[int]], list[int]]:
        """Return the indices in ``batch`` of rows to replay, by pass, and of the others."""
        passes: list[list[int]] = [[]]
        others: list[int] = []
        count = 0
        for at, rows in enumerate(batch):
            if not _is_replayable(rows):
                others.append(at)
                continue
            count += len(rows.token_ids)
            if count > ROWS:
                passes.append([])
                count = len(rows.token_ids)
            passes[-1].append(at)
        return [places for places in passes if places], others

    def clear(self) -> None:
        """Release the captured passes and the slab that they hold."""
        self._steps.clear()
        self._choices.clear()
        self._steps_key = self._pool = None  # a pool ends with its last graph

    def run(self, batch: Sequence[Rows], vocabulary: int, *, choose: bool = True) -> list[PassResult]:
        """Run a batch for which :meth:`is_replayable` is true, as ``Engine.run``.

        Args:
            batch: the rows of each sequence.
            vocabulary: number of logits to keep.
            choose: True to choose the tokens and read them back.
        """
        with self._on_device():
            step, sizes = self._run_pass(batch, vocabulary)
            total = sum(sizes)
            states = {
                tapped: torch.cat([step.entering[block][:total] for block in tapped], 1).split(sizes)
                for tapped in {rows.tapped for rows in batch if rows.tapped}
            }
            entered = [states[rows.tapped][at] if rows.tapped else None for at, rows in enumerate(batch)]
            # The next pass writes to the same tensors.
            logits, hidden = step.logits[:total].clone(), step.hidden[:total].clone()
            passed = list(map(PassResult, logits.split(sizes), hidden.split(sizes), entered))
            if not choose:
                return passed
            kind = window_kind(batch)
            if kind is None or not _is_captured(kind, step.count):
                return read_back_tokens(batch, passed, None if step.inputs is None else step.inputs.ids)
            choice, replay = self._choice(step, kind)
            choice.begin_windows(batch, sizes)
            replay()
            return choice.results(batch, passed)

    def chain(
        self, batch: Sequence[Rows], gammas: Sequence[int], vocabulary: int, rules: Sequence[ChainRule] | None = None
    ) -> list[tuple[list[int], torch.Tensor | None]] | None:
        """Continue sequences as ``Engine.chain``: one pass per new token; the host waits for the last only.

        Args:
            batch: the first rows of each sequence; :meth:`is_replayable` must be true.
            gammas: number of tokens to add to each.
            vocabulary: number of logits to keep.
            rules: how the tokens are chosen; None for the likeliest ones.

        Returns:
            The new tokens and the distributions they were drawn from, None if they were not drawn; None if the host has
            to choose.
        """
        kind = None if rules is None else chain_kind(rules, gammas)
        if rules is not None and kind is None:
            return None
        for rows, gamma in zip(batch, gammas, strict=True):
            if rows.span.length + len(rows.token_ids) + gamma - 1 > rows.span.room:
                rows.span.check_room(len(rows.token_ids) + gamma - 1)
        order = sorted(range(len(batch)), key=lambda at: -gammas[at])  # those of one token are idle, and last
        with self._on_device():
            first, sizes = self._run_pass(batch, vocabulary)
            step, replay = self.step(_padded_rows(len(batch)), vocabulary, chained=True)
            longer = [at for at in order if gammas[at] > 1]
            self._write_table(step, [Rows(batch[at].span, (0,)) for at in longer], [gammas[at] - 1 for at in longer])
            ends = list(accumulate(sizes))
            places = to_device(torch.tensor([ends[at] - 1 for at in order]), self.device)
            if step.states is not None:
                entering = first.entering[self.decoder.depth]
                torch.index_select(entering, 0, places, out=step.states[: len(batch)])
            if kind is None or rules is None:
                numbers, probs = self._greedy_tokens(step, replay, first.tokens[places], max(gammas)), None
            else:
                torch.index_select(first.logits, 0, places, out=step.logits[: len(batch)])
                ordered = [rules[at] for at in order]
                numbers, probs = self._chosen_tokens(step, replay, kind, ordered, max(gammas))
        drafted: list[tuple[list[int], torch.Tensor | None]] = [([], None)] * len(batch)
        for place, at in enumerate(order):
            tokens = [step_tokens[place] for step_tokens in numbers[: gammas[at]]]
            if -1 in tokens:
                return None
            drawn = rules is not None and rules[at].sampling is not None and probs is not None
            drafted[at] = tokens, probs[: gammas[at], place] if drawn and probs is not None else None
            batch[at].span.length += gammas[at] - 1
        return drafted

    def _greedy_tokens(
        self, step: GraphStep, replay: Callable[[], None], tokens: torch.Tensor, longest: int
    ) -> list[list[int]]:
        """Return the likeliest tokens of chains that begin with ``tokens``, by step."""
        drafted = tokens.new_empty(longest, len(tokens))
        drafted[0].copy_(tokens)
        step.table[0, : len(tokens)].copy_(tokens)
        for index in range(1, longest):
            replay()
            drafted[index].copy_(step.tokens[: len(tokens)])
        return drafted.tolist()  # type: ignore[no-any-return]

    def _chosen_tokens(
        self, step: GraphStep, replay: Callable[[], None], kind: ChoiceKind, rules: Sequence[ChainRule], longest: int
    ) -> tuple[list[list[int]], torch.Tensor | None]:
        """Return the tokens of chains by step, the first by the logits in ``step``, and the distributions."""
        choice, choose = self._choice(step, kind)
        choice.begin_chains(rules, longest)
        probs = None
        if kind.cuts is not None:
            probs = torch.empty(longest, len(rules), step.vocabulary, device=self.device)
        for index in range(longest):
            if index:
                replay()
            choose()
            if probs is not None and choice.chosen.probs is not None:
                probs[index].copy_(choice.chosen.probs[: len(rules)])
        return choice.record[:longest].tolist(), probs

    def trees(self, trees: Sequence[StaticTree], vocabulary: int) -> list[list[int]]:
        """Grow trees as ``Engine.trees``, one pass per level; the host waits for the last only."""
        grown: list[torch.Tensor] = []
        order: list[tuple[int, int]] = []  # tree and node of each token
        tokens: torch.Tensor | None = None
        with self._on_device():
            for level in range(max(len(tree.levels) for tree in trees)):
                growing = [(at, tree) for at, tree in enumerate(trees) if level < len(tree.levels)]
                batch = [tree.level_rows(level) for _, tree in growing]
                width = max(rows.top for rows in batch)
                step, sizes = self._run_pass(batch, vocabulary, tokens)
                states = None if step.states is None else step.entering[self.decoder.depth]
                picks, following = list[int](), list[int]()
                for (at, tree), end in zip(growing, accumulate(sizes), strict=True):
                    first = end - len(tree.levels[level])
                    for row, child in tree.grow(level, first, states):
                        picks.append(row * width + tree.ranks[child])
                        following += picks[-1:] if child in tree.children else ()
                        order.append((at, child))
                places = to_device(torch.tensor([*picks, *following]), self.device)
                best = step.logits[: sum(sizes)].topk(width).indices.view(-1)
                chosen = best.index_select(0, places)
                if step.inputs is not None:
                    chosen = step.inputs.ids.index_select(0, chosen)
                grown.append(chosen[: len(picks)])
                tokens = chosen[len(picks) :]
            numbers = torch.cat(grown).tolist()
        answers = [[0] * len(tree.parents) for tree in trees]
        for (at, child), token in zip(order, numbers, strict=True):
            answers[at][child] = token
        return answers

    def _on_device(self) -> torch.cuda.device | nullcontext[None]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _run_pass(
        self, batch: Sequence[Rows], vocabulary: int, tokens: torch.Tensor | None = None
    ) -> tuple[GraphStep, list[int]]:
        """Run the pass, which grows its sequences; return it with the number of rows of each.

        Args:
            batch: the rows of each sequence.
            vocabulary: number of logits to keep.
            tokens: (R,) of all rows, if they are on the device; the rows' own are ignored then.
        """
        sizes = [len(rows.token_ids) for rows in batch]
        self._tapped |= {block for rows in batch for block in rows.tapped}
        step, replay = self.step(max(FEWEST, _padded_rows(sum(sizes))), vocabulary)
        self.decoder.slab.move_entries()
        self._write_table(step, batch)
        if step.inputs is not None and step.states is not None:
            step.inputs.gather(batch, out=step.states[: sum(sizes)])
        if tokens is not None:
            step.table[0, : len(tokens)].copy_(tokens)
        replay()
        for rows, size in zip(batch, sizes, strict=True):
            rows.span.length += size
        return step, sizes

    def _write_table(self, step: GraphStep, batch: Sequence[Rows], left: Sequence[int] | None = None) -> None:
        """Write the table of a pass, from memory that the host does not write to again.

        Args:
            step: the pass.
            batch: the rows of each sequence.
            left: for a chained pass, the number of tokens that each row reads.
        """
        columns: list[Sequence[int]] = [*table_columns(batch, self.decoder.axes), *([] if left is None else [left])]
        rows = torch.tensor(columns, dtype=torch.long)
        table = torch.cat([rows, step.idle[:, rows.shape[1] :]], 1)
        to_device(table, self.device, out=step.table)

    def step(self, count: int, vocabulary: int, *, chained: bool = False) -> tuple[GraphStep, Callable[[], None]]:
        """Return the pass of ``count`` rows and the function that runs it."""
        key = self.decoder.slab.version, vocabulary, self._tapped
        if key != self._steps_key:  # they hold the addresses of a freed slab
            self.clear()
            self._steps_key = key
            self.decoder.slab.before_move[self] = self.clear
        if (count, chained) not in self._steps:
            begun = time.perf_counter()
            try:
                self._prepare_steps(count, vocabulary, chained)
            finally:
                self.preparing += time.perf_counter() - begun
        return self._steps[count, chained]

    def _prepare_steps(self, count: int, vocabulary: int, chained: bool) -> None:
        """Make a pass, and if passes are captured all others of its kind, so that no later pass has to wait."""
        counts = [count]
        if self._can_capture:
            counts += _counts(chained)
        for wanted in counts:
            try:
                if (wanted, chained) not in self._steps:
                    self._steps[wanted, chained] = self._make_step(wanted, vocabulary, chained)
            except torch.OutOfMemoryError as error:
                if wanted == count:
                    raise DeviceError(
                        f"passes of {count} rows: no memory is left to capture them",
                        hint="fewer --frames, a smaller --batch, or models.decoder: stock, which captures none",
                        kind="memory",
                    ) from error
                return  # tried again when it is needed

    def _make_step(self, count: int, vocabulary: int, chained: bool) -> tuple[GraphStep, Callable[[], None]]:
        if self._attend is None:
            from vidspec.engine.kernel import split_attention

            self._attend = split_attention
        step = GraphStep(
            self.decoder, count, vocabulary, self._attend, () if chained else self._tapped, chained=chained
        )
        return step, self._capture(step)

    def _choice(self, step: GraphStep, kind: ChoiceKind) -> tuple[ChoiceStep, Callable[[], None]]:
        """Return the choice of a pass's tokens and the function that makes it."""
        key = step.count, step.chained, kind
        if key not in self._choices:
            begun = time.perf_counter()
            while len(self._choices) >= _MOST_CHOICES:
                self._choices.pop(next(iter(self._choices)))
            choice = ChoiceStep(step, kind)
            self._choices[key] = choice, choice
            if _is_captured(kind, step.count):
                with suppress(torch.OutOfMemoryError):  # then kernel by kernel
                    self._choices[key] = choice, self._capture(choice)
            self.preparing += time.perf_counter() - begun
        return self._choices[key]

    def _capture(self, step: GraphStep | ChoiceStep) -> Callable[[], None]:
        """Return the function that replays a fixed list of kernels; the list itself if nothing is captured."""
        if not self._can_capture:
            return step
        here = torch.cuda.current_stream()
        # One stream of this device for all captures: libraries keep a workspace per stream.
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):  # compiles kernels and makes the workspaces
            step()
            step.set_idle()
        here.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            step()
        return graph.replay


def _counts(chained: bool) -> list[int]:
    """Return the numbers of rows for which passes are captured."""
    fewest = 1 if chained else FEWEST
    return [1 << power for power in range(fewest.bit_length() - 1, ROWS.bit_length())]


def _is_captured(kind: ChoiceKind, count: int) -> bool:
    """Return True if the choices of a pass of ``count`` rows are captured."""
    return count <= CHOSEN or (kind.cuts is None and not kind.penalised)


def _padded_rows(count: int) -> int:
    """Return the rows of the pass that takes ``count`` rows."""
    return 1 << (count - 1).bit_length()


def _is_replayable(rows: Rows) -> bool:
    """Return True if rows of one sequence can be replayed, see :meth:`ReplayedPasses.is_replayable`."""
    return (
        len(rows.token_ids) <= MOST
        and rows.prompt is None
        and rows.taps is None
        and len(rows.parents or ()) <= MOST
        and type(rows.span) is KVSpan
    )
