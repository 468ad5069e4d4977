"""Second passes: prompts without a video, which rewrite a caption or summarise those of a clip's segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vidspec.errors import GenerationError, VidspecError
from vidspec.escaping import mark_value
from vidspec.events.record import Caption, OriginalRecord, failed_caption
from vidspec.runs.job import Job, TextPass
from vidspec.runs.rendering import fill_fields, names_in_braces
from vidspec.video.base import Clip

__all__ = ["begin_rewrite", "begin_summary", "end_text_pass"]

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


def begin_rewrite(job: Job, rewrite: str) -> bool:
    """Make a captioned job one that rewrites its caption; False if there is none.

    Args:
        job: the job.
        rewrite: an instruction, or a prompt with ``{caption}``.
    """
    if not (caption := job.caption.caption):
        return False
    prompt = rewrite if "caption" in names_in_braces(rewrite) else REWRITE.replace("{instruction}", rewrite)
    fields = {**job.fields, "caption": caption}
    _begin(job, "rewrite", fill_fields(prompt, {name: mark_value(value) for name, value in fields.items()}))
    return True


def begin_summary(job: Job, captions: Mapping[int, str | None]) -> bool:
    """Make a captioned job one that summarises the captions of all segments; False before the last, or without any."""
    lines = [
        f"{start:g} s to {end:g} s: {mark_value(' '.join(caption.split()))}"
        for number, (start, end) in enumerate(job.spans)
        if (caption := captions.get(number))
    ]
    if not (job.is_last and lines):
        return False
    _begin(job, "summary", SUMMARY.format(parts="\n".join(lines)))
    return True


def _begin(job: Job, kind: TextPass, prompt: str) -> None:
    job.release_frames()
    job.clip, job.asked, job.text_pass = Clip.empty(), prompt, kind


def end_text_pass(job: Job, answer: Caption | None, error: Exception | None) -> None:
    """Complete the result of a job by the answer, or the error; a summary's error leaves the caption as it is."""
    first, kind = job.caption, job.text_pass
    assert kind is not None
    job.text_pass = job.clip = None
    original: OriginalRecord = {"text": first.caption or "", "ended": first.ended}
    if answer is None:
        job.error = _explained(error, kind, first.path)
        about = failed_caption(first.path, VidspecError.of(job.error)).error
        if kind == "summary":
            job.result = replace(first, error=first.error or about)
        else:
            job.result = replace(first, caption=None, ended=None, lossless=None, original=original, error=about)
        return
    seconds = answer.timings.get("end_to_end", 0.0)
    timings = {**first.timings, kind: seconds}
    timings["end_to_end"] = first.timings.get("end_to_end", 0.0) + seconds
    if kind == "summary":
        job.result = replace(first, summary=answer.caption, timings=timings)
    else:
        job.result = replace(first, caption=answer.caption, ended=answer.ended, original=original, timings=timings)


def _explained(error: Exception | None, kind: TextPass, path: str) -> Exception:
    """Return the error of a pass, with its name; those of devices and bugs as they are."""
    if not isinstance(error, GenerationError):
        return error or AssertionError("a second pass without an answer has an error")
    hint = error.hint
    if error.kind == "context":
        hint = f"take {'longer segments' if kind == 'summary' else 'fewer --max-new-tokens'}"
    message = f"{path}: its {kind}: {error.message.removeprefix(f'{path}: ')}"
    return GenerationError(message, hint=hint, kind=error.kind, stage=kind)
