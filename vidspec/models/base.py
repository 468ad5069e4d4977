"""What the engine needs of a video-language model, and what a prompt looks like once it is embedded."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from typing_extensions import Self

from vidspec.deprecation import old_names
from vidspec.engine.decoder import LanguageModel
from vidspec.models.preprocess import PixelRules, normalise

if TYPE_CHECKING:
    from vidspec.engine.quantised import Precision
    from vidspec.models.request import DialogueTurn
    from vidspec.video import Clip

#: Stock models of ``transformers``, their configs and tokenizers: each class has attributes of its own.
StockModel: TypeAlias = Any
StockConfig: TypeAlias = Any
StockTokenizer: TypeAlias = Any

__all__ = [
    "EmbeddedPrompt",
    "Pixels",
    "StockConfig",
    "StockModel",
    "StockTokenizer",
    "VideoLanguageModel",
    "VisionOutput",
    "VisualTokens",
]


@dataclass(frozen=True)
class Pixels:
    """A clip as a family's vision tower takes it.

    Attributes:
        stored: uint8 in the shape of the family, or float32 without ``rules``; on the CPU, or on the model's device if
            that is CUDA.
        grid: frames (temporal steps), rows and columns of the tower's patches or of its images.
        seconds: when each frame (temporal step) begins, counted from the start of the file.
        duration: of the file, in seconds, of families whose prompt names it.
        sound: (bins, F) float32 of families that hear, on the CPU; None where there is nothing to hear.
        rules: by which bytes are normalised; None for values that are.
    """

    stored: torch.Tensor
    grid: tuple[int, int, int]
    seconds: tuple[float, ...]
    duration: float | None = None
    sound: torch.Tensor | None = None
    rules: PixelRules | None = None

    @property
    def values(self) -> torch.Tensor:
        """Normalised, float32, where they are stored."""
        return self.stored if self.rules is None else normalise(self.stored, self.rules)

    def on(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """:attr:`values` for a model; bytes are what travels to its device."""
        return replace(self, stored=self.stored.to(device)).values.to(dtype)


@dataclass(frozen=True)
class VisionOutput:
    """What a vision tower gave for one clip: N visual tokens, and where each is.

    Attributes:
        features: (N, hidden), projected, in prompt order.
        frame, row, column: (N,) as :class:`VisualTokens` has them; row and column are -1 for separators, which no
            pruner may drop.
        grid: frames (temporal steps), rows and columns of visual tokens.
        seconds: when each frame (temporal step) begins.
        deepstack, views: as :class:`VisualTokens` has them.
        duration: as :class:`Pixels` has it.
        audio: (A, hidden) the audio tokens, projected; None if there are none.
    """

    features: torch.Tensor
    frame: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    grid: tuple[int, int, int]
    seconds: tuple[float, ...]
    deepstack: tuple[torch.Tensor, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    duration: float | None = None
    audio: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)

    @classmethod
    def raster(
        cls,
        features: torch.Tensor,
        grid: tuple[int, int, int],
        seconds: tuple[float, ...],
        deepstack: tuple[torch.Tensor, ...] = (),
        duration: float | None = None,
    ) -> VisionOutput:
        """Tokens of a whole grid, frame by frame in raster order, without separators."""
        _, rows, columns = grid
        place = torch.arange(len(features), device=features.device)
        frame, row, column = place // (rows * columns), place // columns % rows, place % columns
        return cls(features, frame, row, column, grid, seconds, deepstack, duration=duration)


@dataclass(frozen=True)
class VisualTokens:
    """The N visual tokens of a prompt, in prompt order.

    Attributes:
        index: (N,) their rows in the prompt.
        frame, row, column: (N,) where each is in the video; row and column are -1 for separators.
        required: (N,) bool, tokens that no pruner may drop (``image_newline``).
        features: (N, hidden) the projected features, as they enter the language model.
        deepstack: per early block (N, hidden) further features that are added behind it (Qwen3-VL).
        views: rows and columns of each raster that the rows of a frame hold one below the other (LLaVA-NeXT: the whole,
            then its tiles), each over the whole frame; empty if there is one.
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


@dataclass(frozen=True)
class EmbeddedPrompt:
    """A prompt ready for prefill.

    Attributes:
        token_ids: (L,) with the model's video placeholder at visual rows.
        embeds: (1, L, hidden).
        positions: (1, L), or (3, 1, L) under M-RoPE.
        visual: where the visual tokens are.
        next_position: rotary position of the first generated token.
        audio: (A,) rows of the audio tokens, sorted; pruning drops none of them.
    """

    token_ids: torch.Tensor
    embeds: torch.Tensor
    positions: torch.Tensor
    visual: VisualTokens
    next_position: int
    audio: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @property
    def length(self) -> int:
        return int(self.embeds.shape[1])

    @property
    def text_rows_after_video(self) -> torch.Tensor:
        """(r,) rows of the prompt behind the last visual or audio token; all rows when there is none."""
        first = max((int(rows[-1]) + 1 for rows in (self.visual.index, self.audio) if len(rows)), default=0)
        return torch.arange(first, self.length, device=self.embeds.device)

    @property
    def text_ids(self) -> tuple[int, ...]:
        """Token ids without those that stand for something seen, or for sound."""
        text = torch.ones(self.length, dtype=torch.bool, device=self.token_ids.device)
        text[self.visual.index] = text[self.audio] = False
        return tuple(self.token_ids[text].tolist())

    def rows_kept(self, kept: torch.Tensor) -> torch.Tensor:
        """Rows of the prompt, sorted, without the visual tokens not in ``kept``."""
        stays = torch.ones(self.length, dtype=torch.bool, device=self.embeds.device)
        stays[self.visual.index] = False
        stays[self.visual.index[kept]] = True
        return stays.nonzero()[:, 0]

    def outline(self) -> EmbeddedPrompt:
        """The same rows and places without embeddings and features, (1, L, 0) and (N, 0): what is asked of a prompt
        that has been read."""
        visual = replace(self.visual, features=self.visual.features.new_empty(len(self.visual), 0), deepstack=())
        return replace(self, embeds=self.embeds.new_empty(1, self.length, 0), visual=visual)

    def keep(self, kept: torch.Tensor, *, compact: bool = False) -> EmbeddedPrompt:
        """The prompt without the visual tokens not in ``kept``.

        Args:
            kept: (K,) sorted indices of visual tokens.
            compact: renumber positions without gaps (as SpecVLM's code does) instead of keeping them.
        """
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
        positions, following = self.positions[..., rows], self.next_position
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
        )


class VideoLanguageModel(LanguageModel, Protocol):
    """One loaded model of one family: preprocessing, vision tower, prompt and language model."""

    name: str
    source: str  # what it was loaded from
    family: str
    tokenizer: StockTokenizer
    eos: frozenset[int]
    codes: Precision | None  # of the checkpoint, which its blocks kept
    max_sound_s: float | None  # seconds of sound at most; None of families without audio input

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def layers(self) -> int: ...

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        """At least how many visual tokens a clip of so many frames makes."""
        ...

    def text_tokens(self, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()) -> int:
        """At least how many further tokens its prompt has."""
        ...

    def audio_tokens(self, samples: int) -> int:
        """How many tokens so many samples of a clip's sound make; 0 of families that do not hear."""
        ...

    def reading_bytes(self, visual: int, tokens: int) -> tuple[int, int]:
        """What a clip takes on the device until its prompt is read, and while the tower works on it; bytes, about.

        Args:
            visual: its visual tokens.
            tokens: all of its prompt.
        """
        ...

    def preprocess(self, clip: Clip) -> Pixels:
        """Pixels for the vision tower, and what the audio tower takes."""
        ...

    def encode(self, pixels: Pixels, *, pooled: bool = False) -> VisionOutput:
        """Visual tokens of one clip.

        Args:
            pixels: of :meth:`preprocess`.
            pooled: average the tower's features 2 x 2 just before the projector (TABED's context P).
        """
        ...

    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Generator[None, None, VisionOutput]:
        """:meth:`see` in steps of bounded work and memory: goes on with each ``next``."""
        ...

    def prefix(
        self, seen: VisionOutput, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()
    ) -> EmbeddedPrompt:
        """The whole prompt with the video in it, embedded; of a dialogue with the turns before, the first of which
        shows the video."""
        ...

    def text_ids(
        self, instead: str, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()
    ) -> list[int]:
        """Token ids of the prompt with the text ``instead`` where the video would be."""
        ...

    def text_prefix(self, token_ids: Sequence[int]) -> EmbeddedPrompt:
        """A prompt without visual tokens, such as :meth:`text_ids` of this or of another model of its vocabulary."""
        ...

    @property
    def unquantisable_reason(self) -> str | None:
        """Why its weights cannot be quantised; None if they can."""
        ...

    def quantised_copy(self, precision: Precision) -> Self:
        """The same model with copies of its language model's weights as codes, over the same slab; made once."""
        ...

    def with_own_slab(self) -> Self:
        """The same model for passes in another thread: its sequences are in a slab of their own."""
        ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """(..., hidden) of token ids."""
        ...


if not TYPE_CHECKING:  # see old_names
    __getattr__ = old_names(__name__, {"Seen": "VisionOutput", "Prefix": "EmbeddedPrompt"})
