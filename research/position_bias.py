"""Measures the position bias of profiles on clips and lays it out; the measure itself is in ``position_bias``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidspec.captioner import Captioner
from vidspec.pruning.position_bias import Pair, PositionBias, mean_bias, position_bias
from vidspec.telling import markdown
from vidspec.telling.events import Prefilled

__all__ = ["biases", "block", "table"]


def biases(
    contenders: Mapping[str, object], clips: Sequence[Path], progress: Callable[[str], None] = lambda _: None
) -> dict[str, PositionBias]:
    """The mean over ``clips`` of the bias of each contender that prunes, in their order; nothing is decoded."""
    found: dict[str, PositionBias] = {}
    for name, contender in contenders.items():
        if not isinstance(contender, Captioner) or contender.profile.prune.method == "none":
            continue
        progress(f"position bias {name}")
        measured = [one for clip in clips if (one := _of_clip(contender, clip)) is not None]
        if measured:
            found[name] = mean_bias(measured)
    return found


def _of_clip(captioner: Captioner, clip: Path) -> PositionBias | None:
    for event in captioner.stream(clip):
        if isinstance(event, Prefilled):
            return position_bias(event.grid, event.cells, event.kept, views=event.views)
    raise AssertionError("a stream has a prefill")


def block(found: Mapping[str, PositionBias]) -> dict[str, dict[str, Any]]:
    """As it stands in the JSON file: shares within [0, 1] by profile; ``all`` is the share of all visual tokens."""
    return {name: asdict(bias) for name, bias in found.items()}


def table(found: Mapping[str, PositionBias]) -> str:
    """A Markdown table; each share of the kept tokens with that of all visual tokens behind it."""
    stretches = len(next(iter(found.values())).bins) if found else 0
    header = "method | first frames | last frames | upper and lower border | most in one frame | left and right border"
    lines = [
        (
            name,
            *map(_pair, (bias.first, bias.last, bias.rows)),
            f"{bias.peak_rows:.0%}",
            _pair(bias.columns),
            " ".join(f"{100 * share:.0f}" for share in bias.bins),
        )
        for name, bias in found.items()
    ]
    return markdown.table([*header.split(" | "), f"kept tokens by {stretches} equal stretches of the video, %"], lines)


def _pair(pair: Pair) -> str:
    return f"{pair.kept:.1%} ({pair.all:.1%})"
