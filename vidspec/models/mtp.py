"""Heads for multi-token prediction (MTP) stored in the target's checkpoint.

The layout is Qwen3.5's: tensors ``mtp.*``, which ``transformers`` leaves out. ``fc`` projects the concatenation of the
next token's embedding and a state, in that order, each after its own norm (``pre_fc_norm_embedding``,
``pre_fc_norm_hidden``); ``layers.0.*`` is a block like the model's attention blocks; ``norm`` follows. Embeddings and
head are the model's. The first state is the model's after its final norm, later ones the layer's own after ``norm``.
Experts are stored as one tensor, or as tensors per expert.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import cast

import torch
from torch import nn

from vidspec.engine.decoder import AttendFunction, Decoder
from vidspec.engine.head_states import StateInputs
from vidspec.engine.layouts import lay_out_all, matrix_linears
from vidspec.engine.rotary import RotaryTables
from vidspec.engine.slab import Slab
from vidspec.engine.stock import NAME
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig, StockModel
from vidspec.models.checkpoint_config import checkpoint_errors
from vidspec.models.head import Head, HeadDecoder, check_tensors, other_device_reason, target_embedding
from vidspec.models.hub import retries_offline
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import read_tensors

_EXPERTS = "layers.0.mlp.experts."


class MtpLayer(nn.Module):
    """MTP layer built from stock modules, named as in the checkpoint.

    Args:
        config: config of the language model.
        like: one of its attention blocks.
        norm: its final norm.
    """

    def __init__(self, config: StockConfig, like: StockModel, norm: StockModel) -> None:
        super().__init__()
        self.config = config = copy.deepcopy(config)
        config.num_hidden_layers, config.layer_types, config._attn_implementation = 1, ["full_attention"], NAME
        width, norm_class, block = int(config.hidden_size), type(norm), type(like)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = norm_class(width, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm_class(width, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([block(config, 0)])
        self.norm = norm_class(width, eps=config.rms_norm_eps)


class MtpDecoder(HeadDecoder):
    """MTP layer as a :class:`~vidspec.engine.decoder.Decoder`; its input is twice as wide, and its states are normed.

    Args:
        layer: with its weights, on its device.
        target: the target's decoder, whose rotary positions and head it uses.
        budget: bytes of the slab.
    """

    windows: tuple[int | None, ...] | None = None

    def __init__(self, layer: MtpLayer, target: Decoder, budget: int | None = None) -> None:
        self.layer, self._target, self._budget = layer, target, budget
        self.scaling, self.axes = target.scaling, target.axes
        self.device, self.hidden = layer.fc.weight.device, int(layer.config.hidden_size)
        self.width = int(cast(StockModel, layer.layers[0]).self_attn.head_dim)
        lay_out_all(layer, "auto")
        self.matrices = matrix_linears([layer])
        inner = int(getattr(layer.config, "intermediate_size", 0) or 0)
        self.logit_width, self.pass_width = int(layer.config.vocab_size), 3 * inner + 10 * self.hidden

    @cached_property
    def slab(self) -> Slab:
        heads = int(self.layer.config.num_key_value_heads)
        return Slab(heads, self.width, self.layer.fc.weight.dtype, [self.device], self._budget)

    def rotation(self, positions: torch.Tensor) -> RotaryTables:
        return self._target.rotation(positions)

    def block(self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction) -> torch.Tensor:
        """Run the block: embeddings and states (R, 2 * hidden) to states (R, hidden)."""
        layer = self.layer
        embedding, state = rows.chunk(2, dim=1)
        both = torch.cat([layer.pre_fc_norm_embedding(embedding), layer.pre_fc_norm_hidden(state)], dim=1)
        out = layer.layers[index](
            layer.fc(both)[None],
            attention_mask=None,
            position_ids=None,
            past_key_values=None,
            use_cache=False,
            position_embeddings=rotation,
            attention=attention,
        )
        return layer.norm(out[0] if isinstance(out, tuple) else out)[0]  # type: ignore[no-any-return]

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._target.logits(hidden)


class MtpHead(Head):
    """MTP layer of a target as a head.

    Args:
        layer: with its weights.
        target: the model whose checkpoint has it.
    """

    def __init__(self, layer: MtpLayer, target: VideoLanguageModel) -> None:
        self.name, self.target, self.device = target.name, target, target.device
        self.vocabulary, self.tokens = target.vocabulary, torch.arange(target.vocabulary)
        self.blocks = (target.layers,)
        self.decoder = MtpDecoder(layer, target.decoder)
        norm = target.decoder.norm
        inputs = StateInputs(self.decoder.hidden, norm, self.tokens.to(self.device), self.vocabulary)
        mixture = hasattr(cast(StockModel, layer.layers[0]).mlp, "experts")
        eager = "its rows choose among experts" if mixture else other_device_reason(target, self.device)
        self.decoder.bind(target_embedding(target, self.device), inputs, eager)

    @torch.inference_mode()
    def joined(self, states: torch.Tensor) -> torch.Tensor:
        return self.target.decoder.norm(states).to(self.device)


def load_mtp(target: VideoLanguageModel) -> MtpHead:
    """Load the MTP layer from the checkpoint of a loaded model.

    Raises:
        ModelError: there is none, or its layout is unknown.
    """
    weights = _read_layer(target.source)
    if not weights:
        raise ModelError(
            f"{target.name}: has no MTP layer: no tensor's name begins with mtp.",
            hint="take a checkpoint of Qwen3.5 that was saved with it, or draft.kind: model",
            kind="unreadable",
        )
    language, attention_blocks = target.language, target.decoder.cached or range(target.layers)
    with torch.device("meta"):
        layer = MtpLayer(language.config, language.layers[attention_blocks[-1]], language.norm).eval()
    expected = {f"mtp.{key}": tensor.shape for key, tensor in layer.state_dict().items()}
    check_tensors(target.name, {f"mtp.{key}": tensor for key, tensor in weights.items()}, expected)
    placed = {key: weight.to(target.device, target.dtype) for key, weight in weights.items()}
    layer.load_state_dict(placed, assign=True)
    return MtpHead(layer, target)


@retries_offline
def _read_layer(source: str) -> dict[str, torch.Tensor]:
    """Read the tensors, keyed by their names without ``mtp.``; experts are merged into one tensor."""
    with checkpoint_errors(source):
        tensors = read_tensors(source, source, "mtp.")
    count = sum(key.startswith(_EXPERTS) and key.endswith(".gate_proj.weight") for key in tensors)
    if not count:
        return tensors
    parts = {
        name: [tensors.pop(f"{_EXPERTS}{expert}.{name}.weight", torch.empty(0)) for expert in range(count)]
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    try:
        gate_up = [torch.cat(pair) for pair in zip(parts["gate_proj"], parts["up_proj"], strict=True)]
        joined = {"gate_up_proj": torch.stack(gate_up), "down_proj": torch.stack(parts["down_proj"])}
    except RuntimeError as error:
        raise ModelError(f"{source}: the experts of its MTP layer have different shapes", kind="unreadable") from error
    return tensors | {f"{_EXPERTS}{name}": weight for name, weight in joined.items()}
