"""Training stage 1a: language models alone, reading oracle codes in place of a vision tower's features.

Visual tokens are dropped at random (kept ones keep their positions): sequences get several times shorter, and the draft
learns to live with a pruned video.
"""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch.nn import functional as F

from training.architecture import Architecture, Grid
from training.codes import Codes, pool_shares, shares
from vidspec.embedded.captions import PROMPTS, caption
from vidspec.embedded.world import BACKGROUNDS, COLOURS, PATTERNS, PLACES, SHAPES, SIZES, draw_scene

__all__ = ["Batch", "Reader", "Text", "fact_ids", "learning_rate", "read_loss", "text_batch", "train_language"]

#: Frames per clip and how often; the default of the tool is 32, and 64 must work.
FRAMES, FRAMES_WEIGHT = (16, 24, 32, 48, 64), (1, 1, 5, 1, 2)
_FACTS = (
    *COLOURS, *SHAPES, *SIZES, *BACKGROUNDS, *PATTERNS, *" ".join(PLACES.values()).split(),
    "one", "two", "three", "first", "second", "third", "right", "left", "gone", "stays", "does", "moves", "travels",
    "upwards", "downwards", "rises", "sinks", "goes", "keeps", "is", "only", "disappears", "missing", "visible",
)  # fmt: skip


@dataclass
class Text:
    """Token ids of one sample around its visual tokens: ``before``, the video, ``after`` (ends with the caption)."""

    before: list[int]
    after: list[int]
    answer: int  # index in ``after`` of the caption's first token


@dataclass
class Batch:
    """Right-padded samples. ``embeds`` are filled in by the caller for the visual part.

    Attributes:
        ids: (B, L) token ids; visual positions hold 0.
        positions: (axes, B, L) rotary positions.
        targets: (B, L) next-token labels, -100 where nothing is learned.
        visual: (B, K) indices into L of the visual tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    visual: torch.Tensor


@dataclass(frozen=True)
class Shown:
    """The visual tokens of one sample: the sorted indices ``kept`` of a clip's, which has ``steps`` steps of ``grid``.

    ``interval`` is the time between steps in seconds.
    """

    kept: np.ndarray
    steps: int
    grid: Grid
    interval: float = 0.0


class Reader(torch.nn.Module):
    """A family's language model with tied embeddings, and the learned vector that ends a video where it has one."""

    def __init__(self, family: Architecture, config: Any):
        super().__init__()
        self.model: Any = family.language(config)
        hidden = config.text_config.hidden_size
        with torch.no_grad():
            self.model.embed_tokens.weight.normal_(0, hidden**-0.5)
        self.newline = torch.nn.Parameter(torch.randn(hidden) * hidden**-0.5) if family.trailing else None

    def visual(self, tokens: torch.Tensor) -> torch.Tensor:
        """Visual tokens (K, hidden) and the newline, if the family has one."""
        return tokens if self.newline is None else torch.cat([tokens, self.newline[None]])

    def forward(self, batch: Batch, visual: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, L, hidden) for visual embeddings (B, K, hidden), newline included.

        Linear layers compute in bfloat16, twice as fast here; weights, norms and sums stay in float32.
        """
        embeds = self.model.embed_tokens(batch.ids)
        index = batch.visual[..., None].expand(-1, -1, embeds.shape[-1])
        embeds = embeds.scatter(1, index, visual)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            # A dictionary of masks goes through untouched: plain causal attention, no search for packed sequences.
            states = self.model(
                inputs_embeds=embeds,
                position_ids=batch.positions if len(batch.positions) > 1 else batch.positions[0],
                attention_mask={"full_attention": None},
                use_cache=False,
            ).last_hidden_state
        return states.float()  # type: ignore[no-any-return]


def fact_ids(tokenizer: Any) -> torch.Tensor:
    """(vocabulary,) bool: tokens that carry facts; their loss counts four times."""
    mask = torch.zeros(len(tokenizer), dtype=torch.bool)
    for word in _FACTS:
        for form in (word, f" {word}", f" {word.capitalize()}", word.capitalize()):
            ids = tokenizer.encode(form)
            if len(ids) == 1:
                mask[ids[0]] = True
    return mask


def encode(family: Architecture, tokenizer: Any, prompt: str, answer: str) -> Text:
    """Token ids of a training sample, as the chat template renders it."""
    before, rest = family.prompt(prompt)
    head = tokenizer.encode(rest)
    return Text(tokenizer.encode(before), head + tokenizer.encode(answer) + [tokenizer.eos_token_id], len(head))


def text_batch(family: Architecture, texts: list[Text], shown: list[Shown]) -> Batch:
    """Assemble a batch of samples that show equally many visual tokens."""
    length = max(len(t.before) + len(s.kept) + len(t.after) for t, s in zip(texts, shown, strict=True))
    size = (len(texts), length)
    ids, positions = torch.zeros(size, dtype=torch.long), []
    targets = torch.full(size, -100, dtype=torch.long)
    visual = torch.zeros(len(texts), len(shown[0].kept), dtype=torch.long)
    for i, (text, video) in enumerate(zip(texts, shown, strict=True)):
        b, k, a = len(text.before), len(video.kept), len(text.after)
        ids[i, :b] = torch.tensor(text.before)
        ids[i, b + k : b + k + a] = torch.tensor(text.after)
        places = family.positions(b, video.kept, video.steps, video.grid, video.interval, length - b - k)
        positions.append(torch.from_numpy(places))
        first = b + k + text.answer - 1
        targets[i, first : b + k + a - 1] = torch.tensor(text.after[text.answer :])
        visual[i] = torch.arange(b, b + k)
    return Batch(ids, torch.stack(positions, dim=1), targets, visual)


def read_loss(reader: Reader, batch: Batch, visual: torch.Tensor, facts: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Weighted training loss, and the plain loss in nats per caption token."""
    states = reader(batch, visual)
    wanted = batch.targets >= 0
    labels = batch.targets[wanted]
    logits = states[wanted] @ reader.model.embed_tokens.weight.T
    losses = F.cross_entropy(logits, labels, reduction="none")
    weight = 1.0 + 3.0 * facts[labels]
    return (losses * weight).sum() / weight.sum(), losses.detach().mean().item()


def learning_rate(step: int, steps: int, peak: float, warmup: int = 100, floor: float = 0.05) -> float:
    """Linear warm-up, then a cosine to ``floor`` times the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    part = 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
    return peak * (floor + (1 - floor) * part)


def choose_visible(rng: np.random.Generator, share: np.ndarray, grid: Grid, keep: int, trailing: int) -> np.ndarray:
    """Sorted indices of ``keep`` visual tokens, those that show a thing eight times likelier, and all trailing ones.

    ``share`` is (things, T, patch rows, patch columns).
    """
    amount = pool_shares(share, grid).sum(0).reshape(-1)
    total = len(amount)
    order = np.arange(total)
    if keep < total:
        weight = 0.125 + np.clip(amount * 4, 0, 1)
        order = np.sort(np.argsort(rng.exponential(size=total) / weight)[:keep])
    return np.concatenate([order, total + np.arange(trailing)])


class Learner:
    """A model, its optimiser, and how it does; the draft learns at twice the rate."""

    def __init__(self, name: str, module: torch.nn.Module, peak: float):
        self.module, self.peak = module.train(), peak * (2.0 if name == "draft" else 1.0)
        self.optimiser = torch.optim.AdamW(module.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        self.recent: list[float] = []

    def learn(self, loss: torch.Tensor, rate: float, plain: float) -> None:
        """One step at ``rate`` times the peak; ``plain`` is what the log shows."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate * self.peak
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if dist.is_initialized():
            self._share_gradients()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimiser.step()
        self.recent.append(plain)

    def _share_gradients(self) -> None:
        """Give all processes the mean of their gradients."""
        gradients = [weight.grad for weight in self.module.parameters() if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = (flat / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def mean(self, last: int) -> float:
        return round(sum(self.recent[-last:]) / last, 4)


def save(learners: dict[str, Learner], file: Path) -> None:
    """Write all weights, in one piece or not at all."""
    part = file.with_suffix(".part")
    torch.save({name: learner.module.state_dict() for name, learner in learners.items()}, part)
    part.rename(file)


def train_language(
    family: Architecture,
    readers: dict[str, Reader],
    tokenizer: Any,
    out: Path,
    *,
    steps: int,
    batch: int,
    seed: int,
    peak: float,
    easy: bool = True,
    of: int | None = None,
    floor: float = 0.05,
) -> None:
    """Train all readers on the same samples; writes ``language.pt`` to ``out`` every 200 steps and at the end.

    Args:
        family: of the readers.
        readers: by the names ``target`` and ``draft``.
        tokenizer: of the pair.
        out: folder.
        steps, batch, seed, peak: of the training; ``peak`` is the target's highest learning rate.
        easy: begin with few objects and short clips, for models that cannot speak yet.
        of: steps that the learning rate is planned for, if more than are made.
        floor: the last learning rate, as a part of the peak.
    """
    py, rng = random.Random(seed), np.random.default_rng(seed)
    codes = {name: Codes(reader.model.config.hidden_size) for name, reader in readers.items()}
    facts = fact_ids(tokenizer)
    learners = {name: Learner(name, reader, peak) for name, reader in readers.items()}
    begun = time.monotonic()
    for step in range(steps):
        progress = step / steps if easy else 0.3 + 0.7 * step / steps
        most = 3 if not easy else 1 if progress < 0.22 else 2 if progress < 0.38 else 3
        (grid,) = py.choices(tuple(family.grids), tuple(family.grids.values()))
        low, high = (8, 16) if progress < 0.22 else (12, 32) if progress < 0.6 else (16, 48)
        frames = py.choice(range(low, high + 1, grid.frames)) if easy else py.choices(FRAMES, FRAMES_WEIGHT)[0]
        keep = 64 if progress < 0.22 else 96 if progress < 0.5 else py.choice((96, 128, 192))
        keep = min(keep, frames // grid.frames * grid.tokens)
        scenes = [draw_scene(py, most=most) for _ in range(batch)]
        times = np.linspace(0, 1, frames)
        texts = [encode(family, tokenizer, draw_prompt(py), caption(scene, py)) for scene in scenes]
        parts = [shares(scene, times, grid) for scene in scenes]
        shown = [
            Shown(
                choose_visible(rng, part, grid, keep, family.trailing),
                frames // grid.frames,
                grid,
                interval(py, frames, grid),
            )
            for part in parts
        ]
        samples = text_batch(family, texts, shown)
        for name, learner in learners.items():
            reader: Any = learner.module
            rows = []
            for scene, part, video in zip(scenes, parts, shown, strict=True):
                tokens = codes[name].tokens(scene, part, grid).flatten(0, 2)
                rows.append(reader.visual(tokens[torch.from_numpy(video.kept[:keep])]))
            visual = torch.stack(rows)
            visual = visual + 0.03 * torch.randn_like(visual)
            loss, plain = read_loss(reader, samples, visual, facts)
            learner.learn(loss, learning_rate(step, of or steps, 1.0, warmup=min(100, steps // 10), floor=floor), plain)
        if (step + 1) % 50 == 0:
            row = {name: learner.mean(50) for name, learner in learners.items()}
            print(json.dumps({"stage": "language", "step": step + 1, "nats": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 200 == 0 or step + 1 == steps:
            save(learners, out / "language.pt")


def interval(rng: random.Random, frames: int, grid: Grid) -> float:
    """Seconds per step of a clip as long as the shipped kind, shown in so many frames."""
    return rng.uniform(7.5, 15.5) * grid.frames / frames


def draw_prompt(rng: random.Random) -> str:
    return PROMPTS[0] if rng.random() < 0.6 else rng.choice(PROMPTS)
