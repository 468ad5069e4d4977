"""Hints for a target's middle blocks: the truth they are trained on, and that they teach."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from research.training.architecture import Grid, architecture
from research.training.codes import shares
from research.training.hints import NAMED, SEEN, Hints, colour_ids, named_truth, seen_truth
from research.training.stage_language import Fresh, Reader, Shown, encode, fact_ids, hint_truth, read_loss, text_batch
from research.world.scene import MOTIONS, PLACES, Scene, Thing

pytestmark = pytest.mark.full

GRID, FRAMES = Grid(4, 4), 16
LLAVA = architecture("llava_onevision")
SO_FAR = ("still", "right", "left", "up", "down", "circles")


def scene(motion: str, end: tuple[int, int] = (0, 1), **more) -> Scene:
    thing = Thing("red", "circle", "large", motion, (0, 1), end, (0.2, 0.5), **more)
    return Scene((thing,), "black", "plain", 3)


def truths(shown: Scene) -> tuple[np.ndarray, np.ndarray]:
    """By step: the truths of the visual tokens that show the thing, and of the others the first."""
    share = shares(shown, np.linspace(0, 1, FRAMES), GRID)
    truth = seen_truth(shown, share, GRID, np.arange(FRAMES * GRID.tokens)).reshape(FRAMES, GRID.tokens, len(SEEN))
    thing = [step[step[:, 1] >= 0] for step in truth]
    return [step[0] if len(step) else None for step in thing], truth[:, GRID.tokens - 1]


def test_a_visual_token_says_how_late_it_is_and_of_nothing_else_where_nothing_is():
    _, corner = truths(scene("still"))
    assert corner[:, 0].tolist() == [step * 8 // FRAMES for step in range(FRAMES)]
    assert (corner[:, 1:] == -1).all()


@pytest.mark.parametrize(
    "motion, end, later", [("right", (2, 1), "right"), ("down", (0, 2), "down"), ("still", (0, 1), "still")]
)
def test_a_thing_has_moved_once_it_is_elsewhere(motion, end, later):
    seen, _ = truths(scene(motion, end))
    assert [SO_FAR[step[2]] for step in (seen[0], seen[-1])] == ["still", later]
    assert {PLACES[0, 1]} == {tuple(PLACES.values())[step[1]] for step in seen}
    assert {step[3] for step in seen} == {0}


def test_circling_is_asked_only_once_it_can_be_told():
    seen, _ = truths(scene("circles", turns=2.0))
    assert seen[0][2] == -1 and SO_FAR[seen[-1][2]] == "circles"


def test_what_appears_is_known_to_be_late():
    seen, _ = truths(scene("appears", switch=0.5))
    assert seen[0] is None and seen[-1][3] == 1


def test_a_name_says_all_of_its_thing(words):
    shown = scene("vanishes", switch=0.5)
    tokens = words.encode("By the end of the video, the red circle is gone, the green star is not.")
    truth = named_truth(shown, tokens, colour_ids(words))
    named = [words.decode([token]).strip() for token, row in zip(tokens, truth, strict=True) if row[0] >= 0]
    assert named == ["red", "circle", "is"]
    row = dict(zip(NAMED, truth[truth[:, 0] >= 0][0].tolist(), strict=True))
    assert MOTIONS[row["motion"]] == "vanishes" and row["end"] == len(PLACES)


def test_hints_are_learned_and_leave_no_hooks(words):
    """Some steps on one batch lower the hints' own loss, which is there for a deep reader only."""
    torch.manual_seed(0)
    config = LLAVA.config(LLAVA.sizes["draft"], words, layers=6)
    reader = Reader(LLAVA, config).train()
    assert Reader(LLAVA, LLAVA.config(LLAVA.sizes["draft"], words)).hints is None
    source = Fresh(LLAVA, {"target": 128}, 2, 5, easy=True)
    clips, _ = source(0.0)
    steps, all_ = clips[0].frames, clips[0].frames * GRID.tokens
    shown = [Shown(np.arange(all_ + 1), steps, GRID) for _ in clips]
    texts = [encode(LLAVA, words, ("What?", f"A {clip.scene.things[0].colour} one.")) for clip in clips]
    batch = text_batch(LLAVA, texts, shown)
    truth = hint_truth(batch, texts, clips, shown, colour_ids(words))
    assert truth.seen.shape == (2, all_, len(SEEN)) and bool((truth.named >= 0).any())
    visual = torch.stack([reader.visual(clip.features["target"].float()) for clip in clips]).detach()
    facts, optimiser = fact_ids(words), torch.optim.AdamW(reader.parameters(), lr=3e-3)

    def extra() -> torch.Tensor:
        return read_loss(reader, batch, visual, facts, truth)[0] - read_loss(reader, batch, visual, facts)[0]

    before = extra().item()
    for _ in range(8):
        optimiser.zero_grad()
        read_loss(reader, batch, visual, facts, truth)[0].backward()
        optimiser.step()
    assert extra().item() < 0.8 * before
    assert not any(block._forward_hooks for block in reader.model.layers)


def test_nothing_to_ask_is_no_loss():
    hints = Hints(8, 6)
    states = [torch.randn(1, 4, 8), torch.randn(1, 4, 8)]
    seen = torch.zeros(1, 2, len(SEEN), dtype=torch.long)
    nothing = torch.full((1, 4, len(NAMED)), -1)
    alone = hints.loss(states, torch.tensor([[1, 2]]), seen, nothing)
    named = hints.loss(states, torch.tensor([[1, 2]]), seen, nothing.clamp(min=0))
    assert alone.isfinite() and alone != named
