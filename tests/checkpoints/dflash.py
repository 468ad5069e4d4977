"""Small random block heads in the published layout, for the targets of ``qwen``; and what one drafts, computed plainly
from its files, all context anew for each block."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.checkpoints.qwen import HIDDEN, LAYERS, QwenKind, tokenizer
from vidspec.models.quantised import read_head_tensors

WIDTH, HEADS, KV_HEADS, INNER, BLOCKS, SIZE, MASK, THETA, EPS = 24, 4, 2, 80, 2, 8, 5, 1e4, 1e-6
TAPS = (0, 2, 3)
#: Keys of the second version: rows and channels of its convolutions, rank and candidates of its selector.
CONVOLUTIONS = {"conv_kernel_size": 3, "conv_group_size": 16}
SELECTOR = {"selector_rank": 6, "selector_top_k": 4}


def config(kind: QwenKind, **more: object) -> dict[str, object]:
    """Return the authors' config; keys of ``dflash_config`` are replaced by those of ``more["dflash_config"]``."""
    own = {"target_layer_ids": list(TAPS), "mask_token_id": MASK, **dict(more.pop("dflash_config", {}))}  # type: ignore[call-overload]
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "num_hidden_layers": BLOCKS,
        "num_target_layers": LAYERS,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "block_size": SIZE,
        "dtype": "bfloat16",
        "vocab_size": len(tokenizer()) + kind.padding,
        "dflash_config": own,
        **more,
    }


def speculators_config(kind: QwenKind, model: str, **more: object) -> dict[str, object]:
    """Return a config of ``speculators``: states are numbered by the blocks that read them."""
    blocks = config(kind)
    layers = {key: blocks[key] for key in _BLOCK_KEYS} | {
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA}
    }
    own = {
        key: more.pop(key) for key in ("rope_parameters", "layer_types", "sliding_window", "hidden_size") if key in more
    }
    own |= {"use_sliding_window": True} if "sliding_window" in own else {}
    return {
        "architectures": ["DSparkDraftModel" if model == "dspark" else "DFlashDraftModel"],
        "speculators_model_type": model,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": model,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": SIZE - 1}],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "transformer_layer_config": layers | own,
        "draft_vocab_size": blocks["vocab_size"],
        "block_size": SIZE,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "mask_token_id": MASK,
        "dtype": "bfloat16",
        **more,
    }


def in_speculators_layout(source: Path, folder: Path) -> Path:
    """Write a head of the second version without convolutions in the layout of ``speculators``, and return the folder.

    That layout has convolutions, which are written as identities, and causal blocks are sliding windows there.
    """
    given = json.loads((source / "config.json").read_text(encoding="utf-8"))
    own = given["dflash_config"]
    layers = {key: given[key] for key in (*_BLOCK_KEYS, "rope_theta", "max_position_embeddings")}
    blocks, hidden, size = given["num_hidden_layers"], given["hidden_size"], given["max_position_embeddings"]
    layers |= {"layer_types": ["sliding_attention"] * blocks, "sliding_window": size, "use_sliding_window": True}
    config = {
        "architectures": ["DFlash2DraftModel"],
        "speculators_model_type": "dflash2",
        "transformer_layer_config": layers,
        "draft_vocab_size": given["vocab_size"],
        "block_size": given["block_size"],
        "aux_hidden_state_layer_ids": [tap + 1 for tap in own["target_layer_ids"]],
        "mask_token_id": own["mask_token_id"],
        "sliding_window_non_causal": False,
        **CONVOLUTIONS,
        **{key: own[key] for key in ("selector_rank", "selector_top_k")},
    }
    tensors = {key: value.clone() for key, value in read_head_tensors(str(source), str(source), given).items()}
    kernel, groups = CONVOLUTIONS["conv_kernel_size"], hidden // CONVOLUTIONS["conv_group_size"]
    for index in range(blocks):
        for part in ("attention_conv", "mlp_conv"):
            base = torch.zeros(2, kernel, hidden)
            base[:, 0] = 1
            tensors[f"layers.{index}.{part}.base_kernel"] = base
            tensors[f"layers.{index}.{part}.kernel_projection.weight"] = torch.zeros(2 * kernel * groups, hidden)
    return save(folder, config, tensors)


#: Keys of a config that describe blocks.
_BLOCK_KEYS = (
    *("hidden_act", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_hidden_layers", "rms_norm_eps", "vocab_size", "model_type"),
)


def dspark_tensors(
    vocabulary: int, model: str, rank: int = 6, drafted: int | None = None, seed: int = 1
) -> dict[str, torch.Tensor]:
    """Random tensors of a Markov head of this kind and of a confidence head that reads its embeddings.

    With ``drafted`` the head has an output head over the ids below that number times two, every second of them.
    """
    rng = torch.Generator().manual_seed(1)

    def linear(out: int, into: int, gain: float = 1.0) -> torch.Tensor:
        return gain * torch.randn(out, into, generator=rng) / into**0.5

    made = {"markov_head.markov_w1.weight": torch.randn(vocabulary, rank, generator=rng)}
    made["markov_head.markov_w2.weight"] = linear(drafted or vocabulary, rank, 4.0)
    if model == "gated":
        made |= {"markov_head.gate_proj.weight": linear(rank, HIDDEN + rank, 3.0)}
        made |= {"markov_head.gate_proj.bias": torch.randn(rank, generator=rng)}
    if model == "rnn":
        made |= {"markov_head.joint_proj.weight": linear(3 * rank, 2 * rank + HIDDEN, 3.0)}
        made |= {"markov_head.joint_proj.bias": torch.randn(3 * rank, generator=rng)}
    made |= {"confidence_head.proj.weight": linear(1, HIDDEN + rank, 2.0), "confidence_head.proj.bias": torch.ones(1)}
    if drafted:
        made |= {"lm_head.weight": linear(drafted, HIDDEN, 8.0), "d2t": torch.arange(drafted)}
        made["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, 2 * torch.arange(drafted), True)
    return made


def dspark_path(
    weights: dict[str, torch.Tensor], model: str, logits: torch.Tensor, states: torch.Tensor, last: int, first: int = 0
) -> tuple[list[int], list[float], torch.Tensor]:
    """Tokens that a Markov head chooses for rows (n, V) with states (n, hidden), confidences, and its logits.

    Rows before ``first`` choose nothing, but a recurrent head begins with them.
    """
    w, token, tokens, sure, biased = {key: value.double() for key, value in weights.items()}, last, [], [], []
    memory = torch.zeros(w["markov_head.markov_w1.weight"].shape[1], dtype=torch.float64)
    for at, (row, state) in enumerate(zip(logits, states, strict=True)):
        shaped = before = w["markov_head.markov_w1.weight"][token]
        if model == "gated":
            joined = torch.cat([state, before])
            gate = w["markov_head.gate_proj.weight"] @ joined + w["markov_head.gate_proj.bias"]
            shaped = before / (1 + (-gate).exp())
        if model == "rnn":
            joined = w["markov_head.joint_proj.weight"] @ torch.cat([memory, before, state])
            gate, candidate, out = (joined + w["markov_head.joint_proj.bias"]).chunk(3)
            keep = 1 / (1 + (-gate).exp())
            memory, shaped = keep * memory + (1 - keep) * candidate.tanh(), out.tanh()
        if at < first:
            continue
        biased.append(row + w["markov_head.markov_w2.weight"][: len(row)] @ shaped)
        sure.append(float(w["confidence_head.proj.weight"][0] @ torch.cat([state, before])))
        sure[-1] = 1 / (1 + 2.718281828459045 ** -(sure[-1] + float(w["confidence_head.proj.bias"])))
        token = int(biased[-1].argmax()) * (2 if "d2t" in weights else 1)
        tokens.append(token)
    return tokens, sure, torch.stack(biased)


def tensors(
    hidden: int = HIDDEN, taps: int = len(TAPS), seed: int = 0, *, second: bool = False, vocabulary: int = 0
) -> dict[str, torch.Tensor]:
    """Random tensors; with ``second`` those of convolutions, with a ``vocabulary`` those of a selector."""
    rng = torch.Generator().manual_seed(seed)

    def linear(out: int, into: int, gain: float = 1.0) -> torch.Tensor:
        return gain * torch.randn(out, into, generator=rng) / into**0.5

    def norm(width: int = hidden) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(width, generator=rng)

    made = {"fc.weight": linear(hidden, taps * hidden), "hidden_norm.weight": norm(), "norm.weight": norm()}
    for index in range(BLOCKS):
        block = f"layers.{index}"
        made |= {
            f"{block}.input_layernorm.weight": norm(),
            f"{block}.post_attention_layernorm.weight": norm(),
            f"{block}.self_attn.q_proj.weight": linear(HEADS * WIDTH, hidden),
            f"{block}.self_attn.k_proj.weight": linear(KV_HEADS * WIDTH, hidden),
            f"{block}.self_attn.v_proj.weight": linear(KV_HEADS * WIDTH, hidden, 2.0),
            f"{block}.self_attn.o_proj.weight": linear(hidden, HEADS * WIDTH, 2.0),
            f"{block}.self_attn.q_norm.weight": norm(WIDTH),
            f"{block}.self_attn.k_norm.weight": norm(WIDTH),
            f"{block}.mlp.gate_proj.weight": linear(INNER, hidden),
            f"{block}.mlp.up_proj.weight": linear(INNER, hidden),
            f"{block}.mlp.down_proj.weight": linear(hidden, INNER),
        }
        for part in ("attention_conv", "mlp_conv") if second else ():
            kernel, groups = CONVOLUTIONS["conv_kernel_size"], hidden // CONVOLUTIONS["conv_group_size"]
            made[f"{block}.{part}.base_kernel"] = 0.6 * torch.randn(2, kernel, hidden, generator=rng)
            made[f"{block}.{part}.kernel_projection.weight"] = linear(2 * kernel * groups, hidden, 0.5)
    if vocabulary:
        rank = SELECTOR["selector_rank"]
        made["candidate_selector.hidden_projection.weight"] = linear(rank, hidden)
        for book in ("predecessor_codebook", "successor_codebook"):
            made[f"candidate_selector.{book}"] = torch.randn(vocabulary, rank, generator=rng)
    return made


def save(folder: Path, settings: dict[str, object], weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


def _normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rows * (rows.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _turned(
    states: torch.Tensor, positions: torch.Tensor, share: float = 1.0, sections: tuple[int, ...] = ()
) -> torch.Tensor:
    """States (n, heads, width) turned by positions (n,), or (3, n) of which each section of frequencies has an axis."""
    width = int(share * states.shape[-1])
    half = width // 2
    axes = [axis for axis, count in enumerate(sections) for _ in range(count)]
    angles = (positions[axes].T if axes else positions[:, None]) * THETA ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    first, second, rest = states[..., :half], states[..., half:width], states[..., width:]
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)


def _convolved(
    w: dict[str, torch.Tensor], name: str, normed: torch.Tensor, rows: torch.Tensor, side: int
) -> torch.Tensor:
    """Rows of one block, each with those before it, weighted as the rows ``normed`` say."""
    base = w[f"{name}.base_kernel"][side]
    given = (normed @ w[f"{name}.kernel_projection.weight"].T).view(len(rows), 2, len(base), -1)[:, side]
    out = torch.zeros_like(rows)
    for row in range(len(rows)):
        for back in range(min(len(base), row + 1)):
            weight = base[back] + given[row, back].repeat_interleave(rows.shape[1] // given.shape[-1])
            out[row] += weight * rows[row - back]
    return out


def path(weights: dict[str, torch.Tensor], logits: torch.Tensor, states: torch.Tensor, last: int) -> list[int]:
    """The tokens that a selector chooses, from left to right, for positions with logits (n, V), states (n, hidden)."""
    w, tokens = {key: value.double() for key, value in weights.items()}, [last]
    first, second = (w[f"candidate_selector.{book}_codebook"] for book in ("predecessor", "successor"))
    for row, state in zip(logits.double(), states, strict=True):
        projected = w["candidate_selector.hidden_projection.weight"] @ state
        candidates = row.argsort(descending=True)[: SELECTOR["selector_top_k"]]
        scores = [float(row[token] + (first[tokens[-1]] * projected) @ second[token]) for token in candidates]
        tokens.append(int(candidates[scores.index(max(scores))]))
    return tokens[1:]


def logits(
    weights: dict[str, torch.Tensor],
    judge: torch.Tensor,
    table: torch.Tensor,
    states: torch.Tensor,
    places: torch.Tensor,
    last: int,
    start: int,
    causal: tuple[bool, ...] = (False,) * BLOCKS,
    windows: tuple[int, ...] = (10**6,) * BLOCKS,
    share: float = 1.0,
    sections: tuple[int, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (SIZE, V) of all rows of one block, and their states (SIZE, hidden).

    Args:
        weights: as they were saved.
        judge, table: output head (V, hidden) and embedding of the target.
        states: (n, taps * hidden) of the rows before the block.
        places: (n,) their positions, or (3, n) with ``sections``.
        last: the token before the masked positions.
        start: its position.
        causal: by block of the head, whether rows see no later ones.
        windows: by block of the head, how far rows see back, by entries.
        share: of the width of a head, which is rotated.
        sections: frequencies of each axis of the target's positions.
    """
    w = {key: value.double() for key, value in weights.items()}
    context = _normed(states.double() @ w["fc.weight"].T, w["hidden_norm.weight"])
    rows = table.double()[[last, *[MASK] * (SIZE - 1)]]
    own = (start + torch.arange(SIZE, dtype=torch.float64)).expand(*places.shape[:-1], -1)
    positions = torch.cat([places.double(), own], dim=-1)
    before, groups = len(context), HEADS // KV_HEADS
    for index in range(BLOCKS):
        of = f"layers.{index}."
        normed = given = _normed(rows, w[of + "input_layernorm.weight"])
        if second := of + "attention_conv.base_kernel" in w:
            normed = _convolved(w, of + "attention_conv", given, given, 0)
        every = torch.cat([context, normed])
        query = (normed @ w[of + "self_attn.q_proj.weight"].T).view(-1, HEADS, WIDTH)
        key = (every @ w[of + "self_attn.k_proj.weight"].T).view(-1, KV_HEADS, WIDTH)
        value = (every @ w[of + "self_attn.v_proj.weight"].T).view(-1, KV_HEADS, WIDTH)
        query = _turned(_normed(query, w[of + "self_attn.q_norm.weight"]), positions[..., before:], share, sections)
        key = _turned(_normed(key, w[of + "self_attn.k_norm.weight"]), positions, share, sections)
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(groups, 1)) * WIDTH**-0.5
        distance = before + torch.arange(SIZE)[:, None] - torch.arange(before + SIZE)
        unseen = ((distance < 0) & causal[index]) | (distance >= windows[index])
        shares = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        seen = torch.einsum("hqk,khd->qhd", shares, value.repeat_interleave(groups, 1)).flatten(1)
        mixed = seen @ w[of + "self_attn.o_proj.weight"].T
        inner = rows + (_convolved(w, of + "attention_conv", given, mixed, 1) if second else mixed)
        into = given = _normed(inner, w[of + "post_attention_layernorm.weight"])
        if second:
            into = _convolved(w, of + "mlp_conv", given, given, 0)
        gate = torch.nn.functional.silu(into @ w[of + "mlp.gate_proj.weight"].T)
        mixed = (gate * (into @ w[of + "mlp.up_proj.weight"].T)) @ w[of + "mlp.down_proj.weight"].T
        rows = inner + (_convolved(w, of + "mlp_conv", given, mixed, 1) if second else mixed)
    states = _normed(rows, w["norm.weight"])
    return states @ judge.double().T, states
