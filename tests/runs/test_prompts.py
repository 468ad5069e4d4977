"""Several prompts about a clip in a run: a record for each, in their order, whatever becomes of the others."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner, FakeReader, profile_of, question, stream_events
from vidspec.cli import main
from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, UsageError
from vidspec.events.events import Finished, InputsReleased
from vidspec.runs.executors.base import TaskQueue
from vidspec.runs.feed import Feed
from vidspec.runs.formats.base import make_format
from vidspec.runs.inputs import collect_inputs
from vidspec.runs.job import Job, JobQuestions
from vidspec.runs.run import caption_jobs
from vidspec.runs.sources.manifests import parse_manifest
from vidspec.runs.store.journal import hidden_journal
from vidspec.runs.store.records import lean_record, settings_digest

PROMPTS = ("What is there?", "What moves?", "Where to?")
ASKED = JobQuestions(PROMPTS, in_turns=False)


class Asked(FakeCaptioner):
    """Notes which prompts are in flight when one begins, and fails where it is told to."""

    fails = ()

    def __init__(self):
        super().__init__()
        self.begun, self.ended, self.beside = [], [], []

    def stream(self, path, *, prompt, **more):
        self.beside.append((prompt, [one for one in self.begun if one not in self.ended]))
        self.begun.append(prompt)
        for event in stream_events(path):
            if (prompt, type(event)) in self.fails:
                self.ended.append(prompt)
                raise GenerationError("no")
            if isinstance(event, Finished):
                self.ended.append(prompt)
            yield event


def outcomes(captioner, tasks, how):
    feed = Feed(tasks, how, captioner.client.profile, [FakeReader()])
    with closing(feed):
        yield from caption_jobs(captioner, feed, how)
    assert feed.nbytes == 0


def kinds(found):
    return [(one.segment, one.is_last, one.caption.error and one.caption.error["kind"]) for one in found]


def test_the_others_begin_when_the_first_has_read():
    captioner = Asked()
    found = list(outcomes(captioner, [Job("a.mp4")], RunSpec(prompt=ASKED.texts)))
    assert kinds(found) == [(0, False, None), (1, False, None), (2, True, None)]
    assert captioner.beside == [(PROMPTS[0], []), (PROMPTS[1], [PROMPTS[0]]), (PROMPTS[2], list(PROMPTS[:2]))]


@pytest.mark.parametrize("batch", [1, 2])
def test_several_clips(batch):
    captioner = Asked()
    tasks = [Job(path, number=number) for number, path in enumerate(("a.mp4", "b.mp4"), start=1)]
    found = list(outcomes(captioner, tasks, RunSpec(prompt=ASKED.texts, batch=batch)))
    for path in ("a.mp4", "b.mp4"):
        of_one = [one for one in found if one.path == path]
        assert kinds(of_one) == [(0, False, None), (1, False, None), (2, True, None)]
    assert sorted(captioner.begun) == sorted(2 * PROMPTS) and captioner.client.most == batch


@pytest.mark.parametrize("when", [InputsReleased, Finished])
def test_a_prompt_that_fails_loses_no_other(when):
    captioner = Asked()
    captioner.fails = {(PROMPTS[0], when)}
    found = list(outcomes(captioner, [Job("a.mp4")], RunSpec(prompt=ASKED.texts)))
    assert [one.caption.error is None for one in found] == [False, True, True]
    assert captioner.begun == list(PROMPTS)
    if when is InputsReleased:  # the next one reads, and the last waits for it
        assert captioner.beside[1:] == [(PROMPTS[1], []), (PROMPTS[2], [PROMPTS[1]])]


def test_one_that_ended_a_process_is_asked_alone():
    captioner = Asked()
    found = list(outcomes(captioner, [Job("a.mp4", run_alone=True)], RunSpec(prompt=ASKED.texts)))
    assert len(found) == 3 and [beside for _, beside in captioner.beside] == [[], [], []]


def test_what_was_answered_before_is_not_asked_again():
    captioner = Asked()
    found = list(outcomes(captioner, [Job("a.mp4", done={1: "B."})], RunSpec(prompt=ASKED.texts)))
    assert kinds(found) == [(0, False, None), (2, True, None)] and captioner.begun == [PROMPTS[0], PROMPTS[2]]


def test_a_captioner_that_dies_goes_on_with_the_others():
    queue = TaskQueue([Job("a.mp4")], "vanilla-sd")
    first = next(outcomes(Asked(), [queue.take("first")], RunSpec(prompt=ASKED.texts)))
    queue.mark_begun("first", first)
    queue.mark_done("first", first)
    assert queue.fail_worker("first", "signal 9") == []
    assert queue.take("second").done == {0: TEXT}


def test_other_prompts_are_other_settings():
    def of(entry, **asked):
        return settings_digest(entry, RunSpec(**asked), profile_of())

    names = [
        of(Job("a.mp4")),
        of(Job("a.mp4"), prompt=PROMPTS),
        of(Job("a.mp4"), turn=PROMPTS),
        of(Job("a.mp4"), prompt=PROMPTS[:2]),
    ]
    assert len(set(names)) == 4 and of(Job("a.mp4", questions=ASKED)) == names[1]


def test_records_of_prompts(recorded):
    settings = RunSpec(prompt=PROMPTS), profile_of()
    records = [
        recorded(
            "a.mp4",
            settings=settings,
            segment=number,
            segments=3,
            changes={"question": question("prompt", number, prompt)},
        )
        for number, prompt in enumerate(PROMPTS)
    ]
    assert [lean_record(one)["prompt"] for one in records] == list(PROMPTS)
    assert all(lean_record(one)["question"].keys() == {"kind", "index", "prompt"} for one in records)
    assert all(lean_record(lean_record(one)) == lean_record(one) and "saved_s" in one["question"] for one in records)
    said = " ".join(TEXT.split())
    assert (
        make_format("txt").document(records) == 3 * f"{said}\n"
        and make_format("text", several=True).line(records[1]) == f"a.mp4\t{said}"
    )
    assert [make_format("csv", several=True).line(one).rpartition(",")[2] for one in records] == list(PROMPTS)


@pytest.mark.full
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_run_resumed_behind_the_first_prompt_gives_the_same_bytes(tmp_path, monkeypatch, form):
    """With real models, whose second prompt finds the first one's rows only where both are asked in one run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    command = ["caption", str(shipped()[0]), "--frames", "2", "--max-new-tokens", "4", "--quiet", "--format", form]
    command += [word for prompt in PROMPTS[:2] for word in ("--prompt", prompt)]
    for name in ("whole", "resumed"):
        assert main([*command, "-o", f"{name}.{form}"]) == 0
    whole, journal = Path(f"whole.{form}").read_bytes(), Path(f"resumed.{form}")
    if form == "csv":  # as a kill between the first record and the table leaves it
        journal.unlink()
        journal = hidden_journal(journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    second = [at for at, line in enumerate(lines) if b'"job"' in line][1]
    journal.write_bytes(b"".join(lines[:second]))
    assert main([*command, "-o", f"resumed.{form}"]) == 0
    assert Path(f"resumed.{form}").read_bytes() == whole and whole.count(b"\n") == 2 + (form == "csv")


def test_other_prompts_are_other_inputs(tmp_path):
    rows = ('["x", "y"]', '["x", "z"]', '["x", "y"]')
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("".join(f'{{"path": "a.mp4", "prompt": {prompt}}}\n' for prompt in rows))
    found = collect_inputs(RunSpec(manifest=str(manifest)))
    assert [one.questions.texts for one in found.entries] == [("x", "y"), ("x", "z")] and len(found.duplicates) == 1


def test_prompts_in_a_manifest():
    entries = parse_manifest('{"path": "a.mp4", "prompt": ["What is there?", "What moves?"]}', "m.jsonl", ".")
    assert [one.questions for one in entries] == [JobQuestions(PROMPTS[:2], False)]
    (one,) = parse_manifest('{"path": "a.mp4", "prompt": ["What is there?"]}', "m.jsonl", ".")
    assert (one.prompt, one.questions) == (PROMPTS[0], None)
    for prompt in ("[]", "3", '["x", 1]', '[" "]'):
        with pytest.raises(UsageError, match="line 1: prompt must be text or a list of texts"):
            list(parse_manifest(f'{{"path": "a.mp4", "prompt": {prompt}}}', "m.jsonl", "."))
    with pytest.raises(UsageError, match="asked twice"):
        list(parse_manifest('{"path": "a.mp4", "prompt": ["x", "x"]}', "m.jsonl", "."))
