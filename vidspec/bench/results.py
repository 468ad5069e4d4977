"""The results file of a bench: valid JSON after every record, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from vidspec.errors import OutputError, UsageError
from vidspec.events.record import OPTIONAL_KEYS, RECORD_KEYS, Caption
from vidspec.events.trace import Span, Trace
from vidspec.files import FileKind, back_up, behind_link, check_output, open_own, write_whole

__all__ = [
    "RESULTS",
    "ResultsFile",
    "StoredKey",
    "StoredRun",
    "check_results",
    "read_results",
    "restore_caption",
]

#: Contender, clip, number of the repeat from 0.
StoredKey: TypeAlias = tuple[str, str, int]

#: A record, or a whole file of results, as JSON values.
StoredRun: TypeAlias = dict[str, Any]
#: Start of a results file: of a run that goes on, and of a complete one.
RESULTS = FileKind("file of results of `vidspec bench`", rb'\A\{\s*"(settings|machine)": ')
_CLOSING = b"\n]}\n"
#: Span kinds that the speed model reads.
_PASSES = ("verify", "draft")


class ResultsFile:
    """Records of a run on disk, each written as soon as it is ready.

    The file is an object with ``settings``, ``machine`` and ``records``, a line each; :meth:`finish` adds the rows.
    A record has the keys of ``--format json`` and ``contender``, ``repeat`` and ``passes`` (seconds of every target and
    draft pass).

    Args:
        path: the file; one with the same settings is resumed. None keeps the records in memory only.
        settings: of the run, JSON values; a file with other settings is not touched.
        machine: facts about the machine.
        overwrite: start from scratch; the older file becomes ``FILE~``.

    Attributes:
        done: records already in the file.
        stored: the same as JSON values, in the file's order.

    Raises:
        UsageError: the file holds a run with other settings.
        OutputError: it cannot be read or written.
    """

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, object],
        machine: Mapping[str, object],
        *,
        overwrite: bool = False,
    ) -> None:
        path = path and behind_link(path)
        self.path, self.settings, self.machine = path, json.loads(json.dumps(settings)), dict(machine)
        self.done: dict[StoredKey, Caption] = {}
        self.stored: list[StoredRun] = []
        if path is not None:
            with self._writing(path):
                if path.exists():
                    self._continue(path, overwrite)
                self._begin(path)

    def _continue(self, path: Path, overwrite: bool) -> None:
        if overwrite:
            back_up(path)
            return
        if not path.stat().st_size:
            return
        content = read_results(path)
        known = content.get("settings", {})
        if known != self.settings:
            other = [key for key in known | self.settings if known.get(key) != self.settings.get(key)]
            raise UsageError(
                f"{path} holds a run with other {', '.join(other) or 'settings'}",
                hint="name another file, or start over with --overwrite",
            )
        self.stored = content["records"]
        self.machine = content.get("machine", {}) | self.machine  # facts found later are not measured again
        self.done = {_key(one): restore_caption(one) for one in self.stored}

    def _begin(self, path: Path) -> None:
        head = json.dumps({"settings": self.settings, "machine": self.machine}, ensure_ascii=False)
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in self.stored)
        write_whole(path, f'{head[:-1]},\n"records": [\n{lines}'.encode() + _CLOSING)

    def add(self, key: StoredKey, caption: Caption, **more: object) -> None:
        """Append a record, with further entries if any; it is on disk when this returns."""
        stored = {"contender": key[0], "repeat": key[2], **more, **caption.to_dict(), "passes": _passes(caption)}
        if self.path is not None:
            line = json.dumps(stored, ensure_ascii=False).encode()
            with self._writing(self.path), open_own(self.path, "r+b") as file:
                file.seek(-len(_CLOSING), os.SEEK_END)
                file.write((b",\n" if self.stored else b"") + line + _CLOSING)
        self.stored.append(stored)
        self.done[key] = caption

    def rewrite(self) -> None:
        """Write the whole file again, after entries of :attr:`stored` were changed."""
        if self.path is not None:
            self._begin(self.path)

    def finish(self, **more: object) -> None:
        """Write the whole file again with further entries, such as the rows of the table."""
        content = {"machine": self.machine, **more, "settings": self.settings, "records": self.stored}
        if self.path is not None:
            write_whole(self.path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def check_results(path: Path, inputs: Iterable[str], *, overwrite: bool) -> None:
    """Check, before any model is loaded, that records can be written to ``path``.

    With ``overwrite`` any regular file may be replaced; the old one is kept as FILE~.

    Raises:
        UsageError: naming ``--json``.
    """
    check_output(path, inputs, "--json", FileKind("regular file", b"") if overwrite else RESULTS)


def read_results(path: Path) -> StoredRun:
    """Return the content of a results file; if it was cut off within a record, all records before it.

    Raises:
        OutputError: it is missing, or not a results file.
    """
    try:
        if path.is_char_device():
            raise OutputError(f"{path}: holds no results of `vidspec bench`")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from error
    for candidate in (text, text.rpartition("\n")[0].rstrip(",\n") + "\n]}"):
        try:
            content = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(content, dict) and "records" in content:
            return content
    raise OutputError(f"{path}: holds no results of `vidspec bench`")


def restore_caption(stored: StoredRun) -> Caption:
    """Return a stored record, with its passes as a trace; their start times are not stored."""
    spans = [
        Span("target" if kind == "verify" else "draft", kind, 0.0, seconds)
        for kind, times in stored.get("passes", {}).items()
        for seconds in times
    ]
    return Caption(
        **{key: stored[key] for key in (*RECORD_KEYS, *OPTIONAL_KEYS) if key in stored}, trace=Trace(spans=spans)
    )


def _key(stored: StoredRun) -> StoredKey:
    return stored["contender"], stored["path"], stored["repeat"]


def _passes(caption: Caption) -> dict[str, list[float]]:
    if caption.trace is None:
        return {}
    return {
        kind: [round(span.end - span.start, 7) for span in caption.trace.spans if span.kind == kind] for kind in _PASSES
    }
