"""Messages of the draft process's pipe in addition to the protocol's; plain, small values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidspec.decoding.protocol import DraftMessage, WorkerResult
from vidspec.models.placement import Placement

if TYPE_CHECKING:
    from vidspec.config.profiles import Profile
    from vidspec.events.trace import Span
    from vidspec.models.identity import Identity
    from vidspec.models.request import CaptionRequest

__all__ = [
    "ClipAnswer",
    "ClipOrder",
    "CloseClip",
    "DraftLoadFailed",
    "DraftLoaded",
    "DraftSpans",
    "DraftStart",
    "OpenClip",
]


@dataclass(frozen=True)
class DraftStart:
    """Start parameters of the process: the drafting model, its placement, and torch threads on a CPU."""

    model: str
    where: Placement
    threads: int | None


@dataclass(frozen=True)
class DraftLoaded:
    """The model is loaded; its identity."""

    identity: Identity


@dataclass(frozen=True)
class DraftLoadFailed:
    """The model cannot be loaded: the error's message, hint and kind, and its traceback. The process ends."""

    message: str
    hint: str | None
    kind: str
    traceback: str


@dataclass(frozen=True)
class OpenClip:
    """Open a clip under ``profile``.

    ``request``: its frames and prompt. ``eager``: encode them at once, before any message. ``room``: cache entries
    needed after the prompt. ``texts``: for drafts without video, token ids of the target's prompt with each of these
    texts in its place.
    """

    clip: int
    profile: Profile
    request: CaptionRequest
    room: int
    eager: bool
    texts: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class CloseClip:
    """Close a clip: answer with ``DraftSpans`` and forget it."""

    clip: int


@dataclass(frozen=True)
class ClipOrder:
    """A protocol message for a clip. ``visual``: the number of the target's visual tokens, if known."""

    clip: int
    message: DraftMessage
    visual: int | None = None


@dataclass(frozen=True)
class ClipAnswer:
    """A protocol result for a clip."""

    clip: int
    result: WorkerResult


@dataclass(frozen=True)
class DraftSpans:
    """The draft's timed work, on ``time.perf_counter``, which all processes of a machine share.

    ``forwards`` counts its passes over this clip so far.
    """

    clip: int
    spans: tuple[Span, ...]
    forwards: int
