"""Blocks of stock vision towers by few kernels, on GPUs that run ours.

Norms, the rotation of queries and keys, and a gated activation are one launch each, and products have aligned widths.
Blocks that are not exactly as expected stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from vidspec.engine.block_kernels import BlockKernels, rms_norm
from vidspec.engine.matrix import join_weights
from vidspec.engine.stock_types import StockModel
from vidspec.models.vision import WINDOWS, window_attention

#: Bytes of which rows of a weight are a multiple, for the fast kernels of cuBLAS.
_ALIGNMENT = 16
#: Multiple that an inner size without it is padded to.
_MULTIPLE = 64

#: Sines with a negative first half, as our rotation takes them, by those of the tower's pass.
_signed_sines: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def fuse_vision_blocks(model: nn.Module, kernels: BlockKernels) -> None:
    """Replace the blocks of Qwen-VL's kind inside a stock model, whose results stay the same except for rounding.

    Blocks stay as they are if they are of another structure, if their attention is not :data:`~vision.WINDOWS`, or if
    their weights are quantised, adapted, of several dtypes, or moved by hooks.
    """
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            if _is_block(child):
                setattr(parent, name, _VisionBlock(child, kernels))


class _VisionBlock(nn.Module):
    """Block of a vision tower: attention and a feed-forward network, each after a norm."""

    def __init__(self, block: StockModel, kernels: BlockKernels) -> None:
        super().__init__()
        self._kernels = kernels
        self.norm1, self.norm2 = (_RmsNorm(norm) if _is_rms_norm(norm) else norm for norm in (block.norm1, block.norm2))
        self.attn = _Attention(block.attn, kernels)
        self.mlp = _GatedMlp(block.mlp, kernels) if _is_gated(block.mlp) else block.mlp

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: object,
    ) -> torch.Tensor:
        """Map (N, hidden) to (N, hidden).

        Args:
            hidden_states: rows of patches, windows concatenated.
            cu_seqlens: (windows + 1,) first row of each window, and N.
            position_embeddings: cosines and sines, (N, d) each.
        """
        residual = hidden_states.contiguous()
        attended = self.attn(self.norm1(residual), cu_seqlens, position_embeddings)
        if isinstance(self.norm2, _RmsNorm):
            residual, normed = self._kernels.add_norm(residual, attended, self.norm2.weight, self.norm2.eps)
        else:
            residual = residual + attended
            normed = self.norm2(residual)
        return residual + self.mlp(normed)  # type: ignore[no-any-return]


class _RmsNorm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, norm: StockModel) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, float(norm.variance_epsilon)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, self.weight, self.eps)


class _Attention(nn.Module):
    """Attention within windows; queries, keys and values are one product."""

    def __init__(self, attention: StockModel, kernels: BlockKernels) -> None:
        super().__init__()
        self._kernels = kernels
        self.heads, self.scaling = int(attention.num_heads), float(attention.scaling)
        inputs = _inputs(attention)
        self.qkv, self.proj = inputs[0] if len(inputs) == 1 else _joined(inputs), attention.proj

    def forward(
        self, rows: torch.Tensor, cu_seqlens: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        states = self.qkv(rows).unflatten(1, (3 * self.heads, -1))
        cosine, sine = tables
        self._kernels.rotate(states, self.heads, (cosine.contiguous()[:, None], _signed(sine)), None, None)
        query, key, value = states.transpose(0, 1)[None].chunk(3, 1)
        attended, _ = window_attention(self, query, key, value, None, self.scaling, cu_seqlens)
        return self.proj(attended[0].flatten(1))  # type: ignore[no-any-return]


class _GatedMlp(nn.Module):
    """SiLU of the gate times the rest; the inner size is padded with zeros, which add nothing."""

    def __init__(self, mlp: StockModel, kernels: BlockKernels) -> None:
        super().__init__()
        self._kernels = kernels
        down: nn.Linear = mlp.down_proj
        aligned = down.in_features * down.weight.itemsize % _ALIGNMENT == 0
        padding = 0 if aligned else -down.in_features % _MULTIPLE
        self.gate_up = _joined([mlp.gate_proj, mlp.up_proj], padding)
        self.down = _linear(F.pad(down.weight.data, (0, padding)), down.bias) if padding else down

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(self._kernels.silu_product(self.gate_up(rows)))  # type: ignore[no-any-return]


def _joined(layers: Sequence[nn.Linear], padding: int = 0) -> nn.Linear:
    """Return layers as one, with so many outputs of zero after those of each."""
    return _linear(*join_weights([_padded(layer, padding) for layer in layers]))


def _padded(layer: nn.Linear, padding: int) -> nn.Linear:
    if not padding:
        return layer
    bias = None if layer.bias is None else F.pad(layer.bias.data, (0, padding))
    return _linear(F.pad(layer.weight.data, (0, 0, 0, padding)), bias)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """Return a layer with this weight (out, in) and bias (out,)."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.data, requires_grad=False)
    return layer


def _signed(sine: torch.Tensor) -> torch.Tensor:
    """Return sines (N, d) as (N, 1, d) with a negative first half, once for all blocks of a pass."""
    signed: torch.Tensor | None = _signed_sines.get(sine)
    if signed is None:
        first, second = sine.chunk(2, 1)
        signed = _signed_sines[sine] = torch.cat([-first, second], 1)[:, None]
    return signed


def _is_block(module: StockModel) -> bool:
    return (
        _children(module) == {"norm1", "norm2", "attn", "mlp"}
        and _is_plain(module)
        and _is_attention(module.attn)
        and all(_is_rms_norm(norm) or type(norm) is nn.LayerNorm for norm in (module.norm1, module.norm2))
    )


def _is_plain(block: nn.Module) -> bool:
    """Return True if all weights are numbers of one dtype on one device, and nothing replaces a module's forward."""
    weights = [*block.parameters()]
    return (
        all(weight.is_floating_point() and weight.numel() for weight in weights)
        and len({(weight.dtype, weight.device) for weight in weights}) == 1
        and not weights[0].is_meta
        and not any({"forward", "codes"} & vars(part).keys() for part in block.modules())
    )


def _is_attention(module: StockModel) -> bool:
    if _children(module) not in ({"qkv", "proj"}, {"q", "k", "v", "proj"}):
        return False
    if not {"num_heads", "scaling", "config"} <= vars(module).keys():
        return False
    inputs, config = _inputs(module), module.config
    linear = all(type(layer) is nn.Linear for layer in (*inputs, module.proj))
    return (
        linear
        and getattr(config, "_attn_implementation", None) == WINDOWS
        and len({layer.bias is None for layer in inputs}) == 1
        and sum(layer.out_features for layer in inputs) == 3 * module.proj.in_features
        and module.proj.in_features % (2 * module.num_heads) == 0
    )


def _inputs(attention: StockModel) -> list[nn.Linear]:
    """Return the layers of queries, keys and values, in this order."""
    return [attention.qkv] if hasattr(attention, "qkv") else [attention.q, attention.k, attention.v]


def _is_gated(module: StockModel) -> bool:
    if _children(module) != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return False
    gate, up, down = module.gate_proj, module.up_proj, module.down_proj
    some = torch.linspace(-4, 4, 9)
    return (
        all(type(layer) is nn.Linear for layer in (gate, up, down))
        and gate.weight.shape == up.weight.shape == down.weight.shape[::-1]
        and (gate.bias is None) == (up.bias is None)
        and torch.equal(module.act_fn(some), F.silu(some))
    )


def _is_rms_norm(module: StockModel) -> bool:
    """Return True for norms of T5's kind, whose weights are factors."""
    return not _children(module) and [*module._parameters] == ["weight"] and hasattr(module, "variance_epsilon")


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
