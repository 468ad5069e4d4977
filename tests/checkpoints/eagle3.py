"""Small random EAGLE-3 heads in the published layouts, for the targets of ``qwen``; and what one drafts,
computed plainly from its files, all pairs anew for each token."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.checkpoints.qwen import HIDDEN, QWEN25, QwenKind, tokenizer

WIDTH, HEADS, KV_HEADS, INNER, DRAFTED, THETA, EPS = 24, 4, 2, 80, 200, 1e4, 1e-6
#: By family, the sections of three axes among 12 frequencies, and the axis of each.
SECTIONS = {QWEN25: ([2, 5, 5], [0] * 2 + [1] * 5 + [2] * 5), "qwen3_vl": ([6, 3, 3], [0, 1, 2] * 3 + [0] * 3)}


def config(kind: QwenKind, **more: object) -> dict[str, object]:
    """Return a config as SpecForge writes it."""
    rope: dict[str, object] = {"mrope_section": SECTIONS[kind.family][0]}
    rope |= {"type": "mrope"} if kind.family == QWEN25 else {"rope_type": "default", "mrope_interleaved": True}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "rope_scaling": rope,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": len(tokenizer()) + kind.padding,
        "draft_vocab_size": DRAFTED,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        **more,
    }


def tensors(kind: QwenKind, seed: int = 0) -> dict[str, torch.Tensor]:
    return layout(HIDDEN, len(tokenizer()), kind.padding, seed)


def layout(hidden: int, ids: int, padding: int = 0, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors for a target of that width, of ``DRAFTED`` of its ids and what fills its vocabulary up."""
    rng = torch.Generator().manual_seed(seed)

    def linear(out: int, into: int, gain: float = 1.0) -> torch.Tensor:
        return gain * torch.randn(out, into, generator=rng) / into**0.5

    def norm() -> torch.Tensor:
        return 1 + 0.2 * torch.randn(hidden, generator=rng)

    drafted = torch.randperm(ids, generator=rng)[:DRAFTED].sort().values
    known = torch.zeros(ids + padding, dtype=torch.bool)
    known[drafted] = True
    block = "midlayer"
    return {
        "d2t": drafted - torch.arange(DRAFTED),
        "t2d": known,
        "fc.weight": linear(hidden, 3 * hidden),
        "norm.weight": norm(),
        "lm_head.weight": linear(DRAFTED, hidden, 3.0),
        f"{block}.input_layernorm.weight": norm(),
        f"{block}.hidden_norm.weight": norm(),
        f"{block}.post_attention_layernorm.weight": norm(),
        f"{block}.self_attn.q_proj.weight": linear(HEADS * WIDTH, 2 * hidden, 1.5),
        f"{block}.self_attn.k_proj.weight": linear(KV_HEADS * WIDTH, 2 * hidden, 1.5),
        f"{block}.self_attn.v_proj.weight": linear(KV_HEADS * WIDTH, 2 * hidden),
        f"{block}.self_attn.o_proj.weight": linear(hidden, HEADS * WIDTH),
        f"{block}.mlp.gate_proj.weight": linear(INNER, hidden),
        f"{block}.mlp.up_proj.weight": linear(INNER, hidden),
        f"{block}.mlp.down_proj.weight": linear(hidden, INNER),
    }


def save(folder: Path, settings: dict[str, object], weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


def _normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rows * (rows.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _turned(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = states.shape[-1] // 2
    first, second = states[..., :half], states[..., half:]
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def drafts(
    weights: dict[str, torch.Tensor],
    axis: list[int],
    table: torch.Tensor,
    embeddings: torch.Tensor,
    states: torch.Tensor,
    positions: torch.Tensor,
    count: int,
    *,
    norm_first: bool = False,
    norm_output: bool = False,
) -> tuple[list[int], float]:
    """Tokens that a head proposes behind pairs.

    Args:
        weights: as they were saved.
        axis: whose position each frequency takes.
        table: embeddings of the target's ids.
        embeddings, states: (n, hidden) and (n, 3 * hidden) of the pairs.
        positions: (axes, n).
        count: of tokens.

    Returns:
        ids of the target, and the least distance of the two best logits.
    """
    w = {key.removeprefix("midlayer."): value.double() for key, value in weights.items() if key != "t2d"}
    states = states.double()
    if "input_norm.weight" in w:
        states = _normed(states, w["input_norm.weight"])
    if "fc_norm.0.weight" in w:
        each = enumerate(states.chunk(3, dim=1))
        states = torch.cat([_normed(state, w[f"fc_norm.{at}.weight"]) for at, state in each], dim=1)
    embeddings, hidden, positions = embeddings.double(), states @ w["fc.weight"].T, positions.double()
    frequencies = THETA ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    tokens, margin = [], float("inf")
    for _ in range(count):
        angles = torch.stack([positions[which] for which in axis], dim=1) * frequencies
        normed = _normed(hidden, w["hidden_norm.weight"])
        both = torch.cat([_normed(embeddings, w["input_layernorm.weight"]), normed], dim=1)
        query = _turned((both @ w["self_attn.q_proj.weight"].T).view(-1, HEADS, WIDTH), angles)
        key = _turned((both @ w["self_attn.k_proj.weight"].T).view(-1, KV_HEADS, WIDTH), angles)
        value = (both @ w["self_attn.v_proj.weight"].T).view(-1, KV_HEADS, WIDTH)
        groups = HEADS // KV_HEADS
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(groups, 1)) * WIDTH**-0.5
        unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        shares = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        seen = torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(groups, 1)).flatten(1)
        inner = (normed if norm_first else hidden) + seen @ w["self_attn.o_proj.weight"].T
        into = _normed(inner, w["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(into @ w["mlp.gate_proj.weight"].T)
        out = inner + (gate * (into @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
        logits = _normed(out[-1], w["norm.weight"]) @ w["lm_head.weight"].T
        best = logits.topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        place = int(best.indices[0])
        tokens.append(place + int(w["d2t"][place]))
        embeddings = torch.cat([embeddings, table[tokens[-1]].double()[None]])
        hidden = torch.cat([hidden, _normed(out[-1:], w["norm.weight"]) if norm_output else out[-1:]])
        positions = torch.cat([positions, positions[:, -1:] + 1], dim=1)
    return tokens, margin
