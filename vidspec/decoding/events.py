"""What happens while a clip is captioned, as plain values; the live panel, the writers and the bench see only these.

No torch here, no behaviour: everything a consumer wants to count derives from the events it received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from vidspec.record import Caption
    from vidspec.video.base import SourceFacts

__all__ = ["Event", "Finished", "Opened", "Origin", "Prefilled", "Round"]

#: Where an emitted token came from: ``draft`` proposed and accepted because the acceptance rule's exact test passed,
#: ``correction`` the target's own token at the first mismatch, ``bonus`` the target's token after a window that
#: passed whole, ``target`` plain decoding (and the first token, which the target's prefill yields), ``loose`` a draft
#: token that a lossy rule let pass although the target would have chosen another.
Origin: TypeAlias = Literal["draft", "correction", "bonus", "target", "loose"]


@dataclass(frozen=True, slots=True)
class Opened:
    """The frames of a clip are in memory."""

    path: str
    facts: SourceFacts
    frames: int
    timestamps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Target and draft have read their prompts; decoding starts.

    ``kept_per_frame[i]`` of ``tokens_per_frame[i]`` visual tokens of (sampled) frame ``i`` are visible to the draft;
    both are empty when nothing drafts. ``kept`` holds the indices of the visual tokens the draft sees, in the order of
    the target's visual tokens.
    """

    prompt_tokens: int
    visual_tokens: int
    kept: tuple[int, ...]
    kept_per_frame: tuple[int, ...]
    tokens_per_frame: tuple[int, ...]
    elapsed: float


@dataclass(frozen=True, slots=True)
class Round:
    """One verification (or one plain decoding step): what was proposed and what was emitted.

    ``token_ids``, ``origins`` and ``texts`` run in parallel, one entry per emitted token; ``texts`` holds what each
    token adds to the caption (it may be empty while a character is incomplete). ``drafted`` counts proposed tokens,
    ``accepted`` those of them that were emitted. ``elapsed`` is the time in seconds since the prefill ended, and
    ``draft_s``/``verify_s`` are what this round spent in its two halves.
    """

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    drafted: int
    accepted: int
    elapsed: float
    draft_s: float = 0.0
    verify_s: float = 0.0
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a clip."""

    caption: Caption


Event: TypeAlias = Opened | Prefilled | Round | Finished
