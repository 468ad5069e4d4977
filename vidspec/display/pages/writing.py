"""Puts a page together and writes it: of one clip, or of many with some of them in full. Reads frames again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidspec.display.pages import words
from vidspec.display.pages.clip import Clip
from vidspec.display.pages.folder import Folder
from vidspec.display.pages.page import rendered
from vidspec.display.pages.pictures import pictures, thumbnail
from vidspec.errors import VidspecError
from vidspec.escaping import one_line
from vidspec.files import write_whole

__all__ = ["IN_FULL", "write"]

#: Of many clips so many are shown in full.
IN_FULL = 24
#: Bytes of pictures of a page of one clip, and of each clip in full where there are several.
_ALONE, _AMONG = 2_000_000, 250_000


def write(
    file: Path, folder: Folder, clips: Sequence[Clip], title: str, *, frames: bool = True, **reading: Any
) -> list[VidspecError]:
    """Write the page.

    Args:
        file: replaced whole.
        folder: all clips.
        clips: those shown in full; if there is but one clip the page is about it.
        title: of a page of many.
        frames: whether frames are read again and drawn, which takes a while.
        reading: ``decoder`` and ``allow_damaged``, as clips were read.

    Returns:
        Why frames could not be read again; the page says so and is written all the same.

    Raises:
        OutputError: it cannot be written.
    """
    errors: list[VidspecError] = []
    budget = _ALONE if len(clips) == 1 else _AMONG
    if frames:
        whole = [_seen(clip, budget, errors, reading) for clip in clips]
    else:
        whole = [replace(clip, unseen="the run was interrupted, and they were not read again") for clip in clips]
    demo = words.demo(folder.demo, folder.clips - folder.failed)
    if folder.clips == 1 and whole:
        content = rendered("clip.html", title=whole[0].name, demo=demo, clip=whole[0])
    else:
        title = f"{title}: {words.number(folder.clips)} records"
        content = rendered(
            "folder.html",
            title=one_line(title),
            demo=demo,
            said=folder.said,
            spreads=folder.spreads,
            rows=folder.table,
            left_out=folder.left_out,
            compared=folder.compared,
            thumbnails=_thumbnails(folder) if frames else {},
            detailed={clip.number for clip in whole},
            clips=whole,
        )
    write_whole(file, content)
    return errors


def _seen(clip: Clip, budget: int, errors: list[VidspecError], reading: Mapping[str, Any]) -> Clip:
    if clip.error is not None:
        return clip
    if (changed := _changed(clip.record)) is not None:
        return replace(clip, unseen=changed)
    try:
        return replace(clip, pictures=pictures(clip.record, clip.seen, budget, **reading))
    except VidspecError as error:
        errors.append(error)
        return replace(clip, unseen=one_line(str(error)))


def _thumbnails(folder: Folder) -> dict[int, str]:
    """By number; a clip whose frame cannot be had goes without."""
    found: dict[int, str] = {}
    for number, record in folder.pictured.items():
        if _changed(record) is None:
            with suppress(VidspecError):
                found[number] = thumbnail(record)
    return found


def _changed(record: Mapping[str, Any]) -> str | None:
    """Why the file is no longer the one that was captioned, as far as its record tells."""
    job, file = record.get("job") or {}, Path(record["path"])
    try:
        status = file.stat()
    except OSError:
        return f"there is no file {one_line(record['path'])} here"
    known = (job.get("size", status.st_size), job.get("mtime_ns", status.st_mtime_ns))
    return None if known == (status.st_size, status.st_mtime_ns) else "the file is another one since"
