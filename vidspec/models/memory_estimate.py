"""The estimate of the memory that models and clips take, from sizes of a model. Imports no torch.

``vidspec models``, admission and refusals use it: published sizes come from :mod:`vidspec.models.known_pairs`, those of
a checkpoint or a loaded model from :mod:`vidspec.models.model_sizes`.
"""

from __future__ import annotations

from typing import NamedTuple

#: Bytes per number.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Main memory of Python, torch and transformers without a model, in bytes.
PROCESS = 420 << 20
#: Text tokens of a prompt that is not known.
PROMPT = 64
#: Byte budget of a tower's activations; a single frame is never cut.
BUDGET = 1 << 30


class ModelSizes(NamedTuple):
    """Sizes of one model that the memory of a clip follows from, in bytes.

    Attributes:
        entry: keys and values of one token in all layers.
        states: states of recurrent layers, at most, per clip.
        embedding: row of an embedded prompt.
        features: feature vectors per visual token, each as wide as an embedding.
        tower_row: row of the vision tower's states while one of its blocks computes.
        pass_row: row of a prompt while a block of the language model computes.
        chunk: most rows of a prompt in one pass.
    """

    entry: int
    states: int = 0
    embedding: int = 0
    features: int = 1
    tower_row: int = 0
    pass_row: int = 0
    chunk: int = 0


class ClipMemory(NamedTuple):
    """Bytes that a clip takes on the device of one model.

    Attributes:
        entries: entries of keys and values, of the prompt and the tokens after it.
        kv: bytes of these entries.
        states: of recurrent layers.
        prompt: embedded prompt and visual features, until the prompt has been read.
        tower: working memory of the vision tower for this clip by itself.
        passes: working memory of a pass over a part of the prompt.
    """

    entries: int
    kv: int
    states: int
    prompt: int
    tower: int
    passes: int

    @property
    def working(self) -> int:
        """Temporary bytes while the clip is read: its prompt, and those of the tower or of a pass."""
        return self.prompt + max(self.tower, self.passes)

    @property
    def total(self) -> int:
        """Bytes of the clip by itself, at its peak."""
        return self.kv + self.states + self.working


def clip_memory(
    sizes: ModelSizes, *, visual: int, tokens: int, room: int, tower_rows: tuple[int, int] = (0, 0)
) -> ClipMemory:
    """Return the memory of a clip.

    Args:
        sizes: the model's.
        visual: visual and audio tokens.
        tokens: tokens of the prompt, these included.
        room: tokens after the prompt.
        tower_rows: steps that the tower can encode apart, and rows of each, see
            :meth:`~vidspec.models.frame_rules.FrameRule.tower_rows`.
    """
    steps, rows = tower_rows
    step = rows * sizes.tower_row
    return ClipMemory(
        entries=tokens + room,
        kv=(tokens + room) * sizes.entry,
        states=sizes.states,
        prompt=(tokens + sizes.features * visual) * sizes.embedding,
        tower=max(min(steps * step, BUDGET), step),
        passes=min(tokens, sizes.chunk) * sizes.pass_row,
    )
