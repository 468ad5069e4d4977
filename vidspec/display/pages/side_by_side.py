"""Compares two runs clip by clip and marks the words in which captions differ. Writes the page; captions nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from vidspec.display.pages import words
from vidspec.display.pages.clip import ClipPage
from vidspec.display.pages.folder import MAX_ROWS, FolderPage
from vidspec.display.pages.page import RecordMapping, render_page
from vidspec.files import write_whole

__all__ = ["CaptionPair", "differences", "pair_captions", "write_comparison"]

#: A piece of a text, and True if the other text lacks it.
DiffPiece = tuple[str, bool]


def differences(left: str, right: str) -> tuple[list[DiffPiece], list[DiffPiece]]:
    """Split two texts into pieces of words and blanks, marking those that the other text lacks there."""
    texts = [re.findall(r"\w+\s*|[^\w\s]\s*|\s+", text) for text in (left, right)]
    a, b = ([word.strip() for word in text] for text in texts)  # words keep their blanks, which are not compared
    found: tuple[list[DiffPiece], list[DiffPiece]] = ([], [])
    for kind, *ends in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, text, start, end in zip(found, texts, ends[::2], ends[1::2], strict=True):
            if end > start:
                side.append(("".join(text[start:end]), kind != "equal"))
    return found


@dataclass(frozen=True)
class CaptionPair:
    """Captions of two runs for one clip and prompt; None if a run did not have it."""

    left: ClipPage | None
    right: ClipPage | None
    number: int = 0

    @property
    def one(self) -> ClipPage:
        """Either clip, for what both share."""
        clip = self.left or self.right
        assert clip is not None
        return clip

    @property
    def sides(self) -> list[tuple[ClipPage | None, list[DiffPiece]]]:
        """Both clips, each with its caption in pieces."""
        texts = [clip.caption if clip is not None else "" for clip in (self.left, self.right)]
        both = all(clip is not None and clip.error is None for clip in (self.left, self.right))
        pieces = differences(*texts) if both else [[(text, False)] for text in texts]
        return list(zip((self.left, self.right), pieces, strict=True))

    @property
    def state(self) -> str:
        """Result of the comparison."""
        if self.left is None or self.right is None:
            return "in one run"
        if self.left.error is not None or self.right.error is not None:
            return "failed"
        return "same words" if self.left.caption == self.right.caption else "differs"


def pair_captions(left: Sequence[RecordMapping], right: Sequence[RecordMapping]) -> list[CaptionPair]:
    """Match the records of two runs by path, part and prompt; those of the first run first, then the rest.

    If a run has several records for one prompt, the last counts.
    """
    sides = [{_key(record): ClipPage(record) for record in records} for records in (left, right)]
    return [CaptionPair(sides[0].get(key), sides[1].get(key)) for key in {**sides[0], **sides[1]}]


def _key(record: RecordMapping) -> tuple[object, ...]:
    part = {**record, **(record.get("job") or {})}
    question = record.get("question") or {}
    prompt = question.get("prompt") or part.get("prompt")
    return os.path.normpath(record["path"]), part.get("start"), part.get("end"), question.get("index"), prompt


def write_comparison(
    file: Path, found: Sequence[CaptionPair], names: tuple[str, str], thumbnails: Callable[[FolderPage], dict[int, str]]
) -> None:
    """Write the page.

    Args:
        file: replaced whole.
        found: all clips of both runs.
        names: of the runs.
        thumbnails: makes pictures by number.

    Raises:
        OutputError: it cannot be written.
    """
    folder = FolderPage()
    rows = [CaptionPair(one.left, one.right, folder.add(one.one.record)) for one in found]
    states = [one.state for one in rows]
    counts = {state: states.count(state) for state in ("same words", "differs", "failed", "in one run")}
    demo = sum(bool(clip and clip.demo) for one in rows for clip in (one.left, one.right))
    captioned = sum(bool(clip and clip.error is None) for one in rows for clip in (one.left, one.right))
    content = render_page(
        "side_by_side.html",
        title=f"{names[0]} and {names[1]}",
        demo=words.demo(demo, captioned),
        names=names,
        counts={state: words.number(count) for state, count in counts.items() if count},
        rows=sorted(rows, key=lambda row: row.state == "same words")[:MAX_ROWS],
        left_out=words.number(max(0, len(rows) - MAX_ROWS)) if len(rows) > MAX_ROWS else "",
        thumbnails=thumbnails(folder),
    )
    write_whole(file, content)
