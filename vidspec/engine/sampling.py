"""Token selection from logits: greedy, or by temperature and top-p; the random numbers of a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from vidspec.engine.device import to_device

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
        cuts = SamplingCuts.of([self])
        fields = to_device(torch.tensor(self.fields), probs.device)[:, None, None]
        found, exact = cut_rows(probs, fields, cuts)
        return (
            found if exact is None or bool(exact.all()) else cut_rows(probs, fields, cuts.with_all(probs.shape[1]))[0]
        )

    @property
    def fields(self) -> tuple[float, float, float, float]:
        """Temperature, 1 if greedy; ``top_p`` and ``top_k``, infinite for none; ``min_p``: see :func:`cut_rows`."""
        return (
            self.temperature or 1.0,
            self.top_p if self.top_p < 1 and not self.greedy else math.inf,
            self.top_k or math.inf if not self.greedy else math.inf,
            0.0 if self.greedy else self.min_p,
        )


class SamplingCuts(NamedTuple):
    """The cuts that some rows of a pass need.

    Attributes:
        width: number of highest probabilities that are sorted; 0 if no row has ``top_k`` or ``top_p``.
        top_p, top_k, min_p: True if some row has them.
        uncut: True if some row has neither ``top_k`` nor ``top_p``.
    """

    width: int
    top_p: bool
    top_k: bool
    min_p: bool
    uncut: bool

    @classmethod
    def of(cls, samplings: Iterable[Sampling]) -> SamplingCuts:
        """Return the cuts of rows that are sampled in these ways."""
        rows = [sampling.fields for sampling in samplings]
        top_ks = [int(top_k) for _, _, top_k, _ in rows if top_k < math.inf]
        uncut = any(min(top_p, top_k) == math.inf for _, top_p, top_k, _ in rows)
        top_p, min_p = any(top_p < math.inf for _, top_p, _, _ in rows), any(min_p > 0 for *_, min_p in rows)
        # A power of two, so that few passes differ.
        width = max(PREFIX, *(1 << (top_k - 1).bit_length() for top_k in top_ks)) if top_ks else PREFIX
        return cls(width if top_ks or top_p else 0, top_p, bool(top_ks), min_p, uncut)

    def with_all(self, vocabulary: int) -> SamplingCuts:
        """Return the same cuts by a sort of all probabilities."""
        return self._replace(width=vocabulary)


def cut_rows(probs: torch.Tensor, fields: torch.Tensor, cuts: SamplingCuts) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return :meth:`Sampling.nucleus` of rows, without sorting all probabilities, and no wait for a device.

    Args:
        probs: (n, V).
        fields: (4, n, 1) float32, :attr:`Sampling.fields` of each row.
        cuts: what some rows need.

    Returns:
        The result, and for each row True if it is exact, because the sorted ones reach ``top_p``; None if all are.
    """
    _, top_p, top_k, min_p = fields
    exact = None
    if cuts.width:
        vocabulary = probs.shape[1]
        width = min(cuts.width, vocabulary)
        given, highest = probs, probs.topk(width).values
        ranks = highest
        inside = torch.arange(width, device=probs.device) < top_k
        if cuts.top_k:
            ranks = highest * inside
            total = functional.pad(ranks, (0, vocabulary - width)).sum(-1, keepdim=True)
            total = total.masked_fill(top_k == torch.inf, 1.0)
            ranks, probs, highest = ranks / total, probs / total, highest / total
        sums = ranks.cumsum(-1)
        kept = (sums - ranks < top_p) & inside
        if cuts.top_p and width < vocabulary:
            exact = ((sums[:, -1:] >= top_p) | (top_k < torch.inf) | (top_p == torch.inf))[:, 0]
        count = kept.sum(-1, keepdim=True)
        lowest = highest.gather(-1, (count - 1).clamp_(min=0))  # no row counts where logits are not finite
        tied = probs == lowest
        few = tied.cumsum(-1) <= count - (highest > lowest).sum(-1, keepdim=True)
        probs = probs.masked_fill((probs < lowest) | (tied & ~few), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
        if cuts.uncut:
            probs = torch.where((top_p == torch.inf) & (top_k == torch.inf), given, probs)
    if cuts.min_p:
        least = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = torch.where(min_p > 0, least / least.sum(-1, keepdim=True), probs)
    return probs, exact


@dataclass(frozen=True)
class DrawRule:
    """Rule for drawing the tokens after the last n rows of a sequence in a pass.

    Attributes:
        sampling: not greedy.
        uniforms: n numbers in [0, 1), one for each of these rows.
        drafted: (n - 1, V) draft distributions of the tokens of all but the first of these rows; None if they were not
            drawn.
        keeps_probs: True to return the distributions of these rows.
    """

    sampling: Sampling
    uniforms: tuple[float, ...]
    drafted: torch.Tensor | None = None
    keeps_probs: bool = False


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
    probs: torch.Tensor, uniforms: torch.Tensor, tokens: torch.Tensor, drafted: torch.Tensor | None
) -> torch.Tensor:
    """Return the token that each row chooses, (n,): a draw, or for rows with a drafted token that token or another.

    Token x ~ q is accepted with probability min(1, p(x) / q(x)), else the row draws from norm(max(0, p - q)) (Leviathan
    et al. 2023; Chen et al. 2023). One number u decides both: given that u is at least the ratio r, (u - r) / (1 - r)
    is again uniform.

    Args:
        probs: (n, V) p of each row.
        uniforms: (n,) in [0, 1), from :func:`on_device`.
        tokens: (n,) the drafted token after each row; any if there is none.
        drafted: (n, V) its q; infinite if there is none, so that r is 0 and the draw is from p. None if no row has one.
    """
    if drafted is None:
        return invert_cdf(probs, uniforms)
    at = tokens[:, None]
    ratio = (probs.gather(1, at) / drafted.gather(1, at))[:, 0].to(uniforms).clamp_(max=1.0)
    left = (probs - drafted).clamp_(min=0)
    # Rounding can empty a residual that should be tiny; p itself is then the same distribution.
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, probs)
    rescaled = ((uniforms - ratio) / (1 - ratio)).nan_to_num_(0.0).clamp_(0.0, 1.0)
    return torch.where(uniforms < ratio, tokens, invert_cdf(left, rescaled))


def invert_cdf(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample (n,) by inverting the cumulated probabilities (n, V), which need not sum to 1.

    Summed in float64, in which a device's order of summation has no effect.
    """
    sums = probs.cumsum(-1, dtype=uniforms.dtype)
    last = torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:]))  # later tokens have no probability
    targets = torch.minimum(uniforms[:, None] * sums[:, -1:], last)
    return torch.searchsorted(sums, targets, right=True)[:, 0].clamp_(max=probs.shape[1] - 1)
