"""Host time of a decoding round: ``python -m research.studies.host``. No device, no weights.

Clips are decoded with windows of five tokens by models of one tiny block with random weights, whose passes are replayed
as on a GPU. The time within replayed passes and choices, which a GPU computes by itself, is left out. Other operations
on tensors count: on a small CPU tensor one takes about as long as a launch. *Total* is the host's CPU time of a round:
draft, verification, text and events. *Exposed* is its part between a read-back and the next replayed pass, in which a
GPU has no work. Of all rounds the fastest counts, as in ``timeit``: other processes only add to it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer

from research import commands
from research.random_clips import begin_clip
from research.random_decoder import engine_of, language
from research.sizes import Size
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.bench.tables import table
from vidspec.decoding.loop import Loop
from vidspec.decoding.sequence import Sequence
from vidspec.drafting.chain import ChainDrafter
from vidspec.engine.choice_step import ChoiceStep
from vidspec.engine.forward import Engine
from vidspec.engine.fused import FusedDecoder
from vidspec.engine.graph_step import GraphStep
from vidspec.engine.graphs import ReplayedPasses
from vidspec.engine.rows import PrefillResult, Rows
from vidspec.engine.sampling import Sampling

SIZE = Size(layers=1, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=60)
GAMMA, ROUNDS = 5, 40


class HostClock:
    """Host seconds without those of replayed passes.

    Attributes:
        total: seconds so far.
        exposed: those between a read-back and the next replayed pass.
    """

    def __init__(self) -> None:
        self.total = self.exposed = 0.0
        self._since = time.thread_time()
        self._read: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        run, choose, read = GraphStep.__call__, ChoiceStep.__call__, torch.Tensor.tolist

        def replay(step: GraphStep) -> None:
            begun = time.thread_time()
            self.total += begun - self._since
            if self._read is not None:
                self.exposed, self._read = self.exposed + begun - self._read, None
            run(step)
            self._since = time.thread_time()

        def replay_choice(step: ChoiceStep) -> None:
            self.total += time.thread_time() - self._since
            choose(step)
            self._since = time.thread_time()

        def read_back(tensor: torch.Tensor) -> Any:
            numbers = read(tensor)
            if tensor.dtype is not torch.float64:  # the host's own random numbers
                self._read = time.thread_time()
            return numbers

        with (
            patch.object(GraphStep, "__call__", replay),
            patch.object(ChoiceStep, "__call__", replay_choice),
            patch.object(torch.Tensor, "tolist", read_back),
        ):
            yield


def replayed_engine(seed: int) -> Engine:
    """Return a random model whose passes are replayed; its attention adds nothing."""

    def attend(query: torch.Tensor, *_: object) -> torch.Tensor:
        return query.new_zeros(len(query), query.shape[1] * query.shape[2])

    torch.manual_seed(seed)
    model = language(SIZE, torch.device("cpu"), torch.float32)
    assert isinstance(model.decoder, FusedDecoder)
    model.decoder.graphs = ReplayedPasses(model.decoder, attend)
    return engine_of(model)


def begin_clips(loop: Loop, clips: int, target: Engine, draft: Engine, temperature: float) -> list[Sequence]:
    """Begin clips whose prompts have been read."""

    def read(engine: Engine, clip: int) -> PrefillResult:
        span = engine.open((ROUNDS + 4) * (GAMMA + 1))
        (passed,) = engine.run([Rows(span, [clip, 1, 2, 3])])
        return PrefillResult(span, passed.logits[-1])

    sampling, rule = Sampling(temperature, 0.9), ExactRule()

    def drafter(clip: int) -> ChainDrafter:
        return ChainDrafter(draft, read(draft, clip).span, sampling, torch.Generator().manual_seed(2))

    return [
        begin_clip(loop, clip, target, read(target, clip), drafter(clip), rule, GAMMA, sampling)
        for clip in range(clips)
    ]


def measure(clips: int, accepted: bool, temperature: float = 0.0) -> tuple[float, float]:
    """Return the fewest seconds of a round, total and exposed.

    Args:
        clips: at once.
        accepted: True if draft and target are one model, so that all windows are accepted; else few are.
        temperature: 0 for greedy.
    """
    loop, clock = Loop(overlaps=True), HostClock()
    sequences = begin_clips(loop, clips, replayed_engine(1), replayed_engine(1 if accepted else 2), temperature)
    rounds, before = list[tuple[float, float]](), (0.0, 0.0)
    gc.collect()
    gc.disable()  # as during decoding
    with clock.running():
        while len(sequences[0].rounds) < ROUNDS:
            count = len(sequences[0].rounds)
            for client in loop.turn():
                client.events.clear()  # type: ignore[attr-defined]
            if len(sequences[0].rounds) > count:
                now = clock.total, clock.exposed
                rounds.append((now[0] - before[0], now[1] - before[1]))
                before = now
    gc.enable()
    loop.close()
    return min(total for total, _ in rounds[5:]), min(exposed for _, exposed in rounds[5:])


def main(
    batch: Annotated[str, typer.Option(help="Numbers of clips at once.")] = "1,4,16",
    repeats: Annotated[int, typer.Option(help="Measurements of each, of which the fastest counts.")] = 3,
) -> None:
    """Print the host's milliseconds of a round."""
    lines = []
    torch.set_num_threads(1)
    for clips in commands.parse_counts(batch, "--batch", "1,4,16"):
        for name, accepted, temperature in (("none", False, 0.0), ("all", True, 0.0), ("sampled", True, 0.8)):
            each = [measure(clips, accepted, temperature) for _ in range(repeats)]
            lines.append((str(clips), name, *(f"{1000 * min(seconds):.2f}" for seconds in zip(*each, strict=True))))
    print(table(["clips", "accepted", "total ms", "exposed ms"], lines))


if __name__ == "__main__":
    sys.exit(commands.run(main, "studies.host"))
