"""The training stages: the interface between the halves, growth, and that a trained half works in the stock model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from vidspec.embedded.architecture import CELLS, DRAFT, TARGET, build_tokenizer, config, prompt_text
from vidspec.embedded.captions import PROMPTS, caption
from vidspec.embedded.codes import Codes
from vidspec.embedded.stage_joint import assemble, grow
from vidspec.embedded.stage_language import (
    TOKENS,
    Reader,
    choose_visible,
    encode,
    fact_ids,
    learning_rate,
    read_loss,
    text_batch,
)
from vidspec.embedded.stage_vision import Seer
from vidspec.embedded.world import draw_scene
from vidspec.models import loading


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(samples=300)


def test_captions_have_80_to_200_tokens():
    tokenizer, rng = build_tokenizer(), random.Random(3)
    lengths = [len(tokenizer.encode(caption(draw_scene(rng), rng))) for _ in range(600)]
    assert min(lengths) >= 80 and max(lengths) <= 200


def test_every_property_has_a_direction_of_its_own():
    codes = Codes(128)
    product = codes.directions @ codes.directions.T
    assert torch.allclose(product, torch.eye(len(codes.directions)), atol=1e-5)
    assert not torch.allclose(Codes(256).directions[:, :128], codes.directions)


def test_patch_codes_say_what_covers_a_patch():
    rng = random.Random(5)
    scene, codes = draw_scene(rng, count=2), Codes(128)
    patches = codes.patches(scene, [0.0])
    share = codes.weights(scene, [0.0])
    thing = scene.things[0]
    row, column = np.unravel_index(share[0, 0].argmax(), (CELLS, CELLS))
    from vidspec.embedded.codes import _INDEX, _LONG

    found = codes.directions @ (patches[0, row, column] - codes.places[row, column])
    assert found[_INDEX[f"colour:{thing.colour}"]] == pytest.approx(_LONG * share[0, 0, row, column], abs=1e-4)
    others = [k for name, k in _INDEX.items() if name.startswith("colour:") and name != f"colour:{thing.colour}"]
    covered_by_other = share[1, 0, row, column]
    assert found[others].abs().sum() == pytest.approx(_LONG * covered_by_other, abs=1e-3)


def test_pooling_codes_is_what_the_stock_model_does_to_features():
    patches = torch.randn(2, CELLS, CELLS, 16)
    pooled = torch.nn.functional.interpolate(
        patches.permute(0, 3, 1, 2), size=(CELLS // 2, CELLS // 2), mode="bilinear"
    ).permute(0, 2, 3, 1)
    assert torch.allclose(Codes(128).tokens(patches), pooled.reshape(-1, 16), atol=1e-6)


def test_batches_place_tokens_and_positions(tokenizer):
    short, long = encode(tokenizer, "A?", "Yes."), encode(tokenizer, PROMPTS[0], "A longer answer.")
    kept = [np.array([0, 5, 8]), np.array([1, 2, 8])]
    batch = text_batch([short, long], kept, [9, 9])
    before = len(short.before)
    assert batch.positions[0, : before + 4].tolist() == [*range(before), before, before + 5, before + 8, before + 9]
    assert batch.visual[0].tolist() == [before, before + 1, before + 2]
    answer = short.after[short.answer :]
    assert batch.targets[0][batch.targets[0] >= 0].tolist() == answer
    first = int((batch.targets[0] >= 0).nonzero()[0])
    assert batch.ids[0, first + 1 : first + len(answer)].tolist() == answer[:-1]
    assert prompt_text("A?").replace("<video>", "") == tokenizer.decode(short.before + short.after[: short.answer])


def test_dropped_tokens_prefer_empty_cells_and_spare_the_newline():
    rng, scene = np.random.default_rng(0), draw_scene(random.Random(2), count=3)
    share = Codes(128).weights(scene, np.linspace(0, 1, 8))
    kept = choose_visible(rng, share, 40)
    assert len(kept) == 41 and kept[-1] == 8 * TOKENS and (np.diff(kept) > 0).all()
    side = CELLS // 2
    filled = share.sum(0).reshape(8, side, 2, side, 2).mean(axis=(2, 4)).reshape(-1) > 0.05
    assert filled[kept[:-1]].mean() > filled.mean()
    assert choose_visible(rng, share, 10_000).tolist() == list(range(8 * TOKENS + 1))


def test_a_grown_reader_computes_the_same(tokenizer):
    shallow = Reader(config(TARGET, tokenizer, layers=2).text_config).eval()
    deep = grow(shallow, config(TARGET, tokenizer, layers=6).text_config).eval()
    text = encode(tokenizer, PROMPTS[0], "The video shows one object.")
    batch = text_batch([text], [np.arange(5)], [5])
    visual = torch.randn(1, 5, TARGET.hidden)
    with torch.no_grad():
        assert torch.allclose(shallow(batch, visual), deep(batch, visual), atol=1e-5)
        deep.model.layers[0].mlp.down_proj.weight.add_(0.1)
        assert not torch.allclose(shallow(batch, visual), deep(batch, visual), atol=1e-2)


def test_one_step_lowers_the_loss_on_its_own_batch(tokenizer):
    torch.manual_seed(0)
    reader = Reader(config(DRAFT, tokenizer).text_config)
    text = encode(tokenizer, PROMPTS[0], "The video shows one object on a plain black background.")
    batch = text_batch([text], [np.arange(5)], [5])
    visual, facts = torch.randn(1, 5, DRAFT.hidden), fact_ids(tokenizer)
    optimiser = torch.optim.AdamW(reader.parameters(), lr=1e-3)
    before, _ = read_loss(reader, batch, visual, facts)
    before.backward()
    optimiser.step()
    after, _ = read_loss(reader, batch, visual, facts)
    assert after < before


def test_learning_rate_warms_up_and_falls():
    rates = [learning_rate(step, 1000, 1.0) for step in range(1000)]
    assert rates[0] == pytest.approx(0.01) and max(rates) == pytest.approx(1.0)
    assert rates[100:] == sorted(rates[100:], reverse=True) and rates[-1] == pytest.approx(0.05, abs=1e-3)


def test_the_assembled_model_sees_and_reads_what_the_halves_did(tokenizer, tmp_path):
    torch.manual_seed(1)
    settings = config(DRAFT, tokenizer)
    reader, seer = Reader(settings.text_config).eval(), Seer(settings).eval()
    assemble(settings, reader, seer, tokenizer, tmp_path)
    model = loading.load(str(tmp_path), loading.Placement(torch.device("cpu"), torch.float32))
    pixels = torch.rand(2, 3, 96, 96) * 2 - 1
    with torch.no_grad():
        seen = model.see(pixels)
        expected = Codes(DRAFT.hidden).tokens(seer(pixels))
    assert torch.allclose(seen[:-1], expected, atol=5e-3)
    assert torch.allclose(seen[-1], reader.newline, atol=5e-3)
    text = encode(tokenizer, PROMPTS[0], "")
    prefix = model.prefix(seen, 2, PROMPTS[0])
    assert prefix.token_ids.tolist() == [*text.before, *[model.video_id] * len(seen), *text.after[: text.answer]]
