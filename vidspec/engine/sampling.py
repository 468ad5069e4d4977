"""Token selection from logits: greedy, or by temperature and top-p; the random numbers of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from vidspec.engine.device import to_device

__all__ = ["PREFIX", "DrawRule", "Sampling", "UniformNumbers", "choose_tokens", "draw_token", "invert_cdf", "on_device"]

#: Probabilities of a row that top-p sorts at first.
PREFIX = 512


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; ``temperature`` 0 is greedy and ignores the rest. ``top_k`` 0 is all tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """Return probabilities (n, V) float32 of logits (n, V): temperature first, then :meth:`nucleus`.

        Greedy sampling gives one-hot rows.
        """
        scores = logits.float()
        if self.greedy:
            return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
        return self.nucleus((scores / self.temperature).softmax(-1))

    def nucleus(self, probs: torch.Tensor) -> torch.Tensor:
        """Cut and renormalise probabilities (n, V), in the order of transformers.

        Keep the ``top_k`` highest, of these the smallest set that reaches ``top_p``, and of these the tokens with at
        least ``min_p`` times the highest probability. Of equal ones those with lower ids are kept.
        """
        cut, exact = self.nucleus_of_prefix(probs)
        return cut if exact is None or bool(exact.all()) else self.nucleus_of_prefix(probs, probs.shape[1])[0]

    def distribution_of_prefix(
        self, logits: torch.Tensor, prefix: int = PREFIX
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return :meth:`distribution`, not greedy, with the flags of :meth:`nucleus_of_prefix`."""
        return self.nucleus_of_prefix((logits.float() / self.temperature).softmax(-1), prefix)

    def nucleus_of_prefix(self, probs: torch.Tensor, prefix: int = PREFIX) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return :meth:`nucleus` without sorting all probabilities, and no wait for a device.

        Args:
            probs: (n, V).
            prefix: number of highest probabilities that are sorted, at least.

        Returns:
            The result, and for each row True if it is exact, because these reach ``top_p``; None if all are.
        """
        exact = None
        if self.top_k or self.top_p < 1:
            width = min(max(prefix, self.top_k), probs.shape[1])
            highest = probs.topk(width).values
            ranks = highest
            if self.top_k:
                ranks = highest * (torch.arange(width, device=probs.device) < self.top_k)
                total = functional.pad(ranks, (0, probs.shape[1] - width)).sum(-1, keepdim=True)
                ranks, probs, highest = ranks / total, probs / total, highest / total
            sums = ranks.cumsum(-1)
            kept = sums - ranks < self.top_p if self.top_p < 1 else ranks >= 0
            if self.top_k:
                kept &= torch.arange(width, device=probs.device) < self.top_k
            elif width < probs.shape[1]:
                exact = sums[:, -1] >= self.top_p
            count = kept.sum(-1, keepdim=True)
            lowest = highest.gather(-1, count - 1)
            tied = probs == lowest
            few = tied.cumsum(-1) <= count - (highest > lowest).sum(-1, keepdim=True)
            probs = probs.masked_fill((probs < lowest) | (tied & ~few), 0.0)
            probs = probs / probs.sum(-1, keepdim=True)
        if self.min_p > 0:
            probs = probs.masked_fill(probs < self.min_p * probs.amax(-1, keepdim=True), 0.0)
            probs = probs / probs.sum(-1, keepdim=True)
        return probs, exact


@dataclass(frozen=True)
class DrawRule:
    """Rule for drawing the tokens after the last n rows of a sequence in a pass.

    Attributes:
        sampling: not greedy.
        uniforms: n numbers in [0, 1), one for each of these rows.
        drafted: (n - 1, V) draft distributions of the tokens of all but the first of these rows; None if they were not
            drawn.
    """

    sampling: Sampling
    uniforms: tuple[float, ...]
    drafted: torch.Tensor | None = None


class UniformNumbers:
    """Random numbers of one text, one for each of its tokens, independent of window boundaries.

    Args:
        rng: CPU generator, so that seeds mean the same on all devices.
    """

    #: Numbers taken from the generator at a time, whatever the request.
    _BLOCK = 32

    def __init__(self, rng: torch.Generator) -> None:
        self._rng = rng
        self._numbers: list[float] = []

    def ahead(self, count: int) -> list[float]:
        """Return the numbers of the next ``count`` tokens."""
        while len(self._numbers) < count:
            self._numbers += torch.rand(self._BLOCK, dtype=torch.float64, generator=self._rng).tolist()
        return self._numbers[:count]

    def emitted(self, count: int) -> None:
        """Drop the numbers of ``count`` emitted tokens."""
        del self._numbers[:count]


def draw_token(probs: torch.Tensor, rng: torch.Generator) -> int:
    """Draw one index from probabilities (V,); ``rng`` is a CPU generator so that seeds mean the same on all devices."""
    return int(
        invert_cdf(probs[None], on_device(torch.rand(1, dtype=torch.float64, generator=rng).tolist(), probs.device))
    )


def on_device(uniforms: Sequence[float] | Sequence[Sequence[float]], device: torch.device) -> torch.Tensor:
    """Return uniform numbers on a device, in the dtype of sums over a vocabulary."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return to_device(torch.tensor(uniforms, dtype=dtype), device)


def choose_tokens(
    probs: torch.Tensor, uniforms: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, drafted: torch.Tensor | None
) -> torch.Tensor:
    """Return the token that each row chooses, (n,): a draw, or for rows with a drafted token that token or another.

    Token x ~ q is accepted with probability min(1, p(x) / q(x)), else the row draws from norm(max(0, p - q)) (Leviathan
    et al. 2023; Chen et al. 2023). One number u decides both: given that u is at least the ratio r, (u - r) / (1 - r)
    is again uniform.

    Args:
        probs: (n, V) p of each row.
        uniforms: (n,) in [0, 1), from :func:`on_device`.
        rows: (m,) rows followed by a drafted token.
        tokens: (m,) these tokens.
        drafted: (m, V) their q; None if there are none.
    """
    if drafted is None:
        return invert_cdf(probs, uniforms)
    p, q, u = probs[rows], drafted.to(probs), uniforms[rows]
    ratio = (p.gather(1, tokens[:, None]) / q.gather(1, tokens[:, None]))[:, 0].to(u).clamp_(max=1.0)
    left = (p - q).clamp_(min=0)
    # Rounding can empty a residual that should be tiny; p itself is then the same distribution.
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p)
    rescaled = ((u - ratio) / (1 - ratio)).nan_to_num_(0.0).clamp_(0.0, 1.0)
    chosen = invert_cdf(probs.index_copy(0, rows, left), uniforms.index_copy(0, rows, rescaled))
    return chosen.index_copy_(0, rows, torch.where(u < ratio, tokens, chosen[rows]))


def invert_cdf(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample (n,) by inverting the cumulated probabilities (n, V), which need not sum to 1.

    Summed in float64, in which a device's order of summation has no effect.
    """
    sums = probs.cumsum(-1, dtype=uniforms.dtype)
    last = torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))  # later tokens have no probability
    targets = torch.minimum(uniforms[:, None] * sums[:, -1:], last)
    return torch.searchsorted(sums, targets, right=True)[:, 0].clamp_(max=probs.shape[1] - 1)
