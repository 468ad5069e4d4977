"""Metadata for kohya's sd-scripts, which read it by ``json.load`` and look up ``metadata[path]["caption"]``."""

import json

from tests.fake_captioner import TEXT
from vidspec.runs.formats.base import make_format

ONE_LINE = " ".join(TEXT.split())


def metadata(*records):
    return json.loads(make_format("kohya").content(records))


def test_a_caption_for_each_path(recorded):
    records = [recorded("b/a.mp4"), recorded("lost.mp4", error="broken"), recorded("c.png")]
    assert metadata(*records) == {"b/a.mp4": {"caption": ONE_LINE}, "c.png": {"caption": ONE_LINE}}


def test_segments_are_one_caption_and_answers_are_lines(recorded):
    parts = [recorded(segment=number, segments=2, changes={"caption": f"part\n{number}"}) for number in range(2)]
    assert metadata(*parts) == {"a.mp4": {"caption": "part 0 part 1"}}
    answers = [{**part, "question": {"kind": "prompt", "index": number}} for number, part in enumerate(parts)]
    assert metadata(*answers) == {"a.mp4": {"caption": "part 0\npart 1"}}


def test_a_built_in_models_caption_is_marked(recorded):
    assert metadata(recorded(changes={"demo": True})) == {"a.mp4": {"caption": f"[demo] {ONE_LINE}"}}
