"""Timed events: answers of the form ``[{start, end, text}]``, checked against the clip's length. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from vidspec.errors import GenerationError
from vidspec.events.tally import counted

__all__ = ["TimedEvent", "checked_events", "timed_events"]


class TimedEvent(TypedDict):
    """One event; ``start`` and ``end`` are seconds from the start of the video."""

    start: float
    end: float
    text: str


def timed_events(data: object) -> list[TimedEvent] | None:
    """Return an answer as timed events; None if it has another form."""
    if not isinstance(data, list) or not all(isinstance(one, dict) and _is_event(one) for one in data):
        return None
    return data


def _is_event(one: dict[str, object]) -> bool:
    start, end, text = one.get("start"), one.get("end"), one.get("text")
    return isinstance(start, int | float) and isinstance(end, int | float) and isinstance(text, str)


def checked_events(
    path: str, events: Sequence[TimedEvent], start: float, end: float
) -> tuple[list[TimedEvent], list[str]]:
    """Return the events of the part of a video from ``start`` to ``end``, sorted by time, and notes on corrections.

    An event that reaches beyond the part is cut there. One that is outside, or ends before it starts, is left out.

    Raises:
        GenerationError: none is left.
    """
    forward = [one for one in events if one["start"] <= one["end"]]
    inside = [one for one in forward if one["start"] < end and one["end"] > start]
    cut: list[TimedEvent] = [
        {"start": max(start, one["start"]), "end": min(end, one["end"]), "text": one["text"]} for one in inside
    ]
    part = f"{start:g} s to {end:g} s"
    if events and not cut:
        raise GenerationError(
            f"{path}: none of its {counted(len(events), 'event')} is within {part}",
            hint="take a model that reads the times of frames, or give --segment",
            kind="events",
        )
    kept = sorted(cut, key=lambda one: (one["start"], one["end"]))
    changes = [
        (len(events) - len(forward), "left out: ends before it starts"),
        (len(forward) - len(inside), f"left out: outside {part}"),
        (sum(one != other for one, other in zip(cut, inside, strict=True)), f"cut to {part}"),
    ]
    notes = [f"{counted(count, 'event')} {change}" for count, change in changes if count]
    return kept, [*notes, *(["events sorted by time"] if kept != cut else [])]
