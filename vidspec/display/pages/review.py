"""The page of captions under review: a clip beside its text in a row each, to be edited if a server saves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from vidspec.display.pages import words
from vidspec.display.pages.folder import FASTER, FIGURES, MAX_ROWS, folder_row
from vidspec.display.pages.page import BESIDE, Page, RecordMapping, section
from vidspec.errors import UsageError
from vidspec.escaping import one_line
from vidspec.events.record import checking_records
from vidspec.files import behind_link, write_whole
from vidspec.video.image import IMAGES


@dataclass(frozen=True)
class ReviewRow:
    """A clip with its caption.

    Attributes:
        number: from 1.
        name: path of the clip.
        file: path of its caption file; ``state`` is that file's.
        text: the caption; None if it cannot be shown.
        version: of the file, by which a save notices that it has changed.
        source: address of the video, seen from the page.
        prompt: the question about the clip.
        trouble: reason why the caption or the record cannot be shown.
        record: measurements of the caption, if they are known.
        listed: a caption that is shown in the place of a missing file.
        again: models and texts with which the clip is captioned again.
    """

    number: int
    name: str
    file: str
    state: str
    text: str | None
    version: str
    source: str
    prompt: str
    trouble: str = ""
    record: RecordMapping | None = None
    listed: str = ""
    again: str = ""

    @property
    def is_picture(self) -> bool:
        """True if a browser shows the clip as a picture, moving or not, rather than as a video."""
        return Path(self.name).suffix.lower().lstrip(".") in {*IMAGES, "gif"}

    @cached_property
    def other_texts(self) -> Sequence[tuple[str, str]]:
        """Names and texts beside the caption that a run recorded."""
        return () if self.record is None else folder_row(self.number, self.record).other_texts

    @cached_property
    def facts(self) -> Sequence[tuple[str, str]]:
        """Name and value of the file, and of what is known of the caption that a run wrote."""
        if self.record is None:
            return [("file", self.file)]
        row, job = folder_row(self.number, self.record), self.record.get("job") or {}
        several = (
            ("file", self.file),
            ("profile", str(self.record.get("profile") or "")),
            ("target", str((self.record.get("models") or {}).get("target") or "")),
            ("prompt", str(job.get("prompt") or self.record.get("prompt") or "")),
            ("ended", row.state),
            *((name, one.shown(row.figures[name])) for name, one in FIGURES.items() if name != FASTER),
        )
        return [(name, value) for name, value in several if value not in ("", "-")]


def _readable(row: ReviewRow) -> ReviewRow:
    """Return a row, without its record if that has values of other types than a run writes."""
    try:
        with checking_records("review"):
            _ = row.facts, row.other_texts
    except UsageError as error:
        return replace(row, record=None, trouble=one_line(error.message))
    return row


def render_review(rows: Sequence[ReviewRow], states: Mapping[str, str], title: str, *, live: bool) -> str:
    """Return the page.

    Args:
        rows: all clips; those beyond :data:`MAX_ROWS` are only counted.
        states: meaning of each state.
        live: True if a server answers the page, which then can save and caption again.
    """
    counts = Counter(row.state for row in rows)
    shown = [_readable(row) for row in rows[:MAX_ROWS]]
    met = {state: (counts[state], meaning) for state, meaning in states.items() if counts[state]}
    left_out = words.without_row(max(0, len(rows) - MAX_ROWS))
    lead = section("review_lead", states=met, live=live)
    clips = section("review", rows=shown, left_out=left_out, states=met, meanings=states, live=live)
    records = [row.record for row in rows if row.record is not None and row.state in ("written", "superseded")]
    demo = words.demo(sum(record.get("demo") is True for record in records), len(records))
    return Page(title, [clips], lead, demo, script="review.js", policy="" if live else BESIDE).render()


def write_review(file: Path, rows: Sequence[ReviewRow], states: Mapping[str, str], title: str) -> None:
    """Write the page for reading only.

    Raises:
        OutputError: it cannot be written.
    """
    write_whole(behind_link(file), render_review(rows, states, title, live=False))
