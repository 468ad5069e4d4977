"""Many clips as a table, with distributions of their lengths and speeds. Bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.page import RecordMapping, section
from vidspec.escaping import one_line

if TYPE_CHECKING:
    from markupsafe import Markup

#: Most rows in the table for failed clips, and for captioned ones.
MAX_ROWS = 2000
#: Most clips with a picture in the table.
MAX_PICTURES = 200
_STEPS = 24


class RowFigure(NamedTuple):
    """A figure of a clip: its value in a record, its format, and its definition."""

    value: Callable[[RecordMapping], float | None]
    shown: Callable[[float | None], str] = figures.number
    about: str = ""


def _at(*keys: str) -> Callable[[RecordMapping], float | None]:
    """Return a getter of a value of a record."""

    def value(record: RecordMapping) -> float | None:
        found: Any = record
        for key in keys:
            found = (found or {}).get(key)
        return found  # type: ignore[no-any-return]

    return value


def _tokens(record: RecordMapping) -> int | None:
    return None if record.get("error") else len(record["token_ids"])


TAU, ACCEPTED, FASTER = words.LENGTH_NAMES["tau"], words.LENGTH_NAMES["acceptance_rate"], "end to end"
#: Figures of a row, by heading; the last is shown if any clip has it.
FIGURES: Mapping[str, RowFigure] = {
    "tokens": RowFigure(_tokens, lambda value: figures.number(None if value is None else round(value))),
    "time": RowFigure(_at("timings", "end_to_end"), figures.time, words.END_TO_END),
    "tokens/s": RowFigure(_at("speed", "tokens_per_s"), about="while decoding"),
    TAU: RowFigure(_at("lengths", "tau"), about=words.LENGTHS["tau"]),
    ACCEPTED: RowFigure(_at("lengths", "acceptance_rate"), figures.share, words.LENGTHS["acceptance_rate"]),
    FASTER: RowFigure(
        _at("speed", "baseline", "end_to_end"), figures.ratio, "speed-up over plain decoding of the same clip"
    ),
}
#: Figures whose distribution is drawn, by title.
_SPREADS: Mapping[str, RowFigure] = {
    "tokens": FIGURES["tokens"],
    "tokens/s while decoding": FIGURES["tokens/s"],
    "time end to end": FIGURES["time"],
    TAU: FIGURES[TAU],
    words.LENGTH_NAMES["tokens_per_target_pass"]: RowFigure(_at("lengths", "tokens_per_target_pass")),
}


@dataclass(frozen=True)
class FolderRow:
    """A clip in the table.

    ``words`` is its caption or its error, ``figures`` has the values of :data:`FIGURES`, and ``other_texts`` are those
    folded below the caption.
    """

    number: int
    name: str
    state: str
    words: str
    demo: bool
    figures: Mapping[str, float | None]
    other_texts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Histogram:
    """Number of clips in each of equal steps from ``low`` to ``high``."""

    name: str
    clips: int
    low: str
    median: str
    high: str
    counts: tuple[int, ...]


@dataclass
class FolderTable:
    """Clips of a run, added in any order.

    Attributes:
        clips, failed, demo: counts.
        pictured: records for the thumbnails of the first captioned clips, by number.
        rows: rows of the table; clips beyond :data:`MAX_ROWS` of a kind are only counted.
    """

    clips: int = 0
    failed: int = 0
    demo: int = 0
    rows: list[FolderRow] = field(default_factory=list)
    pictured: dict[int, RecordMapping] = field(default_factory=dict)
    _values: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in _SPREADS})

    def add(self, record: RecordMapping) -> int:
        """Add a clip; return its number, from 1."""
        self.clips += 1
        failed = record.get("error") is not None
        self.failed += failed
        self.demo += bool(record.get("demo"))
        if (self.failed if failed else self.clips - self.failed) <= MAX_ROWS:
            self.rows.append(folder_row(self.clips, record))
        if not failed and len(self.pictured) < MAX_PICTURES:
            kept = {key: record.get(key) for key in ("path", "job")}
            self.pictured[self.clips] = {**kept, "video": {"timestamps": _middle_timestamp(record)}}
        for name, one in _SPREADS.items():
            if not failed and (found := one.value(record)) is not None:
                self._values[name].append(found)
        return self.clips

    @property
    def table(self) -> list[FolderRow]:
        """The rows, failures first."""
        return sorted(self.rows, key=lambda row: row.state != "failed")

    @property
    def summary(self) -> str:
        """Sentence that counts the clips and the failures."""
        done = self.clips - self.failed
        counts = f"{figures.number(done)} captioned, {figures.number(self.failed)} failed"
        return f"{figures.counted(self.clips, 'record')}, one for each clip or part of one: {counts}."

    @property
    def spreads(self) -> list[Histogram]:
        """Histogram of each measured value that at least three clips have."""
        return [
            _histogram(name, values, _SPREADS[name].shown) for name, values in self._values.items() if len(values) >= 3
        ]

    def sections(self, thumbnails: Mapping[int, str], detailed: Collection[int]) -> list[Markup]:
        """Return the distributions and the table.

        Args:
            thumbnails: pictures by number.
            detailed: numbers of the clips that the page shows in full.
        """
        compared = any(row.figures[FASTER] is not None for row in self.rows)
        table = section(
            "clips",
            rows=self.table,
            columns={name: one for name, one in FIGURES.items() if compared or name != FASTER},
            left_out=words.without_row(self.clips - len(self.rows)),
            thumbnails=thumbnails,
            detailed=detailed,
        )
        return [*([section("spreads", spreads=self.spreads)] if self.spreads else []), table]


def folder_row(number: int, record: RecordMapping) -> FolderRow:
    clip = ShownClip(record)
    captioned = clip.error is None
    state = {"loop": "ends in a loop", "length": "cut off"}.get(record.get("ended") or "", "captioned")
    return FolderRow(
        number=number,
        name=clip.name,
        state=state if captioned else "failed",
        words=one_line(" ".join(clip.caption.split())) if captioned else clip.error or "",
        demo=clip.demo,
        figures={name: one.value(record) for name, one in FIGURES.items()},
        other_texts=clip.other_texts,
    )


def _middle_timestamp(record: RecordMapping) -> tuple[float, ...]:
    times = (record.get("video") or {}).get("timestamps") or ()
    return tuple(times[len(times) // 2 :][:1])


def _histogram(name: str, values: Sequence[float], shown: Callable[[float], str]) -> Histogram:
    low, high = min(values), max(values)
    counts = [0] * (_STEPS if high > low else 1)
    for value in values:
        counts[min(len(counts) - 1, int((value - low) / (high - low) * len(counts))) if high > low else 0] += 1
    return Histogram(name, len(values), shown(low), shown(median(values)), shown(high), tuple(counts))
