"""Second passes: prompts without a video, which rewrite a caption or summarise those of a clip's segments."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from vidspec.errors import GenerationError, VidspecError
from vidspec.escaping import mark_value
from vidspec.events.record import Caption, OriginalRecord, failed_caption
from vidspec.models.request import CaptionRequest
from vidspec.runs.job import Job
from vidspec.runs.rendering import fill_fields, names_in_braces
from vidspec.video.base import Clip

__all__ = ["Ask", "ClipSteps", "ask_text", "fail_pass", "pass_timings", "rewrite", "summarise"]

#: Prompt of a second pass over a caption, without the video, for an instruction that does not place the caption itself.
REWRITE = (
    "Rewrite the description of a video below. Instruction: {instruction}\n"
    "Answer with the new description only.\n\nDescription: {caption}"
)
#: Prompt of the summary of a clip from the captions of its segments, without the video.
SUMMARY = (
    "A video was described part by part, in order, with the times of each part. "
    "Summarise the whole video in one paragraph, without times and without mentioning parts.\n\n{parts}"
)

#: A second pass without the video.
TextPass: TypeAlias = Literal["rewrite", "limit", "summary"]


class Ask(NamedTuple):
    """Request of a clip's generator, which is resumed with the caption, or with the error thrown in.

    Attributes:
        request: what the captioner is asked.
        on_read: called once the models have read it and need its frames no more.
    """

    request: CaptionRequest
    on_read: Callable[[], None] = lambda: None


#: A clip's generator; it yields requests, and conditions until which it waits.
ClipSteps: TypeAlias = "Generator[Ask | Callable[[], bool], Caption, None]"


def rewrite(job: Job, instruction: str) -> ClipSteps:
    """Rewrite the caption of a job.

    Args:
        job: has its result.
        instruction: an instruction, or a prompt with ``{caption}``; ``@@`` at its beginning stands for ``@``.
    """
    instruction = instruction[1:] if instruction.startswith("@@") else instruction
    first = job.caption
    prompt = instruction if "caption" in names_in_braces(instruction) else REWRITE.replace("{instruction}", instruction)
    fields = {**job.fields, "caption": first.caption or ""}
    try:
        answer = yield ask_text(job, fill_fields(prompt, {name: mark_value(value) for name, value in fields.items()}))
    except Exception as error:
        fail_pass(job, error, "rewrite")
        return
    original: OriginalRecord = {"text": first.caption or "", "ended": first.ended}
    timings = pass_timings(first.timings, "rewrite", answer)
    job.result = replace(first, caption=answer.caption, ended=answer.ended, original=original, timings=timings)


def summarise(job: Job, spans: Sequence[tuple[float, float]], captions: Mapping[int, str | None]) -> ClipSteps:
    """Add the summary of all segments to the result of the last, which an error leaves as it is.

    Args:
        job: has its result.
        spans: start and end of all segments, in seconds.
        captions: by segment; None for failed ones.
    """
    first = job.caption
    lines = [
        f"{start:g} s to {end:g} s: {mark_value(' '.join(caption.split()))}"
        for number, (start, end) in enumerate(spans)
        if (caption := captions.get(number))
    ]
    if not lines:
        return
    try:
        answer = yield ask_text(job, SUMMARY.format(parts="\n".join(lines)))
    except Exception as error:
        job.error = _explained(error, "summary", job.path)
        job.result = replace(first, error=first.error or failed_caption(job.path, VidspecError.of(job.error)).error)
        return
    job.result = replace(first, summary=answer.caption, timings=pass_timings(first.timings, "summary", answer))


def ask_text(job: Job, prompt: str) -> Ask:
    """Return the request of a prompt without a video."""
    return Ask(CaptionRequest(job.path, Clip.empty(), prompt))


def pass_timings(timings: Mapping[str, float], kind: TextPass, answer: Caption) -> dict[str, float]:
    """Return the seconds of a caption with those of a further pass."""
    seconds = answer.timings.get("end_to_end", 0.0)
    further = {key: timings.get(key, 0.0) + seconds for key in (kind, "end_to_end")}
    return {**timings, **further}


def fail_pass(job: Job, error: Exception, kind: TextPass) -> None:
    """Set the failure of a pass that would have replaced the caption, which stays as the original."""
    first, job.error = job.caption, _explained(error, kind, job.path)
    original: OriginalRecord = first.original or {"text": first.caption or "", "ended": first.ended}
    failed = failed_caption(job.path, VidspecError.of(job.error))
    job.result = replace(first, caption=None, ended=None, lossless=None, original=original, error=failed.error)


def _explained(error: Exception, kind: TextPass, path: str) -> Exception:
    """Return the error of a pass, with its name; those of devices and bugs as they are."""
    if not isinstance(error, GenerationError):
        return error
    hint = error.hint
    if error.kind == "context":
        hint = f"take {'longer segments' if kind == 'summary' else 'fewer --max-new-tokens'}"
    message = f"{path}: its {kind}: {error.message.removeprefix(f'{path}: ')}"
    return GenerationError(message, hint=hint, kind=error.kind, stage=kind)
