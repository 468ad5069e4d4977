"""How a caption is written: templates, one line, stop strings."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from fake_captioner import TEXT, FakeCaptioner, record

from vidspec.dataset.schema import record_schema

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
    monkeypatch.setattr("fake_captioner.record", partial(record, demo=True))
    assert vidspec("caption", "good.mp4", *TEMPLATE).out == f"[demo] {WRITTEN}\n"


@pytest.mark.parametrize("form", ["txt", "srt", "vtt", "webdataset-txt"])
def test_a_template_is_in_files_too(vidspec, form):
    assert vidspec("caption", "good.mp4", *TEMPLATE, "--pair", "embedded", "--format", form).code == 0
    (written,) = Path().glob("good.*")
    assert WRITTEN.replace("\n", " ") in " ".join(written.read_text().split())


def test_one_line(vidspec):
    ran = vidspec("caption", "good.mp4", "--single-line", "--pair", "embedded")
    assert ran.out == "A red circle moves left.\n"
    ran = vidspec("caption", "good.mp4", "--single-line", "--template", " a\t b\n{caption} ", "--format", "json")
    assert ran.records[0]["caption"] == "a b A red circle moves left." and ran.records[0]["text"] == TEXT


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("ohwx", "lacks {caption}"),
        ("", "lacks {caption}"),
        ("{caption} {stem}", "has no field but {caption}, not {stem}"),
        ("{caption!r}", "has no field but {caption}, not {caption}"),
        ("{caption:>9}", "has no field but {caption}, not {caption}"),
        ("{caption.real}", "has no field but {caption}, not {caption.real}"),
        ("{caption", "expected '}'"),
    ],
)
def test_templates_that_are_none(vidspec, template, said):
    ran = vidspec("caption", "good.mp4", "--template", template)
    assert (ran.code, ran.out) == (2, "") and ran.err.count("\n") == 1 and not FakeCaptioner.made
    assert "--template: " in ran.err and said in ran.err


def test_braces_of_a_templates_own(vidspec):
    ran = vidspec("caption", "good.mp4", "--template", "{{x}} {caption}", "--format", "json")
    assert ran.records[0]["caption"] == "{x} " + TEXT


def test_another_template_is_another_captioning(vidspec):
    """A file that is continued holds no caption without the template."""
    for template, clips in (("a {caption}", 1), ("b {caption}", 1), ("a {caption}", 0)):
        FakeCaptioner.made.clear()
        assert vidspec("caption", "good.mp4", "--template", template, "-o", "out.jsonl").code == 0
        assert len(FakeCaptioner.made) == clips
    found = [json.loads(line)["caption"] for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(found) == [f"a {TEXT}", f"b {TEXT}"]


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
    assert FakeCaptioner.made[0].profile.generate.stop == ("###", "\n\n")
    assert vidspec("caption", "good.mp4", "--set", "generate.stop=a, b").code == 0
    assert FakeCaptioner.made[1].profile.generate.stop == ("a, b",)
    ran = vidspec("caption", "good.mp4", "--stop", "")
    assert (ran.code, ran.err.count("\n")) == (2, 1) and "generate.stop.0: must have at least 1 character" in ran.err
