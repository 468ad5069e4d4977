"""A pruned target: its engine, which drops rows between blocks during the prefill, its KV spans, and plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn, overload

import torch
from torch.nn import functional as F

from vidspec.baselines.base import BlockSignals, KeptTokens, PruningRule, last_row_attention, share_of
from vidspec.decoding.prefill import TargetPrompt, open_target
from vidspec.decoding.schedules.autoregressive import plain_round
from vidspec.decoding.sequence import Sequence as ClipSequence
from vidspec.decoding.target import Target
from vidspec.drafting.base import NO_DRAFT
from vidspec.engine.attention import PassAttention
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.forward import Engine
from vidspec.engine.gemma4 import Gemma4Decoder
from vidspec.engine.requests import Encode, Steps
from vidspec.engine.rows import PassResult, PrefillResult, Rows
from vidspec.engine.slab import KVSpan, LayerTensors, Slab
from vidspec.engine.taps import Taps
from vidspec.errors import ProfileError, option
from vidspec.events.events import InputsReleased
from vidspec.events.record import LossyRecord
from vidspec.models.base import EmbeddedPrompt, VisualTokens
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.pruning.base import best


class PrunedSpan(KVSpan):
    """The span of a prompt that was pruned between blocks, or of which later blocks read selected entries.

    ``length`` is that of the first layer.

    Args:
        slab: of the model.
        room: of the first layer.
        offset: see :class:`KVSpan`.
        whole: number of first layers that always read everything.

    Attributes:
        missing: by layer, rows of the prompt it has not read.
        kept: by layer, visual tokens of the prompt it reads while decoding.
        watch: observes each decoding step; None if nothing is selected while decoding.
        chosen: (K,) entries of the prompt that the layers from ``whole`` on read; None for all.
    """

    def __init__(self, slab: Slab, room: int, offset: float = 0, whole: int = 0) -> None:
        super().__init__(slab, room, offset)
        self.missing = [0] * len(slab)
        self.whole = whole
        self.kept: tuple[int, ...] = ()
        self.watch: Taps | None = None
        self.chosen: torch.Tensor | None = None
        self._prompt = 0
        self._packed: dict[int, tuple[torch.Tensor, int]] = {}  # by layer: copied entries and their number

    @property
    def lengths(self) -> tuple[int, ...]:
        """Entries in use in each layer."""
        return tuple(self.length - missing for missing in self.missing)

    def choose(self, rows: torch.Tensor, prompt: int) -> None:
        """Make the layers from ``whole`` on read only these entries of the prompt, and all after it.

        Args:
            rows: (K,) sorted.
            prompt: entries of the prompt.
        """
        self.chosen, self._prompt = rows, prompt
        self._packed.clear()

    def entries_to_write(self, rows: int) -> list[torch.Tensor]:
        self.check_room(rows)
        whole = self.slab.layers(self.start, self.start + self.length + rows)
        ends = [self.length + rows - missing for missing in self.missing]
        return [layer[:, :, end - rows : end] for layer, end in zip(whole, ends, strict=True)]

    def entries_to_read(self, rows: int) -> tuple[LayerTensors, LayerTensors]:
        return _Half(self, rows, 0), _Half(self, rows, 1)

    def read(self, layer: int, rows: int) -> torch.Tensor:
        """Return the entries a layer reads once the next ``rows`` are written: (2, kv_heads, length, d)."""
        end = self.length + rows - self.missing[layer]
        everything = self.slab.layers(self.start, self.start + end)[layer]
        if self.chosen is None or layer < self.whole:
            return everything
        kept = self.chosen.to(everything.device)
        wanted = len(kept) + end - self._prompt
        packed, done = self._packed.get(layer, (None, 0))
        if packed is None:
            packed = everything.new_empty(
                *everything.shape[:2], len(kept) + self.room - self._prompt, everything.shape[-1]
            )
            packed[:, :, : len(kept)] = everything[:, :, kept]
            done = len(kept)
        start = min(done, wanted - rows)  # copy rolled-back entries again
        packed[:, :, start:wanted] = everything[:, :, end - (wanted - start) : end]
        self._packed[layer] = packed, wanted
        return packed[:, :, :wanted]

    def rollback(self, length: int) -> None:
        """Drop the first layer's entries from ``length`` on, and as many of the last ones in every layer.

        Raises:
            ValueError: a layer has fewer entries.
        """
        forgotten = self.length - length
        if not 0 <= forgotten <= min(self.lengths):
            raise ValueError(f"cannot roll back a sequence of {self.length} entries to {length}")
        self.length = length

    def gather(self, start: int, kept: Sequence[int]) -> NoReturn:
        """Not supported: plain decoding has no paths to keep."""
        raise NotImplementedError("a pruned sequence holds no tree")

    def select(self, rows: torch.Tensor | Sequence[torch.Tensor], room: int) -> NoReturn:
        """Not supported: no drafter reads from this sequence."""
        raise NotImplementedError("layers of a pruned sequence have different entries")


class _Half(Sequence[torch.Tensor]):
    """Keys or values by layer, looked up when the layer is reached, because entries may be chosen until then."""

    def __init__(self, span: PrunedSpan, rows: int, half: int) -> None:
        self._span, self._rows, self._half = span, rows, half

    def __len__(self) -> int:
        return len(self._span.slab)

    @overload
    def __getitem__(self, layer: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, layer: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, layer: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(layer, slice):
            return [self[index] for index in range(*layer.indices(len(self)))]
        return self._span.read(layer, self._rows)[self._half][None]


class _BlockAttention(Taps):
    """Stores the query and key of one block's attention."""

    def __init__(self, block: int) -> None:
        super().__init__(rows=torch.empty(0), visual=torch.empty(0))
        self.block = block
        self.seen: tuple[torch.Tensor, torch.Tensor, float] | None = None

    def observe_attention(self, block: int, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        if block == self.block:
            self.seen = query.transpose(0, 1)[None], key, scaling


class Reselect(Taps):
    """Observes one block at each decoding step and chooses the entries that later blocks read (DyCoke)."""

    def __init__(self, similarity: float, share: float, visual: VisualTokens, span: PrunedSpan, prompt: int) -> None:
        super().__init__(rows=torch.empty(0), visual=visual.index)
        self.similarity, self.share = similarity, share
        self.tokens, self.span, self.prompt = visual, span, prompt
        self.last: torch.Tensor | None = None

    def observe_attention(self, block: int, query: torch.Tensor, key: torch.Tensor, scaling: float) -> None:
        if block != self.span.whole - 1:
            return
        scores = last_row_attention(query.transpose(0, 1)[None], key, self.visual, scaling)
        if self.last is not None:
            alike = float(F.cosine_similarity(scores, self.last.to(scores.device), dim=0))
            if alike >= self.similarity:
                return
        self.last = scores
        kept = best(scores, self.tokens, share_of(len(scores), self.share)).to(self.visual.device)
        stays = torch.ones(self.prompt, dtype=torch.bool, device=self.visual.device)
        stays[self.visual] = False
        stays[self.visual[kept]] = True
        self.span.choose(stays.nonzero()[:, 0], self.prompt)


def check_blocks(target: VideoLanguageModel) -> None:
    """Check that rows of a prompt can be dropped between two blocks of a target.

    Raises:
        ProfileError: its blocks share keys and have an input of their own for each row, or earlier rows see later ones.
    """
    if isinstance(target.decoder, Gemma4Decoder) or target.has_bidirectional_rows:
        raise ProfileError(
            f"{option('lossy.method')}: blocks of {target.family} cannot drop visual tokens; nearest valid choice: none"
        )


class PrunedTargetEngine:
    """Runs a pruned target, one sequence and one token at a time: for plain decoding.

    Args:
        model: a model of one of the families.
        method: chooses the tokens to drop.
    """

    def __init__(self, model: VideoLanguageModel, method: PruningRule) -> None:
        self.engine, self.model, self.method = Engine(model), model, method

    @torch.inference_mode()
    def prefill(self, prefix: EmbeddedPrompt, room: int) -> PrefillResult:
        """Read a prompt in one pass and drop the method's tokens; ``room`` are further entries, for the text."""
        every = len(prefix.visual)
        if every and (kept := self.method.before(prefix)) is not None:
            prefix = prefix.keep(kept.to(prefix.visual.index.device))
        depth, length = self.model.decoder.depth, prefix.length
        partly = self.method.reads(depth, len(prefix.visual) / every) if depth > 1 and len(prefix.visual) else None
        whole, share = partly or (depth, 1.0)
        span = PrunedSpan(self.model.decoder.slab, length + room, prefix.next_position - length, whole)
        if partly is not None:
            span.watch = Reselect(self.method.similarity, share, prefix.visual, span, length)
        hidden, rows = self._blocks(prefix, span)
        normed = self.model.decoder.norm(hidden[-1:])
        logits = self.model.decoder.logits(normed)[:, : self.model.vocabulary]
        self.engine.check(read_back_tokens([Rows(span)], [PassResult(logits, normed)]))
        span.length, span.missing = length, [length - count for count in rows]
        visual, text = len(prefix.visual), length - len(prefix.visual)
        read = [count - text if block < whole else share_of(visual, share) for block, count in enumerate(rows)]
        span.kept = tuple(read)
        return PrefillResult(span, logits[0].to(self.model.device))

    def run(self, batch: Sequence[Rows]) -> list[PassResult]:
        """Append one token to one sequence; see :meth:`Engine.run`.

        Raises:
            ValueError: more than one sequence or token, or not a plain one.
        """
        if len(batch) != 1 or len(batch[0].token_ids) != 1 or batch[0].parents is not None:
            raise ValueError("a pruned target decodes one sequence token by token")
        span = batch[0].span
        return self.engine.run([replace(batch[0], taps=span.watch if isinstance(span, PrunedSpan) else None)])

    def _blocks(self, prefix: EmbeddedPrompt, span: PrunedSpan) -> tuple[torch.Tensor, list[int]]:
        """Return (rows, hidden) after the last block, and the number of rows each block wrote to the sequence."""
        decoder, method = self.model.decoder, self.method
        visual, rows = prefix.visual, torch.arange(prefix.length, device=prefix.embeds.device)
        hidden, counts = prefix.embeds[0], []
        positions = prefix.positions.reshape(decoder.axes, -1)
        stages = method.stages(decoder.depth) if len(visual) else {}
        attention: PassAttention | None = None
        last = (decoder.depth - 1, [1]) if decoder.skips_rows and len(visual.deepstack) < decoder.depth else None
        for index in range(decoder.depth):
            if attention is None or index + 1 in stages:
                observed = _BlockAttention(index) if index + 1 in stages else None
                passing = Rows(span, prompt=prefix, stretch=(0, len(rows)), taps=observed)
                rotation = decoder.rotation(positions[:, rows])
                attention = PassAttention([passing], decoder.scaling, decoder.windows, last=last)
            counts.append(len(rows))
            hidden = decoder.block(index, hidden, rotation, attention)
            if index < len(visual.deepstack):
                features = visual.deepstack[index]
                hidden = hidden.index_add(0, visual.index.to(hidden.device), features.to(hidden))
            if observed is None or observed.seen is None:
                continue
            attention = None
            choice = method.choose(BlockSignals(prefix, visual, hidden, *observed.seen), stages[index + 1])
            if len(choice.kept) < len(visual):
                hidden, visual, stays = _apply_choice(hidden, visual, choice)
                rows = rows[stays.to(rows.device)]
        return hidden, counts


def _apply_choice(
    hidden: torch.Tensor, visual: VisualTokens, choice: KeptTokens
) -> tuple[torch.Tensor, VisualTokens, torch.Tensor]:
    """Apply a choice: return the remaining (rows, hidden) states, visual tokens, and row indices (sorted)."""
    place = visual.index.device
    kept, into = choice.kept.to(place), choice.into
    deepstack = visual.deepstack
    if into is not None:
        at = visual.index.to(hidden.device)
        hidden = hidden.clone()
        hidden[at] = _merge_states(hidden[at], into)
        deepstack = tuple(_merge_states(level, into) for level in deepstack)
    stays = torch.ones(len(hidden), dtype=torch.bool, device=place)
    stays[visual.index] = False
    stays[visual.index[kept]] = True
    left = replace(
        visual,
        index=(stays.cumsum(0) - 1)[visual.index[kept]],
        frame=visual.frame[kept],
        row=visual.row[kept],
        column=visual.column[kept],
        required=visual.required[kept],
        features=visual.features[kept],
        deepstack=tuple(level[kept.to(level.device)] for level in deepstack),
    )
    rows = stays.nonzero()[:, 0]
    return hidden[rows.to(hidden.device)], left, rows


def _merge_states(states: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """Return (n, d) states with each merge target replaced by the mean of its tokens, computed in float32."""
    into = into.to(states.device)
    taking_part = (into >= 0).nonzero()[:, 0]
    centres, group = into[taking_part].unique(return_inverse=True)
    total = torch.zeros(len(centres), states.shape[1], dtype=torch.float32, device=states.device)
    total.index_add_(0, group, states[taking_part].float())
    merged = states.clone()
    merged[centres] = (total / group.bincount(minlength=len(centres))[:, None]).to(states.dtype)
    return merged


class PrunedTarget(Target):
    """The side of a pruned target: its passes are its own."""

    pruned: PrunedTargetEngine

    def step(self) -> Steps[PassResult]:
        (passed,) = yield Encode(partial(self.pruned.run, [self.rows(NO_DRAFT)]))
        self.commit((), passed.chosen[0], passed)
        return passed  # type: ignore[no-any-return]


def decode(method: PruningRule, sequence: ClipSequence) -> Steps[None]:
    """Read the prompt, drop tokens by ``method``, and write the text."""
    setup, trace = sequence.setup, sequence.trace
    engine = PrunedTargetEngine(setup.target.model, method)
    prompt = yield from TargetPrompt.embed(sequence)
    prompt.choose(sequence, "target")
    with trace.span("target_prefill"):
        read = yield Encode(partial(engine.prefill, prompt.prefix, setup.room))
    target = open_target(sequence, prompt, read, PrunedTarget)
    target.pruned, target.lossy = engine, _record(setup.profile.lossy.method, read, len(prompt.prefix.visual))
    sequence.target = target
    sequence.emit(prompt.prefilled(setup.profile, trace.now()))
    over = sequence.emit_first()
    prompt.release()
    sequence.emit(InputsReleased(trace.now()))
    while not over:
        over = yield from plain_round(sequence)


def _record(method: str, read: PrefillResult, visual: int) -> LossyRecord:
    """Return the visual tokens that each block reads while decoding."""
    assert isinstance(read.span, PrunedSpan)
    kept = list(read.span.kept)
    every = len(kept) * visual
    return {"method": method, "kept": kept, "retention": round(sum(kept) / every, 6) if every else None}
