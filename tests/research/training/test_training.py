"""The training stages: growth, batches, rates, and that trained halves work in the stock models."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from research.training import stage_language
from research.training.architecture import Grid, architecture, build_tokenizer
from research.training.codes import shares
from research.training.stage_joint import Bank, build_bank, grow
from research.training.stage_language import (
    ANSWERS,
    Fresh,
    Reader,
    Shown,
    choose_visible,
    encode,
    fact_ids,
    interval,
    learning_rate,
    read_loss,
    text_batch,
    train_readers,
)
from research.training.stage_vision import pixels, train_vision
from research.training.train import PAIRS, SETTINGS, Run
from research.world.captions import caption
from research.world.scene import draw_scene
from vidspec.embedded.prompts import PROMPTS
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.models.request import DialogueTurn

pytestmark = pytest.mark.full

FAMILIES = ("llava_onevision", "qwen2_5_vl")
LLAVA, QWEN = (architecture(family) for family in FAMILIES)
GRID = Grid(4, 4)


def draft(family, tokens, **more):
    return family.config(family.sizes["draft"], tokens, **more)


def test_captions_have_80_to_200_tokens():
    tokenizer, rng = build_tokenizer(), random.Random(3)
    lengths = [len(tokenizer.encode(caption(draw_scene(rng), rng))) for _ in range(600)]
    assert min(lengths) >= 80 and max(lengths) <= 200


def test_batches_place_tokens_and_positions(words):
    short, long = encode(LLAVA, words, ("A?", "Yes.")), encode(LLAVA, words, (PROMPTS[0], "A longer answer."))
    kept = [np.array([0, 5, 8]), np.array([1, 2, 8])]
    batch = text_batch(LLAVA, [short, long], [Shown(k, 2, Grid(2, 2)) for k in kept])
    before = len(short.before)
    assert batch.positions[0, 0, : before + 4].tolist() == [*range(before), before, before + 5, before + 8, before + 9]
    assert batch.visual[0].tolist() == [before, before + 1, before + 2]
    answer = words.encode("Yes.<|im_end|>")
    assert batch.targets[0][batch.targets[0] >= 0].tolist() == answer
    first = int((batch.targets[0] >= 0).nonzero()[0])
    assert batch.ids[0, first + 1 : first + len(answer)].tolist() == answer[:-1]


def test_dropped_tokens_prefer_empty_cells_and_spare_the_newline():
    rng, scene = np.random.default_rng(0), draw_scene(random.Random(2), count=3)
    share = shares(scene, np.linspace(0, 1, 8), GRID)
    kept = choose_visible(rng, share, GRID, 40, trailing=1)
    assert len(kept) == 41 and kept[-1] == 8 * GRID.tokens and (np.diff(kept) > 0).all()
    filled = share.sum(0).reshape(8, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1) > 0.05
    assert filled[kept[:-1]].mean() > filled.mean()
    assert choose_visible(rng, share, GRID, 10_000, trailing=1).tolist() == list(range(8 * GRID.tokens + 1))
    assert len(choose_visible(rng, share, Grid(4, 4, frames=2), 10_000, trailing=0)) == 4 * GRID.tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grown_reader_computes_the_same(family, tokenizer, words):
    family, tokens = (LLAVA, words) if family == "llava_onevision" else (QWEN, tokenizer)
    shallow = Reader(family, draft(family, tokens, layers=2)).eval()
    deep = grow(family, shallow, draft(family, tokens, layers=6)).eval()
    text = encode(family, tokens, (PROMPTS[0], "The video shows one object."))
    count = 4 + family.trailing
    batch = text_batch(family, [text], [Shown(np.arange(count), 1, Grid(2, 2), 0.5)])
    visual = torch.randn(1, count, 128)
    with torch.no_grad():
        assert torch.allclose(shallow(batch, visual), deep(batch, visual), atol=1e-5)
        deep.model.layers[0].mlp.down_proj.weight.add_(0.1)
        assert not torch.allclose(shallow(batch, visual), deep(batch, visual), atol=1e-2)


def test_one_step_lowers_the_loss_on_its_own_batch(words):
    torch.manual_seed(0)
    reader = Reader(LLAVA, draft(LLAVA, words))
    text = encode(LLAVA, words, (PROMPTS[0], "The video shows one object on a plain black background."))
    batch = text_batch(LLAVA, [text], [Shown(np.arange(5), 1, Grid(2, 2))])
    visual, facts = torch.randn(1, 5, 128), fact_ids(words)
    optimiser = torch.optim.AdamW(reader.parameters(), lr=1e-3)
    before, _ = read_loss(reader, batch, visual, facts)
    before.backward()
    optimiser.step()
    after, _ = read_loss(reader, batch, visual, facts)
    assert after < before


@pytest.mark.parametrize("slow", [False, True])
def test_half_precision_changes_the_loss_little_where_it_is_fast(tokenizer, monkeypatch, slow):
    monkeypatch.setattr(stage_language, "has_slow_half_precision", lambda: slow)
    torch.manual_seed(0)
    reader = Reader(QWEN, draft(QWEN, tokenizer))
    text = encode(QWEN, tokenizer, (PROMPTS[0], "The video shows one object."))
    batch = text_batch(QWEN, [text], [Shown(np.arange(4), 1, Grid(2, 2, frames=2), 0.5)])
    visual, facts = torch.randn(1, 4, 128), fact_ids(tokenizer)
    with torch.no_grad():
        fast, _ = read_loss(reader.train(), batch, visual, facts)
        exact, _ = read_loss(reader.eval(), batch, visual, facts)
    assert (fast == exact) == slow and fast.item() == pytest.approx(exact.item(), rel=0.01)


def test_answers_weigh_more_than_captions(words):
    text = encode(LLAVA, words, (PROMPTS[0], "It moves."), ("Which objects move?", "The red star moves."))
    batch = text_batch(LLAVA, [text], [Shown(np.arange(5), 1, Grid(2, 2))])
    caption, answer = (len(words.encode(f"{said}<|im_end|>")) for said in ("It moves.", "The red star moves."))
    learned = batch.weights[batch.targets >= 0]
    assert learned.tolist() == [1.0] * caption + [ANSWERS] * answer
    assert not batch.weights[batch.targets < 0].any()
    reader, visual, facts = Reader(LLAVA, draft(LLAVA, words)).eval(), torch.randn(1, 5, 128), fact_ids(words)
    known, plain = read_loss(reader, batch, visual, facts)
    batch.weights[batch.weights > 0] = 1.0
    even, same = read_loss(reader, batch, visual, facts)
    assert even != known and same == plain


def test_learning_rate_warms_up_and_falls():
    rates = [learning_rate(step, 1000, 1.0) for step in range(1000)]
    assert rates[0] == pytest.approx(0.01) and max(rates) == pytest.approx(1.0)
    assert rates[100:] == sorted(rates[100:], reverse=True) and rates[-1] == pytest.approx(0.05, abs=1e-3)
    assert learning_rate(999, 1000, 1.0, floor=0.4) == pytest.approx(0.4, abs=1e-3)


def test_clips_last_as_long_as_the_shipped_kind():
    rng = random.Random(0)
    lengths = [interval(rng, 32, Grid(5, 7, frames=2)) * 16 for _ in range(200)]
    assert 7.5 <= min(lengths) < 8 and 15 < max(lengths) <= 15.5


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_fill_the_grid_and_are_normalised(family):
    family = architecture(family)
    for grid in family.grids:
        shown = pixels(family, draw_scene(random.Random(1)), [0.0, 0.5], grid, np.random.default_rng(0))
        assert shown.shape == (2, 3, 24 * grid.rows, 24 * grid.columns)
        mean, std = (torch.tensor(value).expand(3)[:, None, None] for value in (family.mean, family.std))
        colours = shown * std + mean
        assert colours.min() >= -1e-6 and colours.max() <= 1 + 1e-6 and colours.std() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_runs(family, tokenizer, words, tmp_path):
    torch.manual_seed(0)
    family, tokens = (LLAVA, words) if family == "llava_onevision" else (QWEN, tokenizer)
    config = draft(family, tokens)
    readers, seers = {"draft": Reader(family, config)}, {"draft": family.seer(config)}
    train = {"seed": 1, "peak": 1e-3}
    fresh = Fresh(family, {"draft": 128}, batch=1, seed=1, easy=True)
    train_readers(family, readers, fresh, tokens, tmp_path, stage="language", steps=2, **train)
    train_vision(family, seers, {"draft": 128}, tmp_path, steps=2, scenes=1, **train)
    clips = build_bank(family, {"draft": seers["draft"].eval()}, 3, seed=1)
    for clip in clips:
        steps = clip.frames // clip.grid.frames
        assert clip.features["draft"].shape == (steps * clip.grid.tokens, 128)
        assert clip.share.shape == (
            len(clip.scene.things), clip.frames, 2 * clip.grid.rows, 2 * clip.grid.columns
        )  # fmt: skip
    train_readers(family, readers, Bank(clips, 1, seed=1), tokens, tmp_path, stage="joint", steps=1, **train)
    assert {file.name for file in tmp_path.iterdir()} == {"language.pt", "vision.pt", "joint.pt"}
    saved = torch.load(tmp_path / "joint.pt")["draft"]
    assert all(torch.equal(saved[name], value) for name, value in readers["draft"].state_dict().items())


def test_a_bank_is_mixed_with_fresh_scenes():
    fresh = Fresh(QWEN, {"draft": 128}, batch=2, seed=1, easy=False)
    known = [fresh(0.5)[0][0] for _ in range(40)]
    source = Bank(known, 2, seed=3, fresh=fresh, part=0.5, keep=(7,), keep_late=(9,))
    steps = [source(progress) for progress in (0.1,) * 40 + (0.9,) * 40]
    kept = [(at, count) for at, (clips, count) in enumerate(steps) if all(clip in known for clip in clips)]
    assert 20 < len(kept) < 60 and {count for at, count in kept if at < 40} == {7}
    assert {count for at, count in kept if at >= 40} == {9}
    assert all(len({(clip.frames, clip.grid) for clip in clips}) == 1 for clips, _ in steps)


def test_the_draft_may_learn_from_fewer_samples(words, tmp_path):
    learners = {name: Reader(LLAVA, draft(LLAVA, words)) for name in ("target", "draft")}
    before = {name: [weight.clone() for weight in reader.parameters()] for name, reader in learners.items()}
    fresh = Fresh(LLAVA, dict.fromkeys(learners, 128), batch=1, seed=1, easy=True)
    train_readers(
        LLAVA, learners, fresh, words, tmp_path, stage="x", steps=3, seed=1, peak=1e-3, draft_every=2, floor=1.0
    )
    moved = {
        name: sum((new - old).abs().mean().item() for new, old in zip(reader.parameters(), before[name], strict=True))
        for name, reader in learners.items()
    }
    assert 0 < moved["draft"] < 2 * moved["target"]  # it learns at twice the rate, from two of the three


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shipped_pair_is_taken_apart_and_put_together_again(family, tmp_path):
    from safetensors.torch import load_file

    family = architecture(family)
    run = Run(family, tmp_path, "shipped")
    run.shipped()
    (tmp_path / "shipped.pt").rename(tmp_path / "joint.pt")
    run.export()
    for name in ("target", "draft"):
        old = load_file(loading.embedded_folder(PAIRS[family.family], name) / "model.safetensors")
        new = load_file(tmp_path / "pair" / name / "model.safetensors")
        assert old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dialogue_is_what_the_chat_template_renders(family):
    family = architecture(family)
    model = loading.load_model(str(loading.embedded_folder(PAIRS[family.family], "draft")), resolve_placement())
    turns = [("A?", "Yes."), ("B?", "No."), ("C?", "It is."), ("D?", "")]
    text = encode(family, model.tokenizer, *turns)
    whole = model.template.ids_with_text(
        model.template.video_text, "D?", None, [DialogueTurn(*turn) for turn in turns[:3]]
    )
    assert [*text.before, model.visual_id, *text.after[:-1]] == whole
    learned = [token for token, answer in zip(text.after, text.weights, strict=True) if answer]
    assert model.tokenizer.decode(learned) == "Yes.<|im_end|>No.<|im_end|>It is.<|im_end|><|im_end|>"


def test_settings_are_kept_for_both_families():
    assert set(SETTINGS) == {"shipped", "nothing"} and all(set(kinds) == set(FAMILIES) for kinds in SETTINGS.values())
    with pytest.raises(KeyError):
        architecture("unknown")
