"""A video and a caption file for each segment, as training clips: the renderer of ``--cut``."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from vidspec.config.run_spec import ExistingFiles
from vidspec.errors import OutputError, VidspecError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.containers import ShardFiles
from vidspec.runs.formats.base import flat_record
from vidspec.runs.job import Job, JobConfig
from vidspec.runs.journal import unwritable_error
from vidspec.runs.reader import ClipReader
from vidspec.runs.renderers import ONE_CLIP, make_folder
from vidspec.runs.sidecars import SegmentNames, SidecarNames

__all__ = ["SegmentFiles"]


class SegmentFiles(ClipFiles):
    """``NAME-001.mp4`` and ``NAME-001.txt``, written as soon as the segment is captioned.

    Both are complete when they appear, the video after its caption. A video of the same film and bounds is not written
    again. If the caption or the video under a segment's name is another's, the segment is skipped, unless a run
    replaces these.

    Args:
        names: names of the files.
        existing: treatment of foreign files, ``skip`` or ``replace``.
        config: settings of the run: how clips are read.
    """

    def __init__(self, names: SegmentNames, existing: ExistingFiles, config: JobConfig) -> None:
        super().__init__((names,), existing)
        self._segment_names, self._config = names, config
        self._files, self._reader = ShardFiles(config.fetch), ClipReader(config.timeout, config.stall)
        self._kinds: Counter[str] = Counter()

    def leaves(self, job: Job) -> bool:
        return False  # its segments are not known yet

    def file_changes(self, job: Job, settings: str, *, captioned: bool) -> Mapping[Path, str]:
        changes: dict[Path, str] = {}
        for one in self._segments(job, settings):
            changes |= super().file_changes(one, settings, captioned=captioned)
        return changes

    def prepare(self, job: Job, record: RecordDict) -> None:
        if (one := _segment_of(job, record)) is not None:
            super().prepare(one, record)
            if record["caption"] is None:  # trainers stop at a video without a caption
                self._clear(one, self._segment_names.video(one))

    def add(self, job: Job, record: RecordDict) -> None:
        about = record["job"]
        if (one := _segment_of(job, record)) is not None:
            super().add(one, record)
            if len(self.store.parts(job, about["settings"])) == about["segments"]:  # some may be missing after a kill
                self.restore(job, about["settings"])

    def restore(self, job: Job, settings: str) -> None:
        segments = [*self._segments(job, settings)]
        for one in segments:
            super().restore(one, settings)
        self._remove_after(job, len(segments))

    def _remove_after(self, job: Job, segments: int) -> None:
        """Remove the files that an earlier run with more segments wrote."""
        for number in count(segments) if segments else ():
            one = replace(job, segment=number, planned=job.planned_job)
            if not any(map(os.path.lexists, paths := (self.names[0].path(one), self._segment_names.video(one)))):
                return
            for path in paths:
                self._clear(one, path)

    def _segments(self, job: Job, settings: str) -> Iterator[Job]:
        """Yield the recorded segments of a clip."""
        for entry in self.store.parts(job, settings).values():
            if (one := _segment_of(job, entry.record())) is not None:
                yield one

    def _records(self, job: Job, settings: str) -> list[RecordDict]:
        """Return the record of a segment, as that of a whole clip."""
        entry = self.store.parts(job, settings).get(job.segment)
        if entry is None:
            return []
        record = entry.record()
        about = {key: value for key, value in record["job"].items() if key not in ("segment", "segments")}
        return [{**record, "summary": None, "job": about}]

    def _write(self, job: Job, settings: str, several: Sequence[SidecarNames]) -> None:
        text, video = self.names[0].path(job), self._segment_names.video(job)
        records = self._records(job, settings)
        if not records or records[0]["caption"] is None:
            return
        bounds = _bounds(records[0])
        mark = self.store.journals.of(job).index.marks.latest(video)
        if mark is not None and mark.settings == bounds and video.exists():
            super()._write(job, settings, several)
            return
        state = self.state(job, text)
        if self._is_kept(state) and (state == "foreign" or video.exists()):  # a caption of another segment
            self._unreplaced[text] = state
            return
        self._clear(job, video)
        if self._replaces_foreign(job, video):
            self._back_up(video)
        if video not in self._unreplaced:
            with self._cut(job, video, bounds) as part:
                super()._write(job, settings, several)
                part.replace(video)

    @contextmanager
    def _cut(self, job: Job, video: Path, bounds: str) -> Iterator[Path]:
        """Write a segment's video under a hidden name and mark it; removed if it is there after the block."""
        part = video.with_name(f".{video.name}.part")
        start, end, damaged = job.start or 0.0, job.end or 0.0, bool(self._config.video.get("allow_damaged"))
        try:
            make_folder(video.parent)
            with self._files.local(job.path, job.source) as file:
                kind = self._reader.write_segment(file, start, end, str(part), allow_damaged=damaged)
            with part.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                os.fsync(content.fileno())
            self._mark(job, video, part.stat().st_size, digest, bounds, kind)
            yield part
        except OSError as error:
            raise unwritable_error(video, error, ONE_CLIP) from None
        except VidspecError as error:
            hint = error.hint or "run the same command again once it can be; nothing is captioned twice"
            raise OutputError(f"{video}: cannot be written: {error.message}", hint=hint, kind=ONE_CLIP) from None
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        self._kinds[kind] += 1

    def finish(self, *, complete: bool) -> list[str]:
        self._reader.close()
        self._files.close()
        return [*self._written_note(), *super().finish(complete=complete)]

    def _written_note(self) -> Iterator[str]:
        copied, encoded = self._kinds["copied"], self._kinds["encoded"]
        why = f"{encoded} encoded again, as a copy would not be exact" if encoded else ""
        how = ", ".join(filter(None, (f"{copied} copied" if copied else "", why)))
        if how:
            yield f"{counted(copied + encoded, 'segment')} written to {self._segment_names.folder}: {how}"


def _segment_of(job: Job, record: RecordDict) -> Job | None:
    """Return the segment that a record is about; None for a clip that could not be cut."""
    about = flat_record(record)
    if (number := about.get("segment")) is None:
        return None
    start, end, segments = (about[key] for key in ("start", "end", "segments"))
    return replace(job, start=start, end=end, segment=number, segments=segments, planned=job.planned_job)


def _bounds(record: RecordDict) -> str:
    """Return what a segment's video depends on: the film and the place in it."""
    about = flat_record(record)
    content = about.get("sha256") or f"{about.get('size')} {about.get('mtime_ns')}"
    return f"{content} {about.get('start'):g}-{about.get('end'):g}"
