import json
import sys

import pytest

# Before the captioner gives way to one without models.
import vidspec.bench.compare
import vidspec.bench.measure
import vidspec.bench.throughput  # noqa: F401


@pytest.fixture
def results(tmp_path):
    def write(name, seconds):
        timings = {"time_to_first_token": 1.0, "decode": seconds, "end_to_end": 1 + seconds}
        records = [
            {
                "contender": "ar",
                "repeat": 0,
                "path": f"{clip}.mp4",
                "caption": "x",
                "token_ids": [1, 2],
                "timings": timings,
            }
            for clip in range(9)
        ]
        (tmp_path / name).write_text(json.dumps({"machine": {}, "records": records}))
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("args, code", [(("--help",), 0), (("run", "--help"), 0), (("compare", "--help"), 0)])
def test_help(vidspec, args, code):
    ran = vidspec("bench", *args)
    assert ran.code == code and "Usage: vidspec bench" in ran.out


def test_without_a_command_it_runs(vidspec, monkeypatch):
    asked = []

    def measure(bench, say):
        from vidspec.errors import UsageError

        asked.append(bench)
        raise UsageError("enough")

    monkeypatch.setattr("vidspec.bench.measure.measure", measure)
    for args in ((), ("run",), ("--repeats", "2"), ("clip.mp4", "--no-peers", "--pair", "embedded-qwen")):
        assert vidspec("bench", *args).err == "error: enough\n"
    assert [one.repeats for one in asked] == [3, 3, 2, 3]
    assert (
        asked[0].profiles == ["ar", "vanilla-sd", "sd-rand-chain", "sd-uniform-chain", "sd-attention-chain"]
        and asked[0].peers
    )
    assert str(asked[3].clips[0]) == "clip.mp4" and not asked[3].peers and asked[3].source.pair == "embedded-qwen"


def test_compare(vidspec, results):
    before, after = results("a.json", 1.0), results("b.json", 2.0)
    ran = vidspec("bench", "compare", before, after, "--format", "json")
    rows = {row["what"]: row for row in json.loads(ran.out)["rows"]}
    assert ran.code == 0 and rows["decode"]["ratio"] == pytest.approx(2) and rows["decode"]["verdict"] == "slower"
    assert rows["time to first token"]["verdict"] == "no change"
    assert "| ar | decode | time | 2.000 | 2.000-2.000 | 9 | slower |" in vidspec("bench", "compare", before, after).out


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("compare", "no.json", "b.json"), "no.json: cannot be read: No such file"),
        (("compare", "a.json", "b.json", "--level", "1"), "--level must lie between 0.5 and 1, not 1"),
        (("compare", "a.json"), "Missing argument"),
        (("--repeats", "0"), "--repeats"),
        (("no.mp4",), "no.mp4: there is no such file"),
        (("--profiles", ","), "--profiles names none"),
        (("--profiles", "ar,fly+theta"), "fly+theta: theta is not KEY=VALUE"),
        (("--draft", "x", "--pair", "embedded"), "--draft needs --target"),
        (("throughput",), "Missing argument"),
        (("throughput", "a.mp4", "--batch", "4,1"), "--batch 4,1: must be increasing numbers"),
        (("throughput", "a.mp4", "--batch", "0"), "--batch 0: must be increasing numbers"),
        (("throughput", "a.mp4", "--profile", "ar", "--profile", "ar"), "--profile names ar twice"),
        (("throughput", "a.mp4", "--profile", "no-such"), "no-such"),
        (("throughput", "a.mp4", "--peer", "vllm"), "--peer vllm: must be one of generate-batched, vllm=PYTHON"),
        (("throughput", "a.mp4", "--peer", "openvino=python"), "must be one of generate-batched, vllm=PYTHON"),
        (("--peer", "vllm"), "--peer vllm: must be one of openvino=PYTHON, vllm=PYTHON, vllm-draft"),
        (("--peer", "vllm=no/python"), "--peer vllm=no/python: no/python cannot be run"),
        (("--peer", f"vllm={sys.executable}", "--peer", f"vllm={sys.executable}"), "--peer names vllm twice"),
        (("throughput", "a.mp4", "--output", "no/x.json"), "--output no/x.json: there is no folder no"),
        (("throughput", "a.mp4", "--profile", "ar", "--draft", "x"), "--draft needs --target"),
    ],
)
def test_bad_input_ends_in_one_line(vidspec, args, complaint, monkeypatch):
    ran = vidspec("bench", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1


def test_throughput(vidspec, monkeypatch, tmp_path):
    from contextlib import contextmanager

    from vidspec.bench import throughput

    asked = []

    @contextmanager
    def contenders(what, say, left):
        asked.append(what)
        left["vllm"] = "no | vllm"
        yield {}

    def measure(what, workers, say, keep, left):
        row = throughput.ThroughputRow("ar", 4, 2.0, (1.5, 2.5), 80.0, None, 2**21, None, 2, None, False, 2, 0)
        outcome = throughput.ThroughputResult([row], {}, left)
        keep(outcome)
        return outcome

    monkeypatch.setattr(throughput, "start_contenders", contenders)
    monkeypatch.setattr(throughput, "measure", measure)
    for name in ("b.mp4", "a.mp4", "notes.txt"):
        (tmp_path / name).touch()
    command = ("bench", "throughput", str(tmp_path), "--batch", "1,4", "--profile", "ar", "--peer", "generate-batched")
    ran = vidspec(*command, "--frames", "8", "--threads", "1", "--output", "o.json")
    assert ran.code == 0 and "| ar | 4 | 2.00 (1.50-2.50) | 80 | - | 2 MiB | - | 2/2 | - |\n" in ran.out
    assert "| vllm | left out: no \\| vllm | - | - | - | - | - | - | - |\n" in ran.out
    (what,) = asked
    assert [clip.rpartition("/")[2] for clip in what.clips] == ["a.mp4", "b.mp4"]
    assert (what.batches, what.profiles, what.peers, what.frames) == ([1, 4], ["ar"], ["generate-batched"], 8)
    with open("o.json") as file:
        assert json.load(file)["rows"][0]["batch"] == 4
    assert "--output o.json: exists already" in vidspec(*command, "--output", "o.json").err
    assert vidspec(*command, "--output", "o.json", "--overwrite").code == 0
