"""The relevance study: what counts as a fact, the AUC, and a clip of the built-in pair from end to end."""

import random

import pytest
import torch

from research.relevance import Clip, Loosened, Token, auc, facts_of, report, study, within, words_of_facts
from research.world.captions import caption
from research.world.samples import draw_sample
from research.world.scoring import parse
from vidspec.acceptance.rules.lvspec import relevance
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped


def stated(text):
    return [text[start:end] for start, end in words_of_facts(text)]


def test_facts_are_the_words_that_the_scorer_reads():
    text = (
        "In this clip, two objects can be seen against a striped navy background. "
        "The first object is a large red circle at the top left. It stays in the same spot for the whole video. "
        "The camera is still."
    )
    expected = ["two", "striped", "navy", "large", "red", "circle", "top", "left", "stays", "same", "spot"]
    assert stated(text) == expected
    assert stated("It is the only object in the whole scene. The camera does not move, and nothing else enters.") == []


@pytest.mark.parametrize("seed", range(20))
def test_a_caption_says_nothing_without_its_facts(seed):
    sample = draw_sample(seed)
    text = caption(sample.scene, random.Random(seed))
    assert len(parse(text)) > 8
    for start, end in reversed(words_of_facts(text)):
        text = text[:start] + text[end:]
    assert len(parse(text)) == 0


def test_a_token_states_a_fact_with_any_of_its_letters_but_not_with_a_space():
    assert facts_of(["A re", "d", " cir", "cle", " moves", " to", " the left", "", "."]) == [
        *(True, True, True, True, True),
        *(False, True, False, False),
    ]
    assert facts_of(["the ", "top", " left", " then"]) == [False, True, True, False]


def test_auc_is_the_chance_that_a_positive_is_higher():
    assert auc([1.0, 2.0, 3.0, 4.0], [False, False, True, True]) == 1.0
    assert auc([1.0, 2.0, 3.0, 4.0], [True, True, False, False]) == 0.0
    assert auc([1.0, 3.0, 2.0, 2.0], [True, True, False, False]) == 0.5
    assert auc([2.0, 2.0, 1.0], [True, False, False]) == 0.75
    assert auc([1.0, 2.0], [True, True]) is None


def test_relevance_is_the_mean_of_the_largest_cosines():
    visual = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert relevance(torch.tensor([[3.0, 4.0]]), visual, 2).tolist() == pytest.approx([(0.6 + 0.8) / 2])
    assert relevance(torch.tensor([[3.0, 4.0]]), visual, 10).tolist() == pytest.approx([(0.6 + 0.8 - 0.6) / 3])


def test_stretches_hold_each_token_once():
    tokens = [Token(0.0, place / 10, False) for place in range(10)]
    assert [len(stretch) for stretch in within(tokens, 5)] == [2] * 5


def test_the_report_says_what_was_counted():
    own = (Token(0.9, 0.0, True), Token(0.1, 0.1, False), Token(0.2, 0.5, True), Token(0.4, 0.6, False))
    text = report("a pair", [Clip(own, Loosened(tokens=10, facts=5, loose=4, loose_facts=1))])
    assert "4 tokens of the target's captions, 50.0% of them facts" in text
    assert "| relevance | 0.750 |" in text and "| place in the caption alone (earlier is higher) | 0.750 |" in text
    assert (
        "let 4 of 10 emitted tokens pass" in text and "1 of them (25.0%) state facts" in text and "tokens 50.0%" in text
    )


@pytest.mark.full
def test_a_clip_of_the_built_in_pair():
    with Captioner.from_profile("lvspec", overrides={"video.frames": 8}) as captioner:
        found = study(captioner, shipped()[0])
        record = captioner.caption(shipped()[0])
    assert 0.2 < sum(token.fact for token in found.own) / len(found.own) < 0.6
    assert all(-1 <= token.relevance <= 1 for token in found.own) and found.own[0].place == 0.0
    assert found.loosened.tokens == len(record.token_ids)
    # the rule measured the same at the places where it let a token pass
    assert found.loosened.loose == len(record.loose["tokens"])
