"""Dialogues in a run: a record for each turn, in their order; resumed where they were."""

from contextlib import closing

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner, FakeReader, profile_of, question
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError
from vidspec.models.request import DialogueTurn
from vidspec.runs.executors.base import TaskQueue
from vidspec.runs.feed import Feed
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job, JobQuestions
from vidspec.runs.run import caption_jobs
from vidspec.runs.sources.manifests import parse_manifest
from vidspec.runs.store.records import lean_record, settings_digest

TURNS = ("What is there?", "What moves?", "Where to?")
TALK = JobQuestions(TURNS, in_turns=True)


def outcomes(captioner, tasks, how):
    with closing(Feed(tasks, how, captioner.client.profile, [FakeReader()])) as feed:
        return list(caption_jobs(captioner, feed, how))


@pytest.mark.parametrize("batch", [1, 3])
def test_each_turn_knows_those_before(captioner, batch):
    tasks = [Job(path, number=number) for number, path in enumerate(("a.mp4", "b.mp4"), start=1)]
    found = outcomes(captioner, tasks, RunSpec(turn=TALK.texts, batch=batch))
    for path in ("a.mp4", "b.mp4"):
        of_one = [one for one in found if one.path == path]
        assert [(work.segment, work.segments, work.is_last) for work in of_one] == [
            (0, 3, False),
            (1, 3, False),
            (2, 3, True),
        ]
    said = [DialogueTurn(turn, TEXT) for turn in TURNS]
    asked = sorted(((one["prompt"], one.get("earlier", ())) for one in captioner.asked), key=lambda one: len(one[1]))
    assert asked == [(TURNS[turn], tuple(said[:turn])) for turn in range(3) for _ in range(2)]


def test_a_turn_that_fails_ends_the_talk(captioner):
    found = outcomes(captioner, [Job("missing.mp4"), Job("a.mp4", number=2)], RunSpec(turn=TALK.texts, batch=1))
    kinds = [(one.path, one.segment, one.caption.error and one.caption.error["kind"]) for one in found]
    assert sorted(kinds, key=lambda one: one[0], reverse=True) == [  # of one clip as they came
        *(("missing.mp4", turn, "turn" if turn else "missing") for turn in range(3)),
        *(("a.mp4", turn, None) for turn in range(3)),
    ]


def test_what_was_answered_before_is_not_asked_again(captioner):
    (*_, last) = found = outcomes(captioner, [Job("a.mp4", done={0: "A.", 1: "B."})], RunSpec(turn=TALK.texts))
    assert len(found) == 1 and last.segment == 2
    (asked,) = captioner.asked
    assert asked["earlier"] == (DialogueTurn(TURNS[0], "A."), DialogueTurn(TURNS[1], "B."))
    failed = outcomes(captioner, [Job("a.mp4", done={0: "A.", 1: None})], RunSpec(turn=TALK.texts))
    assert [one.caption.error["kind"] for one in failed] == ["turn"] and len(captioner.asked) == 1


def test_turns_behind_one_that_is_asked_again_are_asked_again(captioner):
    found = outcomes(captioner, [Job("a.mp4", done={1: "B."})], RunSpec(turn=TALK.texts))
    assert [(one.segment, one.is_last) for one in found] == [(0, False), (1, False), (2, True)]


def test_verify_asks_plain_decoding_the_same(captioner, monkeypatch):
    told = []
    plain = FakeCaptioner.caption
    monkeypatch.setattr(
        FakeCaptioner, "caption", lambda self, path, **more: told.append(more) or plain(self, path, plain=True)
    )
    outcomes(captioner, [Job("a.mp4")], RunSpec(turn=TURNS[:2], verify=True))
    assert [one.get("earlier", ()) for one in told] == [(), (DialogueTurn(TURNS[0], TEXT),)]


def test_a_captioner_that_dies_goes_on_with_the_turn(captioner):
    how = RunSpec(turn=TALK.texts, batch=1)
    queue = TaskQueue([Job("a.mp4")], "vanilla-sd")
    task = queue.take("first")
    first = outcomes(captioner, [task], how)[0]
    queue.mark_begun("first", first)
    queue.mark_done("first", first)
    assert queue.fail_worker("first", "signal 9") == []
    assert queue.take("second").done == {0: TEXT}


def test_other_turns_are_other_settings():
    def of(entry, how):
        return settings_digest(entry, how, profile_of())

    plain, talk = RunSpec(), RunSpec(turn=TURNS)
    names = [
        of(Job("a.mp4"), plain),
        of(Job("a.mp4"), talk),
        of(Job("a.mp4"), RunSpec(turn=TURNS[:2])),
        of(Job("a.mp4", questions=JobQuestions(TURNS[:1], True)), talk),
    ]
    assert len(set(names)) == 4
    assert of(Job("a.mp4", prompt="Describe."), talk) == names[0]  # its own prompt goes before the run's turns
    assert of(Job("a.mp4", questions=TALK), plain) == names[1]


def test_records_of_turns(recorded):
    settings = RunSpec(turn=TURNS), profile_of()
    turns = [
        recorded(
            "a.mp4",
            settings=settings,
            segment=turn,
            segments=3,
            changes={"question": question("turn", turn, TURNS[turn])},
        )
        for turn in range(3)
    ]
    assert (
        [one["job"]["prompt"] for one in turns]
        == list(TURNS)
        == [lean_record(one)["question"]["prompt"] for one in turns]
    )
    assert len({one["job"]["settings"] for one in turns}) == 1
    said = " ".join(TEXT.split())
    assert (
        make_format("text").line(turns[1]) == said
        and make_format("text", several=True).line(turns[1]) == f"a.mp4\t{said}"
    )
    assert make_format("txt").document(turns) == 3 * f"{said}\n"


def test_turns_in_a_manifest():
    entries = parse_manifest('{"path": "a.mp4", "turns": ["What is there?", "What moves?"]}', "m.jsonl", ".")
    assert [one.questions for one in entries] == [JobQuestions(TURNS[:2], True)]
    for turns, why in (("[]", "list of texts"), ('"x"', "list of texts"), ('["x", 1]', "list"), ('[" "]', "list")):
        with pytest.raises(UsageError, match=f"line 1: turns must be a {why}"):
            list(parse_manifest(f'{{"path": "a.mp4", "turns": {turns}}}', "m.jsonl", "."))
    with pytest.raises(UsageError, match="exclude each other"):
        list(parse_manifest('{"path": "a.mp4", "prompt": "x", "turns": ["y"]}', "m.jsonl", "."))
