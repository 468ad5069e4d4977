"""``vidspec profile`` on the built-in pair: parts that add up, passes, and every way to write them."""

from __future__ import annotations

import json
from functools import partial

import pytest

from vidspec.bench import profile_view
from vidspec.bench.loaded import ModelSource
from vidspec.bench.passes import measure_passes
from vidspec.bench.profiled import profile_clip
from vidspec.cli import main
from vidspec.embedded.samples import shipped

FEW = {"video.frames": 4, "generate.max_new_tokens": 12}
pytestmark = pytest.mark.usefixtures("forked_drafts")


@pytest.fixture(scope="module")
def report():
    names, source = ["ar", "specvlm", "parallelvlm"], ModelSource(device="cpu")
    with pytest.MonkeyPatch.context() as patch:  # medians of five are ``test_passes``' matter
        patch.setattr("vidspec.bench.profiled.measure_passes", partial(measure_passes, repeats=1))
        return profile_clip(shipped()[0], names, source, overrides=FEW, repeats=2, threads=1)


@pytest.mark.full
def test_parts_add_up_to_the_wall_clock(report):
    for one in report.runs:
        parts = one.breakdown.parts
        assert sum(parts.values()) == pytest.approx(one.breakdown.wall, rel=1e-6)
        assert {"decode_video", "vision", "target_prefill", "verify", "other"} <= set(parts)
        assert len(one.walls) == 2 and one.breakdown.wall == min(one.walls)
    plain, turns, beside = report.runs
    assert "draft" not in plain.breakdown.parts and turns.breakdown.overlap == 0
    assert turns.breakdown.parts["draft"] > 0 and turns.breakdown.parts["prune"] > 0
    assert beside.breakdown.overlap > 0 and set(beside.breakdown.lanes) == {"target", "draft"}


@pytest.mark.full
def test_passes_belong_to_the_draft_that_was_measured(report):
    plain, turns, beside = report.runs
    assert list(turns.passes.target) == list(range(1, 33))
    assert set(turns.passes.draft) == {0.0, 0.5, 0.9} and turns.alpha == 0.9
    assert turns.c == turns.passes.target[1] / turns.passes.draft[0.9] and 1 <= turns.gamma <= 32
    assert plain.passes.draft == {} and plain.c is None and plain.gamma is None
    assert beside.passes == turns.passes


def test_it_is_written_in_every_form(report):
    runs = json.loads(json.dumps(report.to_dict()))["runs"]
    assert [one["profile"] for one in runs] == ["ar", "specvlm", "parallelvlm"]
    assert sum(runs[1]["parts"].values()) == pytest.approx(runs[1]["wall"])
    text = profile_view.markdown(report)
    assert "| part | ar | specvlm | parallelvlm |" in text and "| recommended gamma | - |" in text
    assert "| parallelvlm | both at once |" in text
    assert ("ar", "wall", report.runs[0].breakdown.wall) in profile_view.time_rows(report)


@pytest.mark.full
def test_the_command(capsys):
    args = ["profile", str(shipped()[0]), "--profiles", "ar", "--set", "video.frames=4", "--repeats", "1"]
    assert main([*args, "--set", "generate.max_new_tokens=3", "--no-passes"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    seconds = {part: float(time) for _, part, time in rows}
    assert sum(seconds.values()) == pytest.approx(2 * seconds["wall"])
