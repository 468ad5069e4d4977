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
from torch.nn import functional as F

from vidspec.embedded.architecture import CELLS, prompt_text
from vidspec.embedded.captions import PROMPTS, caption
from vidspec.embedded.codes import Codes
from vidspec.embedded.world import BACKGROUNDS, COLOURS, PATTERNS, PLACES, SHAPES, SIZES, draw_scene

__all__ = ["Batch", "Reader", "Text", "fact_ids", "learning_rate", "read_loss", "text_batch", "train_language"]

TOKENS = (CELLS // 2) ** 2
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
        positions: (B, L) rotary positions.
        targets: (B, L) next-token labels, -100 where nothing is learned.
        visual: (B, K) indices into L of the visual tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    visual: torch.Tensor


class Reader(torch.nn.Module):
    """A Qwen2 language model with tied embeddings and the learned newline vector that ends a video."""

    def __init__(self, text_config: Any):
        super().__init__()
        from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

        self.model = Qwen2Model(text_config)
        with torch.no_grad():
            self.model.embed_tokens.weight.normal_(0, text_config.hidden_size**-0.5)
        self.newline = torch.nn.Parameter(torch.randn(text_config.hidden_size) * text_config.hidden_size**-0.5)

    def forward(self, batch: Batch, visual: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, L, hidden) for visual embeddings (B, K, hidden), newline included."""
        embeds = self.model.embed_tokens(batch.ids)
        index = batch.visual[..., None].expand(-1, -1, embeds.shape[-1])
        embeds = embeds.scatter(1, index, visual)
        # A dictionary of masks goes through untouched: plain causal attention, no search for packed sequences.
        states = self.model(
            inputs_embeds=embeds,
            position_ids=batch.positions,
            attention_mask={"full_attention": None},
            use_cache=False,
        ).last_hidden_state
        return states  # type: ignore[no-any-return]


def fact_ids(tokenizer: Any) -> torch.Tensor:
    """(vocabulary,) bool: tokens that carry facts; their loss counts four times."""
    mask = torch.zeros(len(tokenizer), dtype=torch.bool)
    for word in _FACTS:
        for form in (word, f" {word}", f" {word.capitalize()}", word.capitalize()):
            ids = tokenizer.encode(form)
            if len(ids) == 1:
                mask[ids[0]] = True
    return mask


def encode(tokenizer: Any, prompt: str, answer: str) -> Text:
    """Token ids of a training sample, as the chat template renders it."""
    before, rest = prompt_text(prompt).split("<video>")
    head = tokenizer.encode(rest)
    return Text(tokenizer.encode(before), head + tokenizer.encode(answer) + [tokenizer.eos_token_id], len(head))


def text_batch(texts: list[Text], kept: list[np.ndarray], total: list[int]) -> Batch:
    """Assemble a batch; ``kept[i]`` are the sorted indices of the visual tokens shown of ``total[i]`` (same count)."""
    length = max(len(t.before) + len(k) + len(t.after) for t, k in zip(texts, kept, strict=True))
    size = (len(texts), length)
    ids, positions = torch.zeros(size, dtype=torch.long), torch.zeros(size, dtype=torch.long)
    targets = torch.full(size, -100, dtype=torch.long)
    visual = torch.zeros(len(texts), len(kept[0]), dtype=torch.long)
    for i, (text, keep, n) in enumerate(zip(texts, kept, total, strict=True)):
        b, k, a = len(text.before), len(keep), len(text.after)
        ids[i, :b] = torch.tensor(text.before)
        ids[i, b + k : b + k + a] = torch.tensor(text.after)
        positions[i, :b] = torch.arange(b)
        positions[i, b : b + k] = b + torch.from_numpy(keep)
        positions[i, b + k :] = b + n + torch.arange(length - b - k)
        first = b + k + text.answer - 1
        targets[i, first : b + k + a - 1] = torch.tensor(text.after[text.answer :])
        visual[i] = torch.arange(b, b + k)
    return Batch(ids, positions, targets, visual)


def read_loss(reader: Reader, batch: Batch, visual: torch.Tensor, facts: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Weighted training loss, and the plain loss in nats per caption token."""
    states = reader(batch, visual)
    wanted = batch.targets >= 0
    labels = batch.targets[wanted]
    logits = states[wanted] @ reader.model.embed_tokens.weight.T
    losses = F.cross_entropy(logits, labels, reduction="none")
    weight = 1.0 + 3.0 * facts[labels]
    return (losses * weight).sum() / weight.sum(), losses.detach().mean().item()


def learning_rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    """Linear warm-up, then a cosine to 5% of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def choose_visible(rng: np.random.Generator, share: np.ndarray, keep: int) -> np.ndarray:
    """Sorted indices of ``keep`` visual tokens, those that show a thing eight times likelier; the newline is last.

    ``share`` is (things, T, CELLS, CELLS); the newline's index is T * TOKENS and it is always kept.
    """
    t, side = share.shape[1], share.shape[2]
    amount = share.sum(0).reshape(t, side // 2, 2, side // 2, 2).mean(axis=(2, 4)).reshape(-1)
    if keep >= len(amount):
        return np.arange(len(amount) + 1)
    weight = 0.125 + np.clip(amount * 4, 0, 1)
    order = np.argsort(rng.exponential(size=len(weight)) / weight)[:keep]
    return np.append(np.sort(order), len(amount))


def train_language(
    readers: dict[str, Reader], tokenizer: Any, out: Path, *, steps: int, batch: int, seed: int, peak: float
) -> None:
    """Train all readers on the same samples; writes ``language.pt`` to ``out`` every 200 steps and at the end."""
    py, rng = random.Random(seed), np.random.default_rng(seed)
    codes = {name: Codes(reader.newline.shape[0]) for name, reader in readers.items()}
    facts = fact_ids(tokenizer)
    optimisers = {
        name: torch.optim.AdamW(reader.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        for name, reader in readers.items()
    }
    peaks = {name: peak * (2.0 if name == "draft" else 1.0) for name in readers}
    recent: dict[str, list[float]] = {name: [] for name in readers}
    begun = time.monotonic()
    for step in range(steps):
        progress = step / steps
        most = 1 if progress < 0.22 else 2 if progress < 0.38 else 3
        low, high = (8, 16) if progress < 0.22 else (12, 32) if progress < 0.6 else (16, 48)
        count = min(py.choice(range(low, high + 1)), 64)
        keep = min(count * TOKENS, 64 if progress < 0.22 else 96 if progress < 0.5 else py.choice((96, 128, 192)))
        scenes = [draw_scene(py, most=most) for _ in range(batch)]
        times = np.linspace(0, 1, count)
        texts = [encode(tokenizer, _prompt(py), caption(scene, py)) for scene in scenes]
        shares = [codes["target"].weights(scene, times) for scene in scenes]
        kept = [choose_visible(rng, share, keep) for share in shares]
        samples = text_batch(texts, kept, [count * TOKENS + 1] * batch)
        for name, reader in readers.items():
            rows = []
            for scene, share, keep_i in zip(scenes, shares, kept, strict=True):
                tokens = codes[name].tokens(codes[name].patches(scene, times, share))
                rows.append(torch.cat([tokens[torch.from_numpy(keep_i[:-1])], reader.newline[None]]))
            visual = torch.stack(rows)
            visual = visual + 0.03 * torch.randn_like(visual)
            loss, plain = read_loss(reader, samples, visual, facts)
            optimiser = optimisers[name]
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, peaks[name])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
            optimiser.step()
            recent[name].append(plain)
        if (step + 1) % 50 == 0:
            row = {name: round(sum(v[-50:]) / 50, 4) for name, v in recent.items()}
            print(json.dumps({"stage": "language", "step": step + 1, "nats": row,
                              "s": round(time.monotonic() - begun, 1)}), flush=True)  # fmt: skip
        if (step + 1) % 200 == 0 or step + 1 == steps:
            torch.save({name: reader.state_dict() for name, reader in readers.items()}, out / "language.part")
            (out / "language.part").rename(out / "language.pt")


def _prompt(rng: random.Random) -> str:
    return PROMPTS[0] if rng.random() < 0.6 else rng.choice(PROMPTS)
