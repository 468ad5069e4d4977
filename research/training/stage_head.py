"""Train an EAGLE-3 head for a built-in target: ``python -m research.training.stage_head --pair PAIR --out DIR``.

The target captions drawn clips, and the head learns from its states. As in EAGLE-3 (Li et al. 2025, Sec. 3.2:
training-time test) each token is also drafted from the head's own states of one step before, two, ..., as at inference.
DIR receives the head in the published layout; use it with ``--draft DIR --profile eagle3``. The pair is not changed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from research.training.int8_rows import INT8_ROWS, int8_rows
from research.training.stage_language import Learner, learning_rate
from research.world.captions import draw_prompt
from research.world.drawing import frames
from research.world.samples import FPS, HEIGHT, WIDTH, draw_sample
from vidspec.engine.forward import Engine
from vidspec.engine.rows import Rows
from vidspec.engine.taps import Taps
from vidspec.models import loading
from vidspec.models.eagle3 import Eagle3Decoder, default_tap_blocks, head_config
from vidspec.models.head import PROJECTIONS
from vidspec.models.placement import resolve_placement
from vidspec.models.quantised import read_head_tensors
from vidspec.video import Clip, SourceFacts

#: Scenes come from a random stream that neither the pairs' training nor the held-out clips use.
SEED = 30_000_000
#: Weight of a step of the unrolled draft, relative to the one before it.
DECAY = 0.8
#: Tokens of a caption at most.
MOST = 256


@dataclass(frozen=True)
class Text:
    """Tokens that the target read and wrote, as pairs of a token's states and the next token's embedding.

    Attributes:
        states: (n, 3 * hidden) in half precision, of the prompt's rows and the caption's but the last.
        embeddings: (n, hidden) in half precision, of the next token.
        positions: (axes, n).
        first: the row of the prompt's last token.
        tokens: of the caption.
    """

    states: torch.Tensor
    embeddings: torch.Tensor
    positions: torch.Tensor
    first: int
    tokens: tuple[int, ...]


def clips(count: int, shown: int, seed: int = SEED) -> Iterator[tuple[Clip, str]]:
    """Yield drawn clips of ``shown`` frames each, with prompts."""
    rng, times = random.Random(seed), np.linspace(0, 1, shown)
    for _ in range(count):
        sample = draw_sample(rng.randrange(2**31))
        facts = SourceFacts("", sample.duration, WIDTH, HEIGHT, "none", "none", FPS, False, 0, shown, "none")
        pictures = np.stack(list(frames(sample.scene, list(times), HEIGHT, WIDTH)))
        yield Clip(pictures, times * sample.duration, facts), draw_prompt(rng)


@torch.inference_mode()
def harvest(target: Any, clip: Clip, prompt: str, most: int = MOST) -> Text:
    """Let the target caption a clip in at most ``most`` tokens."""
    prefix = target.prefix(target.encode(target.preprocess(clip)), prompt)
    engine, blocks = Engine(target), default_tap_blocks(target.layers)
    taps = Taps(rows=torch.arange(0), visual=prefix.visual.index, hidden=blocks)
    read = engine.prefill(prefix, room=most, taps=taps)
    states, tokens = [torch.cat([taps.states[block] for block in blocks], dim=1)], [int(read.logits.argmax())]
    while len(tokens) < most and tokens[-1] not in target.eos:
        (passed,) = engine.run([Rows(read.span, tokens[-1:], tapped=blocks)])
        assert passed.tapped is not None
        states.append(passed.tapped)
        tokens.append(int(passed.logits[-1].argmax()))
    after = prefix.next_position + torch.arange(len(tokens) - 1)
    positions = prefix.positions.reshape(-1, prefix.length)
    embeddings = torch.cat([prefix.embeds[0, 1:], target.embed(torch.tensor(tokens))])
    return Text(
        torch.cat(states).half(),
        embeddings.half(),
        torch.cat([positions, after.expand(len(positions), -1)], dim=1),
        prefix.length - 1,
        tuple(tokens),
    )


class TrainedHead(torch.nn.Module):
    """The head's tensors as parameters, shared with the block that drafts.

    Args:
        target: whose widths, positions and vocabulary it has.
        ids: of the target that it can propose, sorted.
    """

    def __init__(self, target: Any, ids: Sequence[int]) -> None:
        super().__init__()
        like = target.language.config
        hidden, inner, width = int(like.hidden_size), int(like.intermediate_size), target.decoder.width
        heads, kv_heads = int(like.num_attention_heads), int(like.num_key_value_heads)
        rope = {key: value for key, value in like.rope_parameters.items() if key != "rope_theta"}
        self.ids = torch.tensor(ids)
        self.settings: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width,
            "num_hidden_layers": 1,
            "rms_norm_eps": float(like.rms_norm_eps),
            "rope_theta": like.rope_parameters["rope_theta"],
            "rope_scaling": rope if "mrope_section" in rope else None,
            "tie_word_embeddings": False,
            "vocab_size": int(target.model.lm_head.weight.shape[0]),
            "draft_vocab_size": len(ids),
        }
        sizes = {"q_proj": heads * width, "k_proj": kv_heads * width, "v_proj": kv_heads * width}
        shapes = {
            "fc": (hidden, 3 * hidden),
            **{f"midlayer.self_attn.{name}": (sizes[name], 2 * hidden) for name in PROJECTIONS[:3]},
            "midlayer.self_attn.o_proj": (hidden, heads * width),
            "midlayer.mlp.gate_proj": (inner, hidden),
            "midlayer.mlp.up_proj": (inner, hidden),
            "midlayer.mlp.down_proj": (hidden, inner),
        }
        made = {f"{name}.weight": torch.randn(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
        norms = (
            "norm",
            *(f"midlayer.{name}" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")),
        )
        made |= {f"{name}.weight": torch.ones(hidden) for name in norms}
        made["lm_head.weight"] = target.model.lm_head.weight.detach()[self.ids].clone().float()
        self.parts = torch.nn.ParameterList(made.values())
        self.tensors = dict(zip(made, self.parts, strict=True))
        self.decoder = Eagle3Decoder(head_config(dict(self.settings)), self.tensors)

    def forward(self, text: Text, depth: int) -> list[torch.Tensor]:
        """Return logits over its vocabulary (n - k, ids), by depth k, for the caption's tokens after the first.

        At depth 0 all states are the target's; at depth k those of the last k pairs are the head's own.
        """
        decoder, attention = self.decoder, _Unrolled(text.first)
        states, embeddings = F.linear(text.states.float(), self.tensors["fc.weight"]), text.embeddings.float()
        found, begin = list[torch.Tensor](), 0
        for _ in range(depth):
            if begin == len(embeddings):
                break
            rows = torch.cat([embeddings[begin:], states], dim=1)
            out = decoder.block(0, rows, decoder.rotation(text.positions[:, begin:]), attention)
            out = out[max(0, text.first - begin) :]
            found.append(decoder.logits(decoder.norm(out)))
            begin = max(begin, text.first) + 1
            states = out[:-1]
        return found

    def save(self, out: Path) -> None:
        """Write the head in the published layout, its matrices as int8 with a scale for each row."""
        out.mkdir(parents=True, exist_ok=True)
        known = torch.zeros(self.settings["vocab_size"], dtype=torch.bool)
        known[self.ids] = True
        held = int8_rows({name: tensor.detach() for name, tensor in self.tensors.items()})
        save_file(held | {"d2t": self.ids - torch.arange(len(self.ids)), "t2d": known}, out / "model.safetensors")
        (out / "config.json").write_text(
            json.dumps(self.settings | {"quantization_config": INT8_ROWS}, indent=2) + "\n", encoding="utf-8"
        )


class _Unrolled:
    """Attention of a chain's later depths: a row k deep sees the target's pairs but the last k, then one of each depth.

    Args:
        first: the row at which chains begin.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, index: int, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """(R, heads * d) of queries (R, heads, d) and new entries (R, 2, kv_heads, d)."""
        groups, depth = query.shape[1] // entries.shape[2], len(self._keys)
        key, value = (part.repeat_interleave(groups, 1).transpose(0, 1) for part in entries.unbind(1))
        query = query.transpose(0, 1)
        self._keys.append(key)
        self._values.append(value)
        if not depth:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1).flatten(1)
        count = query.shape[1]
        last = self.first + torch.arange(count)  # of the target's pairs, that each row sees
        scores = query @ self._keys[0].transpose(1, 2)
        scores = scores.masked_fill(torch.arange(scores.shape[2]) > last[:, None], float("-inf"))
        own = [(query * keys[:, :count]).sum(-1, keepdim=True) for keys in self._keys[1:]]
        shares = (torch.cat([scores, *own], dim=2) * query.shape[2] ** -0.5).softmax(-1)
        seen: torch.Tensor = shares[..., :-depth] @ self._values[0]
        for which, values in enumerate(self._values[1:]):
            seen = seen + shares[..., which - depth, None] * values[:, :count]
        return seen.transpose(0, 1).flatten(1)


def loss_of(head: TrainedHead, text: Text, depth: int) -> tuple[torch.Tensor, float]:
    """Cross-entropy of the target's own tokens, by depth less and less; and the part of depth 0 that is right."""
    places = torch.full((int(head.ids.max()) + 2,), -100)
    places[head.ids] = torch.arange(len(head.ids))
    wanted = places[torch.tensor(text.tokens[1:]).clamp(max=len(places) - 1)]
    total, right = torch.zeros(()), 0.0
    for deep, logits in enumerate(head(text, depth)):
        labels = wanted[deep:]
        if not (known := labels >= 0).any():
            continue
        total = total + DECAY**deep * F.cross_entropy(logits[:-1][known], labels[known])
        if not deep:
            right = float((logits[:-1].argmax(-1) == labels).float().mean())
    return total, right


def train_head(
    target: Any,
    texts: Sequence[Text],
    out: Path,
    *,
    steps: int,
    ids: int = 384,
    depth: int = 5,
    peak: float = 1e-3,
    begin: Path | None = None,
) -> TrainedHead:
    """Train a head on harvested texts, one per step; writes it to ``out`` every 200 steps and at the end.

    Args:
        target: whose head it is.
        texts: at least one of more than one token.
        out: folder.
        steps, peak: of the training; ``peak`` is the highest learning rate.
        ids: that it can propose at most, the most frequent of the texts.
        depth: how far it drafts from its own states.
        begin: folder of a head to continue from, with its vocabulary; a random one if None.
    """
    if begin is None:
        counts = Counter(token for text in texts for token in text.tokens)
        head = TrainedHead(target, sorted(token for token, _ in counts.most_common(ids)))
    else:
        given = json.loads((begin / "config.json").read_text(encoding="utf-8"))
        known = read_head_tensors(str(begin), str(begin), given)
        head = TrainedHead(target, known["t2d"].nonzero().flatten().tolist())
        with torch.no_grad():
            for name, tensor in head.tensors.items():
                tensor.copy_(known[name])
    learner, rng, begun = Learner("head", head, peak), random.Random(1), time.monotonic()
    for step in range(steps):
        loss, right = loss_of(head, rng.choice(texts), depth)
        learner.learn(loss, learning_rate(step, steps, 1.0, warmup=min(100, steps // 10)), right)
        if (step + 1) % 50 == 0:
            row = {"stage": "head", "step": step + 1, "right": learner.mean(50)}
            print(json.dumps({**row, "s": round(time.monotonic() - begun, 1)}), flush=True)
        if (step + 1) % 200 == 0 or step + 1 == steps:
            head.save(out)
    return head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=("embedded", "embedded-qwen"), default="embedded-qwen")
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--peak", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument(
        "--from", dest="begin", type=Path, help="folder of a head to go on from (default: a random one)"
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    target = loading.load_model(str(loading.embedded_folder(args.pair, "target")), resolve_placement("cpu", "float32"))
    texts = [harvest(target, *told) for told in clips(args.clips, args.frames)]
    train_head(target, texts, args.out, steps=args.steps, peak=args.peak, begin=args.begin)


if __name__ == "__main__":
    main()
