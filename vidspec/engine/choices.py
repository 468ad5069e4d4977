"""Tokens and finiteness of all rows of a pass, computed together and read back in one copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from vidspec.engine.device import read_back
from vidspec.engine.history import change_rows
from vidspec.engine.penalties import PenaltyHistory, penalise
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import Sampling, SamplingCuts, choose_tokens, cut_rows, on_device

#: Fields of a row: a uniform number, negative if its token is not drawn; the drafted token after it; its sampling's
#: :attr:`~vidspec.engine.sampling.Sampling.fields`; repetition and presence penalty; index of its clip.
UNIFORM, DRAFTED, SAMPLED, PENALISED, CLIP, FIELDS = 0, 1, slice(2, 6), slice(6, 8), 8, 9


class ChoiceKind(NamedTuple):
    """The operations that choose the tokens of a pass.

    Attributes:
        cuts: of rows whose tokens are drawn; None if there are none.
        penalised: True if some rows have penalties.
        drafted: True if some rows are followed by tokens that a draft has drawn.
        top: number of likeliest tokens of each row to return.
    """

    cuts: SamplingCuts | None = None
    penalised: bool = False
    drafted: bool = False
    top: int = 0


class ChosenRows(NamedTuple):
    """The choices of a pass, on the device.

    Attributes:
        logits: (n, V), with penalties.
        likeliest: (n,) argmax of each row.
        tokens: (n,) a draw or the likeliest of each row.
        probs: (n, V) that tokens are drawn from; None if none is.
        exact: (n,) True if ``probs`` are exact, see :func:`~vidspec.engine.sampling.cut_rows`; None if all are.
    """

    logits: torch.Tensor
    likeliest: torch.Tensor
    tokens: torch.Tensor
    probs: torch.Tensor | None = None
    exact: torch.Tensor | None = None


def choose_rows(
    logits: torch.Tensor,
    kind: ChoiceKind,
    fields: torch.Tensor | None = None,
    marks: torch.Tensor | None = None,
    drafted: torch.Tensor | None = None,
) -> ChosenRows:
    """Choose the token of each row.

    Args:
        logits: (n, V).
        kind: what is to be done.
        fields: (FIELDS, n), see :func:`row_fields`; only for draws and penalties.
        marks: (n, V) for penalties, see :func:`~vidspec.engine.penalties.mark_rows`.
        drafted: (n, V) for :func:`~vidspec.engine.sampling.choose_tokens`.
    """
    if kind.penalised and marks is not None and fields is not None:
        logits = penalise(logits.float(), marks, fields[PENALISED].float()[..., None])
    likeliest = logits.argmax(-1)
    if kind.cuts is None or fields is None:
        return ChosenRows(logits, likeliest, likeliest)
    sampled = fields[SAMPLED].float()[..., None]
    probs, exact = cut_rows((logits.float() / sampled[0]).softmax(-1), sampled, kind.cuts)
    uniforms = fields[UNIFORM]
    drawn = choose_tokens(probs, uniforms.clamp(min=0), fields[DRAFTED].long(), drafted if kind.drafted else None)
    return ChosenRows(logits, likeliest, torch.where(uniforms < 0, likeliest, drawn), probs, exact)


def numbers_of(sums: torch.Tensor, chosen: ChosenRows, top: int, ids: torch.Tensor | None) -> torch.Tensor:
    """Return (3 + 2 * top, n) float32, or one more, what :func:`host_results` needs of each row.

    Args:
        sums: (n,) of the logits without changes, finite if all logits of a row are.
        chosen: choices of the rows.
        top: number of likeliest tokens.
        ids: (V,) the token id of each logit, if it is not its index.
    """
    tokens = torch.stack([chosen.likeliest, chosen.tokens])
    # Token ids are exact in float32 up to 2^24.
    columns = [sums[None], tokens if ids is None else ids[tokens]]
    columns += [] if chosen.exact is None else [chosen.exact[None]]
    if top := min(top, chosen.logits.shape[1]):
        index = chosen.logits.topk(top).indices
        columns.append((index if ids is None else ids[index]).t())
        columns.append(chosen.logits.float().softmax(-1).gather(1, index).t())
    return torch.cat([column.float() for column in columns])


def choice_kind(batch: Sequence[Rows], *, penalised: bool = False) -> ChoiceKind:
    """Return the kind of the choices that rows ask for; their processors are ignored."""
    draws = [rows.draw for rows in batch if rows.draw is not None]
    cuts = SamplingCuts.of({draw.sampling for draw in draws}) if draws else None
    top = max([rows.top for rows in batch])
    top = 1 << (top - 1).bit_length() if top else 0
    return ChoiceKind(cuts, penalised, any([draw.drafted is not None for draw in draws]), top)


def row_fields(batch: Sequence[Rows], counts: Sequence[int]) -> list[list[float]]:
    """Return FIELDS lists of one number for each row with logits.

    Args:
        batch: the rows of each sequence.
        counts: number of its rows with logits.
    """
    columns: list[list[float]] = [[] for _ in range(FIELDS)]
    for clip, (rows, count) in enumerate(zip(batch, counts, strict=True)):
        draw, history = rows.draw, rows.processor and rows.processor.history
        uniforms, sampling = ((), _GREEDY) if draw is None else (draw.uniforms, draw.sampling.fields)
        before = count - len(uniforms)
        columns[UNIFORM] += [*[-1.0] * before, *uniforms]
        drafted = (
            () if draw is None or draw.drafted is None else rows.token_ids[len(rows.token_ids) - len(uniforms) + 1 :]
        )
        columns[DRAFTED] += [*[0] * (before if drafted else count - 1), *drafted, *[0] * min(count, 1)]
        for column, field, none in zip(columns[SAMPLED], sampling, _GREEDY, strict=True):
            column += [*[none] * before, *[field] * len(uniforms)]
        penalties = (1.0, 0.0)
        if isinstance(history, PenaltyHistory):
            penalties = history.penalties.repetition_penalty, history.penalties.presence_penalty
        for column, field in zip(columns[PENALISED], penalties, strict=True):
            column += [field] * count
        columns[CLIP] += [clip] * count
    return columns


#: Sampling fields of rows that draw nothing; all fields of a row without a rule.
_GREEDY = Sampling().fields
NEUTRAL = -1.0, 0.0, *_GREEDY, 1.0, 0.0, 0.0


def drafted_rows(batch: Sequence[Rows], counts: Sequence[int], blank: torch.Tensor) -> list[torch.Tensor]:
    """Return the parts of the draft's distributions (R, V) after each row, infinite where there are none.

    Args:
        batch, counts: see :func:`row_fields`.
        blank: (1, V) infinite.
    """
    parts = list[torch.Tensor]()
    for rows, count in zip(batch, counts, strict=True):
        drafted = None if rows.draw is None else rows.draw.drafted
        if drafted is None:
            parts.append(blank.expand(count, -1))
        else:
            parts += [blank.expand(count - 1 - len(drafted), -1), drafted.to(blank), blank]
    return parts


@torch.inference_mode()
def read_back_tokens(
    batch: Sequence[Rows], passed: Sequence[PassResult], ids: torch.Tensor | None = None
) -> list[PassResult]:
    """Return the results with the tokens their rows choose and whether their logits are finite.

    All sequences are computed together, then copied to the host once, the only wait for the pass. A pass without logits
    reads nothing back.

    Args:
        batch: the rows of each sequence.
        passed: the result of each, with ``logits`` and ``hidden`` on one device.
        ids: (V,) the token id of each logit, if it is not its index; such a model draws no tokens.
    """
    counts = [result.logits.shape[0] for result in passed]
    nonempty = [result.logits for result, count in zip(passed, counts, strict=True) if count]
    if not nonempty:
        return list(passed)
    logits = torch.cat(nonempty) if len(nonempty) > 1 else nonempty[0]
    # A row's sum is finite if all its logits are. Summed before processors, which may exclude tokens by infinities.
    sums = logits.sum(-1, dtype=torch.float32)
    ends = list(accumulate(counts))
    changes = [
        (rows.processor, end)
        for rows, count, end in zip(batch, counts, ends, strict=True)
        if count and rows.processor is not None
    ]
    if changes:
        logits = change_rows(changes, logits)
    kind, fields, drafted = choice_kind(batch), None, None
    if kind.cuts is not None:
        fields = on_device(row_fields(batch, counts), logits.device)
        if kind.drafted:
            drafted = torch.cat(drafted_rows(batch, counts, logits.new_full((1, logits.shape[1]), torch.inf).float()))
    chosen = choose_rows(logits, kind, fields, None, drafted)

    def choose_exactly(cuts: SamplingCuts) -> ChosenRows:
        return choose_rows(logits, kind._replace(cuts=cuts), fields, None, drafted)

    return host_results(batch, passed, chosen, numbers_of(sums, chosen, kind.top, ids), kind, choose_exactly)


def host_results(
    batch: Sequence[Rows],
    passed: Sequence[PassResult],
    chosen: ChosenRows,
    numbers: torch.Tensor,
    kind: ChoiceKind,
    choose_exactly: Callable[[SamplingCuts], ChosenRows],
) -> list[PassResult]:
    """Read the choices of a pass back.

    Args:
        batch, passed: see :func:`read_back_tokens`.
        chosen: of all rows with logits, and perhaps of further ones.
        numbers: see :func:`numbers_of`.
        kind: of the choices.
        choose_exactly: chooses the tokens again, with other cuts.
    """
    counts = [result.logits.shape[0] for result in passed]
    total, vocabulary = sum(counts), chosen.logits.shape[1]
    sums, likeliest, tokens, *others = read_back(numbers)
    if chosen.exact is not None and not all(others.pop(0)[:total]):
        # A second wait, for a distribution so flat that top-p keeps many tokens.
        assert kind.cuts is not None
        chosen = choose_exactly(kind.cuts.with_all(vocabulary))
        tokens = chosen.tokens.tolist()
    width, likeliest = len(others) // 2, list(map(int, likeliest))
    tokens = likeliest if chosen.tokens is chosen.likeliest else list(map(int, tokens))
    ids_by_row = zip(*(map(int, column) for column in others[:width]), strict=True)
    best = list(zip(ids_by_row, zip(*others[width:], strict=True), strict=True))
    finite = math.isfinite(sum(sums[:total]))
    results, start = list[PassResult](), 0
    for rows, result, count in zip(batch, passed, counts, strict=True):
        part = slice(start, start + count)
        top = [(ids[: rows.top], shares[: rows.top]) for ids, shares in best[part]] if rows.top else ()
        draw, probs = rows.draw, None
        if draw is not None and draw.keeps_probs and chosen.probs is not None:
            probs = chosen.probs[start + count - len(draw.uniforms) : start + count]
        logits = result.logits if rows.processor is None else chosen.logits[part]
        sound = finite or all(map(math.isfinite, sums[part]))
        found = likeliest[part], tokens[part]
        results.append(PassResult(logits, result.hidden, result.tapped, sound, *found, top, probs))
        start += count
    return results
