"""A source: the videos in zip archives, each with the text beside it, ``NAME.txt``, as its column ``text``."""

import posixpath
import zipfile
from collections.abc import Iterator

from vidspec.errors import VideoError
from vidspec.runs.allowance import Allowance
from vidspec.runs.job import Job, MemberSource
from vidspec.runs.sources.base import ListOptions, Source, clip_suffix, sources


@sources.register("zip")
class ZipSource(Source):
    suffixes = (".zip",)

    def list(self, file: Job, options: ListOptions) -> Iterator[Job]:
        """Read the archive's table, and its texts."""
        try:
            with zipfile.ZipFile(file.path) as archive:
                texts = {
                    posixpath.splitext(one.filename)[0]: archive.read(one).decode("utf-8", "replace").strip()
                    for one in archive.infolist()
                    if one.filename.endswith(".txt") and one.file_size < 1 << 20
                }
                members = [one for one in archive.infolist() if clip_suffix(one.filename)]
        except (OSError, zipfile.BadZipFile) as error:
            raise VideoError(f"{file.path}: is not a zip archive: {error}", kind="not_video") from None
        for one in members:
            source = MemberSource(file.path, one.header_offset, one.file_size, kind="zip")
            job = file.member(f"{file.path}/{one.filename}", source)
            text = texts.get(posixpath.splitext(one.filename)[0])
            job.columns = {"text": text} if text else {}
            yield job

    def open(self, job: Job, folder: str) -> str:
        """Extract one member into the temporary folder."""
        Allowance(job.path, self.limits).take(job.source.size)  # --max-fetch
        try:
            with zipfile.ZipFile(job.shard) as archive:
                return archive.extract(job.path.removeprefix(f"{job.shard}/"), folder)
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise VideoError(f"{job.path}: cannot be extracted: {error}", kind="damaged") from None
