"""Shared parts of the built-in pairs' families: sizes, tokenizer, config of the text model, checkpoint files.

No training. The families are in ``architecture_llava`` and ``architecture_qwen``.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from research.world.captions import caption
from research.world.scene import draw_scene
from vidspec.embedded.prompts import PROMPTS

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

#: A config, or the content of a checkpoint file, as JSON values.
Settings: TypeAlias = dict[str, object]

VOCABULARY = 768
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")


@dataclass(frozen=True)
class Size:
    """Widths and depths of one model of the pair."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_intermediate: int


@dataclass(frozen=True)
class Grid:
    """Visual tokens of one temporal step: ``rows`` x ``columns``, each of 2 x 2 patches over ``frames`` frames."""

    rows: int
    columns: int
    frames: int = 1

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


class Architecture(ABC):
    """One model family for the training stages.

    Attributes:
        family: the ``model_type`` of ``transformers``.
        stock: name of the whole model's class there.
        sizes: of ``target`` and ``draft``; the depths they are shipped with.
        grids: the grids of visual tokens that clips are shown in, with how often.
        patch: width and height of a patch in pixels.
        mean, std: of the pixels, per channel.
        trailing: learned visual tokens after a video (LLaVA-OneVision's newline).
        pooled: True if the projector returns visual tokens; False if patches are pooled after it.
        seeded: the language models start from those of the shipped LLaVA-OneVision pair.
    """

    family: ClassVar[str]
    stock: ClassVar[str]
    sizes: ClassVar[dict[str, Size]]
    grids: ClassVar[dict[Grid, int]]
    patch: ClassVar[int] = 12
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]
    trailing: ClassVar[int]
    pooled: ClassVar[bool]
    seeded: ClassVar[bool]

    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return a new tokenizer of the pair."""

    @abstractmethod
    def dialogue(self, turns: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
        """Return the chat template's text of prompts and answers, before a clip's visual tokens and after them.

        The texts after them alternate: the prompt up to an answer, and the answer with its end.
        """

    @abstractmethod
    def config(self, size: Size, tokenizer: PreTrainedTokenizerFast, *, layers: int | None = None) -> PreTrainedConfig:
        """Return the stock ``transformers`` config of one model of the pair."""

    def common(self, size: Size, tokenizer: PreTrainedTokenizerFast, layers: int | None) -> tuple[Settings, Settings]:
        """Return the keys that all families' configs share: of the language model, and of the whole model."""
        ids = tokenizer.get_vocab()
        ends = {"bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
        whole: Settings = {"tie_word_embeddings": True, **ends}
        text: Settings = {
            "vocab_size": VOCABULARY,
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "num_hidden_layers": size.layers if layers is None else layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "max_position_embeddings": 8192,
            **whole,
        }
        return text, whole

    @abstractmethod
    def language(self, config: Any) -> Any:
        """Return the family's language model with random weights: embeddings, blocks and last norm."""

    @abstractmethod
    def seer(self, config: Any) -> Any:
        """Return the family's vision tower and projector with random weights.

        Its ``forward`` takes normalised frames (T, 3, height, width) to what ``supervised`` asks for, its ``tokens``
        to visual tokens (T / frames, rows, columns, hidden).
        """

    @abstractmethod
    def positions(
        self, before: int, kept: NDArray[np.int64], steps: int, grid: Grid, interval: float, after: int
    ) -> NDArray[np.int64]:
        """Return rotary positions of a prompt and generated text, (axes, before + len(kept) + after).

        Args:
            before: text tokens in front of the video.
            kept: indices of the visual tokens shown, in raster order over steps, rows and columns, then trailing ones.
            steps: temporal steps of the whole clip.
            grid: of one step.
            interval: seconds per step.
            after: text tokens after the video, generated ones included.
        """

    @abstractmethod
    def parts(self, whole: Any, reader: Any, seer: Any) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
        """Return modules of a stock model, each with the module of the reader or tower that has its weights."""

    def parameters(self, whole: Any, reader: Any) -> tuple[torch.nn.Parameter, torch.nn.Parameter] | None:
        """Return a parameter of the stock model that is in none of :meth:`parts`, and the reader's, or None."""
        return None

    @abstractmethod
    def files(self) -> Mapping[str, Settings]:
        """Return the content of the processor's files, by name."""

    def take_apart(self, folder: Path, reader: Any, seer: Any) -> None:
        """Load a checkpoint of :meth:`assemble` into a reader and a vision tower with its projector."""
        import torch
        import transformers

        known = getattr(transformers, self.stock).from_pretrained(folder, dtype=torch.float32).model
        for stock, own in self.parts(known, reader, seer):
            own.load_state_dict(stock.state_dict())
        if (single := self.parameters(known, reader)) is not None:
            single[1].data.copy_(single[0].data)

    def assemble(
        self,
        config: PreTrainedConfig,
        reader: torch.nn.Module,
        seer: torch.nn.Module,
        tokenizer: PreTrainedTokenizerFast,
        folder: Path,
    ) -> None:
        """Write one model in the format of ``transformers``: half-precision safetensors, tokenizer, processor."""
        import transformers

        model = getattr(transformers, self.stock)(config)
        for stock, own in self.parts(model.model, reader, seer):
            stock.load_state_dict(own.state_dict())
        if (single := self.parameters(model.model, reader)) is not None:
            single[0].data.copy_(single[1].data)
        model.tie_weights()
        model.generation_config = transformers.GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
        )
        model.half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        pixels: Settings = {
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "resample": 3,
            "rescale_factor": 1 / 255,
        }
        for name, settings in self.files().items():
            content = settings if name == "processor_config.json" else {**settings, **pixels}
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def architecture(family: str) -> Architecture:
    """Return the architecture of ``llava_onevision`` or ``qwen2_5_vl``.

    Raises:
        KeyError: of another family.
    """
    from research.training.architecture_llava import LlavaArchitecture
    from research.training.architecture_qwen import QwenArchitecture

    return {kind.family: kind for kind in (LlavaArchitecture, QwenArchitecture)}[family]()


def build_tokenizer(samples: int = 4000, seed: int = 7) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer of the LLaVA-OneVision pair on its captions; any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from vidspec.models.families.llava_onevision import CHAT_TEMPLATE

    rng = random.Random(seed)

    def corpus() -> Iterable[str]:
        for _ in range(samples):
            yield caption(draw_scene(rng), rng)
        yield from PROMPTS
        yield from ("user", "assistant", "system", "\n")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return fast(tokenizer, list(SPECIALS), CHAT_TEMPLATE)


def fast(tokenizer: Tokenizer, specials: list[str], template: str) -> PreTrainedTokenizerFast:
    """Wrap a tokenizer for ``transformers``, with its special tokens and its chat template."""
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=specials,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template
    return made
