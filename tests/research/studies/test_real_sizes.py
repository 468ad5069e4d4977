"""Captions of real sizes are simulated from measured passes."""

import pytest

from research.studies.real_sizes import KEPT, ROWS, Passes, Way, simulated


def passes(row, more, chunk=1.0):
    """Passes whose further rows cost ``more`` each, twice as much behind 1,000 entries as behind 500."""
    rows = {
        at: {count: scale * (row + more * (count - 1)) for count in ROWS} for at, scale in ((500, 1.0), (1000, 2.0))
    }
    return Passes(rows, {0: chunk, 500: chunk, 1000: 3 * chunk})


def test_passes_between_two_measured_ones_are_interpolated():
    one = passes(2.0, 0.5)
    assert one.verify(500, 3) == pytest.approx(3.0) and one.verify(750, 1) == pytest.approx(3.0)
    assert one.prefill(500) == pytest.approx(500 / 128) and one.prefill(1000) == pytest.approx(2 * 1000 / 128)


def test_a_caption_is_its_prompt_and_its_passes():
    known = {"3B float32": passes(2.0, 0.0), "0.5B float32": passes(0.1, 0.1), "3B int8": passes(0.2, 0.1)}
    plain = simulated(Way("3B float32"), known, 1000, 11, 0.8)
    assert plain == ("-", "0.25", "16", f"{2 * 1000 / 128 + 40:.0f}", "1.00x")
    gamma, rate, first, last, gain = simulated(Way("3B float32", "0.5B float32"), known, 1000, 256, 0.9)
    assert int(gamma) > 4 and float(gain[:-1]) > 2 and first == "31"
    # What the draft reads is before the first token, and no part of decoding.
    assert float(rate) == pytest.approx(255 / (float(last) - float(first)), rel=0.05) and float(rate) > 4 * 0.25
    # A pruned draft reads a tenth of the prompt, the target's own weights none of it.
    assert simulated(Way("3B float32", "0.5B float32", KEPT), known, 1000, 256, 0.9)[2] == "16"
    assert simulated(Way("3B float32", "3B int8"), known, 1000, 256, 0.9)[2] == "16"
    with pytest.raises(KeyError):
        simulated(Way("7B"), known, 1000, 256, 0.9)
