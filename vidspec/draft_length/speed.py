"""Expected tokens of a round, by which windows are weighed. Pure; :mod:`research.speed` has the whole speed model."""

from __future__ import annotations

__all__ = ["chain_tokens"]


def chain_tokens(beta: float, gamma: int) -> float:
    """Return the expected tokens of a verified chain with its correction or bonus: (1 - beta^(gamma+1)) / (1 - beta).

    Leviathan et al. 2023, Eq. 1. ``beta``, in [0, 1], is the probability that a drafted token is accepted,
    independently of all others; gamma >= 0 is the window.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"a probability cannot be {beta}")
    return gamma + 1.0 if beta == 1 else (1 - beta ** (gamma + 1)) / (1 - beta)
