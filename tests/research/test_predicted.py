"""The page of predictions, and where windows settle with the predicted times."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import mean

import pytest

from research.evidence.__main__ import MEASURED
from research.predicted import CLIPS, PUBLISHED, VISUAL, forecasts, page
from research.prediction.costs import ModelCost
from research.prediction.sheets import SHEETS
from research.sizes import SIZES
from research.speed import best_window
from tests.draft_length.lockstep import Machine
from tests.engine.counts import counted
from vidspec.draft_length.pace import WindowController

CARD = SHEETS["h200"]


def cost_of(size):
    return ModelCost.of_decoder(size.read, size.layers, 2 * size.kv_per_token)


@pytest.mark.full
@pytest.mark.parametrize("weights", [None, "int4"])
def test_launches_are_those_that_are_counted(weights):
    """Of a block and around the blocks."""
    for layers in (1, 3):
        size = replace(SIZES["7B"], layers=layers)
        assert counted(size, "fused", 100, weights=weights).launches == cost_of(size).launches


@pytest.mark.parametrize("beta", [0.3, 0.8])
@pytest.mark.parametrize("draft", ["0.5B", "3B"])
def test_windows_settle_there_under_load(draft, beta):
    """``draft.gamma: auto`` with these times, 16 clips of 2,000 visual tokens at once, measured with noise."""
    target, small = cost_of(SIZES["7B"]), cost_of(SIZES[draft])

    def verify(n, rows):
        return target.pass_seconds(CARD, 16, rows, 2_000)

    def chain(n, rows):
        return small.pass_seconds(CARD, n, n, 2_000, chained=True)

    betas, shares, plain_rounds = [beta] * 16, [], []
    for seed in range(4):  # of noise, by which a draft that gains little may rest
        machine, pace = Machine(verify, chain, seed=seed), WindowController()
        late = machine.decode(pace, [pace.window() for _ in betas], betas, 600)[300:]
        plain = machine.rate([[0] * 16], betas)
        shares.append(machine.rate(late, betas) / max(plain, machine.best_fixed(betas)))
        plain_rounds.append(sum(not any(gammas) for gammas in late) / len(late))
    assert mean(shares) >= 0.97 and min(shares) > 0.94
    if best_window(beta, lambda rows: verify(16, 16 * rows), chain(16, 16))[0] == 0:
        assert mean(plain_rounds) > 0.9


def test_what_is_predicted():
    found = forecasts([SHEETS["4090"], SHEETS["h100"]])
    assert len(found) == 2 * len(CLIPS) * len(VISUAL)
    by = {(one.card.name, one.visual, one.clips): one for one in found}
    alone = by["H100", 2_000, 1]
    assert alone.best is not None and alone.best.gain > 1.6 and alone.cells[4] in ("self-int4", "EAGLE-3")
    crowded = by["RTX 4090", 25_000, 64]
    assert crowded.best is None and crowded.cells[3:7] == ["-"] * 4
    assert all(draft.gain >= 1 for one in found for draft in one.drafts)


def test_the_committed_results_are_current():
    (output,) = json.loads((MEASURED / "cards.json").read_text(encoding="utf-8"))["output"]
    assert output == page().rstrip().splitlines(), "python -m research.evidence cards --again"
    assert all(one.source in page() for one in PUBLISHED)
