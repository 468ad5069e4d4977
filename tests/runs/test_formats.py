import csv
import html
import io
import json
from importlib.metadata import EntryPoint, EntryPoints
from itertools import pairwise

import av
import pysubs2
import pytest
import srt
import webvtt

from tests.fake_captioner import TEXT
from vidspec import registry
from vidspec.errors import UsageError
from vidspec.escaping import escape_text
from vidspec.runs.cues import subtitle_cues as subtitles
from vidspec.runs.formats.base import (
    LineFormat,
    clock,
    format_names,
    format_of_suffix,
    make_format,
    output_formats,
    time_range,
)
from vidspec.runs.formats.csv import CSV_COLUMNS
from vidspec.runs.job import Job
from vidspec.runs.store.records import LEAN_KEYS, lean_record

CSV = make_format("csv")
HARD = "a {\\i1} brace\\N & <i>less</i> --> more\n\nand\u2028more \u4e2d\u6587"
FLAT = "a {\\i1} brace\\N & <i>less</i> --> more and more \u4e2d\u6587"
WRAPPED = FLAT.replace("and more", "and\nmore")
#: In SubRip, with a word joiner in what players take for codes.
CUE = WRAPPED.replace("{\\", "{\u2060\\").replace("<", "<\u2060").replace("-->", "--\u2060>")
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
    assert make_format("text").line(recorded()) == TEXT
    assert make_format("text", several=True).line(recorded("a b.mp4")) == "a b.mp4\tA red circle moves left."
    assert make_format("text", several=True).line(recorded(error="no")) is None


def test_text_of_segments(cues):
    timed = "00:00:00.000-00:00:05.000\tA red circle moves left."
    assert make_format("text").line(cues[0]) == timed
    assert make_format("text", several=True).line(cues[0]) == f"a.mp4\t{timed}"
    assert make_format("txt").document(cues).splitlines()[0] == timed


def test_json_is_one_line(recorded):
    text = make_format("json").line(recorded(error="no"))
    assert "\n" not in text and json.loads(text)["caption"] is None


def test_csv_goes_through_a_reader(recorded, cues):
    lines = [
        CSV.header,
        *(CSV.line(one) for one in (recorded(changes={"caption": HARD}), *cues)),
    ]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines), newline="")))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert rows[0]["caption"] == HARD and rows[0]["tokens"] == "5" and rows[0]["target"] == "big"
    assert (rows[1]["start"], rows[1]["end"]) == ("0.0", "5.0")
    assert (rows[2]["caption"], rows[2]["error_kind"], rows[2]["tokens"]) == ("", "truncated", "")


def test_srt_loads_in_three_parsers(cues, tmp_path):
    text = make_format("srt").document(cues)
    parsed = list(srt.parse(text))
    assert [cue.content for cue in parsed] == ["A red circle moves left.", CUE]
    assert [(cue.start.total_seconds(), cue.end.total_seconds()) for cue in parsed] == [(0, 5), (10, 12)]
    assert [(cue.start, cue.end) for cue in pysubs2.SSAFile.from_string(text)] == [(0, 5000), (10000, 12000)]
    (tmp_path / "a.srt").write_text(text, encoding="utf-8")
    assert cue_times(tmp_path / "a.srt") == [(0.0, 5.0), (10.0, 12.0)]


def test_the_built_in_models_captions_say_so(recorded):
    """But in SRT, where players show whatever there is."""
    demo, other = recorded(changes={"demo": True}), recorded(changes={"demo": False})
    assert "NOTE Captions of vidspec's built-in models" in make_format("vtt").document([demo])
    assert "NOTE" not in make_format("vtt").document([other])
    assert len(webvtt.from_string(make_format("vtt").document([demo])).captions) == 1
    plain = make_format("srt").document([other])
    assert "[demo]" not in plain and make_format("srt").document([demo]).replace("[demo] ", "", 1) == plain
    for one, said in ((demo, True), (other, False)):
        assert json.loads(make_format("json").line(one))["demo"] is lean_record(one)["demo"] is said
        rows = csv.DictReader(io.StringIO(f"{CSV.header}\n{CSV.line(one)}"))
        assert next(rows)["demo"] == str(said)


def test_records_from_before_it_was_said(recorded):
    old = {key: value for key, value in recorded().items() if key != "demo"}
    assert CSV.line(old) == CSV.line({**old, "demo": None})
    assert "NOTE" not in make_format("vtt").document([old]) and lean_record(old)["demo"] is None


def test_vtt_loads_in_three_parsers(cues, tmp_path):
    text = make_format("vtt").document(cues)
    parsed = webvtt.from_string(text)
    assert [(cue.start, cue.end) for cue in parsed] == [
        ("00:00:00.000", "00:00:05.000"),
        ("00:00:10.000", "00:00:12.000"),
    ]
    assert html.unescape(parsed[1].raw_text) == WRAPPED
    assert [(cue.start, cue.end) for cue in pysubs2.SSAFile.from_string(text)] == [(0, 5000), (10000, 12000)]
    (tmp_path / "a.vtt").write_text(text, encoding="utf-8")
    assert cue_times(tmp_path / "a.vtt") == [(0.0, 5.0), (10.0, 12.0)]


def cue_times(path):
    """Return the times of cues as FFmpeg reads them."""
    with av.open(str(path)) as file:
        base = file.streams[0].time_base
        return [
            (float(packet.pts * base), float((packet.pts + packet.duration) * base))
            for packet in file.demux(file.streams[0])
            if packet.pts is not None
        ]


def test_a_whole_clip_is_one_cue_of_its_length(recorded):
    one = recorded(changes={"video": {"duration_s": 2.5}})
    (cue,) = srt.parse(make_format("srt").document([one]))
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
        make_format(form).document([recorded(changes={"caption": words, "video": {"duration_s": 6.0}})])
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
    empty = recorded(changes={"caption": "", "video": {"duration_s": 6.0}})
    assert make_format("vtt").document([empty]).startswith("WEBVTT")


def test_span_ends_with_the_video(recorded):
    video = {"video": {"duration_s": 8.0}}
    assert time_range(recorded(start=2.0, end=99.0, changes=video)) == (2.0, 8.0)
    assert time_range(recorded(start=2.0, end=4.0, changes=video)) == (2.0, 4.0)
    assert time_range(lean_record(recorded(start=2.0, end=4.0, changes=video))) == (2.0, 4.0)


def test_documents(cues, recorded):
    assert make_format("srt").document([recorded(error="no")]) is None
    assert make_format("txt").document([recorded()]) == " ".join(TEXT.split()) + "\n"
    assert make_format("webdataset-txt").document(cues) == f"A red circle moves left. {FLAT}\n"
    assert json.loads(make_format("json").document([recorded()]))["caption"] == TEXT
    assert [one["caption"] for one in json.loads(make_format("json").document(cues))] == [TEXT, None, HARD]


def test_lean_records_hold_nothing_measured(recorded):
    one = lean_record(recorded(entry=Job("a.mp4", prompt="Why?"), start=1.0))
    assert tuple(one) == LEAN_KEYS
    assert (one["start"], one["end"], one["prompt"]) == (1.0, None, "Why?")
    assert set(one["job"]) == {"clip", "settings", "size", "mtime_ns"}


@pytest.mark.parametrize("form", format_names())
@pytest.mark.parametrize("segment", [None, 0])
def test_nothing_a_terminal_obeys_is_written(recorded, form, segment):
    part = {} if segment is None else {"start": 0.0, "end": 1.0, "segment": 0, "segments": 1}
    record = recorded(HOSTILE, changes={"caption": HOSTILE, "profile": HOSTILE}, **part)
    made = make_format(form, several=True)
    if not made.is_text:
        return
    for whole in (made.content([record]).decode(), made.document([record])):
        assert whole is None or (whole.endswith("\n") and DANGEROUS.isdisjoint(whole))
    each = made.line(record)
    if each is None:
        return
    assert DANGEROUS.isdisjoint(each)
    if form == "csv":
        assert len(list(csv.reader(io.StringIO(each, newline="")))) == 1
    else:
        assert each.splitlines() == [each]
    if form == "text":
        assert len(each.split("\t")) == (2 if segment is None else 3)
        assert each.startswith("\\x1b[31ma\\r\\x9b2J\\u202eb")


class ShoutingFormat(LineFormat):
    suffix = ".loud"
    clip_files = "in_folder"

    def line(self, record):
        return record["caption"].upper()


def test_a_package_brings_a_format(recorded, monkeypatch):
    point = EntryPoint("loud", f"{__name__}:ShoutingFormat", "vidspec.formats")
    monkeypatch.setattr(
        registry, "_entry_points", lambda group: EntryPoints([point] if group == "vidspec.formats" else [])
    )
    monkeypatch.setattr(output_formats, "_entries", dict(output_formats._entries))
    assert "loud" in format_names() and format_of_suffix("a.loud") == "loud"
    assert make_format("loud").content([recorded()]) == f"{TEXT.upper()}\n".encode()


def test_an_unknown_format_is_refused():
    with pytest.raises(UsageError, match=r"^format='xml': must be one of .*\bcsv, .*, not 'xml'$"):
        make_format("xml")


def test_json_reads_back_as_it_was(recorded):
    record = recorded(HOSTILE, changes={"caption": HOSTILE})
    for text in (make_format("jsonl").line(record), make_format("json").document([record])):
        assert json.loads(text)["path"] == json.loads(text)["caption"] == HOSTILE


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_captions_do_not_end_their_cues(recorded, form):
    text = make_format(form).document(
        [recorded(changes={"caption": "a\n\n2\n00:00:00,000 --> 00:00:09,000\n<b>&", **LONG})]
    )
    read = list(srt.parse(text)) if form == "srt" else list(webvtt.from_string(text))
    assert len(read) == 1
    escaped = {"srt": "--\u2060> 00:00:09,000 <\u2060b>&", "vtt": "--&gt; 00:00:09,000 &lt;b&gt;&amp;"}
    assert f"a 2 00:00:00,000 {escaped[form]}" in text


@pytest.mark.parametrize("caption", ["Tom & Jerry <3", "{\\an8}up {y:i} x", "<b>x</b> <font color=red>", "1 < 2 > {3}"])
def test_srt_is_read_as_it_was_written(recorded, tmp_path, caption):
    """By FFmpeg's decoder: there are no entities, and a caption has no tags."""
    file = tmp_path / "a.srt"
    file.write_text(make_format("srt").document([recorded(changes={"caption": caption, **LONG})]), encoding="utf-8")
    with av.open(str(file)) as container:
        (shown,) = (one.ass for packet in container.demux(subtitles=0) for one in packet.decode())
    assert shown.decode().split(",,", 2)[-1].replace("\u2060", "").replace("\\N", " ") == caption


@pytest.mark.parametrize("caption", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\rx", " =1", "\uff1d1"])
def test_cells_that_begin_like_a_formula(recorded, caption):
    record = recorded(caption + ".mp4", changes={"caption": caption})
    column = CSV_COLUMNS.index("caption")
    (row,) = csv.reader(io.StringIO(CSV.line(record), newline=""))
    assert row[0].startswith("'") and row[column] == "'" + escape_text(caption)


def test_names_in_cells_have_one_line_and_captions_as_many_as_they_have(recorded):
    name = "a\n\tb\u2028c"
    record = recorded(name, entry=Job(name, id=name), changes={"caption": name, "profile": name})
    (row,) = csv.reader(io.StringIO(CSV.line(record), newline=""))
    cells = dict(zip(CSV_COLUMNS, row, strict=True))
    assert cells["path"] == cells["id"] == cells["profile"] == r"a\n\tb\u2028c" and cells["caption"] == name
    failed = recorded(name, error="line\nfeed")
    assert "\n" not in CSV.line(failed)


def test_cells_of_numbers_and_sentences_stay(recorded):
    one = recorded(start=1.0, end=2.0, changes={"caption": "It is -1, or =1."})
    (row,) = csv.reader([CSV.line(one)])
    assert row[:5] == ["a.mp4", "", "1.0", "2.0", "It is -1, or =1."]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00.000"), (3661.0005, "01:01:01.000"), (59.9996, "00:01:00.000")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


PROPERTIES = {"subject": {"type": "string"}, "count": {"type": "integer"}, "parts": {"type": "array"}, "odd,\n": {}}
DATA = {"subject": "=a disc", "count": 10**30, "parts": [1, "b"], "odd,\n": 2.5}


def test_tables_have_a_column_for_each_property(recorded):
    records = [recorded(changes={"data": DATA}), recorded("b.mp4"), recorded("c.mp4", error="no")]
    text = make_format("csv", data=PROPERTIES).content(records).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert list(rows[0]) == [*CSV_COLUMNS, "data_subject", "data_count", "data_parts", "data_odd,\\n"]
    assert list(rows[0].values())[len(CSV_COLUMNS) :] == ["'=a disc", str(10**30), '[1, "b"]', "2.5"]
    assert all(value == "" for value in list(rows[1].values())[len(CSV_COLUMNS) :])


def test_tables_of_runs_with_second_passes_have_their_texts(recorded):
    """Other tables are as before."""
    parquet = pytest.importorskip("pyarrow.parquet")
    original = {"text": "=Long,\nand wordy.", "ended": "eos"}
    records = [recorded(changes={"original": original}), recorded("b.mp4", changes={"summary": "It moves."})]
    texts = ("original", "summary")
    table = make_format("csv", texts=texts, data={"count": {}})
    rows = list(csv.DictReader(io.StringIO(table.content(records).decode(), newline="")))
    assert list(rows[0]) == [*CSV_COLUMNS, *texts, "data_count"]
    assert [[row[name] for name in texts] for row in rows] == [["'=Long,\nand wordy.", ""], ["", "It moves."]]
    form = make_format("parquet", texts=texts)
    content = form.content(records)
    rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    assert [row["original"] for row in rows] == [original, None] and [row["summary"] for row in rows][1] == "It moves."
    read = [*form.read_records(io.BytesIO(content))]
    assert [[one.get(name) for name in texts] for one in read] == [[original, None], [None, "It moves."]]
    for name in ("csv", "parquet"):
        assert b"original" not in make_format(name).content([recorded(), recorded("b.mp4")])


def test_parquet_has_typed_columns_and_the_whole_answer(recorded, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    form = make_format("parquet", data=PROPERTIES)
    records = [lean_record(recorded(changes={"data": data})) for data in (DATA, DATA | {"count": 3}, None)]
    content = form.content(records)
    rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    assert [row["data_subject"] for row in rows] == ["=a disc", "=a disc", None]
    assert [row["data_count"] for row in rows] == [None, 3, None], "numbers that fit"
    assert (rows[0]["data_parts"], rows[0]["data_odd,\n"]) == ('[1, "b"]', "2.5")
    assert json.loads(rows[0]["data"]) == DATA
    assert [one["data"] for one in form.read_records(io.BytesIO(content))] == [DATA, DATA | {"count": 3}, None]
