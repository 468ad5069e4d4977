"""Replayed passes: passes of few tokens, captured in CUDA graphs, once for each number of rows.

:mod:`vidspec.engine.graphs.step` has one such pass and its table of rows.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

import torch

from vidspec.engine.block_kernels import CAPABILITY, triton_absence, triton_problem
from vidspec.engine.choices import ChoiceKind, read_back_tokens
from vidspec.engine.device import replay_refusal
from vidspec.engine.graphs.choice import ChoiceStep, window_kind
from vidspec.engine.graphs.step import MOST, GraphStep, HostTable, ReplayedAttention, TableRows, table_columns
from vidspec.engine.head_states import state_places
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.slab import KVSpan
from vidspec.errors import DeviceError

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

    from vidspec.engine.decoder import ReplayableDecoder

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
    if len(decoder.both_ways) not in (0, decoder.depth):
        return "the tokens of a pass see each other both ways in some of its blocks"
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


class PlannedPass(NamedTuple):
    """A pass before it runs: rows and their number of each sequence, and the places of its data in the host's table.

    Attributes:
        columns: of the rows' table.
        states: of the places of a head's states; None without.
    """

    batch: Sequence[Rows]
    sizes: list[int]
    step: GraphStep
    replay: Callable[[], None]
    columns: int
    states: int | None


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
        return sum([len(rows.token_ids) for rows in batch]) <= ROWS and all(map(_is_replayable, batch))

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
        with self.on_device():
            planned = self.plan_pass(batch, vocabulary, table := HostTable())
            step, sizes, choice = planned.step, planned.sizes, None
            kind = window_kind(batch) if choose else None
            if kind is not None and _is_captured(kind, step.count):
                choice, replay = self.choice(step, kind)
                plan = choice.plan_windows(batch, sizes, table)
            self.run_pass(planned, table)
            total = sum(sizes)
            # The next pass writes to the same tensors.
            logits, hidden = step.logits[:total].clone(), step.hidden[:total].clone()
            states = {
                tapped: torch.cat([step.entering[block][:total] for block in tapped], 1).split(sizes)
                for tapped in {rows.tapped for rows in batch if rows.tapped}
            }
            entered = [states[rows.tapped][at] if rows.tapped else None for at, rows in enumerate(batch)]
            parts = torch.split_with_sizes(logits, sizes), torch.split_with_sizes(hidden, sizes)
            passed = list(map(PassResult, *parts, entered))
            if not choose:
                return passed
            if choice is None:
                return read_back_tokens(batch, passed, None if step.inputs is None else step.inputs.ids)
            if plan is not None:
                choice.begin(plan, table)
                choice.set_drafted(batch, sizes)
            replay()
            return choice.results(batch, passed, total)

    def on_device(self) -> torch.cuda.device | nullcontext[None]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def plan_pass(
        self, batch: Sequence[Rows], vocabulary: int, table: HostTable, lengths: Sequence[int] | None = None
    ) -> PlannedPass:
        """Return a pass, whose host data is added to a table.

        Args:
            batch: the rows of each sequence.
            vocabulary: number of logits to keep.
            table: receives the host's data.
            lengths: entries of each sequence before the pass, if they are not those of now.
        """
        sizes = [len(rows.token_ids) for rows in batch]
        self._tapped |= {block for rows in batch for block in rows.tapped}
        step, replay = self.step(max(FEWEST, padded_rows(sum(sizes))), vocabulary)
        lengths = [rows.span.length for rows in batch] if lengths is None else lengths
        every: list[TableRows] = [
            (rows.span, length, rows.token_ids, rows.parents) for rows, length in zip(batch, lengths, strict=True)
        ]
        both_ways = bool(self.decoder.both_ways)
        columns = table.add(table_columns(every, self.decoder.axes, step.idle, both_ways=both_ways))
        states = None if step.states is None else table.add(state_places(batch))
        return PlannedPass(batch, sizes, step, replay, columns, states)

    def run_pass(
        self,
        planned: PlannedPass,
        table: HostTable,
        tokens: torch.Tensor | None = None,
        own_states: torch.Tensor | None = None,
    ) -> tuple[GraphStep, list[int]]:
        """Run the pass, which grows its sequences; return it with the number of rows of each.

        Args:
            planned: the pass.
            table: its host data, sent to the device here if it is not there.
            tokens: (R,) of all rows, if they are on the device; the rows' own are ignored then.
            own_states: a head's, which all rows read; None for those of the rows.
        """
        batch, sizes, step, replay, columns, states = planned
        slab = self.decoder.slab
        if not table.is_sent:
            moves = table.add(slab.planned_moves())
            table.send(self.device)
            slab.move_entries(table[moves])
        step.table.copy_(table[columns])
        if step.inputs is not None and step.states is not None and states is not None:
            out = step.states[: sum(sizes)]
            if own_states is None:
                step.inputs.gather(batch, table[states], out=out)
            else:
                torch.index_select(own_states, 0, table[states], out=out)
        if tokens is not None:
            step.table[0, : len(tokens)].copy_(tokens)
        replay()
        for rows, size in zip(batch, sizes, strict=True):
            rows.span.length += size
        return step, sizes

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
                        hint="take fewer --frames, a smaller --batch, or models.decoder: stock, which captures none",
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

    def choice(self, step: GraphStep, kind: ChoiceKind) -> tuple[ChoiceStep, Callable[[], None]]:
        """Return the choice of a pass's tokens and the function that makes it."""
        key = step.count, step.chained, kind
        if key not in self._choices:
            begun = time.perf_counter()
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()  # all: graphs of one pool that outlive another may read its memory
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


def padded_rows(count: int) -> int:
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
