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


def test_a_table_to_read_has_a_row_for_each_cell_and_notes(command):
    lines = command("simulate", "--table", "parallelvlm-3").out.splitlines()
    assert lines[2] == "| method | models | benchmark | predicted | claimed | deviation | formula | assumed |"
    rows = [line.split("|") for line in lines if line.startswith("| ")][1:]
    assert len(rows) > 5 and rows[1][5].strip() == "", "no claim at alpha 0.5"
    assert any(line.startswith("- Theorem 1 promises") for line in lines)


def test_a_what_if_answers_with_formula_and_simulation(command):
    ran = command(*WHATIF, "--gamma", "auto", "--format", "json")
    rows = {row["method"]: row for row in json.loads(ran.out)["rows"]}
    assert rows["parallel"]["gamma"] == 8
    assert rows["parallel"]["formula"] == pytest.approx(3.35, abs=0.01)
    assert rows["parallel"]["predicted"] == pytest.approx(3.35, rel=0.02)
    assert rows["sequential"]["predicted"] == pytest.approx(rows["sequential"]["formula"], rel=0.02)
    assert "end_to_end" not in rows["parallel"]


def test_a_what_if_knows_passes_by_rows_prefill_and_self_drafting(command):
    args = ("--tp", "1:6.3,6:10.5,11:12.2", "--tq", "1.2", "--beta", "0.8", "--format", "json")
    rows = json.loads(command("simulate", *args, "--target-prefill", "300", "--draft-prefill", "50").out)["rows"]
    assert rows[0]["end_to_end"] == 1 and 1 < rows[2]["end_to_end"] < rows[2]["predicted"]
    args = ("--tp", "78.3", "--tq", "46.6", "--beta", "0.93", "--format", "json")
    gammas = [json.loads(command("simulate", *args, *more).out)["rows"][2]["gamma"] for more in ((), ("--self",))]
    assert gammas == [1, 2]


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("--table", "parallelvlm-2"), "unknown table 'parallelvlm-2'; did you mean parallelvlm-"),
        (("--table", "hippo-1", "--tp", "3"), "--table brings its own figures; leave out --tp"),
        ((), "missing --tp, --tq, --beta (or --table with a paper's table, or --cards)"),
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
        (("--tp", "3", "--tq", "1", "--beta", "0.5", "--tokens", "1"), "Invalid value for '--tokens'"),
        (("--tp", "3", "--tq", "1", "--beta", "0.5", "--latency", "-1"), "--latency must be zero or more"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("simulate", *args)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1


def test_it_needs_no_torch():
    code = (
        "import sys; from research.simulate import main; main(['--table', 'parallelvlm-7']);"
        "main(['--tp', '4', '--tq', '1', '--beta', '0.8']);"
        "print('LOADED', [name for name in ('torch', 'transformers', 'av') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines()[-1] == "LOADED []", ran.stderr
