"""One clip of a run, or a part of it, from its name to its result, and what is asked about it. Reads no clip."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from vidspec.errors import VidspecError
from vidspec.escaping import mark_value
from vidspec.events.record import Caption, failed_caption
from vidspec.models.request import DialogueTurn
from vidspec.runs.rendering import column_text, fill_fields, has_field, names_in_braces, template_fields

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile
    from vidspec.runs.store.records import FileContent

__all__ = [
    "CONTEXT",
    "Job",
    "JobOptions",
    "JobQuestions",
    "MemberSource",
    "asked_of",
    "is_one_by_one",
    "named_fields",
    "prompt_of",
    "questions_of",
]

#: Prompt of a segment that quotes the previous segment's caption.
CONTEXT = "{prompt}\n\nThis is a later part of a longer video. The part before it was described like this: {previous}"


class JobQuestions(NamedTuple):
    """Several questions about one clip: either dialogue turns that follow earlier answers, or independent prompts."""

    texts: tuple[str, ...]
    in_turns: bool

    def filled(self, fields: Mapping[str, str]) -> JobQuestions:
        """Return the questions with the names of fields in braces replaced, values marked (:func:`mark_value`)."""
        marked = {name: mark_value(value) for name, value in fields.items()}
        return JobQuestions(tuple(fill_fields(text, marked) for text in self.texts), self.in_turns)


@dataclass(frozen=True)
class JobOptions:
    """Options of one clip in place of the run's.

    Attributes:
        system: system prompt; None for the profile's.
        earlier: earlier turns of a dialogue; the clip's prompt is the next question.
        generate: keys of the profile's section ``generate``.
        video: ``frames`` or ``fps``, as ``vidspec.video.read`` takes them.
    """

    system: str | None = None
    earlier: tuple[DialogueTurn, ...] = ()
    generate: Mapping[str, object] = field(default_factory=dict)
    video: Mapping[str, object] = field(default_factory=dict)


class MemberSource(NamedTuple):
    """Location of a clip's bytes in a shard or behind a URL; plain values that can be pickled.

    Attributes:
        url: the shard, local or not, or the clip itself if ``size`` is None.
        start: first byte in a tar, row in a Parquet file.
        size: bytes of the tar member, or of the whole Parquet file.
        mtime_ns: modification time of a tar member; None if unknown.
        column: column of a Parquet file; None otherwise.
        kind: name of the source that opens it (``vidspec.runs.sources``).
    """

    url: str
    start: int = 0
    size: int | None = None
    mtime_ns: int | None = None
    column: str | None = None
    kind: str = "url"


@dataclass(slots=True, eq=False)
class Job:
    """A clip of a run, or one part of it: a segment, or one of several questions. Says what and where, and the result.

    Sources make it from a path, and the plan numbers it. A part is made once, from the job of its clip.

    Attributes:
        path: as the user named it.
        root: folder that ``--output-dir`` mirrors; a clip outside it keeps only its name.
        start, end: of the part, in seconds from the start of the stream.
        prompt: prompt in place of the run's.
        questions: questions in place of the run's prompt or questions.
        options: further options in place of the run's; None if there are none.
        id: id in the manifest; jobs of the same part with different ids are separate inputs.
        columns: other columns of the manifest, copied to the record; prompts and templates may name them.
        existing: text of the caption file that was there before; None if the run does not use it.
        content: identity of its bytes before they are read; None if unknown.
        source: location of its bytes; None if ``path`` is a file.
        shard: tar or Parquet file that contains it; None if there is none.
        number: place in the run, from 1.
        done: captions of finished parts by number, None for failed ones.
        crashes: how often a process ended while it had the clip.
        run_alone: True if it runs alone on its worker, part by part, after a part of it ended a process.
        planned: the clip that it is a part of; None for a clip.
        segment, segments: index of the part, from 0, and number of parts; None for the whole clip.
        result: its caption, or the record of its failure; None before that, and once its record is kept.
        error: why it has no caption, or why it could not be read.
    """

    path: str
    _: KW_ONLY
    root: str = "."
    start: float | None = None
    end: float | None = None
    prompt: str | None = None
    questions: JobQuestions | None = None
    options: JobOptions | None = None
    id: str | int | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    existing: str | None = None
    content: FileContent | None = None
    source: MemberSource | None = None
    shard: str | None = None
    number: int = 1
    done: Mapping[int, str | None] = field(default_factory=dict)
    crashes: int = 0
    run_alone: bool = False
    planned: Job | None = None
    segment: int | None = None
    segments: int | None = None
    result: Caption | None = None
    error: Exception | None = None

    def member(self, path: str, source: MemberSource | None, error: Exception | None = None) -> Job:
        """Return the job of a clip in this shard."""
        return replace(self, path=path, source=source, shard=self.path, error=error)

    def part(self, segment: int, segments: int, start: float | None = None, end: float | None = None) -> Job:
        """Return the job of a part of this clip, of its time range unless the part has its own."""
        part = replace(self, planned=self, segment=segment, segments=segments)
        if start is not None:
            part.start, part.end = start, end
        return part

    def fail(self, error: Exception, profile: str | None) -> Job:
        """Set the record of a failure, and return the job."""
        self.result, self.error = failed_caption(self.path, VidspecError.of(error), profile=profile), error
        return self

    @property
    def caption(self) -> Caption:
        """The result.

        Raises:
            ValueError: there is none yet.
        """
        if self.result is None:
            raise ValueError(f"{self.path}: has no result yet")
        return self.result

    @property
    def planned_job(self) -> Job:
        """The planned clip that this job is a part of."""
        return self.planned or self

    @property
    def fields(self) -> dict[str, str]:
        """Values of the fields that prompts and templates may name in braces."""
        fields = {name: column_text(value) for name, value in self.columns.items()}
        return fields if self.existing is None else {**fields, "existing": self.existing}

    @property
    def relative(self) -> str:
        """Path relative to ``root``; the bare name if the clip is outside."""
        relative = os.path.relpath(self.path, self.root)
        outside = relative == os.pardir or relative.startswith(os.pardir + os.sep) or os.path.isabs(relative)
        return os.path.basename(self.path) if outside else relative

    @property
    def is_last(self) -> bool:
        """True if this is the last part of its clip to caption."""
        if self.segment is None or self.segments is None:
            return True
        return all(number in self.done for number in range(self.segment + 1, self.segments))


def questions_of(job: Job, spec: RunSpec) -> JobQuestions | None:
    """Return the questions about a clip; None if it has one prompt."""
    planned = job.planned_job
    if planned.questions or planned.prompt or not spec.questions:
        return planned.questions
    return JobQuestions(spec.questions, bool(spec.turn))


def is_one_by_one(job: Job, spec: RunSpec) -> bool:
    """Return True if the parts of a clip are captioned one after the other."""
    return spec.context or job.run_alone


def prompt_of(job: Job, spec: RunSpec, profile: Profile) -> str:
    """Return the prompt of a clip or its part with its fields filled, without context."""
    questions = questions_of(job, spec)
    text = questions.texts[job.segment or 0] if questions else job.planned_job.prompt or profile.generate.prompt
    return fill_fields(text, job.fields)


def asked_of(job: Job, profile: Profile) -> str | None:
    """Return the prompt of a clip for the model; None for the profile's.

    The values of its fields are marked, so that control tokens of the model are plain text in them.
    """
    prompt, fields = job.planned_job.prompt or profile.generate.prompt, job.fields
    if not has_field(prompt, fields):
        return job.planned_job.prompt
    return fill_fields(prompt, {name: mark_value(value) for name, value in fields.items()})


def named_fields(spec: RunSpec, profile: Profile) -> set[str]:
    """Return all names in braces in a run's template and prompts."""
    own = names_in_braces(spec.rewrite or "") - {"caption"}
    return template_fields(spec.template).union(own, *map(names_in_braces, (profile.generate.prompt, *spec.questions)))
