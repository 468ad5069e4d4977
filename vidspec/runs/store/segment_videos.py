"""The videos that ``--cut`` wrote of segments, found by the marks of journals."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from vidspec.events.record import RecordDict
from vidspec.runs.formats.base import flat_record, make_format, segment_of
from vidspec.runs.job import Job
from vidspec.runs.store.journal import Journal
from vidspec.runs.store.sidecars import SegmentNames


class SegmentVideos:
    """Videos of segments, by film and bounds.

    Args:
        journals: journals of their runs.
    """

    def __init__(self, journals: Iterable[Journal]) -> None:
        self._names = SegmentNames(make_format("txt"), None, None, "")
        self._films: set[str] = set()
        self._videos: dict[str, list[Path]] = {}
        latest: dict[Path, str] = {}
        for folder, mark in ((one.shown.parent, mark) for one in journals for mark in one.index.marks):
            latest[folder / mark.file] = bounds = mark.settings or ""
            self._films.add(_film(bounds))
        for video, bounds in latest.items():
            self._videos.setdefault(bounds, []).append(video)

    def was_cut(self, record: RecordDict) -> bool:
        """Return True if a record is about a segment of a film of which videos were written."""
        return segment_of(record) is not None and _film(segment_bounds(record)) in self._films

    def clip(self, record: RecordDict) -> RecordDict | None:
        """Return the record of a segment as that of its video; None if there is none."""
        if (number := segment_of(record)) is None:
            return None
        name = self._names.video(Job(path=record["path"], segment=number)).name
        found = [one for one in self._videos.get(segment_bounds(record), ()) if one.name == name and one.exists()]
        folder = os.path.dirname(os.path.abspath(record["path"]))
        if not found:
            return None
        return {**record, "path": str(max(found, key=lambda one: shared_end(one.parent, folder)))}  # copies of a film


def shared_end(folder: Path, other: str | Path) -> int:
    """Return how many folders at the end of two paths have the same names."""
    pairs = zip(reversed(folder.parts), reversed(Path(other).parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def segment_bounds(record: RecordDict) -> str:
    """Return what a segment's video depends on: the film and the place in it."""
    about = flat_record(record)
    content = about.get("sha256") or f"{about.get('size')} {about.get('mtime_ns')}"
    return f"{content} {about.get('start'):g}-{about.get('end'):g}"


def _film(bounds: str) -> str:
    """Return the part of :func:`segment_bounds` that stands for the film."""
    return bounds.rpartition(" ")[0]
