"""Captioning at published sizes, simulated with measured pass times: ``python -m research.studies.real_sizes``.

Language models of Qwen2.5's sizes with random weights on the CPU: plain passes, windows and a prompt chunk, after
caches of ``--visual`` entries; the models of a group take turns. From these times the sequential schedule is simulated
end to end, from the prompt's first token to a caption's last. Drafts of another size are accepted with ``--beta``, the
target's own rounded weights with ``--self-beta``; a pruned draft reads and sees a tenth of the visual tokens. The
vision tower and the reading of the file are not in these times. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from research.random_decoder import behind, engine_of, language, rolled_back
from research.replay.predict import Prefill, Times
from research.replay.whatif import what_if
from research.sizes import SIZES
from research.studies.layouts import CPU, LAYOUTS
from vidspec import memory
from vidspec.bench.machine import machine
from vidspec.bench.tables import facts_line, table
from vidspec.bench.turns import measure_in_turns, time_call
from vidspec.engine.rows import Rows

#: Rows of the passes that are measured, and of a chunk of a prompt.
ROWS, CHUNK = (1, 2, 4, 6, 11), 128
#: Share of the visual tokens that a pruned draft keeps.
KEPT = 0.1


class Passes(NamedTuple):
    """Seconds of one model's passes by the number of cached entries.

    Attributes:
        rows: by entries, by rows.
        chunk: by entries, of :data:`CHUNK` rows.
    """

    rows: Mapping[int, Mapping[int, float]]
    chunk: Mapping[int, float]

    def verify(self, entries: float, rows: float) -> float:
        """Return the seconds of a pass over ``rows``, interpolated between measured passes."""
        by_entries = [float(np.interp(rows, ROWS, [self.rows[at][row] for row in ROWS])) for at in sorted(self.rows)]
        return float(np.interp(entries, sorted(self.rows), by_entries))

    def prefill(self, tokens: float) -> float:
        """Return the seconds of a prompt, chunk by chunk: a chunk's time grows linearly with the entries before it."""
        known = sorted(self.chunk)
        last = float(np.interp(tokens, known, [self.chunk[at] for at in known]))
        return tokens / CHUNK * (self.chunk[known[0]] + last) / 2


class Way(NamedTuple):
    """A target and its draft; plain decoding without one."""

    target: str
    draft: str | None = None
    kept: float = 1.0

    @property
    def label(self) -> str:
        if self.draft is None:
            return "plain"
        return f"{self.draft}, {'everything' if self.kept == 1 else f'{self.kept:.0%} of the video'}"


#: Models that take turns, and the ways simulated with their times.
GROUPS: tuple[tuple[str, ...], ...] = (("3B float32", "0.5B float32"), ("3B int8", "0.5B int8"))
WAYS = (
    Way("3B float32"),
    Way("3B float32", "0.5B float32"),
    Way("3B float32", "0.5B float32", KEPT),
    Way("3B float32", "3B int8"),
    Way("3B int8"),
    Way("3B int8", "0.5B int8"),
    Way("3B int8", "0.5B int8", KEPT),
    Way("0.5B float32"),
    Way("0.5B int8"),
)


def measured(names: Sequence[str], visual: Sequence[int], repeats: int) -> dict[str, Passes]:
    """Measure the passes of some models, in turns; chunks once."""
    runs: dict[tuple[str, int, int], Callable[[], object]] = {}
    for name in names:
        size, _, label = name.partition(" ")
        layout = LAYOUTS[label]
        model = language(SIZES[size], CPU, layout.dtype, wanted=layout.wanted)
        memory.release_memory()
        engine = engine_of(model)
        for entries in (0, *visual):
            (span,) = behind(model, 1, entries, CHUNK)
            for rows in (*ROWS, CHUNK) if entries else (CHUNK,):
                work = partial(engine.run, [Rows(span, [0] * rows)])
                runs[name, entries, rows] = partial(rolled_back, [span], work)

    def time(name: str, at: tuple[int, int]) -> float:
        return time_call(runs[name, *at])

    timed = measure_in_turns({name: partial(time, name) for name in names}, [*product(visual, ROWS)], repeats)
    return {
        name: Passes(
            {entries: {rows: median(timed[name][entries, rows]) for rows in ROWS} for entries in visual},
            {entries: time(name, (entries, CHUNK)) for entries in (0, *visual)},
        )
        for name in names
    }


def simulated(way: Way, passes: Mapping[str, Passes], visual: int, tokens: int, beta: float) -> tuple[str, ...]:
    """Return a line: the window, tokens/s, seconds to the first token and to the last, and the speed-up."""
    target = passes[way.target]
    reading, single = target.prefill(visual), target.verify(visual, 1)
    plain = reading + (tokens - 1) * single
    if way.draft is None:
        return ("-", f"{1 / single:.2f}", f"{reading:.0f}", f"{plain:.0f}", "1.00x")
    draft = passes[way.draft]
    # The target's own weights draft from its cache: they read no prompt.
    own = 0.0 if way.draft.split()[0] == way.target.split()[0] else draft.prefill(way.kept * visual)
    times = Times(partial(target.verify, visual), draft.verify(way.kept * visual, 1), prefill=Prefill(reading, own))
    best = what_if(times, beta, None, tokens=tokens)[1]
    assert best.end_to_end is not None
    # As in the bench: both models have read the prompt when decoding begins.
    first, last = reading + own, plain / best.end_to_end
    rate = (tokens - 1) / (last - first)
    return (str(best.gamma), f"{rate:.2f}", f"{first:.0f}", f"{last:.0f}", f"{best.end_to_end:.2f}x")


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visual", default="2000,8000,25000", help="visual tokens of a clip, increasing")
    parser.add_argument("--tokens", type=int, default=256, help="of a caption")
    parser.add_argument("--beta", type=float, default=0.8, help="share of a smaller draft's tokens that is accepted")
    parser.add_argument("--self-beta", type=float, default=0.98, help="of those that the rounded target drafts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="(default: as torch chooses)")
    asked = parser.parse_args(args)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    visual = [int(number) for number in asked.visual.split(",")]
    passes: dict[str, Passes] = {}
    for names in GROUPS:
        passes |= measured(names, visual, asked.repeats)
        memory.release_memory()
    heads = ["model", "visual tokens", *(f"{rows} rows, ms" for rows in ROWS), f"{CHUNK} rows of a prompt, ms"]
    lines = [
        (name, f"{at:,}", *(f"{1e3 * one.rows[at][rows]:.0f}" for rows in ROWS), f"{1e3 * one.chunk[at]:.0f}")
        for name, one in passes.items()
        for at in visual
    ]
    print(facts_line(machine(CPU)), table(heads, lines), sep="\n\n")
    heads = [
        "visual tokens",
        "target",
        "drafted by",
        "gamma",
        "tokens/s",
        "first token, s",
        f"{asked.tokens} tokens, s",
    ]
    ends = [
        (f"{at:,}", way.target, way.label, *simulated(way, passes, at, asked.tokens, beta))
        for at in visual
        for way in WAYS
        for beta in [asked.self_beta if way.draft and way.draft[:2] == way.target[:2] else asked.beta]
    ]
    print("", table([*heads, "end to end over plain"], ends), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
