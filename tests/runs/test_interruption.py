"""Signals while a record is kept: it is counted before the run ends."""

import signal
import threading
from dataclasses import replace

import pytest

from tests.fake_captioner import record
from vidspec.errors import OutputError
from vidspec.events.observer import RunObserver
from vidspec.events.tally import Tally
from vidspec.runs.job import Job
from vidspec.runs.remaining import caption_remaining
from vidspec.runs.renderers import ONE_CLIP
from vidspec.runs.run_store import RunStore
from vidspec.signals import defer_signals


class Interrupting(RunStore):
    """Keeps records; a signal comes before each is written."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def add(self, job, record):
        signal.raise_signal(signal.SIGINT)
        if job.path == "lost.mp4":
            raise OutputError("no room", kind=ONE_CLIP)
        self.kept.append(job.path)


@pytest.mark.parametrize("name", ["a.mp4", "lost.mp4"])
def test_what_is_kept_is_counted(settings, name):
    job = Job(name)
    output, tally = Interrupting(), Tally(total=2)
    with pytest.raises(KeyboardInterrupt):
        executor = lambda jobs: iter([replace(job, result=record(name))])  # noqa: E731
        list(caption_remaining([job], executor, output, *settings, tally, RunObserver(), set()))
    assert tally.done - tally.unkept == len(output.kept) == (name == "a.mp4")


def test_a_second_signal_does_not_wait():
    reached = []
    with pytest.raises(KeyboardInterrupt), defer_signals():
        signal.raise_signal(signal.SIGINT)
        reached.append(1)
        signal.raise_signal(signal.SIGINT)
        reached.append(2)
    assert reached == [1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_get_no_signals():
    def work():
        with defer_signals():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
