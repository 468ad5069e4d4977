"""LLaVA-OneVision family for the training stages: whole frames of 96 pixels, 16 visual tokens per frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from research.training.architecture import SPECIALS, Architecture, Grid, Settings, Size, build_tokenizer
from research.training.codes import pool

if TYPE_CHECKING:
    from transformers import LlavaOnevisionConfig, PreTrainedTokenizerFast

_IMAGE = 96


class LlavaSeer(torch.nn.Module):
    """A SigLIP tower and a LLaVA projector, as in LlavaOnevisionModel."""

    def __init__(self, config: Any):
        super().__init__()
        from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionMultiModalProjector
        from transformers.models.siglip.modeling_siglip import SiglipVisionModel

        self.vision_tower = SiglipVisionModel(config.vision_config)
        self.multi_modal_projector = LlavaOnevisionMultiModalProjector(config)
        # Nothing normalises the last block's output: start with small residual branches, or deep towers learn slowly.
        with torch.no_grad():
            layers: Any = self.vision_tower.encoder.layers
            for layer in layers:
                layer.self_attn.out_proj.weight.mul_(0.3)
                layer.mlp.fc2.weight.mul_(0.3)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Return projected patch features (T, 8, 8, hidden) of pixels (T, 3, 96, 96)."""
        # LLaVA takes the last block's output as it is, without the tower's final norm.
        states = self.vision_tower(pixel_values=frames, output_hidden_states=True).hidden_states[-1]
        side = frames.shape[-1] // LlavaArchitecture.patch
        return self.multi_modal_projector(states).reshape(len(frames), side, side, -1)  # type: ignore[no-any-return]

    def tokens(self, frames: torch.Tensor) -> torch.Tensor:
        """Return visual tokens (T, 4, 4, hidden)."""
        return pool(self(frames))


class LlavaArchitecture(Architecture):
    """LLaVA-OneVision: SigLIP, a projector, pooling to half per side, Qwen2."""

    family = "llava_onevision"
    stock = "LlavaOnevisionForConditionalGeneration"
    sizes: ClassVar = {
        "target": Size(256, 12, 4, 2, 512, 160, 4, 5, 640),
        "draft": Size(128, 2, 2, 1, 320, 96, 2, 4, 256),
    }
    grids: ClassVar = {Grid(4, 4): 1}
    mean = std = (0.5, 0.5, 0.5)
    trailing = 1
    pooled = False
    seeded = False

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return build_tokenizer()

    def dialogue(self, turns: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
        """Render a dialogue: earlier answers follow ``assistant \\n``, the last one ``assistant\\n``."""
        before, pieces = "<|im_start|>user ", list[str]()
        for number, (prompt, answer) in enumerate(turns):
            begin = "<|im_start|>user " if number else ""
            space = " " if number < len(turns) - 1 else ""
            pieces += [f"{begin}\n{prompt}<|im_end|><|im_start|>assistant{space}\n", f"{answer}<|im_end|>"]
        return before, pieces

    def config(
        self, size: Size, tokenizer: PreTrainedTokenizerFast, *, layers: int | None = None
    ) -> LlavaOnevisionConfig:
        from transformers import LlavaOnevisionConfig

        ids = {token: tokenizer.get_vocab()[token] for token in SPECIALS}
        text, whole = self.common(size, tokenizer, layers)
        settings: dict[str, Any] = dict(
            vision_config={
                "model_type": "siglip_vision_model",
                "hidden_size": size.vision_hidden,
                "intermediate_size": size.vision_intermediate,
                "num_hidden_layers": size.vision_layers,
                "num_attention_heads": size.vision_heads,
                "image_size": _IMAGE,
                "patch_size": self.patch,
                "vision_use_head": False,
            },
            text_config={**text, "model_type": "qwen2", "rope_theta": 10000.0},
            image_token_index=ids["<image>"],
            video_token_index=ids["<video>"],
            image_token_id=ids["<image>"],
            video_token_id=ids["<video>"],
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
            image_grid_pinpoints=[[_IMAGE, _IMAGE]],
            **whole,
        )
        return LlavaOnevisionConfig(**settings)

    def language(self, config: Any) -> Any:
        from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

        return Qwen2Model(config.text_config)

    def seer(self, config: Any) -> LlavaSeer:
        return LlavaSeer(config)

    def positions(
        self, before: int, kept: NDArray[np.int64], steps: int, grid: Grid, interval: float, after: int
    ) -> NDArray[np.int64]:
        """Return one axis: the position in the whole prompt."""
        resumed = before + steps * grid.tokens + self.trailing
        return np.concatenate([np.arange(before), before + kept, resumed + np.arange(after)])[None]

    def parts(self, whole: Any, reader: Any, seer: Any) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
        yield whole.language_model, reader.model
        yield whole.vision_tower, seer.vision_tower
        yield whole.multi_modal_projector, seer.multi_modal_projector

    def parameters(self, whole: Any, reader: Any) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
        return whole.image_newline, reader.newline

    def files(self) -> Mapping[str, Settings]:
        common: Settings = {
            "processor_class": "LlavaOnevisionProcessor",
            "size": {"height": _IMAGE, "width": _IMAGE},
        }
        return {
            "preprocessor_config.json": {
                "image_processor_type": "LlavaOnevisionImageProcessor",
                "image_grid_pinpoints": [[_IMAGE, _IMAGE]],
                **common,
            },
            "video_preprocessor_config.json": {"video_processor_type": "LlavaOnevisionVideoProcessor", **common},
            "processor_config.json": {
                "processor_class": "LlavaOnevisionProcessor",
                "num_image_tokens": (_IMAGE // self.patch) ** 2,
                "vision_feature_select_strategy": "full",
                "image_token": "<image>",
                "video_token": "<video>",
            },
        }
