"""Pixels, visual tokens and embedded prompts, and the registry of model families, for use without torch.

The contract of a family is :class:`vidspec.models.video_language_model.VideoLanguageModel`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vidspec.engine.stock_types import StockConfig, StockModel, StockTokenizer
from vidspec.registry import Registry

if TYPE_CHECKING:
    import torch

    from vidspec.models.preprocess import PixelRules
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = [
    "EmbeddedPrompt",
    "Pixels",
    "StockConfig",
    "StockModel",
    "StockTokenizer",
    "VisionOutput",
    "VisualTokens",
    "families",
]


@dataclass(frozen=True)
class Pixels:
    """Input of a family's vision tower for one clip.

    Attributes:
        stored: uint8 in the family's shape, or float32 without ``rules``; on the CPU, or on the model's device if that
            is CUDA.
        grid: frames (temporal steps), rows and columns of patches or images.
        seconds: start of each frame (temporal step), from the start of the file.
        duration: of the file, in seconds, for families whose prompt names it.
        sound: (bins, F) float32 on the CPU, for families with audio input; None without sound.
        rules: normalisation of the bytes; None for normalised values.
    """

    stored: torch.Tensor
    grid: tuple[int, int, int]
    seconds: tuple[float, ...]
    duration: float | None = None
    sound: torch.Tensor | None = None
    rules: PixelRules | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of pictures and sound."""
        return self.stored.nbytes + (0 if self.sound is None else self.sound.nbytes)

    @property
    def values(self) -> torch.Tensor:
        """Normalised float32 values, on the device of ``stored``."""
        from vidspec.models.preprocess import normalise

        return self.stored if self.rules is None else normalise(self.stored, self.rules)

    def on(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return :attr:`values` on a device and in a dtype; the bytes are copied before they are normalised."""
        return replace(self, stored=self.stored.to(device)).values.to(dtype)


@dataclass(frozen=True)
class VisionOutput:
    """Output of the vision tower for one clip: N visual tokens and their places.

    Attributes:
        features: (N, hidden), projected, in prompt order.
        frame, row, column: (N,) as in :class:`VisualTokens`; row and column are -1 for separators, which no pruner may
            drop.
        grid: frames (temporal steps), rows and columns of visual tokens.
        seconds: start of each frame (temporal step).
        deepstack, views: as in :class:`VisualTokens`.
        slices: rows and columns of slices that the second view is cut into (MiniCPM-V).
        duration: as in :class:`Pixels`.
        audio: (A, hidden) projected audio tokens; None if there are none.
    """

    features: torch.Tensor
    frame: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    grid: tuple[int, int, int]
    seconds: tuple[float, ...]
    deepstack: tuple[torch.Tensor, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    slices: tuple[int, int] = (0, 0)
    duration: float | None = None
    audio: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        levels = (self.features, *self.deepstack, *([] if self.audio is None else [self.audio]))
        return sum(level.nbytes for level in levels)

    @classmethod
    def raster(
        cls,
        features: torch.Tensor,
        grid: tuple[int, int, int],
        seconds: tuple[float, ...],
        deepstack: tuple[torch.Tensor, ...] = (),
        duration: float | None = None,
    ) -> VisionOutput:
        """Build the output of a full grid, frame by frame in raster order, without separators."""
        import torch

        _, rows, columns = grid
        place = torch.arange(len(features), device=features.device)
        frame, row, column = place // (rows * columns), place // columns % rows, place % columns
        return cls(features, frame, row, column, grid, seconds, deepstack, duration=duration)


@dataclass(frozen=True)
class VisualTokens:
    """The N visual tokens of a prompt, in prompt order.

    Attributes:
        index: (N,) their rows in the prompt.
        frame, row, column: (N,) places in the video; row and column are -1 for separators.
        required: (N,) bool, tokens that no pruner may drop (``image_newline``).
        features: (N, hidden) projected features, the input of the language model.
        deepstack: (N, hidden) per early block, features added to its output (Qwen3-VL).
        views: rows and columns of each raster stacked in a frame's rows (the whole, then its tiles or slices), each
            covering the whole frame; empty if there is one.
    """

    index: torch.Tensor
    frame: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    required: torch.Tensor
    features: torch.Tensor
    deepstack: tuple[torch.Tensor, ...] = ()
    views: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def frames(self) -> int:
        return int(self.frame.max()) + 1 if len(self) else 0


def _no_rows() -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=torch.long)


@dataclass(frozen=True)
class EmbeddedPrompt:
    """A prompt ready for prefill.

    Attributes:
        token_ids: (L,) with the model's video placeholder at visual rows.
        embeds: (1, L, hidden).
        positions: (1, L), or (3, 1, L) under M-RoPE.
        visual: the visual tokens.
        next_position: rotary position of the first generated token; a fraction in Qwen3-Omni.
        audio: (A,) rows of the audio tokens, sorted; pruning drops none of them.
        bidirectional: (M,) rows, sorted, that see each other both ways in every block (Molmo 2).
    """

    token_ids: torch.Tensor
    embeds: torch.Tensor
    positions: torch.Tensor
    visual: VisualTokens
    next_position: float
    audio: torch.Tensor = field(default_factory=_no_rows)
    bidirectional: torch.Tensor = field(default_factory=_no_rows)

    @property
    def length(self) -> int:
        return int(self.embeds.shape[1])

    @property
    def text_rows_after_video(self) -> torch.Tensor:
        """Rows (r,) of the prompt after the last visual or audio token; all rows if there is none."""
        import torch

        first = max((int(rows[-1]) + 1 for rows in (self.visual.index, self.audio) if len(rows)), default=0)
        return torch.arange(first, self.length, device=self.embeds.device)

    @property
    def text_ids(self) -> tuple[int, ...]:
        """Token ids of the text, without visual and audio placeholders."""
        import torch

        text = torch.ones(self.length, dtype=torch.bool, device=self.token_ids.device)
        text[self.visual.index] = text[self.audio] = False
        return tuple(self.token_ids[text].tolist())

    @property
    def is_visual(self) -> torch.Tensor:
        """(L,) bool, True for rows of visual tokens."""
        import torch

        visual = torch.zeros(self.length, dtype=torch.bool, device=self.embeds.device)
        visual[self.visual.index] = True
        return visual

    def rows_kept(self, kept: torch.Tensor) -> torch.Tensor:
        """Return the sorted rows of the prompt without the visual tokens not in ``kept``."""
        stays = ~self.is_visual
        stays[self.visual.index[kept]] = True
        return stays.nonzero()[:, 0]

    def outline(self) -> EmbeddedPrompt:
        """Return the prompt without embeddings (1, L, 0) and features (N, 0), for use after the prefill."""
        visual = replace(self.visual, features=self.visual.features.new_empty(len(self.visual), 0), deepstack=())
        return replace(self, embeds=self.embeds.new_empty(1, self.length, 0), visual=visual)

    def keep(self, kept: torch.Tensor, *, compact: bool = False) -> EmbeddedPrompt:
        """Return the prompt without the visual tokens not in ``kept``.

        Args:
            kept: (K,) sorted indices of visual tokens.
            compact: renumber positions without gaps (as SpecVLM's code does) instead of keeping them.
        """
        import torch

        rows = self.rows_kept(kept)
        moved = torch.full((self.length,), -1, dtype=torch.long, device=rows.device)
        moved[rows] = torch.arange(len(rows), device=rows.device)
        visual = VisualTokens(
            index=moved[self.visual.index[kept]],
            frame=self.visual.frame[kept],
            row=self.visual.row[kept],
            column=self.visual.column[kept],
            required=self.visual.required[kept],
            features=self.visual.features[kept],
            deepstack=tuple(level[kept] for level in self.visual.deepstack),
            views=self.visual.views,
        )
        positions, following, bidirectional = self.positions[..., rows], self.next_position, moved[self.bidirectional]
        if compact:
            positions = torch.arange(len(rows), device=rows.device).expand_as(positions).clone()
            following = len(rows)
        return replace(
            self,
            token_ids=self.token_ids[rows],
            embeds=self.embeds[:, rows],
            positions=positions,
            visual=visual,
            next_position=following,
            audio=moved[self.audio],
            bidirectional=bidirectional[bidirectional >= 0],
        )


#: Families that differ from another in their stock modules only (mixtures of experts, names of processors).
SAME_FAMILIES = {"glm46v": "glm4v", "glm4v_moe": "glm4v", "qwen3_5_moe": "qwen3_5", "qwen3_vl_moe": "qwen3_vl"}
#: Model families, by the ``model_type`` of their checkpoints.
families: Registry[VideoLanguageModel] = Registry(
    None, "families", "vidspec.models.families", "model family", "models.family", same=SAME_FAMILIES
)
