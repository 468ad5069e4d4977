"""What happens while a clip is captioned, as plain values; the live panel, the writers and the bench see only these.

No torch here, no behaviour: everything a consumer wants to count derives from the events it received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from vidspec.events.record import Caption
    from vidspec.events.source import SourceFacts

__all__ = [
    "Event",
    "Finished",
    "LoopLoad",
    "LooseToken",
    "Mode",
    "Opened",
    "Origin",
    "PrefillProgress",
    "Prefilled",
    "RejectedToken",
    "Restarted",
    "Round",
]

#: Where an emitted token came from: ``draft`` proposed and accepted because the acceptance rule's exact test passed,
#: ``correction`` the target's own token at the first mismatch, ``bonus`` the target's token after a window that
#: passed whole, ``target`` plain decoding (and the first token, which the target's prefill yields), ``loose`` a draft
#: token that a lossy rule let pass although the target would have chosen another.
Origin: TypeAlias = Literal["draft", "correction", "bonus", "target", "loose"]
#: What a round's target pass was under the parallel schedule: the prefill, a pass without a draft, one that checked a
#: single proposal, or one that also checked pending tokens. Empty under the others.
Mode: TypeAlias = Literal["", "prefill", "alone", "pre", "post"]


@dataclass(frozen=True, slots=True)
class LooseToken:
    """A drafted token that a lossy rule let pass although the target would have chosen another.

    ``at`` is its place among the tokens that its window emitted, ``wanted`` the target's own token there. ``by`` says
    what let it pass: ``relevance`` or ``shift`` (LVSpec), ``entropy`` (FLy), ``chance`` (random relaxation).
    ``relevance`` is its visual relevance, a mean cosine, and ``entropy`` the target's at its place, in nats; None
    where the rule does not measure it.
    """

    at: int
    wanted: int
    by: str
    relevance: float | None = None
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """What the draft proposed where another token was emitted.

    ``at`` is the place among the tokens that the window emitted, and ``text`` what the token would have added there. In
    a tree a place may have several.
    """

    at: int
    token: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """The frames of a clip are in memory.

    ``demo``: the built-in models are about to caption it, which know drawn shapes only.
    """

    path: str
    facts: SourceFacts
    frames: int
    timestamps: tuple[float, ...]
    demo: bool = False


@dataclass(frozen=True, slots=True)
class Restarted:
    """A worker was lost, and the clip is done again from its prompt: what came since ``Opened`` is void."""

    why: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Target and draft have read their prompts; decoding starts.

    ``kept_per_frame[i]`` of ``tokens_per_frame[i]`` visual tokens of (sampled) frame ``i`` are visible to the draft;
    both are empty when nothing drafts. ``kept`` holds the indices of the visual tokens the draft sees, in the order of
    the target's visual tokens. ``grid`` is how many frames (temporal steps), rows and columns of visual tokens there
    are, and ``cells[i]`` the cell of token ``i`` in it, counted frame by frame in raster order; -1 for separators.
    ``views`` are rows and columns of each of several rasters, one below the other, that show the whole frame each.
    ``contexts`` names what an ensemble shows the draft, and ``caption`` is the text that
    stands for the video in its context of that name. ``lossless`` is False if the acceptance rule may change the text.
    ``schedule`` is how draft and target work.
    ``kept_per_layer`` counts, of a target that is pruned itself, the visual tokens that each of its blocks reads.
    ``signals`` are the target's attention to the visual tokens where it was observed for a pruner: by its name there a
    byte for each token, its rank among all from 0, the least, to 255. ``audio_tokens`` counts those that stand for what
    is heard.
    """

    prompt_tokens: int
    visual_tokens: int
    kept: tuple[int, ...]
    kept_per_frame: tuple[int, ...]
    tokens_per_frame: tuple[int, ...]
    elapsed: float
    grid: tuple[int, int, int] = (0, 0, 0)
    cells: tuple[int, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    contexts: tuple[str, ...] = ()
    caption: str | None = None
    lossless: bool = True
    schedule: str = ""
    kept_per_layer: tuple[int, ...] = ()
    signals: tuple[tuple[str, bytes], ...] = ()
    audio_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One verification (or one plain decoding step): what was proposed and what was emitted.

    ``token_ids``, ``origins`` and ``texts`` run in parallel, one entry per emitted token; ``texts`` holds what each
    token adds to the caption (it may be empty while a character is incomplete). ``drafted`` counts proposed tokens,
    ``accepted`` those of them that were emitted. ``elapsed`` is the time in seconds since the prefill ended, and
    ``draft_s``/``verify_s`` are what this round spent in its two halves. ``weights`` are those of an ensemble's
    contexts for this window, in the order of ``Prefilled.contexts``. ``loosened`` tells of each token whose origin is
    ``loose`` why it passed, and ``rejected`` of what was proposed in the place of others.

    Of the parallel schedule, whose two halves overlap, ``drafted`` are the tokens whose fate this round settled, and
    ``draft_s`` is the sum of the passes whose tokens arrived in it. ``mode`` tells what the target's pass was,
    ``gamma`` the window in force, ``wasted`` how many drafted tokens were not emitted and ``aborted`` how many of those
    came after they had lost their prefix. ``start`` is the position of the first of ``token_ids``, ``epoch`` numbers
    the draft's restarts, and ``rows`` were in the target's pass (0: the prefill).

    ``probabilities`` are those that the target gave the emitted tokens, after penalties and before temperature and
    top-p, where somebody wants to know (``Request.return_probs``).
    """

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    drafted: int
    accepted: int
    elapsed: float
    draft_s: float = 0.0
    verify_s: float = 0.0
    texts: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    mode: Mode = ""
    gamma: int = 0
    wasted: int = 0
    aborted: int = 0
    loosened: tuple[LooseToken, ...] = ()
    rejected: tuple[RejectedToken, ...] = ()
    start: int = 0
    epoch: int = 0
    rows: int = 0
    probabilities: tuple[float, ...] = ()

    @property
    def pending(self) -> int:
        """Tokens that the target's pass checked."""
        return max(0, self.rows - 1)

    def holds(self, epoch: int, position: int) -> bool:
        """Whether it emitted what the draft proposed for a position in an epoch."""
        return self.epoch == epoch and self.start <= position < self.start + self.accepted


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a clip."""

    caption: Caption


@dataclass(frozen=True, slots=True)
class LoopLoad:
    """How busy the loop is that decodes many clips; of all of them together, so no event of one.

    ``clips`` of at most ``batch`` are in flight, and ``waiting`` further ones are ready but not admitted yet. The last
    pass of the target had ``rows`` rows of ``sequences`` sequences. So far its ``passes`` passes emitted ``accepted``
    draft tokens. ``kv_used`` of ``kv_capacity`` bytes of keys and values belong to clips in flight. ``reading`` is
    the share of the time so far in which the models had nothing to do, as no clip had been read yet.
    """

    clips: int
    waiting: int
    sequences: int
    rows: int
    accepted: int
    passes: int
    kv_used: int
    kv_capacity: int
    batch: int
    reading: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Of a prompt that takes several passes so many tokens have been read; now and then, until it is ``Prefilled``."""

    tokens: int
    prompt_tokens: int


#: Of one clip.
Event: TypeAlias = Opened | PrefillProgress | Restarted | Prefilled | Round | Finished
