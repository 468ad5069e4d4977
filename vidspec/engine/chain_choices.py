"""Tokens of drafted chains, chosen on the device by penalties and sampling: no pass waits for the one before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vidspec.engine.device import to_device
from vidspec.engine.penalties import IN_TEXT, Penalties, PenaltyHistory, mark_rows, penalise, strengths
from vidspec.engine.rows import ChainRule
from vidspec.engine.sampling import invert_cdf, on_device

__all__ = ["ChainChoices", "make_choices"]

#: Stands for the text of a chain without penalties.
_NO_PENALTIES = PenaltyHistory(Penalties(), ())


class ChainChoices:
    """Chooses the next token of each of several chains.

    Args:
        histories: of each chain; None if none has penalties.
        rules: of each chain; all with the same sampling.
        vocabulary: number of logits.
        device: of the logits.

    Attributes:
        exact: scalar, True while all distributions were exact, see ``Sampling.nucleus_of_prefix``.
    """

    def __init__(
        self,
        histories: Sequence[PenaltyHistory] | None,
        rules: Sequence[ChainRule],
        vocabulary: int,
        device: torch.device,
    ) -> None:
        self._sampling, self._vocabulary = rules[0].sampling, vocabulary
        self._marks = self._factors = self._uniforms = None
        if histories is not None:
            self._marks = mark_rows(histories, [[rule.path] for rule in rules], vocabulary, device)
            self._factors = to_device(strengths([history.penalties for history in histories]), device)
        if self._sampling is not None:
            longest = max(len(rule.uniforms) for rule in rules)
            numbers = [[*rule.uniforms, *[0.0] * (longest - len(rule.uniforms))] for rule in rules]
            self._uniforms = on_device(numbers, device)
        self.exact = torch.ones((), dtype=torch.bool, device=device)
        self._probs: list[list[torch.Tensor]] = [[] for _ in rules]

    def choose(self, logits: torch.Tensor, step: int, chains: Sequence[int], places: torch.Tensor) -> torch.Tensor:
        """Return the next token of some chains (n,), which their later ones are penalised for.

        Args:
            logits: (n, V).
            step: number of tokens that each has.
            chains: their indices.
            places: (n,) the same on the device.
        """
        rows = logits.float()
        if self._marks is not None and self._factors is not None:
            rows = penalise(rows, self._marks.index_select(0, places), self._factors.index_select(1, places))
        if self._sampling is None or self._uniforms is None:
            tokens = rows.argmax(-1)
        else:
            probs, exact = self._sampling.distribution_of_prefix(rows)
            self.exact = self.exact if exact is None else self.exact & exact.all()
            tokens = invert_cdf(probs, self._uniforms[:, step].index_select(0, places))
            for chain, row in zip(chains, probs, strict=True):
                self._probs[chain].append(row)
        if self._marks is not None:
            self._marks.view(-1).index_fill_(0, places * self._vocabulary + tokens, IN_TEXT)
        return tokens

    def probs(self, chain: int) -> torch.Tensor | None:
        """Return the distributions (gamma, V) that a chain's tokens were drawn from; None if they are the likeliest."""
        return torch.stack(self._probs[chain]) if self._probs[chain] else None


def make_choices(rules: Sequence[ChainRule], vocabulary: int, device: torch.device) -> ChainChoices | None:
    """Return the choices of several chains; None if the host has to make them.

    That is so for grammars and runs of tokens that may not occur twice, and for chains that are sampled differently.
    """
    if len({rule.sampling for rule in rules}) > 1:
        return None
    histories: list[PenaltyHistory] = []
    for rule in rules:
        history = rule.history or _NO_PENALTIES
        if not isinstance(history, PenaltyHistory) or history.penalties.no_repeat_ngram:
            return None
        histories.append(history)
    penalised = any(rule.history is not None for rule in rules)
    return ChainChoices(histories if penalised else None, rules, vocabulary, device)
