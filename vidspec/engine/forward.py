"""The only way to run a model's language part: rows of any number of sequences in, a result for each out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic

import torch
from torch.nn import functional as F
from typing_extensions import TypeVar

from vidspec.engine.attention import PassAttention
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.rows import PassResult, PrefillResult, Prompt, Rows
from vidspec.engine.slab import KVSpan
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError, VidspecError

if TYPE_CHECKING:
    from vidspec.engine.decoder import LanguageModel
    from vidspec.engine.graphs import ReplayedPasses

__all__ = ["CHUNK", "Engine", "Prefilling", "prefill_chunk"]

#: Rows of a prompt that are read in one pass, so that what a block computes stays small however long the prompt.
CHUNK = 8192
#: Products of a row's numbers and a weight's in such a pass on a CPU: about two seconds at 1e11 operations a second, as
#: two cores have them. With fewer than so many rows, reading the weights would take longer than computing with them.
_PRODUCTS, _FEWEST = 10**11, 32


#: The model, of which an engine uses no more than :class:`~vidspec.engine.decoder.LanguageModel` has.
M = TypeVar("M", bound="LanguageModel", default="LanguageModel", covariant=True)


def prefill_chunk(device: torch.device, numbers: int) -> int:
    """The most rows of a prompt in one pass.

    On a CPU so few that Ctrl-C and progress do not wait long for a large model. It does not depend on how long passes
    take: rows of another number are rounded otherwise, and a text would depend on the time.

    Args:
        device: of the model.
        numbers: in the weights that a row is multiplied with.
    """
    return max(_FEWEST, min(CHUNK, _PRODUCTS // max(numbers, 1))) if device.type == "cpu" else CHUNK


class Engine(Generic[M]):
    """Runs one model; stateless but for the model, whose decoder holds the slab.

    Args:
        model: an adapter; its ``vocabulary`` slices the logits to what target and draft share.

    Attributes:
        alone: whether a pass takes one sequence only.
    """

    alone: ClassVar[bool] = False

    def __init__(self, model: M) -> None:
        self.model = model

    @property
    def chunk(self) -> int:
        """The most rows of a prompt in one pass, see :func:`prefill_chunk`."""
        return prefill_chunk(self.model.device, self.model.decoder.numbers)

    def open(self, room: int, offset: int = 0) -> KVSpan:
        """A new sequence, see :meth:`~vidspec.engine.slab.Slab.open`."""
        return self.model.decoder.slab.open(room, offset)

    @torch.inference_mode()
    def run(self, batch: Sequence[Rows]) -> list[PassResult]:
        """One pass: all rows through the linear layers together, attention for each sequence over its own keys.

        Args:
            batch: the rows of each sequence, at least one; a sequence occurs at most once.

        Returns:
            the results that each would get alone, except for rounding. The sequences have grown by their rows.

        Raises:
            IndexError: a sequence has no room for its rows.
        """
        graphs = self.model.decoder.graphs
        replayed, others = graphs.split_batch(batch) if graphs is not None else ([], [])
        if graphs is not None and replayed:
            return read_back_tokens(batch, self._replayed(graphs, batch, replayed, others))
        return read_back_tokens(batch, self._eager(batch))

    def _replayed(
        self, graphs: ReplayedPasses, batch: Sequence[Rows], replayed: Sequence[Sequence[int]], others: Sequence[int]
    ) -> list[PassResult]:
        """Token rows by replayed passes, the rest of the batch, such as a stretch of a prompt, by one of its own."""
        passed: dict[int, PassResult] = {}
        lengths = [rows.span.length for rows in batch]
        try:
            for places in replayed:
                found = graphs.run([batch[at] for at in places], self.model.vocabulary)
                passed.update(zip(places, found, strict=True))
            if others:
                passed.update(zip(others, self._eager([batch[at] for at in others]), strict=True))
        except Exception as error:
            for rows, length in zip(batch, lengths, strict=True):
                rows.span.rollback(min(length, rows.span.length))
            if isinstance(error, (torch.OutOfMemoryError, IndexError, VidspecError)) or others:
                raise
            self._give_up_replaying(error)
        else:
            return [passed[at] for at in range(len(batch))]
        return self._eager(batch)

    def _give_up_replaying(self, error: Exception) -> None:
        """A kernel that cannot be built, or a pass that cannot be captured, ends no run."""
        decoder = self.model.decoder
        decoder.graphs, decoder.eager = None, f"{type(error).__name__}: {error}".splitlines()[0]

    @property
    def preparing(self) -> float:
        """Seconds in which passes were compiled and captured so far; none of them is a pass's own."""
        graphs = self.model.decoder.graphs
        return 0.0 if graphs is None else graphs.preparing

    def _eager(self, batch: Sequence[Rows]) -> list[PassResult]:
        """One pass, kernel by kernel."""
        decoder = self.model.decoder
        rows, rotation = self._embedded(batch), decoder.rotation(self._positions(batch))
        attention = PassAttention(batch, decoder.scaling, decoder.windows, decoder.cached, decoder.mutual)
        added = _deepstack(batch)
        watched: list[tuple[Taps, slice]] = []
        for part, start in zip(batch, _starts(batch), strict=True):
            if part.taps is not None:
                whole = len(part) + part.span.length if part.prompt is None else part.prompt.length
                part.taps.begin(part.span.length, whole, decoder.cached)
                watched.append((part.taps, slice(start, start + len(part))))
        tapped = {block for part in batch for block in part.tapped}
        entering: dict[int, torch.Tensor] = {}
        for index in range(decoder.depth):
            if index in tapped:
                entering[index] = rows  # no block writes into what it is given
            for taps, inner in watched:
                taps.observe_block_input(index, rows[inner])
            rows = decoder.block(index, rows, rotation, attention)
            for at, features in added.get(index, ()):
                rows = rows.index_add(0, at.to(rows.device), features.to(rows))
        for taps, inner in watched:
            taps.observe_block_input(decoder.depth, rows[inner])
            taps.end()
        passed = self._passed(batch, rows)
        return passed if not tapped else self._tapped(batch, passed, {**entering, decoder.depth: rows})

    @torch.inference_mode()
    def greedy(self, batch: Sequence[tuple[KVSpan, Sequence[int], int]]) -> list[list[int]]:
        """Read tokens of sequences and continue each greedily: one pass of all that are not done for each new token.

        Args:
            batch: sequences, each once, which grow by all tokens but the last; at least one token to read; and how
                many to add, at least one.

        Raises:
            IndexError: a sequence has no room for them.
        """
        graphs = self.model.decoder.graphs
        lengths = [span.length for span, _, _ in batch]
        first, gammas = [Rows(span, token_ids) for span, token_ids, _ in batch], [gamma for _, _, gamma in batch]
        if graphs is not None and graphs.is_replayable(first):
            try:
                return graphs.greedy(first, gammas, self.model.vocabulary)
            except Exception as error:
                for (span, _, _), length in zip(batch, lengths, strict=True):
                    span.rollback(length)
                if isinstance(error, (torch.OutOfMemoryError, IndexError, VidspecError)):
                    raise
                self._give_up_replaying(error)
        made: list[list[int]] = [[] for _ in batch]
        try:
            for step in range(max(gammas)):
                going = [i for i, gamma in enumerate(gammas) if step < gamma]
                passed = self.run([Rows(batch[i][0], made[i][-1:]) if step else first[i] for i in going])
                self.check(passed)
                for i, one in zip(going, passed, strict=True):
                    made[i].append(one.chosen[-1])
        except Exception:  # whoever tries again begins where this began
            for (span, _, _), length in zip(batch, lengths, strict=True):
                span.rollback(length)
            raise
        return made

    def check(self, passed: Sequence[PassResult]) -> None:
        """Refuse logits that are not finite.

        Raises:
            ModelError: some are NaN or infinite, from damaged weights or ones too large for the dtype.
        """
        if not all([one.finite for one in passed]):
            raise ModelError(
                f"{getattr(self.model, 'name', 'the model')}: its logits are not finite (NaN or infinite)",
                hint="damaged weights, or numbers too large for this dtype: fetch it again, or try another --dtype",
                kind="not_finite",
            )

    def start_prefill(
        self,
        prompt: Prompt,
        room: int,
        taps: Taps | None = None,
        *,
        states: bool = False,
        cached: tuple[KVSpan, int] | None = None,
    ) -> Prefilling:
        """A prompt that is to be read into a new sequence, in stretches; see :meth:`prefill`.

        Args:
            prompt, room, taps, states: as there.
            cached: a sequence that begins with as many rows of the prompt: they are copied, and not read or observed.
        """
        return Prefilling(self, prompt, room, taps, states, cached)

    def prefill(self, prompt: Prompt, room: int, taps: Taps | None = None, *, states: bool = False) -> PrefillResult:
        """Read a prompt into a new sequence, in passes of at most :attr:`chunk` rows.

        Args:
            prompt: embeddings and positions.
            room: further entries the sequence must be able to take: max_new_tokens and one window.
            taps: observers of these passes.
            states: whether to keep the last states of the N visual tokens, N x hidden numbers.
        """
        reading = self.start_prefill(prompt, room, taps, states=states)
        while (read := reading.add_result(self.run([reading.rows(self.chunk)])[0])) is None:
            pass
        return read

    def _embedded(self, batch: Sequence[Rows]) -> torch.Tensor:
        """(R, hidden)."""
        device, decoder = self.model.device, self.model.decoder
        ids = [token for rows in batch for token in rows.token_ids]
        texts = decoder.embed(torch.tensor(ids, dtype=torch.long, device=device)) if ids else None
        if texts is not None and len(texts) == sum(map(len, batch)):
            return texts
        parts, start = [], 0
        for rows in batch:
            if rows.prompt is not None:
                parts.append(rows.prompt.embeds[0, slice(*rows.stretch)])
            elif texts is not None:
                parts.append(texts[start : start + len(rows)])
                start += len(rows)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _positions(self, batch: Sequence[Rows]) -> torch.Tensor:
        """(axes, R)."""
        device, axes = self.model.device, self.model.decoder.axes
        parts: list[torch.Tensor] = []
        counted: list[int] = []  # of tokens that follow each other in the pass

        def flush() -> None:
            if counted:
                parts.append(torch.tensor(counted, device=device).expand(axes, -1))
                counted.clear()

        for rows in batch:
            if rows.prompt is None:
                counted += [place + rows.span.offset for place in rows.entry_offsets]
            else:
                flush()
                parts.append(rows.prompt.positions.reshape(axes, -1)[:, slice(*rows.stretch)])
        flush()
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _passed(self, batch: Sequence[Rows], rows: torch.Tensor) -> list[PassResult]:
        """Norm and logits of the requested rows, or the last of each sequence; the sequences grow."""
        model, decoder = self.model, self.model.decoder
        judged = [len(part) if part.prompt is None else int(part.is_prompt_end) for part in batch]
        shown = [len(part) if part.states else count for part, count in zip(batch, judged, strict=True)]
        normed = decoder.norm(_last(rows, list(map(len, batch)), shown))
        logits = decoder.logits(_last(normed, shown, judged))[:, : model.vocabulary].to(model.device)
        for part in batch:  # only now: a pass that fails leaves its sequences as they were
            part.span.length += len(part)
        return list(map(PassResult, logits.split(judged), normed.split(shown)))

    def _tapped(
        self, batch: Sequence[Rows], passed: Sequence[PassResult], entering: Mapping[int, torch.Tensor]
    ) -> list[PassResult]:
        """What the pass gave, with the rows that entered the blocks each sequence taps."""
        device, found = self.model.device, []
        for part, one, start in zip(batch, passed, _starts(batch), strict=True):
            states = [entering[block][start : start + len(part)].to(device) for block in part.tapped]
            found.append(one._replace(tapped=torch.cat(states, dim=1)) if states else one)
        return found


class Prefilling:
    """A prompt on its way into a new sequence, which is opened with its first rows.

    Args:
        engine, prompt, room, taps, states, cached: as :meth:`Engine.start_prefill` takes them.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        room: int,
        taps: Taps | None,
        states: bool,
        cached: tuple[KVSpan, int] | None = None,
    ) -> None:
        self.engine, self.prompt, self.room, self.taps, self.states = engine, prompt, room, taps, states
        self.cached = cached
        self.span: KVSpan | None = None
        self._stretch = (0, 0)
        self._kept: list[torch.Tensor] = []

    def rows(self, most: int) -> Rows:
        """The next stretch, of at most so many rows.

        Raises:
            GenerationError: there is no room for the sequence.
        """
        length = self.prompt.length
        if self.span is None:
            self.span = self._opened(length + self.room, self.prompt.next_position - length)
        start = self.span.length
        self._stretch = start, self._end(start, min(start + most, length))
        return Rows(self.span, prompt=self.prompt, stretch=self._stretch, taps=self.taps, states=self.states)

    def _end(self, start: int, end: int) -> int:
        """Where a stretch ends that cuts no run of visual tokens which see each other."""
        index = self.prompt.visual.index
        if not self.engine.model.decoder.mutual or end == self.prompt.length or not len(index):
            return end
        shown = torch.zeros(self.prompt.length + 1, dtype=torch.bool)
        shown[index.cpu()] = True
        uncut = (~(shown[:-1] & shown[1:])).nonzero()[:, 0] + 1  # ends behind which no run goes on
        fitting = uncut[(uncut > start) & (uncut <= end)]
        return int(fitting[-1] if len(fitting) else uncut[uncut > end][0])

    def _opened(self, room: int, offset: int) -> KVSpan:
        if self.cached is None:
            return self.engine.open(room, offset)
        span, rows = self.cached
        self.cached = None
        chosen = span.select(torch.arange(rows), room)
        chosen.offset = offset
        return chosen

    @torch.inference_mode()
    def add_result(self, passed: PassResult) -> PrefillResult | None:
        """What the pass over the last stretch gave; the prompt as it was read, once all of it has been."""
        if self.span is None:
            raise ValueError("nothing has been read yet")
        self.engine.check([passed])
        if self.taps is not None and self.taps.error is not None:
            raise self.taps.error
        start, end = self._stretch
        if self.states:
            index = self.prompt.visual.index.to(passed.hidden.device)
            self._kept.append(passed.hidden[index[(index >= start) & (index < end)] - start])
        if end < self.prompt.length:
            return None
        units = torch.cat(self._kept) if self.states else None
        if units is not None:  # in float32, in the dtype it came in
            units = F.normalize(units.float(), dim=-1).to(units.dtype)
        return PrefillResult(self.span, passed.logits[-1], units)


def _last(rows: torch.Tensor, sizes: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    """Of stretches of such sizes the last rows of each."""
    if list(sizes) == list(counts):
        return rows
    return torch.cat([part[size - n :] for part, size, n in zip(rows.split(sizes), sizes, counts, strict=True)])


def _starts(batch: Sequence[Rows]) -> list[int]:
    """The first row of each sequence in the pass."""
    starts, start = [], 0
    for rows in batch:
        starts.append(start)
        start += len(rows)
    return starts


def _deepstack(batch: Sequence[Rows]) -> dict[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Behind each early block the rows of the pass that features are added to, and the features."""
    added: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for rows, start in zip(batch, _starts(batch), strict=True):
        if rows.prompt is None or not rows.prompt.visual.deepstack:
            continue
        index = rows.prompt.visual.index
        inside = (index >= rows.stretch[0]) & (index < rows.stretch[1])
        for block, features in enumerate(rows.prompt.visual.deepstack):
            at = index[inside] - rows.stretch[0] + start
            added.setdefault(block, []).append((at, features[inside.to(features.device)]))
    return added
