"""Token selection from logits: greedy, or by temperature and top-p; the random numbers of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vidspec.engine.device import to_device

__all__ = ["DrawRule", "Sampling", "UniformNumbers", "choose_tokens", "draw_token", "on_device"]


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
        least ``min_p`` times the highest probability.
        """
        if self.top_k or self.top_p < 1:
            ordered, index = probs.sort(dim=-1, descending=True, stable=True)
            if self.top_k:
                kept = torch.arange(ordered.shape[-1], device=ordered.device) < self.top_k
                ordered = ordered * kept
                ordered = ordered / ordered.sum(-1, keepdim=True)
            if self.top_p < 1:
                before = ordered.cumsum(-1) - ordered
                ordered = ordered.masked_fill(before >= self.top_p, 0.0)
            probs = torch.zeros_like(probs).scatter_(-1, index, ordered)
            probs = probs / probs.sum(-1, keepdim=True)
        if self.min_p > 0:
            probs = probs.masked_fill(probs < self.min_p * probs.amax(-1, keepdim=True), 0.0)
            probs = probs / probs.sum(-1, keepdim=True)
        return probs


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
    return int(_invert_cdf(probs[None], on_device(torch.rand(1, dtype=torch.float64, generator=rng).tolist(), probs)))


def on_device(uniforms: Sequence[float], probs: torch.Tensor) -> torch.Tensor:
    """Return uniform numbers on the device of probabilities, in the dtype of sums over a vocabulary."""
    dtype = torch.float32 if probs.device.type == "mps" else torch.float64
    return to_device(torch.tensor(uniforms, dtype=dtype), probs.device)


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
    chosen = _invert_cdf(probs, uniforms)
    if drafted is None:
        return chosen
    p, q, u = probs[rows], drafted.to(probs), uniforms[rows]
    ratio = (p.gather(1, tokens[:, None]) / q.gather(1, tokens[:, None]))[:, 0].to(u).clamp_(max=1.0)
    left = (p - q).clamp_(min=0)
    # Rounding can empty a residual that should be tiny; p itself is then the same distribution.
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p)
    rescaled = ((u - ratio) / (1 - ratio)).nan_to_num_(0.0).clamp_(0.0, 1.0)
    return chosen.index_copy_(0, rows, torch.where(u < ratio, tokens, _invert_cdf(left, rescaled)))


def _invert_cdf(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample (n,) by inverting the cumulated probabilities (n, V), which need not sum to 1.

    Summed in float64, in which a device's order of summation has no effect.
    """
    sums = probs.cumsum(-1, dtype=uniforms.dtype)
    last = torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))  # later tokens have no probability
    targets = torch.minimum(uniforms[:, None] * sums[:, -1:], last)
    return torch.searchsorted(sums, targets, right=True)[:, 0].clamp_(max=probs.shape[1] - 1)
