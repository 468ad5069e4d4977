"""``vidspec profile`` on the built-in pair: parts that add up, memory, passes, and every way to write them."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from xml.etree import ElementTree

import pytest
import torch
from torch.nn import functional as F

from vidspec.bench import bandwidth, profile_view
from vidspec.bench.arithmetic import count_operations
from vidspec.bench.loaded import ModelSource
from vidspec.bench.memory import MemoryUse, PeakMemory, resident
from vidspec.bench.passes import measure_passes
from vidspec.bench.profiled import profile_clip
from vidspec.cli import main
from vidspec.embedded.samples import shipped
from vidspec.engine.matrix import can_pack, float_matrix
from vidspec.files import PICTURE, check_output
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

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


def test_memory_is_counted_by_process(report):
    target = loading.load_model(str(loading.embedded_folder("embedded", "target")), resolve_placement("cpu"))
    plain, turns, beside = (one.memory for one in report.runs)
    assert plain[0].weights["target"] == bandwidth.model_weight_bytes(target)
    assert plain[0].kv["target"] % bandwidth.kv_bytes(target) == 0 and "draft" not in plain[0].kv
    assert [part.workers for part in turns] == [("target", "draft")]
    assert [part.workers for part in beside] == [("target",), ("draft",)]
    assert set(beside[1].weights) == {"draft"}


def test_activations_are_the_rest_of_the_peak():
    part = MemoryUse(("target",), {"target": 30}, {"target": 7}, 100, "resident", 50)
    assert part.activations == 13
    assert MemoryUse(("draft",), {"draft": 30}, {}, None, "device").activations is None


def test_the_peak_of_this_process_is_at_least_what_it_holds():
    peak = PeakMemory(resolve_placement("cpu").device)
    peak.reset()
    block = bytearray(b"x" * 2**26)
    assert peak.read() >= 2**26 and resident() > len(block)


def test_operations_are_counted_in_every_layout():
    weight, bias = torch.randn(64, 32), torch.randn(64)
    for layout in ("plain", "split", "transposed", *(["packed"] if can_pack(weight.dtype) else [])):
        matrix = float_matrix(weight, bias, layout)
        for count in (1, 6):
            rows, residual = torch.randn(count, 32), torch.randn(count, 64)
            with torch.inference_mode():
                assert count_operations(partial(matrix, rows)) == 2 * count * 64 * 32
                assert count_operations(partial(matrix.add, residual, rows)) == 2 * count * 64 * 32
    heads = torch.randn(1, 2, 5, 8)
    with torch.inference_mode():
        assert count_operations(lambda: F.scaled_dot_product_attention(heads, heads, heads)) == 4 * 2 * 5 * 5 * 8


def test_rates_are_shares_of_the_machines_peak(report):
    assert [one.work for one in report.rates] == ["vision", "target_prefill", "T_p(1)", "T_p(6)"]
    assert all(0 < one.share < 2 and one.operations > 10**5 for one in report.rates)
    one, six = report.rates[2:]
    assert 5 < six.operations / one.operations < 7
    assert "of the peak" in profile_view.markdown(report) and len(report.to_dict()["rates"]) == 4


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
    assert runs[0]["memory"][0]["activations"] is not None
    text = profile_view.markdown(report)
    assert "| part | ar | specvlm | parallelvlm |" in text and "| recommended gamma | - |" in text
    assert "| parallelvlm | both at once |" in text
    rows = profile_view.csv_rows(report)
    assert ("ar", "wall", report.runs[0].breakdown.wall) in rows
    picture = profile_view.svg(report)
    assert ElementTree.fromstring(picture).tag.endswith("svg") and "target_prefill" in picture


@pytest.mark.full
def test_the_command(capsys, monkeypatch, tmp_path):
    args = ["profile", str(shipped()[0]), "--profiles", "ar", "--set", "video.frames=4", "--repeats", "1"]
    args += ["--set", "generate.max_new_tokens=3", "--no-passes", "--svg", str(tmp_path / "p.svg")]
    assert main([*args, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    seconds = {row["part"]: float(row["seconds"]) for row in rows}
    assert sum(seconds.values()) == pytest.approx(2 * seconds["wall"])
    assert "<svg" in (tmp_path / "p.svg").read_text()
    check_output(tmp_path / "p.svg", (), "--svg", PICTURE)
