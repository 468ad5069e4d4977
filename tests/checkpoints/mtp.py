"""Small random checkpoints of Qwen3.5 with a layer for multi-token prediction beside the model's own blocks; and what
that drafts, computed plainly from its tensors, all pairs anew for each token."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import copy_checkpoint
from tests.checkpoints.qwen import HEADS, HIDDEN, KV_HEADS, QwenKind

FAMILY = "qwen3_5"
WIDTH, INNER, EPS, THETA = 24, 96, 1e-6, 1e4
#: The first four of 12 frequencies of a key are turned, in turns by the three axes.
TURNED, AXES = 8, [0, 1, 2, 0]
EXPERTS, EXPERT, SHARED = 4, 48, 32


def tensors(kind: QwenKind, seed: int = 0) -> dict[str, torch.Tensor]:
    """Norms are centred on nought, as all of this family."""
    rng = torch.Generator().manual_seed(seed)

    def linear(out: int, into: int, gain: float = 1.0) -> torch.Tensor:
        return gain * torch.randn(out, into, generator=rng) / into**0.5

    def norm(width: int = HIDDEN) -> torch.Tensor:
        return 0.2 * torch.randn(width, generator=rng)

    block = "mtp.layers.0"
    made = {
        "mtp.fc.weight": linear(HIDDEN, 2 * HIDDEN),
        "mtp.pre_fc_norm_embedding.weight": norm(),
        "mtp.pre_fc_norm_hidden.weight": norm(),
        "mtp.norm.weight": norm(),
        f"{block}.input_layernorm.weight": norm(),
        f"{block}.post_attention_layernorm.weight": norm(),
        f"{block}.self_attn.q_proj.weight": linear(2 * HEADS * WIDTH, HIDDEN, 1.5),
        f"{block}.self_attn.k_proj.weight": linear(KV_HEADS * WIDTH, HIDDEN, 1.5),
        f"{block}.self_attn.v_proj.weight": linear(KV_HEADS * WIDTH, HIDDEN),
        f"{block}.self_attn.o_proj.weight": linear(HIDDEN, HEADS * WIDTH),
        f"{block}.self_attn.q_norm.weight": norm(WIDTH),
        f"{block}.self_attn.k_norm.weight": norm(WIDTH),
    }
    if not kind.family.endswith("_moe"):
        return made | {
            f"{block}.mlp.gate_proj.weight": linear(INNER, HIDDEN),
            f"{block}.mlp.up_proj.weight": linear(INNER, HIDDEN),
            f"{block}.mlp.down_proj.weight": linear(HIDDEN, INNER),
        }
    return made | {
        f"{block}.mlp.gate.weight": linear(EXPERTS, HIDDEN),
        f"{block}.mlp.shared_expert_gate.weight": linear(1, HIDDEN),
        f"{block}.mlp.shared_expert.gate_proj.weight": linear(SHARED, HIDDEN),
        f"{block}.mlp.shared_expert.up_proj.weight": linear(SHARED, HIDDEN),
        f"{block}.mlp.shared_expert.down_proj.weight": linear(HIDDEN, SHARED),
        f"{block}.mlp.experts.gate_up_proj": torch.stack([linear(2 * EXPERT, HIDDEN) for _ in range(EXPERTS)]),
        f"{block}.mlp.experts.down_proj": torch.stack([linear(HIDDEN, EXPERT) for _ in range(EXPERTS)]),
    }


def save(kind: QwenKind, folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """Write a checkpoint whose one file has these tensors too."""
    copy_checkpoint(folder, kind)
    save_file(load_file(folder / "model.safetensors") | weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rows * (rows.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * (1 + weight)


def _turned(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = states[..., : TURNED // 2], states[..., TURNED // 2 : TURNED]
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat([*turned, states[..., TURNED:]], dim=-1)


def drafts(
    weights: dict[str, torch.Tensor],
    head: torch.Tensor,
    table: torch.Tensor,
    embeddings: torch.Tensor,
    states: torch.Tensor,
    positions: torch.Tensor,
    count: int,
) -> tuple[list[int], float]:
    """Tokens that a dense layer proposes behind pairs.

    Args:
        weights: as they were saved.
        head: (V, hidden) of the target.
        table: embeddings of the target's ids.
        embeddings, states: (n, hidden) of the pairs; states behind the target's final norm.
        positions: (3, n).
        count: of tokens.

    Returns:
        ids, and the least distance of the two best logits.
    """
    w = {key.removeprefix("mtp.").removeprefix("layers.0."): value.double() for key, value in weights.items()}
    embeddings, hidden, positions = embeddings.double(), states.double(), positions.double()
    frequencies = THETA ** (-torch.arange(0, TURNED, 2, dtype=torch.float64) / TURNED)
    tokens, margin = [], float("inf")
    for _ in range(count):
        angles = torch.stack([positions[which] for which in AXES], dim=1) * frequencies
        both = [normed(embeddings, w["pre_fc_norm_embedding.weight"]), normed(hidden, w["pre_fc_norm_hidden.weight"])]
        rows = torch.cat(both, dim=1) @ w["fc.weight"].T
        into = normed(rows, w["input_layernorm.weight"])
        query, gate = (into @ w["self_attn.q_proj.weight"].T).view(-1, HEADS, 2 * WIDTH).chunk(2, dim=-1)
        query = _turned(normed(query, w["self_attn.q_norm.weight"]), angles)
        key = (into @ w["self_attn.k_proj.weight"].T).view(-1, KV_HEADS, WIDTH)
        key = _turned(normed(key, w["self_attn.k_norm.weight"]), angles)
        value = (into @ w["self_attn.v_proj.weight"].T).view(-1, KV_HEADS, WIDTH)
        groups = HEADS // KV_HEADS
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(groups, 1)) * WIDTH**-0.5
        unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        shares = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        seen = torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(groups, 1))
        rows = rows + (seen * gate.sigmoid()).flatten(1) @ w["self_attn.o_proj.weight"].T
        into = normed(rows, w["post_attention_layernorm.weight"])
        inner = torch.nn.functional.silu(into @ w["mlp.gate_proj.weight"].T) * (into @ w["mlp.up_proj.weight"].T)
        out = normed(rows + inner @ w["mlp.down_proj.weight"].T, w["norm.weight"])
        best = (out[-1] @ head.double().T).topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        embeddings = torch.cat([embeddings, table[tokens[-1]].double()[None]])
        hidden = torch.cat([hidden, out[-1:]])
        positions = torch.cat([positions, positions[:, -1:] + 1], dim=1)
    return tokens, margin
