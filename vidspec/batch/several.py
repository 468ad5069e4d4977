"""Several outputs as one: each clip is captioned once and goes to all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vidspec.batch.journal import Stored
from vidspec.batch.outputs import Output, Stream
from vidspec.batch.work import Entry

__all__ = ["Several"]


class Several:
    """Counts as done what every output with a memory has; what they remember, a stream among them is told again.

    Args:
        outputs: at most one of them a stream, which then stands beside one with whole records; files beside clips last,
            as those that a single clip may not be written to.
    """

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = outputs
        self._kept = [one for one in outputs if not isinstance(one, Stream)]
        self._streams = [one for one in outputs if isinstance(one, Stream)]

    def parts(self, entry: Entry, settings: str) -> Mapping[int | None, Stored]:
        first, *others = [one.parts(entry, settings) for one in self._kept]
        return {
            key: stored
            for key, stored in first.items()
            if all(key in other and other[key].content.same(stored.content) for other in others)
        }

    def read(self, entry: Entry, stored: Stored) -> dict[str, Any]:
        return self._kept[0].read(entry, stored)

    def same_content(self, entry: Entry, sha256: str, settings: str) -> dict[str, Any] | None:
        # What one wrote may be less than another needs: only outputs that are alike could share it.
        return self._kept[0].same_content(entry, sha256, settings) if len(self._kept) == 1 else None

    def others(self, settings: Collection[str]) -> int:
        return max(one.others(settings) for one in self._kept)

    def check(self, entry: Entry) -> None:
        for one in self.outputs:
            one.check(entry)

    def add(self, entry: Entry, record: dict[str, Any]) -> None:
        for one in self.outputs:
            one.add(entry, record)

    def earlier(self, entry: Entry, settings: str) -> None:
        stored = self.parts(entry, settings)
        for one in self._kept:
            one.earlier(entry, settings)
        for stream in self._streams:
            for part in sorted(stored.values(), key=lambda one: one.segment or 0):
                stream.add(entry, self.read(entry, part))

    def close(self, entries: Sequence[Entry], *, complete: bool) -> list[str]:
        notes: list[str] = []
        failure: Exception | None = None
        for one in self.outputs:
            try:
                notes += one.close(entries, complete=complete)
            except Exception as error:  # the others must be closed all the same
                failure = failure or error
        if failure is not None:
            raise failure
        return notes
