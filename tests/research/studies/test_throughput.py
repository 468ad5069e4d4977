"""What the study of folders says of its aims."""

from __future__ import annotations

from research.studies.throughput import aims
from vidspec.bench.throughput import ThroughputResult, ThroughputRow


def row(name: str, batch: int, clips_per_s: float, decoding: float | None) -> ThroughputRow:
    return ThroughputRow(
        name, batch, clips_per_s, (clips_per_s, clips_per_s), 0.0, decoding, None, None, 2, 2, False, 2, 0
    )


def test_ratios_are_of_the_best_row_of_each() -> None:
    rows = [
        row("ar", 1, 1.0, 100.0),
        row("ar", 8, 2.0, 300.0),
        row("vanilla-sd", 1, 2.0, 200.0),
        row("vanilla-sd", 8, 6.0, 450.0),
        row("vllm", 8, 3.0, 250.0),
    ]
    text = aims(ThroughputResult(rows, {}))
    assert "2.00x (vanilla-sd at 8 over vllm at 8)" in text
    assert "| 3.00x |" in text and "| 2.25x (vanilla-sd) |" in text
    assert "at every size (1, 8) | 2.00x, 1.50x |" in text


def test_decoding_that_could_not_be_timed_alone_has_no_ratio() -> None:
    rows = [
        row("ar", 1, 1.0, 100.0),
        row("ar", 16, 2.0, 300.0),
        row("hybrid", 1, 2.0, 200.0),
        row("hybrid", 16, 6.0, None),
    ]
    text = aims(ThroughputResult(rows, {}))
    assert "at every size (1, 16) | 2.00x, not measured |" in text
    assert "| not measured (hybrid) |" in text
    assert "0.00x" not in text
