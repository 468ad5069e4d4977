import json
from pathlib import Path

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


@pytest.fixture
def measured(monkeypatch):
    """Benches that were asked for; each gives three rows."""
    from tests.display.pages.clips_of_reports import MEASURED
    from vidspec.bench.measure import BenchResult

    asked = []

    def measure(bench, say):
        asked.append(bench)
        return BenchResult(MEASURED, "the table", {}, {}, {"x_y": "no head"})

    monkeypatch.setattr("vidspec.bench.measure.measure", measure)
    return asked


def test_keys_of_all_profiles(vidspec, measured):
    args = (
        "--frames",
        "8",
        "--max-new-tokens",
        "16",
        "--seed",
        "3",
        "--prompt",
        "What moves?",
        "--set",
        "draft.gamma=4",
    )
    assert vidspec("bench", *args).code == 0
    assert measured[0].overrides == {
        "video.frames": 8,
        "generate.max_new_tokens": 16,
        "generate.seed": 3,
        "generate.prompt": "What moves?",
        "draft.gamma": "4",
    }
    assert vidspec("bench").code == 0 and measured[1].overrides == {}


def test_figures_as_csv_and_latex(vidspec, measured, tmp_path):
    files = ("--csv", "table.csv", "--latex", "table.tex")
    for _ in range(2):  # its own files are replaced
        assert vidspec("bench", *files).code == 0
    assert Path("table.csv").read_text().startswith("method,same_tokens,clips,tau,")
    latex = Path("table.tex").read_text().splitlines()
    assert latex[:2] == [
        "% vidspec bench: vidspec bench run --csv table.csv --latex table.tex",
        "% left out: x_y: no head",
    ]
    Path("mine.csv").write_text("a,b")
    assert "is there already, and is no CSV" in vidspec("bench", "--csv", "mine.csv").err
    assert "is the same file as --csv" in vidspec("bench", "--csv", "x", "--latex", "x").err
    assert len(measured) == 2


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
        (("--frames", "0"), "--frames"),
        (("--set", "video.frames"), "--set video.frames: must be KEY=VALUE"),
        (("--frames", "2", "--set", "video.frames=3"), "video.frames is set twice"),
        (("--set", "models.pair=embedded"), "--set models.pair: all profiles share the models"),
        (("--prompt", " "), "--prompt: is empty"),
        (("--prompt", "a", "--turn", "b"), "--prompt and --turn exclude each other"),
        (("no.mp4",), "no.mp4: there is no such file"),
        (("--profiles", ","), "--profiles names none"),
        (("--profiles", "ar,fly+theta"), "fly+theta: theta is not KEY=VALUE"),
        (("--draft", "x", "--pair", "embedded"), "--draft needs --target"),
    ],
)
def test_bad_input_ends_in_one_line(vidspec, args, complaint, monkeypatch):
    ran = vidspec("bench", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
