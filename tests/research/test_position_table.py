import json

import pytest

from vidspec.bench.position_table import biases
from vidspec.captioner import Captioner
from vidspec.cli import main
from vidspec.embedded.samples import shipped


@pytest.fixture(scope="module")
def contenders():
    few = {"video.frames": 6}
    made = {name: Captioner.from_profile(name, overrides=few) for name in ("sd-attention", "sd-window-front", "ar")}
    return {**made, "generate": object()}


def test_profiles_that_prune_are_measured(contenders):
    found = biases(contenders, shipped()[:2])
    assert list(found) == ["sd-attention", "sd-window-front"]
    front = found["sd-window-front"]
    assert (
        front.bins == pytest.approx([0.6, 0.4, *[0.0] * 8], abs=1e-6) and front.first.kept == 1 and front.last.kept == 0
    )
    assert front.first.all == pytest.approx(1 / 6) and front.rows.all == 0.5
    assert found["sd-attention"].bins != front.bins


def test_bench_reports_it(tmp_path, monkeypatch, capsys, contenders):
    monkeypatch.setattr("vidspec.bench.bandwidth.copy_bandwidth", lambda device: 1e9)
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "4")
    monkeypatch.setenv("VIDSPEC_GENERATE__MAX_NEW_TOKENS", "3")
    args = [str(shipped()[0]), "--no-peers", "--repeats", "1", "--profiles", "sd-window-front", "--position-bias"]
    assert main(["bench", *args, "--json", str(tmp_path / "b.json")]) == 0
    assert "| sd-window-front | " in capsys.readouterr().out.rpartition("equal stretches")[2]
    (measured,) = json.loads((tmp_path / "b.json").read_text())["position_bias"].values()
    assert measured["first"]["kept"] > measured["first"]["all"] and measured["last"]["kept"] == 0
