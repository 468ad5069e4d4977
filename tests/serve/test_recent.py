"""Further questions about a video: the texts of a server that reads it again, without reading it; bounded memory."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.servers import asked, data_url, serving
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.models.request import DialogueTurn
from vidspec.runs.reader import ClipReader
from vidspec.serve import recent

CLIPS = shipped()
FEW = {"video.frames": 4, "generate.max_new_tokens": 24, "models.device": "cpu"}
QUESTIONS = ("Describe the video.", "Where does the circle go?", "And then?")


@pytest.fixture(scope="module")
def captioner_of():
    made = {}

    def captioner(name):
        if name not in made:
            made[name] = Captioner.from_profile(name, overrides=FEW)
        return made[name]

    yield captioner
    for one in made.values():
        one.close()


@pytest.fixture
def work(monkeypatch):
    """Counts of decoded and encoded clips."""
    counts = Counter()

    def count(owner, name):
        inner = getattr(owner, name)

        def counted(*args, **options):
            counts[name] += 1
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    def watch(captioner):
        for owner, name in (
            (ClipReader, "read"),
            (captioner.client.inputs.vision, "prepare"),
            (captioner.client.setup.target.model, "encode_steps"),
        ):
            count(owner, name)
        return counts

    return watch


def dialogue(clip, *turns, **fields):
    """The body of the request after ``turns``: question, answer, question, ..."""
    body = asked(data_url(clip), text=turns[0], **fields)
    roles = ("assistant", "user") * (len(turns) // 2)
    body["messages"] += [{"role": role, "content": text} for role, text in zip(roles, turns[1:], strict=True)]
    return body


def ask(url, body):
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()["choices"][0]["message"]["content"], answer.json()["vidspec"]
    lines = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    own = {key: value for line in lines for key, value in line.get("vidspec", {}).items()}
    return "".join(line["choices"][0]["delta"].get("content", "") for line in lines), own


def metric(url, name):
    text = httpx.get(f"{url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"vidspec_{name} "))


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("name", full_but(["sd-attention"], ["vanilla-sd", "sd-attention"]))
@pytest.mark.parametrize("fields", [{}, {"stream": True, "vidspec": {"details": True}}], ids=["plain", "estimated"])
def test_a_further_question_reads_only_what_is_new(captioner_of, work, name, fields):
    captioner = captioner_of(name)
    expected, earlier = [], ()
    for question in QUESTIONS:
        expected.append(captioner.caption(CLIPS[1], prompt=question, earlier=earlier).caption)
        earlier += (DialogueTurn(question, expected[-1]),)
    other = captioner.caption(CLIPS[1], prompt="What moves?", system="Be brief.").caption
    with serving(captioner) as (url, _):
        counts, turns = work(captioner), [QUESTIONS[0]]
        for number in range(len(QUESTIONS)):
            text, own = ask(url, dialogue(CLIPS[1], *turns, **fields))
            assert text == expected[number]
            assert (own["reused"] > captioner.client.setup.target.model.visual_tokens(4, 64, 64)) == (number > 0)
            turns += [text, *QUESTIONS[number + 1 : number + 2]]
        assert ask(url, asked(data_url(CLIPS[1]), text=QUESTIONS[0]))[0] == expected[0]
        briefly = asked(data_url(CLIPS[1]), text="What moves?")
        briefly["messages"].insert(0, {"role": "system", "content": "Be brief."})
        text, own = ask(url, briefly)
        assert text == other and own["reused"] == 0, "the system message comes before the video"
        assert counts["read"] == counts["prepare"] == 1 and counts["encode_steps"] <= 1
        ask(url, asked(data_url(CLIPS[1]), mm_processor_kwargs={"fps": 2}))
        assert counts["read"] == counts["prepare"] == 2, "other frames"


@pytest.mark.full
def test_where_the_text_depends_on_the_drafts_view_it_is_chosen_again(captioner_of, work):
    captioner, fields = captioner_of("sd-attention"), {"temperature": 1.0, "seed": 5}
    expected = [captioner.caption(CLIPS[0], prompt=question, **fields).caption for question in QUESTIONS]
    with serving(captioner) as (url, _):
        counts = work(captioner)
        for question, text in zip(QUESTIONS, expected, strict=True):
            found, own = ask(url, asked(data_url(CLIPS[0]), text=question, **fields))
            assert (found, own["reused"]) == (text, 0)
        assert counts["read"] == counts["prepare"] == 1 and counts["encode_steps"] <= 1


@pytest.mark.full
def test_questions_about_the_same_videos_at_once(captioner_of):
    captioner = captioner_of("vanilla-sd")
    wanted = [(clip, question) for question in QUESTIONS for clip in CLIPS[:3]] * 2
    expected = {(clip, text): captioner.caption(clip, prompt=text).caption for clip, text in wanted}
    with serving(captioner, batch=4) as (url, _), ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda one: ask(url, asked(data_url(one[0]), text=one[1])), wanted))
    assert [text for text, _ in found] == [expected[one] for one in wanted]
    assert any(own["reused"] for _, own in found)


@pytest.mark.full
def test_memory_is_bounded_and_given_back(captioner_of, work):
    captioner = captioner_of("vanilla-sd")
    slab = captioner.client.setup.target.model.decoder.slab
    assert slab.used == 0
    with serving(captioner) as (url, _):
        ask(url, asked(data_url(CLIPS[0])))
        one = int(metric(url, "kept_bytes"))
        assert one > captioner.client.inputs.read(CLIPS[0]).nbytes + slab.used * slab.entry_bytes > slab.entry_bytes
    assert slab.used == 0
    most = one * 5 // 2
    with serving(captioner, keep_bytes=most) as (url, _):
        counts = work(captioner)
        for clip in (*CLIPS[:3], CLIPS[1]):
            ask(url, asked(data_url(clip)))
            assert 0 < metric(url, "kept_bytes") <= most
        assert counts["read"] == 3, "the last two are kept"
        ask(url, asked(data_url(CLIPS[0])))
        assert counts["read"] == 4, "the first had to go"
        ask(url, asked(data_url(CLIPS[1])))
        assert counts["read"] == 4, "the one that waited longest went then"
    assert slab.used == 0


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("settings", [{"keep_bytes": 0}, {"keep_bytes": 1000}])
def test_nothing_is_kept_without_memory_for_it(captioner_of, work, settings):
    captioner = captioner_of("vanilla-sd")
    with serving(captioner, **settings) as (url, _):
        counts = work(captioner)
        texts = [ask(url, asked(data_url(CLIPS[0])))[0] for _ in range(2)]
        assert (
            counts["read"] == 2
            and metric(url, "kept_bytes") == 0 == captioner.client.setup.target.model.decoder.slab.used
        )
    assert texts == [captioner.caption(CLIPS[0]).caption] * 2


@pytest.mark.full
def test_what_was_not_asked_about_for_long_is_dropped(captioner_of, monkeypatch):
    captioner = captioner_of("vanilla-sd")
    monkeypatch.setattr(recent, "KEPT_S", 0.2)
    with serving(captioner) as (url, _):
        ask(url, asked(data_url(CLIPS[0])))
        end = time.monotonic() + 60
        while metric(url, "kept_bytes") and time.monotonic() < end:
            time.sleep(0.05)
        assert metric(url, "kept_bytes") == 0 == captioner.client.setup.target.model.decoder.slab.used
