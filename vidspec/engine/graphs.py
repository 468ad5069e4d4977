"""Replayed passes: passes of few tokens, captured in CUDA graphs, once for each number of rows.

:mod:`vidspec.engine.graph_step` has one such pass and its table of rows.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from vidspec.engine.block_kernels import CAPABILITY, triton_absence, triton_problem
from vidspec.engine.device import read_back, replay_refusal
from vidspec.engine.graph_step import MOST, GraphStep, ReplayedAttention, TableRows, chained_columns, table_columns
from vidspec.engine.head_states import state_places
from vidspec.engine.host_table import HostTable
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.slab import KVSpan
from vidspec.errors import DeviceError

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

    from vidspec.engine.chain_choices import ChainChoices
    from vidspec.engine.decoder import ReplayableDecoder
    from vidspec.engine.fused import FusedDecoder
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


class _PlannedPass(NamedTuple):
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


class _ChainStage(NamedTuple):
    """Chained passes of the same chains, from their token ``done`` to ``until``.

    Attributes:
        columns, places: in the host's table, of the rows' table and of ``chains``.
    """

    step: GraphStep
    replay: Callable[[], None]
    columns: int
    chains: Sequence[int]
    places: int
    done: int
    until: int


class _TreeLevel(NamedTuple):
    """The pass over one level of trees.

    Attributes:
        width: number of likeliest tokens of each row.
        picks, following: in the host's table, the chosen ones of these and the chosen that are read next.
    """

    planned: _PlannedPass
    width: int
    picks: int
    following: int


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
        if self.decoder.state_inputs is not None:
            return 0  # one block: little beside its target's
        decoder = cast("FusedDecoder", self.decoder)
        kept = sum(sum(_counts(chained)) for chained in (False, True) if chained not in kinds)
        row = decoder.head.shape[0] + decoder.embedding.shape[1] * (1 + len(self._tapped))
        working = 0 if kinds else ROWS * decoder.pass_width
        return (kept * row + working) * decoder.embedding.itemsize

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
        self._steps_key = self._pool = None  # a pool ends with its last graph

    def run(self, batch: Sequence[Rows], vocabulary: int) -> list[PassResult]:
        """Run a batch for which :meth:`is_replayable` is true, as ``Engine.run``."""
        with self._on_device():
            step, sizes = self._run_pass(self._plan_pass(batch, vocabulary, table := HostTable()), table)
            # The next pass writes to the same tensors.
            logits, hidden = step.logits[: sum(sizes)].clone(), step.hidden[: sum(sizes)].clone()
            states = {
                tapped: torch.cat([step.entering[block][: sum(sizes)] for block in tapped], 1).split(sizes)
                for tapped in {rows.tapped for rows in batch if rows.tapped}
            }
        entered = [states[rows.tapped][at] if rows.tapped else None for at, rows in enumerate(batch)]
        parts = torch.split_with_sizes(logits, sizes), torch.split_with_sizes(hidden, sizes)
        return list(map(PassResult, *parts, entered))

    def chain(
        self, batch: Sequence[Rows], gammas: Sequence[int], vocabulary: int, choices: ChainChoices | None = None
    ) -> list[list[int]] | None:
        """Continue sequences as ``Engine.greedy``: one pass per new token; the host waits for the last only.

        Args:
            batch: the first rows of each sequence; :meth:`is_replayable` must be true.
            gammas: number of tokens to add to each.
            vocabulary: number of logits to keep.
            choices: choose the tokens; None for the likeliest ones.

        Returns:
            The new tokens; None if the choices were not exact.
        """
        for rows, gamma in zip(batch, gammas, strict=True):
            if rows.span.length + len(rows.token_ids) + gamma - 1 > rows.span.room:
                rows.span.check_room(len(rows.token_ids) + gamma - 1)
        with self._on_device():
            table = HostTable()
            first = self._plan_pass(batch, vocabulary, table)
            ends = [end - 1 for end in accumulate(first.sizes)]
            last_rows, stages = table.add(ends), self._plan_stages(first, ends, gammas, vocabulary, table)
            first_step, _ = self._run_pass(first, table)
            last = table[last_rows]
            new_tokens = torch.zeros(max(gammas), len(batch), dtype=torch.long, device=self.device)
            if choices is None:
                new_tokens[0].copy_(first_step.tokens[last])
            else:
                every = torch.arange(len(batch), device=self.device)
                new_tokens[0].copy_(choices.choose(first_step.logits[last], 0, range(len(batch)), every))
            states = None if first_step.states is None else first_step.entering[self.decoder.depth][last]
            for stage in stages:
                self._run_stage(stage, table, new_tokens, choices, states)
            for rows, gamma in zip(batch, gammas, strict=True):
                rows.span.length += gamma - 1
            flags = [] if choices is None else [choices.exact.long().expand(1, len(batch))]
            steps = read_back(torch.cat([*flags, new_tokens]) if flags else new_tokens)
        if choices is not None and not all(steps.pop(0)):
            return None
        return [list(tokens[:gamma]) for tokens, gamma in zip(zip(*steps, strict=True), gammas, strict=True)]

    def _plan_stages(
        self, first: _PlannedPass, ends: Sequence[int], gammas: Sequence[int], vocabulary: int, table: HostTable
    ) -> list[_ChainStage]:
        """Return the passes of chains after the first, by the chains that they continue."""
        stages, done = list[_ChainStage](), 1
        while unfinished := [at for at, gamma in enumerate(gammas) if gamma > done]:
            until = min([gammas[at] for at in unfinished])
            step, replay = self.step(_padded_rows(len(unfinished)), vocabulary, chained=True)
            last = [ends[at] for at in unfinished]
            columns = table.add(chained_columns(table.host(first.columns), last, done, self.decoder.axes, step.idle))
            stages.append(_ChainStage(step, replay, columns, unfinished, table.add(unfinished), done, until))
            done = until
        return stages

    def _run_stage(
        self,
        stage: _ChainStage,
        table: HostTable,
        new_tokens: torch.Tensor,
        choices: ChainChoices | None,
        states: torch.Tensor | None,
    ) -> None:
        """Run the passes of a stage, which add to ``new_tokens`` (gamma, chains) and replace ``states``."""
        step, count, places = stage.step, len(stage.chains), table[stage.places]
        step.table.copy_(table[stage.columns])
        step.table[0, :count].copy_(new_tokens[stage.done - 1, places])
        step.moves.zero_()
        step.moves[:count].fill_(1)
        if states is not None and step.states is not None:
            step.states[:count].copy_(states if count == len(states) else states[places])
        for index in range(stage.done, stage.until):
            stage.replay()
            tokens = step.tokens[:count]
            if choices is not None:
                tokens = choices.choose(step.logits[:count], index, stage.chains, places)
                step.table[0, :count].copy_(tokens)
            new_tokens[index].index_copy_(0, places, tokens)
        if states is not None and step.states is not None and stage.until < len(new_tokens):
            states.index_copy_(0, places, step.states[:count])

    def trees(self, trees: Sequence[StaticTree], vocabulary: int) -> list[list[int]]:
        """Grow trees as ``Engine.trees``, one pass per level; the host waits for the last only."""
        grown, levels = list[torch.Tensor](), list[_TreeLevel]()
        order: list[tuple[int, int]] = []  # tree and node of each token
        tokens: torch.Tensor | None = None
        table, lengths = HostTable(), [tree.span.length for tree in trees]
        with self._on_device():
            for number in range(max(len(tree.levels) for tree in trees)):
                levels.append(self._plan_level(trees, number, lengths, vocabulary, table, order))
            for level in levels:
                step, sizes = self._run_pass(level.planned, table, tokens)
                best = step.logits[: sum(sizes)].topk(level.width).indices
                grown.append(best.view(-1).index_select(0, table[level.picks]))
                tokens = grown[-1].index_select(0, table[level.following])
            numbers = read_back(torch.cat(grown))
        answers = [[0] * len(tree.parents) for tree in trees]
        for (at, child), token in zip(order, numbers, strict=True):
            answers[at][child] = token
        return answers

    def _plan_level(
        self,
        trees: Sequence[StaticTree],
        number: int,
        lengths: list[int],
        vocabulary: int,
        table: HostTable,
        order: list[tuple[int, int]],
    ) -> _TreeLevel:
        """Return the pass over one level of trees.

        Args:
            trees: all trees; some may have fewer levels.
            number: of the level.
            lengths: entries of each sequence before the pass; they are advanced.
            vocabulary: number of logits to keep.
            table: receives the host's data.
            order: receives tree and node of each token that the level adds.
        """
        growing = [(at, tree) for at, tree in enumerate(trees) if number < len(tree.levels)]
        batch = [tree.level_rows(number) for _, tree in growing]
        planned = self._plan_pass(batch, vocabulary, table, [lengths[at] for at, _ in growing])
        width, picks, following = max(rows.top for rows in batch), list[int](), list[int]()
        for (at, tree), end, size in zip(growing, accumulate(planned.sizes), planned.sizes, strict=True):
            lengths[at] += size
            nodes = tree.levels[number]
            for row, node in enumerate(nodes, end - len(nodes)):
                for child in tree.children[node]:
                    if child in tree.children:
                        following.append(len(picks))
                    picks.append(row * width + tree.ranks[child])
                    order.append((at, child))
        return _TreeLevel(planned, width, table.add(picks), table.add(following))

    def _on_device(self) -> torch.cuda.device | nullcontext[None]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _plan_pass(
        self, batch: Sequence[Rows], vocabulary: int, table: HostTable, lengths: Sequence[int] | None = None
    ) -> _PlannedPass:
        """Return a pass, whose host data is added to a table.

        Args:
            batch: the rows of each sequence.
            vocabulary: number of logits to keep.
            table: receives the host's data.
            lengths: entries of each sequence before the pass, if they are not those of now.
        """
        sizes = [len(rows.token_ids) for rows in batch]
        self._tapped |= {block for rows in batch for block in rows.tapped}
        step, replay = self.step(max(FEWEST, _padded_rows(sum(sizes))), vocabulary)
        lengths = [rows.span.length for rows in batch] if lengths is None else lengths
        every: list[TableRows] = [
            (rows.span, length, rows.token_ids, rows.parents) for rows, length in zip(batch, lengths, strict=True)
        ]
        columns = table.add(table_columns(every, self.decoder.axes, step.idle))
        states = None if step.states is None else table.add(state_places(batch))
        return _PlannedPass(batch, sizes, step, replay, columns, states)

    def _run_pass(
        self, planned: _PlannedPass, table: HostTable, tokens: torch.Tensor | None = None
    ) -> tuple[GraphStep, list[int]]:
        """Run the pass, which grows its sequences; return it with the number of rows of each.

        Args:
            planned: the pass.
            table: its host data, sent to the device here if it is not there.
            tokens: (R,) of all rows, if they are on the device; the rows' own are ignored then.
        """
        batch, sizes, step, replay, columns, states = planned
        slab = self.decoder.slab
        if not table.is_sent:
            moves = table.add(slab.planned_moves())
            table.send(self.device)
            slab.move_entries(table[moves])
        step.table.copy_(table[columns])
        if step.inputs is not None and step.states is not None and states is not None:
            step.inputs.gather(batch, table[states], out=step.states[: sum(sizes)])
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
        if not self._can_capture:
            return step, step
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
        return step, graph.replay


def _counts(chained: bool) -> list[int]:
    """Return the numbers of rows for which passes are captured."""
    fewest = 1 if chained else FEWEST
    return [1 << power for power in range(fewest.bit_length() - 1, ROWS.bit_length())]


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
