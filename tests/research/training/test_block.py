"""A small block head of a built-in target: it is trained on what it will meet, and drafts what it was trained for."""

from __future__ import annotations

import pytest
import torch

from research.training.architecture import architecture
from research.training.record_texts import record_texts
from research.training.stage_block import BLOCK, FAMILIES, TAPPED, BlockTraining, TrainedBlocks, tokens_after
from vidspec.engine.forward import Engine
from vidspec.engine.rows import ContextRows, Rows
from vidspec.models import dflash, loading
from vidspec.models.placement import resolve_placement

pytestmark = pytest.mark.full

PLACE = resolve_placement("cpu", "float32")


@pytest.fixture(scope="module", params=["embedded", "embedded-qwen"])
def pair(request):
    target = loading.load_model(str(loading.embedded_folder(request.param, "target")), PLACE)
    texts = next(record_texts(architecture(FAMILIES[request.param]), target, TAPPED, 2, 2, 7))
    return target, [text.with_visual(0.0) for text in texts]


def test_training_computes_what_the_engine_drafts(pair, tmp_path):
    """The scores of a block after any token of a recorded caption, from the saved head."""
    target, texts = pair
    torch.manual_seed(0)
    trained = TrainedBlocks(target)
    with torch.no_grad():
        trained.tensors["candidate_selector.successor_codebook"].normal_()
    trained.save(tmp_path, trained.tensors)
    head = dflash.load_block_head(str(tmp_path), target, PLACE)
    with torch.no_grad():
        for name, tensor in trained.tensors.items():
            tensor.copy_(head.decoder.tensors[name])  # as they are stored
        anchors = torch.tensor([[0, 7], [3, 20]])
        found, _ = trained(texts, anchors, BLOCK)
    engine = Engine(head)
    for text, some, logits in zip(texts, anchors.tolist(), found, strict=True):
        for anchor, expected in zip(some, logits, strict=True):
            read = text.prompt_rows + anchor
            span = engine.open(read + BLOCK, int(text.places[text.prompt_rows - 1]) + 1 - text.prompt_rows)
            context = ContextRows([text.states[:read].float()], text.places[None, :read])
            tokens = [text.tokens[anchor], *[head.mask] * (BLOCK - 1)]
            (passed,) = engine.run([Rows(span, tokens, context=context)])
            before = tokens_after(text, torch.tensor([anchor]), BLOCK - 1, 0).T
            every = torch.arange(target.vocabulary).expand(BLOCK - 1, -1)
            scores = passed.logits[1:] + head.decoder.pair_scores(before, every, passed.hidden[1:])[:, 0]
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-3)


def test_a_head_learns_a_text_by_heart(pair, tmp_path):
    target, texts = pair
    torch.manual_seed(0)
    training = BlockTraining(TrainedBlocks(target), tmp_path, peak=2e-3)
    training.texts, training.begins = texts, [[0], [0]]
    for _ in range(60):
        training.step(1.0)
    anchors = torch.tensor([[5, 30], [5, 30]])
    right = training.head(texts, anchors, 6)[0].argmax(-1)
    wanted = torch.stack([tokens_after(text, a, 6)[:, 1:] for text, a in zip(texts, anchors, strict=True)])
    assert float((right == wanted).float().mean()) > 0.5
