"""Second passes: prompts without a video, which rewrite a caption or summarise those of a clip's segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from vidspec.errors import GenerationError, VidspecError
from vidspec.escaping import mark_value
from vidspec.events.record import Caption, OriginalRecord, failed_caption
from vidspec.runs.job import Job, JobResult
from vidspec.runs.rendering import fill_fields, names_in_braces
from vidspec.video.base import Clip

__all__ = ["TextPass", "rewrite_job", "summary_job"]

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


class TextPass(NamedTuple):
    """A prompt without a video, which completes the result of a job."""

    kind: Literal["rewrite", "summary"]
    result: JobResult
    job: Job

    def complete(self, answer: Caption | None, error: Exception | None) -> JobResult:
        """Return the result with the answer, or with the error; a summary's error leaves the caption as it is."""
        first = self.result.caption
        original: OriginalRecord = {"text": first.caption or "", "ended": first.ended}
        if answer is None:
            error = self._explained(error)
            about = failed_caption(first.path, VidspecError.of(error)).error
            if self.kind == "summary":
                return self.result._replace(caption=replace(first, error=first.error or about), error=error)
            failed = replace(first, caption=None, ended=None, lossless=None, original=original, error=about)
            return self.result._replace(caption=failed, error=error)
        seconds = answer.timings.get("end_to_end", 0.0)
        timings = {**first.timings, self.kind: seconds}
        timings["end_to_end"] = first.timings.get("end_to_end", 0.0) + seconds
        if self.kind == "summary":
            return self.result._replace(caption=replace(first, summary=answer.caption, timings=timings))
        rewritten = replace(first, caption=answer.caption, ended=answer.ended, original=original, timings=timings)
        return self.result._replace(caption=rewritten)

    def _explained(self, error: Exception | None) -> Exception:
        """Return the error of the pass, with its name; those of devices and bugs as they are."""
        if not isinstance(error, GenerationError):
            return error or AssertionError("a second pass without an answer has an error")
        path = self.result.caption.path
        hint = error.hint
        if error.kind == "context":
            hint = f"take {'longer segments' if self.kind == 'summary' else 'fewer --max-new-tokens'}"
        message = f"{path}: its {self.kind}: {error.message.removeprefix(f'{path}: ')}"
        return GenerationError(message, hint=hint, kind=error.kind, stage=self.kind)


def rewrite_job(rewrite: str, result: JobResult, job: Job) -> Job:
    """Return the job that rewrites the caption of a job.

    Args:
        rewrite: an instruction, or a prompt with ``{caption}``.
        result: of the job.
        job: the job, with its frames or without.
    """
    prompt = rewrite if "caption" in names_in_braces(rewrite) else REWRITE.replace("{instruction}", rewrite)
    fields = {**job.fields, "caption": result.caption.caption or ""}
    prompt = fill_fields(prompt, {name: mark_value(value) for name, value in fields.items()})
    return _text_only(job, prompt, TextPass("rewrite", result, job))


def summary_job(result: JobResult, captions: Mapping[int, str | None]) -> Job | None:
    """Return the job that summarises the captions of all segments; None before the last segment, or without any."""
    job = result.job
    lines = [
        f"{start:g} s to {end:g} s: {mark_value(' '.join(caption.split()))}"
        for number, (start, end) in enumerate(job.spans)
        if (caption := captions.get(number))
    ]
    if not (job.is_last and lines):
        return None
    return _text_only(job, SUMMARY.format(parts="\n".join(lines)), TextPass("summary", result, job))


def _text_only(job: Job, prompt: str, text_pass: TextPass) -> Job:
    first = job.without_frames()
    return replace(first, clip=Clip.empty(), prompt=prompt, question=None, earlier=(), spent=0.0, text_pass=text_pass)
