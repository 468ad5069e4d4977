"""Descriptions of runs in a journal: the spec and the profile that made its records, once for each run.

A line ``{"run": SETTINGS, "spec": {...}, "profile": {...}}`` stands before the first record with these ``settings``.
Other settings of that run, as of clips with prompts of their own, have a line ``{"run": SETTINGS, "of": SETTINGS}``.
A journal that users see holds records only: its descriptions stand in the hidden file beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vidspec.escaping import json_text
from vidspec.files import encode_line, open_own

if TYPE_CHECKING:
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile

#: Beginning of a line; no record begins like this.
_RUN = b'{"run": '
#: Fields of a spec that name clips: a record has its own, and there may be a million.
_INPUTS = {"paths", "from_file", "manifest"}


@dataclass(frozen=True)
class CaptionRun:
    """A run that made captions: the given fields of its spec, without its inputs, and its profile."""

    spec: Mapping[str, object]
    profile: Mapping[str, object]

    @classmethod
    def of(cls, spec: RunSpec, profile: Profile) -> CaptionRun:
        """Return the description of a run, as JSON-ready values."""
        given = spec.model_dump(mode="json", exclude=_INPUTS, exclude_defaults=True)
        return cls(given, profile.model_dump(mode="json"))

    @cached_property
    def digest(self) -> str:
        """Hash by which equal descriptions are known."""
        return hashlib.sha256(json.dumps([self.spec, self.profile], sort_keys=True).encode()).hexdigest()[:16]


class RunLine(NamedTuple):
    """Place of the line that describes the run of some settings, in bytes."""

    offset: int
    length: int
    settings: str


class RunLines:
    """The descriptions in a file, by settings.

    Args:
        file: the journal, or the hidden file beside it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lines: dict[str, RunLine] = {}
        self._runs: dict[str, CaptionRun] = {}
        self._origins: dict[str, str] = {}  # settings of the line with a description, by its digest

    @classmethod
    def read(cls, file: Path) -> RunLines:
        """Return the descriptions in a file; none if it cannot be read."""
        runs, at = cls(file), 0
        if file.is_symlink() or not file.is_file():  # no run made it, or it may have no end
            return runs
        with suppress(OSError), file.open("rb") as lines:
            for line in lines:
                if is_run_line(line):
                    runs.add(line, at)
                at += len(line)
        return runs

    def __contains__(self, settings: str) -> bool:
        return settings in self._runs

    def add(self, line: bytes, offset: int) -> None:
        """Add a line of the file; one that is torn or odd describes nothing."""
        with suppress(ValueError, RecursionError):
            fields = json.loads(line)
            settings, spec, profile = str(fields.get("run")), fields.get("spec"), fields.get("profile")
            run = self.of(str(fields.get("of")))
            if isinstance(spec, dict) and isinstance(profile, dict):
                run = CaptionRun(spec, profile)
                self._origins[run.digest] = settings
            if run is not None:
                self._runs[settings], self._lines[settings] = run, RunLine(offset, len(line), settings)

    def line(self, settings: str, run: CaptionRun) -> bytes:
        """Return the line that describes the run of these settings."""
        if (origin := self._origins.get(run.digest)) is not None:
            return encode_line(json_text({"run": settings, "of": origin}) + "\n")
        return encode_line(json_text({"run": settings, "spec": run.spec, "profile": run.profile}) + "\n")

    def append(self, settings: str, run: CaptionRun) -> None:
        """Append a description to the file that is no journal, after the torn line of a crash, if there is one.

        Raises:
            OSError: it cannot be written.
        """
        line = self.line(settings, run)
        with open_own(self.file, "ab") as file:
            if (size := file.tell()) > 0:
                with self.file.open("rb") as written:
                    written.seek(size - 1)
                    size += file.write(b"" if written.read(1) == b"\n" else b"\n")
            file.write(line)
        self.add(line, size)

    def of(self, settings: str) -> CaptionRun | None:
        """Return how captions with these settings were made; None if that is not known."""
        return self._runs.get(settings)

    @property
    def described(self) -> list[CaptionRun]:
        """All runs that are described, in the order of their lines."""
        return [self._runs[settings] for settings in self._origins.values()]

    def used(self, settings: Collection[str]) -> Iterator[RunLine]:
        """Yield the lines that captions with these settings need, origins before the lines that name them."""
        origins = {self._origins[run.digest] for one in settings if (run := self.of(one)) is not None}
        return (line for one, line in self._lines.items() if one in origins or one in settings)


def is_run_line(line: bytes) -> bool:
    """Return True if a line of a journal describes a run."""
    return line.startswith(_RUN)
