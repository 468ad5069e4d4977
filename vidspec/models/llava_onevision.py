"""LLaVA-OneVision: whole frames through SigLIP, pooled to half per side, one newline token behind the video."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vidspec.engine.attention import NAME
from vidspec.errors import ModelError
from vidspec.models.base import Prefix, VisualTokens
from vidspec.models.preprocess import PixelRules, normalised
from vidspec.registry import families

if TYPE_CHECKING:
    from vidspec.engine.kv_cache import KVCache
    from vidspec.engine.taps import Taps
    from vidspec.video import Clip

__all__ = ["CHAT_TEMPLATE", "LlavaOnevision"]

#: What the published processors render for one video and a prompt.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for content in message['content'] if content['type'] == 'video' %}{{ '<video>' }}{% endfor %}"
    "{% for content in message['content'] if content['type'] == 'text' %}{{ '\n' + content['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@families.register("llava_onevision")
class LlavaOnevision:
    """A ``LlavaOnevisionForConditionalGeneration`` behind :class:`~vidspec.models.base.VideoLanguageModel`.

    Args:
        name: what the user called it.
        model: the stock model, on its device and in its dtype.
        tokenizer: a fast tokenizer.
        processor: the video (or image) processor's config.
        template: a chat template that takes lists of ``video`` and ``text`` contents; the family's own if None.
        attention: ``vidspec`` (grouped-query SDPA with taps) or a name ``transformers`` knows.
    """

    family = "llava_onevision"

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        processor: Mapping[str, Any],
        template: str | None = None,
        attention: str = NAME,
    ) -> None:
        self.name, self.model, self.tokenizer = name, model.eval(), tokenizer
        self.attention = attention
        config = model.config
        model.set_attn_implementation({"text_config": attention, "vision_config": "sdpa"})
        self.language: Any = model.model.language_model
        self.rules = PixelRules.from_config(processor, config.vision_config.image_size)
        self.template = template or CHAT_TEMPLATE
        self.video_id = int(config.video_token_id)
        self.placeholder = tokenizer.convert_ids_to_tokens(self.video_id)
        self.cells = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
        ends = model.generation_config.eos_token_id if model.generation_config else None
        ends = config.text_config.eos_token_id if ends is None else ends
        self.eos = frozenset([ends] if isinstance(ends, int) else ends or [tokenizer.eos_token_id])
        # Heads are padded to round numbers; only ids the tokenizer knows can be emitted.
        self.vocabulary = min(int(model.lm_head.weight.shape[0]), max(tokenizer.get_vocab().values()) + 1)

    @property
    def device(self) -> torch.device:
        return self.language.embed_tokens.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.language.embed_tokens.weight.dtype  # type: ignore[no-any-return]

    @property
    def layers(self) -> int:
        return len(self.language.layers)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.language.layers  # type: ignore[no-any-return]

    def preprocess(self, clip: Clip) -> torch.Tensor:
        """(T, 3, S, S) float32 on the CPU."""
        return normalised(clip.frames, self.rules)

    @torch.inference_mode()
    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """(T * cells ** 2 + 1, hidden): pooled features of all frames in raster order, then the newline."""
        batch = pixels[None].to(self.device, self.dtype)
        return self.model.get_video_features(batch).pooler_output[0]  # type: ignore[no-any-return]

    def prefix(self, features: torch.Tensor, frames: int, prompt: str) -> Prefix:
        """``<|im_start|>user <video>\\n{prompt}<|im_end|><|im_start|>assistant\\n`` with the video's features in it."""
        content = [{"type": "video"}, {"type": "text", "text": prompt}]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
        )
        before, found, after = text.partition(self.placeholder)
        if not found:
            raise ModelError(f"{self.name}: its chat template has no place for a video ({self.placeholder})")
        head = self.tokenizer.encode(before, add_special_tokens=False)
        tail = self.tokenizer.encode(after, add_special_tokens=False)
        count, device = len(features), self.device
        ids = torch.tensor(head + [self.video_id] * count + tail, device=device)
        embeds = self.embed(ids[None]).clone()
        embeds[0, len(head) : len(head) + count] = features.to(embeds.dtype)
        cell = torch.arange(count, device=device)
        per_frame = self.cells**2
        newline = cell == frames * per_frame
        visual = VisualTokens(
            index=len(head) + cell,
            frame=(cell // per_frame).clamp(max=frames - 1),
            row=(cell % per_frame // self.cells).masked_fill(newline, -1),
            column=(cell % self.cells).masked_fill(newline, -1),
            required=newline,
            features=embeds[0, len(head) : len(head) + count],
        )
        positions = torch.arange(len(ids), device=device)[None]
        return Prefix(ids, embeds, positions, visual, len(ids))

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.language.embed_tokens(ids)  # type: ignore[no-any-return]

    def text_positions(self, start: int, n: int) -> torch.Tensor:
        return torch.arange(start, start + n, device=self.device)[None]

    def run(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None,
        taps: Taps | None,
    ) -> torch.Tensor:
        rows = embeds.shape[1]
        if mask is None and rows > 1 and self.attention == "eager":
            # The other kernels take a prompt without a mask for causal; eager lets every row see every key.
            mask = torch.full((1, 1, rows, rows), float("-inf"), dtype=embeds.dtype, device=embeds.device).triu_(1)
        # Masks given by kind of layer go through as they are: transformers neither rebuilds them nor takes gaps in
        # positions for the borders of packed sequences.
        masks = {"full_attention": mask, "sliding_attention": mask}
        extra = {} if taps is None else {"taps": taps}
        out = self.language(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=masks,
            past_key_values=cache,
            use_cache=True,
            **extra,
        )
        return out.last_hidden_state  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(hidden)[..., : self.vocabulary]  # type: ignore[no-any-return]
