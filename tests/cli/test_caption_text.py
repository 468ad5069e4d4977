"""Written captions: templates, one line, stop strings."""

import csv
import io
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jsonschema
import pytest

from tests import fake_captioner
from tests.fake_captioner import TEXT, FakeCaptioner, record
from vidspec.cli import main
from vidspec.errors import GenerationError
from vidspec.events.events import Finished, Round
from vidspec.runs.schema import record_schema

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ("--template", "ohwx, {caption}")
WRITTEN = f"ohwx, {TEXT}"


def test_a_template_is_around_every_caption_and_records_keep_the_text(vidspec):
    ran = vidspec("caption", "good.mp4", "missing.mp4", *TEMPLATE, "--format", "json", "--batch", "1")
    for one in ran.records:
        jsonschema.validate(one, record_schema())
    assert [(one["caption"], one["text"]) for one in ran.records] == [(WRITTEN, TEXT), (None, None)]
    assert vidspec("caption", "good.mp4", *TEMPLATE, "--pair", "embedded").out == f"{WRITTEN}\n"
    (line,) = vidspec("caption", "good.mp4", *TEMPLATE, "--format", "jsonl").records
    assert (line["caption"], line["text"]) == (WRITTEN, TEXT)
    (row,) = csv.DictReader(io.StringIO(vidspec("caption", "good.mp4", *TEMPLATE, "--format", "csv").out))
    assert row["caption"] == WRITTEN
    (plain,) = vidspec("caption", "good.mp4", "--format", "json").records
    assert (plain["caption"], plain["text"]) == (TEXT, None)


def test_the_mark_of_the_built_in_models_is_before_the_template(vidspec, monkeypatch):
    monkeypatch.setattr("tests.fake_captioner.record", partial(record, demo=True))
    assert vidspec("caption", "good.mp4", *TEMPLATE).out == f"[demo] {WRITTEN}\n"


@pytest.mark.parametrize("form", ["txt", "srt", "vtt", "webdataset-txt"])
def test_a_template_is_in_files_too(vidspec, form):
    assert vidspec("caption", "good.mp4", *TEMPLATE, "--pair", "embedded", "--format", form).code == 0
    (written,) = Path().glob("good.*")
    assert WRITTEN.replace("\n", " ") in " ".join(written.read_text().split())


@pytest.mark.parametrize("more", [(), ("--output-dir", "."), ("-o", "good.txt")])
def test_a_caption_file_for_a_trainer_has_one_line(vidspec, more):
    """Also with line breaks in the template; the record keeps them."""
    template = ("--template", " a b\n{caption} ", "--pair", "embedded")
    assert vidspec("caption", "good.mp4", *template, "--format", "txt", *more).code == 0
    assert Path("good.txt").read_text() == "a b A red circle moves left.\n"
    assert vidspec("caption", "good.mp4", *template, "--format", "json").records[0]["caption"] == f" a b\n{TEXT} "


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("ohwx", "lacks {caption}"),
        ("", "lacks {caption}"),
        ("{caption} {stem}", "has no field but {caption}, not {stem}"),
        ("{caption!r}", "has no field but {caption}, not {caption}"),
        ("{caption:>9}", "has no field but {caption}, not {caption}"),
        ("{caption.real}", "lacks {caption}"),
        ("{caption} {caption.real}", "has no field but {caption}, not {caption.real}"),
        ("{caption", "expected '}'"),
        ('{"text": "{caption}"}', "is not a field; write other braces as {{ and }}"),
    ],
)
def test_templates_that_are_none(vidspec, template, said):
    ran = vidspec("caption", "good.mp4", "--template", template)
    assert (ran.code, ran.out) == (2, "") and ran.err.count("\n") == 1 and not FakeCaptioner.made
    assert "--template: " in ran.err and said in ran.err


def test_braces_of_a_templates_own(vidspec):
    ran = vidspec("caption", "good.mp4", "--template", "{{x}} {caption}", "--format", "json")
    assert ran.records[0]["caption"] == "{x} " + TEXT


def clips_captioned():
    paths = [path for made in FakeCaptioner.made for kind, path, *_ in made.calls if kind == "stream"]
    FakeCaptioner.made.clear()
    return paths


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_another_template_renders_what_was_captioned(vidspec, form):
    """A file that is continued holds no caption without the template."""
    for template, clips in (("a {caption}", ["good.mp4"]), ("b {caption}", []), ("a {caption}", [])):
        assert vidspec("caption", "good.mp4", "--template", template, "-o", "out.jsonl", "--format", form).code == 0
        assert clips_captioned() == clips
    first, second = (json.loads(line) for line in Path("out.jsonl").read_text().splitlines())
    assert (first["caption"], second["caption"]) == (f"a {TEXT}", f"b {TEXT}")
    assert first["job"]["settings"] != second["job"]["settings"]
    for one in (first, second):
        del one["job"]["settings"], one["caption"]
    assert first == second
    assert vidspec("caption", "good.mp4", "--template", "{caption}", "-o", "out.jsonl", "--format", form).code == 0
    assert clips_captioned() == [] and json.loads(Path("out.jsonl").read_text().splitlines()[-1])["caption"] == TEXT


@pytest.mark.parametrize("parts", [(), ("--segment", "2s", "--context"), ("--prompt", "Who?", "--prompt", "Why?")])
def test_a_trigger_word_later_needs_no_models(vidspec, parts):
    """The file without it is kept aside; a text of a person stays."""
    clips = ("good.mp4", "other.mp4")
    for clip in clips:
        Path(clip).write_bytes(b"x")
    assert vidspec("caption", *clips, "--format", "txt", *parts).code == 0
    before = Path("good.txt").read_text()
    Path("other.txt").write_text("mine\n")
    clips_captioned()
    dry = vidspec("caption", *clips, "--format", "txt", *parts, *TEMPLATE, "--dry-run")
    assert [line.split("\t")[0] for line in dry.out.splitlines()] == ["done", "kept"]
    assert Path("good.txt").read_text() == before
    ran = vidspec("caption", *clips, "--format", "txt", *parts, *TEMPLATE)
    assert ran.code == 0 and clips_captioned() == []
    assert "ohwx, " not in before and WRITTEN.replace("\n", " ") in Path("good.txt").read_text()
    assert Path("good.txt~").read_text() == before and Path("other.txt").read_text() == "mine\n"
    assert vidspec("caption", *clips, "--format", "txt", *parts, "--template", "{caption}").code == 0
    assert clips_captioned() == [] and Path("good.txt").read_text() == before


@pytest.mark.parametrize("other", [("--limit", "50"), ("--max-new-tokens", "7"), ("--prompt", "Why?")])
def test_what_a_model_would_do_otherwise_is_captioned(vidspec, other):
    assert vidspec("caption", "good.mp4", "-o", "out.jsonl").code == 0
    clips_captioned()
    assert vidspec("caption", "good.mp4", *TEMPLATE, *other, "-o", "out.jsonl").code == 0
    assert clips_captioned() == ["good.mp4"]


def test_captions_of_a_clip_that_has_changed_are_not_rendered(vidspec):
    """Nor is a backup made of a file that would have held them for a moment."""
    Path("good.mp4").write_bytes(b"x")
    assert vidspec("caption", "good.mp4", "-o", "out.jsonl").code == 0
    Path("good.mp4").write_bytes(b"other")
    clips_captioned()
    assert vidspec("caption", "good.mp4", *TEMPLATE, "-o", "out.jsonl").code == 0
    assert clips_captioned() == ["good.mp4"] and not Path("out.jsonl~").exists()


def test_a_failed_clip_stays_failed_with_another_template_unless_it_is_tried_again(vidspec):
    assert vidspec("caption", "missing.mp4", "-o", "out.jsonl").code == 1
    ran = vidspec("caption", "missing.mp4", *TEMPLATE, "-o", "out.jsonl")
    assert ran.code == 1 and "1 of them failed (--retry-failed tries them again)" in ran.err
    assert clips_captioned() == ["missing.mp4"], "by the first command"
    assert vidspec("caption", "missing.mp4", *TEMPLATE, "-o", "out.jsonl", "--retry-failed").code == 1
    assert clips_captioned() == ["missing.mp4"]


def test_a_segment_quotes_the_text_and_not_the_template(vidspec):
    """In the run and in one that goes on after the first segment."""
    command = ("caption", "good.mp4", "--segment", "2s", "--context", *TEMPLATE, "-o", "out.jsonl")
    assert vidspec(*command).code == 0
    quoted = FakeCaptioner.made[-1].asked[-1]["prompt"]
    assert quoted.endswith(f"described like this: {TEXT}")
    first = Path("out.jsonl").read_text().splitlines()[0]
    Path("out.jsonl").write_text(first + "\n")
    assert vidspec(*command).code == 0
    assert [one["prompt"] for one in FakeCaptioner.made[-1].asked] == [quoted]


def test_stop_strings(vidspec):
    assert vidspec("caption", "good.mp4", "--stop", "###", "--stop", "\n\n").code == 0
    assert FakeCaptioner.made[0].client.profile.generate.stop == ("###", "\n\n")
    assert vidspec("caption", "good.mp4", "--set", "generate.stop=a, b").code == 0
    assert FakeCaptioner.made[1].client.profile.generate.stop == ("a, b",)
    ran = vidspec("caption", "good.mp4", "--stop", "")
    assert (ran.code, ran.err.count("\n")) == (2, 1) and "--stop: must have at least 1 character" in ran.err


class Pipe:
    """Standard output that is no terminal, write by write."""

    def __init__(self):
        self.writes = []

    def isatty(self):
        return False

    def write(self, text):
        self.writes.append(text)

    def flush(self):
        pass


class TerminalPipe(Pipe):
    def isatty(self):
        return True


def written(
    monkeypatch, *args, out=Pipe, caption=TEXT, pieces=("A", " red", " circ", "le", "\nmoves", " left."), **changes
):
    """Return the output of ``vidspec caption`` for a text that comes in these pieces."""
    opened, prefilled, *_ = fake_captioner.events("good.mp4")
    rounds = [Round((1,), ("target",), 0, 0, 0.0, texts=(piece,)) for piece in pieces]
    last = Finished(record("good.mp4", caption=caption, **changes))
    monkeypatch.setattr("tests.fake_captioner.events", lambda path: [opened, prefilled, *rounds, last])
    monkeypatch.setattr(sys, "stdout", out())
    assert main(["caption", "good.mp4", *args]) == 0
    return sys.stdout.writes


def test_one_caption_comes_word_by_word(monkeypatch):
    assert written(monkeypatch) == ["A", " red", " circle", "\nmoves", " left.\n"]


def test_what_is_around_words_comes_with_them(monkeypatch):
    writes = written(monkeypatch, "--template", "{{x}}\n {caption} y")
    assert writes == ["{x}\n A", " red", " circle", "\nmoves", " left. y\n"]


def test_a_stop_string_is_not_written(monkeypatch):
    """Nor words that may become one."""
    writes = written(
        monkeypatch, "--stop", "circle moves", caption="A red", pieces=("A", " red", " circle", " moves", "!")
    )
    assert writes == ["A", " red", "\n"]
    writes = written(monkeypatch, "--stop", "red moves", caption="A red dot", pieces=("A", " red", " ", "dot", " is"))
    assert writes == ["A", " red", " dot", "\n"]


def test_scripts_without_blanks(monkeypatch):
    assert written(
        monkeypatch, pieces=("\u7ea2\u5708", "\u79fb\u52a8\u3002"), caption="\u7ea2\u5708\u79fb\u52a8\u3002"
    ) == ["\u7ea2\u5708", "\u79fb\u52a8\u3002", "\n"]


def test_a_text_that_is_another_in_the_end_is_written_whole(monkeypatch):
    assert "".join(written(monkeypatch, caption="Something else.")) == "A red circle\nmoves\nSomething else.\n"


@pytest.mark.parametrize(
    "args", [("--format", "json"), ("--verify",), ("--segment", "2s"), ("--prompt", "a", "--prompt", "b")]
)
def test_what_comes_whole(monkeypatch, args):
    writes = written(monkeypatch, *args, token_ids=[7, 1, 2, 3, 9])
    assert all(one.endswith("\n") for one in writes)


def test_a_panel_on_the_same_terminal_shows_it_alone(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "__stdout__", TerminalPipe())
    assert len(written(monkeypatch, out=TerminalPipe)) == 1
    assert len(written(monkeypatch, "--no-live", out=TerminalPipe)) > 3
    assert len(written(monkeypatch, "--quiet", out=TerminalPipe)) > 3


def test_a_clip_that_fails_amid_its_text_ends_the_line(monkeypatch, capsys):
    monkeypatch.setattr("tests.fake_captioner.events", lambda path: broken())
    assert main(["caption", "good.mp4"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "A red\n" and "out of luck" in captured.err


def broken():
    yield Round((1,), ("target",), 0, 0, 0.0, texts=("A red circ",))
    raise GenerationError("good.mp4: out of luck")


@pytest.mark.full
def test_a_reader_that_has_enough(vidspec):
    """As ``| head -c 10`` is: nothing but the exit code says that the text did not end."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {SLOW}"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096
    ) as process:  # the text is longer than the pipe and what is read ahead of it
        assert process.stdout and process.stderr and process.stdout.read(5) == b"A red"
        process.stdout.close()
        err = process.stderr.read().decode()
    assert process.returncode == 4 and "Traceback" not in err and "Broken" not in err and "error" not in err


SLOW = """
from types import ModuleType
from tests import fake_captioner
from vidspec.events.events import Round
whole = fake_captioner.events
def many(path):
    opened, prefilled, first, *rest = whole(path)
    yield from (opened, prefilled, Round((1,), ("target",), 0, 0, 0.0, texts=("A red ",)))
    for _ in range(5000):
        yield Round((1,), ("target",), 0, 0, 0.0, texts=("circle ",))
    yield from rest
fake_captioner.events = many
module = ModuleType("vidspec.captioner"); module.Captioner = fake_captioner.FakeCaptioner
sys.modules["vidspec.captioner"] = module
import vidspec.runs.inputs, vidspec.runs.executors.local
vidspec.runs.executors.local.ClipReader = fake_captioner.FakeReader
vidspec.runs.inputs.drop_missing = lambda found, named: None
from vidspec.cli import main
sys.exit(main(["caption", "good.mp4"]))
"""


@pytest.mark.parametrize(
    ("args", "warned"),
    [
        (("--segment", "2s", "--format", "txt"), True),
        (("--segment", "2s", "--format", "txt", "--output-dir", "out"), False),
        (("--segment", "2s", "--format", "webdataset-txt"), False),
        (("--format", "txt"), False),
    ],
)
def test_caption_files_with_times_beside_clips_are_warned_of(vidspec, args, warned):
    ran = vidspec("caption", "good.mp4", *args, "--dry-run")
    assert ("note: --format txt with --segment writes a line with times" in ran.err) == warned
