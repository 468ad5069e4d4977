"""Draft heads: base classes of blocks that draft from hidden states of their target, their input rows, their files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vidspec.engine.decoder import AttendFunction, DecoderDefaults
from vidspec.engine.device import to_device
from vidspec.engine.graphs.passes import eager_reason, make_graphs
from vidspec.engine.head_states import StateInputs
from vidspec.engine.matrix import Matrix
from vidspec.engine.rotary import RotaryTables
from vidspec.engine.slab import Slab
from vidspec.errors import ModelError
from vidspec.models.base import StockConfig
from vidspec.models.checkpoint_config import check_kernels, checkpoint_errors, refuse_assistant, weight_source
from vidspec.models.hub import retries_offline
from vidspec.models.quantised import read_head_tensors
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import weight_file

#: Projections of the attention, in order of use.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class _NoVisualRows:
    """Empty visual rows: nothing is added after a block."""

    index: torch.Tensor
    deepstack: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class HeadRows:
    """Input rows of a head, as a :class:`~vidspec.engine.rows.Prompt` of the engine.

    Attributes:
        embeds: (1, n, 2 * hidden), an embedding and a state per row.
        positions: (axes, 1, n).
        next_position: of the pair after them.
    """

    embeds: torch.Tensor
    positions: torch.Tensor
    next_position: float = 0

    @property
    def bidirectional(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.long)

    @property
    def visual(self) -> _NoVisualRows:
        return _NoVisualRows(torch.empty(0, dtype=torch.long))

    @property
    def length(self) -> int:
        return int(self.embeds.shape[1])


class HeadDecoder(DecoderDefaults, ABC):
    """Base class of the decoders of heads (:class:`~vidspec.engine.decoder.Decoder`).

    A row is the embedding of a token joined with a state. In a prompt both are given; rows of tokens need :meth:`bind`.
    """

    name = "head"
    why = "blocks of its own"
    depth = 1
    numbers = 0
    matrices: Sequence[Matrix] = ()
    device: torch.device
    axes: int
    scaling: float
    width: int
    hidden: int
    logit_width: int
    pass_width: int
    windows: tuple[int | None, ...] | None
    _embed: Callable[[torch.Tensor], torch.Tensor]

    @property
    @abstractmethod
    def slab(self) -> Slab: ...

    @abstractmethod
    def rotation(self, positions: torch.Tensor) -> RotaryTables: ...

    @abstractmethod
    def block(
        self, index: int, rows: torch.Tensor, rotation: RotaryTables, attention: AttendFunction
    ) -> torch.Tensor: ...

    @abstractmethod
    def norm(self, rows: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...

    def bind(
        self, embed: Callable[[torch.Tensor], torch.Tensor], inputs: StateInputs | None, eager: str | None
    ) -> None:
        """Set what rows of tokens are made of; on a GPU their passes are replayed.

        Args:
            embed: maps the target's ids (n,) to embeddings (n, hidden) on the head's device.
            inputs: of the states that it reads with tokens; None if it reads none.
            eager: reason why a GPU cannot replay its passes; None if it may.
        """
        self._embed, self.state_inputs = embed, inputs
        self.eager = eager
        if eager is None and self.device.type == "cuda":
            self.eager, self.graphs = eager_reason(self), make_graphs(self)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self._embed(ids)


def target_embedding(target: VideoLanguageModel, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that maps ids (n,) to the target's embeddings (n, hidden), both on ``device``."""
    return lambda ids: target.embed(ids.to(target.device)).to(device)


def other_device_reason(target: VideoLanguageModel, device: torch.device) -> str | None:
    """Return why passes of a head that uses the target's weights cannot be replayed; None if they can."""
    return None if target.device == device else "the target's embeddings are on another device"


class Head(ABC):
    """A loaded head, bound to the target that it was checked against.

    The output of its block, before the decoder's norm, is the state of its next step.

    Attributes:
        name: the name the user gave.
        target: the model whose states and, unless the head has its own, embeddings it reads.
        vocabulary: number of ids it can propose, without those the target cannot emit.
        tokens: (vocabulary,) the target's id of each.
        blocks: target blocks whose input it reads; the number of blocks stands for the input of the final norm.
        one_axis: True if it was trained with one position per row, although its config may have sections of M-RoPE.
        notes: lines for users on what was not read of it.
    """

    one_axis = False
    notes: tuple[str, ...] = ()
    name: str
    target: VideoLanguageModel
    device: torch.device
    decoder: HeadDecoder
    vocabulary: int
    tokens: torch.Tensor
    blocks: tuple[int, ...]

    @abstractmethod
    def joined(self, states: torch.Tensor) -> torch.Tensor:
        """Project concatenated target states (n, blocks * target's hidden) to (n, hidden)."""

    @property
    def known_ids(self) -> int:
        """Number of ids with an embedding, those of the target."""
        return self.target.known_ids

    @property
    def needs(self) -> frozenset[str]:
        """Required signals of the target's prefill."""
        return frozenset(f"hidden@{block}" for block in self.blocks)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (n, hidden) of the target's ids (n,)."""
        return self.decoder.embed(to_device(ids, self.device))

    @torch.inference_mode()
    def embed_prompt(self, token_ids: torch.Tensor, visual: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (n, hidden) of a prompt, with the target's features at its ``visual`` rows.

        If the head is not as wide as the target, these rows keep the embedding of the placeholder token.
        """
        embeds = self.embed(token_ids)
        if len(visual) and features.shape[1] == embeds.shape[1]:
            embeds = embeds.clone()
            embeds[visual.to(self.device)] = features.to(embeds)
        return embeds

    @torch.inference_mode()
    def fed(
        self, embeddings: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, next_position: float = 0
    ) -> HeadRows:
        """Build input rows from embeddings and states, both (n, hidden), at positions (axes, n)."""
        rows = torch.cat([embeddings, states], dim=1)[None]
        places = to_device(positions, self.device).expand(self.decoder.axes, -1)[:, None]
        return HeadRows(rows, places, next_position)


@retries_offline
def read_head(name: str, holding: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read the config and the tensors of a head, without running code or reading pickles of its repository.

    Args:
        name: hub id or folder.
        holding: what a folder should hold, for the error.

    Returns:
        Its config.json, and its tensors by name, without the prefix ``model.`` that some writers add.

    Raises:
        ModelError: not found, unreadable, or quantised in a way that is not read.
    """
    source = weight_source(name, holding)
    with checkpoint_errors(name):
        check_kernels(name, source)
        refuse_assistant(name, source)
        given = json.loads(weight_file(source, "config.json").read_text(encoding="utf-8"))
        tensors = read_head_tensors(name, source, given)
    return given, {key.removeprefix("model."): tensor for key, tensor in tensors.items()}


def plain_rope(settings: dict[str, Any]) -> None:
    """Name the rope type ``mrope`` of a config ``default``, as ``transformers`` knows it; the sections stay."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = settings.get(key)
        if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) == "mrope":
            settings[key] = {**{k: v for k, v in rope.items() if k != "type"}, "rope_type": "default"}


def block_shapes(config: StockConfig, of: str, inputs: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's attention and MLP by name.

    Args:
        config: of the head.
        of: name of the block.
        inputs: width of the input of queries, keys and values.
        bias: True to include biases of the attention.
    """
    hidden, inner, width = int(config.hidden_size), int(config.intermediate_size), int(config.head_dim)
    queries, keys = int(config.num_attention_heads) * width, int(config.num_key_value_heads) * width
    shapes: dict[str, tuple[int, ...]] = {
        f"{of}.mlp.{part}.weight": (inner, hidden) for part in ("gate_proj", "up_proj")
    }
    shapes[f"{of}.mlp.down_proj.weight"] = hidden, inner
    for projection, rows in zip(PROJECTIONS, (queries, keys, keys, hidden), strict=True):
        shapes[f"{of}.self_attn.{projection}.weight"] = rows, queries if projection == "o_proj" else inputs
        if bias:
            shapes[f"{of}.self_attn.{projection}.bias"] = (rows,)
    return shapes


def check_tensors(
    name: str,
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, Sequence[int]],
    optional: Collection[str] = (),
) -> None:
    """Refuse missing and unknown tensors, and shapes that differ from those that the config asks for.

    Raises:
        ModelError: the first difference.
    """
    for key in sorted({*expected, *tensors}):
        if key not in tensors:
            problem = None if key in optional else f"{key} is not in its files"
        elif key not in expected:
            problem = f"has the tensor {key}, which is not known"
        else:
            shape, wanted = tuple(tensors[key].shape), tuple(expected[key])
            problem = None if shape == wanted else f"{key} has the shape {shape}, and its config says {wanted}"
        if problem is not None:
            raise ModelError(f"{name}: {problem}", kind="unreadable")
