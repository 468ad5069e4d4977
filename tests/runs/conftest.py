from dataclasses import replace

import pytest

from tests.fake_captioner import FakeCaptioner, profile_of, record
from vidspec.config.run_spec import RunSpec
from vidspec.errors import VideoError
from vidspec.events.record import failed_caption
from vidspec.runs import stores
from vidspec.runs.job import Job
from vidspec.runs.store.records import FileContent, record_of

SAME = FileContent(1, 2)


@pytest.fixture
def settings():
    """A run and its profile."""
    return RunSpec(), profile_of(frames=4)


@pytest.fixture
def recorded(settings):
    """Makes the record of a clip as a run keeps it."""

    def make(path="a.mp4", *, error=None, content=SAME, entry=None, settings=settings, **part):
        whole = entry or Job(path)
        caption = record(path, **part.pop("changes", {}))
        if error:
            error = VideoError(f"{path}: {error}", kind="truncated")
            caption = failed_caption(path, error, profile="vanilla-sd")
        job = replace(whole, planned=whole, result=caption, error=error or None, **part)
        return record_of(job, *settings, content)

    return make


@pytest.fixture
def captioner():
    """The fake one."""
    return FakeCaptioner()


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """The test works in a folder of its own, and retries of fetches wait for nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stores, "PAUSES", (0.0, 0.0, 0.0))
