"""Read quantised checkpoints, stored as codes and scales, without the libraries that wrote them.

Layers of the language model's blocks keep the codes that a matrix product of the engine supports (:class:`KeptCodes`);
other quantised layers are dequantised one by one as the stock model loads them, so that loading needs memory for one
extra layer. Activations are never quantised: of a W8A8 checkpoint only the weights' codes are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from vidspec.engine.matrix import Precision, release_weights, row_blocks
from vidspec.engine.quantised import BLOCK
from vidspec.engine.stored_codes import StoredCodes
from vidspec.models.base import StockModel
from vidspec.models.placement import Placement
from vidspec.models.quantization_config import PACKINGS, QuantizationConfig, block_shape, check_method, code_format
from vidspec.models.weight_files import StoredTensor, check_plain, read_tensors, stored_tensors

#: AWQ's order of the eight codes of a word.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
#: Numbers that the codes of FP4 stand for.
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
#: Names of a quantised weight's tensors, after the layer's name.
_PART = re.compile(
    r"^(?P<layer>.*\.)(?P<part>qweight|qzeros|scales|g_idx|SCB|weight_(?:format|packed|shape|g_idx|zero_point|global_scale|scale_2)"
    r"|weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__(?:nf4|fp4)))$"
)
_SCALE = re.compile(r"^(?P<weight>.*)_scale(?:_inv)?$")


class KeptCodes:
    """Codes that layers of a model keep; during loading a one-element tensor is the placeholder of each weight.

    Args:
        where: device and dtype of the model.

    Attributes:
        precision: of the kept codes; None if no layer keeps any.
    """

    def __init__(self, where: Placement) -> None:
        self._where = where
        self.precision: Precision | None = None
        self._codes: dict[int, tuple[torch.Tensor, StoredCodes]] = {}

    def stand_in(self, codes: StoredCodes) -> torch.Tensor:
        """Return a placeholder (out, in) of one element; the dequantised weight if the codes are not kept."""
        where, shape = self._where, (len(codes.packed), codes.packed.shape[1] * 8 // codes.bits)
        if not StoredCodes.nbytes(codes.bits, shape, shape[1] // codes.scales.shape[1], where.device, where.dtype):
            return codes.dense
        number = torch.zeros(1, dtype=where.dtype)
        self._codes[number.data_ptr()] = number, codes
        return number.expand(shape)

    def attach(self, model: StockModel, language: Callable[[StockModel], StockModel]) -> None:
        """Attach the codes to the layers of the language model's blocks, and dequantise all others.

        Raises:
            LookupError: weights of the model were built from placeholders.
        """
        inside = set(language(model).layers.modules())
        for layer in model.modules():
            if type(layer) is not nn.Linear or layer.weight.data_ptr() not in self._codes:
                continue
            _, codes = self._codes.pop(layer.weight.data_ptr())
            if layer in inside:
                release_weights([layer])
                vars(layer)["codes"] = codes
                self.precision = "int8" if codes.bits == 8 else "int4"
            else:
                layer.weight.data = codes.dense.to(layer.weight.dtype)
        if self._codes:
            raise LookupError(f"{len(self._codes)} weights are parts of others")


class _DequantisedWeight:
    """A weight built from its stored tensors each time it is indexed.

    Args:
        make: reads the codes, or the weight in float32.
        kept: keeps the codes; None to dequantise them.
    """

    def __init__(self, make: Callable[[], torch.Tensor | StoredCodes], kept: KeptCodes | None) -> None:
        self._make, self._kept = make, kept

    def __getitem__(self, index: object, /) -> torch.Tensor:
        made = self._make()
        if isinstance(made, torch.Tensor):
            return made
        return made.dense if self._kept is None else self._kept.stand_in(made)


def weight_sizes(
    model: StockModel, language: StockModel, settings: QuantizationConfig | None, where: Placement
) -> tuple[int, int, int]:
    """Count the weights of a model on the meta device: all numbers except those kept as codes, those of the towers
    among them, and the bytes of the codes.

    The weights kept as codes, those of all supported linear layers of the blocks, are emptied.
    """
    stored, codes = None if settings is None or not where.keeps_codes else code_format(settings), 0
    for layer in language.layers.modules() if stored else ():
        if stored and type(layer) is nn.Linear:
            shape = layer.out_features, layer.in_features
            if nbytes := StoredCodes.nbytes(stored[0], shape, stored[1] or shape[1], where.device, where.dtype):
                codes += nbytes
                release_weights([layer])
    language_weights = {id(weight) for part in (language, model.lm_head) for weight in part.parameters()}
    sizes = [(weight.numel(), id(weight) in language_weights) for weight in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, is_language in sizes if not is_language), codes


def dequantised_tensors(
    stored: Mapping[str, StoredTensor], settings: QuantizationConfig, kept: KeptCodes | None = None
) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint by name, with plain weights in place of quantised ones.

    Args:
        stored: all tensors of its files.
        settings: of a method that :func:`check_method` accepts.
        kept: keeps codes and provides placeholders.
    """
    read = _READERS[str(settings.get("quant_method"))]
    layers: dict[str, dict[str, StoredTensor]] = {}
    rest: dict[str, StoredTensor] = {}
    for key, tensor in stored.items():
        part, scale = _PART.match(key), _SCALE.match(key)
        if part is not None:
            layers.setdefault(f"{part['layer']}weight", {})[part["part"].removeprefix("weight.")] = tensor
        elif scale is not None and (scale["weight"] in stored or f"{scale['weight']}_packed" in stored):
            layers.setdefault(scale["weight"], {})["scale"] = tensor
        else:
            rest[key] = tensor
    for key, parts in layers.items():
        if key in rest:
            parts["weight"] = rest[key]
        rest[key] = _DequantisedWeight(partial(read, parts, settings), None if ".experts." in key else kept)
    return rest


def read_head_tensors(name: str, source: str, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Read the tensors of a draft head, quantised ones as plain numbers.

    Args:
        name: the name the user gave.
        source: hub id or folder of its files.
        given: its config.json.

    Raises:
        ModelError: codes without scales, or a quantisation that is not read.
    """
    settings = given.get("quantization_config")
    if settings is None:
        return read_tensors(name, source)
    check_method(name, settings)
    tensors = dequantised_tensors(stored_tensors(source), settings)
    check_plain(name, tensors)
    return {key: tensor[...] for key, tensor in tensors.items()}


def _unpack_codes(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unpack uint8 codes (..., count) from 32-bit words (..., n), densely packed with the lowest bits first."""
    short = -words.shape[-1] % bits
    words = torch.nn.functional.pad(words, (0, short)).unflatten(-1, (-1, bits))
    codes = torch.empty(*words.shape[:-1], 32, dtype=torch.uint8)
    for place in range(32):
        word, shift = divmod(place * bits, 32)
        value = words[..., word] >> shift
        if shift + bits > 32:  # the rest is in the next word; the sign was shifted in here
            value = (value & (1 << 32 - shift) - 1) | words[..., word + 1] << 32 - shift
        codes[..., place] = value & (1 << bits) - 1
    return codes.flatten(-2)[..., :count]


def _dequantise_groups(
    bits: int, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | int, order: torch.Tensor | None
) -> torch.Tensor | StoredCodes:
    """Dequantise (codes - zero points) * scales: codes (out, in), scales (out, groups).

    Codes in a layout that the engine supports are returned as codes. ``order`` (in,) is the group of each column if
    groups are not contiguous.
    """
    width, groups = codes.shape[-1], scales.shape[-1]
    runs = torch.arange(width) // (width // groups)
    order = runs if order is None else order.long()
    points = zeros if isinstance(zeros, torch.Tensor) else torch.full_like(scales, zeros)
    if width % groups == 0 and torch.equal(order, runs):
        if bits == 4 and width % 2 == 0:
            return StoredCodes.of(codes, scales, points)
        if bits == 8 and groups == 1 and bool((points == 128).all()):
            return _row_codes((codes.int() - 128).to(torch.int8), scales)
    weight = torch.empty(codes.shape)
    for rows in row_blocks(weight.shape, BLOCK):
        part = torch.sub(codes[rows], points[rows].float()[:, order], out=weight[rows])
        part.mul_(scales[rows].float()[:, order])
    return weight


def _read_gptq(parts: Mapping[str, StoredTensor], settings: QuantizationConfig) -> torch.Tensor | StoredCodes:
    """Read GPTQ: ``qweight`` packs (in, out) along in, ``qzeros`` (groups, out) along out; version 1 stores zeros - 1.

    Bits follow from the layer's shapes, since ``dynamic`` and ``extra_config`` override the settings per layer.
    """
    words, scales, points = parts["qweight"][...].t(), parts["scales"][...].t(), parts["qzeros"][...]
    bits, less = points.shape[1] * 32 // len(scales), settings.get("checkpoint_format") != "gptq_v2"
    if less and 32 % bits == 0:  # subtracted from whole words, so a zero point of 0 borrowed from the next one
        points = points + sum(1 << place for place in range(0, 32, bits))
        less = False
    zeros = _unpack_codes(points, bits, len(scales)).t().float() + less
    codes = _unpack_codes(words, bits, words.shape[1] * 32 // bits)
    return _dequantise_groups(bits, codes, scales, zeros, parts["g_idx"][...] if "g_idx" in parts else None)


def _read_awq(parts: Mapping[str, StoredTensor], settings: QuantizationConfig) -> torch.Tensor | StoredCodes:
    """Read AWQ: ``qweight`` packs (in, out) along out, and ``qzeros`` (groups, out), both in AWQ's order."""
    scales = parts["scales"][...]

    def codes(words: torch.Tensor) -> torch.Tensor:
        ordered: torch.Tensor = _unpack_codes(words, 4, 8 * words.shape[-1]).unflatten(-1, (-1, 8))[
            ..., list(_AWQ_ORDER)
        ]
        return ordered.flatten(-2).t()

    zeros: torch.Tensor | int = codes(parts["qzeros"][...]).float() if "qzeros" in parts else 8
    return _dequantise_groups(4, codes(parts["qweight"][...]), scales.t(), zeros, None)


def _read_auto_round(parts: Mapping[str, StoredTensor], settings: QuantizationConfig) -> torch.Tensor | StoredCodes:
    """Read auto-round: tensors of GPTQ version 1, or of AWQ."""
    return (_read_gptq if PACKINGS[settings["packing_format"]] == "gptq" else _read_awq)(parts, settings)


def _read_compressed(parts: Mapping[str, StoredTensor], settings: QuantizationConfig) -> torch.Tensor | StoredCodes:
    """Read compressed-tensors: packed along in, zero points along out; or unpacked, see :func:`_read_scaled`.

    Before version 0.9.4 zero points were not packed: int8 (out, groups), minus half the codes' range.
    """
    if "weight_packed" not in parts:
        return _read_scaled(parts, settings)
    words, scales = parts["weight_packed"][...], parts["scale"][...]
    if words.dtype is torch.uint8:
        return _read_fp4(words, parts)
    out, width = parts["weight_shape"][...].tolist()
    bits = 32 * words.shape[-1] // width
    zeros: torch.Tensor | int = 1 << bits - 1
    if "weight_zero_point" in parts:
        zero_points = parts["weight_zero_point"][...]
        packed = zero_points.dtype is torch.int32
        zeros = (
            _unpack_codes(zero_points.t(), bits, out).t().float() if packed else zero_points.float() + (1 << bits - 1)
        )
    order = parts["weight_g_idx"][...] if "weight_g_idx" in parts else None
    return _dequantise_groups(bits, _unpack_codes(words, bits, width), scales.expand(out, -1), zeros, order)


def _read_scaled(parts: Mapping[str, StoredTensor], settings: QuantizationConfig) -> torch.Tensor | StoredCodes:
    """Read 8-bit codes (..., out, in): minus zero points, times scales per tensor, row, block or group of a row."""
    codes, scales = parts["weight"][...], parts["scale"][...].float()
    if codes.dtype is torch.uint8:
        return _read_fp4(codes, parts)
    if scales.dim() == codes.dim() + 2:  # ModelOpt's blocks: (out, 1, in, 1)
        scales = scales[..., 0, :, 0]
    zeros = parts["weight_zero_point"][...].float() if "weight_zero_point" in parts else None
    by_row = codes.dtype is torch.int8 and codes.dim() == 2 and scales.numel() in (1, len(codes))
    if by_row and (zeros is None or not zeros.any()):
        return _row_codes(codes, scales)
    if scales.dim() < 2:  # one for all, or one per row
        scales, zeros = scales.reshape(-1, 1), None if zeros is None else zeros.reshape(-1, 1)
    block, places = block_shape(settings), list[torch.Tensor]()
    for axis in (-2, -1):
        count, length = scales.shape[axis], codes.shape[axis]
        step = block[axis] if block and -(-length // block[axis]) == count else length // count
        places.append(torch.arange(length) // step)
    weight = torch.empty(codes.shape)
    for index in product(*map(range, codes.shape[:-2])):
        of = index[: scales.dim() - 2]
        for rows in row_blocks(codes.shape[-2:], BLOCK):
            part = weight[index][rows].copy_(codes[index][rows])
            if zeros is not None:
                part.sub_(zeros[of][places[0][rows]][:, places[1]])
            part.mul_(scales[of][places[0][rows]][:, places[1]])
    return weight


def _read_fp4(codes: torch.Tensor, parts: Mapping[str, StoredTensor]) -> torch.Tensor:
    """Read NVFP4 and MXFP4: E2M1 codes (..., out, in / 2), the lower half of a byte first, and a scale per group.

    NVFP4's groups of 16 have an E4M3 scale and one for all, which ModelOpt multiplies with and compressed-tensors
    divides by; MXFP4's groups of 32 have a power of two, biased by 127.
    """
    scales = parts["scale"][...]
    scales = torch.exp2(scales.float() - 127) if scales.dtype is torch.uint8 else scales.float()
    if "weight_scale_2" in parts:
        scales = scales * parts["weight_scale_2"][...].float().reshape(-1, *[1] * (scales.dim() - 1))
    if "weight_global_scale" in parts:
        scales = scales / parts["weight_global_scale"][...].float().reshape(-1, *[1] * (scales.dim() - 1))
    rows, of_group = codes.flatten(0, -2), scales.flatten(0, -2)
    weight = torch.empty(len(rows), 2 * codes.shape[-1])
    for block in row_blocks(weight.shape, BLOCK):
        numbers = _E2M1[torch.stack([rows[block] & 15, rows[block] >> 4], dim=-1).int()].flatten(1)
        grouped = numbers.unflatten(1, (of_group.shape[1], -1)) * of_group[block][..., None]
        weight[block] = grouped.flatten(1)
    return weight.view(*codes.shape[:-1], -1)


def _row_codes(codes: torch.Tensor, scales: torch.Tensor) -> StoredCodes:
    """Build stored codes from int8 codes (out, in) and a scale per tensor or row."""
    scales = scales.reshape(-1, 1).expand(len(codes), 1)
    return StoredCodes.of(codes, scales, torch.zeros_like(scales))


def _read_bitsandbytes(parts: Mapping[str, StoredTensor], settings: QuantizationConfig) -> torch.Tensor | StoredCodes:
    """Read bitsandbytes: int8 rows with the absolute maximum of each, or 4-bit codes, upper half first, with a table of
    16 values and the absolute maximum of each block, which may itself be quantised."""
    weight = parts["weight"][...]
    if "SCB" in parts:
        return _row_codes(weight, parts["SCB"][...].float() / 127)
    blob = next(tensor for key, tensor in parts.items() if key.startswith("quant_state."))
    state = json.loads(bytes(blob[...].tolist()))
    absmax: torch.Tensor = parts["absmax"][...]
    if "nested_absmax" in parts:
        block_absmax = parts["nested_absmax"][...].repeat_interleave(state["nested_blocksize"])[: len(absmax)]
        absmax = parts["nested_quant_map"][...][absmax.int()] * block_absmax + state["nested_offset"]
    codes, table = weight.flatten(), parts["quant_map"][...]
    numbers = torch.empty(torch.Size(state["shape"]).numel())
    for start in range(0, len(numbers), BLOCK):  # a multiple of both sizes
        of = codes[start // 2 : (start + BLOCK) // 2]
        part = torch.stack([table[(of >> 4).int()], table[(of & 15).int()]], dim=1).flatten()
        scales = absmax[start // state["blocksize"] : -(-(start + BLOCK) // state["blocksize"])].float()
        into = numbers[start : start + BLOCK]
        torch.mul(part[: len(into)], scales.repeat_interleave(state["blocksize"])[: len(into)], out=into)
    return numbers.view(state["shape"])


_READERS: Mapping[str, Callable[[Mapping[str, StoredTensor], QuantizationConfig], torch.Tensor | StoredCodes]] = {
    "gptq": _read_gptq,
    "awq": _read_awq,
    "auto-round": _read_auto_round,
    "compressed-tensors": _read_compressed,
    "fp8": _read_scaled,
    "modelopt": _read_scaled,
    "bitsandbytes": _read_bitsandbytes,
}
