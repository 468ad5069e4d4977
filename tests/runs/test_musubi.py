"""Lines for musubi-tuner, which reads ``video_path`` (of pictures ``image_path``) and ``caption`` of each."""

import json

from tests.fake_captioner import TEXT
from vidspec.runs.formats.base import make_format

ONE_LINE = " ".join(TEXT.split())


def lines(*records):
    return [json.loads(line) for line in make_format("musubi").content(records).splitlines()]


def test_a_line_for_each_captioned_clip(recorded):
    assert lines(recorded("b/a.mp4"), recorded("lost.mp4", error="broken"), recorded("c.PNG")) == [
        {"video_path": "b/a.mp4", "caption": ONE_LINE},
        {"image_path": "c.PNG", "caption": ONE_LINE},
    ]


def test_segments_are_one_caption(recorded):
    parts = [recorded(segment=number, segments=2, changes={"caption": f"part\n{number}"}) for number in range(2)]
    assert lines(*parts) == [{"video_path": "a.mp4", "caption": "part 0 part 1"}]
    assert make_format("musubi").content([]) == b""
