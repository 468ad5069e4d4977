"""Recurrent layers, which keep a state instead of keys and values (Gated DeltaNet), and the rollback of states.

A state cannot be cut like a cache: forgetting rows needs the state from before them. So a sequence keeps a few past
states (marks) and, for the rows since the oldest mark, the inputs of the convolution and the gates. Rollback to a place
takes the last mark at or before it and runs the recurrence, not the layers, over the rows between. The rows of a window
are computed together, as a triangular system, so that states depend on window boundaries by rounding alone; a prompt's
states are computed in chunks by the stock modules' own function.

Source: Gated Delta Networks (Yang, Kautz and Hatamizadeh, 2024), eq. 10; the rows of a window as in Qwen3.5.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn import functional as F

from vidspec.engine.rows import Rows
from vidspec.engine.stock_types import StockConfig, StockModel

#: Most rows that a sequence can roll back; windows are shorter.
REACH = 64
#: Marks of the last ``NEAR`` rows are kept at each end of a pass, of older rows one in ``SPACING``.
NEAR, SPACING = 8, 32
#: Most marks and rows that a layer keeps of a sequence; rows while a pass of up to :data:`REACH` adds to them.
MARKS, ROWS = NEAR + 2 * (REACH // SPACING + 1), 3 * REACH


@dataclass
class RecurrentLayerState:
    """State of one layer in one sequence.

    Attributes:
        inputs: (k - 1 + n, channels) inputs of the convolution of width k: those of the rows since the oldest mark, and
            the k - 1 before them.
        gates: (n, 2, heads) log decay and beta of the rows.
    """

    inputs: torch.Tensor
    gates: torch.Tensor
    #: Place, and the state before the row at that place, (heads, d_k, d_v) float32.
    marks: list[tuple[int, torch.Tensor]]
    #: The layer before the last stretch of a prompt, from which a failed pass over it is run again.
    before: RecurrentLayerState | None = None


@dataclass
class RecurrentStates:
    """The states of one sequence, by layer."""

    layers: dict[int, RecurrentLayerState] = field(default_factory=dict)

    def copy(self) -> RecurrentStates:
        """Return the states for a sequence with the same beginning; tensors are shared until they change."""
        return RecurrentStates({index: replace(layer, marks=list(layer.marks)) for index, layer in self.layers.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(
            tensor.nbytes
            for layer in self.layers.values()
            for tensor in (layer.inputs, layer.gates, *(state for _, state in layer.marks))
        )


def max_state_bytes(config: StockConfig, dtype: torch.dtype) -> int:
    """Return the most bytes that the states of one sequence take, however long it is.

    Args:
        config: config of a language model, some of whose ``layer_types`` may be ``linear_attention``.
        dtype: dtype of the model.
    """
    layers = list(getattr(config, "layer_types", None) or ()).count("linear_attention")
    if not layers:
        return 0
    heads, width = config.linear_num_value_heads, config.linear_key_head_dim
    state = 4 * heads * width * config.linear_value_head_dim
    channels = 2 * config.linear_num_key_heads * width + heads * config.linear_value_head_dim
    inputs = (config.linear_conv_kernel_dim - 1 + ROWS) * channels * dtype.itemsize
    return layers * (MARKS * state + inputs + ROWS * 2 * 4 * heads)  # type: ignore[no-any-return]


def linear_attention(module: StockModel, index: int, rows: torch.Tensor, batch: Sequence[Rows]) -> torch.Tensor:
    """Return the output of a stock Gated DeltaNet module for rows of several sequences, and update their states.

    Args:
        module: the stock module.
        index: its block.
        rows: (R, hidden) normed, the rows of each sequence together.
        batch: the rows of each sequence, R in all.

    Returns:
        (R, hidden) to add to the residual.

    Raises:
        IndexError: a sequence was rolled back further than its states reach.
    """
    mixed, z = module.in_proj_qkv(rows), module.in_proj_z(rows)
    beta = module.in_proj_b(rows).sigmoid()
    decay = -module.A_log.float().exp() * F.softplus(module.in_proj_a(rows).float() + module.dt_bias)
    gates = torch.stack([decay, beta.float()], 1)
    sizes = [len(part) for part in batch]
    parts = zip(batch, mixed.split(sizes), gates.split(sizes), strict=True)
    out = torch.cat([_sequence_output(module, index, *part) for part in parts]).to(rows.dtype)
    normed = module.norm(out.reshape(-1, module.head_v_dim), z.reshape(-1, module.head_v_dim))
    return module.out_proj(normed.reshape(len(rows), -1))  # type: ignore[no-any-return]


def _sequence_output(
    module: StockModel, index: int, part: Rows, mixed: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """Return (n, heads * d_v) for the rows of one sequence."""
    if part.parents is not None:
        raise ValueError("a recurrent layer has one past: no trees")
    if part.span.states is None:
        part.span.states = RecurrentStates()
    layers, length = part.span.states.layers, part.span.length
    if not length:
        heads, back = module.num_v_heads, module.conv_kernel_size - 1
        state = torch.zeros(heads, module.head_k_dim, module.head_v_dim, device=mixed.device)
        layers[index] = RecurrentLayerState(mixed.new_zeros(back, mixed.shape[1]), gates[:0], [(0, state)])
    layer = layers[index]
    if layer.before is not None and layer.before.marks[0][0] == length < layer.marks[0][0]:
        layer = layers[index] = layer.before
    state = _rollback_state(module, layer, length)
    if part.prompt is not None:
        layer = layers[index] = _layer_at(module, layer, length, state)
    start, back = layer.marks[0][0], module.conv_kernel_size - 1
    layer.inputs = torch.cat([layer.inputs[: back + length - start], mixed])
    layer.gates = torch.cat([layer.gates[: length - start], gates])
    query, key, value = _convolve(module, layer.inputs[-len(mixed) - back :])
    if part.prompt is None:
        out, state = delta_rule(query, key, value, gates, state)
    else:
        out, state = _chunked_delta_rule(module, query, key, value, gates, state)
    layer.marks.append((length + len(mixed), state))
    _drop_marks(layer, back, read=part.prompt is not None)
    return out.reshape(len(mixed), -1)


def _layer_at(module: StockModel, layer: RecurrentLayerState, length: int, state: torch.Tensor) -> RecurrentLayerState:
    """Return a layer with ``length`` rows and no history but ``before``."""
    back = module.conv_kernel_size - 1
    end = back + length - layer.marks[0][0]
    inputs, gates, marks = layer.inputs[end - back : end].clone(), layer.gates[:0].clone(), [(length, state)]
    return RecurrentLayerState(inputs, gates, list(marks), RecurrentLayerState(inputs, gates, marks))


def _rollback_state(module: StockModel, layer: RecurrentLayerState, length: int) -> torch.Tensor:
    """Return the state before the row at ``length``; later marks are dropped."""
    while layer.marks[-1][0] > length:
        layer.marks.pop()
        if not layer.marks:
            raise IndexError(f"a sequence with recurrent layers cannot go back by more than {REACH} rows")
    (place, state), (start, _), back = layer.marks[-1], layer.marks[0], module.conv_kernel_size - 1
    if place < length:
        query, key, value = _convolve(module, layer.inputs[place - start : back + length - start])
        _, state = delta_rule(query, key, value, layer.gates[place - start : length - start], state)
        layer.marks.append((length, state))
    return state


def _drop_marks(layer: RecurrentLayerState, back: int, *, read: bool) -> None:
    """Drop unneeded marks, and the rows before the oldest; after a prompt (``read``) all marks but the last."""
    marks = layer.marks
    length, oldest = marks[-1][0], marks[0][0]
    if read:
        marks[:] = marks[-1:]
    kept: list[tuple[int, torch.Tensor]] = []
    for (place, state), (following, _) in zip(marks, [*marks[1:], (length + 1, marks[-1][1])], strict=True):
        if following <= length - REACH:
            continue  # the next one is old enough for all that may come
        if following > length - NEAR or not kept or following - kept[-1][0] > SPACING:
            kept.append((place, state))
    marks[:] = kept
    gone = marks[0][0] - oldest
    layer.inputs, layer.gates = layer.inputs[gone:].clone(), layer.gates[gone:].clone()


def _convolve(module: StockModel, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Convolve inputs (k - 1 + n, channels): normed queries, keys (n, heads, d_k), values (n, heads, d_v); float32."""
    weight = module.conv1d.weight
    mixed = F.silu(F.conv1d(inputs.T[None].to(weight.dtype), weight, module.conv1d.bias, groups=len(weight)))[0].T
    query, key, value = mixed.split([module.key_dim, module.key_dim, module.value_dim], -1)
    query, key = (part.reshape(len(mixed), -1, module.head_k_dim).float() for part in (query, key))
    shared = module.num_v_heads // module.num_k_heads
    query, key = (_normalise(part).repeat_interleave(shared, 1) for part in (query, key))
    return query, key, value.reshape(len(mixed), -1, module.head_v_dim).float()


def _normalise(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6)


def delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gates: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the gated delta rule: S <- a S; S <- S + k (beta (v - S^T k))^T; o = S^T q / sqrt(d_k).

    All rows at once, with as many operators for one row as for many. Let D_ts be the product of the decays a after row
    s up to row t. The changes u = beta (v - S^T k) of all rows solve a triangular system,
    u_t + beta_t sum_{s<t} D_ts (k_t k_s) u_s = beta_t (v_t - D_t0 S_0^T k_t), and the states are
    S_t = D_t0 S_0 + sum_{s<=t} D_ts k_s u_s^T.

    Args:
        query, key: (n, heads, d_k), each of length 1.
        value: (n, heads, d_v).
        gates: (n, 2, heads) log a and beta.
        state: (heads, d_k, d_v).

    Returns:
        (n, heads, d_v), and the state after the last row.
    """
    query, key, value = (part.transpose(0, 1) for part in (query / query.shape[-1] ** 0.5, key, value))
    logs, beta = gates[:, 0].cumsum(0).t(), gates[:, 1].t()[..., None]
    decays, left = logs.exp()[..., None], (logs[:, :, None] - logs[:, None]).exp().tril()
    system = key @ key.mT * left * beta  # strictly lower part; the solver assumes the unit diagonal
    right_side = beta * (value - decays * (key @ state))
    changes = torch.linalg.solve_triangular(system, right_side, upper=False, unitriangular=True)
    out = decays * (query @ state) + (query @ key.mT * left) @ changes
    state = decays[:, -1:] * state + (key * left[:, -1, :, None]).mT @ changes
    return out.transpose(0, 1), state


def _chunked_delta_rule(
    module: StockModel,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gates: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply :func:`delta_rule` to many rows at a time, by the stock function."""
    rule = sys.modules[type(module).__module__].torch_chunk_gated_delta_rule
    batched = [part[None] for part in (query, key, value)]
    decay, beta = gates[None, :, 0], gates[None, :, 1]
    out, after = rule(*batched, g=decay, beta=beta, initial_state=state[None], output_final_state=True)
    return out[0], after[0]
