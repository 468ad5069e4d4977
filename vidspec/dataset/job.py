"""A clip of a run as one object, :class:`Job`, and how all jobs of the run are done; reads and captions nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vidspec.config.bounds import STALL
from vidspec.dataset.allowance import FetchLimits
from vidspec.events.record import Caption
from vidspec.models.request import CaptionRequest

__all__ = ["CONTEXT", "Job", "JobConfig", "JobQuestions", "JobResult", "MemberSource"]

#: The prompt of a segment that quotes the caption of the one before.
CONTEXT = "{prompt}\n\nThis is a later part of a longer video. The part before it was described like this: {previous}"


class JobQuestions(NamedTuple):
    """Several questions about one clip: asked in turns, each after the answers before, or all at once."""

    texts: tuple[str, ...]
    in_turns: bool


class MemberSource(NamedTuple):
    """Where the bytes of a clip are that is no local file; plain values that travel to other processes.

    Attributes:
        url: the shard, local or not, or the clip itself where ``size`` is None.
        start: in a tar its first byte, in a Parquet file its row.
        size: of a tar member its bytes, of a Parquet file those of the file.
        mtime_ns: of a tar member; None where it is not known.
        column: of a Parquet file; None for all else.
    """

    url: str
    start: int = 0
    size: int | None = None
    mtime_ns: int | None = None
    column: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(CaptionRequest):
    """A clip to caption, or one part of it: a segment, or one of several questions.

    The inputs make it of a path, the plan numbers it, the feed adds frames and cuts it into segments, the run asks
    the questions. The fields of ``CaptionRequest`` are those of the part; ``path`` is as the user named it,
    ``prompt`` None for the run's, and ``spent`` begins with the seconds that reading took.

    Attributes:
        root: the folder that ``--output-dir`` mirrors from; the clip lies below it, or its name alone is used.
        questions: asked instead of the run's prompt or questions.
        id: what the manifest calls it; two of the same part are two inputs.
        columns: other columns of the manifest; kept in the record and otherwise without meaning.
        source: where its bytes are; None where ``path`` is a file.
        shard: the tar or Parquet file that it was found in; None for none.
        number: place in the run, from 1.
        done: captions of finished parts by number, None for failed ones.
        alone: whether its parts are captioned one after the other, as where one of them ended a process.
        segment, segments: which part of how many, from 0; None for the whole clip.
        error: why there are no frames.
        planned: the clip as it was planned, whole and without frames; None for itself.
    """

    root: str = "."
    questions: JobQuestions | None = None
    id: str | int | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    source: MemberSource | None = None
    shard: str | None = None
    number: int = 1
    done: Mapping[int, str | None] = field(default_factory=dict)
    run_alone: bool = False
    segment: int | None = None
    segments: int | None = None
    error: Exception | None = None
    planned: Job | None = None

    @property
    def planned_job(self) -> Job:
        """The clip that this is a part of, as it was planned."""
        return self.planned or self

    @property
    def relative(self) -> str:
        """The path below ``root``; the bare name where it is not below."""
        below = os.path.relpath(self.path, self.root)
        outside = below == os.pardir or below.startswith(os.pardir + os.sep) or os.path.isabs(below)
        return os.path.basename(self.path) if outside else below

    @property
    def previous(self) -> int | None:
        """The part before it that is captioned in the same run; None for the first."""
        before = range((self.segment or 0) - 1, -1, -1)
        return next((number for number in before if number not in self.done), None)

    @property
    def is_last(self) -> bool:
        """Whether it is the last part of its clip."""
        if self.segment is None or self.segments is None:
            return True
        return all(number in self.done for number in range(self.segment + 1, self.segments))

    def without_frames(self) -> Job:
        """The same without frames and caches, for records and other processes."""
        return replace(self, clip=None, cache=None, error=None, reread=None)


@dataclass(frozen=True)
class JobConfig:
    """How every job of a run is done; plain values that travel to other processes.

    Attributes:
        video: ``frames, fps, max_pixels, decoder, allow_damaged`` as ``vidspec.video.read`` takes them.
        prompt: the run's prompt; context is added to it, a job's own prompt replaces it.
        questions: asked about each clip instead of the prompt.
        segment: None for whole clips, ``scenes``, or the length of a segment in seconds.
        context: whether a segment's prompt quotes the caption of the one before.
        baseline, verify: also decode plainly, to report the true speed-up or to fail on a difference.
        timeout: seconds a clip (or segment) may take; None for no limit.
        stall: seconds that reading it may go on without a packet or a frame.
        fetch: limits of clips that are no local files.
        batch: how many clips are captioned at once at most; None to leave it to the captioner.
        ahead: how many clips may be read while they wait for their turn.
        total: how many clips the run has.
        template: text that each caption is written into, see :mod:`vidspec.dataset.rendering`; None for none.
        single_line: whether each caption is written on one line.
        models_named: whether the user named the models; captions of built-in ones that nobody named are marked.
    """

    video: Mapping[str, object] = field(default_factory=dict)
    prompt: str = ""
    questions: JobQuestions | None = None
    segment: float | str | None = None
    context: bool = False
    baseline: bool = False
    verify: bool = False
    timeout: float | None = None
    stall: float = STALL
    fetch: FetchLimits = field(default_factory=FetchLimits)
    batch: int | None = None
    ahead: int = 8
    total: int = 1
    template: str | None = None
    single_line: bool = False
    models_named: bool = False

    def questions_of(self, job: Job) -> JobQuestions | None:
        """The questions about a clip; None where there is one prompt."""
        whole = job.planned_job
        return whole.questions if whole.questions or whole.prompt else self.questions

    def one_by_one(self, job: Job) -> bool:
        """Whether the parts of a clip are captioned one after the other."""
        return self.context or job.run_alone

    def prompt_of(self, job: Job) -> str:
        """What a clip or its part is asked, without context."""
        questions = self.questions_of(job)
        return questions.texts[job.segment or 0] if questions else job.planned_job.prompt or self.prompt


class JobResult(NamedTuple):
    """The record of a job, why it failed (a VidspecError, a bug, or None), and the job without its frames."""

    caption: Caption
    error: Exception | None
    job: Job
