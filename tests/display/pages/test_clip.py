import re
from html import unescape

import pytest

from tests.display.pages.clips_of_reports import ROUNDS, SEEN, SPANS, clip, told
from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.clip_sections import clip_sections, counters, speeds
from vidspec.display.pages.tokens import VerifiedWindow, origin_counts, tokens, windows


def shown(made):
    """The text of a page about a clip."""
    return unescape(" ".join(re.sub("<[^>]*>", " ", clip_sections(made)).split()))


def test_every_token_says_who_wrote_it_and_when():
    found = list(tokens(clip()))
    assert [one.text for one in found] == ["A", " red", " <b>circle</b>", "\nmoves", " left.", "∎"]
    assert [one.origin for one in found] == ["target", "draft", "loose", "correction", "draft", "bonus"]
    assert [one.round for one in found] == [0, 1, 1, 1, 2, 2]
    assert "from the target's prefill" in found[0].about
    assert "round 1: 4 drafted, 2 accepted; target probability 0.75; 500 ms after the prefill" in found[1].about
    assert "probability" not in found[0].about and "target probability 2e-05" in found[2].about
    assert "2 accepted; the draft proposed “ stays”, “∎” here; target probability 1; 500 ms" in found[3].about
    assert sum("the draft proposed" in one.about for one in found) == 1
    assert found[2].about.endswith("accepted by relevance, the target's choice was “ square”; visual relevance 0.250")
    assert origin_counts(clip()) == {"draft": 2, "correction": 1, "bonus": 1, "loose": 1, "target": 1}


def test_a_record_alone_tells_the_counts_and_what_it_lacks():
    made = ShownClip(told())
    assert not list(tokens(made)) and not made.spans and not made.pictures
    assert origin_counts(made) == {"draft": 2, "correction": 1, "bonus": 1, "loose": 1, "target": 1}
    assert windows(made) == [VerifiedWindow(0 + 1, 2), VerifiedWindow(2, 1)]
    page = shown(made)
    assert "Not on this page" in page and "Not on this page" not in shown(clip())
    for absent in ("The origin and the probability of each token:", "The visual tokens that", "The timeline: caption"):
        assert absent in page


def test_a_clip_that_is_asked_several_things_is_named_by_what_it_was_asked():
    assert ShownClip(told(question={"prompt": "What\nmoves?"})).name.endswith(".mp4: What\\nmoves?")
    assert ShownClip(told(question=None)).name.endswith(".mp4")


def test_windows_hold_what_was_drafted_and_the_targets_own():
    assert windows(clip()) == [VerifiedWindow(1, 2, 4, 1), VerifiedWindow(2, 1, 1, 1)]
    assert max(one.height for one in windows(clip())) == 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "saw 3 of them (38%)"),
        ({}, "It proposed 5 tokens, and 3 (75%) were accepted"),
        ({}, "passes for the 5 tokens after the first: 4.00 tokens per pass, against one in plain decoding"),
        ({}, "decoding was 2.00x as fast"),
        ({}, "not lossless: the caption may differ from the target's own. 17% of its tokens are not"),
        ({"lossless": True, "loose": None}, "is lossless: the caption is the one that the target writes by itself"),
        (
            {"speed": {"baseline": {"decode": 2.5, "end_to_end": 1.5}}},
            "decoding was 2.50x as fast, and the whole clip 1.50x",
        ),
        (
            {"speed": {"baseline": {"decode": 2.5, "end_to_end": 1.5, "tokens": 9}}},
            "and the whole clip, at the same 9 tokens, 1.50x",
        ),
        (
            {"counters": {**told()["counters"], "drafted": 0}},
            "was drafted: it wrote the 6 tokens one by one",
        ),
        ({"lossy": {"method": "fastv", "retention": 0.25}}, "itself was pruned by fastv: its layers read 25% of these"),
        ({"counters": {}}, "This record has a caption but no measurements"),
    ],
)
def test_in_short(changes, said):
    assert said in shown(ShownClip(told(**changes)))


def test_speeds_stand_beside_plain_decoding_where_that_was_measured():
    alone = speeds(clip())
    assert [one.method for one in alone] == [0.5, 1.0, 1.5] and {one.plain for one in alone} == {None}
    timings = {"time_to_first_token": 0.25, "decode": 3.0, "end_to_end": 3.25}
    baseline = {"timings": timings, "time_to_first_token": 0.5, "decode": 3.0, "end_to_end": 2.17}
    both = speeds(ShownClip(told(speed={"baseline": baseline})))
    assert [one.plain for one in both] == [0.25, 3.0, 3.25]


def test_every_counter_has_a_definition():
    rows = counters(clip())
    names = {name.replace(" ", "_") for name, _, _ in rows}
    of = told()
    lengths = {words.LENGTH_NAMES[name].replace(" ", "_") for name in of["lengths"]}
    assert names == (of["counters"].keys() - {"accepted_lengths"}) | lengths
    assert all(meaning for _, _, meaning in rows)


def test_a_part_of_a_file_says_which():
    video = {"duration_s": 20.0, "timestamps": [5.0, 6.0, 7.0, 8.0], "frames": 4}
    assert ShownClip(told(video=video)).name.endswith(".mp4, 0:05 to 0:08")
    assert ShownClip({**told(), "job": {"start": 5.0, "end": 65.0}}).name.endswith(".mp4, 0:05 to 1:05")
    assert ShownClip(told(video={**video, "timestamps": [0.0, 6.6, 13.2, 19.8]})).name.endswith(".mp4")


def test_what_a_terminal_or_a_reader_would_obey_is_made_harmless():
    made = ShownClip(told(path="a\x1b[31m\u202eb.mp4", caption="a\u202eb"))
    assert made.name == "a\\x1b[31m\\u202eb.mp4" and made.caption == "a\\u202eb"


def test_reading_in_another_process_is_told_apart():
    told_apart = "Reading the frames took 500 ms before that, in a separate process."
    assert told_apart in shown(clip(record=told(timings={"decode_video": 0.5})))
    read = (*SPANS, type(SPANS[0])("target", "decode_video", 0.0, 0.1))
    assert told_apart not in shown(clip(record=told(timings={"decode_video": 0.5}), spans=read))
    assert SEEN.grid == (2, 2, 2) and len(ROUNDS) == 3
