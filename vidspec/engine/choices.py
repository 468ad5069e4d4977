"""Tokens and finiteness of all rows of a pass, computed together and read back in one copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch

from vidspec.engine.device import read_back, to_device
from vidspec.engine.history import change_rows
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import PREFIX, DrawRule, Sampling, choose_tokens, on_device

__all__ = ["read_back_tokens"]


@torch.inference_mode()
def read_back_tokens(
    batch: Sequence[Rows], passed: Sequence[PassResult], ids: torch.Tensor | None = None
) -> list[PassResult]:
    """Return the results with the tokens their rows choose and whether their logits are finite.

    One argmax, one draw and one top-k for all sequences, then one copy to the host, the only one that waits for the
    pass. A pass without logits reads nothing back.

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
    row_sums = logits.sum(-1, dtype=torch.float32)
    ends = list(accumulate(counts))
    changes = [
        (rows.processor, end)
        for rows, count, end in zip(batch, counts, ends, strict=True)
        if count and rows.processor is not None
    ]
    if changes:
        logits = change_rows(changes, logits)
        parts = logits.split(counts)
        passed = [
            result if rows.processor is None else result._replace(logits=part)
            for rows, result, part in zip(batch, passed, parts, strict=True)
        ]
    likeliest = logits.argmax(-1) if ids is None else ids[logits.argmax(-1)]
    drawn, probs_of, exact = _draw_tokens(batch, counts, logits, likeliest)
    # Token ids are exact in float32 up to 2^24.
    columns = [row_sums[None], likeliest[None], drawn[None]]
    if width := min(max([rows.top for rows in batch]), logits.shape[1]):
        index = logits.topk(width).indices
        columns += [(index if ids is None else ids[index]).t(), logits.float().softmax(-1).gather(1, index).t()]
    columns += [] if exact is None else [exact.expand(1, len(logits))]
    sums, *numbers = read_back(torch.cat([column.float() for column in columns]))
    if exact is not None and not all(
        numbers.pop()
    ):  # a second wait, for a distribution so flat that top-p keeps many tokens
        drawn, probs_of, _ = _draw_tokens(batch, counts, logits, likeliest, logits.shape[1])
        numbers[1] = drawn.tolist()
    tokens = [list(map(int, column)) for column in numbers[: 2 + width]]
    best = list(zip(zip(*tokens[2:], strict=True), zip(*numbers[2 + width :], strict=True), strict=True))
    finite = math.isfinite(sum(sums))
    results, start = list[PassResult](), 0
    for rows, result, count in zip(batch, passed, counts, strict=True):
        part = slice(start, start + count)
        top = [(ids[: rows.top], probs[: rows.top]) for ids, probs in best[part]] if rows.top else ()
        sound = finite or all(map(math.isfinite, sums[part]))
        choices = tokens[0][part], tokens[1][part], top, probs_of.get(start)
        results.append(PassResult(result.logits, result.hidden, result.tapped, sound, *choices))
        start += count
    return results


def _draw_tokens(
    batch: Sequence[Rows],
    counts: Sequence[int],
    logits: torch.Tensor,
    likeliest: torch.Tensor,
    prefix: int = PREFIX,
) -> tuple[torch.Tensor, dict[int, torch.Tensor], torch.Tensor | None]:
    """Return the token each row chooses, the distributions of sequences that draw by their first row, and a flag.

    The flag is True if these distributions are exact, see :meth:`Sampling.nucleus_of_prefix`; None if all must be.
    """
    kinds: dict[Sampling, list[tuple[int, int, Rows, DrawRule]]] = {}
    start = 0
    for rows, count in zip(batch, counts, strict=True):
        if rows.draw is not None:
            kinds.setdefault(rows.draw.sampling, []).append((start, start + count, rows, rows.draw))
        start += count
    distributions: dict[int, torch.Tensor] = {}
    chosen = likeliest.clone() if kinds else likeliest
    exact: torch.Tensor | None = None
    for sampling, drawing in kinds.items():
        places = [place for _, end, _, draw in drawing for place in range(end - len(draw.uniforms), end)]
        index = to_device(torch.tensor(places), logits.device)
        probs, flags = sampling.distribution_of_prefix(logits if len(places) == len(logits) else logits[index], prefix)
        if flags is not None:
            exact = flags.all() if exact is None else exact & flags.all()
        uniforms, drafted_rows, tokens, drafted = list[float](), list[int](), list[int](), list[torch.Tensor]()
        for begin, _, rows, draw in drawing:
            first, count = len(uniforms), len(draw.uniforms)
            uniforms += draw.uniforms
            distributions[begin] = probs[first : first + count]
            if draw.drafted is not None:
                drafted_rows += range(first, first + count - 1)
                tokens += rows.token_ids[1 - count :]
                drafted.append(draw.drafted)
        device = logits.device
        rows_of = to_device(torch.tensor(drafted_rows), device), to_device(torch.tensor(tokens), device)
        all_drafted = torch.cat([part.to(logits.device) for part in drafted]) if drafted else None
        chosen.index_copy_(0, index, choose_tokens(probs, on_device(uniforms, device), *rows_of, all_drafted))
    return chosen, distributions, exact
