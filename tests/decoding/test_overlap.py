"""Work that clips leave for later: done while a device computes, and never lost."""

import pytest

from tests.decoding.test_loop import added, begun, plain, run
from tests.decoding.toys import SharedToyEngine
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.engine.overlap import overlap, run_overlapped
from vidspec.engine.requests import Encode, Forward
from vidspec.engine.rows import Rows


class Device(SharedToyEngine):
    """Notes the rounds of a clip when a pass is launched and after its result was read."""

    def __init__(self):
        super().__init__()
        self.clip, self.launched, self.read = None, [], []

    def run(self, batch):
        self.launched.append(len(self.clip.rounds))
        passed = super().run(batch)
        self.read.append(len(self.clip.rounds))
        return passed


@pytest.mark.parametrize("overlaps", [False, True])
def test_rounds_are_emitted_while_a_device_computes_the_next_pass(overlaps):
    engine, loop, limits = Device(), Loop(overlaps=overlaps), StoppingRules(4)
    engine.clip, expected = plain(engine, 5, limits)
    added(loop, "clip", engine.clip, autoregressive)
    run(loop)
    assert [token for step in engine.clip.rounds for token in step.token_ids] == expected
    assert engine.read == [1, 2, 3]
    assert engine.launched == ([1, 1, 2] if overlaps else [1, 2, 3])
    assert len(engine.clip.rounds) == 4  # the last is not left: no pass follows


def test_a_clip_whose_round_was_emitted_is_among_those_of_the_turn():
    """Although another clip's work took the turn."""
    engine, loop, limits = SharedToyEngine(), Loop(overlaps=True), StoppingRules(9)
    one, _ = plain(engine, 5, limits)
    added(loop, "clip", one, autoregressive)
    loop.turn()
    assert len(one.rounds) == 1

    def encodes():
        yield Encode(lambda: None)

    begun(loop, "other", encodes())
    assert [client.key for client in loop.turn()] == ["clip", "other"]
    assert len(one.rounds) == 2


def test_an_error_of_such_work_ends_its_clip_and_no_other():
    engine, loop, limits = SharedToyEngine(), Loop(overlaps=True), StoppingRules(6)
    other, expected = plain(engine, 5, limits)
    added(loop, "other", other, autoregressive)
    span = plain(engine, 7, limits)[0].target.span

    def fails():
        yield Forward(engine, [Rows(span, [1])])
        client.later = lambda: 1 / 0
        yield Forward(engine, [Rows(span, [2])])

    client = begun(loop, "fails", fails())
    run(loop)
    assert isinstance(client.error, ZeroDivisionError) and other.error is None
    assert other.token_ids == expected


def test_work_runs_once_and_at_the_end_at_the_latest():
    done = []
    with overlap(lambda: done.append(1)):
        assert not done
        run_overlapped()
        run_overlapped()
        assert done == [1]
    assert done == [1]
    with overlap(lambda: done.append(2)):
        pass
    run_overlapped()
    assert done == [1, 2]
