"""Cues of subtitles, which several formats share."""

from __future__ import annotations

import textwrap
from itertools import accumulate

from vidspec.escaping import cue
from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import one_line_caption, time_range

__all__ = ["escape_cue", "subtitle_cues"]

#: Maximum lines of a subtitle, and characters per line.
LINES, WIDTH = 2, 42


def subtitle_cues(record: RecordDict, text: str | None = None) -> list[tuple[int, int, str]]:
    """Split a caption, or its marked ``text``, into cues of two lines of 42 characters.

    Returns:
        start and end in milliseconds and the text with its line break. Cues are contiguous, and each lasts for its
        share of the text. A caption of unknown time, or too short for its cues, stays one cue.
    """
    start, end = (round(moment * 1000) for moment in time_range(record))
    lines = textwrap.wrap(one_line_caption(record["caption"] if text is None else text), WIDTH, break_on_hyphens=False)
    parts = ["\n".join(lines[at : at + LINES]) for at in range(0, len(lines), LINES)]
    if end - start < len(parts):
        return [(start, end, "\n".join(lines))]
    ends = [start + round((end - start) * length / sum(map(len, parts))) for length in accumulate(map(len, parts))]
    return list(zip([start, *ends], ends, parts, strict=False))


def escape_cue(text: str) -> str:
    """Escape the lines of a cue of :func:`subtitle_cues`, after wrapping."""
    return "\n".join(cue(one) for one in text.split("\n"))
