"""A small EAGLE-3 head of a built-in target: it learns from what it will meet, and drafts what it learned."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from research.training.stage_head import TrainedHead, clips, harvest, train_head
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.models import eagle3, loading
from vidspec.models.placement import resolve_placement
from vidspec.models.quantised import read_head_tensors

pytestmark = pytest.mark.full

PLACE = resolve_placement("cpu", "float32")
TOKENS, DEPTH = 24, 4
((CLIP, PROMPT),) = clips(1, shown=4)


@pytest.fixture(scope="module", params=["embedded", "embedded-qwen"])
def target(request):
    return loading.load_model(str(loading.embedded_folder(request.param, "target")), PLACE)


@pytest.fixture(scope="module")
def text(target):
    return harvest(target, CLIP, PROMPT, TOKENS)


def caption(profile, target, head=None):
    settings = {"models.target": "target", "models.draft": "head", "generate.max_new_tokens": TOKENS}
    loaded = profiles.load(profile, settings | ({"draft.gamma": DEPTH} if head else {}), env={})
    return Captioner(loaded, target, None, head=head).caption("", clip=CLIP, prompt=PROMPT)


def test_a_text_is_the_target_s_in_pairs_of_states_and_the_next_token(target, text):
    assert text.tokens == tuple(caption("ar", target).token_ids)
    rows = text.first + TOKENS
    assert len(text.states) == len(text.embeddings) == rows and text.positions.shape == (target.decoder.axes, rows)
    assert torch.equal(text.embeddings[text.first :], target.embed(torch.tensor(text.tokens)).half())


def test_each_depth_is_what_a_chain_of_passes_gives(target, text, tmp_path):
    torch.manual_seed(0)
    new = TrainedHead(target, range(64))
    new.save(tmp_path)
    head, behind = eagle3.load_eagle3(str(tmp_path), target, PLACE), 3  # pairs of the caption with the target's states
    given = json.loads((tmp_path / "config.json").read_text())
    stored = read_head_tensors("head", str(tmp_path), given)
    with torch.no_grad():
        for name, part in new.tensors.items():
            part.copy_(stored[name])  # as it is saved
        found = new(text, DEPTH)
    assert [len(logits) for logits in found] == [TOKENS - deep for deep in range(DEPTH)]
    engine, embeddings = Engine(head), text.embeddings.float()
    rows, span = slice(0, text.first + behind + 1), engine.open(len(embeddings))
    states = head.joined(text.states[rows].float())
    for logits in found:
        fed = head.fed(embeddings[rows], states, text.positions[:, rows])
        (passed,) = engine.run([Rows(span, prompt=fed, stretch=(0, fed.length), tapped=(1,))])
        assert torch.allclose(passed.logits[-1], logits[behind], atol=1e-4)
        states, rows = passed.tapped[-1:], slice(rows.stop, rows.stop + 1)


def test_what_was_learned_is_drafted(target, text, tmp_path):
    torch.manual_seed(0)
    train_head(target, [text], tmp_path, steps=60, depth=DEPTH, peak=2e-3)
    record = caption("eagle3", target, eagle3.load_eagle3(str(tmp_path), target, PLACE))
    assert tuple(record.token_ids) == text.tokens
    lengths = record.counters["accepted_lengths"]
    assert sum(lengths) / len(lengths) > 0.8 * DEPTH * (TOKENS - 1) / (TOKENS + DEPTH)
    # A head to go on from keeps what it knows and what it can propose.
    train_head(target, [text], tmp_path / "again", steps=1, depth=DEPTH, peak=0.0, begin=tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "again"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
