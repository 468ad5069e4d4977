"""Scaling on models of a config alone: counts, bytes and forecasts that follow from the measured times."""

from __future__ import annotations

import pytest
import torch

from research import scale as scaling
from research import speed
from research.random_init import random_model
from research.scale import markdown, measure_scale, scale
from vidspec.bench import bandwidth
from vidspec.bench.loaded import ModelSource
from vidspec.draft_length.costs import pass_times
from vidspec.draft_length.window import chain_tokens
from vidspec.errors import ModelError
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

pytestmark = pytest.mark.full


def config(pair, role="target"):
    return str(loading.embedded_folder(pair, role) / "config.json")


@pytest.mark.parametrize("pair", ["embedded", "embedded-qwen"])
def test_a_model_of_random_weights_has_the_size_of_its_config(pair):
    where = resolve_placement("cpu")
    made = random_model(config(pair), where)
    real = loading.load_model(str(loading.embedded_folder(pair, "target")), where)
    assert [p.shape for p in made.model.parameters()] == [p.shape for p in real.model.parameters()]
    assert not torch.equal(made.language.layers[0].mlp.up_proj.weight, real.language.layers[0].mlp.up_proj.weight)


def test_points_add_up():
    made = config("embedded", "draft"), config("embedded", "draft")
    facts, points = measure_scale(ModelSource(device="cpu"), [1, 3], made=made, tokens_per_frame=8, repeats=1)
    assert [(one.frames, one.visual_tokens) for one in points] == [(1, 8), (3, 24)]
    assert points[1].kv - points[0].kv == 16 * points[0].kv // (8 + scaling.TEXT)
    assert facts["tokens_per_frame"] == 8 and facts["draft"] == made[1]
    one = points[1]
    assert set(one.target) == set(scaling.ROWS) and set(one.draft) == set(one.forecast) == {0.0, 0.5, 0.9}
    what = one.forecast[0.9]
    curve = pass_times(list(one.target.items()))  # never falls, whatever a busy machine measured
    tokens = chain_tokens(0.8, what.gamma)
    assert what.sequential == pytest.approx(
        speed.sequential(tokens, what.gamma, curve(1), curve(what.gamma + 1), one.draft[0.9])
    )
    assert markdown(points, 0.8, 128).count("\n| 3 | 24 | ") == 3


def test_it_ends_where_memory_does(monkeypatch):
    model = random_model(config("embedded", "draft"), resolve_placement("cpu"))
    monkeypatch.setattr(scaling, "free_memory", lambda device: 4000 * bandwidth.kv_bytes(model))
    said = []
    points = scale(model, None, [2, 1000], tokens_per_frame=8, repeats=1, say=said.append)
    assert [one.frames for one in points] == [2] and said[-1].startswith("1000 frames need about")


def test_a_config_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json there"):
        random_model(tmp_path, resolve_placement("cpu"))


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("--frames", "8,4"), "--frames 8,4: must be increasing numbers"),
        (("--frames", "many"), "--frames many: must be increasing numbers"),
        (("--beta", "1"), "--beta must lie between 0 and 1, not 1"),
        (("--random-init", "c.json", "--target", "x"), "--random-init excludes --target"),
        (("--random-init-draft", "c.json"), "--random-init-draft needs --random-init"),
        (("--random-init", "c.json"), "c.json: no config.json there"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("scale", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
