import json

import pytest

# Before the captioner gives way to one without models.
import vidspec.bench.compare
import vidspec.bench.measure  # noqa: F401


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
    for args in ((), ("run",), ("--repeats", "2"), ("clip.mp4", "--pair", "embedded-qwen")):
        assert vidspec("bench", *args).err == "error: enough\n"
    assert [one.repeats for one in asked] == [3, 3, 2, 3]
    assert asked[0].profiles == ["ar", "vanilla-sd", "sd-rand-chain", "sd-uniform-chain", "sd-attention-chain"]
    assert str(asked[3].clips[0]) == "clip.mp4" and asked[3].source.pair == "embedded-qwen"


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
        (("--peer", "vllm=python"), "(see `python -m research.peers`)"),
        (("clip.mp4", "--no-peers"), "(see `vidspec bench without it`)"),
        (("throughput", "a.mp4"), "(see `python -m research.throughput`)"),
    ],
)
def test_bad_input_ends_in_one_line(vidspec, args, complaint, monkeypatch):
    ran = vidspec("bench", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
