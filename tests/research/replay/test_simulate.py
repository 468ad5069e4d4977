import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WHATIF = ("simulate", "--tp", "420", "--tq", "47", "--beta", "0.87")


def test_a_table_as_json(command):
    ran = command("simulate", "--table", "parallelvlm-7", "--format", "json")
    assert ran.code == 0 and ran.err == ""
    content = json.loads(ran.out)
    first = content["rows"][0]
    assert {"method", "models", "benchmark", "predicted", "claimed"} <= set(first)
    assert (first["models"], first["benchmark"], first["claimed"]) == ("LLaVA-OV 7B/72B", "VideoDetailCaption", 3.43)
    assert first["predicted"] == pytest.approx(3.5, abs=0.02)
    assert first["deviation"] == pytest.approx(first["predicted"] / 3.43 - 1, abs=1e-3)
    assert content["table"] == "parallelvlm-7" and "Table 7" in content["where"]
    assert any(
        note.startswith("Assumed for ParallelVLM, alpha 0.95; ParallelVLM, alpha 0.99") for note in content["notes"]
    )
    assert 0 < content["mean_absolute_deviation"] < 0.1


def test_a_table_in_a_pipe_has_a_line_per_cell(command):
    ran = command("simulate", "--table", "parallelvlm-3")
    lines = ran.out.splitlines()
    assert lines[0].split("\t")[:5] == ["method", "models", "benchmark", "predicted", "claimed"]
    assert [len(line.split("\t")) for line in lines[:7]] == [8] * 7
    assert lines[2].split("\t")[4] == "", "no claim at alpha 0.5"
    assert any(line.startswith("- Theorem 1 promises") for line in lines)


def test_a_table_as_csv_and_markdown(command):
    rows = list(csv.DictReader(io.StringIO(command("simulate", "--table", "parallelvlm-6", "--format", "csv").out)))
    assert len(rows) == 4 and rows[3]["claimed"] == "2.5"
    out = command("simulate", "--table", "parallelvlm-6", "--format", "markdown").out
    assert "| method | models | benchmark | predicted | claimed |" in out and "- The paper contradicts itself" in out


def test_a_what_if_answers_with_formula_and_simulation(command):
    ran = command(*WHATIF, "--gamma", "auto", "--format", "json")
    rows = {row["method"]: row for row in json.loads(ran.out)["rows"]}
    assert rows["parallel"]["gamma"] == 8
    assert rows["parallel"]["formula"] == pytest.approx(3.35, abs=0.01)
    assert rows["parallel"]["predicted"] == pytest.approx(3.35, rel=0.02)
    assert rows["sequential"]["predicted"] == pytest.approx(rows["sequential"]["formula"], rel=0.02)
    assert "end_to_end" not in rows["parallel"]


def test_a_what_if_draws_both_lanes(command):
    out = command(*WHATIF).out
    lines = out.splitlines()
    assert any(line.startswith("parallel\t8\t3.3") for line in lines)
    heads = [i for i, line in enumerate(lines) if line in ("sequential, gamma 8", "parallel, gamma 8")]
    assert len(heads) == 2
    for i in heads:
        assert lines[i + 1].startswith("target ") and "rows +" in lines[i + 1]
        assert lines[i + 2].startswith("draft  ")
    assert "one column = 23.5 ms" in out


def test_a_what_if_knows_passes_by_rows_prefill_and_self_drafting(command):
    args = ("--tp", "1:6.3,6:10.5,11:12.2", "--tq", "1.2", "--beta", "0.8", "--format", "json")
    rows = json.loads(command("simulate", *args, "--target-prefill", "300", "--draft-prefill", "50").out)["rows"]
    assert rows[0]["end_to_end"] == 1 and 1 < rows[2]["end_to_end"] < rows[2]["predicted"]
    args = ("--tp", "78.3", "--tq", "46.6", "--beta", "0.93", "--format", "json")
    gammas = [json.loads(command("simulate", *args, *more).out)["rows"][2]["gamma"] for more in ((), ("--self",))]
    assert gammas == [1, 2]


def test_many_clips_at_once(command):
    args = ("simulate", "--batch", "1,32", "--device", "h100", "--visual", "2000,25000", "--format")
    content = json.loads(command(*args, "json").out)
    rows = content["rows"]
    assert [(row["pair"], row["visual"], row["batch"]) for row in rows[:4]] == [
        ("7b+0.5b", visual, batch) for visual in (2000, 25000) for batch in (1, 32)
    ]
    assert len(rows) == 12 and {row["device"] for row in rows} == {"H100"}
    assert rows[0]["plain_tokens_per_s"] < rows[1]["plain_tokens_per_s"]
    assert rows[0]["pruned_gamma"] > 0 and rows[0]["pruned_gain"] > 1
    assert rows[3]["unpruned_gain"] is None and rows[3]["pruned_gain"] > 1
    said = " ".join(content["notes"])
    assert all(
        part in said for part in ("3.35 TB/s", "reach 65%", "50% of", "256 tokens", "probability 0.8", "10% of the")
    )
    written = list(csv.DictReader(io.StringIO(command(*args, "csv").out)))
    assert [float(row["plain_clips_per_s"]) for row in written[:2]] == [row["plain_clips_per_s"] for row in rows[:2]]
    assert written[3]["unpruned_gain"] == ""


def test_many_clips_at_once_to_read(command):
    lines = command("simulate", "--batch", "4,32", "--device", "h100", "--pair", "32b+7b").out.splitlines()
    assert lines[0].split("\t")[:6] == ["device", "pair", "visual", "batch", "plain tokens per s", "unpruned gain"]
    cells = lines[1].split("\t")
    assert cells[:6] == ["H100", "32b+7b", "2000", "4", "131", "does not fit"] and cells[-2:] == ["87%", "108%"]
    assert lines[2].split("\t")[4] == "does not fit"
    assert lines[-1].startswith("- Memory is weights and KV cache")


def test_what_is_assumed_for_many_clips_can_be_said(command):
    args = ("--beta", "0.9", "--gamma", "3", "--tokens", "512", "--kept", "0.2", "--weights", "float8")
    args = (*args, "--decode-use", "1", "--prefill-use", "0.6", "--device", "h200", "--pair", "32b+7b")
    content = json.loads(command("simulate", "--batch", "2", "--visual", "8000", *args, "--format", "json").out)
    (row,), notes = content["rows"], " ".join(content["notes"])
    assert row["unpruned_gamma"] == row["pruned_gamma"] == 3
    said = ("probability 0.9", "gamma 3", "of 512 tokens", "keeps 20%", "in float8", "reach 100%", "prompts 60%")
    assert all(part in notes for part in said)
    entry, context = 2 * 64 * 8 * 128 * 2, 8000 + 64 + 256
    assert row["plain_tokens_per_s"] == pytest.approx(2 * 4.8e12 / (31.98e9 + 2 * context * entry), rel=0.01)


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("--table", "parallelvlm-2"), "unknown table 'parallelvlm-2'; did you mean parallelvlm-"),
        (("--table", "hippo-1", "--tp", "3"), "--table brings its own figures; leave out --tp"),
        ((), "missing --tp, --tq, --beta (or --table with a paper's table, or --batch)"),
        (("--tp", "420"), "missing --tq, --beta"),
        (("--tp", "x", "--tq", "1", "--beta", "0.5"), "--tp x: could not convert"),
        (("--tp", "1:3,1:4", "--tq", "1", "--beta", "0.5"), "--tp 1:3,1:4: give every number of rows once"),
        (("--tp", "1:3,:", "--tq", "1", "--beta", "0.5"), "--tp 1:3,:"),
        (("--tp", "nan", "--tq", "1", "--beta", "0.5"), "times positive"),
        (("--tp", "3", "--tq", "0", "--beta", "0.5"), "--tq must be positive, not 0"),
        (("--tp", "3", "--tq", "nan", "--beta", "0.5"), "--tq must be positive, not nan"),
        (("--tp", "3", "--tq", "1", "--beta", "1.5"), "--beta must lie between 0 and 1, not 1.5"),
        (("--tp", "3", "--tq", "1", "--beta", "nan"), "--beta must lie between 0 and 1"),
        (("--tp", "3", "--tq", "1", "--beta", "0.5", "--gamma", "0"), "--gamma must be auto or a number from 1 to 32"),
        (("--tp", "3", "--tq", "1", "--beta", "0.5", "--gamma", "many"), "--gamma must be auto"),
        (("--tp", "3", "--tq", "1", "--beta", "0.5", "--tokens", "1"), "--tokens must lie between 2"),
        (("--tp", "3", "--tq", "1", "--beta", "0.5", "--latency", "-1"), "--latency must be zero or more"),
        (("--batch", "4", "--tp", "3", "--self"), "--batch brings its own times; leave out --tp, --self"),
        (("--table", "hippo-1", "--batch", "4"), "--batch brings its own times; leave out --table"),
        (("--table", "hippo-1", "--kept", "0.1"), "--kept without --batch says nothing (--batch 1,8,32"),
        (("--batch", "0"), "--batch 0: must be numbers from 1 to 4096 (such as --batch 1,8,32)"),
        (("--batch", "1,,8"), "--batch 1,,8: must be numbers"),
        (("--batch", "9" * 5000), "must be numbers from 1 to 4096"),
        (("--batch", "4", "--visual", "many"), "--visual many: must be numbers from 1 to"),
        (("--batch", "4", "--device", "a100"), "--device does not know 'a100' (one of 4090, h100, h200)"),
        (("--batch", "4", "--pair", "7b+3b,72b"), "--pair does not know '72b' (one of 7b+0.5b, 7b+3b, 32b+7b)"),
        (("--batch", "4", "--weights", "int4,float8"), "--weights does not know int4,float8 (one of bfloat16"),
        (("--batch", "4", "--kept", "0"), "--kept must be more than 0 and at most 1, not 0"),
        (("--batch", "4", "--decode-use", "nan"), "--decode-use must be more than 0 and at most 1, not nan"),
        (("--batch", "4", "--beta", "2"), "--beta must lie between 0 and 1, not 2"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("simulate", *args)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1


def test_it_needs_no_torch():
    code = (
        "import sys; from research.simulate import main; main(['--table', 'parallelvlm-7']);"
        "main(['--batch', '4']);"
        "print('LOADED', [name for name in ('torch', 'transformers', 'av') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines()[-1] == "LOADED []", ran.stderr
