"""The page of a run: of one clip, or of many with the first ones in full. Reads their frames again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from vidspec.config.schema import Profile
from vidspec.display.pages import words
from vidspec.display.pages.clip import ClipPage
from vidspec.display.pages.folder import FolderPage
from vidspec.display.pages.page import RecordMapping, render_page
from vidspec.display.pages.pictures import DrawFrames, draw_frames, draw_thumbnail
from vidspec.display.pages.side_by_side import Comparison, compare_runs, write_comparison
from vidspec.display.pages.timeline import from_chrome
from vidspec.display.state import ClipStates
from vidspec.errors import UsageError, VidspecError
from vidspec.escaping import one_line
from vidspec.events.record import Caption, checking_records
from vidspec.events.trace import Span
from vidspec.files import read_whole, write_whole

__all__ = ["IN_FULL", "ReportFile", "read_trace", "write", "write_compared", "write_finished"]

#: Most clips shown in full on a page of many.
IN_FULL = 24
#: Bytes of pictures on a page of one clip, and per clip on a page of several.
_ALONE, _AMONG = 2_000_000, 250_000
#: Most bytes of a trace; a clip's has some kilobytes.
MAX_TRACE_BYTES = 1 << 30


def write(
    file: Path,
    folder: FolderPage,
    clips: Sequence[ClipPage],
    title: str,
    *,
    frames: bool = True,
    decoder: str = "auto",
    allow_damaged: bool = False,
) -> list[VidspecError]:
    """Write the page.

    Args:
        file: replaced whole.
        folder: all clips.
        clips: those shown in full; if the folder has a single clip, the page is about it.
        title: of a page of many.
        frames: read the frames again and draw them, which takes a while.
        decoder, allow_damaged: as clips were read.

    Returns:
        Errors of reading frames again; the page is written all the same and mentions them.

    Raises:
        OutputError: it cannot be written.
    """
    errors: list[VidspecError] = []
    if frames:
        draw = partial(
            draw_frames, budget=_ALONE if len(clips) == 1 else _AMONG, decoder=decoder, allow_damaged=allow_damaged
        )
        whole = [_with_pictures(clip, draw, errors) for clip in clips]
    else:
        whole = [replace(clip, unseen="not read again, as the run was interrupted") for clip in clips]
    demo = words.demo(folder.demo, folder.clips - folder.failed)
    if folder.clips == 1 and whole:
        content = render_page("clip.html", title=whole[0].name, demo=demo, clip=whole[0])
    else:
        content = render_page(
            "folder.html",
            title=one_line(f"{title}: {words.counted(folder.clips, 'record')}"),
            demo=demo,
            folder=folder,
            thumbnails=_thumbnails(folder) if frames else {},
            clips=whole,
        )
    write_whole(file, content)
    return errors


def _with_pictures(clip: ClipPage, draw: DrawFrames, errors: list[VidspecError]) -> ClipPage:
    if clip.error is not None:
        return clip
    if (changed := _change_reason(clip.record)) is not None:
        return replace(clip, unseen=changed)
    try:
        return replace(clip, pictures=draw(clip.record, clip.seen))
    except VidspecError as error:
        errors.append(error)
        return replace(clip, unseen=one_line(str(error)))


def _thumbnails(folder: FolderPage) -> dict[int, str]:
    """Return thumbnails by clip number, without clips whose frame cannot be read."""
    found: dict[int, str] = {}
    for number, record in folder.pictured.items():
        if _change_reason(record) is None:
            with suppress(VidspecError):
                found[number] = draw_thumbnail(record)
    return found


def _change_reason(record: RecordMapping) -> str | None:
    """Return a message if the file changed since it was captioned; None if not, as far as the record knows."""
    job, file = record.get("job") or {}, Path(record["path"])
    try:
        status = file.stat()
    except NotADirectoryError:
        return f"{one_line(record['path'])} is in a shard, which is not read again"
    except OSError:
        if "://" in record["path"]:
            return f"{one_line(record['path'])} is not fetched again"
        return f"{one_line(record['path'])} does not exist"
    known = (job.get("size", status.st_size), job.get("mtime_ns", status.st_mtime_ns))
    return None if known == (status.st_size, status.st_mtime_ns) else "the file has changed since"


class ReportFile(ClipStates):
    """One page for all clips of a run.

    The first clips keep their events, to be shown in full; the others keep only their row of the table.

    Args:
        file: the page.
        profile: the acceleration profile.

    Attributes:
        interrupted: the run was interrupted; frames are then not read again, as that takes a while.
        folder: all clips.
        clips: those to be shown in full.
        errors: errors of drawing frames; captions are not affected.
    """

    def __init__(self, file: Path, profile: Profile) -> None:
        super().__init__()
        self.file, self.profile = file, profile
        self.interrupted = False
        self.folder = FolderPage()
        self.clips: list[ClipPage] = []
        self.errors: list[VidspecError] = []
        self._several = False

    def begin(self, number: int, path: str, total: int) -> None:
        self._several = total > 1
        if len(self.clips) + len(self.states) < IN_FULL:
            super().begin(number, path, total)

    def end(self, number: int, caption: Caption) -> None:
        record = caption.to_dict()
        place, state = self.folder.add(record), self.states.pop(number, None)
        if state is not None and (caption.error is None or not self._several):
            spans = caption.trace.spans if caption.trace is not None else ()
            self.clips.append(ClipPage(record, state.prefilled, state.rounds, spans, number=place))

    def write(self) -> None:
        """Write the page, unless no clip has ended.

        Raises:
            OutputError: it cannot be written.
        """
        if not self.folder.clips:
            return
        video = self.profile.video
        self.errors = write(
            self.file,
            self.folder,
            self.clips,
            f"Profile {self.profile.name}",
            frames=not self.interrupted,
            decoder=video.decoder,
            allow_damaged=bool(video.allow_damaged),
        )


def read_trace(file: Path) -> dict[str, list[list[Span]]]:
    """Read a file of ``--trace``; return spans by path.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    content = read_whole(file, MAX_TRACE_BYTES, f"--trace {file}")
    try:
        return from_chrome(json.loads(content))
    except (ValueError, RecursionError):
        raise UsageError(f"--trace {file}: is not a trace of vidspec", hint="caption --trace FILE writes one") from None


def write_finished(
    file: Path, records: Sequence[RecordMapping], traces: Mapping[str, Sequence[Sequence[Span]]], title: str
) -> list[VidspecError]:
    """Write the page of ``records``; return errors of drawing frames.

    Traces are matched to records in order if a path has as many traces as records.

    Raises:
        UsageError: a record is not one that vidspec writes.
        OutputError: it cannot be written.
    """
    from jinja2 import UndefinedError

    with checking_records("report on", UndefinedError):
        folder, clips = _collect_clips(records, traces)
        damaged = any((clip.record.get("video") or {}).get("damage") for clip in clips)
        return write(file, folder, clips, title, allow_damaged=damaged)


def write_compared(
    file: Path, left: Sequence[RecordMapping], right: Sequence[RecordMapping], names: tuple[str, str]
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
            write_comparison(file, found, (one_line(names[0]), one_line(names[1])), _thumbnails)
        return found


def _collect_clips(
    records: Sequence[RecordMapping], traces: Mapping[str, Sequence[Sequence[Span]]]
) -> tuple[FolderPage, list[ClipPage]]:
    """Return all records, and the first of them with their traces."""
    folder = FolderPage()
    clips: list[ClipPage] = []
    captioned = Counter(record["path"] for record in records if record.get("error") is None) if traces else Counter()
    met: Counter[str] = Counter()
    for record in records:
        number, path = folder.add(record), record["path"]
        if record.get("error") is not None and len(records) > 1:
            continue
        mine = traces.get(path, ())
        spans = mine[met[path]] if mine and len(mine) == captioned[path] else ()
        met[path] += bool(mine)
        if len(clips) < IN_FULL:
            clips.append(ClipPage(record, spans=spans, number=number))
    return folder, clips
