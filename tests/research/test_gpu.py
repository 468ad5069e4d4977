"""The measurement for GPUs: what it says without one, lines and tables on the CPU with tiny sizes, and a smoke run."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from research import random_heads
from research.gpu import __main__ as gpu
from research.gpu import folder, frames, marked, rounds, sizes
from research.gpu.folder import Folder, Profiled
from research.gpu.marked import FILES, run_tests
from research.gpu.results import Results, read, read_last
from research.gpu.rounds import Configuration, Plan
from research.gpu.sizes import Grid
from research.sizes import SIZES, Size
from tests.engine import standin
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.errors import UsageError
from vidspec.runs.ties import EPSILON, tie_limit

ROOT = Path(__file__).resolve().parents[2]
SMALL = Size(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=300)
CPU = torch.device("cpu")
#: More bytes than the clips and wheels that ``make gpu-carry`` collects.
CARRIED = 10_000_000


@pytest.fixture(autouse=True)
def sizes_as_before():
    """A smoke run replaces sizes, which other tests of this process predict with."""
    before = dict(SIZES)
    yield
    SIZES.clear()
    SIZES.update(before)


def test_without_a_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "no NVIDIA GPU here: nothing was run\n" and not (tmp_path / "out").exists()
    assert gpu.main(["speeds"]) == 2 and "no such part: speeds (one of records" in capsys.readouterr().err


def test_lines_are_there_when_the_command_is_killed(tmp_path):
    results = Results(tmp_path, "sizes", 9)
    results.add("pass", model="7B")
    with results.path.open("a") as file:
        file.write('{"kind": "pa')
    assert read_last(results.path) == [{"kind": "pass", "model": "7B"}]
    with Results(tmp_path, "sizes", 9) as later:
        later.add("pass", model="3B")
    assert [row["kind"] for row in read(results.path)] == ["begin", "pass", "begin", "pass", "end"]
    assert read_last(results.path)[0] == {"kind": "pass", "model": "3B"}


def test_each_mechanism_is_tested_before_its_parameters(monkeypatch, tmp_path):
    """In bfloat16 first; what passed in a run that ended early comes last in the next."""
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])\n"
        "def test_one(dtype): ...\n"
        "def test_two():\n"
        "    if 'GO_ON' not in __import__('os').environ: raise KeyboardInterrupt\n"
    )
    monkeypatch.setattr(marked, "KERNELS", ("test_some.py",))
    monkeypatch.setattr(marked, "ROOT", tmp_path)
    monkeypatch.setattr(marked, "FILES", ())
    with pytest.raises(KeyboardInterrupt), Results(tmp_path, "tests", 9) as results:
        run_tests(results)
    monkeypatch.setenv("GO_ON", "")
    with Results(tmp_path, "tests", 9) as results:
        assert run_tests(results)
    rows = list(read(results.path))
    runs = [row["test"].partition("::")[2] for row in rows if row["kind"] == "test"]
    assert runs == ["test_one[bfloat16]", "test_two", "test_one[float32]", "test_one[bfloat16]"]
    assert {"kind": "failed", "error": "KeyboardInterrupt: "} in rows


def test_a_part_that_hangs_is_ended(monkeypatch, tmp_path, capsys):
    """By Ctrl-C, else by a kill; its lines stay, and the command says 1."""
    monkeypatch.setattr(gpu, "KILL", 0.1)
    (tmp_path / "sizes.jsonl").write_text('{"kind": "left out", "what": "7B", "why": "no time left"}\n')
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    assert not gpu._run_apart("sizes", [sys.executable, "-c", deaf], tmp_path, 0.5)
    assert "7B" in (tmp_path / "sizes.md").read_text() and "sizes: ended after" in capsys.readouterr().err
    assert gpu._run_apart("sizes", [sys.executable, "-c", ""], tmp_path, 60)
    assert not gpu._run_apart("sizes", [sys.executable, "-c", "exit(1)"], tmp_path, 60)


def test_versions_that_do_not_fit_are_named(monkeypatch):
    monkeypatch.setattr(gpu, "version", {"transformers": "5.17.0", "triton": "3.6.0", "numpy": "2.4.1"}.get)
    assert "transformers 5.17.0 is installed, vidspec requires" in gpu._unmet("transformers")
    with pytest.raises(UsageError, match=r"Triton 3\.6\.0 fails with numpy 2\.4\.1"):
        gpu._check_interpreter()
    monkeypatch.setattr(gpu, "version", {"transformers": "5.23.0", "triton": "3.6.0", "numpy": "2.3.5"}.get)
    assert gpu._unmet("transformers") is None
    gpu._check_interpreter()


def test_a_pass_that_fell_back_is_not_timed_as_replayed(monkeypatch, tmp_path):
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    monkeypatch.setattr(sizes, "copy_rate", lambda device: 1e9)

    def ways(model):
        model.decoder.graphs, model.decoder.eager = None, "no capture"
        yield "graphs"

    monkeypatch.setattr(sizes, "_ways", ways)
    with Results(tmp_path, "sizes", 9) as results:
        list(sizes._size("tiny", "fused", Grid(["tiny"], (1,), (20,), torch.float32), CPU, 1e9, results))
        model = sizes.language(SMALL, CPU, torch.float32)
        model.decoder.graphs, model.decoder.eager = None, "no capture"
        with pytest.raises(RuntimeError, match="eager: no capture"):
            sizes._passes(sizes.engine_of(model), model, ("tiny", "graphs"), (1, 20), 1e9, (0, 1, 1))
    assert results.left_out == {"tiny graphs, 1 x 20": "eager: no capture"}


def test_what_is_carried_is_small():
    """Neither PyAV nor hypothesis, which are most of what the limit would allow."""
    planned = subprocess.run(["make", "-n", "gpu-carry"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    needed = (ROOT / "Makefile").read_text().partition("NEEDED := ")[2].partition("gpu gpu-sizes")[0]
    assert "webvtt-py" in planned.split() and "safetensors" in needed.split()
    assert not {"av", "hypothesis"} & {*planned.split(), *needed.split()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = sum((ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).is_file())
    assert tracked + CARRIED < 2**26, "a GPU machine takes 64 MiB"


def test_wheels_that_were_carried_are_installed_where_they_are_missing(tmp_path):
    """Once; then research.gpu runs with them."""
    python, site, ran, wheel = (tmp_path / name for name in ("python", "site", "ran", "a.whl"))
    python.write_text(f'#!/bin/sh\necho "$*" >> {ran}\ncase "$*" in *pip*) mkdir {site};; -c*) test -d {site};; esac\n')
    python.chmod(0o755)
    wheel.touch()
    names = {"PYTHON": python, "VENV": tmp_path / "none", "SITE": site, "WHEELS": wheel, "SMOKE": 1}
    for _ in range(2):
        subprocess.run(
            ["make", "gpu-rounds", *(f"{key}={value}" for key, value in names.items())], cwd=ROOT, check=True
        )
    lines = [line for line in ran.read_text().splitlines() if not line.startswith("-c")]
    assert [line.split()[1] for line in lines] == ["pip", "research.gpu", "research.gpu"]
    assert "--no-index" in lines[0] and lines[0].endswith(f"--target {site} {wheel}") and " rounds " in lines[1]


@pytest.mark.full
def test_tests_for_gpus_are_found_without_what_is_not_carried():
    code = "import sys, pytest; sys.modules.update(av=None, hypothesis=None); sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "--collect-only", *FILES, *marked.KERNELS]
    without = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # hypothesis brings a plugin
    ran = subprocess.run(command, env=without, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]


def test_every_file_of_tests_for_gpus_is_run():
    assert set(FILES) == {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "gpu").glob("test_*.py")}


def test_a_part_ends_by_itself(monkeypatch, tmp_path):
    """Behind its minutes everything is named as left out, and what was measured stays."""
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    with Results(tmp_path, "sizes", 0) as results:
        sizes.measure(Grid(["tiny", "32B"], (1,), (20,)), CPU, results)
    kinds = [(row["kind"], row.get("what")) for row in read_last(results.path)]
    assert kinds == [("device", None), ("left out", "tiny"), ("left out", "32B"), ("end", None)]
    with Results(tmp_path, "folder", 0) as results:
        assert folder.measure(Folder(), {}, "cpu", results)
    assert [row["kind"] for row in read_last(results.path)] == ["left out"] * 4 + ["end"]
    with pytest.raises(ZeroDivisionError), Results(tmp_path, "sizes", 9) as results:
        _ = 1 // 0
    assert [row["kind"] for row in read_last(results.path)] == ["failed"]


def test_each_size_is_freed_before_the_next(monkeypatch, tmp_path):
    """Rows and tables too: both ways without Triton, all numbers of clips."""
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    monkeypatch.setitem(SIZES, "other", SMALL)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(sizes, "copy_rate", lambda device: 1e9)
    made, make = [], sizes.language

    def language(*args):
        assert all(one() is None for one in made)
        found = make(*args)
        made.append(weakref.ref(found.decoder))
        return found

    monkeypatch.setattr(sizes, "language", language)
    with Results(tmp_path, "sizes", 9) as results:
        sizes.measure(Grid(["tiny", "other"], (1, 2), (20,), torch.float32, repeats=(0, 1, 1)), CPU, results)
    rows = list(read(results.path))
    gc.collect()
    assert len(made) == 4 and [one() for one in made] == [None] * 4
    found = [(row["model"], row["way"], row["clips"]) for row in rows if row["kind"] == "pass"]
    assert found == [(size, way, clips) for size in ("tiny", "other") for way in ("eager", "stock") for clips in (1, 2)]
    assert all(row["share"] > 0 and row["chain"] > 0 for row in rows if row["kind"] == "pass")
    text = sizes.markdown(rows)
    assert "| tiny | eager | 2 | 20 |" in text and "| other | prefill | 20 |" in text


def test_what_does_not_fit_is_left_out(monkeypatch, tmp_path):
    assert sizes.bytes_needed(SIZES["7B"], 16, 25_000) < 80e9 < sizes.bytes_needed(SIZES["32B"], 4, 25_000)
    assert sizes.bytes_needed(SIZES["32B"], 1, 25_000) < 80e9 and sizes.bytes_needed(SIZES["72B"], 1, 1) > 140e9
    monkeypatch.setattr(sizes, "free_memory", lambda device: 24 * 10**9)
    monkeypatch.setattr(sizes, "copy_rate", lambda device: 1e9)
    with Results(tmp_path, "sizes", 9) as results:
        sizes.measure(Grid(["32B"]), CPU, results)
    assert results.left_out == {"32B fused": "too little memory", "32B stock": "too little memory"}


def test_what_fails_does_not_end_the_rest(monkeypatch, tmp_path, capsys):
    """As a kernel that a first GPU cannot build: it is named, the others are measured, and the command says 1."""
    monkeypatch.setattr(sizes, "copy_rate", lambda device: 1e9)
    monkeypatch.setitem(sys.modules, "triton", None)
    run = sizes.Engine.greedy

    def greedy(engine, batch, states=None):
        if len(batch) == 2:
            raise RuntimeError("no kernel image\nfor this device")
        return run(engine, batch)

    monkeypatch.setattr(sizes.Engine, "greedy", greedy)
    monkeypatch.setattr(sizes, "random_model", lambda *_: 1 // 0)
    assert gpu.main(["sizes", "--here", "--smoke", "--out", str(tmp_path)]) == 1
    rows = list(read(tmp_path / "sizes.jsonl"))
    assert [row["clips"] for row in rows if row["kind"] == "pass"] == [1, 1]
    assert {row["what"]: row["why"] for row in rows if row["kind"] == "left out"} == {
        "tower": "ZeroDivisionError: integer division or modulo by zero",
        "smoke eager, 2 x 20": "RuntimeError: no kernel image",
        "smoke stock, 2 x 20": "RuntimeError: no kernel image",
    }
    assert "| left out | why |" in capsys.readouterr().out


def test_decoded_clips_are_carried(tmp_path, monkeypatch):
    found = frames.drawn(1)
    frames.save(tmp_path / "new" / "frames.npz", found)
    monkeypatch.setenv(frames.VARIABLE, str(tmp_path / "new" / "frames.npz"))
    (name, clip), (other, again) = *found.items(), *frames.decoded(9).items()
    assert name == other == shipped()[0].name and clip.facts == again.facts
    assert np.array_equal(clip.frames, again.frames) and np.array_equal(clip.timestamps, again.timestamps)


def test_pairs_that_are_not_lossless_fail(monkeypatch, tmp_path):
    def row(dtype, identical, ties):
        return Profiled("embedded", dtype, "std", identical, ties, 4, 9.0, 0.1, 0.2, None)

    assert row("bfloat16", 3, 1).holds and not row("bfloat16", 2, 1).holds and not row("float32", 3, 0).holds
    assert tie_limit(torch.float32, CPU) == 0 < tie_limit(torch.float32, torch.device("cuda")) < EPSILON
    monkeypatch.setattr(folder, "measure", lambda *rest: False)
    assert gpu.main(["folder", "--here", "--smoke", "--clips", "1", "--out", str(tmp_path)]) == 1


def test_a_folder_becomes_records_and_a_head_learns_its_texts(tmp_path, capsys):
    """Every line is there, within the minutes of each part."""
    assert gpu.main(["records:2", "train:1", "--here", "--smoke", "--out", str(tmp_path)]) == 0
    served = [row for row in read_last(tmp_path / "records.jsonl") if row["kind"] == "served"]
    assert [(row["beta"], row["batch"]) for row in served] == [(0.0, 2), (1.0, 2)]
    assert all(row["clips_per_hour"] > 0 and 0 <= row["waiting"] < 1 and row["prompts"] >= 1 for row in served)
    (trained,) = [row for row in read_last(tmp_path / "train.jsonl") if row["kind"] == "training"]
    assert trained["steps"] >= 12 and trained["step"] > 0 and trained["states_per_s"] > 0 and trained["last"] >= 1
    shown = capsys.readouterr().out
    assert "| small | plain | 2 |" in shown and "| small | 1 | 2 |" in shown and "tau at last" in shown
    assert gpu.main(["rounds", "--weights", "int3"]) == 2 and "int8 or int4" in capsys.readouterr().err
    assert gpu.main(["records:soon"]) == 2 and "soon is no number of minutes" in capsys.readouterr().err


DEEP = Size(layers=6, hidden=64, heads=4, kv_heads=2, inner=128, vocabulary=300)
DRAFTS = ("int4", "int8", "tiny", "eagle3", "dflash", "dspark", "selector")


def planned(*configurations):
    return Plan(["deep"], configurations, torch.float32, entries=20, seconds=0.01, warm_up=1, tokens=3)


@pytest.fixture
def replayed(monkeypatch):
    """Small sizes, drafts of 100 and 30 of their target's 300 ids, and passes that are replayed as on a GPU."""
    monkeypatch.setitem(SIZES, "deep", DEEP)
    monkeypatch.setitem(SIZES, "tiny", replace(SMALL, vocabulary=30))
    monkeypatch.setattr(random_heads, "DRAFTED", 100)
    monkeypatch.setattr(rounds, "_ROOM", 300)
    monkeypatch.setattr(rounds, "release", lambda device: None)  # collections take most of the time
    make = rounds.engine_of

    def engine_of(model):
        engine, decoder = make(model), model.decoder
        decoder.graphs = ReplayedPasses(decoder, standin.attention)
        return engine

    monkeypatch.setattr(rounds, "engine_of", engine_of)


def test_rounds_accept_what_they_are_told_to(replayed, tmp_path):
    """All tokens or none, whatever the models say; ids that a head does not propose are read too."""
    every = [Configuration(one, (2,), ((1.0, 3), (0.0, 3))) for one in DRAFTS]
    with Results(tmp_path, "rounds", 9) as results:
        rounds.measure(planned(Configuration("none"), *every, Configuration("generate")), CPU, results)
    rows = read_last(results.path)
    assert not results.left_out
    found = {(row["draft"], row["beta"]): row for row in rows if row["kind"] == "rounds"}
    assert {key: row["tokens_per_round"] for key, row in found.items()} == {
        ("none", 0.0): 1.0,
        **{(one, 1.0): 4.0 for one in DRAFTS},
        **{(one, 0.0): 1.0 for one in DRAFTS},
    }
    assert all(row["way"] == "graphs" and row["tokens_per_s"] > 0 for row in found.values())
    assert [row["entries"] for row in rows if row["kind"] == "generated"] == [20]
    text = rounds.markdown(rows)
    assert "| deep | eagle3 | graphs | 2 | 20 | 1 | 3 |" in text and "| deep | 20 |" in text


def test_rounds_of_a_target_in_four_bits_are_named_so(replayed, tmp_path):
    plan = replace(planned(Configuration("none"), Configuration("dflash", (1,), ((1.0, 3),))), weights="int4")
    with Results(tmp_path, "rounds", 9) as results:
        rounds.measure(plan, CPU, results)
    rows = [row for row in read_last(results.path) if row["kind"] == "rounds"]
    assert [(row["model"], row["draft"]) for row in rows] == [("deep in int4", "none"), ("deep in int4", "dflash")]


def test_rounds_that_fell_back_are_named(replayed, monkeypatch, tmp_path):
    def run(graphs, *rest, **more):
        raise RuntimeError("no capture\nhere")

    monkeypatch.setattr(ReplayedPasses, "run", run)
    with Results(tmp_path, "rounds", 9) as results:
        rounds.measure(planned(Configuration("none")), CPU, results)
    (row,) = [row for row in read_last(results.path) if row["kind"] == "rounds"]
    assert row["way"] == "eager: target, RuntimeError: no capture"


def test_rounds_that_fail_do_not_end_the_rest(replayed, monkeypatch, tmp_path):
    def propose(drafter, gamma):
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(rounds.ChainDrafter, "propose", propose)
    failing = Configuration("int8", (1, 2), ((0.5, 3),))
    with Results(tmp_path, "rounds", 9) as results:
        rounds.measure(
            planned(failing, Configuration("dflash", (1,), ((0.5, 3),))), CPU, results, tmp_path / "profiles"
        )
    rows = read_last(results.path)
    assert [row["draft"] for row in rows if row["kind"] == "rounds"] == ["dflash"] and results.failed
    assert results.left_out == {
        f"deep int8, {clips} x 20, beta 0.5, gamma 3": "RuntimeError: device-side assert" for clips in (1, 2)
    }
    (file,) = (tmp_path / "profiles").iterdir()
    assert file.name == "deep-dflash-1-x-20-beta-0.5-gamma-3.txt"
    assert file.read_text().startswith("6 turns, ") and "aten::" in file.read_text()
    (kernels,) = [row for row in rows if row["kind"] == "kernels"]
    assert kernels["turns"] == 6 and kernels["top"][0][2] >= kernels["top"][1][2] > 0
    assert kernels["busy"] >= sum(seconds for *_, seconds in kernels["top"])


def test_a_draft_that_does_not_exist(monkeypatch, capsys):
    assert gpu.main(["rounds", "--drafts", "int4,int5"]) == 2
    assert "no such draft: int5 (one of none, int4" in capsys.readouterr().err


@pytest.fixture
def captioner():
    few = {"models.device": "cpu", "models.dtype": "float32", "generate.max_new_tokens": 8}
    with Captioner.from_profile("ar", overrides=few) as found:
        yield found


@pytest.mark.full
def test_one_row_against_six(captioner, monkeypatch):
    clips = frames.drawn(1)
    records = {name: captioner.caption(name, clip=clip) for name, clip in clips.items()}
    found = folder.disagreement(("embedded", "float32"), captioner, records, clips)
    assert (found.places, found.differ) == (8, 0) and found.apart < 1e-4
    run = captioner.client.setup.target.run

    def wrong(batch):
        passed = run(batch)
        return [replace(one, logits=-one.logits) if len(one.logits) == 6 else one for one in passed]

    monkeypatch.setattr(captioner.client.setup.target, "run", wrong)
    found = folder.disagreement(("embedded", "float32"), captioner, records, clips)
    assert found.differ == 6 and found.apart > 0.5


@pytest.mark.full
def test_all_parts_run_to_the_end_on_a_cpu(tmp_path):
    """As ``make gpu SMOKE=1``: the tests for GPUs and small measurements, in a process of their own."""
    frames.save(tmp_path / "frames.npz", frames.drawn(2))
    command = ["-m", "research.gpu", "--smoke", "--clips", "2", "--frames", str(tmp_path / "frames.npz")]
    without = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    ran = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path), "--minutes", "30"],
        env=without | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    parts = {part: [json.loads(line) for line in (tmp_path / f"{part}.jsonl").open()] for part in gpu.PARTS}
    left = {part: rows[-1]["left_out"] for part, rows in parts.items()}
    assert left == dict.fromkeys(gpu.PARTS, 0)
    outcomes = [row["outcome"] for row in parts["tests"] if row["kind"] == "test"]
    assert outcomes.count("passed") > 30 and "failed" not in outcomes
    assert {row["what"] for row in parts["sizes"] if row["kind"] == "timed"} == {"preprocess", "tower", "prefill"}
    drafts = {row["draft"] for row in parts["rounds"] if row["kind"] == "rounds"}
    assert drafts == {"none", *DRAFTS, "3B"} - {"tiny"}
    assert {row["profile"] for row in parts["folder"] if row["kind"] == "profiled"} == {
        "ar",
        "vanilla-sd",
        "pearl-video",
    }
    assert "| smoke | eager | 2 | 20 |" in (tmp_path / "sizes.md").read_text()
