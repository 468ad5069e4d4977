"""A length that a trainer's text encoder keeps: counts of captions, and shorter captions by the same model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from vidspec.errors import GenerationError, UsageError, option
from vidspec.escaping import mark_value
from vidspec.runs.job import Job
from vidspec.runs.rendering import fill_fields, render_caption
from vidspec.runs.text_pass import ClipSteps, ask_text, fail_pass, pass_timings

__all__ = ["cut_text", "shorten", "text_counter"]

#: Times that a caption is asked for again, each with the share of the allowed words to aim at.
AIMS = (0.9, 0.7)
#: Prompt of a pass over a caption that is too long, without the video.
SHORTEN = (
    "Shorten the description of a video below to at most {words} words. Keep subjects and actions.\n"
    "Answer with the new description only.\n\nDescription: {caption}"
)
#: Ends of sentences, of words, and of characters.
_ENDS = (r"[.!?…]+[\"'”\u2019)\]]*(?=\s|$)|[。\uff01\uff1f]+[」』”]*", r"\S+", r"(?s).")


@cache
def text_counter(unit: str) -> Callable[[str], int]:
    """Return the function that counts ``words``, ``characters``, or what a tokenizer makes of a text.

    Tokens that the tokenizer adds (BOS, EOS) count: they take places of the text encoder too.

    Args:
        unit: the name, or a hub id or folder of the tokenizer, which is loaded once.

    Raises:
        UsageError: it cannot be loaded.
    """
    if unit == "words":
        return lambda text: len(text.split())
    if unit == "characters":
        return len
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(Path(unit).expanduser()), trust_remote_code=False)
        tokenizer("?", verbose=False)
    except Exception as error:  # the library's are of many types
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        hint = f"name a tokenizer of the hub, a folder with one, words or characters: {reason}"
        raise UsageError(f"{option('limit_tokenizer', unit)}: no tokenizer can be loaded", hint=hint) from None
    return lambda text: len(tokenizer(text, verbose=False).input_ids)


def cut_text(text: str, fits: Callable[[str], bool]) -> str:
    """Return the beginning of a text that fits, up to the end of a sentence, else of a word, else of a character."""
    for ends in _ENDS:
        for end in reversed([one.end() for one in re.finditer(ends, text)]):
            if fits(text[:end]):
                return text[:end]
    return ""


def shorten(job: Job, most: int, unit: str, template: str | None) -> ClipSteps:
    """Bring the caption of a job to a length: ask again, shorter, at most twice, then end it at a whole sentence.

    Args:
        job: has its result.
        most: the length, of the caption in its template.
        unit: as for :func:`text_counter`.
        template: the run's.
    """
    first, count = job.caption, text_counter(unit)
    text, asked, ended = first.caption or "", 0, first.ended
    timings = first.timings

    def length(text: str) -> int:
        return count(text if template is None else render_caption(text, template, job.fields))

    for aim in AIMS:
        if (tokens := length(text)) <= most:
            break
        asked += 1
        words = max(1, int(len(text.split()) * most / tokens * aim))
        try:
            answer = yield ask_text(job, fill_fields(SHORTEN, {"words": str(words), "caption": mark_value(text)}))
        except GenerationError:  # it can still be cut
            break
        except Exception as error:
            fail_pass(job, error, "limit")
            return
        timings = pass_timings(timings, "limit", answer)
        if answer.caption and length(answer.caption) < length(text):
            text, ended = answer.caption, answer.ended
    cut = length(text) > most
    if cut and not (text := cut_text(text, lambda part: length(part) <= most)):
        message = f"{job.path}: no caption of {most} fits into {option('template')}"
        fail_pass(job, GenerationError(message, hint="raise --limit", kind="limit"), "limit")
        return
    original = first.original
    if asked and original is None:
        original = {"text": first.caption or "", "ended": first.ended}
    job.result = replace(
        first,
        caption=text,
        ended=ended,
        original=original,
        timings=timings,
        limit={"tokens": length(text), "most": most, "unit": unit, "asked_again": asked, "cut": cut},
    )
