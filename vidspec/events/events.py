"""Events of captioning a clip, as plain values. Live panel, writers and bench see only these.

No torch and no behaviour: consumers derive every count from the events they receive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from vidspec.events.record import Caption

__all__ = [
    "Event",
    "Finished",
    "InputsReleased",
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
    "SourceFacts",
    "Thumbnail",
]


@dataclass(frozen=True)
class SourceFacts:
    """Facts about the source file of a clip.

    ``width`` and ``height`` are those of an upright frame of square pixels before ``max_pixels``. ``rotation`` is the
    applied rotation in degrees counter-clockwise (0, 90, 180, 270). ``fps`` is the mean rate. ``frame_count`` counts
    the frames that can be delivered. ``decoder`` is the one that delivered them: av, decord or a hardware decoder's
    name. ``damage`` lists missing or undecodable parts of the file; empty unless damage was allowed. ``pixel_aspect``
    is the width of a coded pixel over its height if frames were stretched by it. ``transfer`` is "pq" or "hlg" for HDR,
    whose colours are shown without tone mapping. ``tilt``: degrees counter-clockwise that the file asks for beyond
    ``rotation``, at most 45, which are not applied. ``clean_aperture``: (width, height) of the coded picture that
    players show, if the file states less than all of it; frames are not cropped to it.
    """

    path: str
    duration_s: float
    width: int
    height: int
    codec: str
    container: str
    fps: float
    variable_fps: bool
    rotation: int
    frame_count: int
    decoder: str
    damage: tuple[str, ...] = ()
    pixel_aspect: float | None = None
    transfer: str | None = None
    tilt: float | None = None
    clean_aperture: tuple[int, int] | None = None


#: Origin of an emitted token: ``draft`` proposed and accepted because the acceptance rule's exact test passed,
#: ``block`` the same of a head that drafts all positions in one pass,
#: ``correction`` the target's own token at the first mismatch, ``bonus`` the target's token after a window that was
#: accepted whole, ``target`` plain decoding (and the first token, from the target's prefill), ``loose`` a draft
#: token that a lossy rule accepted although the target would have chosen another.
Origin: TypeAlias = Literal["draft", "block", "correction", "bonus", "target", "loose"]
#: Kind of a round's target pass in the parallel schedule: the prefill, a pass without a draft, one that verified a
#: single proposal, or one that also verified pending tokens. Empty in the other schedules.
Mode: TypeAlias = Literal["", "prefill", "alone", "pre", "post"]


@dataclass(frozen=True, slots=True)
class LooseToken:
    """A drafted token accepted by a lossy rule although the target would have chosen another.

    ``at`` is its index among the tokens that its window emitted, ``wanted`` the target's own token there. ``by`` is the
    test it passed: ``relevance`` or ``shift`` (LVSpec), ``entropy`` (FLy), ``chance`` (random relaxation).
    ``relevance`` is its visual relevance, a mean cosine, and ``entropy`` that of the target at its position, in nats;
    None if the rule does not measure it.
    """

    at: int
    wanted: int
    by: str
    relevance: float | None = None
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """A proposed token in whose place another was emitted.

    ``at`` is the index among the tokens that the window emitted, and ``text`` what the token would have added there. In
    a tree, an index may have several.
    """

    at: int
    token: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small picture of a sampled frame: its index and time, and ``rows`` x ``columns`` RGB pixels, a byte each."""

    index: int
    seconds: float
    rows: int
    columns: int
    pixels: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """The frames of a clip are in memory.

    ``demo``: the built-in models, which know drawn shapes only, will caption it. ``thumbnails`` are of a few frames.
    """

    path: str
    facts: SourceFacts
    frames: int
    timestamps: tuple[float, ...]
    demo: bool = False
    thumbnails: tuple[Thumbnail, ...] = ()


@dataclass(frozen=True, slots=True)
class Restarted:
    """The clip restarts after a worker was lost, or memory ran out: discard all events since ``Opened``."""

    why: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The target has read its prompt; the first token follows. The draft may still have to read its own.

    ``kept_per_frame[i]`` of ``tokens_per_frame[i]`` visual tokens of (sampled) frame ``i`` are visible to the draft;
    both are empty without a draft. ``kept`` holds the indices of the visual tokens the draft sees, in the order of the
    target's visual tokens. ``grid`` is the number of frames (temporal steps), rows and columns of visual tokens, and
    ``cells[i]`` the cell of token ``i`` in it, counted frame by frame in raster order; -1 for separators. ``views`` are
    rows and columns of several rasters, stacked by rows, that each cover the whole frame. ``contexts`` names the
    contexts of an ensemble, and ``caption`` is the text that replaces the video in the context of that name.
    ``lossless`` is False if the acceptance rule may change the text. ``schedule`` is the profile's schedule.
    ``signals`` are the target's attention to the visual tokens where a pruner observed it: by name, one byte per token,
    its rank from 0 (least) to 255. ``audio_tokens`` counts the tokens that stand for sound.
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
    signals: tuple[tuple[str, bytes], ...] = ()
    audio_tokens: int = 0

    @property
    def is_draft_text_only(self) -> bool:
        """True if there is a draft and it reads no visual token."""
        return bool(self.kept_per_frame) and not self.kept


@dataclass(frozen=True, slots=True)
class InputsReleased:
    """No model needs the clip's frames any more: all prompts have been read, and their memory is allocated.

    It follows the first ``Round``, ``elapsed`` seconds after the trace began; in between the draft reads its prompt,
    unless it works in another process, or the text has ended.
    """

    elapsed: float


@dataclass(frozen=True, slots=True)
class Round:
    """One verification (or one plain decoding step): proposed and emitted tokens.

    ``token_ids``, ``origins`` and ``texts`` run in parallel, one entry per emitted token; ``texts`` holds what each
    token adds to the caption (empty while a character is incomplete, and for reasoning before the caption).
    ``drafted`` counts proposed tokens, ``accepted`` those of them that were emitted. ``elapsed`` is seconds since
    ``Prefilled``; ``draft_s`` and ``verify_s`` are seconds of drafting and of verification. ``weights`` are those
    of an ensemble's contexts for this window, in the order of ``Prefilled.contexts``. ``loosened`` explains each
    token of origin ``loose``, and ``rejected`` lists the proposals that other tokens replaced.

    In the parallel schedule, where drafting and verification overlap, ``drafted`` counts the tokens decided in this
    round, and ``draft_s`` is the sum of the passes whose tokens arrived in it. ``mode`` is the kind of the target's
    pass, ``gamma`` the window in force, ``wasted`` counts drafted tokens that were not emitted and ``aborted`` those of
    them that arrived after their prefix was rejected. ``start`` is the position of the first of ``token_ids``,
    ``epoch`` numbers the draft's restarts, and ``rows`` counts the rows of the target's pass (0: the prefill).

    ``probabilities`` are the target's for the emitted tokens, after penalties and before temperature and top-p, if
    requested (``EngineClient.return_probs``).
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
        """Pending tokens that the target's pass verified."""
        return max(0, self.rows - 1)

    def holds(self, epoch: int, position: int) -> bool:
        """Return True if it emitted the draft's proposal for a position in an epoch."""
        return self.epoch == epoch and self.start <= position < self.start + self.accepted


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a clip."""

    caption: Caption


@dataclass(frozen=True, slots=True)
class LoopLoad:
    """Load of the loop that decodes many clips, for all of them together; not an event of one clip.

    ``clips`` of at most ``batch`` are in flight, and ``waiting`` further ones are ready but not admitted yet. The last
    target pass had ``rows`` rows of ``sequences`` sequences. So far ``passes`` target passes emitted ``accepted`` draft
    tokens. Clips in flight hold ``kv_used`` of ``kv_capacity`` bytes of KV cache. ``reading`` is the share of the time
    so far in which the models were idle because no clip had been read yet.
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
    """Prefill progress: tokens read so far. Emitted occasionally for prompts that take several passes."""

    tokens: int
    prompt_tokens: int


#: An event of one clip.
Event: TypeAlias = Opened | PrefillProgress | Restarted | Prefilled | InputsReleased | Round | Finished
