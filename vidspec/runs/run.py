"""Caption jobs, several at a time, and continue after failures. Independent of models and record files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from vidspec.config.prompts import EVENTS_SCHEMA
from vidspec.decoding.clip_session import ClipSession
from vidspec.errors import GenerationError, VidspecError
from vidspec.escaping import mark_value
from vidspec.events.compare import first_difference, speed_against
from vidspec.events.events import Event, Finished, InputsReleased, LoopLoad
from vidspec.events.observer import RunObserver
from vidspec.events.record import Caption
from vidspec.models.request import CaptionRequest, DialogueTurn
from vidspec.runs.formats.base import time_range
from vidspec.runs.job import CONTEXT, Job, is_one_by_one, questions_of
from vidspec.runs.text_pass import begin_rewrite, begin_summary, end_text_pass
from vidspec.runs.timed_events import checked_events, timed_events

if TYPE_CHECKING:
    from vidspec.captioner import Captioner, CaptionOptions
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.feed import Feed

__all__ = ["caption_jobs", "exit_code"]


def caption_jobs(
    captioner: Captioner,
    source: Feed,
    spec: RunSpec,
    observer: RunObserver | None = None,
    on_begin: Callable[[Job], None] = lambda job: None,
    *,
    total: int = 1,
) -> Iterator[Job]:
    """Caption the jobs of ``source``; yield each part with its result, as soon as that is known.

    Results of one clip's parts come in order. A failure of a clip, even a bug, becomes its result and does not end the
    run; KeyboardInterrupt does. ``on_begin`` is called with each job that the captioner takes. ``total`` is the number
    of clips, for the observer.
    """
    if spec.baseline:
        captioner.client.warm_up()  # else the first clip's speed-up would include one-time costs
    jobs = _JobSource(captioner, source, spec, observer or RunObserver(), on_begin, total)
    while not jobs.done:
        before = jobs.count
        events = captioner.client.serve(jobs, batch=spec.batch_size, wake=source.wake)
        try:
            for key, event in events:
                yield from jobs.unreadable_results()
                yield from jobs.handle(key, event)
        finally:
            if isinstance(events, Generator):
                events.close()
        yield from jobs.unreadable_results()
        yield from jobs.abandoned_results()
        if jobs.count == before and not jobs.done:
            raise RuntimeError("the captioner ended before it had taken a clip")


def exit_code(errors: Iterable[Exception | None]) -> int:
    """Return 0 if no clip failed, 3 if a model or device was unavailable, 1 for all other failures."""
    codes = {error.exit_code if isinstance(error, VidspecError) else 1 for error in errors if error is not None}
    return 3 if 3 in codes else 1 if codes else 0


class _ClipParts:
    """Parts of one clip in order: yields parts that can start, and results that are due.

    A clip without parts is one part. Segments come from the feed one by one; questions are created here from the whole
    clip with its frames.
    """

    def __init__(self, job: Job, spec: RunSpec, prompt: str) -> None:
        self.job, self._spec, self._prompt = (
            job.planned_job,
            spec,
            prompt,
        )  # the job has the frames that questions share
        questions = None if job.error is not None else questions_of(job, spec)
        self._questions = questions and questions.filled(job.fields)
        self._session: ClipSession | None = None  # of questions
        self._asked: dict[int, CaptionRequest] = {}  # by number of the question
        self._ready: deque[Job] = deque()
        self._waiting: dict[int | None, Job] = {}  # waiting segments, by the one before
        self._early_results: dict[int | None, Job] = {}  # results not due yet, by the part before
        self._last_done: int | None = None
        self._last_caption: str | None = None  # of the last part whose result was returned
        self._captions: dict[int, str | None] = dict(job.done)  # of all parts so far

    @property
    def has_questions(self) -> bool:
        """True if the parts are questions about one clip, sharing its frames."""
        return self._questions is not None

    @property
    def over(self) -> bool:
        """True if all parts received so far have started."""
        return not (self._ready or self._waiting) and (self._session is None or self._session.over)

    def add(self, job: Job) -> None:
        """Add the clip with its frames, or a segment of it, from the feed."""
        if self._questions is not None:
            left = [(number, text) for number, text in enumerate(self._questions.texts) if number not in job.done]
            if self._questions.in_turns:
                self._begin_dialogue(left[0][0])
            else:
                self._session = ClipSession(job.request(0, None))
                self._session.add_prompts(left, apart=job.run_alone)
        elif is_one_by_one(job, self._spec) and job.previous != self._last_done:
            self._waiting[job.previous] = job
        else:
            self._ready.append(self._with_context(job))

    def take(self) -> Job | None:
        """Return the next part that can start; None if there is none now."""
        if self._ready:
            return self._ready.popleft()
        request = self._session.take() if self._session is not None else None
        return None if request is None else self._question(request)

    def mark_read(self, job: Job) -> None:
        """Note that the models have read a part."""
        if self._session is not None:
            self._session.mark_read(self._asked[job.segment or 0])

    def finish_part(self, job: Job) -> list[Job]:
        """Note the result of one part; return the results that are due now, in part order."""
        if self._session is not None and self._questions is not None:
            answer = job.caption.text_about_video
            if not self._questions.in_turns:
                self._session.mark_ended(job.segment or 0)
            elif not job.is_last:
                self._session.mark_answered(self._asked[job.segment or 0], answer or "")
                self._add_turn(failed=answer is None)
        due = []
        self._early_results[job.previous] = job
        while (one := self._early_results.pop(self._last_done, None)) is not None:
            self._last_done, self._last_caption = one.segment, one.caption.text_about_video
            if one.segment is not None:
                self._captions[one.segment] = self._last_caption
            due.append(one)
        if (later := self._waiting.pop(self._last_done, None)) is not None:
            self._ready.append(self._with_context(later))
        return due

    def rewrite(self, job: Job) -> bool:
        """Queue the second pass over a job's caption; False if there is none."""
        if self._spec.rewrite is None or not begin_rewrite(job, self._spec.rewrite):
            return False
        self._ready.append(job)
        return True

    def summarise(self, job: Job) -> bool:
        """Queue the summary of all segments after the result of the last; False if there is none."""
        begun = begin_summary(job, self._captions)
        self._ready += [job] * begun
        return begun

    def _with_context(self, job: Job) -> Job:
        """Quote the previous caption in the prompt of a segment, if configured and available."""
        number = (job.segment or 0) - 1
        before = self._last_caption if number == self._last_done else job.done.get(number)
        if self._spec.context and before:
            job.asked = CONTEXT.format(prompt=job.asked or self._prompt, previous=mark_value(before))
        return job

    def _question(self, request: CaptionRequest) -> Job:
        """Return the part that asks a question of the session."""
        assert self._questions is not None and request.question is not None
        number = request.question.index
        part, self._asked[number] = self.job.part(number, len(self._questions.texts)), request
        part.question, part.asked, part.earlier = request.question, request.prompt, request.earlier
        part.cache, part.spent = request.cache, request.spent
        return part

    def _begin_dialogue(self, first: int) -> None:
        """Queue the first unfinished turn; all later turns run again."""
        assert self._questions is not None
        job, texts = self.job, self._questions.texts
        job.done = {number: job.done[number] for number in range(first)}
        self._session = ClipSession(job.request(0, None))
        self._session.exchanges = tuple(DialogueTurn(texts[at], answer or "") for at, answer in job.done.items())
        self._add_turn(failed=None in job.done.values())

    def _add_turn(self, *, failed: bool) -> None:
        """Queue the next turn, with an error if one before it failed."""
        assert self._session is not None and self._questions is not None
        part = self._question(self._session.turn(self._questions.texts[len(self._session.exchanges)]))
        if failed:
            part.error = GenerationError(f"{part.path}: the turn before it failed", kind="turn")
        self._ready.append(part)


class _JobSource:
    """Source of requests for the captioner, which also turns its events into results.

    Attributes:
        count: number of started requests; also the key of the last one.
    """

    def __init__(
        self,
        captioner: Captioner,
        source: Feed,
        spec: RunSpec,
        observer: RunObserver,
        on_begin: Callable[[Job], None],
        total: int,
    ) -> None:
        self._captioner, self._source, self._spec, self._observer = captioner, source, spec, observer
        self._on_begin, self._total, self._profile = on_begin, total, captioner.client.profile
        self.count = 0
        self._running: dict[int, Job] = {}
        self._unreadable: list[Job] = []
        self._clips: dict[int, _ClipParts] = {}

    @property
    def done(self) -> bool:
        """True if no more jobs will come."""
        return self._source.over and all(parts.over for parts in self._clips.values())

    @property
    def over(self) -> bool:
        """True if no jobs come, finally or until the run has collected the results of unreadable clips."""
        return bool(self._unreadable) or self.done

    def take(self) -> CaptionRequest | None:
        """Return the request of the next job with frames; None if there is none now."""
        while (job := self._next()) is not None:
            self.count += 1
            if job.text_pass is None:
                job.key = self.count
                self._observer.begin(job.key, job.path, self._total)
                if job.error is not None:
                    self._unreadable.append(job)
                    self._source.wake.set()  # an idle captioner waits and must see that this is over
                    continue
                self._on_begin(job)
            self._running[self.count] = job
            return job.request(self.count, self._spec.timeout)
        return None

    def _next(self) -> Job | None:
        for parts in self._clips.values():
            if (job := parts.take()) is not None:
                return job
        while (job := self._source.take()) is not None:
            if job.number not in self._clips:
                self._clips[job.number] = _ClipParts(job, self._spec, self._profile.generate.prompt)
            parts = self._clips[job.number]
            parts.add(job)
            if (part := parts.take()) is not None:
                return part
        return None

    def unreadable_results(self) -> Iterator[Job]:
        """Yield unreadable jobs with their results."""
        while self._unreadable:
            job = self._unreadable.pop(0)
            yield from self._finish_job(job, None, job.error)

    def abandoned_results(self) -> Iterator[Job]:
        """Yield jobs that the captioner left unfinished, with failed results."""
        for job in [self._running.pop(key) for key in list(self._running)]:
            yield from self._finish_job(job, None, RuntimeError(f"the stream of {job.path} ended without a caption"))

    def handle(self, key: Hashable, event: Event | LoopLoad | Exception) -> Iterator[Job]:
        """Handle one event of the captioner; yield the jobs whose results become due."""
        if isinstance(event, LoopLoad):
            self._observer.load(event)
            return
        assert isinstance(key, int)
        job = self._running[key]
        if isinstance(event, Exception):
            del self._running[key]
            yield from self._finish_job(job, None, event)
            return
        if job.text_pass is None:
            self._observer.event(key, event)
        if isinstance(event, Finished):
            del self._running[key]
            yield from self._finish_job(job, event.caption, None)
        elif isinstance(event, InputsReleased) and job.text_pass is None:
            self._clips[job.number].mark_read(job)
            if job.reread is not None:
                job.release_frames()
                self._source.mark_encoded(job)

    def _finish_job(self, job: Job, caption: Caption | None, error: Exception | None) -> Iterator[Job]:
        if (kind := job.text_pass) is not None:
            end_text_pass(job, caption, error)
            yield from self._finish_part(job) if kind == "rewrite" else self._deliver(job)
            return
        self._set_result(job, caption, error)
        parts = self._clips[job.number]
        if not parts.has_questions:
            self._source.release(job)
        if job.error is not None or not parts.rewrite(job):
            yield from self._finish_part(job)

    def _finish_part(self, job: Job) -> Iterator[Job]:
        """Yield the jobs whose results are due with this one; the last waits for the summary if there is one."""
        self._observer.end(job.key, job.caption)
        parts = self._clips[job.number]
        for due in parts.finish_part(job):
            if not parts.summarise(due):
                yield from self._deliver(due)

    def _deliver(self, job: Job) -> Iterator[Job]:
        if job.is_last:
            parts = self._clips.pop(job.number)
            if parts.has_questions:
                parts.job.release_frames()
                self._source.release(parts.job)
        yield job

    def _set_result(self, job: Job, caption: Caption | None, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            assert caption is not None
            if job.spent and "decode_video" not in caption.timings:
                caption = replace(caption, timings={"decode_video": job.spent, **caption.timings})
            if self._profile.generate.json_schema == EVENTS_SCHEMA:
                caption = _with_checked_events(caption, job)
            job.result, job.error = _with_comparison(self._captioner, caption, job, self._spec), None
        except Exception as error:
            job.fail(error, self._profile.name)
            if caption is not None:  # captioned but not confirmed: keep the measurements
                job.result = replace(caption, caption=None, ended=None, lossless=None, error=job.caption.error)
        job.release_frames()


def _with_checked_events(caption: Caption, job: Job) -> Caption:
    """Return a caption of timed events with those of its clip's part.

    Raises:
        GenerationError: none is.
    """
    events = timed_events(caption.data)
    if events is None:
        return caption
    part = time_range({"start": job.start, "end": job.end, "video": caption.video})
    kept, notes = checked_events(job.path, events, *part)
    return replace(caption, data=kept, notes=notes or None)


def _with_comparison(captioner: Captioner, caption: Caption, job: Job, spec: RunSpec) -> Caption:
    """Return a caption after its comparison with plain decoding, if the run has one."""
    if not (spec.baseline or spec.verify):
        return caption
    asked = job.request(job.key, None)
    request: CaptionOptions = {
        "start": job.start,
        "end": job.end,
        "prompt": job.asked,
        "clip": job.clip,
        "plain": True,
    }
    if asked.earlier:
        request["earlier"] = asked.earlier
    if job.options is not None:
        own = {"schema" if name == "json_schema" else name: value for name, value in asked.generate.items()}
        request |= cast("CaptionOptions", {"system": asked.system, **own})
    plain = captioner.caption(job.path, **request)
    if spec.verify:
        from vidspec.runs.ties import is_near_tie  # imports torch, needed for --verify only

        at = first_difference(caption.token_ids, plain.token_ids)
        if at is not None and is_near_tie(captioner.client, asked, caption.token_ids, plain.token_ids):
            caption = replace(caption, near_tie=at)
        elif at is not None:
            raise GenerationError(
                f"{job.path}: differs from plain decoding at token {at}: "
                f"{_token_text(caption.token_ids, at)} instead of {_token_text(plain.token_ids, at)}",
                stage="verify",
                kind="mismatch",
            )
        caption = replace(caption, verified=True)
    if spec.baseline:
        speed = caption.speed.copy()
        speed.pop("estimate", None)
        speed["baseline"] = speed_against(caption, plain)
        caption = replace(caption, speed=speed)
    return caption


def _token_text(ids: Sequence[int], at: int) -> str:
    return str(ids[at]) if at < len(ids) else "the end"
