"""``python -m research.throughput`` and ``python -m research.peers``: what they are asked, and bad input."""

import json
import sys
from contextlib import contextmanager

import pytest

from research.peers import throughput


def test_throughput(command, monkeypatch, tmp_path):
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
    words = ("throughput", str(tmp_path), "--batch", "1,4", "--profiles", "ar", "--peer", "generate-batched")
    ran = command(*words, "--frames", "8", "--threads", "1", "--json", "o.json")
    assert ran.code == 0 and "| ar | 4 | 2.00 (1.50-2.50) | 80 | - | 2 MiB | - | 2/2 | - |\n" in ran.out
    assert "| vllm | left out: no \\| vllm | - | - | - | - | - | - | - |\n" in ran.out
    (what,) = asked
    assert [clip.rpartition("/")[2] for clip in what.clips] == ["a.mp4", "b.mp4"]
    assert (what.batches, what.profiles, what.peers, what.frames) == ([1, 4], ["ar"], ["generate-batched"], 8)
    with open("o.json") as file:
        assert json.load(file)["rows"][0]["batch"] == 4
    assert "--json o.json: exists already" in command(*words, "--json", "o.json").err
    assert command(*words, "--json", "o.json", "--overwrite").code == 0


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("throughput",), "Missing argument"),
        (("throughput", "a.mp4", "--batch", "4,1"), "--batch 4,1: must be increasing numbers"),
        (("throughput", "a.mp4", "--batch", "0"), "--batch 0: must be increasing numbers"),
        (("throughput", "a.mp4", "--profiles", "ar,ar"), "--profiles names ar twice"),
        (("throughput", "a.mp4", "--profiles", "no-such"), "no-such"),
        (("throughput", "a.mp4", "--peer", "vllm"), "--peer vllm: must be one of generate-batched, vllm=PYTHON"),
        (("throughput", "a.mp4", "--peer", "openvino=python"), "must be one of generate-batched, vllm=PYTHON"),
        (("throughput", "a.mp4", "--json", "no/x.json"), "--json no/x.json: there is no folder no"),
        (("throughput", "a.mp4", "--profiles", "ar", "--draft", "x"), "--target: is needed with --draft"),
        (("peers", "--peer", "vllm"), "--peer vllm: must be one of openvino=PYTHON, openvino-int8-cache"),
        (("peers", "--peer", "vllm=no/python"), "--peer vllm=no/python: no/python cannot be run"),
        (("peers", *2 * ("--peer", f"vllm={sys.executable}")), "--peer names vllm twice"),
        (("peers", "--turn", "Why?"), "peers know no dialogues"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint, tmp_path, monkeypatch):
    (tmp_path / "a.mp4").touch()

    @contextmanager
    def contenders(plan, say, left):
        [plan.profile(label) for label in plan.profiles]
        yield {}

    monkeypatch.setattr(throughput, "start_contenders", contenders)
    ran = command(*args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
