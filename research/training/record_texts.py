"""The target's own greedy captions with the states that a block head reads, many at a time.

Clips are oracle codes of fresh scenes in place of a vision tower's features, and most show only part of their visual
tokens, as in the pair's own training: no clip is drawn and prompts are short. Clips of a batch have equally long
prompts, so that keys and values of a block are one tensor without padding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from research.training.architecture import Architecture
from research.training.codes import Codes, shares
from research.training.stage_language import NOISE
from research.world.captions import draw_prompt
from research.world.scene import Scene, draw_scene
from vidspec.models.base import EmbeddedPrompt, VisionOutput
from vidspec.training.states import TextStates

#: Frames of a clip, as the tool's default, and its seconds.
FRAMES, SECONDS = 32, (8, 15)
#: Visual tokens that a batch shows, of all, and how often.
KEPT, KEPT_WEIGHT = (96, 128, 192, 1024), (3, 4, 2, 1)


@dataclass(frozen=True)
class Recorded:
    """One caption with the states of the rows that the target read.

    Attributes:
        states: (n, blocks * hidden) in half precision: rows of the prompt, then the caption's but its last token's.
        places: (n,) of these rows in the target's whole prompt and text.
        visual: (n,) bool, True for rows of visual tokens.
        tokens: of the caption.
        finals: (tokens - 1, hidden) in half precision, after the final norm: each gives the token after it.
    """

    states: torch.Tensor
    places: torch.Tensor
    visual: torch.Tensor
    tokens: tuple[int, ...]
    finals: torch.Tensor

    @property
    def prompt_rows(self) -> int:
        return len(self.states) - len(self.tokens) + 1

    def with_visual(self, share: float, rng: torch.Generator | None = None) -> TextStates:
        """Return what a head learns: states of text rows, and of a share of the visual rows, chosen at random."""
        kept = ~self.visual
        if share:
            kept |= torch.rand(len(kept), generator=rng) < share
        following = float(self.places[self.prompt_rows - 1]) + 1
        return TextStates(self.states[kept], self.places[None, kept].float(), following, self.tokens, self.finals)


class BatchAttention:
    """Attention over keys and values of equally long sequences: (count, kv_heads, room, d) in each block."""

    def __init__(self, blocks: int, count: int, room: int, kv_heads: int, width: int) -> None:
        self._entries = torch.empty(blocks, 2, count, kv_heads, room, width)
        self.count, self.length = count, 0

    def __call__(self, index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        new = len(query) // self.count
        end = self.length + new
        split = entries.view(self.count, new, 2, *entries.shape[2:]).permute(2, 0, 3, 1, 4)
        self._entries[index, :, :, :, self.length : end] = split
        keys, values = self._entries[index, :, :, :, :end]
        rows = query.view(self.count, new, *query.shape[1:]).transpose(1, 2)
        groups = rows.shape[1] // keys.shape[1]
        if new == 1:
            rows = rows.reshape(self.count, keys.shape[1], groups, -1)
            out = F.scaled_dot_product_attention(rows, keys, values)
            return out.reshape(self.count, -1)
        keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
        out = F.scaled_dot_product_attention(rows, keys, values, is_causal=True)
        return out.transpose(1, 2).reshape(len(query), -1)


@torch.inference_mode()
def caption_batch(
    target: Any, prompts: Sequence[EmbeddedPrompt], places: torch.Tensor, blocks: Sequence[int], most: int = 256
) -> list[Recorded]:
    """Let the target caption equally long prompts.

    Args:
        target: a built-in target on the CPU.
        prompts: of one length and with visual tokens at the same rows.
        places: (L,) of the prompt's rows before visual tokens were dropped.
        blocks: whose output is kept.
        most: tokens of a caption at most.
    """
    decoder, count, length = target.decoder, len(prompts), prompts[0].length
    config = target.language.config
    attention = BatchAttention(decoder.depth, count, length + most, int(config.num_key_value_heads), decoder.width)
    wanted = {block + 1 for block in blocks}

    def run(rows: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rotation, kept = decoder.rotation(positions), []
        for index in range(decoder.depth):
            rows = decoder.block(index, rows, rotation, attention)
            if index + 1 in wanted:
                kept.append(rows.view(count, -1, rows.shape[-1]).half())
        attention.length += kept[0].shape[1]
        last = decoder.norm(rows.view(count, -1, rows.shape[-1])[:, -1])
        return decoder.logits(last)[:, : target.vocabulary].argmax(-1), torch.cat(kept, dim=2), last.half()

    embeds = torch.cat([prompt.embeds[0] for prompt in prompts])
    positions = torch.cat([prompt.positions.reshape(decoder.axes, -1) for prompt in prompts], dim=1)
    token, states, _ = run(embeds, positions)
    all_tokens, all_states, all_finals = [token], [states], list[torch.Tensor]()
    ends = torch.tensor(sorted(target.eos))
    ended = torch.isin(token, ends)
    starts = torch.tensor([prompt.next_position for prompt in prompts])
    while len(all_tokens) < most and not ended.all():
        positions = (starts + len(all_tokens) - 1).expand(decoder.axes, -1)
        token, states, final = run(decoder.embed(token), positions)
        all_finals.append(final)
        ended |= torch.isin(token, ends)
        all_tokens.append(token)
        all_states.append(states)
    written, read = torch.stack(all_tokens, dim=1).tolist(), torch.cat(all_states, dim=1)
    finals = torch.stack(all_finals, dim=1)
    shown = torch.zeros(length, dtype=torch.bool)
    shown[prompts[0].visual.index] = True
    recorded = []
    for tokens, states, after in zip(written, read, finals, strict=True):
        end = next((at + 1 for at, token in enumerate(tokens) if token in target.eos), len(tokens))
        text = end - 1
        recorded.append(
            Recorded(
                states[: length + text].clone(),
                torch.cat([places, int(places[-1]) + 1 + torch.arange(text)]),
                torch.cat([shown, shown.new_zeros(text)]),
                tuple(tokens[:end]),
                after[:text].clone(),
            )
        )
    return recorded


def record_texts(
    family: Architecture, target: Any, blocks: Sequence[int], count: int, batch: int, seed: int
) -> Iterator[list[Recorded]]:
    """Yield batches of captions until there are ``count``."""
    py = random.Random(seed)
    codes = Codes(int(target.language.config.hidden_size))
    (grid,) = (grid for grid in family.grids if grid == max(family.grids, key=lambda one: family.grids[one]))
    for _ in range(-(-count // batch)):
        scenes = [draw_scene(py) for _ in range(batch)]
        seconds = py.uniform(*SECONDS)
        prompt, (kept,) = draw_prompt(py), py.choices(KEPT, KEPT_WEIGHT)
        made = [target.prefix(_vision(target, scene, codes, grid, seconds), prompt) for scene in scenes]
        tokens = len(made[0].visual)
        shown = torch.tensor(sorted({*py.sample(range(tokens), min(kept, tokens)), tokens - 1}))
        places = made[0].rows_kept(shown)
        yield caption_batch(target, [one.keep(shown) for one in made], places, blocks)


def _vision(target: Any, scene: Scene, codes: Codes, grid: Any, seconds: float) -> VisionOutput:
    share = shares(scene, np.linspace(0, 1, FRAMES), grid)
    features = codes.tokens(scene, share, grid)
    steps = len(features)
    features = (features + NOISE * torch.randn_like(features)).flatten(0, 2)
    step = tuple(np.linspace(0, seconds, steps).tolist())
    output = VisionOutput.raster(features, (steps, grid.rows, grid.columns), step)
    newline = getattr(target.model.model, "image_newline", None)
    if newline is None:
        return output
    return replace(
        output,
        features=torch.cat([features, newline[None].to(features)]),
        frame=torch.cat([output.frame, output.frame[-1:]]),
        row=torch.cat([output.row, torch.tensor([-1])]),
        column=torch.cat([output.column, torch.tensor([-1])]),
    )


def save_texts(file: Path, texts: Sequence[Recorded]) -> None:
    """Write a batch atomically."""
    part = file.with_suffix(".part")
    torch.save([(one.states, one.places, one.visual, one.tokens, one.finals) for one in texts], part)
    part.rename(file)


def read_texts(file: Path) -> list[Recorded]:
    return [Recorded(*one) for one in torch.load(file)]
