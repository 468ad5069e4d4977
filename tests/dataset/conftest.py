from dataclasses import replace

import pytest
from fake_captioner import record

from vidspec.dataset.job import Job, JobConfig, Outcome
from vidspec.dataset.records import Content, Settings, record_of
from vidspec.errors import VideoError
from vidspec.events.record import failed

SAME = Content(1, 2)


@pytest.fixture
def settings():
    return Settings({"name": "vanilla-sd", "video": {"frames": 4}}, JobConfig(prompt="Describe."))


@pytest.fixture
def recorded(settings):
    """Makes the record of a clip as a run keeps it."""

    def make(path="a.mp4", *, error=None, content=SAME, entry=None, settings=settings, **part):
        whole = entry or Job(path)
        caption = record(path, **part.pop("changes", {}))
        if error:
            error = VideoError(f"{path}: {error}", kind="truncated")
            caption = failed(path, error, profile="vanilla-sd")
        job = replace(whole, planned=whole, **part)
        return record_of(Outcome(caption, error, job), settings, content)

    return make
