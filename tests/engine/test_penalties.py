"""Penalties row by row, against the processors of transformers and a loop over tokens."""

import pytest
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from vidspec.engine.choices import read_back_tokens
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import DrawRule, Sampling

VOCABULARY = 12
EACH = [
    Penalties(repetition_penalty=1.4),
    Penalties(repetition_penalty=0.6),
    Penalties(presence_penalty=0.7),
    Penalties(presence_penalty=-0.7),
    *(Penalties(no_repeat_ngram=size) for size in (1, 2, 3, 5)),
    Penalties(1.3, 0.5, 2),
]


def processed(penalties, prompt, text, logits):
    """One row (V,) by transformers; presence, which it lacks, token by token."""
    ids, scores = torch.tensor([[*prompt, *text]]), logits.float()[None].clone()
    if penalties.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(penalties.repetition_penalty)(ids, scores)
    for token in {*text}:
        scores[0, token] -= penalties.presence_penalty
    if penalties.no_repeat_ngram:
        scores = NoRepeatNGramLogitsProcessor(penalties.no_repeat_ngram)(ids, scores)
    return scores[0]


def drawn(seed):
    """A prompt, a text and paths behind it, of few different tokens."""
    rng = torch.Generator().manual_seed(seed)

    def tokens(most):
        count = int(torch.randint(most + 1, (), generator=rng))
        return torch.randint(VOCABULARY // 2, (count,), generator=rng).tolist()

    paths = [tokens(4) for _ in range(5)]
    return tokens(8), tokens(12), paths, torch.randn(5, VOCABULARY, generator=rng) * 3


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("penalties", EACH, ids=str)
def test_rows_are_those_of_transformers(penalties, dtype):
    """Computed in float32, whatever the model's dtype is, as ``generate`` does."""
    excluded = 0
    for seed in range(40):
        prompt, text, paths, logits = drawn(seed)
        logits = logits.to(dtype)
        history = PenaltyHistory(penalties, prompt)
        for at in range(0, len(text), 3):
            history.add(text[at : at + 3])
        expected = torch.stack([
            processed(penalties, prompt, [*text, *path], row) for path, row in zip(paths, logits, strict=True)
        ])  # fmt: skip
        before = logits.clone()
        found = history.changes_for_paths(paths)(logits)
        assert torch.equal(found, expected) and torch.equal(logits, before)
        excluded += int(found.isinf().sum())
    assert (excluded > 0) == (penalties.no_repeat_ngram > 0)


def test_rows_before_those_that_choose_stay_as_they_are():
    prompt, text, paths, logits = drawn(3)
    history = PenaltyHistory(Penalties(1.3, 0.5, 1), prompt)
    history.add(text)
    found = history.changes_for_paths(paths[:2])(logits)
    assert torch.equal(found[:3], logits[:3]) and torch.equal(
        found[3:], history.changes_for_paths(paths[:2])(logits[3:])
    )


@pytest.mark.parametrize("penalties", EACH, ids=str)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_of_tokens_that_were_emitted(penalties, count):
    prompt, _, _, logits = drawn(5)
    text = [1, 2, 1, 3, 1, 2, 1]
    history = PenaltyHistory(penalties, prompt)
    history.add(text)
    found = history.changes_for_unread(text[-count:])(logits[:count])
    ends = range(len(text) - count + 1, len(text) + 1)
    expected = [processed(penalties, prompt, text[:end], row) for end, row in zip(ends, logits, strict=False)]
    assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize("penalties", EACH, ids=str)
def test_logits_of_a_head_with_a_vocabulary_of_its_own(penalties):
    """The same as of all tokens, those left out that it cannot propose."""
    prompt, text, paths, logits = drawn(7)
    tokens = torch.tensor([5, 1, 0, 9])
    history = PenaltyHistory(penalties, prompt)
    history.add(text)
    assert torch.equal(
        history.changes_for_paths(paths, tokens)(logits[:, tokens]), history.changes_for_paths(paths)(logits)[:, tokens]
    )


@pytest.mark.parametrize("penalties", EACH, ids=str)
def test_ids_beyond_the_vocabulary_are_of_the_text_and_have_no_logits(penalties):
    """Placeholders of visual tokens, where target and draft share fewer ids."""
    prompt, text, paths, logits = [99, 99, 3, 99, 99], [3, 2], [[], [4]], torch.randn(2, VOCABULARY)
    history = PenaltyHistory(penalties, prompt)
    history.add(text)
    wider = torch.cat([logits, torch.zeros(2, 100 - VOCABULARY)], dim=1)
    assert torch.equal(
        history.changes_for_paths(paths)(logits), history.changes_for_paths(paths)(wider)[:, :VOCABULARY]
    )


def test_all_choices_of_a_pass_are_by_the_changed_logits():
    """Argmax, draws and the likeliest tokens, of the clip that has a history alone; excluded tokens are no fault."""
    history = PenaltyHistory(Penalties(no_repeat_ngram=1), [2, 1])
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    same = DrawRule(Sampling(0.5), (0.999999,), keeps_probs=True)
    batch = [
        Rows(None, [0], draw=same, top=2, processor=history.changes_for_paths([()])),
        Rows(None, [0], draw=same, top=2),
    ]
    changed, plain = read_back_tokens(batch, [PassResult(logits, logits)] * 2)
    assert (changed.likeliest, changed.top[0][0], changed.finite) == ([0], (0, 3), True)
    assert changed.chosen == [3] and changed.probs[0, 1:3].tolist() == [0.0, 0.0]
    assert (plain.likeliest, plain.top[0][0], plain.finite) == ([2], (2, 1), True)
    assert torch.equal(changed.logits, history.changes_for_paths([()])(logits)) and torch.equal(plain.logits, logits)


@pytest.mark.parametrize("fault", [torch.nan, torch.inf])
def test_faults_are_found_behind_penalties(fault):
    logits = torch.tensor([[0.0, fault]])
    history = PenaltyHistory(Penalties(no_repeat_ngram=1), [1])
    (found,) = read_back_tokens(
        [Rows(None, [0], processor=history.changes_for_paths([()]))], [PassResult(logits, logits)]
    )
    assert found.finite is False
