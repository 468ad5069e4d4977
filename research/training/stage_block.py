"""Train a block head for a built-in target: ``python -m research.training.stage_block --pair PAIR --out DIR``.

The target captions fresh scenes, and the head learns to fill blocks after places of these captions, half of them drawn
at random, half where a draft of the head would begin after its last mistake. DIR receives the head in the published
layout (use it with ``--draft DIR --profile sparrow``), the captions in ``texts/``, and in ``state.pt`` what the same
command continues from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from research.training.architecture import architecture
from research.training.int8_rows import INT8_ROWS, int8_rows
from research.training.record_texts import Recorded, read_texts, record_texts, save_texts
from research.training.stage_head import clips
from research.training.stage_language import Learner
from research.world.samples import HELD_OUT_SEED
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.models import dflash, loading
from vidspec.models.dflash import BlockDecoder
from vidspec.models.dflash_checkpoint import block_config
from vidspec.models.placement import resolve_placement

#: Scenes come from random streams that no other training, held-out clip or test uses.
SEEDS = {"embedded": 40_000_000, "embedded-qwen": 50_000_000}
FAMILIES = {"embedded": "llava_onevision", "embedded-qwen": "qwen2_5_vl"}
#: Target blocks whose outputs the head reads, tokens of a block, clips of a recorded batch.
TAPPED, BLOCK, BATCH = (1, 4, 6, 9, 11), 16, 32
#: Rows of a block that a step trains, and how often: later rows matter only if all before them are right.
ROWS, ROWS_WEIGHT = (6, 10, 16), (2, 2, 2)
#: Tokens after which a position's weight has fallen to 1 / e.
FALL = 9.0
#: Weight of the logits' own loss, by which a position's right token is among the candidates.
OWN = 0.5
#: Share of the steps in whose context there are visual rows: a tenth of them, half, or all.
SEEING = 0.4
#: Numbers of a token in the selector's codebooks, and candidates of a position among which it chooses.
RANK, CANDIDATES = 64, 16
_SELECTOR = "candidate_selector"
#: Part of the weights' moving average that a step keeps.
AVERAGE = 0.997


class TrainedBlocks(torch.nn.Module):
    """The head's tensors as parameters, in the decoder that drafts.

    Args:
        target: whose widths, embedding and vocabulary it has.
        blocks: number of blocks.
    """

    def __init__(self, target: Any, blocks: int = 2) -> None:
        super().__init__()
        like = target.language.config
        hidden, inner, width = int(like.hidden_size), int(like.intermediate_size), target.decoder.width
        heads, kv_heads = int(like.num_attention_heads), int(like.num_key_value_heads)
        self.embedding = target.model.lm_head.weight.detach().clone().float()
        self.vocabulary = int(target.vocabulary)
        self.settings: dict[str, Any] = {
            "architectures": ["DFlash2DraftModel"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width,
            "num_hidden_layers": blocks,
            "num_target_layers": int(target.layers),
            "attention_bias": False,
            "rms_norm_eps": float(like.rms_norm_eps),
            "rope_theta": float(like.rope_parameters["rope_theta"]),
            "max_position_embeddings": int(like.max_position_embeddings),
            "vocab_size": len(self.embedding),
            "block_size": BLOCK,
            "dflash_config": {
                "target_layer_ids": list(TAPPED),
                "mask_token_id": len(self.embedding) - 1,
                "is_causal": True,
                "selector_rank": RANK,
                "selector_top_k": CANDIDATES,
            },
        }
        shapes = {"fc": (hidden, len(TAPPED) * hidden), f"{_SELECTOR}.hidden_projection": (RANK, hidden)}
        norms = {"norm": hidden, "hidden_norm": hidden}
        for index in range(blocks):
            of = f"layers.{index}"
            for name, rows, columns in (
                ("self_attn.q_proj", heads * width, hidden),
                ("self_attn.k_proj", kv_heads * width, hidden),
                ("self_attn.v_proj", kv_heads * width, hidden),
                ("self_attn.o_proj", hidden, heads * width),
                ("mlp.gate_proj", inner, hidden),
                ("mlp.up_proj", inner, hidden),
                ("mlp.down_proj", hidden, inner),
            ):
                shapes[f"{of}.{name}"] = rows, columns
            norms |= {f"{of}.{name}": hidden for name in ("input_layernorm", "post_attention_layernorm")}
            norms |= {f"{of}.self_attn.{name}": width for name in ("q_norm", "k_norm")}
        made = {f"{name}.weight": torch.randn(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
        made |= {f"{name}.weight": torch.ones(size) for name, size in norms.items()}
        self._begin_as_target(target, made, blocks)
        made[f"{_SELECTOR}.predecessor_codebook"] = torch.randn(len(self.embedding), RANK)
        made[f"{_SELECTOR}.successor_codebook"] = torch.zeros(len(self.embedding), RANK)
        self.parts = torch.nn.ParameterList(made.values())
        self.tensors = dict(zip(made, self.parts, strict=True))
        self.decoder = BlockDecoder(*block_config("the new head", self.settings), self.tensors)

    @staticmethod
    def _begin_as_target(target: Any, made: dict[str, torch.Tensor], blocks: int) -> None:
        """Begin with the target's last blocks over the states that enter them: their directions are known already."""
        first, hidden = target.layers - blocks, len(made["norm.weight"])
        known = target.model.model.language_model.state_dict()
        for name in made:
            block, _, part = name.removeprefix("layers.").partition(".")
            source = f"layers.{first + int(block)}.{part}" if name.startswith("layers.") else name
            if source in known and known[source].shape == made[name].shape:
                made[name] = known[source].detach().float().clone(memory_format=torch.contiguous_format)
        made["hidden_norm.weight"] = made["layers.0.input_layernorm.weight"].clone()
        made["fc.weight"] *= 0.1
        at = hidden * TAPPED.index(first - 1)
        made["fc.weight"][:, at : at + hidden] += torch.eye(hidden)

    def forward(self, texts: Sequence[Recorded], anchors: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the tokens after each anchor, each after the caption's own one, and the logits alone.

        Both (G, K, rows - 1, vocabulary). A selector scores the tokens with the highest logits.

        Args:
            texts: G captions.
            anchors: (G, K) index in the caption of the last token before each block.
            rows: of a block, the anchor's included.
        """
        decoder, (clips, count) = self.decoder, anchors.shape
        most = max(len(text.states) for text in texts)
        lengths = torch.tensor([text.prompt_rows for text in texts])
        states = torch.zeros(clips, most, texts[0].states.shape[1])
        places = torch.zeros(clips, most, dtype=torch.long)
        for at, text in enumerate(texts):
            states[at, : len(text.states)], places[at, : len(text.places)] = text.states, text.places
        vectors = decoder.context(states.flatten(0, 1))
        before = decoder.rotation(places.view(1, -1))
        seen = (lengths[:, None] + anchors)[..., None] > torch.arange(most)  # (G, K, C)
        firsts = torch.tensor([int(text.places[text.prompt_rows - 1]) + 1 for text in texts])
        starts = firsts[:, None] + anchors
        rotation = decoder.rotation((starts[..., None] + torch.arange(rows)).view(1, -1))
        given = torch.stack([tokens_after(text, a, rows, 0) for text, a in zip(texts, anchors, strict=True)])
        ids = torch.full((clips, count, rows), self.settings["dflash_config"]["mask_token_id"])
        ids[..., 0] = given[..., 0]
        out = F.embedding(ids.flatten(), self.embedding)
        own = torch.ones(rows, rows, dtype=torch.bool).tril()
        mask = seen.repeat_interleave(rows, 1)[:, None, None]

        def attention(index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
            old = decoder.entries(index, vectors, before).view(clips, most, 2, decoder.kv_heads, -1)
            groups, width = decoder.heads // decoder.kv_heads, decoder.width
            query = query.view(clips, count * rows, decoder.kv_heads, groups, width) * decoder.scaling
            query = query.permute(0, 2, 3, 1, 4)  # (G, kv, groups, K * rows, d)
            keys, values = old.permute(2, 0, 3, 1, 4)[:, :, :, None]  # (G, kv, 1, C, d)
            early = (query @ keys.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
            new = entries.view(clips, count, rows, 2, decoder.kv_heads, width).permute(3, 0, 4, 1, 2, 5)
            new_keys, new_values = new[:, :, :, None]  # (G, kv, 1, K, rows, d)
            blocks = query.unflatten(3, (count, rows))
            late = (blocks @ new_keys.transpose(-1, -2)).masked_fill(~own, float("-inf"))
            shares = torch.cat([early, late.flatten(3, 4)], dim=-1).softmax(-1)
            mixed: torch.Tensor = shares[..., :most] @ values
            mixed = mixed + (shares[..., most:].unflatten(3, (count, rows)) @ new_values).flatten(3, 4)
            return mixed.permute(0, 3, 1, 2, 4).reshape(clips * count * rows, -1)

        for index in range(decoder.depth):
            out = decoder.block(index, out, rotation, attention)
        out = decoder.norm(out).view(clips, count, rows, -1)[:, :, 1:]
        projected = F.linear(out, self.tensors[f"{_SELECTOR}.hidden_projection.weight"])
        paired = self.tensors[f"{_SELECTOR}.predecessor_codebook"][given[..., :-1]] * projected
        logits = F.linear(out, self.embedding[: self.vocabulary])
        successors = self.tensors[f"{_SELECTOR}.successor_codebook"][: self.vocabulary]
        return logits + F.linear(paired, successors), logits

    def save(self, out: Path, weights: dict[str, torch.Tensor]) -> None:
        """Write the head in the published layout, its matrices as int8 with a scale for each row."""
        out.mkdir(parents=True, exist_ok=True)
        save_file(int8_rows(weights), out / "model.safetensors")
        settings = self.settings | {"quantization_config": INT8_ROWS}
        (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def tokens_after(text: Recorded, anchors: torch.Tensor, rows: int, end: int = -100) -> torch.Tensor:
    """Return the caption's tokens (K, rows) from each anchor on, ``end`` after its end."""
    padded = torch.cat([torch.tensor(text.tokens), torch.full((rows,), end)])
    return padded[anchors[:, None] + torch.arange(rows)]


@torch.no_grad()
def accepted_lengths(head: TrainedBlocks, text: Recorded, rows: int = BLOCK) -> tuple[list[int], torch.Tensor]:
    """Return the accepted tokens of each round of a draft of a text, and (n - 1, rows - 1) which guesses are right."""
    parts = []
    for part in torch.arange(len(text.tokens) - 1).split(64):
        scores, logits = (values[0] for values in head([text], part[None], rows))
        candidates = logits.topk(CANDIDATES, dim=-1).indices
        chosen = candidates.gather(-1, scores.gather(-1, candidates).argmax(-1, keepdim=True))[..., 0]
        parts.append(chosen == tokens_after(text, part, rows)[:, 1:])
    right = torch.cat(parts)
    runs = right.long().cumprod(1).sum(1).tolist()
    at, accepted = 0, []
    while at < len(runs):
        accepted.append(runs[at])
        at += runs[at] + 1
    return accepted, right


class BlockTraining:
    """Training of a head on recorded captions.

    Args:
        head: to train.
        folder: of recorded batches, which may grow while it trains; the first is held out.
        peak: highest learning rate.
    """

    def __init__(self, head: TrainedBlocks, folder: Path, peak: float) -> None:
        self.head, self.folder, self.learner = head, folder, Learner("blocks", head, peak)
        self.average = {name: tensor.detach().clone() for name, tensor in head.tensors.items()}
        self.held_out: list[Recorded] = []
        self.texts: list[Recorded] = []
        #: Places of each text where the next round of a draft would begin.
        self.begins: list[list[int]] = []
        self._read: set[Path] = set()
        self.rng, self.steps = random.Random(1), 0

    def read(self) -> None:
        """Read batches that have been recorded since."""
        while len(files := set(self.folder.glob("*.pt"))) < 2:
            time.sleep(1)
        for file in sorted(files - self._read):
            texts = [text for text in read_texts(file) if len(text.tokens) > 8]
            if not self._read:
                self.held_out = texts
            else:
                self.texts += texts
                self.begins += [[0] for _ in texts]
            self._read.add(file)

    def step(self, rate: float, clips: int = 2, count: int = 16) -> float:
        """Make one step; return the share of first guesses that are right."""
        rows = self.rng.choices(ROWS, ROWS_WEIGHT)[0]
        picked = self.rng.sample(range(len(self.texts)), clips)
        share = self.rng.choice((0.1, 0.5, 1.0)) if self.rng.random() < SEEING else 0.0
        texts = [self.texts[at].with_visual(share) for at in picked]
        chosen = []
        for at, text in zip(picked, texts, strict=True):
            begins = self.begins[at]
            some = self.rng.sample(begins, min(len(begins), count // 2))
            some += [self.rng.randrange(len(text.tokens) - 1) for _ in range(count - len(some))]
            chosen.append(some)
        anchors = torch.tensor(chosen)
        scores, logits = self.head(texts, anchors, rows)
        wanted = torch.stack([tokens_after(text, a, rows)[:, 1:] for text, a in zip(texts, anchors, strict=True)])
        weights = torch.exp(-torch.arange(rows - 1) / FALL)
        counted = (wanted >= 0) * weights
        loss = torch.zeros(())
        for values, share in ((scores, 1.0), (logits, OWN)):
            losses = F.cross_entropy(values.flatten(0, 2), wanted.flatten(), ignore_index=-100, reduction="none")
            loss = loss + share * (losses.view_as(wanted) * weights).sum() / counted.sum()
        right = scores.argmax(-1) == wanted
        self.learner.learn(loss, rate, float(right[..., 0].float().mean()))
        self.steps += 1
        keep = min(AVERAGE, self.steps / (self.steps + 10))
        for name, tensor in self.head.tensors.items():
            self.average[name].lerp_(tensor.detach(), 1 - keep)
        runs = right.long().cumprod(2).sum(2)
        for at, text, some, lengths in zip(picked, texts, chosen, runs.tolist(), strict=True):
            after = {begin + run + 1 for begin, run in zip(some, lengths, strict=True) if run < rows - 1}
            kept = [begin for begin in after if begin < len(text.tokens) - 1]
            self.begins[at] = [0, *kept] if self.rng.random() < 0.3 else kept or [0]
        return float(loss.detach())

    def validate(self) -> dict[str, Any]:
        """Return tau (accepted and the target's own token) and accuracy by position, on held-out captions.

        ``tau`` and ``positions`` with rows of text as context; ``tau_seeing`` with visual rows, of a quarter of them.
        """
        trained = {name: tensor.detach().clone() for name, tensor in self.head.tensors.items()}
        self._load(self.average)
        lengths, rights, seeing = list[int](), [], list[int]()
        for at, text in enumerate(self.held_out):
            if at % 4 == 0:
                seeing += accepted_lengths(self.head, text)[0]
            accepted, right = accepted_lengths(self.head, text.with_visual(0.0))
            lengths += accepted
            begins = torch.tensor([0, *accepted[:-1]]) + 1
            rights.append(right[begins.cumsum(0) - 1])
        self._load(trained)
        all_right = torch.cat(rights).float().mean(0)
        return {
            "tau": round(1 + sum(lengths) / len(lengths), 3),
            "tau_seeing": round(1 + sum(seeing) / len(seeing), 3),
            "positions": [round(float(all_right[at - 1]), 2) for at in (1, 2, 4, 8, 12, 15)],
        }

    def save_state(self, file: Path) -> None:
        """Write atomically what :meth:`load_state` continues from."""
        part = file.with_suffix(".part")
        weights = {name: tensor.detach() for name, tensor in self.head.tensors.items()}
        torch.save((weights, self.average, self.learner.optimiser.state_dict(), self.steps), part)
        part.rename(file)

    def load_state(self, file: Path) -> None:
        weights, self.average, optimiser, self.steps = torch.load(file)
        self._load(weights)
        self.learner.optimiser.load_state_dict(optimiser)

    @torch.no_grad()
    def _load(self, weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in self.head.tensors.items():
            tensor.copy_(weights[name])


def record(pair: str, target: Any, folder: Path, clips: int) -> None:
    """Record captions into a folder, batch by batch, until there are so many; batches that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    family = architecture(FAMILIES[pair])
    for number in range(-(-clips // BATCH)):
        if (file := folder / f"{number:04d}.pt").exists():
            continue
        for texts in record_texts(family, target, TAPPED, BATCH, BATCH, SEEDS[pair] + number):
            save_texts(file, texts)


def accepted_by_position(pair: str, target: Any, head: Path, profile: str, count: int) -> dict[str, Any]:
    """Caption drawn clips that no training used, from pixels; return the acceptance of the whole block.

    Returns:
        ``tau``, tokens of a round with the target's own; ``positions``, the share of rounds that accept the 1st, 2nd,
        ... position of those that accept all before it; ``reached``, the share of all rounds that accept it.
    """
    loaded = dflash.load_block_head(str(head), target, resolve_placement("cpu", "float32"))
    settings = {"models.pair": pair, "video.frames": 32, "draft.gamma": BLOCK - 1}
    captioner = Captioner(profiles.load(profile, settings, env={}), target, None, head=loaded)
    lengths = list[int]()
    for number, (clip, _) in enumerate(clips(count, 32, HELD_OUT_SEED + 7)):
        lengths += captioner.caption(f"{number}", clip=clip).counters["accepted_lengths"]
    reached = [sum(length >= at for length in lengths) for at in range(BLOCK)]
    return {
        "profile": profile,
        "clips": count,
        "tau": round(1 + sum(lengths) / len(lengths), 2),
        "positions": [round(now / max(1, before), 2) for before, now in itertools.pairwise(reached)],
        "reached": [round(now / len(lengths), 2) for now in reached[1:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=tuple(SEEDS), default="embedded-qwen")
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--clips", type=int, default=1500)
    parser.add_argument("--minutes", type=float, default=60, help="of training")
    parser.add_argument("--peak", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--record", action="store_true", help="only record captions")
    parser.add_argument("--train", action="store_true", help="only train, on captions recorded so far and meanwhile")
    parser.add_argument("--evaluate", type=int, metavar="CLIPS", help="only measure the head in DIR on unseen clips")
    parser.add_argument("--profile", default="sparrow", help="of the measurement")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    target = loading.load_model(str(loading.embedded_folder(args.pair, "target")), resolve_placement("cpu", "float32"))
    if args.evaluate:
        print(json.dumps(accepted_by_position(args.pair, target, args.out, args.profile, args.evaluate)))
        return
    if not args.train:
        record(args.pair, target, args.out / "texts", args.clips)
    if args.record:
        return
    training = BlockTraining(TrainedBlocks(target), args.out / "texts", args.peak)
    begun, best, checked, first = time.monotonic(), 0.0, 0.0, 0
    if (state := args.out / "state.pt").exists():
        training.load_state(state)
        training.read()
        first, best = training.steps, _save_if_better(training, args.out, best, 0.0)
    while (part := (time.monotonic() - begun) / (60 * args.minutes)) < 1:
        if training.steps % 50 == 0:
            training.read()
        rate = min(1.0, (training.steps - first + 1) / 30) * (0.02 + 0.49 * (1 + math.cos(math.pi * part)))
        training.step(rate)
        if time.monotonic() - begun - checked > 300:
            checked = time.monotonic() - begun
            best = _save_if_better(training, args.out, best, checked)
            training.save_state(state)
    _save_if_better(training, args.out, best, time.monotonic() - begun)


def _save_if_better(training: BlockTraining, out: Path, best: float, seconds: float) -> float:
    """Validate, print a line and write the head if it is the best so far; return the best tau."""
    found = training.validate()
    row = {"stage": "block", "step": training.steps, "texts": len(training.texts), **found}
    print(json.dumps({**row, "first": training.learner.mean(200), "s": round(seconds)}), flush=True)
    tau = float(found["tau"])
    if tau > best:
        training.head.save(out, training.average)
        training.save_state(out / "state.pt")
    return max(best, tau)


if __name__ == "__main__":
    main()
