"""Second passes over captions, without the video: rewritten captions, and the summary of a clip's segments."""

import json
from contextlib import closing

import pytest

import vidspec
from tests.fake_captioner import SHORT, TEXT, FakeReader, profile_of, record
from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, UsageError
from vidspec.events.events import Finished
from vidspec.models.request import DialogueTurn
from vidspec.runs.feed import Feed
from vidspec.runs.formats.base import make_format
from vidspec.runs.job import Job, JobQuestions, named_fields
from vidspec.runs.limit import text_counter
from vidspec.runs.remaining import remaining_parts
from vidspec.runs.run import caption_jobs
from vidspec.runs.run_settings import read_texts
from vidspec.runs.schema import record_schema
from vidspec.runs.store.journal_lines import JournalEntry
from vidspec.runs.store.records import FileContent, lean_record, raw_caption, record_of, settings_digest

SAME = FileContent(1, 2)
SHORTEN = RunSpec(rewrite="use three words", batch=2)
FILM = RunSpec(segment=1.5, summary=True, batch=2)


def outcomes(captioner, config, *jobs):
    with closing(Feed(jobs, config, captioner.client.profile, [FakeReader()])) as feed:
        found = list(caption_jobs(captioner, feed, config))
        assert feed.nbytes == 0
    return found


def second_prompts(captioner):
    return [one["prompt"] for one in captioner.asked if one.get("text_only")]


def test_a_rewritten_caption_keeps_the_original(captioner):
    found = outcomes(captioner, SHORTEN, *(Job(name, number=at) for at, name in enumerate(("a.mp4", "b.mp4"), 1)))
    for one in found:
        assert (one.caption.caption, one.caption.ended, one.error) == (SHORT, "length", None)
        assert one.caption.original == {"text": TEXT, "ended": "eos"} and one.caption.text_about_video == TEXT
        assert one.caption.timings["end_to_end"] == 1.5 + one.caption.timings["rewrite"]
    assert [
        (prompt.count("use three words"), prompt.count("A red circle")) for prompt in second_prompts(captioner)
    ] == [
        (1, 1),
        (1, 1),
    ]


def test_the_record_of_a_rewritten_caption(captioner):
    import jsonschema

    config = RunSpec(rewrite="use three words", template="ohwx, {caption}")
    (one,) = outcomes(captioner, config, Job("a.mp4"))
    record = record_of(one, config, profile_of(), SAME)
    assert (record["caption"], record["text"]) == (f"ohwx, {SHORT}", SHORT)
    assert record["original"]["text"] == raw_caption(record) == TEXT
    assert json.loads(make_format("jsonl").line(record))["original"] == lean_record(record)["original"]
    properties = record_schema()["properties"]
    for key in ("original", "ended"):
        jsonschema.validate(record[key], properties[key])
    others = (RunSpec(template=config.template), RunSpec(rewrite="use four words", template=config.template))
    assert len({settings_digest(one, how, profile_of()) for how in (config, *others)}) == 3


def test_a_prompt_that_places_the_caption_is_used_as_it_is(captioner):
    job = Job("a.mp4", columns={"tone": "dry"})
    outcomes(captioner, RunSpec(rewrite="In a {tone} tone: {caption} {other}"), job)
    (prompt,) = second_prompts(captioner)
    assert prompt.startswith("In a ") and "dry" in prompt and "A red circle" in prompt and prompt.endswith("{other}")
    assert named_fields(RunSpec(rewrite="{tone} {caption}"), profile_of()) == {"tone"}


def test_a_file_whose_text_begins_with_an_at_sign_is_read_once(captioner, tmp_path):
    """The run that the journal keeps has the text, and names no file."""
    (tmp_path / "mention.txt").write_text("@vidspec: {caption}")
    config = read_texts(RunSpec(rewrite=f"@{tmp_path}/mention.txt"))
    assert read_texts(config) == config and config.rewrite_path is None
    outcomes(captioner, config, Job("a.mp4"))
    assert second_prompts(captioner)[0].startswith("@vidspec: ")


def test_a_rewrite_that_fails_is_a_failed_clip_with_the_original(captioner):
    (one,) = outcomes(captioner, SHORTEN, Job("wordy.mp4"))
    assert isinstance(one.error, GenerationError) and one.caption.caption is None
    assert one.caption.error == {
        "stage": "rewrite",
        "kind": "context",
        "message": "wordy.mp4: its rewrite: a prompt of 9 tokens is too long (take fewer --max-new-tokens)",
    }
    assert one.caption.original["text"] == one.caption.text_about_video == TEXT


def test_a_clip_that_fails_is_not_rewritten(captioner):
    (one,) = outcomes(captioner, SHORTEN, Job("missing.mp4"))
    assert one.caption.error["kind"] == "missing" and not second_prompts(captioner)


def test_turns_follow_the_answers_before_they_were_rewritten(captioner):
    talk = JobQuestions(("What is there?", "What moves?"), in_turns=True)
    found = outcomes(captioner, RunSpec(turn=talk.texts, rewrite="shorter"), Job("a.mp4"))
    assert [(one.segment, one.caption.caption) for one in found] == [(0, SHORT), (1, SHORT)]
    (second,) = [one for one in captioner.asked if one.get("earlier")]
    assert second["earlier"] == (DialogueTurn("What is there?", TEXT),)


def test_clips_keep_their_order_one_by_one(captioner):
    jobs = [Job(f"{number}.mp4", number=number) for number in range(1, 6)]
    found = outcomes(captioner, RunSpec(rewrite="shorter", batch=1), *jobs)
    assert [one.number for one in found] == [1, 2, 3, 4, 5]


LONG = f"{TEXT} " + " ".join(f"word{number}" for number in range(40)) + ". And so on."


def limited(captioner, answers, most=8, unit=None, template=None, path="a.mp4"):
    """The outcome of a clip whose caption, TEXT of 5 words, is replaced by the first of the answers to a rewrite."""
    left = iter(answers)

    def answer(path, prompt):
        captioner.asked.append({"prompt": prompt, "text_only": True})
        if isinstance(text := next(left), Exception):
            raise text
        yield Finished(record(path, caption=text, ended="length"))

    captioner._answer = answer
    config = RunSpec(rewrite="longer", limit=most, limit_tokenizer=unit, template=template)
    (one,) = outcomes(captioner, config, Job(path))
    return one, record_of(one, config, profile_of(), SAME)


@pytest.mark.parametrize(
    ("answers", "unit", "most", "caption", "limit"),
    [
        ([TEXT], None, 8, TEXT, (5, 0, False)),
        ([LONG, SHORT], None, 8, SHORT, (3, 1, False)),
        ([LONG, LONG, SHORT], None, 8, SHORT, (3, 2, False)),
        ([LONG, LONG, LONG], None, 8, TEXT, (5, 2, True)),  # at its last whole sentence
        ([LONG, "", GenerationError("no")], None, 8, TEXT, (5, 2, True)),
        ([LONG, LONG, LONG], None, 4, "A red circle\nmoves", (4, 2, True)),  # no sentence is as short
        ([LONG, LONG, LONG], "characters", 3, "A", (1, 2, True)),
    ],
)
def test_a_caption_longer_than_the_limit_is_asked_for_again_then_cut(captioner, answers, unit, most, caption, limit):
    import jsonschema

    one, made = limited(captioner, answers, most, unit)
    tokens, again, cut = limit
    expected = {"tokens": tokens, "most": most, "unit": unit or "words", "asked_again": again, "cut": cut}
    assert (one.caption.caption, one.caption.limit, made["limit"]) == (caption, expected, expected)
    assert one.caption.text_about_video == TEXT and len(second_prompts(captioner)) == 1 + again
    assert all("Shorten the description" in prompt for prompt in second_prompts(captioner)[1:])
    jsonschema.validate(made["limit"], record_schema()["properties"]["limit"])
    assert json.loads(make_format("jsonl").line(made))["limit"] == expected


def test_the_limit_holds_for_the_caption_in_its_template(captioner):
    one, made = limited(captioner, [LONG, TEXT, SHORT], 8, template="ohwx style of art: {caption}")
    assert made["caption"] == f"ohwx style of art: {SHORT}" and made["limit"]["tokens"] == 7
    one, _ = limited(captioner, [LONG, LONG, LONG], 3, template="ohwx style of art: {caption}")
    assert one.caption.error["kind"] == "limit" and "--limit" in str(one.error) and one.caption.original["text"] == TEXT


def test_a_limit_is_another_setting_and_needs_a_tokenizer_that_loads(tmp_path):
    configs = (RunSpec(), RunSpec(limit=8), RunSpec(limit=9), RunSpec(limit=8, limit_tokenizer="characters"))
    assert len({settings_digest(Job("a.mp4"), how, profile_of()) for how in configs}) == 4
    with pytest.raises(UsageError, match="needs limit"):
        RunSpec.make({"limit_tokenizer": "words"})
    with pytest.raises(UsageError, match="no tokenizer can be loaded") as refused:
        text_counter(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_folder_with_a_tokenizer_counts_what_it_adds(tmp_path):
    import tokenizers
    import transformers

    words = {"<s>": 0, "</s>": 1, "[UNK]": 2, "a": 3, "b": 4}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=own).save_pretrained(tmp_path)
    assert text_counter(str(tmp_path))("a b a") == 5


def test_a_summary_comes_with_the_last_segment(captioner):
    found = outcomes(captioner, FILM, Job("a.mp4"), Job("b.mp4", number=2))
    for path in ("a.mp4", "b.mp4"):
        mine = [one for one in found if one.path == path]
        assert [one.caption.summary for one in mine] == [None, SHORT]
        assert [one.caption.caption for one in mine] == [TEXT, TEXT] and mine[1].caption.original is None
    prompt = second_prompts(captioner)[0]
    assert prompt.index("0 s to 1.5 s: ") < prompt.index("1.5 s to 3 s: ") and prompt.count("A red circle moves") == 2


def test_a_summary_is_of_all_segments_those_of_an_earlier_run_too(captioner):
    job = Job("a.mp4", done={0: "A blue square."})
    (one,) = outcomes(captioner, FILM, job)
    (prompt,) = second_prompts(captioner)
    assert one.caption.summary == SHORT and "A blue square." in prompt and "A red circle" in prompt


def test_summaries_are_of_captions_as_the_model_wrote_them(captioner):
    config = RunSpec(segment=1.5, summary=True, rewrite="shorter")
    last = outcomes(captioner, config, Job("a.mp4"))[-1].caption
    assert (last.caption, last.summary, last.original["text"]) == (SHORT, SHORT, TEXT)
    assert second_prompts(captioner)[-1].count("A red circle") == 2


def test_a_summary_that_fails_keeps_the_caption(captioner):
    first, last = outcomes(captioner, FILM, Job("wordy.mp4"))
    assert first.error is None and last.caption.caption == TEXT and last.caption.summary is None
    assert last.caption.error["stage"] == "summary" and "(take longer segments)" in last.caption.error["message"]


def test_failed_segments_are_left_out_of_the_summary(captioner):
    found = outcomes(captioner, FILM, Job("missing.mp4"))
    assert [one.caption.summary for one in found] == [None, None] and not second_prompts(captioner)


@pytest.mark.parametrize("summary", [False, True])
def test_the_last_segment_is_captioned_with_any_other(summary):
    """Its record has the summary, which another caption changes."""

    def entry(number, failed):
        return JournalEntry(None, 0, 0, "clip", "settings", number, 3, SAME, failed)

    def left(*failed):
        parts = {number: entry(number, one) for number, one in enumerate(failed)}
        return remaining_parts(parts, SAME, segmented=True, retry=True, summary=summary)

    assert left(False, False, False) is None
    assert left(True, False, False) == ({1} if summary else {1, 2})
    assert left(False, False, True) == {0, 1}


def test_texts_with_a_summary(captioner):
    records = [record_of(one, FILM, profile_of(), SAME) for one in outcomes(captioner, FILM, Job("a.mp4"))]
    assert make_format("txt").document(records) == f"{SHORT}\n"
    lines = make_format("text").document(records).splitlines()
    assert len(lines) == 3 and lines[1].startswith("00:00:01.500-") and lines[2] == SHORT
    assert make_format("text", several=True).line(records[-1]).splitlines()[1] == f"a.mp4\t{SHORT}"
    assert SHORT not in make_format("srt").document(records)


def test_a_bug_in_a_second_pass_is_no_users_error(captioner):
    def broken(path, prompt):
        raise TypeError("broken")
        yield

    captioner._answer = broken
    (one,) = outcomes(captioner, SHORTEN, Job("a.mp4"))
    assert isinstance(one.error, TypeError) and one.caption.error["kind"] == "internal"


@pytest.mark.full
def test_second_passes_do_not_depend_on_the_draft():
    """With the built-in models, several clips at once; the text is that of the prompt alone."""
    small = {"frames": 2, "max_new_tokens": 8, "segment": "6s", "summary": True, "rewrite": "shorter"}
    clips = [str(clip) for clip in shipped()[:2]]
    texts = []
    for profile in ("ar", "vanilla-sd", "parallelvlm"):
        found = sorted(
            vidspec.run(clips, profile=profile, **small), key=lambda one: (one.path, one.video["timestamps"])
        )
        assert all(one.error is None and one.original and one.ended for one in found)
        assert sum(one.summary is not None for one in found) == len(clips) < len(found)
        texts.append([(one.caption, one.original["text"], one.summary) for one in found])
    assert texts[0] == texts[1] == texts[2]
