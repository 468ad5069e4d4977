import csv
import io
import json

import av
import pysubs2
import pytest
import srt
import webvtt
from fake_captioner import TEXT

from vidspec.batch.formats import CSV_COLUMNS, clock, document, header, line, span
from vidspec.batch.records import LEAN_KEYS, lean
from vidspec.batch.work import Entry

HARD = "a {\\i1} brace\\N & <i>less</i> --> more\n\nand\u2028more \u4e2d\u6587"
FLAT = "a {\\i1} brace\\N & <i>less</i> --> more and more \u4e2d\u6587"


@pytest.fixture
def cues(recorded):
    """Three segments of a clip of 12 s, the second failed, the last with a caption that is hard to write."""
    video = {"video": {"duration_s": 12.0}}
    return [
        recorded(start=0.0, end=5.0, segment=0, segments=3, changes=video),
        recorded(start=5.0, end=10.0, segment=1, segments=3, error="dark"),
        recorded(start=10.0, end=12.0, segment=2, segments=3, changes={**video, "caption": HARD}),
    ]


def test_text(recorded):
    assert line(recorded(), "text", several=False) == TEXT
    assert line(recorded("a b.mp4"), "text", several=True) == "a b.mp4\tA red circle moves left."
    assert line(recorded(error="no"), "text", several=True) is None


def test_text_of_segments(cues):
    timed = "00:00:00.000-00:00:05.000\tA red circle moves left."
    assert line(cues[0], "text", several=False) == timed
    assert line(cues[0], "text", several=True) == f"a.mp4\t{timed}"
    assert document(cues, "txt").splitlines()[0] == timed


def test_json_is_one_line(recorded):
    text = line(recorded(error="no"), "json", several=True)
    assert "\n" not in text and json.loads(text)["caption"] is None


def test_csv_goes_through_a_reader(recorded, cues):
    lines = [header("csv"), *(line(one, "csv", several=True) for one in (recorded(changes={"caption": HARD}), *cues))]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines), newline="")))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert rows[0]["caption"] == HARD and rows[0]["tokens"] == "5" and rows[0]["target"] == "big"
    assert (rows[1]["start"], rows[1]["end"]) == ("0.0", "5.0")
    assert (rows[2]["caption"], rows[2]["error_kind"], rows[2]["tokens"]) == ("", "truncated", "")


def test_srt_loads_in_three_parsers(cues, tmp_path):
    text = document(cues, "srt")
    parsed = list(srt.parse(text))
    assert [cue.content for cue in parsed] == ["A red circle moves left.", FLAT]
    assert [(cue.start.total_seconds(), cue.end.total_seconds()) for cue in parsed] == [(0, 5), (10, 12)]
    assert [(cue.start, cue.end) for cue in pysubs2.SSAFile.from_string(text)] == [(0, 5000), (10000, 12000)]
    (tmp_path / "a.srt").write_text(text, encoding="utf-8")
    assert cue_times(tmp_path / "a.srt") == [(0.0, 5.0), (10.0, 12.0)]


def test_the_built_in_models_captions_say_so(recorded):
    """But in SRT, where players show whatever there is."""
    demo, other = recorded(changes={"demo": True}), recorded(changes={"demo": False})
    assert "NOTE Captions of vidspec's built-in models" in document([demo], "vtt")
    assert "NOTE" not in document([other], "vtt")
    assert len(webvtt.from_string(document([demo], "vtt")).captions) == 1
    assert document([demo], "srt") == document([other], "srt")
    for one, said in ((demo, True), (other, False)):
        assert json.loads(line(one, "json", several=False))["demo"] is lean(one)["demo"] is said
        rows = csv.DictReader(io.StringIO(f"{header('csv')}\n{line(one, 'csv', several=False)}"))
        assert next(rows)["demo"] == str(said)


def test_records_from_before_it_was_said(recorded):
    old = {key: value for key, value in recorded().items() if key != "demo"}
    assert line(old, "csv", several=False) == line({**old, "demo": None}, "csv", several=False)
    assert "NOTE" not in document([old], "vtt") and lean(old)["demo"] is None


def test_vtt_loads_in_three_parsers(cues, tmp_path):
    text = document(cues, "vtt")
    parsed = webvtt.from_string(text)
    assert [(cue.start, cue.end) for cue in parsed] == [
        ("00:00:00.000", "00:00:05.000"),
        ("00:00:10.000", "00:00:12.000"),
    ]
    assert parsed[1].raw_text == FLAT.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert [(cue.start, cue.end) for cue in pysubs2.SSAFile.from_string(text)] == [(0, 5000), (10000, 12000)]
    (tmp_path / "a.vtt").write_text(text, encoding="utf-8")
    assert cue_times(tmp_path / "a.vtt") == [(0.0, 5.0), (10.0, 12.0)]


def cue_times(path):
    """As FFmpeg reads them."""
    with av.open(str(path)) as file:
        base = file.streams[0].time_base
        return [
            (float(packet.pts * base), float((packet.pts + packet.duration) * base))
            for packet in file.demux(file.streams[0])
            if packet.pts is not None
        ]


def test_a_whole_clip_is_one_cue_of_its_length(recorded):
    one = recorded(changes={"video": {"duration_s": 2.5}})
    (cue,) = srt.parse(document([one], "srt"))
    assert (cue.start.total_seconds(), cue.end.total_seconds()) == (0, 2.5)


def test_span_ends_with_the_video(recorded):
    video = {"video": {"duration_s": 8.0}}
    assert span(recorded(start=2.0, end=99.0, changes=video)) == (2.0, 8.0)
    assert span(recorded(start=2.0, end=4.0, changes=video)) == (2.0, 4.0)
    assert span(lean(recorded(start=2.0, end=4.0, changes=video))) == (2.0, 4.0)


def test_documents(cues, recorded):
    assert document([recorded(error="no")], "srt") is None
    assert document([recorded()], "txt") == TEXT + "\n"
    assert document(cues, "webdataset-txt") == f"A red circle moves left. {FLAT}\n"
    assert json.loads(document([recorded()], "json"))["caption"] == TEXT
    assert [one["caption"] for one in json.loads(document(cues, "json"))] == [TEXT, None, HARD]


def test_lean_records_hold_nothing_measured(recorded):
    one = lean(recorded(entry=Entry("a.mp4", prompt="Why?"), start=1.0))
    assert tuple(one) == LEAN_KEYS
    assert (one["start"], one["end"], one["prompt"]) == (1.0, None, "Why?")
    assert set(one["job"]) == {"clip", "settings", "size", "mtime_ns"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00.000"), (3661.0005, "01:01:01.000"), (59.9996, "00:01:00.000")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text
