import json
import os
import pickle
from contextlib import closing

import jsonschema
import pytest

from tests.fake_captioner import IDS, TEXT, FakeReader, record
from vidspec.config.run_spec import RunSpec
from vidspec.errors import DeviceError, OutputError, UsageError, VideoError
from vidspec.events.compare import decode_rate, first_difference, speed_against
from vidspec.events.observer import RunObserver
from vidspec.events.record import OPTIONAL_KEYS, RECORD_KEYS
from vidspec.events.tally import Tally
from vidspec.files import check_output
from vidspec.runs.feed import Feed
from vidspec.runs.job import Job
from vidspec.runs.remaining import caption_remaining
from vidspec.runs.run import caption_jobs as run_feed
from vidspec.runs.run import exit_code
from vidspec.runs.run_store import RunStore
from vidspec.runs.schema import record_schema
from vidspec.runs.trace_file import merge_traces
from vidspec.runs.writers import FileLines


def run(captioner, paths, how=None, observer=None, **part):
    """One clip after the other, in this order."""
    how = (how or RunSpec()).model_copy(update={"batch": 1})
    tasks = [Job(path, **part, number=number) for number, path in enumerate(paths, start=1)]
    with closing(Feed(tasks, how, captioner.client.profile, [FakeReader()])) as feed:
        yield from run_feed(captioner, feed, how, observer, total=len(tasks))


def test_goes_on_after_failures_and_bugs(captioner):
    outcomes = list(run(captioner, ["missing.mp4", "bug.mp4", "good.mp4"]))
    assert [outcome.caption.caption for outcome in outcomes] == [None, None, TEXT]
    assert outcomes[0].caption.error == {
        "stage": "decode_video",
        "kind": "missing",
        "message": "missing.mp4: there is no such file (check the path)",
    }
    assert outcomes[1].caption.error == {"stage": "run", "kind": "internal", "message": "TypeError: broken"}
    assert outcomes[0].caption.profile == "vanilla-sd"
    assert [type(outcome.error) for outcome in outcomes] == [VideoError, TypeError, type(None)]


def test_each_outcome_comes_before_the_next_clip_starts(captioner):
    outcomes = run(captioner, ["good.mp4", "good.mp4"])
    next(outcomes)
    assert len(captioner.calls) == 1


@pytest.mark.parametrize("turns", [(), ("What?", "Where?")])
def test_a_job_is_one_from_the_plan_to_its_record(captioner, settings, turns):
    """Parts are of it; when the record is kept it has no result, as a plan keeps all jobs."""
    todo, how = [Job("good.mp4", number=1), Job("bug.mp4", number=2)], RunSpec(batch=1, turn=turns)

    def executor(jobs):
        with closing(Feed(jobs, how, captioner.client.profile, [FakeReader()])) as feed:
            yield from run_feed(captioner, feed, how)

    found = caption_remaining(todo, executor, RunStore(), *settings, Tally(total=2), RunObserver(), set())
    assert {id(one.planned_job): one.caption.path for one in found} == {id(one): one.path for one in todo}
    assert all((one.result, one.error) == (None, None) for one in todo)


def test_a_planned_job_is_small():
    """A plan keeps a million: a field that is not declared would give each a dictionary."""
    with pytest.raises(AttributeError):
        Job("a.mp4").notes = "x"


def test_another_process_gets_a_job():
    job = Job("a.mp4", id=7, done={0: "A."}, error=VideoError("no"))
    part = pickle.loads(pickle.dumps(job.part(1, 2)))
    assert (part.path, part.id, part.done, part.segment, str(part.error)) == ("a.mp4", 7, {0: "A."}, 1, "no")
    assert (part.planned_job.path, part.planned_job.segment) == ("a.mp4", None)


def test_interrupt_ends_the_run(captioner):
    outcomes = run(captioner, ["good.mp4", "stop.mp4", "good.mp4"])
    next(outcomes)
    with pytest.raises(KeyboardInterrupt):
        next(outcomes)


def test_a_stream_without_a_caption_is_a_bug(captioner):
    captioner.stream = lambda *_, **__: iter(())
    (outcome,) = run(captioner, ["good.mp4"])
    assert isinstance(outcome.error, RuntimeError)


def test_part_of_the_clip_is_passed_on_to_both_runs(captioner):
    list(run(captioner, ["good.mp4"], RunSpec(baseline=True, verify=True), start=1.0, end=2.0))
    assert captioner.calls == [("stream", "good.mp4", 1.0, 2.0), ("plain", "good.mp4", 1.0, 2.0)]


def test_plain_decoding_runs_only_on_request(captioner):
    list(run(captioner, ["good.mp4"]))
    assert [call[0] for call in captioner.calls] == ["stream"]


def test_verify_fails_on_a_difference_and_keeps_what_was_measured(captioner):
    good, differs = run(captioner, ["good.mp4", "differs.mp4"], RunSpec(verify=True))
    assert good.error is None and good.caption.speed == {"tokens_per_s": 4.0, "estimate": 2.0}
    assert differs.caption.error == {
        "stage": "verify",
        "kind": "mismatch",
        "message": "differs.mp4: differs from plain decoding at token 3: 3 instead of 4",
    }
    assert differs.caption.caption is None and differs.caption.lossless is None
    assert differs.caption.token_ids == IDS and differs.caption.counters["emitted"] == 5


def test_without_verify_a_difference_is_not_looked_for(captioner):
    (outcome,) = run(captioner, ["differs.mp4"], RunSpec(baseline=True))
    assert outcome.error is None


def test_baseline_replaces_the_estimate(captioner):
    (outcome,) = run(captioner, ["good.mp4"], RunSpec(baseline=True))
    assert outcome.caption.speed == {
        "tokens_per_s": 4.0,
        "baseline": {
            "timings": {"time_to_first_token": 0.25, "decode": 3.0, "end_to_end": 3.0},
            "tokens": 5,
            "tokens_per_s": pytest.approx(4 / 3),
            "time_to_first_token": 0.5,
            "decode": None,  # of a few tokens
            "end_to_end": 2.0,
            "end_to_end_raw": 2.0,
        },
    }


def test_observer_sees_every_clip_from_begin_to_end(captioner):
    seen = []

    class Watching(RunObserver):
        def begin(self, number, path, total):
            seen.append((number, path, total))

        def event(self, number, event):
            seen.append((number, type(event).__name__))

        def end(self, number, caption):
            seen.append((number, caption.caption))

    list(run(captioner, ["missing.mp4", "good.mp4"], RunSpec(), Watching()))
    rounds = [(2, name) for name in ("Opened", "Prefilled", "Round", "InputsReleased", "Round", "Finished")]
    assert seen == [(1, "missing.mp4", 2), (1, None), (2, "good.mp4", 2), *rounds, (2, TEXT)]


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([], 0),
        ([None, None], 0),
        ([None, VideoError("x")], 1),
        ([TypeError("x")], 1),
        ([UsageError("x")], 1),
        ([VideoError("x"), DeviceError("x"), None], 3),
    ],
)
def test_exit_code(errors, code):
    assert exit_code(errors) == code


@pytest.mark.parametrize(
    ("left", "right", "at"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([0], [], 0)],
)
def test_first_difference(left, right, at):
    assert first_difference(left, right) == at


def test_speed_is_undefined_where_nothing_was_measured():
    one_token = record(token_ids=[7], timings={})
    assert decode_rate(one_token) is None
    speed = speed_against(one_token, record())
    assert speed["decode"] is None and speed["end_to_end"] is None and speed["time_to_first_token"] is None


def test_decode_speedup_compares_rates_not_times():
    """Sampled captions differ in length; twice the tokens in the same time is twice as fast."""
    method, plain = record(token_ids=[0] * 65), record(token_ids=[0] * 33)
    assert speed_against(method, plain)["decode"] == pytest.approx(2.0)


def test_end_to_end_speedup_compares_texts_of_equal_length():
    """9 tokens in 2.25 + 1 s are an eighth of a second a token: 5 of them take 2.75 s."""
    method = record(token_ids=[0] * 9, timings={"time_to_first_token": 2.25, "decode": 1.0, "end_to_end": 3.25})
    plain = record(token_ids=[0] * 5, timings={"time_to_first_token": 1.5, "decode": 4.0, "end_to_end": 5.5})
    speed = speed_against(method, plain)
    assert (speed["end_to_end"], speed["end_to_end_raw"], speed["tokens"]) == (2.0, 5.5 / 3.25, 5)
    assert speed_against(plain, plain)["end_to_end"] == speed_against(plain, plain)["end_to_end_raw"] == 1.0


@pytest.mark.parametrize(("method", "plain", "long"), [(17, 17, True), (16, 17, False), (17, 16, False)])
def test_a_short_text_has_no_decode_speedup(method, plain, long):
    """A single accepted window would make tens of a few tokens."""
    speed = speed_against(record(token_ids=[0] * method), record(token_ids=[0] * plain))
    assert (speed["decode"] is not None) == long and speed["end_to_end_raw"] == 1.0


def test_records_satisfy_the_schema(captioner):
    outcomes = run(
        captioner, ["good.mp4", "missing.mp4", "bug.mp4", "differs.mp4"], RunSpec(verify=True, baseline=True)
    )
    for outcome in outcomes:
        jsonschema.validate(json.loads(outcome.caption.to_json()), record_schema())


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(
    "changes",
    [
        {"caption": None},
        {"error": {"stage": "x", "kind": "y", "message": "z"}},
        {"error": {"stage": "x"}, "caption": None, "lossless": None},
        {"token_ids": ["a"]},
        {"counters": {}},
        {"timings": {"decode": -1}},
        {"lossless": None},
        {"speed": {}},
        {"speed": {"tokens_per_s": 1, "baseline": {}}},
    ],
)
def test_schema_refuses_broken_records(changes):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record(**changes).to_dict(), record_schema())


def test_schema_has_the_keys_of_the_record_and_is_a_schema():
    schema = record_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == list(RECORD_KEYS)
    assert list(schema["properties"]) == [*RECORD_KEYS, *OPTIONAL_KEYS, "job"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_is_one_clear_error(tmp_path):
    from pathlib import Path

    with pytest.raises(OutputError, match="/dev/full: cannot be written: No space left"):
        FileLines(Path("/dev/full")).write("x")


def test_outputs_are_checked_beforehand(tmp_path):
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"x")
    for path, reason in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "out", "there is no folder"),
        (clip, "is one of the clips"),
    ):
        with pytest.raises(UsageError, match=reason):
            check_output(path, [str(clip)], "--output")
    check_output(tmp_path / "out", [str(clip)], "--output")


def test_joined_traces_give_each_clip_its_own_named_processes():
    one = {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "target"}},
            {"ph": "X", "name": "verify", "pid": 1, "tid": 0, "ts": 0, "dur": 1},
            {"ph": "X", "name": "draft", "pid": 2, "tid": 0, "ts": 0, "dur": 1},
        ]
    }
    events = merge_traces([("a.mp4", one), ("b.mp4", one)])["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {1: "a.mp4: target", 2: "a.mp4", 1001: "b.mp4: target", 1002: "b.mp4"}
    assert [event["pid"] for event in events if event["ph"] == "X"] == [1, 2, 1001, 1002]
