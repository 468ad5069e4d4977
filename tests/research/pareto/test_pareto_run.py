"""Measuring speed-up against quality with the built-in pair: parts, continuing, and the command itself."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from research.pareto import run as pareto_run
from research.pareto.__main__ import main
from research.pareto.outcome import outcome
from research.pareto.run import Pareto, measure
from research.world.samples import HELD_OUT_SEED, draw, draw_sample
from research.world.scoring import truth
from vidspec.bench.results import read_results
from vidspec.bench.turns import measure_in_turns
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.events.record import Caption

pytestmark = pytest.mark.full

SMALL = "+video.frames=4+generate.max_new_tokens=20"
NAMES = [f"ar{SMALL}", f"lvspec{SMALL}", f"fastv{SMALL}", "draft"]


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips") / "held-out"
    draw(folder, 2, HELD_OUT_SEED)
    return folder


@pytest.fixture
def asked(held_out, tmp_path):
    def make(**more):
        wanted = {"count": 2, "clips_dir": held_out, "timed": 1, "repeats": 1, "json": tmp_path / "r.json"}
        return Pareto(**{"contenders": NAMES, **wanted, **more})

    return make


@pytest.fixture
def counted(monkeypatch):
    """Every clip that a contender captions, warm-up included."""
    calls = []
    caption = pareto_run.Named.__call__
    monkeypatch.setattr(pareto_run.Named, "__call__", lambda self, clip: (calls.append(clip), caption(self, clip))[1])
    return calls


def test_names_of_one_method_are_measured_once(asked, counted):
    twin = f"{NAMES[0]}+draft.gamma=5"  # as it is by default
    found = measure(asked(contenders=[NAMES[0], twin, "draft"], only="quality"))
    assert {one["contender"] for one in found["records"]} == {NAMES[0], "draft"} and len(counted) == 4
    assert [(one.name, one.also) for one in outcome(found).methods] == [(NAMES[0], (twin,)), ("draft", ())]


def test_the_parts_one_after_the_other(asked, counted, tmp_path):
    stored = measure(asked(only="quality"))["records"]
    assert len(counted) == 8 and {one["path"] for one in stored} == {"clip-0000.mp4", "clip-0001.mp4"}
    assert all(one["quality_only"] and not one["timings"] and not one["passes"] for one in stored)
    judged = {(one["contender"], one["path"]) for one in stored if "accepted_by_target" in one}
    assert judged == {(name, "clip-0000.mp4") for name in NAMES[1:]}
    assert all(method.speed is None for method in outcome(read_results(tmp_path / "r.json")).methods)

    counted.clear()
    both = measure(asked(only="times"))
    assert len(counted) == 4 + 4  # a warm-up and the timed clip each
    timed = [one for one in both["records"] if not one.get("quality_only")]
    assert {(one["contender"], one["path"]) for one in timed} == {(name, "clip-0000.mp4") for name in NAMES}
    found = outcome(read_results(tmp_path / "r.json"))
    assert [method.speed.clips for method in found.methods] == [1] * 4
    assert [method.quality.clips for method in found.methods] == [2] * 4
    assert found.to_dict() == outcome(both).to_dict()

    counted.clear()
    assert len(measure(asked())["records"]) == len(both["records"]) and counted == []


def test_times_serve_quality_too(asked, counted):
    stored = measure(asked())["records"]
    assert len(counted) == 4 + 4 + 4 and len(stored) == 8
    assert [bool(one.get("quality_only")) for one in stored] == [False] * 4 + [True] * 4


def test_what_the_draft_alone_writes_is_its_own(asked):
    made = measure(asked(only="quality"))
    writers = {one["contender"]: Path(one["models"]["target"]).name for one in made["records"]}
    assert writers == {**dict.fromkeys(NAMES, "target"), "draft": "draft"}
    found = {one.name: one for one in outcome(made).methods}
    assert found["draft"].kind == "draft alone" and found["draft"].quality.tau is None
    assert found[f"lvspec{SMALL}"].kind == "loose" and found[f"fastv{SMALL}"].kind == "lossy"
    assert found[NAMES[0]].quality.recall.value > 0


def test_truth_of_drawn_and_of_named_clips(asked, held_out):
    rng = random.Random(HELD_OUT_SEED)
    clips = pareto_run.clips_of(asked(), held_out, print)
    for shown in clips.values():
        assert shown.facts == truth(draw_sample(rng.randrange(2**31)).scene)
    named = pareto_run.clips_of(asked(clips=shipped(), clips_dir=None), held_out, print)
    assert list(named) == [str(clip) for clip in shipped()]
    assert sorted(len(shown.facts.objects) for shown in named.values()) == [1, 2, 3, 3]


def test_clips_without_truth(asked, held_out, tmp_path):
    alone = tmp_path / "alone.mp4"
    alone.write_bytes((held_out / "clip-0000.mp4").read_bytes())
    assert pareto_run.clips_of(asked(clips=[alone]), tmp_path, print)[str(alone)].facts is None


@pytest.mark.parametrize(
    "more, complaint",
    [
        ({"count": 3}, "does not hold 3 held-out clips"),
        ({"clips": ["no.mp4"]}, "there is no such file"),
    ],
)
def test_clips_that_will_not_do(asked, held_out, tmp_path, more, complaint):
    more["clips"] = [Path(clip) for clip in more.get("clips", ())]
    with pytest.raises(UsageError, match=complaint):
        pareto_run.clips_of(asked(**more), held_out, print)


@pytest.mark.parametrize("first", ["draft", "lvspec", "fastv"])
def test_the_baseline_must_be_lossless(held_out, first):
    with pytest.raises(UsageError, match="must be lossless"):
        measure(Pareto([first, "ar"], count=2, clips_dir=held_out))


def test_the_machine_of_the_times_is_kept(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(pareto_run, "machine", lambda device: {"name": "first"})
    plain = {"contenders": NAMES[:1]}
    measure(asked(only="quality", **plain))
    monkeypatch.setattr(pareto_run, "machine", lambda device: {"name": "second"})
    assert measure(asked(only="times", **plain))["machine"] == {"name": "second"}
    monkeypatch.setattr(pareto_run, "machine", lambda device: {"name": "third"})
    for only in ("quality", None):
        assert measure(asked(only=only, **plain))["machine"] == {"name": "second"}
    assert measure(asked(repeats=2, **plain))["machine"] == {"name": "third"}


def test_command(held_out, tmp_path, capsys):
    file, svg = tmp_path / "r.json", tmp_path / "p.svg"
    line = ["--profiles", ",".join(NAMES), "--count", "2", "--clips-dir", str(held_out)]
    line += ["--timed", "2", "--repeats", "1", "--json", str(file)]
    assert main(line) == 0
    table = capsys.readouterr().out
    rows = [row for row in table.splitlines() if row.startswith("| ") and "method" not in row]
    assert [row.split(" | ")[1] for row in rows] == ["lossless", "loose", "lossy", "draft alone"]
    assert all("x (" in row for row in rows)
    assert main([*line, "--svg", str(svg)]) == 0  # all is measured
    assert capsys.readouterr().out == table and svg.stat().st_size
    assert main([*line, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["baseline"] == NAMES[0] and [one["name"] for one in content["methods"]] == NAMES


def test_what_was_learned_from_a_clip_is_forgotten_before_its_next_repeat(held_out):
    """Suffix drafts, for one, would copy the caption of the time before."""

    class Learning:
        learned = 0

        def __init__(self):
            self.client = SimpleNamespace(setup=SimpleNamespace(forget=self.forget))

        def caption(self, path):
            self.learned += 1
            return Caption(str(path), "x", token_ids=[self.learned])

        def forget(self):
            self.learned = 0

    shown = {"clip": pareto_run.Shown(held_out / "clip-0000.mp4", None)}
    records = measure_in_turns({"suffix": pareto_run.Named(Learning(), shown)}, ["clip"], 3)
    assert [one.token_ids for one in records["suffix"]["clip"]] == [[1], [1], [1]]
