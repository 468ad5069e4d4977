"""Timed events: their preset, the check against a clip's length, and their subtitles."""

import json

import jsonschema
import pytest

from tests import fake_captioner
from tests.cli.conftest import isolated, options, vidspec  # noqa: F401
from vidspec.config.json_schema import json_grammar
from vidspec.config.prompts import EVENTS_SCHEMA
from vidspec.errors import GenerationError
from vidspec.runs.formats.base import make_format
from vidspec.runs.timed_events import checked_events, timed_events


def event(start, end, text="A ball rolls."):
    return {"start": start, "end": end, "text": text}


@pytest.mark.parametrize(
    ("events", "kept", "notes"),
    [
        ([event(0, 2), event(2.5, 8)], [event(0, 2), event(2.5, 8)], []),
        ([], [], []),
        ([event(3, 5), event(1, 4)], [event(1, 4), event(3, 5)], ["events sorted by time"]),
        ([event(6, 60)], [event(6, 8)], ["1 event cut to 1 s to 8 s"]),
        ([event(0.5, 3), event(7, 9)], [event(1, 3), event(7, 8)], ["2 events cut to 1 s to 8 s"]),
        ([event(9, 12), event(1, 2)], [event(1, 2)], ["1 event left out: outside 1 s to 8 s"]),
        ([event(3, 2), event(1, 2)], [event(1, 2)], ["1 event left out: ends before it starts"]),
    ],
)
def test_events_are_checked_against_the_part(events, kept, notes):
    start = 0 if events and events[0]["start"] == 0 else 1
    assert checked_events("a.mp4", events, start, 8) == (kept, notes)


@pytest.mark.parametrize("events", [[event(100, 200)], [event(3, 2)], [event(8, 9), event(20, 30)]])
def test_a_clip_without_an_event_of_its_own_fails(events):
    with pytest.raises(GenerationError, match=r"a.mp4: none of its \d events? is within 0 s to 8 s") as error:
        checked_events("a.mp4", events, 0, 8)
    assert error.value.kind == "events"


def test_other_answers_are_no_events():
    for data in (None, "x", {"start": 1, "end": 2, "text": "x"}, ["x"], [event("1", 2)], [{"start": 1, "end": 2}]):
        assert timed_events(data) is None


def test_the_schema_is_a_grammar_of_events():
    pytest.importorskip("llguidance")
    assert json_grammar(EVENTS_SCHEMA)
    schema = json.loads(EVENTS_SCHEMA)
    jsonschema.validate([event(0, 1.5)], schema)
    for wrong in ([], [event(-1, 2)], [event(0, 1, "")], [{**event(0, 1), "more": 1}], event(0, 1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_subtitles_show_each_event_at_its_time():
    long = "A red ball rolls to the left, and a blue one follows it, until both are gone from the picture."
    record = fake_captioner.record(demo=True, data=[event(0.5, 2), event(1.5, 5, long)]).to_dict()
    srt, vtt = (make_format(name).document([record]) for name in ("srt", "vtt"))
    times = [line for line in srt.splitlines() if "-->" in line]
    assert times[0] == "00:00:00,500 --> 00:00:02,000" and "[demo] A ball rolls." in srt
    assert times[1].startswith("00:00:01,500") and times[-1].endswith("00:00:05,000") and len(times) == 3
    assert "00:00:00.500 --> 00:00:02.000\nA ball rolls." in vtt and "circle" not in srt + vtt


@pytest.fixture
def answers(monkeypatch):
    """Lets the fake captioner answer with these events about a video of three seconds."""
    pytest.importorskip("llguidance")
    made = fake_captioner.record

    def answer(*events):
        text, video = json.dumps(events), {"duration_s": 3.0}
        more = {"caption": text, "data": list(events), "video": video}
        monkeypatch.setattr(fake_captioner, "record", lambda path="x", **changes: made(path, **more | changes))

    return answer


def test_a_run_with_the_style(vidspec, answers):  # noqa: F811
    answers(event(2, 9), event(0, 1))
    ran = vidspec("caption", "a.mp4", "--style", "events", "--format", "json,vtt", "--output-dir", "out")
    assert ran.code == 0, ran.err
    with open("out/a.json") as file:
        record = json.load(file)
    assert record["data"] == [event(0, 1), event(2, 3)]
    assert record["notes"] == ["1 event cut to 0 s to 3 s", "events sorted by time"]
    with open("out/a.vtt") as file:
        assert [line for line in file.read().splitlines() if "-->" in line] == [
            "00:00:00.000 --> 00:00:01.000",
            "00:00:02.000 --> 00:00:03.000",
        ]
    answers(event(7, 9))
    assert "none of its 1 event is within" in vidspec("caption", "b.mp4", "--style", "events").err
    other = json.dumps({"type": "array", "items": {"type": "object"}})
    assert vidspec("caption", "b.mp4", "--json-schema", other).code == 0, "another schema's answers are not checked"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--rewrite", "shorter"), "--rewrite and timed events exclude each other"),
        (("--json",), "--json and --style events exclude each other"),
        (("--fields", "a"), "--style events and --fields exclude each other"),
        (("--json-schema", "{}"), "--style events and --json-schema exclude each other"),
    ],
)
def test_what_excludes_the_style(vidspec, more, message):  # noqa: F811
    pytest.importorskip("llguidance")
    ran = vidspec("caption", "a.mp4", "--style", "events", *more)
    assert ran.code == 2 and message in ran.err, ran.err
