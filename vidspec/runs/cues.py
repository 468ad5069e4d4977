"""Cues of subtitles, which several formats share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from itertools import accumulate

from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import one_line_caption, time_range
from vidspec.runs.timed_events import timed_events

#: Maximum lines of a subtitle, and characters per line.
LINES, WIDTH = 2, 42


def subtitle_cues(record: RecordDict, mark: str = "") -> list[tuple[int, int, str]]:
    """Split a caption, or each of its timed events, into cues of two lines of 42 characters.

    Args:
        record: the record.
        mark: text before each caption or event.

    Returns:
        start and end in milliseconds and the text with its line break. Cues are contiguous, and each lasts for its
        share of the text. A text of unknown time, or too short for its cues, stays one cue.
    """
    events = timed_events(record.get("data"))
    if events is None:
        return _split(*time_range(record), mark + record["caption"])
    return [one for event in events for one in _split(event["start"], event["end"], mark + event["text"])]


def _split(start_s: float, end_s: float, text: str) -> list[tuple[int, int, str]]:
    start, end = round(start_s * 1000), round(end_s * 1000)
    lines = textwrap.wrap(one_line_caption(text), WIDTH, break_on_hyphens=False)
    parts = ["\n".join(lines[at : at + LINES]) for at in range(0, len(lines), LINES)]
    if end - start < len(parts):
        return [(start, end, "\n".join(lines))]
    ends = [start + round((end - start) * length / sum(map(len, parts))) for length in accumulate(map(len, parts))]
    return list(zip([start, *ends], ends, parts, strict=False))


def escape_cue(text: str, escape: Callable[[str], str]) -> str:
    """Escape each line of a cue of :func:`subtitle_cues`, after wrapping."""
    return "\n".join(map(escape, text.split("\n")))


def join_cues(texts: Iterable[str]) -> str:
    """Return the caption that cues hold, on one line."""
    return " ".join(" ".join(texts).split())
