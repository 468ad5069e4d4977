"""Compares two runs clip by clip and marks the words in which captions differ. Writes the page; captions nothing.

On the page a reader picks the better caption of each clip; the page counts the picks and gives them as JSON.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.folder import MAX_ROWS, FolderTable
from vidspec.display.pages.page import BESIDE, Page, RecordMapping, section, source_beside
from vidspec.display.pages.pictures import draw_thumbnails
from vidspec.escaping import one_line
from vidspec.events.record import checking_records
from vidspec.files import behind_link, write_whole

#: Suffixes of clips that browsers play.
PLAYED = frozenset((".mp4", ".m4v", ".mov", ".webm", ".mkv", ".ogv"))
STATES = ("same words", "differs", "failed", "first only", "second only")
#: Words of a text up to which matches may begin at its commonest words too.
WORDS = 600
#: A piece of a text, and True if the other text lacks it.
DiffPiece = tuple[str, bool]


def differences(left: str, right: str) -> tuple[list[DiffPiece], list[DiffPiece]]:
    """Split two texts into pieces of words and blanks, marking those that the other text lacks there."""
    texts = [re.findall(r"\w+\s*|[^\w\s]\s*|\s+", text) for text in (left, right)]
    a, b = ([word.strip() for word in text] for text in texts)  # words keep their blanks, which are not compared
    found: tuple[list[DiffPiece], list[DiffPiece]] = ([], [])
    # Captions that loop have each word so often that all pairs of places would be compared.
    for kind, *ends in SequenceMatcher(None, a, b, autojunk=max(len(a), len(b)) > WORDS).get_opcodes():
        for side, text, start, end in zip(found, texts, ends[::2], ends[1::2], strict=True):
            if end > start:
                side.append(("".join(text[start:end]), kind != "equal"))
    return found


@dataclass(frozen=True)
class CaptionPair:
    """Captions of two runs for one clip and prompt; None if a run did not have it.

    ``state`` is one of :data:`STATES`; ``failed`` is that of a clip that failed in one run at least.
    """

    left: ShownClip | None
    right: ShownClip | None
    state: str
    number: int = 0

    @property
    def one(self) -> ShownClip:
        """Either clip, for what both share."""
        clip = self.left or self.right
        assert clip is not None
        return clip

    @property
    def label(self) -> dict[str, object]:
        """Path, part and prompt of the clip, for the picks."""
        _, start, end, index, _ = _key(self.one.record)
        facts = {"path": self.one.record["path"], "start": start, "end": end, "question": index}
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def identity(self) -> str:
        """Digest of the clip and both captions: a pick is remembered for these."""
        texts = [clip.caption if clip is not None else None for clip in (self.left, self.right)]
        return _digest(repr((self.label, texts))).hex()

    @property
    def sides(self) -> list[tuple[ShownClip | None, list[DiffPiece]]]:
        """Both clips, each with its caption in pieces."""
        texts = [clip.caption if clip is not None else "" for clip in (self.left, self.right)]
        both = all(clip is not None and clip.error is None for clip in (self.left, self.right))
        pieces = differences(*texts) if both else [[(text, False)] for text in texts]
        return list(zip((self.left, self.right), pieces, strict=True))


@dataclass(frozen=True)
class Comparison:
    """Two runs: numbers of clips by their state, and the pairs that a page shows, those that differ first.

    ``demo`` and ``captioned`` count captions of both runs.
    """

    counts: Mapping[str, int]
    shown: Sequence[CaptionPair]
    demo: int
    captioned: int

    @property
    def shared(self) -> int:
        """Clips of both runs."""
        return sum(self.counts.values()) - self.counts["first only"] - self.counts["second only"]


class _Side:
    """Numbers of a run's records, and what its captions are, by row of the page. Holds no record."""

    def __init__(self) -> None:
        self.index, self.caption = array("q"), array("Q")
        self.demo, self.failed = bytearray(), bytearray()

    def set(self, row: int, index: int, record: RecordMapping) -> None:
        while len(self.index) <= row:
            for numbers in (self.index, self.caption, self.demo, self.failed):
                numbers.append(0)
            self.index[-1] = -1
        clip = ShownClip(record)
        self.index[row], self.caption[row] = index, int.from_bytes(_digest(clip.caption)[:8], "little")
        self.demo[row], self.failed[row] = bool(clip.demo), clip.error is not None

    def has(self, row: int) -> bool:
        return row < len(self.index) and self.index[row] >= 0


def compare_runs(
    left: Collection[RecordMapping], right: Collection[RecordMapping], *, by_prompt: bool = True
) -> Comparison:
    """Match the records of two runs by path, part and prompt; those of the first run first, then the rest.

    Without ``by_prompt`` the prompts may differ. If a run has several records for one prompt, the last counts. Each run
    is read twice and its records are not held.
    """
    rows: dict[bytes, int] = {}
    sides = _Side(), _Side()
    for side, records in zip(sides, (left, right), strict=True):
        for index, record in enumerate(records):
            key = _key(record) if by_prompt else _key(record)[:-1]
            side.set(rows.setdefault(_digest(repr(key)), len(rows)), index, record)

    def state(row: int) -> str:
        if not sides[1].has(row):
            return "first only"
        if not sides[0].has(row):
            return "second only"
        if any(side.failed[row] for side in sides):
            return "failed"
        return "same words" if sides[0].caption[row] == sides[1].caption[row] else "differs"

    states = Counter(map(state, range(len(rows))))
    chosen = sorted(range(len(rows)), key=lambda row: state(row) == "same words")[:MAX_ROWS]
    pages = [
        _read_pages(records, {row: side.index[row] for row in chosen if side.has(row)})
        for side, records in zip(sides, (left, right), strict=True)
    ]
    return Comparison(
        counts={state: states[state] for state in STATES},
        shown=[CaptionPair(pages[0].get(row), pages[1].get(row), state(row)) for row in chosen],
        demo=sum(map(sum, (side.demo for side in sides))),
        captioned=sum(sum(index >= 0 for index in side.index) - sum(side.failed) for side in sides),
    )


def _read_pages(records: Collection[RecordMapping], wanted: Mapping[int, int]) -> dict[int, ShownClip]:
    """Return the clips of the rows of a page, given the numbers of their records."""
    rows = {index: row for row, index in wanted.items()}
    found = ((rows[index], ShownClip(record)) for index, record in enumerate(records) if index in rows)
    return dict(islice(found, len(rows)))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _key(record: RecordMapping) -> tuple[object, ...]:
    part = {**record, **(record.get("job") or {})}
    question = record.get("question") or {}
    prompt = question.get("prompt") or part.get("prompt")
    return os.path.normpath(record["path"]), part.get("start"), part.get("end"), question.get("index"), prompt


def write_compared(
    file: Path, left: Collection[RecordMapping], right: Collection[RecordMapping], names: tuple[str, str]
) -> Comparison:
    """Write the page of two runs side by side and return their clips; write nothing if they share none.

    Runs without a common prompt are matched by clip alone.

    Raises:
        UsageError: a record is not one that vidspec writes.
        OutputError: it cannot be written.
    """
    from jinja2 import UndefinedError

    with checking_records("report on", UndefinedError):
        found = compare_runs(left, right)
        found = found if found.shared else compare_runs(left, right, by_prompt=False)
        if found.shared:
            write_whole(behind_link(file), _page(found, (one_line(names[0]), one_line(names[1])), file).render())
        return found


def _page(found: Comparison, names: tuple[str, str], file: Path) -> Page:
    folder = FolderTable()
    counts = {state: count for state, count in found.counts.items() if count}
    about = {"names": names, "states": {"first only": f"only in {names[0]}", "second only": f"only in {names[1]}"}}
    rows = [replace(one, number=folder.add(one.one.record)) for one in found.shown]
    left_out = words.without_row(sum(found.counts.values()) - len(rows))
    paths = {one.number: one.one.record["path"] for one in rows}
    sources = {
        number: source_beside(path, file)
        for number, path in paths.items()
        if Path(path).suffix.lower() in PLAYED and os.path.isfile(path)
    }
    thumbnails = draw_thumbnails(folder.pictured)
    pairs = section("pairs", rows=rows, left_out=left_out, thumbnails=thumbnails, sources=sources, **about)
    picks = [section("picks", names=names)] if found.counts["differs"] else []
    lead, demo = section("pairs_lead", counts=counts, **about), words.demo(found.demo, found.captioned)
    return Page(f"{names[0]} and {names[1]}", [pairs, *picks], lead, demo, script="picks.js", policy=BESIDE)
