"""The estimate of a speed-up is what a comparison with plain decoding would measure."""

import pytest

from vidspec.events.compare import MIN_TOKENS, estimate_speedup, speed_against, time_at_length
from vidspec.events.record import Caption


def record(tokens, decode):
    timings = {"time_to_first_token": 1.0, "decode": decode, "end_to_end": 1.0 + decode}
    return Caption("clip.mp4", "text", token_ids=list(range(tokens)), timings=timings)


def test_estimate_equals_the_measured_speed_up_of_steady_passes():
    step, method = 0.05, record(41, 0.8)
    measured = speed_against(method, record(31, 30 * step))["decode"]
    assert estimate_speedup(41, 0.8, step) == pytest.approx(measured) == pytest.approx(2.5)


@pytest.mark.parametrize(("tokens", "decode", "step"), [(41, 0.8, None), (MIN_TOKENS, 0.8, 0.05), (41, 0.0, 0.05)])
def test_no_estimate_without_timed_steps_or_of_a_short_text(tokens, decode, step):
    assert estimate_speedup(tokens, decode, step) is None


def test_the_drafts_reading_does_not_grow_with_the_text():
    method = record(21, 1.0)
    method.timings["draft_reading"] = 0.2
    assert time_at_length(method, 21) == 2.0 and time_at_length(method, 41) == pytest.approx(1.0 + 0.2 + 40 * 0.04)
    assert time_at_length(method, 1) == 1.0 and time_at_length(record(1, 0.0), 5) is None
