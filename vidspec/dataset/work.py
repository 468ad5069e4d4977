"""The plain values a bulk run passes along: an input, what is still to do of it, a part with its frames, an outcome."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vidspec.events.record import Caption

if TYPE_CHECKING:
    from vidspec.video.base import Clip

__all__ = ["Entry", "How", "Outcome", "Questions", "Task", "Work"]


class Questions(NamedTuple):
    """Several things that are asked about one clip: in turns, each behind the answers before, or all at once."""

    texts: tuple[str, ...]
    in_turns: bool


@dataclass(frozen=True)
class Entry:
    """One input: a clip, or the part of it that a manifest names.

    Attributes:
        path: as the user named it; what a record shows.
        root: the folder that ``--output-dir`` mirrors from; the clip lies below it, or its name alone is used.
        start, end: seconds; None for the beginning and the end.
        prompt: asked instead of the run's, and of the run's questions.
        questions: asked instead of these.
        id: what the manifest calls it; two of the same part are two inputs.
        columns: what else the manifest says of it; kept in the record and otherwise without meaning.
    """

    path: str
    root: str = "."
    start: float | None = None
    end: float | None = None
    prompt: str | None = None
    questions: Questions | None = None
    id: str | int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def relative(self) -> str:
        """The path below ``root``; the bare name where it is not below."""
        below = os.path.relpath(self.path, self.root)
        outside = below == os.pardir or below.startswith(os.pardir + os.sep) or os.path.isabs(below)
        return os.path.basename(self.path) if outside else below


@dataclass(frozen=True)
class Task:
    """What is to be done of one entry.

    Attributes:
        entry: the input.
        number: its place in the run, from 1.
        done: segments, or questions, that are finished already, by number, with their captions (None for failed ones).
        alone: whether its segments are captioned one after the other, as where one of them ended a process.
    """

    entry: Entry
    number: int = 1
    done: Mapping[int, str | None] = field(default_factory=dict)
    alone: bool = False

    @property
    def whole(self) -> Work:
        """The entry as one piece."""
        entry = self.entry
        return Work(
            entry.path,
            entry.start,
            entry.end,
            entry.prompt,
            entry=entry,
            number=self.number,
            alone=self.alone,
            done=self.done,
        )


@dataclass(frozen=True)
class How:
    """How every clip of a run is done; plain values that travel to other processes.

    Attributes:
        video: ``frames, fps, max_pixels, decoder, allow_damaged`` as ``vidspec.video.read`` takes them.
        prompt: the run's prompt; context is added to it, an entry's own prompt replaces it.
        questions: asked about each clip instead of the prompt.
        segment: None for whole clips, ``scenes``, or the length of a segment in seconds.
        context: whether a segment's prompt quotes the caption of the one before.
        baseline, verify: also decode plainly, to report the true speed-up or to fail on a difference.
        timeout: seconds a clip (or segment) may take; None for no limit.
        batch: how many clips are captioned at once at most; None to leave it to the captioner.
        ahead: how many clips may be read while they wait for their turn.
        total: how many clips the run has.
        models_named: whether the user named the models; captions of built-in ones that nobody named are marked.
    """

    video: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    questions: Questions | None = None
    segment: float | str | None = None
    context: bool = False
    baseline: bool = False
    verify: bool = False
    timeout: float | None = None
    batch: int | None = None
    ahead: int = 8
    total: int = 1
    models_named: bool = False

    def questions_of(self, entry: Entry | None) -> Questions | None:
        """What is asked about an input; None where that is one thing."""
        if entry is None or not (entry.questions or entry.prompt):
            return self.questions
        return entry.questions


@dataclass(frozen=True)
class Work:
    """One thing to caption now: a clip or one of its segments, with its frames.

    Attributes:
        path, start, end, prompt: as in :class:`Entry`.
        entry: the input it is (a part of); None where there is only a path.
        segment, segments: which of how many segments, or questions, from 0; None for a whole clip.
        clip: the frames, or None to let the captioner read them.
        error: why there are no frames.
        read_s: seconds that reading took.
        number: the entry's place in the run, from 1.
        previous: the caption of the segment before, where it is known already.
        done: of several questions, the answers that are there already.
        after: the segment of the same run before it, None for the first; outcomes come in this order.
        last: whether nothing more of this entry follows.
        alone: as in :class:`Task`.
        held: bytes of memory that the frames, and what was prepared from them, take.
    """

    path: str
    start: float | None = None
    end: float | None = None
    prompt: str | None = None
    entry: Entry | None = None
    segment: int | None = None
    segments: int | None = None
    clip: Clip | None = field(default=None, repr=False, compare=False)
    error: Exception | None = None
    read_s: float = 0.0
    number: int = 0
    previous: str | None = None
    done: Mapping[int, str | None] = field(default_factory=dict)
    after: int | None = None
    last: bool = True
    alone: bool = False
    held: int = 0


class Outcome(NamedTuple):
    """A clip's (or segment's) record, and why it failed: a VidspecError, a bug, or None."""

    caption: Caption
    error: Exception | None
    work: Work
