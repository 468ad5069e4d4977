"""Qwen2.5-VL family for the training stages: dynamic resolution, two frames per step, M-RoPE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from research.training.architecture import Architecture, Grid, Settings, Size, fast
from vidspec.models.loading import embedded_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

#: LLaVA-OneVision's tokens that take these names here, and the two that it lacks.
_RENAMED = {"<image>": "<|image_pad|>", "<video>": "<|video_pad|>"}
_MORE = ("<|vision_start|>", "<|vision_end|>")
FRAMES = 2
#: Pixels of a frame after resizing: 40 visual tokens of 24 x 24 at most. A 4:3 frame becomes 5 x 7 of them.
MAX_PIXELS, MIN_PIXELS = 40 * 24**2, 24 * 24**2
#: Rotary positions a second: a clip of 8 to 15 s spans 32 to 60 of them, at most 64 frames in 8 s are 1 apart.
TOKENS_PER_SECOND = 4
#: Pairs of rotary channels for time, rows and columns; time takes the fast half, whose waves have 6 to 471 positions.
MROPE = (16, 8, 8)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{% elif content['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class QwenSeer(torch.nn.Module):
    """The stock tower and merger, run over steps of one size at once.

    The stock ``forward`` attends window by window; here all steps and windows are one call with a mask, which is the
    same function.
    """

    def __init__(self, config: Any):
        super().__init__()
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

        self.visual: Any = Qwen2_5_VisionTransformerPretrainedModel._from_config(config.vision_config)
        self._layouts: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        with torch.no_grad():
            for module in self.visual.modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight.normal_(0, module.in_features**-0.5)
            self.visual.patch_embed.proj.weight.normal_(0, self.visual.patch_embed.proj.weight[0].numel() ** -0.5)
            for block in self.visual.blocks:  # small residual branches, or deep towers learn slowly
                block.attn.proj.weight.mul_(0.3)
                block.mlp.down_proj.weight.mul_(0.3)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Return visual tokens (T / 2, rows, columns, hidden) of pixels (T, 3, 24 rows, 24 columns)."""
        patch = self.visual.patch_size
        rows, columns = (side // (2 * patch) for side in frames.shape[-2:])
        cut = frames.view(-1, FRAMES, 3, rows, 2, patch, columns, 2, patch).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        steps, count = len(cut), 4 * rows * columns
        weight = self.visual.patch_embed.proj.weight
        states = F.linear(cut.reshape(steps, count, -1), weight.flatten(1))
        cos, sin, windows = self._layout(rows, columns)
        for index, block in enumerate(self.visual.blocks):
            mask = None if index in self.visual.fullatt_block_indexes else windows
            states = states + self._attend(block.attn, block.norm1(states), cos, sin, mask)
            states = states + block.mlp(block.norm2(states))
        merged: torch.Tensor = self.visual.merger(states)
        return merged.reshape(steps, rows, columns, -1)

    tokens = forward

    @staticmethod
    def _attend(
        attn: Any, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

        steps, count, width = states.shape
        q, k, v = attn.qkv(states).reshape(steps, count, 3, attn.num_heads, -1).unbind(2)
        q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if q.dtype == torch.bfloat16:  # the fused kernel's backward is four times slower than its parts in bfloat16
            with torch.autocast("cpu", enabled=False):
                scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
                if mask is not None:
                    scores = scores.masked_fill(~mask, float("-inf"))
                mixed = scores.softmax(dim=-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return attn.proj(mixed.transpose(1, 2).reshape(steps, count, width))  # type: ignore[no-any-return]

    def _layout(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rotary cosines and sines of one step's patches, and which patches share a window (True: yes)."""
        from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

        if (rows, columns) not in self._layouts:
            grid = torch.tensor([[1, 2 * rows, 2 * columns]])
            cos, sin = self.visual.rotary_pos_emb(torch.zeros(1), get_vision_position_ids(grid, 2))
            order, ends = get_vision_window_index(
                grid, spatial_merge_size=2, window_size=self.visual.window_size, patch_size=self.visual.patch_size
            )
            window = torch.empty(len(order), dtype=torch.long)
            window[order] = torch.bucketize(4 * torch.arange(len(order)), torch.as_tensor(ends), right=True)
            window = window.repeat_interleave(4)
            self._layouts[rows, columns] = (cos, sin, window[:, None] == window[None, :])
        return self._layouts[rows, columns]


class QwenArchitecture(Architecture):
    """Qwen2.5-VL: a tower with windows, 2 x 2 merging, Qwen2 with M-RoPE."""

    family = "qwen2_5_vl"
    stock = "Qwen2_5_VLForConditionalGeneration"
    sizes: ClassVar = {
        "target": Size(256, 12, 4, 2, 512, 144, 4, 6, 400),
        "draft": Size(128, 2, 2, 1, 320, 96, 2, 4, 176),
    }
    grids: ClassVar = {
        Grid(5, 7, FRAMES): 14,  # 4:3
        Grid(4, 8, FRAMES): 3,  # 16:9
        Grid(6, 6, FRAMES): 1,
        Grid(7, 5, FRAMES): 1,
        Grid(8, 4, FRAMES): 1,
    }
    mean = (0.48145466, 0.4578275, 0.40821073)
    std = (0.26862954, 0.26130258, 0.27577711)
    trailing = 0
    pooled = True
    seeded = True

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the shipped LLaVA-OneVision pair's tokenizer with this family's special tokens; text ids are equal."""
        from tokenizers import Tokenizer

        known = json.loads((embedded_folder("embedded", "target") / "tokenizer.json").read_text(encoding="utf-8"))
        for token in known["added_tokens"]:
            token["content"] = _RENAMED.get(token["content"], token["content"])
        vocabulary = known["model"]["vocab"]
        known["model"]["vocab"] = {_RENAMED.get(token, token): index for token, index in vocabulary.items()}
        tokenizer = Tokenizer.from_str(json.dumps(known))
        tokenizer.add_special_tokens(list(_MORE))
        specials = [*(token["content"] for token in known["added_tokens"]), *_MORE]
        return fast(tokenizer, specials, CHAT_TEMPLATE)

    def dialogue(self, turns: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
        user, pieces = "<|im_start|>user\n", list[str]()
        for prompt, answer in turns:
            begin = f"\n{user}" if pieces else "<|vision_end|>"
            pieces += [f"{begin}{prompt}<|im_end|>\n<|im_start|>assistant\n", f"{answer}<|im_end|>"]
        return f"{user}<|vision_start|>", pieces

    def config(self, size: Size, tokenizer: PreTrainedTokenizerFast, *, layers: int | None = None) -> Qwen2_5_VLConfig:
        from transformers import Qwen2_5_VLConfig

        ids = tokenizer.get_vocab()
        text, whole = self.common(size, tokenizer, layers)
        settings: dict[str, Any] = dict(
            vision_config={
                "depth": size.vision_layers,
                "hidden_size": size.vision_hidden,
                "intermediate_size": size.vision_intermediate,
                "num_heads": size.vision_heads,
                "patch_size": self.patch,
                "spatial_merge_size": 2,
                "temporal_patch_size": FRAMES,
                "tokens_per_second": TOKENS_PER_SECOND,
                "window_size": 6 * self.patch,
                "fullatt_block_indexes": list(range(1, size.vision_layers, 2)),
                "out_hidden_size": size.hidden,
            },
            text_config={
                **text,
                "rms_norm_eps": 1e-6,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(MROPE)},
            },
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
            **whole,
        )
        return Qwen2_5_VLConfig(**settings)

    def language(self, config: Any) -> Any:
        from transformers import Qwen2_5_VLTextModel

        return Qwen2_5_VLTextModel(config.text_config)

    def seer(self, config: Any) -> QwenSeer:
        return QwenSeer(config)

    def positions(
        self, before: int, kept: NDArray[np.int64], steps: int, grid: Grid, interval: float, after: int
    ) -> NDArray[np.int64]:
        """Return three axes (time, row, column), as ``get_rope_index`` and ``generate`` of ``transformers`` 5.23 do.

        Text resumes at the video's start plus the longer side of the grid, whatever the time axis has reached, and
        what is generated counts on from there.
        """
        moments = (np.arange(steps, dtype=np.float32) * np.float32(TOKENS_PER_SECOND * interval)).astype(np.int64)
        step, cell = np.divmod(kept, grid.tokens)
        visual = before + np.stack([moments[step], cell // grid.columns, cell % grid.columns])
        behind = before + max(grid.rows, grid.columns) + np.arange(after)
        return np.concatenate([np.stack([np.arange(before)] * 3), visual, np.stack([behind] * 3)], axis=1)

    def parts(self, whole: Any, reader: Any, seer: Any) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
        yield whole.language_model, reader.model
        yield whole.visual, seer.visual

    def files(self) -> Mapping[str, Settings]:
        common: Settings = {
            "processor_class": "Qwen2_5_VLProcessor",
            "patch_size": self.patch,
            "temporal_patch_size": FRAMES,
            "merge_size": 2,
            "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        }
        return {
            "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessor", **common},
            "video_preprocessor_config.json": {
                "video_processor_type": "Qwen2VLVideoProcessor",
                "cap_pixels_per_frame": False,
                **common,
            },
        }
