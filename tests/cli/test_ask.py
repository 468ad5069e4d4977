"""``vidspec ask`` and ``vidspec caption --turn``, with a captioner without models."""

import io
import json
import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner, events, record
from tests.tiers import full_but
from vidspec.cli.session import DialogueSession
from vidspec.config.profiles import load
from vidspec.display.pages.report import ReportFile
from vidspec.events.events import Round
from vidspec.runs.reader import ClipReader
from vidspec.signals import Terminated

SAID = " ".join(TEXT.split())
TURNS = ("What is there?", "What moves?")


@pytest.fixture
def piped(vidspec, monkeypatch):
    for name in ("good.mp4", "missing.mp4"):
        Path(name).touch()

    def ask(text, *args):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return vidspec("ask", *args)

    return ask


@pytest.fixture
def session():
    fake = FakeCaptioner()
    return DialogueSession("good.mp4", fake.dialogue("good.mp4"), io.StringIO(), "text", "vanilla-sd")


def said(*lines):
    """Feed typed lines; exceptions are raised, and the end of the lines is Ctrl-D."""
    left = iter(lines)

    def line():
        one = next(left, EOFError())
        if isinstance(one, BaseException):
            raise one
        return one

    return line


@pytest.mark.parametrize("args", [(), ("--pair", "embedded")])
def test_answers_of_built_in_models_that_nobody_named_are_marked(piped, monkeypatch, args):
    monkeypatch.setattr("tests.fake_captioner.record", partial(record, demo=True))
    assert piped("What moves?\n", "good.mp4", *args).out == f"{'' if args else '[demo] '}{SAID}\n"
    told = json.loads(piped("What moves?\n", "good.mp4", "--format", "jsonl", *args).out)
    assert told["caption"] == TEXT and told["demo"] is True


def test_an_answer_on_a_terminal_is_marked_and_broken_between_words(session, monkeypatch, capsys):
    opened, *rest = events("good.mp4")
    monkeypatch.setattr(FakeCaptioner, "stream", lambda self, path, **_: iter([replace(opened, demo=True), *rest]))
    monkeypatch.setenv("COLUMNS", "14")
    assert session.terminal(said("What moves?")) == 0
    assert session.out.getvalue() == "[demo] A red\ncircle\nmoves left.\n\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_is_told_that_a_question_is_read(session, monkeypatch, quiet):
    err = io.StringIO()
    err.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", err)
    assert session.terminal(said("What moves?", "What else?"), quiet=quiet) == 0
    stages = list(dict.fromkeys(re.findall(r"(?:vision and )?prefill \.\.\.", err.getvalue())))
    assert stages == ([] if quiet else ["vision and prefill ...", "prefill ..."])
    assert "prefill" not in session.out.getvalue()


def test_a_record_for_each_turn(vidspec):
    ran = vidspec("caption", "good.mp4", "--turn", TURNS[0], "--turn", TURNS[1], "--format", "jsonl")
    assert ran.code == 0 and [one["prompt"] for one in ran.records] == list(TURNS)
    assert len({one["job"]["settings"] for one in ran.records}) == 1


def test_turns_are_resumed(vidspec):
    line = ("caption", "good.mp4", "--format", "jsonl", "-o", "talk.jsonl")
    turns = [word for turn in TURNS for word in ("--turn", turn)]
    assert vidspec(*line, *turns).code == 0
    with open("talk.jsonl") as file:
        first, second = file.read().splitlines()
    with open("talk.jsonl", "w") as file:
        file.write(first + "\n")
    made = len(FakeCaptioner.made)
    assert vidspec(*line, *turns).code == 0
    with open("talk.jsonl") as file:
        assert file.read().splitlines() == [first, second]
    assert [one["prompt"] for one in FakeCaptioner.made[made].asked] == [TURNS[1]]
    assert vidspec(*line, *turns).code == 0 and len(FakeCaptioner.made) == made + 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--prompt", "x"), "--prompt and --turn exclude each other"),
        (("--segment", "2s"), "--turn and --segment exclude each other"),
        (("--turn", " "), "--turn: is empty"),
        (("--format", "srt"), "--format srt: holds one caption per clip, not several answers"),
    ],
)
def test_what_makes_no_sense(vidspec, more, why):
    ran = vidspec("caption", "good.mp4", "--turn", "y", *more)
    assert ran.code == 2 and why in ran.err and len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--prompt", "y"), "given twice"),
        (("--prompt", " "), "--prompt: is empty"),
        (("--prompt", "z", "--segment", "2s"), "several --prompt and --segment exclude each other"),
        (("--prompt", "z", "--turn", "x"), "--prompt and --turn exclude each other"),
        (
            ("--prompt", "z", "--format", "vtt"),
            "--format vtt: holds one caption per clip, not several answers",
        ),
    ],
)
def test_prompts_that_make_no_sense(vidspec, more, why):
    ran = vidspec("caption", "good.mp4", "--prompt", "y", *more)
    assert ran.code == 2 and why in ran.err and len(ran.err.splitlines()) == 1


def test_several_prompts(vidspec):
    ran = vidspec("caption", "good.mp4", *(word for text in TURNS for word in ("--prompt", text)), "--format", "jsonl")
    assert ran.code == 0 and [one["prompt"] for one in ran.records] == list(TURNS)
    one = vidspec("caption", "good.mp4", "--prompt", TURNS[0], "--format", "jsonl").records[0]
    assert one["prompt"] == TURNS[0] and "segment" not in one["job"]
    assert one["job"]["settings"] != ran.records[0]["job"]["settings"]


def test_prompts_are_resumed(vidspec):
    line = ("caption", "good.mp4", "--format", "csv", "-o", "all.csv")
    asked = [word for text in TURNS for word in ("--prompt", text)]
    assert vidspec(*line, *asked).code == 0
    made = len(FakeCaptioner.made)
    assert vidspec(*line, *asked).code == 0 and len(FakeCaptioner.made) == made
    assert vidspec(*line, *asked, "--prompt", "And then?").code == 0
    assert [one["prompt"] for one in FakeCaptioner.made[made].asked] == [*TURNS, "And then?"]


def test_a_line_for_each_line(piped):
    for form, wanted in (("text", SAID), ("jsonl", '"caption"')):
        ran = piped("What is there?\n\nWhat moves?\n  \n", "good.mp4", "--format", form)
        first, second, third, fourth = ran.out.splitlines()  # line N answers line N
        assert ran.code == 0 and wanted in first and wanted in third and (second, fourth) == ("", "")


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_records_in_a_pipe(piped, form):
    ran = piped("\n".join(TURNS), "good.mp4", "--format", form)
    assert ran.code == 0 and [one["question"]["index"] for one in ran.records] == [0, 1]
    assert [one["question"]["prompt"] for one in ran.records] == list(TURNS)
    assert ("timings" in ran.records[0]) == (form == "json")


def test_a_question_without_end_is_an_error(piped):
    ran = piped("x" * (1 << 20) + "x\nTwo?\n", "good.mp4")
    assert (ran.code, ran.out) == (2, "") and ran.err.splitlines()[-1] == "error: a question is longer than 1 MiB"


def test_a_question_that_fails_gets_its_line(piped):
    ran = piped("One?\nTwo?\n", "missing.mp4", "--format", "jsonl")
    assert ran.code == 1 and [one["error"]["kind"] for one in ran.records] == ["missing", "missing"]
    assert ran.err.count("error: ") == 2 and "Traceback" not in ran.err


def test_on_a_terminal(session, capsys):
    assert session.terminal(said("What is there?", "/again", "  ", "What moves?")) == 0
    assert session.out.getvalue() == 3 * f"{TEXT}\n" + "\n"
    assert [one.question for one in session.dialogue.exchanges] == ["What is there?", "What moves?"]
    assert capsys.readouterr().err.count("5 tokens") == 3


def test_commands_of_a_terminal(session, capsys, tmp_path):
    text, records = tmp_path / "talk.txt", tmp_path / "talk.jsonl"
    lines = ("/again", "/save", f"/save {text}", "/what", "Hm?", f"/save {text}", f"/save {records}", f"/save {text}")
    assert session.terminal(said(*lines, "/save no/such/talk.txt", "/quit", "never asked"), quiet=True) == 0
    assert text.read_text() == f"? Hm?\n{TEXT}\n\n"
    assert json.loads(records.read_text())["question"]["prompt"] == "Hm?"
    errors = capsys.readouterr().err
    assert f"saved 1 question with answers to {text}, as text\n" in errors
    assert f"saved 1 question with answers to {records}, as records\n" in errors
    for why in (
        "nothing was asked",
        "needs the name",
        "nothing to save",
        "/again repeats",
        "exists already",
        "no folder",
    ):
        assert why in errors


@pytest.mark.parametrize(("typed", "meant"), [("/agian", "/again"), ("/sav x", "/save"), ("/qiut", "/quit")])
def test_a_mistyped_command_is_suggested(session, capsys, typed, meant):
    session.terminal(said(typed, "/quit"), quiet=True)
    assert capsys.readouterr().err == f"there is no {typed.split()[0]}; did you mean {meant}?\n"


def test_ctrl_c_at_the_prompt_only_ends_the_line(session):
    assert session.terminal(said(KeyboardInterrupt(), "Hm?"), quiet=True) == 0
    assert session.out.getvalue() == f"\n{TEXT}\n\n"
    with pytest.raises(Terminated):
        session.terminal(said(Terminated()))


@pytest.fixture
def pressed(monkeypatch):
    """Ctrl-C is pressed during the answer to the question "Stop?"."""
    whole = FakeCaptioner.stream

    def stream(self, path, **asked):
        for event in whole(self, path, **asked):
            if isinstance(event, Round) and asked["prompt"] == "Stop?":
                os.kill(os.getpid(), signal.SIGINT)
            yield event

    monkeypatch.setattr(FakeCaptioner, "stream", stream)


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_stops_an_answer_and_not_the_session(session):
    before = signal.getsignal(signal.SIGINT)
    assert session.terminal(said("Stop?", "Hm?"), quiet=True) == 0
    assert session.out.getvalue() == f"A [stopped]\n{TEXT}\n\n"
    assert [one.question for one in session.dialogue.exchanges] == ["Hm?"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("text, shown", [("\n".join(TURNS), TURNS), (TURNS[0], TURNS[:1])])
def test_a_page_of_a_talk(piped, text, shown):
    assert piped(text, "good.mp4", "--report", "talk.html").code == 0
    with open("talk.html") as file:
        page = file.read()
    assert all(f"good.mp4: {one}" in page for one in shown) and 'class="t ' in page


def test_a_page_shows_failed_questions(piped):
    assert piped("One?\nTwo?\n", "missing.mp4", "--report", "talk.html").code == 1
    with open("talk.html") as file:
        assert "decode_video/missing" in file.read()


@pytest.mark.usefixtures("pressed")
def test_a_page_does_not_show_a_question_that_was_given_up(session, tmp_path):
    session.page = ReportFile(tmp_path / "page.html", load("vanilla-sd"))
    assert session.terminal(said("Stop?", "What moves?"), quiet=True) == 0
    session.page.write()
    page = (tmp_path / "page.html").read_text()
    assert "What moves?" in page and "Stop?" not in page


def test_a_clip_that_does_not_exist_is_refused_as_caption_refuses_it(piped):
    ran = piped("One?\n", "nope.mp4")
    assert (ran.code, ran.err) == (2, "error: nope.mp4: there is no such file (check the path)\n")
    assert not FakeCaptioner.made


@pytest.mark.parametrize("content", full_but([b"not a video"], [b"", b"not a video"]), ids=str)
def test_a_clip_that_cannot_be_read_is_told_before_anything_is_loaded(piped, monkeypatch, content):
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", ClipReader)
    with open("clip.mp4", "wb") as file:
        file.write(content)
    ran = piped("One?\n", "clip.mp4")
    assert ran.code == 1 and "error: clip.mp4: " in ran.err and "Traceback" not in ran.err
    assert not FakeCaptioner.made


def test_a_page_that_cannot_be_written_is_told_before_anything_is_loaded(piped):
    made = len(FakeCaptioner.made)
    ran = piped("One?", "good.mp4", "--report", "talk.txt")
    assert (ran.code, ran.err) == (2, "error: --report talk.txt: must end in .html\n")
    assert len(FakeCaptioner.made) == made
