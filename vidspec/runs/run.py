"""Caption jobs, several at a time: each clip is a generator, and one pass of the models serves all that ask.

Continues after failures. Independent of models and record files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from vidspec.config.prompts import EVENTS_SCHEMA
from vidspec.decoding.dialogue import ClipSession
from vidspec.errors import GenerationError, VidspecError
from vidspec.escaping import mark_value
from vidspec.events.compare import first_difference, speed_against
from vidspec.events.events import Event, Finished, InputsReleased, LoopLoad
from vidspec.events.observer import RunObserver
from vidspec.events.record import Caption
from vidspec.models.request import CaptionRequest, DialogueTurn
from vidspec.runs.feed import PartInput
from vidspec.runs.formats.base import time_range
from vidspec.runs.job import CONTEXT, Job, is_one_by_one, questions_of
from vidspec.runs.limit import shorten
from vidspec.runs.text_pass import Ask, ClipSteps, rewrite, summarise
from vidspec.runs.timed_events import checked_events, timed_events

if TYPE_CHECKING:
    from vidspec.captioner import Captioner, CaptionOptions
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.feed import Feed

__all__ = ["caption_jobs", "exit_code"]


def caption_jobs(
    captioner: Captioner,
    feed: Feed,
    spec: RunSpec,
    observer: RunObserver | None = None,
    on_begin: Callable[[Job], None] = lambda job: None,
    *,
    total: int = 1,
) -> Iterator[Job]:
    """Caption the jobs of ``feed``; yield each part with its result, as soon as that is known.

    Results of one clip's parts come in order. A failure of a clip, even a bug, becomes its result and does not end the
    run; KeyboardInterrupt does. ``on_begin`` is called with each job that the captioner takes. ``total`` is the number
    of clips, for the observer.
    """
    if spec.baseline:
        captioner.client.warm_up()  # else the first clip's speed-up would include one-time costs
    clips = _RunningClips(captioner, feed, spec, observer or RunObserver(), on_begin, total)
    while not clips.done:
        before = clips.count
        events = captioner.client.serve(clips, batch=None if spec.batch == "auto" else spec.batch, wake=feed.wake)
        try:
            for key, event in events:
                yield from clips.results()
                clips.handle(key, event)
                yield from clips.results()
        finally:
            if isinstance(events, Generator):
                events.close()
        clips.abandon()
        yield from clips.results()
        if clips.count == before and not clips.done:
            raise RuntimeError("the captioner ended before it had taken a clip")


def exit_code(errors: Iterable[Exception | None]) -> int:
    """Return 0 if no clip failed, 3 if a model or device was unavailable, 1 for all other failures."""
    codes = {error.exit_code if isinstance(error, VidspecError) else 1 for error in errors if error is not None}
    return 3 if 3 in codes else 1 if codes else 0


class _RunningClips:
    """Clips of a run in progress: drives their generators, and hands their requests to the captioner.

    Attributes:
        count: number of parts and requests so far; also the key of the last one.
    """

    def __init__(
        self,
        captioner: Captioner,
        feed: Feed,
        spec: RunSpec,
        observer: RunObserver,
        on_begin: Callable[[Job], None],
        total: int,
    ) -> None:
        self.captioner, self.feed, self.spec, self.observer = captioner, feed, spec, observer
        self.profile = captioner.client.profile
        self.count = 0
        self._on_begin, self._total = on_begin, total
        self._clips: dict[int, _ClipRun] = {}
        self._waiting: deque[tuple[ClipSteps, Ask | Callable[[], bool]]] = deque()
        self._asked: dict[int, tuple[ClipSteps, Ask]] = {}  # without frames
        self._results: deque[Job] = deque()

    @property
    def done(self) -> bool:
        """True if nothing more will be asked, but for what follows from requests in flight."""
        return self.feed.over and not self._waiting

    @property
    def over(self) -> bool:
        """True if no request comes, finally or until the run has collected results."""
        return bool(self._results) or self.done

    def take(self) -> CaptionRequest | None:
        """Return the next request; None if there is none now."""
        while True:
            ready = (at for at, (_, step) in enumerate(self._waiting) if isinstance(step, Ask) or step())
            if (at := next(ready, None)) is not None:
                steps, step = self._waiting[at]
                del self._waiting[at]
                if isinstance(step, Ask):
                    return self._begin_request(steps, step)
                self.advance(steps)
            elif (part := self.feed.take()) is not None:
                number = part.job.number
                if number not in self._clips:
                    self._clips[number] = _ClipRun(self, part.job)
                self.advance(self._clips[number].steps(part))
            else:
                return None
            if self._results:
                self.feed.wake.set()  # an idle captioner waits and must see that this is over

    def _begin_request(self, steps: ClipSteps, ask: Ask) -> CaptionRequest:
        request = ask.request
        if request.key is None:
            self.count += 1
            request = replace(request, key=self.count)
        assert isinstance(request.key, int)
        clip = request.clip if request.text_only else None
        self._asked[request.key] = steps, ask._replace(request=CaptionRequest(request.path, clip))
        return replace(request, timeout=self.spec.timeout)

    def handle(self, key: Hashable, event: Event | LoopLoad | Exception) -> None:
        """Handle one event of the captioner."""
        if isinstance(event, LoopLoad):
            self.observer.load(event)
            return
        assert isinstance(key, int)
        steps, ask = self._asked[key]
        if isinstance(event, Exception):
            del self._asked[key]
            self.advance(steps, event)
            return
        if not ask.request.text_only:
            self.observer.event(key, event)
        if isinstance(event, Finished):
            del self._asked[key]
            self.advance(steps, event.caption)
        elif isinstance(event, InputsReleased):
            ask.on_read()

    def abandon(self) -> None:
        """Fail the requests that the captioner left unfinished."""
        for steps, ask in [self._asked.pop(key) for key in list(self._asked)]:
            self.advance(steps, RuntimeError(f"the stream of {ask.request.path} ended without a caption"))

    def advance(self, steps: ClipSteps, answer: Caption | Exception | None = None) -> None:
        """Start a generator, or resume it with the answer to its request, up to its next step."""
        try:
            if isinstance(answer, Exception):
                step = steps.throw(answer)
            else:
                step = next(steps) if answer is None else steps.send(answer)
        except StopIteration:
            return
        if isinstance(step, Ask):
            self._waiting.appendleft((steps, step))  # a clip in progress goes before those that wait
        else:
            self._waiting.append((steps, step))

    def begin(self, job: Job) -> int:
        """Tell the observer of a part that begins; return its number there."""
        self.count += 1
        self.observer.begin(self.count, job.path, self._total)
        if job.error is None:
            self._on_begin(job)
        return self.count

    def deliver(self, job: Job) -> None:
        """Add the result of a part to those that the run collects."""
        if job.is_last:
            del self._clips[job.number]
        self._results.append(job)

    def results(self) -> Iterator[Job]:
        """Yield the results to collect."""
        while self._results:
            yield self._results.popleft()


class _ClipRun:
    """One clip of a run: its generators, which caption its parts and deliver the results in their order."""

    def __init__(self, run: _RunningClips, job: Job) -> None:
        self._run = run
        self._early: dict[int | None, Job] = {}  # results not due yet, by the part before
        self._last: int | None = None  # the last part that was delivered
        self._captions = dict(job.done)  # of all parts so far, as the model wrote them

    def steps(self, part: PartInput) -> ClipSteps:
        """Return the generator over the clip, or over a segment of it."""
        questions = None if part.job.error is not None else questions_of(part.job, self._run.spec)
        if questions is None:
            return self._caption_segment(part)
        texts = questions.filled(part.job.fields).texts
        return self._hold_dialogue(part, texts) if questions.in_turns else self._answer_prompts(part, texts)

    def _caption_segment(self, part: PartInput) -> ClipSteps:
        """Caption the clip or a segment, which may quote the caption of the segment before."""
        job, spec = part.job, self._run.spec
        if is_one_by_one(job, spec):
            yield lambda: self._last == _previous(job)
        before = self._captions.get((job.segment or 0) - 1) if spec.context else None
        if before and part.request is not None:
            prompt = part.request.prompt or self._run.profile.generate.prompt
            quoting = CONTEXT.format(prompt=prompt, previous=mark_value(before))
            part.request = replace(part.request, prompt=quoting)
        yield from self._caption(part)

    def _hold_dialogue(self, clip: PartInput, texts: Sequence[str]) -> ClipSteps:
        """Ask one question after the other, from the first without an answer on."""
        assert clip.request is not None
        job, own = clip.job, clip.request.earlier
        first = next(number for number in range(len(texts)) if number not in job.done)
        job.done = {number: job.done[number] for number in range(first)}
        self._captions = dict(job.done)
        session = ClipSession(clip.request)
        for number in range(first, len(texts)):
            part = PartInput(job.part(number, len(texts)))
            if None in self._captions.values():
                part.job.error = GenerationError(f"{job.path}: the turn before it failed", kind="turn")
            else:
                turns = zip(texts, self._captions.values(), strict=False)
                earlier = tuple(DialogueTurn(text, answer or "") for text, answer in turns)
                request = session.turn(texts[number], earlier)
                part.request = replace(request, earlier=(*own, *earlier))
            yield from self._caption(part, session)
        self._run.feed.release(clip)

    def _answer_prompts(self, clip: PartInput, texts: Sequence[str]) -> ClipSteps:
        """Ask several questions: the first reads the clip, then all others are asked at once."""
        assert clip.request is not None
        job, session = clip.job, ClipSession(clip.request)
        left = [(number, text) for number, text in enumerate(texts) if number not in job.done]
        session.add_prompts(left, apart=job.run_alone)

        def answer() -> ClipSteps:
            yield lambda: session.can_begin
            request = session.take()
            assert request is not None and request.question is not None
            number = request.question.index
            yield from self._caption(PartInput(job.part(number, len(texts)), request), session)
            session.mark_ended(number)
            if session.over and not session.begun:
                self._run.feed.release(clip)

        for _ in left[1:]:
            self._run.advance(answer())
        yield from answer()

    def _caption(self, part: PartInput, session: ClipSession | None = None) -> ClipSteps:
        """Caption a part, compare and rewrite the caption, and deliver all results that are due.

        Args:
            part: has been read; of a session with several questions it shares the frames.
            session: receives what was read.
        """
        run, job, spec = self._run, part.job, self._run.spec
        number, caption = run.begin(job), None
        try:
            if job.error is not None:
                raise job.error
            assert part.request is not None
            spent = part.request.spent
            caption = yield Ask(replace(part.request, key=number), self._on_read(part, session))
            if spent and "decode_video" not in caption.timings:
                caption = replace(caption, timings={"decode_video": spent, **caption.timings})
            if run.profile.generate.json_schema == EVENTS_SCHEMA:
                caption = _with_checked_events(caption, job)
            if spec.baseline or spec.verify:
                caption = _with_comparison(run.captioner, caption, part.request, spec)
            job.result = caption
        except Exception as error:
            job.fail(error, run.profile.name)
            if caption is not None:  # captioned but not confirmed: keep the measurements
                job.result = replace(caption, caption=None, ended=None, lossless=None, error=job.caption.error)
        part.request = None
        if session is None:
            run.feed.release(part)
        if job.error is None and spec.rewrite is not None and job.caption.caption:
            yield from rewrite(job, spec.rewrite)
        if job.error is None and spec.limit is not None and job.caption.caption:
            yield from shorten(job, spec.limit, spec.limit_tokenizer or "words", spec.template)
        run.observer.end(number, job.caption)
        self._early[_previous(job)] = job
        while (due := self._early.pop(self._last, None)) is not None:
            self._last = due.segment
            if due.segment is not None:
                self._captions[due.segment] = due.caption.text_about_video
            if spec.summary and due.is_last:
                yield from summarise(due, part.spans, self._captions)
            run.deliver(due)

    def _on_read(self, part: PartInput, session: ClipSession | None) -> Callable[[], None]:
        """Return the function that frees what the models need no more once they have read a part."""
        request = part.request
        assert request is not None
        if session is not None:
            return partial(session.mark_read, request)
        return partial(self._run.feed.mark_encoded, part) if request.reread is not None else lambda: None


def _previous(job: Job) -> int | None:
    """Return the number of the part before a job's that is captioned in this run; None for the first."""
    return next((number for number in range((job.segment or 0) - 1, -1, -1) if number not in job.done), None)


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


def _with_comparison(captioner: Captioner, caption: Caption, request: CaptionRequest, spec: RunSpec) -> Caption:
    """Return a caption after its comparison with plain decoding."""
    own = {"schema" if name == "json_schema" else name: value for name, value in request.generate.items()}
    same = {name: getattr(request, name) for name in ("start", "end", "prompt", "system", "clip", "earlier")}
    plain = captioner.caption(request.path, **cast("CaptionOptions", {**same, "plain": True, **own}))
    if spec.verify:
        from vidspec.runs.ties import is_near_tie  # imports torch, needed for --verify only

        at = first_difference(caption.token_ids, plain.token_ids)
        if at is not None and is_near_tie(captioner.client, request, caption.token_ids, plain.token_ids):
            caption = replace(caption, near_tie=at)
        elif at is not None:
            raise GenerationError(
                f"{request.path}: differs from plain decoding at token {at}: "
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
