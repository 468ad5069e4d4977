"""What the adapters of all families share: names and ends, the prompt around the video, the language model's pass."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict, TypeVar

import torch
from typing_extensions import Self

from vidspec.deprecation import old_names
from vidspec.engine.decoder import with_own_slab
from vidspec.engine.decoders import decoder_of
from vidspec.engine.device import memory_for
from vidspec.engine.fused import FusedDecoder, unsupported_reason
from vidspec.engine.layouts import WeightFormat
from vidspec.engine.quantised import Precision
from vidspec.engine.stock import StockDecoder
from vidspec.errors import GenerationError, ModelError
from vidspec.models.base import (
    EmbeddedPrompt,
    Pixels,
    StockConfig,
    StockModel,
    StockTokenizer,
    VisionOutput,
    VisualTokens,
)
from vidspec.models.chat_template import render_template
from vidspec.models.preprocess import ProcessorConfig
from vidspec.models.vision import BUDGET, chunks, token_bytes

if TYPE_CHECKING:
    from vidspec.models.request import DialogueTurn

__all__ = ["Adapter"]

T = TypeVar("T")


class ChatMessage(TypedDict):
    """One message of a dialogue, as chat templates take it."""

    role: str
    content: list[dict[str, str]]


class Adapter:
    """A stock model of ``transformers`` behind :class:`~vidspec.models.base.VideoLanguageModel`; families derive.

    Args:
        name: what the user called it.
        model: the stock model, on its device and in its dtype.
        tokenizer: a fast tokenizer.
        processor: the video (or image) processor's config.
        template: a chat template that takes lists of ``content`` and ``text`` contents; the family's own if None.
    """

    family: ClassVar[str]
    #: What the published processors render for one video and a prompt.
    chat_template: ClassVar[str]
    #: What the template calls the video.
    content: ClassVar[str] = "video"
    #: The key of the config that holds the id of the token that stands for one visual token.
    visual_token: ClassVar[str] = "video_token_id"
    #: The attention of the vision tower, by a name ``transformers`` knows.
    vision_attention: ClassVar[str] = "sdpa"
    #: Whether the stock model keeps the output of each block of the tower to choose from.
    keeps_blocks: ClassVar[bool] = False
    #: Rows of the tower that become one visual token, about; and features of a token, with those for early blocks.
    folded, levels = 1, 1
    #: Seconds of a clip's sound that are read at most; None of families without audio input.
    max_sound_s: float | None = None
    #: What users of this checkpoint should know, in one line.
    note: str | None = None
    #: The checkpoint's codes that its blocks kept when it was loaded.
    codes: Precision | None = None
    _vision_dtype: torch.dtype | None = None

    def __init__(
        self,
        name: str,
        model: StockModel,
        tokenizer: StockTokenizer,
        processor: ProcessorConfig,
        template: str | None = None,
    ) -> None:
        self.name, self.source, self.model, self.tokenizer = name, name, model.eval(), tokenizer
        self._decoder: FusedDecoder | StockDecoder | None = None
        self._quantised: dict[Precision, Self] = {}
        #: Taken while the tower works: some families read it by hooks, and several threads encode clips.
        self.looking = threading.Lock()
        self._parts()
        self.template = template or self.own_template()
        self._rendered: tuple[list[ChatMessage], str] = [], ""
        ends = model.generation_config.eos_token_id if model.generation_config else None
        ends = self.language.config.eos_token_id if ends is None else ends
        self.eos = frozenset([ends] if isinstance(ends, int) else ends or [tokenizer.eos_token_id])
        # Heads are padded to round numbers; only ids the tokenizer knows can be emitted.
        self.vocabulary = min(int(model.lm_head.weight.shape[0]), max(tokenizer.get_vocab().values()) + 1)
        self.set_up(processor)

    # What families differ in.

    @staticmethod
    def config_of(config: StockConfig) -> StockConfig:
        """What of a checkpoint's config the stock model is made from."""
        return config

    @staticmethod
    def language_of(model: StockModel) -> StockModel:
        """The language model inside the stock model."""
        return model.model.language_model

    def _parts(self) -> None:
        """Find the language model and the token that stands for the video."""
        self.model.set_attn_implementation({"text_config": "sdpa", "vision_config": self.vision_attention})
        self.language: StockModel = self.language_of(self.model)
        self.visual_id = int(getattr(self.model.config, self.visual_token))
        self.placeholder: str = self.tokenizer.convert_ids_to_tokens(self.visual_id)

    def set_up(self, processor: ProcessorConfig) -> None:
        """Read what preprocessing and prompts need from the processor's and the model's configs."""

    def own_template(self) -> str:
        """The family's chat template, for checkpoints that come without one."""
        return self.chat_template

    @property
    def span(self) -> str:
        """What the rendered template has in the place of the video; all of it gives way to the video or a text."""
        return self.placeholder

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        """How many visual tokens a clip makes, without class tokens that a tower may keep; by arithmetic alone."""
        raise NotImplementedError

    def audio_tokens(self, samples: int) -> int:
        """How many tokens so many samples of a clip's sound make."""
        return 0

    def pieces(self, seen: VisionOutput) -> Sequence[str | range]:
        """What stands in the place of :attr:`span`: texts, and ranges of visual tokens, in their order."""
        return [range(len(seen))]

    def opening(self) -> list[int]:
        """Ids before the first of the template; published tokenizers of some families begin with one."""
        return []

    def positions(
        self, token_ids: torch.Tensor, seen: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Rotary positions of a prompt (L,), shaped (1, L) or (3, 1, L), and that of the first generated token.

        ``rows`` (N,) are those of the visual tokens.
        """
        return torch.arange(len(token_ids), device=self.device)[None], len(token_ids)

    def stock_inputs(self, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, object]:
        """What the stock model's own ``forward`` and ``generate`` take for the same prompt."""
        ids = prefix.token_ids[None]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.stock_pixels(pixels, prefix)}

    def stock_pixels(self, pixels: Pixels, prefix: EmbeddedPrompt) -> dict[str, object]:
        """The part of :meth:`stock_inputs` that differs between families."""
        return {"pixel_values_videos": pixels.on(self.device, self.vision_dtype)[None]}

    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Generator[None, None, VisionOutput]:
        """:meth:`see` in steps of bounded work and memory: goes on with each ``next``."""
        raise NotImplementedError

    # What they share.

    def encode_chunks(self, pixels: Pixels, tokens: int, see: Callable[[Pixels], T]) -> Generator[None, None, list[T]]:
        """What ``see`` gives for each part of a clip, step by step; arguments as of :func:`~vision.chunks`."""
        seen = []
        for part in chunks(pixels, tokens, self.model.config.vision_config, every_block=self.keeps_blocks):
            with self.looking:
                seen.append(see(part))
            yield
        return seen

    def reading_bytes(self, visual: int, tokens: int) -> tuple[int, int]:
        """See :class:`~vidspec.models.base.VideoLanguageModel`."""
        prompt = (tokens + self.levels * visual) * self.language.config.hidden_size * self.dtype.itemsize
        row = token_bytes(self.model.config.vision_config, every_block=self.keeps_blocks)
        return prompt, min(BUDGET, visual * self.folded * row)

    @property
    def device(self) -> torch.device:
        """Where prompts begin and logits are; the layers of a model split by accelerate may be elsewhere."""
        embeddings = self.language.embed_tokens
        # Of modules whose weights wait on the disk or the CPU, accelerate's hook knows the device.
        place = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
        return embeddings.weight.device if place is None else torch.device(place)

    @property
    def dtype(self) -> torch.dtype:
        return self.language.embed_tokens.weight.dtype  # type: ignore[no-any-return]

    @property
    def vision_dtype(self) -> torch.dtype:
        """Of the vision tower and what is shown to it."""
        return self._vision_dtype or self.dtype

    def set_vision_dtype(self, dtype: torch.dtype) -> None:
        """Let all of the model but its language model and head compute in another dtype."""
        inner = {module for part in (self.language, self.model.lm_head) for module in part.modules()}
        for module in self.model.modules():
            tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            for tensor in tensors if module not in inner else ():
                tensor.data = tensor.data.to(dtype) if tensor.is_floating_point() else tensor.data
        self._vision_dtype = dtype

    @property
    def layers(self) -> int:
        return len(self.language.layers)

    @property
    def decoder(self) -> FusedDecoder | StockDecoder:
        """What runs the language model's blocks; without packed weights unless :meth:`prepare` was told otherwise."""
        if self._decoder is None:
            self.prepare(packed=False)
        assert self._decoder is not None
        return self._decoder

    def prepare(
        self,
        kind: Literal["auto", "fused", "stock"] = "auto",
        *,
        packed: bool | Literal["auto"] = "auto",
        wanted: WeightFormat = None,
    ) -> None:
        """Choose the decoder, see :func:`~vidspec.engine.decoders.decoder_of`.

        Raises:
            ValueError: it cannot be fused, or its weights cannot be quantised.
        """
        if (
            kind != "stock"
            and self.device.type == "cpu"
            and unsupported_reason(self.language, self.model.lm_head) is None
        ):
            # As long as one weight is mapped from a file, the pages of those that are fused stay too.
            for weight in self.model.parameters():
                if not weight.untyped_storage().resizable():
                    weight.data = weight.data.clone()
        self._decoder = decoder_of(self.language, self.model.lm_head, kind, packed, wanted=wanted)
        self._quantised.clear()
        if isinstance(self._decoder, StockDecoder):
            self.model.lm_head = self._decoder.head  # quantised or not
        if self._decoder.name == "fused" and self.device.type == "cuda":
            torch.cuda.empty_cache()  # what the parts of fused matrices were in: others may need it

    @property
    def unquantisable_reason(self) -> str | None:
        """Why its weights cannot be quantised; None if they can."""
        return self.decoder.unquantisable_reason

    def quantised_copy(self, precision: Precision) -> Self:
        """The same model with copies of its language model's weights as codes, over the same slab; made once."""
        if precision not in self._quantised:
            other = copy.copy(self)
            what, left = f"{self.name}: a copy of its weights in {precision}", "a profile with draft.kind: model, or ar"
            left = f"draft.precision: int4, {left}" if precision == "int8" else left
            with memory_for(what, left):
                other._decoder = self.decoder.quantised_copy(precision)
            self._quantised[precision] = other
        return self._quantised[precision]

    def with_own_slab(self) -> Self:
        """The same model for passes in another thread: its sequences are in a slab of their own."""
        other = copy.copy(self)
        other._decoder = with_own_slab(self.decoder)
        return other

    def encode(self, pixels: Pixels, *, pooled: bool = False) -> VisionOutput:
        """See :class:`~vidspec.models.base.VideoLanguageModel`."""
        steps = self.encode_steps(pixels, pooled=pooled)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def prefix(
        self, seen: VisionOutput, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()
    ) -> EmbeddedPrompt:
        """The prompt as the family's template renders it, with the video's features in it."""
        before, after = self._around(prompt, system, earlier)
        pieces = self.pieces(seen)
        stretches = iter([piece for piece in pieces if isinstance(piece, range)])
        between = "".join(self.placeholder if isinstance(piece, range) else piece for piece in pieces)
        ids: list[int] = self.opening()
        rows = torch.empty(len(seen), dtype=torch.long)
        # As one text: what a tokenizer makes of a part may depend on what comes before it.
        for token in self.tokenizer.encode(before + between + after, add_special_tokens=False):
            stretch = next(stretches, None) if token == self.visual_id else None
            if stretch is None:
                ids.append(token)
                continue
            rows[stretch.start : stretch.stop] = torch.arange(len(ids), len(ids) + len(stretch))
            ids += [self.visual_id] * len(stretch)
        return self._embedded(ids, rows.to(self.device), seen)

    def template_text(self, prompt: str, system: str | None = None) -> str:
        """What the template renders, with :attr:`span` in the place of the video."""
        return self.span.join(self._around(prompt, system, ()))

    def text_ids(
        self, instead: str, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()
    ) -> list[int]:
        """Token ids of the prompt with the text ``instead`` where the video would be."""
        before, after = self._around(prompt, system, earlier)
        ids: list[int] = self.tokenizer.encode(before + instead + after, add_special_tokens=False)
        return self.opening() + ids

    def text_prefix(self, token_ids: Sequence[int]) -> EmbeddedPrompt:
        """A prompt without visual tokens, such as :meth:`text_ids` of this or of another model of its vocabulary."""
        return self._embedded(list(token_ids), torch.empty(0, dtype=torch.long, device=self.device), None)

    def render(self, messages: list[ChatMessage]) -> str:
        """What the template makes of ``messages``, up to where the answer begins; the last text is kept."""
        known, text = self._rendered
        if known != messages:
            apply = partial(
                self.tokenizer.apply_chat_template,
                messages,
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,  # of templates that know it: a caption, no reasoning before it
            )
            text = render_template(self.name, apply)
            self._rendered = messages, text
        return text

    def text_tokens(self, prompt: str, system: str | None = None, earlier: Sequence[DialogueTurn] = ()) -> int:
        """How many tokens of the prompt are no visual tokens; a few more may come between frames."""
        before, after = self._around(prompt, system, earlier)
        return len(self.opening()) + len(self.tokenizer.encode(before + after, add_special_tokens=False))

    def _around(self, prompt: str, system: str | None, earlier: Sequence[DialogueTurn]) -> tuple[str, str]:
        said = [text for exchange in earlier for text in exchange] + [prompt]
        messages: list[ChatMessage] = [
            {"role": "assistant" if number % 2 else "user", "content": [{"type": "text", "text": text}]}
            for number, text in enumerate(said)
        ]
        messages[0]["content"].insert(0, {"type": self.content})
        if system:
            if self.placeholder in system:
                raise GenerationError(f"the system prompt holds {self.placeholder}, which stands for the video")
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
        before, found, after = self.render(messages).partition(self.span)
        if not found:
            raise ModelError(f"{self.name}: its chat template has no place for a video ({self.span})")
        return before, after

    def _embedded(self, token_ids: list[int], rows: torch.Tensor, seen: VisionOutput | None) -> EmbeddedPrompt:
        ids = torch.tensor(token_ids, device=self.device)
        embeds = self.embed(ids[None]).clone()
        visual = VisualTokens(rows, rows, rows, rows, rows < 0, embeds[0, rows])  # none
        if seen is not None:
            features, (frame, row, column) = (
                seen.features.to(embeds),
                (place.to(rows) for place in (seen.frame, seen.row, seen.column)),
            )
            embeds[0, rows] = features
            deepstack = tuple(level.to(embeds) for level in seen.deepstack)
            visual = VisualTokens(rows, frame, row, column, row < 0, features, deepstack, seen.views)
        positions, following = self.positions(ids, seen, rows)
        return EmbeddedPrompt(ids, embeds, positions, visual, following)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.language.embed_tokens(ids)  # type: ignore[no-any-return]


if not TYPE_CHECKING:  # see old_names
    __getattr__ = old_names(__name__, {"Message": "ChatMessage"})
