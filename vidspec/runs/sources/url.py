"""Clips behind URLs, which rows of tables and lines of requests name: each is fetched whole."""

from __future__ import annotations

from pathlib import Path

from vidspec.runs.job import Job
from vidspec.runs.sources.base import Source, clip_suffix, sources
from vidspec.runs.stores import copy

__all__ = ["UrlSource"]


@sources.register("url")
class UrlSource(Source):
    """The clip at ``job.source.url``."""

    def open(self, job: Job, folder: str) -> str:
        assert job.source is not None
        file = Path(folder, f"clip{clip_suffix(job.path)}")
        copy(job.source.url, file, limits=self.limits._replace(access=self.access(job)))
        return str(file)
