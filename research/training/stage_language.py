"""Training stage 1a: language models on oracle codes in place of a vision tower's features.

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
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AttentionInterface

from research.training.architecture import Architecture, Grid
from research.training.codes import Codes, pool_shares, shares
from research.training.hints import NAMED, Hints, colour_ids, named_truth, seen_truth
from research.world.questions import draw_dialogue
from research.world.scene import BACKGROUNDS, COLOURS, PATTERNS, PLACES, SIZES, Scene, draw_scene
from vidspec.embedded.prompts import PROMPTS, SHAPES
from vidspec.models.placement import has_slow_half_precision

#: Standard deviation of the noise on codes, about the towers' error.
NOISE = 0.03
#: Frames per clip and how often; the default of the tool is 32, and 64 must work.
FRAMES, FRAMES_WEIGHT = (16, 24, 32, 48, 64), (1, 1, 5, 1, 2)
#: Blocks of a model from which on it gets hints; their weight relative to the loss on its words.
HINTED, HINTS = 6, 1.0
#: Weight of an answer's tokens relative to a caption's, which has ten times as many.
ANSWERS = 3.0
_FACTS = (
    *COLOURS, *SHAPES, *SIZES, *BACKGROUNDS, *PATTERNS, *" ".join(PLACES.values()).split(),
    "one", "two", "three", "first", "second", "third", "right", "left", "gone", "stays", "does", "moves", "travels",
    "upwards", "downwards", "rises", "sinks", "goes", "keeps", "is", "only", "disappears", "missing", "visible",
)  # fmt: skip


def _in_parts(
    _module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention, (B, L, heads, d) of (B, heads, L, d): the fused kernel's backward takes twice as long here."""
    (batch, heads, length, width), few = query.shape, key.shape[1]
    with torch.autocast("cpu", enabled=False):
        rows = (query * scaling).to(value.dtype).reshape(batch, few, -1, width)
        scores = (rows @ key.to(value.dtype).transpose(2, 3)).view(batch, heads, length, length)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, float("-inf")).softmax(-1)
        mixed = (shares.view(batch, few, -1, length) @ value).view(batch, heads, length, width)
    return mixed.transpose(1, 2).contiguous(), None


ATTENTION = "in_parts"
AttentionInterface.register(ATTENTION, _in_parts)


@dataclass
class Text:
    """Token ids of one sample around its visual tokens: ``before``, the video, ``after``.

    ``weights`` are those of the tokens of ``after`` in the loss: 0 if not learned.
    """

    before: list[int]
    after: list[int]
    weights: list[float]


@dataclass
class Batch:
    """Right-padded samples. ``embeds`` are filled in by the caller for the visual part.

    Attributes:
        ids: (B, L) token ids; visual positions hold 0.
        positions: (axes, B, L) rotary positions.
        targets: (B, L) next-token labels, -100 where nothing is learned.
        weights: (B, L) of these in the loss.
        visual: (B, K) indices into L of the visual tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
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
    """A family's language model with tied embeddings, and the learned vector that ends a video, if it has one."""

    def __init__(self, family: Architecture, config: Any):
        super().__init__()
        self.model: Any = family.language(config)
        self.model.set_attn_implementation(ATTENTION)
        hidden = config.text_config.hidden_size
        with torch.no_grad():
            self.model.embed_tokens.weight.normal_(0, hidden**-0.5)
        self.newline = torch.nn.Parameter(torch.randn(hidden) * hidden**-0.5) if family.trailing else None
        depth = len(self.model.layers)
        self.hints = Hints(hidden, depth) if depth >= HINTED else None

    def visual(self, tokens: torch.Tensor) -> torch.Tensor:
        """Visual tokens (K, hidden) and the newline, if the family has one."""
        return tokens if self.newline is None else torch.cat([tokens, self.newline[None]])

    def forward(self, batch: Batch, visual: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, L, hidden) for visual embeddings (B, K, hidden), newline included.

        Linear layers compute in bfloat16 where that is twice as fast; weights, norms and sums stay in float32.
        """
        embeds = self.model.embed_tokens(batch.ids)
        index = batch.visual[..., None].expand(-1, -1, embeds.shape[-1])
        embeds = embeds.scatter(1, index, visual)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training and not has_slow_half_precision()):
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


def encode(family: Architecture, tokenizer: Any, *turns: tuple[str, str]) -> Text:
    """Token ids of a training sample of prompts and answers, as the chat template renders them; answers are learned."""
    before, pieces = family.dialogue(turns)
    parts = [tokenizer.encode(piece) for piece in pieces]
    # Pieces are questions and answers in turns.
    worth = [0.0] * len(parts)
    worth[1::2] = [1.0 if prompt in PROMPTS else ANSWERS for prompt, _ in turns]
    weights = [weight for ids, weight in zip(parts, worth, strict=True) for _ in ids]
    return Text(tokenizer.encode(before), [token for ids in parts for token in ids], weights)


def text_batch(family: Architecture, texts: list[Text], shown: list[Shown]) -> Batch:
    """Assemble a batch of samples that show equally many visual tokens."""
    length = max(len(t.before) + len(s.kept) + len(t.after) for t, s in zip(texts, shown, strict=True))
    size = (len(texts), length)
    ids, positions = torch.zeros(size, dtype=torch.long), []
    targets, weights = torch.full(size, -100, dtype=torch.long), torch.zeros(size)
    visual = torch.zeros(len(texts), len(shown[0].kept), dtype=torch.long)
    for i, (text, video) in enumerate(zip(texts, shown, strict=True)):
        b, k, a = len(text.before), len(video.kept), len(text.after)
        ids[i, :b] = torch.tensor(text.before)
        ids[i, b + k : b + k + a] = torch.tensor(text.after)
        places = family.positions(b, video.kept, video.steps, video.grid, video.interval, length - b - k)
        positions.append(torch.from_numpy(places))
        weights[i, b + k - 1 : b + k + a - 1] = torch.tensor(text.weights)
        targets[i, b + k - 1 : b + k + a - 1] = torch.tensor(text.after).where(torch.tensor(text.weights) > 0, -100)
        visual[i] = torch.arange(b, b + k)
    return Batch(ids, torch.stack(positions, dim=1), targets, weights, visual)


def read_loss(
    reader: Reader, batch: Batch, visual: torch.Tensor, facts: torch.Tensor, truth: Truth | None = None
) -> tuple[torch.Tensor, float]:
    """Weighted training loss, and the plain loss in nats per caption token.

    ``truth`` gives hints to a model that takes them.
    """
    hints = reader.hints if truth is not None else None
    middle, hooks = hints.watch(reader.model.layers) if hints is not None else ([], [])
    states = reader(batch, visual)
    for hook in hooks:
        hook.remove()
    wanted = batch.targets >= 0
    labels = batch.targets[wanted]
    logits = states[wanted] @ reader.model.embed_tokens.weight.T
    losses = F.cross_entropy(logits, labels, reduction="none")
    weight = (1.0 + 3.0 * facts[labels]) * batch.weights[wanted]
    loss = (losses * weight).sum() / weight.sum()
    if hints is not None and truth is not None:
        loss = loss + HINTS * hints.loss(middle, batch.visual, truth.seen, truth.named)
    return loss, losses.detach().mean().item()


@dataclass(frozen=True)
class Truth:
    """Hint labels of a batch: of visual tokens (B, K without trailing ones, questions) and names (B, L, questions)."""

    seen: torch.Tensor
    named: torch.Tensor


def hint_truth(
    batch: Batch, texts: list[Text], clips: list[Seen], shown: list[Shown], colours: dict[int, str]
) -> Truth:
    """Return the hint labels of ``batch``, which is made of ``texts`` about ``clips`` as ``shown``."""
    seen, named = [], np.full((*batch.ids.shape, len(NAMED)), -1)
    for row, (text, clip, video) in enumerate(zip(texts, clips, shown, strict=True)):
        kept = video.kept[video.kept < video.steps * video.grid.tokens]
        seen.append(torch.from_numpy(seen_truth(clip.scene, clip.share, clip.grid, kept)))
        begin = len(text.before) + len(video.kept)
        named[row, begin : begin + len(text.after)] = named_truth(clip.scene, text.after, colours)
    return Truth(torch.stack(seen), torch.from_numpy(named))


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
    """A model, its optimiser, and its running loss; the draft learns at twice the rate."""

    def __init__(self, name: str, module: torch.nn.Module, peak: float):
        self.module, self.peak = module.train(), peak * (2.0 if name == "draft" else 1.0)
        self.optimiser = torch.optim.AdamW(
            module.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self.recent: list[float] = []

    def learn(self, loss: torch.Tensor, rate: float, plain: float) -> None:
        """Make one step at ``rate`` times the peak; ``plain`` is the logged loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate * self.peak
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimiser.step()
        self.recent.append(plain)

    def mean(self, last: int) -> float:
        recent = self.recent[-last:]
        return round(sum(recent) / max(1, len(recent)), 4)


def save(learners: dict[str, Learner], file: Path) -> None:
    """Write all weights atomically."""
    part = file.with_suffix(".part")
    torch.save({name: learner.module.state_dict() for name, learner in learners.items()}, part)
    part.rename(file)


def checkpoint(learners: dict[str, Learner], file: Path, step: int) -> None:
    """Write a checkpoint of the training atomically."""
    part = file.with_suffix(".part")
    states = {name: (one.module.state_dict(), one.optimiser.state_dict()) for name, one in learners.items()}
    torch.save((step, states), part)
    part.rename(file)


def resume(learners: dict[str, Learner], file: Path) -> int:
    """Resume from a file of :func:`checkpoint`; return the number of steps made."""
    step, states = torch.load(file, weights_only=False)
    for name, (weights, optimiser) in states.items():
        learners[name].module.load_state_dict(weights)
        learners[name].optimiser.load_state_dict(optimiser)
    return int(step)


@dataclass
class Seen:
    """A scene, its visual tokens per model (tokens, hidden), and each patch's things.

    ``share`` is the result of :func:`~research.training.codes.shares` for ``frames`` frames in ``grid``.
    """

    scene: Scene
    frames: int
    grid: Grid
    features: dict[str, torch.Tensor]
    share: np.ndarray


class Source(Protocol):
    """A source of training clips."""

    def begin(self, seed: int) -> None:
        """Seed the clips from now on."""
        ...

    def __call__(self, progress: float) -> tuple[list[Seen], int]:
        """Return the clips of a step, of one size, and their number of visual tokens; ``progress`` is from 0 to 1."""
        ...


class Fresh:
    """New scenes, as the oracle's codes.

    Args:
        family: of the readers.
        widths: of their language models.
        batch, seed: clips of a step; ``seed`` decides them.
        easy: begin with few objects and short clips, for models that cannot speak yet.
    """

    def __init__(self, family: Architecture, widths: dict[str, int], batch: int, seed: int, *, easy: bool) -> None:
        self.family, self.batch, self.easy = family, batch, easy
        self.codes = {name: Codes(width) for name, width in widths.items()}
        self.begin(seed)

    def begin(self, seed: int) -> None:
        self.shape, self.py = random.Random(seed), random.Random(seed)

    def __call__(self, progress: float) -> tuple[list[Seen], int]:
        if not self.easy:
            progress = 0.3 + 0.7 * progress
        most = 3 if not self.easy else 1 if progress < 0.22 else 2 if progress < 0.38 else 3
        (grid,) = self.shape.choices(tuple(self.family.grids), tuple(self.family.grids.values()))
        low, high = (8, 16) if progress < 0.22 else (12, 32) if progress < 0.6 else (16, 48)
        frames = (
            self.shape.choice(range(low, high + 1, grid.frames))
            if self.easy
            else self.shape.choices(FRAMES, FRAMES_WEIGHT)[0]
        )
        if self.easy:
            keep = 64 if progress < 0.22 else 96 if progress < 0.5 else self.shape.choice((96, 128, 192, 1024))
        else:
            keep = self.shape.choice((96, 128, 160, 256) if progress < 0.7 else (128, 192, 256, 1024))
        return [self._seen(draw_scene(self.py, most=most), frames, grid) for _ in range(self.batch)], keep

    def _seen(self, scene: Scene, frames: int, grid: Grid) -> Seen:
        share, features = shares(scene, np.linspace(0, 1, frames), grid), {}
        for name, codes in self.codes.items():
            tokens = codes.tokens(scene, share, grid).flatten(0, 2)
            features[name] = tokens + NOISE * torch.randn_like(tokens)
        return Seen(scene, frames, grid, features, share)


def train_readers(
    family: Architecture,
    readers: dict[str, Reader],
    source: Source,
    tokenizer: Any,
    out: Path,
    *,
    stage: str,
    steps: int,
    seed: int,
    peak: float,
    of: int | None = None,
    floor: float = 0.05,
    draft_every: int = 1,
) -> None:
    """Train all readers on the same samples; writes ``<stage>.pt`` to ``out`` at the end.

    Every 100 steps it writes ``<stage>.going``, from which it resumes if the file exists.

    Args:
        family: of the readers.
        readers: by the names ``target`` and ``draft``.
        source: of the clips.
        tokenizer: of the pair.
        out: folder.
        stage: its name in the log.
        steps, seed, peak: of the training; ``peak`` is the target's highest learning rate.
        of: steps of the learning-rate schedule, if more than are made.
        floor: the last learning rate, as a part of the peak.
        draft_every: the draft learns from one of this many samples, so that it is worse than the target.
    """
    facts, colours = fact_ids(tokenizer), colour_ids(tokenizer)
    learners = {name: Learner(name, reader, peak) for name, reader in readers.items()}
    begun, going = time.monotonic(), out / f"{stage}.going"
    first = resume(learners, going) if going.exists() else 0
    drawn = seed + first  # skip samples read before
    py, rng = random.Random(drawn), np.random.default_rng(drawn)
    if first:
        source.begin(seed + first)
    for step in range(first, steps):
        clips, count = source(step / steps)
        frames, grid = clips[0].frames, clips[0].grid
        count = min(count, frames // grid.frames * grid.tokens)
        texts = [encode(family, tokenizer, *draw_dialogue(clip.scene, py)) for clip in clips]
        shown = [
            Shown(
                choose_visible(rng, clip.share.astype(np.float32), grid, count, family.trailing),
                frames // grid.frames,
                grid,
                interval(py, frames, grid),
            )
            for clip in clips
        ]
        samples = text_batch(family, texts, shown)
        truth = hint_truth(samples, texts, clips, shown, colours)
        rate = learning_rate(step, of or steps, 1.0, warmup=min(100, steps // 10), floor=floor)
        for name, learner in learners.items():
            if name == "draft" and step % draft_every:
                continue
            reader: Any = learner.module
            visual = torch.stack(
                [
                    reader.visual(clip.features[name][torch.from_numpy(video.kept[:count])].float())
                    for clip, video in zip(clips, shown, strict=True)
                ]
            )
            loss, plain = read_loss(reader, samples, visual, facts, truth)
            learner.learn(loss, rate, plain)
        if (step + 1) % 50 == 0:
            row = {name: learner.mean(50) for name, learner in learners.items()}
            print(json.dumps({"stage": stage, "step": step + 1, "nats": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 100 == 0:
            checkpoint(learners, going, step + 1)
    save(learners, out / f"{stage}.pt")
    going.unlink(missing_ok=True)


def interval(rng: random.Random, frames: int, grid: Grid) -> float:
    """Return seconds per step of a clip of the shipped kind's length in ``frames`` frames."""
    return rng.uniform(7.5, 15.5) * grid.frames / frames
