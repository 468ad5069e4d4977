"""A clip on a page: its record, what else is known of it, and its names and texts. Draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.display.pages.page import RecordMapping
from vidspec.display.pages.pictures import Picture
from vidspec.escaping import escape_text, one_line
from vidspec.events.events import Prefilled, Round
from vidspec.events.trace import Span


@dataclass
class ShownClip:
    """One clip, captioned or failed.

    Attributes:
        record: see :data:`~vidspec.display.pages.page.RecordMapping`.
        seen, rounds: the prefill event and the rounds of an observed run.
        spans: the trace, if there is one.
        pictures: its frames; ``unseen`` is the reason if there are none.
        number: its number on a page of several clips, from 1.
    """

    record: RecordMapping
    seen: Prefilled | None = None
    rounds: Sequence[Round] = ()
    spans: Sequence[Span] = ()
    pictures: Sequence[Picture] = ()
    unseen: str = ""
    number: int = 1

    def get(self, name: str) -> RecordMapping:
        """Return an object of the record; empty if it has none."""
        return self.record.get(name) or {}

    @property
    def name(self) -> str:
        """The path, the part of the file, and the prompt if the clip has several."""
        path, prompt = one_line(self.record["path"]), self.get("question").get("prompt")
        name = path if self._time_range is None else f"{path}, {figures.span(*self._time_range)}"
        return f"{name}: {one_line(prompt)}" if prompt else name

    @property
    def _time_range(self) -> tuple[float, float] | None:
        """Start and end in seconds, from its frames if the record has neither; None for the whole file."""
        job, video = {**self.record, **self.get("job")}, self.get("video")
        start, end, duration = job.get("start"), job.get("end"), video.get("duration_s")
        if start is not None or end is not None:
            last = duration if end is None else end
            return (start or 0.0, last or start or 0.0)
        times: list[float] = video.get("timestamps") or []
        if duration is None or len(times) < 2:
            return None
        step = (times[-1] - times[0]) / (len(times) - 1)
        return (times[0], times[-1]) if times[0] > step or duration - times[-1] > 2 * step else None

    @property
    def error(self) -> str | None:
        error = self.record.get("error")
        return one_line(f"{error['stage']}/{error['kind']}: {error['message']}") if error else None

    @property
    def caption(self) -> str:
        return escape_text(self.record.get("caption") or "")

    @property
    def original(self) -> str | None:
        """Text before the rewrite, which the tokens are of; None if no second pass has rewritten the caption."""
        found = self.get("original").get("text")
        return None if found is None else escape_text(found)

    @property
    def other_texts(self) -> list[tuple[str, str]]:
        """Names and texts that pages show folded below the caption; the summary is of the whole clip."""
        several = (
            (words.ORIGINAL, self.original),
            (words.SUMMARY, escape_text(self.record.get("summary") or "")),
            (words.LENGTH, self._length),
        )
        return [(name, text) for name, text in several if text]

    @property
    def _length(self) -> str | None:
        """Length of the caption, its limit, and what was done for it; None without a limit."""
        if not (limit := self.get("limit")):
            return None
        done = [f"asked for again {limit['asked_again']} times"] if limit["asked_again"] else []
        done += ["its end was cut"] if limit["cut"] else []
        unit = limit["unit"] if limit["unit"] in ("words", "characters") else f"tokens of {limit['unit']}"
        return escape_text("; ".join([f"{limit['tokens']} of {limit['most']} {unit}", *done]))

    @property
    def demo(self) -> bool:
        return bool(self.record.get("demo"))

    @property
    def text_only_draft(self) -> bool:
        """True if there was a draft and it read no visual token."""
        per_frame = self.record.get("kept_per_frame") or ()
        return bool(per_frame) and not any(per_frame)

    @property
    def plain(self) -> bool:
        """True if nothing was drafted."""
        return not self.get("counters").get("drafted")
