"""What a run would do, and how long that may take. Looks at clips and earlier records; loads and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vidspec.batch.formats import span
from vidspec.batch.identity import Content, clip_id
from vidspec.batch.journal import Stored, parsed
from vidspec.batch.segments import fixed
from vidspec.batch.work import Entry, How, Task
from vidspec.errors import OutputError, VideoError

__all__ = ["Estimate", "Looked", "Past", "Wanted", "estimate", "wanted"]


class Past(NamedTuple):
    """What an earlier record says of its cost: ``seconds`` it took, for ``covered`` seconds of video."""

    seconds: float
    covered: float


class Looked:
    """The outputs of a run as they lie there, neither locked nor repaired; an ``Output`` that keeps nothing.

    Args:
        journals: for each output that remembers, where the journal of an entry is.
    """

    def __init__(self, journals: Sequence[Callable[[Entry], Path]]) -> None:
        self._where = journals
        self._read: dict[Path, dict[tuple[str, str], dict[int | None, Stored]]] = {}
        self._records: dict[tuple[str, str], dict[str, Any]] = {}
        self._past: dict[tuple[str, str, int | None], Past] = {}

    def past(self, settings: Collection[str]) -> list[Past]:
        """Of all records under these settings that were read so far and tell their times."""
        return [one for (_, name, _), one in self._past.items() if name in settings]

    def parts(self, entry: Entry, settings: str) -> Mapping[int | None, Stored]:
        key = clip_id(entry), settings
        first, *others = [self._known(where(entry)).get(key, {}) for where in self._where] or [{}]
        return {key: stored for key, stored in first.items() if all(key in other for other in others)}

    def read(self, entry: Entry, stored: Stored) -> dict[str, Any]:
        return {}  # a caption that only a later segment's prompt would quote

    def same_content(self, entry: Entry, sha256: str, settings: str) -> dict[str, Any] | None:
        return self._records.get((sha256, settings)) if len(self._where) == 1 else None

    def others(self, settings: Collection[str]) -> int:
        return 0

    def check(self, entry: Entry) -> None:
        """Nothing is tried."""

    def add(self, entry: Entry, record: dict[str, Any]) -> None:
        """Nothing is kept."""

    def earlier(self, entry: Entry, settings: str) -> None:
        """Nothing is written again."""

    def close(self, entries: Sequence[Entry], *, complete: bool) -> list[str]:
        return []

    def _known(self, path: Path) -> dict[tuple[str, str], dict[int | None, Stored]]:
        if path not in self._read:
            found = self._read[path] = {}
            try:
                with path.open("rb") as file:
                    for line in file:
                        self._take(found, parsed(line))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from None
        return self._read[path]

    def _take(self, found: dict[tuple[str, str], dict[int | None, Stored]], record: Mapping[str, Any] | None) -> None:
        if record is None:
            return
        job = record["job"]
        content = Content(job.get("size"), job.get("mtime_ns"), job.get("sha256"))
        failed = record.get("error") is not None
        key, segment = (job["clip"], job["settings"]), job.get("segment")
        found.setdefault(key, {})[segment] = Stored(0, 0, *key, segment, job.get("segments"), content, failed)
        if failed:
            return
        if content.sha256 is not None and segment is None:
            self._records[content.sha256, job["settings"]] = dict(record)
        seconds = record.get("timings", {}).get("end_to_end")
        if seconds is not None:
            start, end = span(record)
            self._past[job["clip"], job["settings"], segment] = Past(seconds, end - start)


@dataclass(frozen=True)
class Wanted:
    """What is to be captioned of an entry: ``seconds`` of it, in so many ``parts`` (None where scenes make them).

    ``error`` says why nothing can be.
    """

    entry: Entry
    seconds: float = 0.0
    parts: int | None = 1
    error: str | None = None


def wanted(task: Task, how: How) -> Wanted:
    """How much of a clip is left, from its index alone; scenes are not looked for."""
    from vidspec.video import probe

    entry = task.entry
    try:
        duration = probe(entry.path).duration_s
        start, end = entry.start or 0.0, duration if entry.end is None else min(entry.end, duration)
        if end <= start:
            raise VideoError(f"{entry.path}: has no frame at {start:g} s or later: it lasts {duration:.3f} s")
    except VideoError as error:
        return Wanted(entry, error=str(error))
    if not isinstance(how.segment, float | int):
        return Wanted(entry, end - start, 1 if how.segment is None else None)
    segments = [one for number, one in enumerate(fixed(how.segment, start, end)) if number not in task.done]
    return Wanted(entry, sum(last - first for first, last in segments), len(segments))


class Estimate(NamedTuple):
    """``seconds`` that a run may take, None where nothing tells, and on what that rests."""

    seconds: float | None
    why: str


def estimate(left: Iterable[Wanted], past: Sequence[Past], *, by_length: bool) -> Estimate:
    """How long one captioner may need, from what earlier clips of the same settings took; loading is not in it.

    Args:
        left: what is to be captioned.
        past: what earlier records say.
        by_length: whether a clip's cost follows its length, as with frames per second or segments, or is the same.
    """
    todo = [one for one in left if one.error is None]
    if not past:
        return Estimate(None, "no earlier record here with these settings and times")
    spent, covered = sum(one.seconds for one in past), sum(one.covered for one in past)
    basis = f"{len(past)} earlier record{'s' if len(past) > 1 else ''} here"
    if not by_length:
        each = spent / len(past)
        return Estimate(each * len(todo), f"{basis}, {each:.2f} s for a clip")
    if covered <= 0:
        return Estimate(None, f"{basis} do not say how long their clips are")
    rate = spent / covered
    return Estimate(rate * sum(one.seconds for one in todo), f"{basis}, {rate:.2f} s for a second of video")
