"""Clips of models with random weights on the real loop, whose prompts count as read: for times and counts of rounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from vidspec.acceptance.base import AcceptanceRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.decoding.sequence import Drafting, Sequence
from vidspec.decoding.target import Target
from vidspec.drafting.base import Drafter
from vidspec.engine.forward import Engine
from vidspec.engine.rows import PrefillResult
from vidspec.engine.sampling import Sampling
from vidspec.events.trace import Trace
from vidspec.models.detokenizer import Detokenizer
from vidspec.models.request import CaptionRequest

if TYPE_CHECKING:
    from vidspec.decoding.setup import DecodingSetup

#: More tokens than a measurement takes.
_ENDLESS = 10**6


class Words:
    """A tokenizer whose tokens are words."""

    def decode(self, ids: Any, **_: object) -> str:
        return " ".join(map(str, ids))


def begin_clip(
    loop: Loop,
    key: int,
    target: Engine,
    read: PrefillResult,
    drafter: Drafter | None = None,
    acceptance: AcceptanceRule | None = None,
    gamma: int = 0,
    sampling: Sampling | None = None,
) -> Sequence:
    """Begin an endless text after a prompt that target and drafter have read; without a drafter, plain decoding.

    Args:
        loop: runs it.
        key: of the clip, and the seed of its random numbers.
        target: its engine.
        read: result of its prefill.
        drafter, acceptance, gamma: of the windows.
        sampling: of target and drafter; None for greedy.
    """
    setup = cast("DecodingSetup", SimpleNamespace(window=gamma))
    one = Sequence(CaptionRequest(str(key)), setup, Trace(loop.synchronise), key)
    rng = torch.Generator().manual_seed(key)
    one.target = Target(target, read, sampling or Sampling(), rng, acceptance=acceptance)
    one.limits, one.text = StoppingRules(_ENDLESS), Detokenizer(Words())
    one.emit_first()
    if drafter is not None:
        one.target.tapped, one.drafting = drafter.tapped, Drafting(drafter, gamma)
        drafter.begin(one.token_ids[0])
    one.steps = autoregressive(one) if drafter is None else sequential(one)
    loop.begin(one)
    return one
