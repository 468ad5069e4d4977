"""Names and prompts of others on the command line: shown, never obeyed, never more than a line."""

import json
from pathlib import Path

import pytest

ESCAPES = "\x1b]0;owned\x07\x9b31m\u202e"
NAME = f"a{ESCAPES}\nb\tgood.mp4"
SHOWN = "a\\x1b]0;owned\\x07\\x9b31m\\u202e\\nb\\tgood.mp4"


def harmless(ran):
    return not any(one in ran.out + ran.err for one in "\x1b\x07\x9b\u202e")


def test_names_are_shown_and_not_obeyed(vidspec):
    ran = vidspec("caption", f"{NAME}/good.mp4", f"{NAME}/missing.mp4", f"{NAME}/bug.mp4")
    assert ran.code == 1 and harmless(ran)
    assert ran.out == f"{SHOWN}/good.mp4\tA red circle moves left.\n"
    assert f"error: {SHOWN}/missing.mp4: there is no such file".replace("\\n", " ").replace("\\t", " ") in ran.err
    assert "TypeError: broken" in ran.err


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_json_keeps_names_and_prompts_exactly(vidspec, form):
    Path("list.jsonl").write_text(json.dumps({"path": NAME + "/good.mp4", "prompt": ESCAPES + "?"}) + "\n")
    ran = vidspec("caption", "--manifest", "list.jsonl", "--format", form)
    assert ran.code == 0 and harmless(ran)
    (one,) = ran.records
    assert one["path"].endswith(NAME + "/good.mp4") and ESCAPES + "?" in (one.get("prompt"), one["job"].get("prompt"))
    assert vidspec("caption", "--manifest", "list.jsonl", "--format", form, "-o", f"out.{form}").code == 0
    assert Path(f"out.{form}").read_text(encoding="utf-8") == ran.out


@pytest.mark.parametrize(
    "args",
    [
        ("caption", "x", "-p", ESCAPES),
        ("caption", "x", "--set", f"{ESCAPES}=1"),
        ("caption", "x", "--set", f"models.device={ESCAPES}"),
        ("caption", "x", "--frames", ESCAPES),
        ("caption", "x", f"--{ESCAPES}"),
        ("caption", "--manifest", f"{ESCAPES}.jsonl"),
        ("caption", "x", "-p", ESCAPES, "--debug"),
        ("merge", ESCAPES),
        (ESCAPES,),
    ],
)
def test_complaints_are_harmless(vidspec, args):
    ran = vidspec(*args)
    assert ran.code == 2 and ran.out == "" and harmless(ran)
    assert "--debug" in args or ran.err.count("\n") == 1


def test_rows_of_csv_are_guarded(vidspec):
    ran = vidspec("caption", "=1/good.mp4", "--format", "csv")
    assert ran.out.splitlines()[1].startswith("'=1/good.mp4,")
    assert vidspec("caption", "=1/good.mp4", "--format", "csv", "-o", "out.csv").code == 0
    assert Path("out.csv").read_text() == ran.out.replace("\r", "")
    vidspec("caption", "=1/good.mp4", "--format", "jsonl", "-o", "out.jsonl")
    assert vidspec("merge", "out.jsonl", "--format", "csv").out.splitlines()[1].startswith("'=1/good.mp4,")


def test_events_are_harmless(vidspec):
    text = vidspec("caption", NAME + "/good.mp4", "--progress", "json").err
    assert "\x9b" not in text and "\u202e" not in text
    assert NAME + "/good.mp4" in [json.loads(line).get("path") for line in text.splitlines()]
