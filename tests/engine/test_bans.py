"""Banned tokens row by row, against the processors of transformers."""

import pytest
import torch
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tests.engine.test_penalties import VOCABULARY, drawn
from vidspec.engine.history import BanHistory, TokenBans, suppress

RUNS = ((2, 1), (3, 3, 0), (0, 4), (5, 1, 2, 0))


def processed(bans, prompt, text, logits):
    ids, scores = torch.tensor([[*prompt, *text]], dtype=torch.long), logits.clone()[None]
    if bans.runs:
        scores = NoBadWordsLogitsProcessor([list(run) for run in bans.runs])(ids, scores)
    if bans.first:
        scores = SuppressTokensAtBeginLogitsProcessor(bans.first, len(prompt))(ids, scores)
    return scores[0]


@pytest.mark.parametrize(
    "bans", [TokenBans(first=(1, 5)), TokenBans(runs=RUNS), TokenBans(first=(2,), runs=RUNS)], ids=str
)
def test_rows_are_those_of_transformers(bans):
    excluded = 0
    for seed in range(60):
        prompt, text, paths, logits = drawn(seed)
        text, prompt = text if seed % 3 else [], prompt or [1]
        history = BanHistory(bans, prompt)
        history.add(text)
        expected = torch.stack([
            processed(bans, prompt, [*text, *path], row) for path, row in zip(paths, logits, strict=True)
        ])  # fmt: skip
        assert torch.equal(history.changes_for_paths(paths)(logits), expected)
        count = min(len(text), 2)
        earlier = history.before(count).changes_for_paths([text[len(text) - count :]])(logits[:1])
        assert torch.equal(earlier[0], processed(bans, prompt, text, logits[0]))
        excluded += int(expected.isinf().sum())
    assert excluded > 20


def test_a_vocabulary_of_its_own_and_a_row_without_another_token():
    history, ids = BanHistory(TokenBans(first=(7, 3)), [1]), torch.tensor([3, 9, 7])
    assert history.changes_for_paths([()], ids)(torch.zeros(1, 3)).tolist() == [[-torch.inf, 0.0, -torch.inf]]
    assert history.changes_for_paths([()], ids[[0, 2]])(torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_suppressed_token_has_no_share_and_a_finite_logit(dtype):
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = SuppressTokensLogitsProcessor([2, 5])(None, logits.float()).softmax(-1)
    found = suppress(logits, torch.tensor([2, 5]))
    assert torch.equal(found.float().softmax(-1), expected) and found.sum(-1, dtype=torch.float32).isfinite().all()
