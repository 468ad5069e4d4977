"""A video and a caption file for each segment, as training clips: the renderer of ``--cut``."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from vidspec.config.run_spec import ExistingFiles, RunSpec
from vidspec.config.schema import Profile
from vidspec.errors import OutputError, VidspecError
from vidspec.events.record import RecordDict
from vidspec.events.tally import counted
from vidspec.files import NamedPath
from vidspec.runs.allowance import fetch_limits
from vidspec.runs.clip_files import ClipFiles
from vidspec.runs.formats.base import flat_record
from vidspec.runs.job import Job
from vidspec.runs.reader import ClipReader
from vidspec.runs.renderers import ONE_CLIP, PendingFile, make_folder
from vidspec.runs.sources.base import ClipOpener
from vidspec.runs.store.journal import unwritable_error
from vidspec.runs.store.sidecars import SegmentNames, SidecarNames, segment_bounds

if TYPE_CHECKING:
    from vidspec.video.cutting import CutKind


#: How a finished video was written, its bytes and their hash.
_WrittenVideo: TypeAlias = "tuple[CutKind, int, str]"


class _Cut(NamedTuple):
    """A segment whose video is being written under the hidden name ``part``."""

    job: Job
    settings: str
    captions: Sequence[SidecarNames]
    bounds: str
    video: Path
    part: Path
    written: Future[_WrittenVideo]


class SegmentFiles(ClipFiles):
    """``NAME-001.mp4`` and ``NAME-001.txt``, written once the segment is captioned, while the next ones are.

    Both are complete when they appear, the video after its caption. A video of the same film and bounds is not written
    again. If the caption or the video under a segment's name is another's, the segment is skipped, unless a run
    replaces these.

    Args:
        names: names of the files.
        existing: treatment of foreign files, ``skip`` or ``replace``.
        spec: the run.
        profile: of its captioner.
    """

    of_segments = True

    def __init__(self, names: SegmentNames, existing: ExistingFiles, spec: RunSpec, profile: Profile) -> None:
        super().__init__((names,), existing)
        self._segment_names, self._allow_damaged = names, profile.video.allow_damaged
        self._files, self._reader = ClipOpener(fetch_limits(spec)), ClipReader(spec.timeout, profile.video.stall)
        self._kinds: Counter[str] = Counter()
        self._writer = ThreadPoolExecutor(1, "vidspec-cut")
        self._cuts: dict[Path, _Cut] = {}  # of this run's segments, until they are shown
        self._begun: set[Path] = set()  # videos of this run's segments

    @property
    def place(self) -> str:
        return f"a video and a caption for each segment in {self._segment_names.folder}"

    def outputs(self, jobs: Iterable[Job]) -> Iterator[NamedPath]:
        return iter(())  # in a folder of their own

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

    def add(self, job: Job, record: RecordDict) -> PendingFile | None:
        about = record["job"]
        if (one := _segment_of(job, record)) is None:
            return None
        self._begun.add(self._segment_names.video(one))
        if (cut := self._begin(one, about["settings"], self.names)) is not None:
            self._cuts[cut.video] = cut
        if len(self.captions.parts(job, about["settings"])) == about["segments"]:  # some may be missing after a kill
            self.restore(job, about["settings"])
        return None if cut is None else PendingFile(cut.written, partial(self._show, cut))

    def restore(self, job: Job, settings: str) -> None:
        segments = [*self._segments(job, settings)]
        for one in segments:
            if self._segment_names.video(one) not in self._begun:
                super().restore(one, settings)
        self._remove_after(job, len(segments), settings)

    def _remove_after(self, job: Job, segments: int, settings: str) -> None:
        """Remove the files that an earlier run with more segments wrote."""
        for number in count(segments) if segments else ():
            one = replace(job, segment=number, planned=job.planned_job)
            if not any(map(os.path.lexists, paths := (self.names[0].path(one), self._segment_names.video(one)))):
                return
            for path in paths:
                self._clear(one, path, settings if path.suffix == ".txt" else None)

    def _segments(self, job: Job, settings: str) -> Iterator[Job]:
        """Yield the recorded segments of a clip."""
        for entry in self.captions.parts(job, settings).values():
            if (one := _segment_of(job, entry.record())) is not None:
                yield one

    def _records(self, job: Job, settings: str) -> list[RecordDict]:
        """Return the record of a segment, as that of a whole clip."""
        entry = self.captions.parts(job, settings).get(job.segment)
        if entry is None:
            return []
        record = entry.record()
        about = {key: value for key, value in record["job"].items() if key not in ("segment", "segments")}
        return [{**record, "summary": None, "job": about}]

    def _write(self, job: Job, settings: str, several: Sequence[SidecarNames]) -> None:
        if (cut := self._begin(job, settings, several)) is not None:
            self._show(cut)

    def _begin(self, job: Job, settings: str, captions: Sequence[SidecarNames]) -> _Cut | None:
        """Begin to write a segment's video; None if it is there, with its captions then, or another's files are."""
        text, video = self.names[0].path(job), self._segment_names.video(job)
        records = self._records(job, settings)
        if not records or records[0]["caption"] is None:
            return None
        bounds = segment_bounds(records[0])
        mark = self.captions.journals.of(job).index.marks.latest(video)
        if mark is not None and mark.settings == bounds and video.exists():
            super()._write(job, settings, captions)
            return None
        fate = self._fate(job, text)
        if fate == "foreign" or (fate == "edited" and video.exists()):  # a caption of another segment
            self._kept[text] = fate, job.path
            return None
        self._clear(job, video)
        if self._fate(job, video) == "aside, late":
            self._back_up(video)
        if video in self._kept:
            return None
        part = video.with_name(f".{video.name}.part")
        return _Cut(job, settings, captions, bounds, video, part, self._writer.submit(self._write_video, job, part))

    def _write_video(self, job: Job, part: Path) -> _WrittenVideo:
        """Write a segment's video, in the thread for that; nothing is left of one that fails."""
        start, end = job.start or 0.0, job.end or 0.0
        try:
            make_folder(part.parent)
            with self._files.local(job) as file:
                kind = self._reader.write_segment(file, start, end, str(part), allow_damaged=self._allow_damaged)
            with part.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                os.fsync(content.fileno())
            return kind, part.stat().st_size, digest
        except BaseException:
            _remove(part)
            raise

    def _show(self, cut: _Cut) -> None:
        """Wait for a segment's video, mark it, and show it after its caption."""
        self._cuts.pop(cut.video, None)
        try:
            kind, size, sha256 = cut.written.result()
            self._mark(cut.job, cut.video, size, sha256, cut.bounds, kind)
            super()._write(cut.job, cut.settings, cut.captions)
            cut.part.replace(cut.video)
        except OSError as error:
            raise unwritable_error(cut.video, error, ONE_CLIP) from None
        except VidspecError as error:
            hint = error.hint or "run the same command again once it can be; nothing is captioned twice"
            raise OutputError(f"{cut.video}: cannot be written: {error.message}", hint=hint, kind=ONE_CLIP) from None
        finally:
            _remove(cut.part)
        self._kinds[kind] += 1

    def settle(self) -> None:
        """Stop writing, and show what is written; the next run writes the rest of an interrupted one."""
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._reader.close()
        self._writer.shutdown()
        for cut in [*self._cuts.values()]:
            with suppress(OutputError, CancelledError):
                self._show(cut)

    def finish(self, *, complete: bool) -> list[str]:
        self._files.close()
        return [*self._written_note(), *super().finish(complete=complete)]

    def _written_note(self) -> Iterator[str]:
        copied, encoded = self._kinds["copied"], self._kinds["encoded"]
        why = f"{encoded} encoded again, as a copy would not be exact" if encoded else ""
        how = ", ".join(filter(None, (f"{copied} copied" if copied else "", why)))
        if how:
            yield f"{counted(copied + encoded, 'segment')} written to {self._segment_names.folder}: {how}"


def _remove(part: Path) -> None:
    with suppress(OSError):
        part.unlink(missing_ok=True)


def _segment_of(job: Job, record: RecordDict) -> Job | None:
    """Return the segment that a record is about; None for a clip that could not be cut."""
    about = flat_record(record)
    if (number := about.get("segment")) is None:
        return None
    start, end, segments = (about[key] for key in ("start", "end", "segments"))
    return replace(job, start=start, end=end, segment=number, segments=segments, planned=job.planned_job)
