"""The engine: runs a model's language part over rows of any number of sequences, one result for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, cast

import torch
from typing_extensions import TypeVar

from vidspec.engine.attention import PassAttention, last_rows
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.device import to_device
from vidspec.engine.graphs.drafts import replay_chains, replay_trees
from vidspec.engine.head_states import append_context, state_places
from vidspec.engine.prefilling import Prefilling
from vidspec.engine.rows import ChainRule, ContextRows, HeadState, PassResult, PrefillResult, Prompt, Rows
from vidspec.engine.slab import KVSpan
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError, VidspecError

if TYPE_CHECKING:
    from vidspec.engine.decoder import Decoder, LanguageModel
    from vidspec.engine.graphs.passes import ReplayedPasses
    from vidspec.engine.head_states import ContextDecoder
    from vidspec.engine.requests import StaticTree

#: Most rows of a prompt in one pass, so that a block's activations stay small however long the prompt.
CHUNK = 8192
#: Multiply-adds of such a pass on a CPU: about two seconds at 1e11 operations a second, the speed of two cores; and the
#: fewest rows: with fewer, reading the weights would take longer than computing with them.
_PRODUCTS, _FEWEST = 10**11, 32


#: The model; an engine uses only its :class:`~vidspec.engine.decoder.LanguageModel` interface.
T = TypeVar("T")
M = TypeVar("M", bound="LanguageModel", default="LanguageModel", covariant=True)


def prefill_chunk(device: torch.device, numbers: int) -> int:
    """Return the most rows of a prompt in one pass of a model that multiplies each with ``numbers`` weights.

    Small on a CPU, so that Ctrl-C and progress do not wait long for a large model. It does not depend on measured time:
    rounding depends on the number of rows, and a text would depend on the time.
    """
    return max(_FEWEST, min(CHUNK, _PRODUCTS // max(numbers, 1))) if device.type == "cpu" else CHUNK


class Engine(Generic[M]):
    """Runs one model; stateless but for the model, whose decoder holds the slab.

    Args:
        model: an adapter; its ``vocabulary`` slices the logits to the part target and draft share.

    Attributes:
        preparing: seconds so far of compiling and capturing passes; not part of any pass's time.
    """

    def __init__(self, model: M) -> None:
        self.model, self.preparing = model, 0.0

    @property
    def chunk(self) -> int:
        """Most rows of a prompt in one pass, see :func:`prefill_chunk`."""
        return prefill_chunk(self.model.device, self.model.decoder.numbers)

    def open(self, room: int, offset: float = 0) -> KVSpan:
        """Open a new sequence, see :meth:`~vidspec.engine.slab.Slab.open`."""
        return self.model.decoder.slab.open(room, offset)

    @torch.inference_mode()
    def run(self, batch: Sequence[Rows]) -> list[PassResult]:
        """Run one pass: linear layers over all rows together, attention per sequence over its own keys.

        Args:
            batch: the rows of each sequence, at least one; a sequence occurs at most once.

        Returns:
            The results that each sequence would get by itself, except for rounding. The sequences grow by their rows.

        Raises:
            IndexError: a sequence has no room for its rows.
        """
        if self.model.decoder.reads_context and any([rows.context is not None for rows in batch]):
            return self._run_after_context(batch)
        graphs, inputs = self.model.decoder.graphs, self.model.decoder.state_inputs
        ids = None if inputs is None else inputs.ids
        replayed, others = graphs.split_batch(batch) if graphs is not None else ([], [])
        if graphs is not None and replayed:
            prepared = graphs.preparing
            results = self._run_replayed(graphs, batch, replayed, others)
            self.preparing += graphs.preparing - prepared
            if results is not None:
                return results if len(replayed) == 1 and not others else read_back_tokens(batch, results, ids)
        return read_back_tokens(batch, self._run_eager(batch), ids)

    def _run_after_context(self, batch: Sequence[Rows]) -> list[PassResult]:
        """Append the context of all sequences, then run the pass over their tokens; a failed one changes none."""
        lengths = [rows.span.length for rows in batch]
        try:
            append_context(cast("ContextDecoder", self.model.decoder), batch)
            return self.run([replace(rows, context=None) for rows in batch])
        except Exception:
            for rows, length in zip(batch, lengths, strict=True):
                rows.span.rollback(min(length, rows.span.length))
            raise

    def read_context(self, span: KVSpan, context: ContextRows) -> KVSpan:
        """Append context to one sequence, as the rows of a pass do."""
        with torch.inference_mode():
            append_context(cast("ContextDecoder", self.model.decoder), [Rows(span, context=context)])
        return span

    def _run_replayed(
        self, graphs: ReplayedPasses, batch: Sequence[Rows], replayed: Sequence[Sequence[int]], others: Sequence[int]
    ) -> list[PassResult] | None:
        """Replay passes of token rows; run the rest of the batch, such as a prompt stretch, in an eager pass.

        The tokens of a single pass are chosen. None, with the sequences unchanged, if the passes cannot be replayed.
        """
        passed: dict[int, PassResult] = {}
        lengths = [rows.span.length for rows in batch]
        try:
            choose = len(replayed) == 1 and not others
            for places in replayed:
                results = graphs.run([batch[at] for at in places], self.model.vocabulary, choose=choose)
                passed.update(zip(places, results, strict=True))
            if others:
                passed.update(zip(others, self._run_eager([batch[at] for at in others]), strict=True))
        except Exception as error:
            for rows, length in zip(batch, lengths, strict=True):
                rows.span.rollback(min(length, rows.span.length))
            if isinstance(error, (torch.OutOfMemoryError, IndexError, VidspecError)) or others:
                raise
            self._give_up_replaying(error)
            return None
        return [passed[at] for at in range(len(batch))]

    def _give_up_replaying(self, error: Exception) -> None:
        """Fall back to eager passes if a kernel cannot be built or a pass cannot be captured."""
        decoder = self.model.decoder
        decoder.graphs, decoder.eager = None, f"{type(error).__name__}: {error}".splitlines()[0]

    def _run_eager(self, batch: Sequence[Rows]) -> list[PassResult]:
        """Run one pass, kernel by kernel."""
        decoder = self.model.decoder
        rows, rotation = self._embed_rows(batch), decoder.rotation(self._row_positions(batch))
        sizes = [len(part) for part in batch]
        needed = _needed_counts(decoder, batch, sizes)
        last = decoder.depth - 1, needed
        attention = PassAttention(
            batch, decoder.scaling, decoder.windows, decoder.cached, decoder.mutual, decoder.both_ways, last
        )
        inside, after = _stretches(sizes), _stretches(needed)
        added = _deepstack_features(batch, inside)
        watched = list[tuple[Taps, slice, slice]]()
        for part, own, left in zip(batch, inside, after, strict=True):
            if part.taps is not None:
                length = len(part) + part.span.length if part.prompt is None else part.prompt.length
                part.taps.begin(part.span.length, length, decoder.cached)
                watched.append((part.taps, own, left))
        tapped = {block for part in batch for block in part.tapped}
        entering: dict[int, torch.Tensor] = {}
        for index in range(decoder.depth):
            if index in tapped:
                entering[index] = rows  # no block writes to its input
            for taps, inner, _ in watched:
                taps.observe_block_input(index, rows[inner])
            rows = decoder.block(index, rows, rotation, attention)
            for at, features in added.get(index, ()):
                rows = rows.index_add(0, at.to(rows.device), features.to(rows))
        for taps, _, inner in watched:
            taps.observe_block_input(decoder.depth, rows[inner])
            taps.end()
        passed = self._results(batch, rows, needed)
        if tapped:
            self._add_tapped(batch, passed, {**entering, decoder.depth: rows}, inside, after)
        return passed

    @torch.inference_mode()
    def greedy(
        self, batch: Sequence[tuple[KVSpan, Sequence[int], int]], states: Sequence[Sequence[HeadState]] | None = None
    ) -> list[list[int]]:
        """Read tokens of sequences and continue each greedily, one pass of the unfinished ones per new token.

        Args:
            batch: sequences, each once; tokens to read, at least one; and the number to add, at least one. The
                sequences grow by all tokens but the last.
            states: for a head, the states that it reads with the tokens of each sequence; its own follow.

        Raises:
            IndexError: a sequence has no room for them.
        """
        first, gammas = _chain_rows(self.model, batch, states), [gamma for *_, gamma in batch]
        if (drafted := self._replay_chains(first, gammas)) is not None:
            return [tokens for tokens, _ in drafted]
        lengths = [span.length for span, _, _ in batch]
        tokens: list[list[int]] = [[] for _ in batch]
        try:
            for step in range(max(gammas)):
                unfinished = [i for i, gamma in enumerate(gammas) if step < gamma]
                passed = self.run([first[i] for i in unfinished])
                self.check(passed)
                for i, result in zip(unfinished, passed, strict=True):
                    tokens[i].append(result.chosen[-1])
                    states_after = result.own_states[-1:]
                    first[i] = Rows(batch[i][0], tokens[i][-1:], tapped=first[i].tapped, head_states=states_after)
        except Exception:  # so that a retry begins at the same state
            for (span, _, _), length in zip(batch, lengths, strict=True):
                span.rollback(length)
            raise
        return tokens

    @torch.inference_mode()
    def chain(
        self,
        batch: Sequence[tuple[KVSpan, Sequence[int], int]],
        rules: Sequence[ChainRule],
        states: Sequence[Sequence[HeadState]] | None = None,
    ) -> list[tuple[list[int], torch.Tensor | None]] | None:
        """Continue sequences as :meth:`greedy`, by penalties or by drawing, without a wait between passes.

        Returns:
            The tokens of each and the distributions (gamma, V) they were drawn from, None if they were not drawn. None
            if the host has to see each pass; the sequences are unchanged then.
        """
        return self._replay_chains(_chain_rows(self.model, batch, states), [gamma for *_, gamma in batch], rules)

    @torch.inference_mode()
    def trees(self, trees: Sequence[StaticTree]) -> list[list[int]] | None:
        """Return the tokens of all nodes of trees, without a wait between passes.

        None, with the sequences unchanged, if the host has to see each pass.
        """
        graphs = self.model.decoder.graphs
        if graphs is None or any(tree.done or tree.history is not None for tree in trees):
            return None
        for level in range(max(len(tree.levels) for tree in trees)):
            if not graphs.is_replayable([tree.level_rows(level) for tree in trees if level < len(tree.levels)]):
                return None
        return self._replay(
            graphs, [tree.span for tree in trees], partial(replay_trees, graphs, trees, self.model.vocabulary)
        )

    def _replay_chains(
        self, first: Sequence[Rows], gammas: Sequence[int], rules: Sequence[ChainRule] | None = None
    ) -> list[tuple[list[int], torch.Tensor | None]] | None:
        """Return the tokens of chains by replayed passes; None, with the sequences unchanged, if there are none."""
        graphs = self.model.decoder.graphs
        if graphs is None or not graphs.is_replayable(first):
            return None
        replay = partial(replay_chains, graphs, first, gammas, self.model.vocabulary, rules)
        return self._replay(graphs, [rows.span for rows in first], replay)

    def _replay(
        self, graphs: ReplayedPasses, spans: Sequence[KVSpan], replay: Callable[[], list[T] | None]
    ) -> list[T] | None:
        """Return the result of replayed passes; None, with the sequences unchanged, if there is none."""
        lengths, prepared = [span.length for span in spans], graphs.preparing
        drafted = None
        try:
            drafted = replay()
            self.preparing += graphs.preparing - prepared
        except Exception as error:
            if isinstance(error, (torch.OutOfMemoryError, IndexError, VidspecError)):
                raise
            self._give_up_replaying(error)
        finally:
            if drafted is None:
                for span, length in zip(spans, lengths, strict=True):
                    span.rollback(min(length, span.length))
        return drafted

    def check(self, passed: Sequence[PassResult]) -> None:
        """Reject logits that are not finite.

        Raises:
            ModelError: some are NaN or infinite, from damaged weights or from numbers too large for the dtype.
        """
        if not all([result.finite for result in passed]):
            raise ModelError(
                f"{self.model.name}: its logits are not finite (NaN or infinite)",
                hint="weights are damaged, or too large for this dtype: fetch them again, or try another --dtype",
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
        """Start the prefill of a prompt into a new sequence, in stretches; see :meth:`prefill`.

        Args:
            prompt, room, taps, states: see :meth:`prefill`.
            cached: a sequence and the number of its first rows that equal the prompt's: they are copied, and neither
                read nor observed.
        """
        return Prefilling(self, prompt, room, taps, states, cached)

    def prefill(self, prompt: Prompt, room: int, taps: Taps | None = None, *, states: bool = False) -> PrefillResult:
        """Read a prompt into a new sequence, in passes of at most :attr:`chunk` rows.

        Args:
            prompt: embeddings and positions.
            room: further entries that the sequence must hold: max_new_tokens and one window.
            taps: observers of these passes.
            states: True to keep the last states of the N visual tokens, N x hidden numbers.
        """
        reading = self.start_prefill(prompt, room, taps, states=states)
        while (read := reading.add_result(self.run([reading.rows(self.chunk)])[0])) is None:
            pass
        return read

    def _embed_rows(self, batch: Sequence[Rows]) -> torch.Tensor:
        """Return the input embeddings (R, hidden)."""
        device, decoder = self.model.device, self.model.decoder
        ids = [token for rows in batch for token in rows.token_ids]
        texts = decoder.embed(to_device(torch.tensor(ids), device)) if ids else None
        if texts is not None and decoder.state_inputs is not None:
            index = to_device(torch.tensor(state_places(batch)), device)
            texts = torch.cat([texts, decoder.state_inputs.gather(batch, index)], dim=1)
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

    def _row_positions(self, batch: Sequence[Rows]) -> torch.Tensor:
        """Return rotary positions (axes, R)."""
        device, axes = self.model.device, self.model.decoder.axes
        parts: list[torch.Tensor] = []
        counted: list[float] = []  # of token rows that are adjacent in the pass

        def flush() -> None:
            if counted:
                parts.append(to_device(torch.tensor(counted), device).expand(axes, -1))
                counted.clear()

        for rows in batch:
            if rows.prompt is None:
                counted += [place + rows.span.offset for place in rows.entry_offsets]
            else:
                flush()
                parts.append(rows.prompt.positions.reshape(axes, -1)[:, slice(*rows.stretch)])
        flush()
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _results(self, batch: Sequence[Rows], rows: torch.Tensor, needed: Sequence[int]) -> list[PassResult]:
        """Return norm and logits of the requested rows, or of the last row of each sequence; the sequences grow.

        Args:
            batch: the rows of each sequence.
            rows: output of the last block.
            needed: rows of each sequence in it.
        """
        model, decoder = self.model, self.model.decoder
        logit_counts = [len(part) if part.prompt is None else int(part.is_prompt_end) for part in batch]
        hidden_counts = [len(part) if part.states else count for part, count in zip(batch, logit_counts, strict=True)]
        normed = decoder.norm(last_rows(rows, needed, hidden_counts))
        logits = decoder.logits(last_rows(normed, hidden_counts, logit_counts))[:, : model.vocabulary].to(model.device)
        for part in batch:  # only now: a failed pass leaves its sequences unchanged
            part.span.length += len(part)
        return list(map(PassResult, logits.split(logit_counts), normed.split(hidden_counts)))

    def _add_tapped(
        self,
        batch: Sequence[Rows],
        passed: Sequence[PassResult],
        entering: Mapping[int, torch.Tensor],
        inside: Sequence[slice],
        after: Sequence[slice],
    ) -> None:
        """Add the inputs of the blocks that each sequence taps to the results.

        Args:
            batch, passed: the rows of each sequence, and their results.
            entering: rows that enter each tapped block, and after the last one.
            inside, after: rows of each sequence in the blocks, and after the last one.
        """
        device, depth = self.model.device, self.model.decoder.depth
        for part, result, own, left in zip(batch, passed, inside, after, strict=True):
            states = [entering[block][left if block == depth else own].to(device) for block in part.tapped]
            if states:
                result.tapped = torch.cat(states, dim=1)


def _chain_rows(
    model: LanguageModel,
    batch: Sequence[tuple[KVSpan, Sequence[int], int]],
    states: Sequence[Sequence[HeadState]] | None,
) -> list[Rows]:
    """Return the rows of the first pass of chains."""
    if states is None:
        return [Rows(span, token_ids) for span, token_ids, _ in batch]
    tapped = (model.decoder.depth,)
    return [
        Rows(span, token_ids, tapped=tapped, head_states=given)
        for (span, token_ids, _), given in zip(batch, states, strict=True)
    ]


def _stretches(counts: Sequence[int]) -> list[slice]:
    """Return the consecutive stretches of ``counts`` rows."""
    return [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]


def _needed_counts(decoder: Decoder, batch: Sequence[Rows], sizes: Sequence[int]) -> Sequence[int]:
    """Return the number of last rows of each sequence that are needed after the last block, of ``sizes`` rows.

    Of a prompt only the last row has logits, and none before its last stretch; of the others keys and values suffice.
    """
    depth, counts = decoder.depth, list(sizes)
    prompts = [(at, part, part.prompt) for at, part in enumerate(batch) if part.prompt is not None]
    if not decoder.skips_rows or any([len(prompt.visual.deepstack) >= depth for *_, prompt in prompts]):
        return counts
    for at, part, _ in prompts:
        if not (part.states or depth in part.tapped or (part.taps is not None and depth in part.taps.hidden)):
            counts[at] = int(part.is_prompt_end)
    return counts


def _deepstack_features(
    batch: Sequence[Rows], inside: Sequence[slice]
) -> dict[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return, for each early block, the rows of the pass that features are added to after it, and the features."""
    added: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for rows, own in zip(batch, inside, strict=True):
        if rows.prompt is None or not rows.prompt.visual.deepstack:
            continue
        index = rows.prompt.visual.index
        read = (index >= rows.stretch[0]) & (index < rows.stretch[1])
        for block, features in enumerate(rows.prompt.visual.deepstack):
            at = index[read] - rows.stretch[0] + own.start
            added.setdefault(block, []).append((at, features[read.to(features.device)]))
    return added
