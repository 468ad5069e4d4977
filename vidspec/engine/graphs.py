"""Replayed passes: a pass of few tokens as a fixed list of kernels, independent of lengths, captured in a CUDA graph.

All that differs between sequences is a table on the device, a column of numbers for each row; the host writes it and
reads nothing back. A pass is captured once for each number of rows; unused rows write to the slab's scratch entry.
"""

from __future__ import annotations

import importlib.util
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from vidspec.engine.device import replay_refusal, to_device
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.slab import KVSpan, Slab
from vidspec.errors import DeviceError

if TYPE_CHECKING:
    from vidspec.engine.fused import FusedDecoder

__all__ = [
    "FEWEST",
    "MOST",
    "ROWS",
    "GraphStep",
    "ReplayedAttention",
    "ReplayedPasses",
    "eager_reason",
    "eager_reason_by_shape",
    "make_graphs",
]

#: Most rows of one sequence in a pass: the entries that only some of its rows see are the bits of one number.
MOST = 64
#: Most rows of a pass.
ROWS = 256
#: Lowest compute capability for captured passes; older GPUs lack bfloat16, and room for the kernels' tiles.
CAPABILITY = (8, 0)
#: Fewest rows of an unchained pass: a token and a window of up to 7 run the same kernels, so they round alike.
FEWEST = 8
#: Signature of an attention kernel, see :func:`~vidspec.engine.kernel.split_attention`.
ReplayedAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def make_graphs(decoder: FusedDecoder) -> ReplayedPasses | None:
    """Return the replayed passes of a decoder; None if there are none, see :func:`eager_reason`."""
    on_gpu = decoder.embedding.device.type == "cuda"
    return ReplayedPasses(decoder) if on_gpu and eager_reason(decoder) is None else None


def eager_reason(decoder: FusedDecoder) -> str | None:
    """Return why a GPU would run passes of a decoder kernel by kernel; None if they can be replayed."""
    if (reason := eager_reason_by_shape(decoder.windows, decoder.width)) is not None:
        return reason
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    capability = torch.cuda.get_device_capability(decoder.embedding.device)
    if capability < CAPABILITY:
        return f"the GPU has compute capability {capability[0]}.{capability[1]}, below {CAPABILITY[0]}.{CAPABILITY[1]}"
    return replay_refusal(decoder.embedding.device)


def eager_reason_by_shape(windows: Sequence[int | None] | None, width: int) -> str | None:
    """Return the reasons that hold on any GPU, from a fused decoder's sliding windows and head width."""
    if windows is not None and min(size for size in windows if size is not None) < MOST:
        return f"its blocks have sliding windows of fewer than {MOST} tokens"
    return None if width in (16, 32, 64, 128, 256) else f"its heads have {width} numbers"


class GraphStep:
    """One pass of ``count`` rows over static tensors.

    Args:
        decoder: decoder whose blocks run.
        count: number of rows.
        vocabulary: number of logits to keep.
        attend: attention of a layer.
        tapped: blocks whose inputs are kept; the number of blocks stands for the input of the final norm.
        chained: True if each row's token is the input of the next pass.

    Attributes:
        idle: table of a pass without rows, on the host.
        table: (9 + axes, count) int64, for each row: token id; rotary positions; entries of its sequence before it on
            its path; slot in the slab; entries that all rows of its sequence see; entries of the sequence; its first
            entry in the slab; its first row in the pass; the later entries that this row sees, as bits; entries of its
            sequence in its first replayed pass. The fields that a next token advances come first.
        logits, hidden: (count, vocabulary) and (count, hidden) of the last pass.
        entering: (count, hidden) input of each ``tapped`` block in the last pass, by block.
        tokens: (count,) argmax of each row.
        moves: (count,) for a chained pass: 1 for rows that advance by a token, 0 for idle ones.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    tokens: torch.Tensor

    def __init__(
        self,
        decoder: FusedDecoder,
        count: int,
        vocabulary: int,
        attend: ReplayedAttention,
        tapped: Collection[int] = (),
        *,
        chained: bool = False,
    ) -> None:
        self.chained, self.tapped, self.entering = chained, tapped, dict[int, torch.Tensor]()
        self.decoder, self.count, self.vocabulary, self._attend = decoder, count, vocabulary, attend
        self._slot = 2 + decoder.axes
        self._fields_by_window: dict[
            int | None, torch.Tensor
        ] = {}  # the fields of the table that attention takes, by sliding window
        self.idle = _idle_table(decoder.slab, decoder.axes, count)
        self.table = self.idle.to(decoder.embedding.device, copy=True)
        self.moves = torch.zeros(count, dtype=torch.long, device=decoder.embedding.device)
        self._row_index = torch.arange(count, device=decoder.embedding.device)
        layers = decoder.slab.layers(0, decoder.slab.capacity + 1)
        self._layers = [(layer, layer[0], layer[1]) for layer in layers]

    def set_idle(self) -> None:
        """Make all rows idle."""
        self.table.copy_(self.idle)
        self.moves.zero_()

    def __call__(self) -> None:
        """Run the pass; a chained one then advances its rows."""
        decoder, table = self.decoder, self.table
        rows, rotation = decoder.embed(table[0]), decoder.rotation(table[1 : self._slot - 1])
        self._fields_by_window = {size: self._attention_fields(size) for size in set(decoder.windows or (None,))}
        for index in range(decoder.depth):
            if index in self.tapped:
                self.entering[index] = rows  # keeps its memory from the later blocks
            rows = decoder.block(index, rows, rotation, self._attention)
        if decoder.depth in self.tapped:
            self.entering[decoder.depth] = rows
        self.hidden = decoder.norm(rows)
        self.logits = decoder.logits(self.hidden)[:, : self.vocabulary]
        self.tokens = self.logits.argmax(-1)
        if self.chained:
            table[0].copy_(self.tokens)
            table[1 : self._slot + 3].add_(self.moves)

    def _attention(self, layer: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        both, keys, values = self._layers[layer]
        both.index_copy_(2, self.table[self._slot], entries.permute(1, 2, 0, 3))
        windows = self.decoder.windows
        seen = self._fields_by_window[None if windows is None else windows[layer]]
        return self._attend(query, keys, values, seen, self.decoder.scaling)

    def _attention_fields(self, size: int | None) -> torch.Tensor:
        """Return (6, count) the fields of the table that attention takes.

        In a sliding window each row counts as a sequence of its own that begins with the first entry the row sees. All
        nodes of a tree are within the window of each other.
        """
        seen = self.table[self._slot + 1 :]
        if size is None:
            return seen
        out = (self.table[self._slot - 1] - (size - 1)).clamp_(min=0)
        common, length, start, _, sees, split = seen
        return torch.stack([common - out, length - out, start + out, self._row_index, sees, split.clamp(max=size)])


class ReplayedPasses:
    """Passes of one decoder, captured if its device can.

    Args:
        decoder: decoder of token rows.
        attend: attention of a layer; the Triton kernels if None.
        capture: True to capture passes; else they run kernel by kernel.

    Attributes:
        preparing: seconds spent on compiling and capturing passes.
    """

    def __init__(self, decoder: FusedDecoder, attend: ReplayedAttention | None = None, *, capture: bool = True) -> None:
        self.decoder: FusedDecoder = weakref.proxy(decoder)  # the decoder owns these passes
        self._attend = attend
        self.preparing = 0.0
        self.device = decoder.embedding.device
        self._can_capture = capture and self.device.type == "cuda"
        self._steps: dict[tuple[int, bool], tuple[GraphStep, Callable[[], None]]] = {}
        self._tapped: frozenset[int] = frozenset()  # all blocks that were tapped so far
        #: Slab version, vocabulary and tapped blocks that the steps were made for.
        self._steps_key: tuple[int, int, frozenset[int]] | None = None
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    @property
    def captured(self) -> Collection[int]:
        """Numbers of rows with a captured pass."""
        return {count for count, _ in self._steps}

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
        self._steps_key = self._pool = None  # a pool ends with its last graph

    def run(self, batch: Sequence[Rows], vocabulary: int) -> list[PassResult]:
        """Run a batch for which :meth:`is_replayable` is true, as ``Engine.run``."""
        with self._on_device():
            step, sizes = self._run_pass(batch, vocabulary)
            # The next pass writes to the same tensors.
            logits, hidden = step.logits[: sum(sizes)].clone(), step.hidden[: sum(sizes)].clone()
            states = {
                tapped: torch.cat([step.entering[block][: sum(sizes)] for block in tapped], 1).split(sizes)
                for tapped in {rows.tapped for rows in batch if rows.tapped}
            }
        entered = [states[rows.tapped][at] if rows.tapped else None for at, rows in enumerate(batch)]
        return list(map(PassResult, logits.split(sizes), hidden.split(sizes), entered))

    def greedy(self, batch: Sequence[Rows], gammas: Sequence[int], vocabulary: int) -> list[list[int]]:
        """Continue sequences as ``Engine.greedy``: one pass per new token; the host waits for the last only.

        Args:
            batch: the first rows of each sequence; :meth:`is_replayable` must be true.
            gammas: number of tokens to add to each.
            vocabulary: number of logits to keep.
        """
        for rows, gamma in zip(batch, gammas, strict=True):
            if rows.span.length + len(rows.token_ids) + gamma - 1 > rows.span.room:
                rows.span.check_room(len(rows.token_ids) + gamma - 1)
        with self._on_device():
            new_tokens = torch.zeros(max(gammas), len(batch), dtype=torch.long, device=self.device)
            first_step, sizes = self._run_pass(batch, vocabulary)
            ends = to_device(torch.tensor(list(accumulate(sizes))) - 1, self.device)
            new_tokens[0].copy_(first_step.tokens[ends])
            done = 1
            while unfinished := [at for at, gamma in enumerate(gammas) if gamma > done]:
                until = min([gammas[at] for at in unfinished])
                step, replay = self.step(_padded_rows(len(unfinished)), vocabulary, chained=True)
                places = to_device(torch.tensor(unfinished), self.device)
                self._write_table(step, [Rows(batch[at].span, (0,)) for at in unfinished])
                step.table[0, : len(unfinished)].copy_(new_tokens[done - 1, places])
                step.moves.copy_(torch.arange(step.count) < len(unfinished))
                for index in range(done, until):
                    replay()
                    new_tokens[index].index_copy_(0, places, step.tokens[: len(unfinished)])
                for at in unfinished:
                    batch[at].span.length += until - done
                done = until
            tokens = new_tokens.t().tolist()
        return [row[:gamma] for row, gamma in zip(tokens, gammas, strict=True)]

    def _on_device(self) -> torch.cuda.device | nullcontext[None]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _run_pass(self, batch: Sequence[Rows], vocabulary: int) -> tuple[GraphStep, list[int]]:
        """Run the pass, which grows its sequences; return it with the number of rows of each."""
        sizes = [len(rows.token_ids) for rows in batch]
        self._tapped |= {block for rows in batch for block in rows.tapped}
        step, replay = self.step(max(FEWEST, _padded_rows(sum(sizes))), vocabulary)
        self._write_table(step, batch)
        replay()
        for rows, size in zip(batch, sizes, strict=True):
            rows.span.length += size
        return step, sizes

    def _write_table(self, step: GraphStep, batch: Sequence[Rows]) -> None:
        """Write the table of a pass, from memory that the host does not write to again."""
        tokens, positions, places = list[int](), list[int](), list[int]()
        slots, sees = list[int](), list[int]()
        shared: list[list[int]] = [[], [], [], [], []]  # numbers shared by all rows of a sequence
        for rows in batch:
            span, count, first = rows.span, len(rows.token_ids), len(tokens)
            length, end, offset = span.length, span.length + count, span.offset
            if end > span.room:
                span.check_room(count)
            span.split = span.split or length + 1
            tokens += rows.token_ids
            slots += range(span.start + length, span.start + end)
            if rows.parents is None:
                common, bits = length, _CAUSAL[:count]
                places += range(length, end)
                positions += range(length + offset, end + offset)
            else:
                common, bits = end - len(rows.parents), _visible_bits(rows.parents)[-count:]
                places += rows.entry_offsets
                positions += [place + offset for place in rows.entry_offsets]
            sees += bits
            for column, number in zip(shared, (common, end, span.start, first, span.split), strict=True):
                column += [number] * count
        columns = [tokens, *[positions] * self.decoder.axes, places, slots, *shared[:4], sees, shared[4]]
        table = torch.cat([torch.tensor(columns), step.idle[:, len(tokens) :]], 1)
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
            fewest = 1 if chained else FEWEST
            counts += [1 << power for power in range(fewest.bit_length() - 1, ROWS.bit_length())]
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


def _visible_bits(parents: Sequence[int]) -> list[int]:
    """Return the nodes that each node sees, its ancestors and itself, as bits of a signed number."""
    seen: list[int] = []
    for node, parent in enumerate(parents):
        seen.append((seen[parent] if parent >= 0 else 0) | 1 << node)
    return [bits - (1 << MOST) if bits >> (MOST - 1) else bits for bits in seen]


#: Bits of a chain, whose nodes see all before them.
_CAUSAL = _visible_bits(range(-1, MOST - 1))


def _idle_table(slab: Slab, axes: int, count: int) -> torch.Tensor:
    """Return :attr:`GraphStep.table` of rows that attend only to themselves, in the slab's scratch entry."""
    columns = [[0, *[0] * axes, 0, slab.capacity, 0, 1, slab.capacity, place, 1, 1] for place in range(count)]
    return torch.tensor(columns).t().contiguous()
