import pytest
from fake_captioner import record

from vidspec.dataset.identity import Content
from vidspec.dataset.records import Settings, record_of
from vidspec.dataset.work import Entry, How, Outcome, Work
from vidspec.errors import VideoError
from vidspec.events.record import failed

SAME = Content(1, 2)


@pytest.fixture
def settings():
    return Settings({"name": "vanilla-sd", "video": {"frames": 4}}, How(prompt="Describe."))


@pytest.fixture
def recorded(settings):
    """Makes the record of a clip as a run keeps it."""

    def make(path="a.mp4", *, error=None, content=SAME, entry=None, settings=settings, **part):
        entry = entry or Entry(path)
        caption = record(path, **part.pop("changes", {}))
        if error:
            error = VideoError(f"{path}: {error}", kind="truncated")
            caption = failed(path, error, profile="vanilla-sd")
        work = Work(path, part.pop("start", entry.start), part.pop("end", entry.end), entry=entry, **part)
        return record_of(Outcome(caption, error, work), settings, content)

    return make
