"""``python -m research.predicted``: tokens/s and clips/s of a GPU from bytes, operations and launches; no model runs.

A pass takes the larger of the times of its bytes and its operations (``research.replay.load``), plus its launches:
there is a gap between two kernels, and without a graph a pass takes at least the host's launch time. The host waits for
the result of each pass, or once for a whole chain of a replayed draft. ``research.counts`` counts the launches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

import typer

from research.commands import run
from research.counts import counted
from research.replay.load import DEVICES, PAIRS, Assumed, Device, pass_seconds, read_seconds
from research.sizes import Model
from vidspec.bench.tables import table
from vidspec.draft_length import speed

__all__ = ["Host", "Prediction", "main", "predicted"]

Way = Literal["stock", "fused", "replayed"]


@dataclass(frozen=True)
class Host:
    """Cost of launches in seconds; assumed, not measured.

    Attributes:
        launch: launch of a kernel from Python, which bounds a pass if its kernels are shorter.
        gap: between two kernels on the device.
        wait: until the host has a result and the device its next pass.
    """

    launch: float = 5e-6
    gap: float = 1e-6
    wait: float = 20e-6


@cache
def _launches(model: Model, way: Way, clips: int) -> int:
    """Return the launches of a pass with one row per clip; in a graph the number does not depend on rows."""
    kind: Literal["fused", "stock"] = "stock" if way == "stock" else "fused"
    return counted(
        model.language, kind, 100, clips=1 if way == "replayed" else clips, replayed=way == "replayed"
    ).launches


@dataclass(frozen=True)
class Prediction:
    """Prediction for ``clips`` at once on one device.

    Attributes:
        pair: a key of ``PAIRS``.
        visual: tokens of each clip.
    """

    device: Device
    pair: str
    clips: int
    visual: int
    assumed: Assumed = field(default_factory=Assumed)
    host: Host = field(default_factory=Host)

    def plain(self, way: Way | Literal["bytes"]) -> float:
        """Return the seconds of a plain decoding pass; ``bytes`` omits launches, as ``research.simulate --batch``."""
        busy = self._busy(PAIRS[self.pair][0], 1, 1.0)
        if way == "bytes":
            return busy
        if way == "replayed":
            return self.verify(1)
        count = _launches(PAIRS[self.pair][0], way, self.clips)
        return max(busy + count * self.host.gap, count * self.host.launch) + self.host.wait

    def verify(self, rows: float) -> float:
        """Return T_p: a replayed pass of ``rows`` per clip (a mean), which a graph pads to a power of two."""
        padded = 1 << (round(self.clips * rows) - 1).bit_length()
        busy = self._busy(PAIRS[self.pair][0], padded / self.clips, 1.0)
        return busy + _launches(PAIRS[self.pair][0], "replayed", 1) * self.host.gap + self.host.wait

    def draft(self, kept: float = 1.0) -> float:
        """Return T_q: one token of each clip in a chain that the host waits for once."""
        return self._busy(PAIRS[self.pair][1], 1, kept) + _launches(PAIRS[self.pair][1], "replayed", 1) * self.host.gap

    def window(self, kept: float = 1.0) -> tuple[int, float]:
        """Return the best window, possibly 0, and the tokens/s of all clips; a round with a draft waits once more."""
        gamma, rate = speed.best_window(self.assumed.beta, self.verify, self.draft(kept), self.host.wait)
        return gamma, self.clips * rate

    def clips_per_s(self, tokens_per_s: float, *, drafts: float = 0.0) -> float:
        """Return clips/s with vision, prompt and decoding in turn; ``drafts``: share of visual tokens a draft reads."""
        target, draft = PAIRS[self.pair]
        ahead = read_seconds(target, self.device, self.assumed, self.visual)
        if drafts:
            ahead += read_seconds(draft, self.device, self.assumed, self.visual, drafts)
        return 1 / (ahead + self.assumed.tokens / tokens_per_s)

    def _busy(self, model: Model, rows: float, kept: float) -> float:
        entries = self.assumed.context(kept * self.visual)
        # Bytes do not depend on rows; operations include padded rows.
        return pass_seconds(model, self.device, self.assumed, self.clips, rows, entries)


def predicted(
    devices: Sequence[str] = ("h100", "h200"),
    pairs: Sequence[str] = ("7b+0.5b", "7b+3b"),
    clips: Sequence[int] = (1, 16),
    visual: Sequence[int] = (2_000, 25_000),
    host: Host | None = None,
) -> str:
    """Return a Markdown table, a line for each combination."""
    heads = ["device", "pair", "clips", "visual tokens", "bytes alone", "stock", "fused", "replayed"]
    heads += ["gamma", "with the draft", "pruned: gamma", "with it", "clips/s: stock", "replayed", "pruned draft"]
    lines = []
    for device in devices:
        for pair in pairs:
            for count in clips:
                for tokens in visual:
                    one = Prediction(DEVICES[device], pair, count, tokens, host=host or Host())
                    lines.append(_line(one))
    return table(heads, lines)


def _line(one: Prediction) -> list[str]:
    rates = [one.clips / one.plain(way) for way in ("bytes", "stock", "fused", "replayed")]
    (gamma, whole), (narrow, pruned) = one.window(), one.window(one.assumed.kept)
    cells = [one.device.name, one.pair, str(one.clips), f"{one.visual:,}", *(f"{rate:.0f}" for rate in rates)]
    cells += [str(gamma), f"{whole:.0f}", str(narrow), f"{pruned:.0f}"]
    drafts = one.assumed.kept if narrow else 0.0
    whole_clips = [one.clips_per_s(rates[1]), one.clips_per_s(rates[3]), one.clips_per_s(pruned, drafts=drafts)]
    return [*cells, *(f"{figure:.2f}" for figure in whole_clips)]


def command(
    launch: Annotated[float, typer.Option(min=0, help="Microseconds of a launch from Python.")] = 5.0,
    gap: Annotated[float, typer.Option(min=0, help="Microseconds between two kernels.")] = 1.0,
    wait: Annotated[float, typer.Option(min=0, help="Microseconds until the host has a result.")] = 20.0,
) -> None:
    """Predict plain decoding and speculation on an H100 and an H200, for 1 and 16 clips, with launches."""
    host = Host(launch / 1e6, gap / 1e6, wait / 1e6)
    print(predicted(host=host))
    assumed = Assumed()
    print(
        f"\nTokens/s of all clips, then clips/s. Assumed: {launch:g} us a launch, {gap:g} us between two kernels, "
        f"{wait:g} us for a result; {assumed.decode_use:.0%} of the data sheet in passes, {assumed.prefill_use:.0%} in "
        f"prompts; acceptance {assumed.beta:g}; a pruned draft keeps {assumed.kept:.0%}; {assumed.tokens} tokens a "
        "clip. Nothing here was measured."
    )


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "predicted", args)


if __name__ == "__main__":
    sys.exit(main())
