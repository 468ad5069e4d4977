"""The choice of a pass's tokens, by penalties and sampling, as a fixed list of kernels that a GPU replays after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vidspec.engine.choices import (
    CLIP,
    FIELDS,
    NEUTRAL,
    ChoiceKind,
    ChosenRows,
    choice_kind,
    choose_rows,
    drafted_rows,
    host_results,
    numbers_of,
    row_fields,
)
from vidspec.engine.graphs.step import MOST, GraphStep, HostTable
from vidspec.engine.history import RowChanges, TextHistory
from vidspec.engine.penalties import IN_TEXT, Penalties, PenaltyHistory, mark_texts, new_marks, set_marks
from vidspec.engine.rows import ChainRule, PassResult, Rows
from vidspec.engine.sampling import Sampling, SamplingCuts

#: Most tokens of a chain that are chosen on the device.
STEPS = 64


class ChoicePlan(NamedTuple):
    """Places of a choice's data in the host's table.

    Attributes:
        fields: of the rows.
        histories: whose marks are needed.
        marks: new tokens of their prompts and texts, and tokens between text and chain.
    """

    fields: int
    histories: Sequence[PenaltyHistory] = ()
    marks: tuple[int, ...] = ()


class ChoiceStep:
    """Choice of the tokens of a :class:`GraphStep`, over static tensors.

    After a chained pass the tokens become the inputs of the next one.

    Args:
        step: the pass.
        kind: of the choices.

    Attributes:
        fields: (FIELDS, count) float64, see :func:`~vidspec.engine.choices.row_fields`. For chains then a row with the
            number of tokens so far, and STEPS rows of uniform numbers, negative for tokens that are not drawn.
        marks: (count, marked) uint8 of the chain of each row, or of the text of each clip.
        drafted: (count, vocabulary) the draft's distributions, see :func:`~vidspec.engine.sampling.choose_tokens`.
        record: (STEPS, count) the tokens of chains; -1 for those of distributions that are not exact.
        chosen: choices of the last pass.
        numbers: of a pass without chains, see :func:`~vidspec.engine.choices.numbers_of`.
    """

    numbers: torch.Tensor

    def __init__(self, step: GraphStep, kind: ChoiceKind) -> None:
        count, device = step.count, step.table.device
        self.step, self.kind, self.count = step, kind, count
        rows = FIELDS + 1 + STEPS if step.chained else FIELDS
        idle = torch.tensor([*NEUTRAL, 0.0, *[-1.0] * STEPS][:rows], dtype=torch.float64, device=device)
        self._idle = idle[:, None].expand(-1, count)
        self.fields = self._idle.clone()
        self.marks = torch.zeros(count, step.marked if kind.penalised else 0, dtype=torch.uint8, device=device)
        self.drafted = torch.full((count, step.vocabulary if kind.drafted else 0), torch.inf, device=device)
        self._blank = self.drafted[:1].clone()
        self.record = torch.zeros(STEPS if step.chained else 0, count, dtype=torch.long, device=device)
        self._bits = torch.arange(MOST, device=device)
        self._ids = None if step.inputs is None else step.inputs.ids
        self._no_text = PenaltyHistory(Penalties(), ())

    def __call__(self) -> None:
        """Choose the tokens."""
        step, fields = self.step, self.fields
        if step.chained:
            done = fields[FIELDS, :1].long()
            fields[0].copy_(fields[FIELDS + 1 :].index_select(0, done)[0])
            fields[FIELDS].add_(1)
        self.chosen = choose_rows(step.logits, self.kind, fields[:FIELDS], self._row_marks(), self.drafted)
        if not step.chained:
            sums = step.logits.sum(-1, dtype=torch.float32)
            self.numbers = numbers_of(sums, self.chosen, self.kind.top, self._ids)
            return
        tokens = self.chosen.tokens if self._ids is None else self._ids[self.chosen.tokens]
        exact = self.chosen.exact
        step.table[0].copy_(tokens)
        self.record.index_copy_(0, done, (tokens if exact is None else tokens.masked_fill(~exact, -1))[None])
        if self.kind.penalised:
            self.marks.scatter_(1, tokens[:, None], IN_TEXT)

    def set_idle(self) -> None:
        """Make all rows idle."""
        self.fields.copy_(self._idle)

    def _row_marks(self) -> torch.Tensor | None:
        """Return (count, vocabulary) the marks of each row: of a clip's text and of the drafted tokens that it sees."""
        if not self.kind.penalised:
            return None
        marks = self.marks
        if not self.step.chained:
            tokens, first, sees = self.step.tokens_seen
            seen = (sees[:, None] >> self._bits & 1).bool()
            others = tokens[(first[:, None] + self._bits).clamp_(max=self.count - 1)]
            marks = marks.index_select(0, self.fields[CLIP].long())
            marks.scatter_(1, torch.where(seen, others, tokens[:, None]), IN_TEXT)
        return marks if self._ids is None else marks.index_select(1, self._ids)

    def plan_chains(self, rules: Sequence[ChainRule], longest: int, table: HostTable) -> ChoicePlan:
        """Add the host's data of chains to a table.

        Args:
            rules: of the first rows.
            longest: tokens of the longest chain.
            table: of the pass before.
        """
        rows = list[list[float]]()
        for rule in rules:
            penalties = _penalties(rule.history)
            strengths = penalties.repetition_penalty, penalties.presence_penalty
            sampled = (rule.sampling or Sampling()).fields
            uniforms = *rule.uniforms, *[-1.0] * (longest - len(rule.uniforms))
            rows.append([-1.0, 0, *sampled, *strengths, 0, 0, *uniforms])
        spare = [*NEUTRAL, 0.0, *[-1.0] * longest]
        columns = [*zip(*rows, *[spare] * (self.count - len(rows)), strict=True)]
        width = self.marks.shape[1]
        paths = [at * width + token for at, rule in enumerate(rules) for token in rule.path if token < width]
        return self._plan(columns, [rule.history for rule in rules], paths, table)

    def plan_windows(self, batch: Sequence[Rows], sizes: Sequence[int], table: HostTable) -> ChoicePlan | None:
        """Add the host's data of a pass to its table; None if there is none.

        Args:
            batch: the rows of each sequence.
            sizes: their numbers.
            table: of the pass.
        """
        if self.kind.cuts is None and not self.kind.penalised:
            return None
        columns = row_fields(batch, sizes)
        spare = self.count - len(columns[0])
        padded = [column + [none] * spare for column, none in zip(columns, NEUTRAL, strict=True)]
        return self._plan(padded, [rows.processor and rows.processor.history for rows in batch], (), table)

    def _plan(
        self,
        columns: Sequence[Sequence[float]],
        histories: Sequence[TextHistory | None],
        paths: Sequence[int],
        table: HostTable,
    ) -> ChoicePlan:
        fields = table.add(columns, np.float64)
        if not self.kind.penalised:
            return ChoicePlan(fields)
        texts = [history if isinstance(history, PenaltyHistory) else self._no_text for history in histories]
        new = new_marks(texts, self.marks.shape[1], self.marks.device)
        return ChoicePlan(fields, texts, tuple(table.add(places) for places in (*new, paths)))

    def begin(self, plan: ChoicePlan, table: HostTable) -> None:
        """Set the rules of a pass or of chains, before their first tokens, from data that is on the device."""
        fields = table[plan.fields]
        self.fields[: len(fields)].copy_(fields)
        if self.kind.penalised:
            prompts, texts, paths = (table[places] for places in plan.marks)
            marks = self.marks[: len(plan.histories)]
            mark_texts(plan.histories, prompts, texts, marks.shape[1], marks.device, out=marks)
            set_marks(marks, paths, IN_TEXT)

    def set_drafted(self, batch: Sequence[Rows], sizes: Sequence[int]) -> None:
        """Set the distributions of drafted tokens, if some were drawn."""
        if self.kind.drafted:
            torch.cat(drafted_rows(batch, sizes, self._blank), out=self.drafted[: sum(sizes)])

    def results(self, batch: Sequence[Rows], passed: Sequence[PassResult], total: int) -> list[PassResult]:
        """Return the results of a pass with its tokens, read back in one copy.

        Args:
            batch: the rows of each sequence.
            passed: the result of each.
            total: their rows.
        """
        chosen = self.chosen
        if self.kind.penalised:  # the next pass writes to the same tensors
            chosen = chosen._replace(logits=chosen.logits[:total].clone())
        if chosen.probs is not None and any(rows.draw is not None and rows.draw.keeps_probs for rows in batch):
            chosen = chosen._replace(probs=chosen.probs[:total].clone())

        def choose_exactly(cuts: SamplingCuts) -> ChosenRows:
            kind = self.kind._replace(cuts=cuts)
            return choose_rows(self.step.logits, kind, self.fields, self._row_marks(), self.drafted)

        return host_results(batch, passed, chosen, self.numbers, self.kind, choose_exactly)


def chain_kind(rules: Sequence[ChainRule], gammas: Sequence[int]) -> ChoiceKind | None:
    """Return the kind of the choices of chains; None if the host has to make them.

    That is so for grammars, for runs of tokens that may not occur twice, and for very long chains.
    """
    if max(gammas) > STEPS or not all(_is_marked(rule.history) for rule in rules):
        return None
    samplings = {rule.sampling for rule in rules if rule.sampling is not None}
    cuts = SamplingCuts.of(samplings) if samplings else None
    return ChoiceKind(cuts, any(rule.history is not None for rule in rules))


def window_kind(batch: Sequence[Rows]) -> ChoiceKind | None:
    """Return the kind of the choices of a pass; None if its logits are changed by more than the tokens rows see."""
    penalised = False
    for rows in batch:
        if rows.processor is not None:
            penalised = True
            if not _is_marked(rows.processor.history) or not _see_their_paths(rows, rows.processor):
                return None
    return choice_kind(batch, penalised=penalised)


def _is_marked(history: TextHistory | None) -> bool:
    """Return True if a history's changes follow from marks of tokens."""
    return history is None or (isinstance(history, PenaltyHistory) and not history.penalties.no_repeat_ngram)


def _penalties(history: TextHistory | None) -> Penalties:
    return history.penalties if isinstance(history, PenaltyHistory) else Penalties()


def _see_their_paths(rows: Rows, changes: RowChanges) -> bool:
    """Return True if the path of each row is the tokens that it sees in the pass, without the text's last one."""
    tokens, paths = rows.token_ids, changes.paths
    parents = range(-1, len(tokens) - 1) if rows.parents is None else rows.parents
    if not len(tokens) == len(paths) == len(parents) or changes.tokens is not None:
        return False
    ends = isinstance(changes.history, PenaltyHistory) and changes.history.ends_with(tokens[0])
    return (
        ends
        and not paths[0]
        and all(
            tuple(paths[at]) == (*paths[parent], token)
            for at, (parent, token) in enumerate(zip(parents[1:], tokens[1:], strict=True), 1)
        )
    )
