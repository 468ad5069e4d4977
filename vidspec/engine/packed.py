"""Weights of linear layers packed once for oneDNN, so that a pass of a few rows on a CPU costs about what one row does.

In float32 on a CPU ``F.linear`` lays the weight out anew at every call of two rows or more. oneDNN takes a weight that
was laid out before, as a frozen ``torch.compile`` gives it. The models stay those of ``transformers``: only the kernel
of their linear layers changes, for every method alike.

Which kernel a call gets is a rule, not a measurement, so that the same pass always rounds alike. One thread of an
AVX-512 CPU, weights in the cache, microseconds of ``F.linear`` / packed:

=============  =========  ===========  ===========  ===========  ===========
out x in       1 row      2            6            11           26
=============  =========  ===========  ===========  ===========  ===========
256 x 256      10 / 20    14 / 20      20 / 23      30 / 29      46 / 47
512 x 256      27 / 30    32 / 29      40 / 33      60 / 46      95 / 83
1024 x 1024    242 / 261  370 / 266    426 / 225    576 / 321    843 / 605
4096 x 1024    1014/1225  1849 / 1340  2062 / 1015  2687 / 1357  3839 / 2566
=============  =========  ===========  ===========  ===========  ===========

So a single row stays with ``F.linear``, and so do weights of fewer than :data:`SMALLEST` numbers, for which the call
costs more than the packing. A prompt of 700 rows gains a tenth.

The packed weight is a copy. The original is kept: single rows, ``state_dict``, moving the model and tied embeddings
need it.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F
from typing_extensions import Self

from vidspec import memory

__all__ = ["SMALLEST", "PackedLinear", "available", "pack", "pays"]

#: Numbers in a weight from which on packing it pays.
SMALLEST = 2**17
#: With large weights oneDNN takes longer for two or three rows than for so many: 1340, 1079 and 1030 us for 2, 3 and 4
#: rows of 4096 x 1024. They are filled up.
_QUICK = 4
_LARGE = 2**20
#: Machines that the table above speaks for; others pack when told to.
_MEASURED = ("x86_64", "amd64")


class PackedLinear(nn.Linear):
    """A linear layer that also holds its weight packed; parameters and ``state_dict`` are those of ``nn.Linear``.

    The copy follows the weight: where that was moved, loaded again or changed in place, it is packed anew at the next
    call, or no longer if it cannot be. While gradients are recorded, under autocast, for one row and for an input of
    another dtype the layer does what ``nn.Linear`` does.
    """

    _packed: torch.Tensor | None = None
    _weight_seen: tuple[torch.Tensor, int, int] | None = None

    @classmethod
    def of(cls, linear: nn.Linear) -> PackedLinear:
        """A layer with the same parameters as ``linear``, not copies of them."""
        layer = cls(1, 1, bias=False, device="meta")
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        layer.weight, layer.bias = linear.weight, linear.bias
        layer.train(linear.training)
        layer.repack()
        return layer

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copy; 0 without one."""
        return 0 if self._packed is None else self.weight.nbytes

    def repack(self) -> None:
        """Lay the weight out as it is now."""
        weight = self.weight
        self._weight_seen = (weight, weight.data_ptr(), _changes(weight))
        self._packed = None
        if _packable(weight):
            with torch.no_grad():
                self._packed = _reorder(weight.detach())

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # the name is torch's
        """(..., in_features) to (..., out_features), equal to ``F.linear`` but for rounding."""
        if (
            input.numel() <= self.in_features
            or input.dtype is not torch.float32
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
        ):
            return F.linear(input, self.weight, self.bias)
        weight, seen = self.weight, self._weight_seen
        if seen is None or weight is not seen[0] or weight.data_ptr() != seen[1] or _changes(weight) != seen[2]:
            self.repack()
        if self._packed is None or not input.is_cpu:
            return F.linear(input, self.weight, self.bias)
        return _linear(input, self.weight, self._packed, self.bias)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self._packed = self._weight_seen = None  # a model that is moved away leaves no copy behind
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        # A packed weight can be neither copied nor pickled; the copy of the layer makes its own.
        return {key: value for key, value in vars(self).items() if key not in ("_packed", "_weight_seen")}


def available() -> bool:
    """Whether this build of torch has oneDNN's packed linear layers."""
    operators = torch.ops.mkldnn
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(operators, "_reorder_linear_weight")
        and hasattr(operators, "_linear_pointwise")
    )


def pays(module: nn.Module) -> bool:
    """The rule of ``packed: auto``: an x86 CPU, and copies that take no more than half the memory that is free.

    Where the free memory cannot be told, it counts as enough.
    """
    if platform.machine().lower() not in _MEASURED:
        return False
    copies = sum({id(layer.weight): layer.weight.nbytes for _, layer in _candidates(module)}.values())
    free = memory.available()
    return free is None or 2 * copies <= free


def pack(module: nn.Module, wanted: bool | Literal["auto"] = "auto") -> int:
    """Replace the linear layers of a model, below ``module``, for which packing pays.

    Only plain ``nn.Linear`` layers with float32 weights of at least :data:`SMALLEST` numbers on the CPU, without hooks;
    quantized layers, adapters and layers that accelerate moves stay as they are. Weights that layers share are packed
    for each of them.

    Args:
        module: a loaded model; changed in place.
        wanted: ``True`` packs what can be packed, ``"auto"`` only where :func:`pays` says so, ``False`` nothing.

    Returns:
        bytes that the packed copies take; 0 if nothing was packed.
    """
    if not wanted or not available() or (wanted == "auto" and not pays(module)):
        return 0
    total = 0
    for name, linear in _candidates(module):
        layer = PackedLinear.of(linear)
        module.set_submodule(name, layer)
        total += layer.packed_bytes
    return total


def _candidates(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [
        (name, layer)
        for name, layer in module.named_modules()
        if name
        and type(layer) is nn.Linear
        and "forward" not in vars(layer)  # where accelerate's hooks are
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and layer.weight.numel() >= SMALLEST
        and _packable(layer.weight)
    ]


def _packable(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and not weight.is_inference()


def _changes(weight: torch.Tensor) -> int:
    """How often the weight was changed in place; 0 for what was made in inference mode, which is not packed."""
    return 0 if weight.is_inference() else weight._version


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)  # type: ignore[no-any-return]


def _linear(input: torch.Tensor, weight: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = input.numel() // input.shape[-1]
    if rows >= _QUICK or weight.numel() < _LARGE:
        return _pointwise(input.contiguous(), packed, bias)
    padded = F.pad(input.reshape(rows, -1), (0, 0, 0, _QUICK - rows))
    return _pointwise(padded, packed, bias)[:rows].view(*input.shape[:-1], -1)


def _pointwise(input: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")  # type: ignore[no-any-return]
