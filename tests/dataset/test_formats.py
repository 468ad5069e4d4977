import csv
import io
import json
from itertools import pairwise

import av
import pysubs2
import pytest
import srt
import webvtt

from tests.fake_captioner import TEXT
from vidspec.dataset.formats import CSV_COLUMNS, FORMATS, clip_document, clock, header_line, record_line, time_range
from vidspec.dataset.formats import subtitle_cues as subtitles
from vidspec.dataset.job import Job
from vidspec.dataset.records import LEAN_KEYS, lean_record
from vidspec.escaping import escape_text

HARD = "a {\\i1} brace\\N & <i>less</i> --> more\n\nand\u2028more \u4e2d\u6587"
FLAT = "a {\\i1} brace\\N & <i>less</i> --> more and more \u4e2d\u6587"
WRAPPED = FLAT.replace("and more", "and\nmore")
CUE = WRAPPED.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
#: Colours, clears, a C1 sequence, an override, and what ends a line for some reader.
HOSTILE = "\x1b[31ma\r\x9b2J\u202eb\u2066\x85c\u2028d\te\nf\x7f\udcff"
LONG = {"video": {"duration_s": 9.0}}
DANGEROUS = set("\x1b\r\x9b\u202e\u2066\x85\x7f\udcff")


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
    assert record_line(recorded(), "text", several=False) == TEXT
    assert record_line(recorded("a b.mp4"), "text", several=True) == "a b.mp4\tA red circle moves left."
    assert record_line(recorded(error="no"), "text", several=True) is None


def test_text_of_segments(cues):
    timed = "00:00:00.000-00:00:05.000\tA red circle moves left."
    assert record_line(cues[0], "text", several=False) == timed
    assert record_line(cues[0], "text", several=True) == f"a.mp4\t{timed}"
    assert clip_document(cues, "txt").splitlines()[0] == timed


def test_json_is_one_line(recorded):
    text = record_line(recorded(error="no"), "json", several=True)
    assert "\n" not in text and json.loads(text)["caption"] is None


def test_csv_goes_through_a_reader(recorded, cues):
    lines = [
        header_line("csv"),
        *(record_line(one, "csv", several=True) for one in (recorded(changes={"caption": HARD}), *cues)),
    ]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines), newline="")))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert rows[0]["caption"] == HARD and rows[0]["tokens"] == "5" and rows[0]["target"] == "big"
    assert (rows[1]["start"], rows[1]["end"]) == ("0.0", "5.0")
    assert (rows[2]["caption"], rows[2]["error_kind"], rows[2]["tokens"]) == ("", "truncated", "")


def test_srt_loads_in_three_parsers(cues, tmp_path):
    text = clip_document(cues, "srt")
    parsed = list(srt.parse(text))
    assert [cue.content for cue in parsed] == ["A red circle moves left.", CUE]
    assert [(cue.start.total_seconds(), cue.end.total_seconds()) for cue in parsed] == [(0, 5), (10, 12)]
    assert [(cue.start, cue.end) for cue in pysubs2.SSAFile.from_string(text)] == [(0, 5000), (10000, 12000)]
    (tmp_path / "a.srt").write_text(text, encoding="utf-8")
    assert cue_times(tmp_path / "a.srt") == [(0.0, 5.0), (10.0, 12.0)]


def test_the_built_in_models_captions_say_so(recorded):
    """But in SRT, where players show whatever there is."""
    demo, other = recorded(changes={"demo": True}), recorded(changes={"demo": False})
    assert "NOTE Captions of vidspec's built-in models" in clip_document([demo], "vtt")
    assert "NOTE" not in clip_document([other], "vtt")
    assert len(webvtt.from_string(clip_document([demo], "vtt")).captions) == 1
    plain = clip_document([other], "srt")
    assert "[demo]" not in plain and clip_document([demo], "srt").replace("[demo] ", "", 1) == plain
    for one, said in ((demo, True), (other, False)):
        assert json.loads(record_line(one, "json", several=False))["demo"] is lean_record(one)["demo"] is said
        rows = csv.DictReader(io.StringIO(f"{header_line('csv')}\n{record_line(one, 'csv', several=False)}"))
        assert next(rows)["demo"] == str(said)


def test_records_from_before_it_was_said(recorded):
    old = {key: value for key, value in recorded().items() if key != "demo"}
    assert record_line(old, "csv", several=False) == record_line({**old, "demo": None}, "csv", several=False)
    assert "NOTE" not in clip_document([old], "vtt") and lean_record(old)["demo"] is None


def test_vtt_loads_in_three_parsers(cues, tmp_path):
    text = clip_document(cues, "vtt")
    parsed = webvtt.from_string(text)
    assert [(cue.start, cue.end) for cue in parsed] == [
        ("00:00:00.000", "00:00:05.000"),
        ("00:00:10.000", "00:00:12.000"),
    ]
    assert parsed[1].raw_text == CUE
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
    (cue,) = srt.parse(clip_document([one], "srt"))
    assert (cue.start.total_seconds(), cue.end.total_seconds()) == (0, 2.5)


def timed(recorded, caption, duration=6.0, **part):
    return subtitles(recorded(changes={"caption": caption, "video": {"duration_s": duration}}, **part))


def test_a_long_caption_is_split_over_its_time(recorded):
    words = "The red circle moves from the left edge of the picture to the right one and stops there for good. " * 4
    shown = timed(recorded, words, start=2.0, end=6.0)
    assert " ".join(text.replace("\n", " ") for _, _, text in shown) == " ".join(words.split())
    assert shown[0][0] == 2000 and shown[-1][1] == 6000 and len(shown) == 5
    assert all(one[1] == next_[0] for one, next_ in pairwise(shown))
    for start, end, text in shown:
        lines = text.split("\n")
        assert 1 <= len(lines) <= 2 and all(0 < len(line) <= 42 for line in lines)
        assert (end - start) / 4000 == pytest.approx(len(text) / sum(len(text) for *_, text in shown), abs=0.001)
    files = [
        clip_document([recorded(changes={"caption": words, "video": {"duration_s": 6.0}})], form)
        for form in ("srt", "vtt")
    ]
    read = [[(cue.start, cue.end, cue.plaintext) for cue in pysubs2.SSAFile.from_string(file)] for file in files]
    assert read[0] == read[1] and len(read[0]) == 5


def test_words_and_scripts_without_breaks_are_wrapped_too(recorded):
    (_, _, text), *more = timed(recorded, "\u4e2d" * 100)
    assert [len(line) for line in text.split("\n")] == [42, 42] and len(more) == 1
    assert timed(recorded, "a well-known " + "x" * 38)[0][2] == "a well-known\n" + "x" * 38


@pytest.mark.parametrize("duration", [0.0, 0.001, None])
def test_a_caption_without_time_stays_one_cue(recorded, duration):
    ((start, end, text),) = timed(recorded, "word " * 60, duration)
    assert start == 0 <= end <= 1 and len(text.split()) == 60


def test_an_empty_caption_has_no_cue(recorded):
    assert timed(recorded, "") == []
    assert clip_document([recorded(changes={"caption": "", "video": {"duration_s": 6.0}})], "vtt").startswith("WEBVTT")


def test_span_ends_with_the_video(recorded):
    video = {"video": {"duration_s": 8.0}}
    assert time_range(recorded(start=2.0, end=99.0, changes=video)) == (2.0, 8.0)
    assert time_range(recorded(start=2.0, end=4.0, changes=video)) == (2.0, 4.0)
    assert time_range(lean_record(recorded(start=2.0, end=4.0, changes=video))) == (2.0, 4.0)


def test_documents(cues, recorded):
    assert clip_document([recorded(error="no")], "srt") is None
    assert clip_document([recorded()], "txt") == TEXT + "\n"
    assert clip_document(cues, "webdataset-txt") == f"A red circle moves left. {FLAT}\n"
    assert json.loads(clip_document([recorded()], "json"))["caption"] == TEXT
    assert [one["caption"] for one in json.loads(clip_document(cues, "json"))] == [TEXT, None, HARD]


def test_lean_records_hold_nothing_measured(recorded):
    one = lean_record(recorded(entry=Job("a.mp4", prompt="Why?"), start=1.0))
    assert tuple(one) == LEAN_KEYS
    assert (one["start"], one["end"], one["prompt"]) == (1.0, None, "Why?")
    assert set(one["job"]) == {"clip", "settings", "size", "mtime_ns"}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("segment", [None, 0])
def test_nothing_a_terminal_obeys_is_written(recorded, form, segment):
    part = {} if segment is None else {"start": 0.0, "end": 1.0, "segment": 0, "segments": 1}
    record = recorded(HOSTILE, changes={"caption": HOSTILE, "profile": HOSTILE}, **part)
    whole = clip_document([record], form)
    assert whole.endswith("\n") and DANGEROUS.isdisjoint(whole)
    if form in ("srt", "vtt"):
        return
    each = record_line(record, form, several=True)
    assert DANGEROUS.isdisjoint(each)
    if form == "csv":
        assert len(list(csv.reader(io.StringIO(each, newline="")))) == 1
    else:
        assert each.splitlines() == [each]
    if form == "text":
        assert len(each.split("\t")) == (2 if segment is None else 3)
        assert each.startswith("\\x1b[31ma\\r\\x9b2J\\u202eb")


def test_json_reads_back_as_it_was(recorded):
    record = recorded(HOSTILE, changes={"caption": HOSTILE})
    for text in (record_line(record, "jsonl", several=True), clip_document([record], "json")):
        assert json.loads(text)["path"] == json.loads(text)["caption"] == HOSTILE


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_captions_do_not_end_their_cues(recorded, form):
    text = clip_document([recorded(changes={"caption": "a\n\n2\n00:00:00,000 --> 00:00:09,000\n<b>&", **LONG})], form)
    read = list(srt.parse(text)) if form == "srt" else list(webvtt.from_string(text))
    assert len(read) == 1
    assert "a 2 00:00:00,000 --&gt; 00:00:09,000 &lt;b&gt;&amp;" in text


@pytest.mark.parametrize("caption", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\rx", " =1", "\uff1d1"])
def test_cells_that_begin_like_a_formula(recorded, caption):
    record = recorded(caption + ".mp4", changes={"caption": caption})
    column = CSV_COLUMNS.index("caption")
    (row,) = csv.reader(io.StringIO(record_line(record, "csv", several=True), newline=""))
    assert row[0].startswith("'") and row[column] == "'" + escape_text(caption)
    (row,) = csv.reader(io.StringIO(record_line(record, "csv", several=True, raw_csv=True), newline=""))
    assert row[column] == escape_text(caption)


@pytest.mark.parametrize("raw", [False, True])
def test_names_in_cells_have_one_line_and_captions_as_many_as_they_have(recorded, raw):
    name = "a\n\tb\u2028c"
    record = recorded(name, entry=Job(name, id=name), changes={"caption": name, "profile": name})
    (row,) = csv.reader(io.StringIO(record_line(record, "csv", several=True, raw_csv=raw), newline=""))
    cells = dict(zip(CSV_COLUMNS, row, strict=True))
    assert cells["path"] == cells["id"] == cells["profile"] == r"a\n\tb\u2028c" and cells["caption"] == name
    failed = recorded(name, error="line\nfeed")
    assert "\n" not in record_line(failed, "csv", several=True, raw_csv=raw)


def test_cells_of_numbers_and_sentences_stay(recorded):
    one = recorded(start=1.0, end=2.0, changes={"caption": "It is -1, or =1."})
    (row,) = csv.reader([record_line(one, "csv", several=True)])
    assert row[:5] == ["a.mp4", "", "1.0", "2.0", "It is -1, or =1."]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00.000"), (3661.0005, "01:01:01.000"), (59.9996, "00:01:00.000")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text
