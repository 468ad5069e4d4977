"""Results as JSON lines, appended and flushed one by one, so that an interrupted run loses none; and a time limit."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self


class Results:
    """Results file of one part of the measurement.

    Args:
        folder: gets ``PART.jsonl``; a later run appends to it, after a line of kind ``begin``.
        part: its name.
        minutes: after which nothing more is begun.
        say: called with each line.

    Attributes:
        left_out: omitted measurements, and the reasons.
        failed: True if something failed.
    """

    def __init__(self, folder: Path, part: str, minutes: float, say: Callable[[str], None] = lambda _: None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._say = folder / f"{part}.jsonl", say
        self._file = self.path.open("a", encoding="utf-8")
        if self._file.tell():
            self._file.write("\n")  # after a line that was cut off
        self._file.write(json.dumps({"kind": "begin", "at": datetime.now().isoformat(timespec="seconds")}) + "\n")
        self._file.flush()
        self._end = time.monotonic() + 60 * minutes
        self.left_out: dict[str, str] = {}
        self.failed = False

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def add(self, kind: str, **row: object) -> None:
        """Write one line."""
        line = json.dumps({"kind": kind, **row})
        self._file.write(line + "\n")
        self._file.flush()
        self._say(line)

    def leave_out(self, what: str, why: str) -> None:
        """Record an omitted measurement."""
        self.left_out[what] = why
        self.add("left out", what=what, why=why)

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Context whose failure is recorded, so that the rest is still measured: a lent GPU may not come back."""
        try:
            yield
        except Exception as error:
            memory = type(error).__name__ == "OutOfMemoryError" or getattr(error, "kind", None) == "memory"
            why = "too little memory" if memory else _first_line(error)
            self.leave_out(what, why)
            self.failed |= why != "too little memory"
            traceback.print_exc()

    def begin(self, what: str, seconds: float = 0.0) -> bool:
        """Return True if there is time for ``seconds`` of work; record it as omitted otherwise."""
        if self.seconds_left > seconds:
            return True
        self.leave_out(what, "no time left")
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.add("end", left_out=len(self.left_out))
        else:
            self.add("failed", error=_first_line(error))
        self._file.close()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def read(path: Path) -> Iterator[dict[str, object]]:
    """Read the lines of all runs of a file, without those that an interruption cut off."""
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def read_last(path: Path) -> list[dict[str, object]]:
    """Read the lines of the last run of a file."""
    rows = list(read(path))
    begun = [at for at, row in enumerate(rows) if row["kind"] == "begin"]
    return rows[begun[-1] + 1 :] if begun else rows


def without_kind(row: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a line's dataclass."""
    return {key: value for key, value in row.items() if key != "kind"}
