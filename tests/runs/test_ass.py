"""ASS subtitles, as other libraries read them."""

import av
import pysubs2

from vidspec.runs.formats.base import make_format

HARD = "a {\\i1}brace, a\\Nbreak & more"


def cues(recorded):
    video = {"video": {"duration_s": 4.0}}
    first = recorded(start=0.0, end=1.239, segment=0, segments=2, changes=video)
    return [first, recorded(start=1.239, end=4.0, segment=1, segments=2, changes={**video, "caption": HARD})]


def test_cues_have_their_times_and_texts(recorded):
    file = pysubs2.SSAFile.from_string(make_format("ass").document(cues(recorded)))
    assert [(cue.start, cue.end) for cue in file] == [(0, 1240), (1240, 4000)]
    assert file[0].plaintext == "A red circle moves left."
    assert file.styles["Default"].fontsize == 48


def test_a_caption_gives_no_codes(recorded):
    text = make_format("ass").document(cues(recorded)).splitlines()[-1]
    assert text.endswith(",,a \\{\\\u2060i1\\}brace, a\\\u2060Nbreak & more")


def test_lines_of_a_long_caption(recorded):
    caption = "The red circle moves from the left edge to the right one and stops."
    (cue,) = pysubs2.SSAFile.from_string(make_format("ass").document([recorded(changes={"caption": caption})]))
    assert cue.plaintext.split("\n") == ["The red circle moves from the left edge to", "the right one and stops."]


def test_ffmpeg_reads_it(recorded, tmp_path):
    (tmp_path / "a.ass").write_text(make_format("ass").document(cues(recorded)), encoding="utf-8")
    with av.open(str(tmp_path / "a.ass")) as file:
        assert [packet.pts for packet in file.demux(file.streams[0]) if packet.pts is not None] == [0, 124]


def test_the_built_in_models_captions_say_so(recorded):
    assert "; Captions of vidspec's built-in" in make_format("ass").document([recorded(changes={"demo": True})])
    assert "; Captions" not in make_format("ass").document([recorded(changes={"demo": False})])
