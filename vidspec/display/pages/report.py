"""The page of a run: of one clip, or of many with the first ones in full. Reads their frames again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from vidspec.config.schema import Profile
from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.clip_sections import clip_sections
from vidspec.display.pages.folder import FolderTable
from vidspec.display.pages.page import Page, RecordMapping, section
from vidspec.display.pages.pictures import DrawFrames, change_reason, draw_frames, draw_thumbnails
from vidspec.display.pages.timeline import from_chrome
from vidspec.display.state import ClipStates
from vidspec.errors import UsageError, VidspecError, option
from vidspec.escaping import one_line
from vidspec.events.record import Caption, checking_records, failed_caption
from vidspec.events.trace import Span
from vidspec.files import behind_link, read_whole, write_whole

#: Most clips shown in full on a page of many.
IN_FULL = 24
#: Bytes of pictures on a page of one clip, and per clip on a page of several.
_ALONE, _AMONG = 2_000_000, 250_000
#: Most bytes of a trace; a clip's has some kilobytes.
MAX_TRACE_BYTES = 1 << 30


def write(
    file: Path,
    folder: FolderTable,
    clips: Sequence[ShownClip],
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
        Errors of reading frames again; the page is written anyway and mentions them.

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
        page = Page(whole[0].name, [clip_sections(whole[0])], demo=demo)
    else:
        sections = folder.sections(draw_thumbnails(folder.pictured) if frames else {}, [clip.number for clip in whole])
        if whole:
            sections.append(section("clip_by_clip", clips=[(clip, clip_sections(clip)) for clip in whole]))
        title = one_line(f"{title}: {figures.counted(folder.clips, 'record')}")
        page = Page(title, sections, section("lead", text=folder.summary), demo)
    write_whole(behind_link(file), page.render())
    return errors


def _with_pictures(clip: ShownClip, draw: DrawFrames, errors: list[VidspecError]) -> ShownClip:
    if clip.error is not None:
        return clip
    if (changed := change_reason(clip.record)) is not None:
        return replace(clip, unseen=changed)
    try:
        return replace(clip, pictures=draw(clip.record, clip.seen))
    except VidspecError as error:
        errors.append(error)
        return replace(clip, unseen=one_line(str(error)))


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
        self.folder = FolderTable()
        self.clips: list[ShownClip] = []
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
            self.clips.append(ShownClip(record, state.prefilled, state.rounds, spans, number=place))

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
    content = read_whole(file, MAX_TRACE_BYTES, option("trace", file))
    try:
        return from_chrome(json.loads(content))
    except (ValueError, RecursionError):
        raise UsageError(
            f"{option('trace', file)}: is not a trace of vidspec", hint=f"caption {option('trace', 'FILE')} writes one"
        ) from None


def write_finished(
    file: Path, records: Collection[RecordMapping], traces: Mapping[str, Sequence[Sequence[Span]]], title: str
) -> list[VidspecError]:
    """Write the page of ``records``; return errors of drawing frames, and of records that only name their clip there.

    Traces are matched to records in order if a path has as many traces as records.

    Raises:
        UsageError: no record is one that vidspec writes.
        OutputError: it cannot be written.
    """

    def write_page(shown: Collection[RecordMapping]) -> list[VidspecError]:
        folder, clips = _collect_clips(shown, traces)
        damaged = any((clip.record.get("video") or {}).get("damage") for clip in clips)
        return write(file, folder, clips, title, allow_damaged=damaged)

    try:
        with _reporting():
            return write_page(records)
    except UsageError:
        odd = {number: error for number, one in enumerate(records) if (error := _odd(one)) is not None}
        if not odd or len(odd) == len(records):
            raise
        known = [
            failed_caption(one_line(str(one.get("path"))), odd[number]).to_dict() if number in odd else one
            for number, one in enumerate(records)
        ]
        with _reporting():
            return [*odd.values(), *write_page(known)]


def _reporting() -> AbstractContextManager[None]:
    from jinja2 import UndefinedError

    return checking_records("report on", UndefinedError)


def _odd(record: RecordMapping) -> UsageError | None:
    """Return the error of showing a record whose values have other types than ours; None if it can be shown."""
    try:
        with _reporting():
            folder, clips = _collect_clips([record], {})
            folder.sections({}, ())
            for clip in clips:
                clip_sections(clip)
    except UsageError as error:
        return UsageError(f"{one_line(str(record.get('path')))}: {error.message}")
    return None


def _collect_clips(
    records: Collection[RecordMapping], traces: Mapping[str, Sequence[Sequence[Span]]]
) -> tuple[FolderTable, list[ShownClip]]:
    """Return all records, and the first of them with their traces."""
    folder = FolderTable()
    clips: list[ShownClip] = []
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
            clips.append(ShownClip(record, spans=spans, number=number))
    return folder, clips
