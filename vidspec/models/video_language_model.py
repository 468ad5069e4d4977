"""The contract of model families: preprocessing, vision tower, the prompt around the video, and the decoder."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Self, TypeVar

import torch

from vidspec.engine.block_kernels import load_block_kernels
from vidspec.engine.decoder import with_own_slab
from vidspec.engine.decoders import decoder_of
from vidspec.engine.device import memory_for
from vidspec.engine.fused import FusedDecoder, unsupported_reason
from vidspec.engine.layouts import WeightFormat, lay_out_all, matrix_linears
from vidspec.engine.matrix import Matrix, Precision
from vidspec.engine.requests import Steps, run_to_completion
from vidspec.engine.stock import StockDecoder
from vidspec.models.base import (
    SAME_FAMILIES,
    EmbeddedPrompt,
    Pixels,
    StockConfig,
    StockModel,
    StockTokenizer,
    VisionOutput,
    VisualTokens,
)
from vidspec.models.frame_rules import FrameRule
from vidspec.models.fused_vision import fuse_vision_blocks
from vidspec.models.generation_rules import read_bans
from vidspec.models.memory_estimate import ClipMemory, clip_memory
from vidspec.models.model_sizes import sizes_of
from vidspec.models.preprocess import ProcessorConfig
from vidspec.models.prompt_template import PromptTemplate
from vidspec.models.request import DialogueTurn
from vidspec.models.vision import (
    EncodeFrames,
    frames_per_pass,
    register_window_attention,
    shares_passes,
    split_pixels,
    tower_budget,
)
from vidspec.video.base import Clip

T = TypeVar("T")


class StockParts:
    """A stock model of ``transformers``: the parts that every family has, and where they are.

    Attributes:
        model: the stock model; ``language`` is the language model inside it.
        template: renders its prompts.
    """

    name: str
    model: StockModel
    language: StockModel
    template: PromptTemplate
    #: The published chat template, reduced to one video and text.
    chat_template: ClassVar[str]

    @staticmethod
    def config_of(config: StockConfig) -> StockConfig:
        """Return the part of a checkpoint's config that the stock model is built from."""
        return config

    @staticmethod
    def language_of(model: StockModel) -> StockModel:
        """Return the language model inside the stock model."""
        return model.model.language_model

    def default_template(self) -> str:
        """Return the family's chat template, for checkpoints without one."""
        return self.chat_template

    def rename(self, name: str) -> None:
        """Set the name that errors show."""
        self.name = self.template.name = name

    @property
    def device(self) -> torch.device:
        """Device of embeddings and logits; layers of a model split by accelerate may be elsewhere."""
        embeddings = self.language.embed_tokens
        # Offloaded weights are on the meta device or the CPU; accelerate's hook knows the device they run on.
        execution_device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
        return embeddings.weight.device if execution_device is None else torch.device(execution_device)

    @property
    def dtype(self) -> torch.dtype:
        return self.language.embed_tokens.weight.dtype  # type: ignore[no-any-return]

    @property
    def layers(self) -> int:
        return len(self.language.layers)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (..., hidden) of token ids."""
        return self.language.embed_tokens(ids)  # type: ignore[no-any-return]


class VisionAdapter(StockParts):
    """The way of a clip through the vision tower: visual tokens counted, pixels prepared, features encoded."""

    #: True if the stock model keeps the hidden states of every tower block.
    keeps_blocks: ClassVar[bool] = False
    #: Rule for the number of visual tokens; None in a family that overrides :meth:`visual_tokens`.
    frame_rule: FrameRule | None = None
    #: Maximum seconds of sound; None for families without audio input.
    max_sound_s: float | None = None
    #: Guards the tower: several threads encode clips, and some families read it through hooks.
    vision_lock: threading.Lock
    _processor: ProcessorConfig

    def set_up(self, processor: ProcessorConfig) -> None:
        """Read the settings of preprocessing and prompts from the processor's and the model's configs.

        The video's text and the leading ids of :attr:`template` are set here where they are not the defaults.
        """

    @classmethod
    def frame_rule_of(cls, config: StockConfig, processor: ProcessorConfig) -> FrameRule | None:
        """Return the rule for the number of visual tokens, from the stock model's and the processor's configs."""
        return None

    def visual_tokens(self, frames: int, height: int, width: int) -> int:
        """Return the number of visual tokens of a clip, class tokens excluded, without running the tower."""
        if self.frame_rule is None:
            raise NotImplementedError
        return self.frame_rule.visual_tokens(frames, height, width)

    def audio_tokens(self, samples: int) -> int:
        """Return the number of audio tokens of so many samples."""
        return 0

    def preprocess(self, clip: Clip) -> Pixels:
        """Return the input of the vision tower, and of the audio tower if there is one."""
        raise NotImplementedError

    def has_pixels_of(self, other: VisionAdapter) -> bool:
        """Return True if :meth:`preprocess` of both models gives the same; False for families with audio input."""
        if type(self) is not type(other) or self.device != other.device or self.max_sound_s is not None:
            return False
        towers = self.model.config.vision_config, other.model.config.vision_config
        sizes = [[getattr(tower, name, None) for name in ("image_size", "patch_size")] for tower in towers]
        return (self._processor, self.frame_rule, sizes[0]) == (other._processor, other.frame_rule, sizes[1])

    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        """Run :meth:`encode` in requests of bounded work and memory."""
        raise NotImplementedError

    def encode_chunks(
        self, pixels: Pixels, tokens: int, encode: Callable[[Pixels, bool], T], pooled: bool
    ) -> Steps[list[T]]:
        """Run ``encode`` on each part of :func:`~vision.split_pixels`, one per request, and return the results.

        Args:
            pixels: the clip.
            tokens: rows of the tower's hidden states per frame.
            encode: see :class:`~vision.EncodeFrames`.
            pooled: its second argument.
        """
        outputs = []
        config, budget = self.model.config.vision_config, tower_budget(self.device)
        size = frames_per_pass(pixels, tokens, config, budget, every_block=self.keeps_blocks)
        most = size if shares_passes(self.device) else 0
        for part in split_pixels(pixels, size):
            outputs.append((yield EncodeFrames(encode, part, pooled, most, self.vision_lock)))
        return outputs

    def encode(self, pixels: Pixels, *, pooled: bool = False) -> VisionOutput:
        """Return the visual tokens of one clip.

        Args:
            pixels: from :meth:`preprocess`.
            pooled: average the tower's features 2 x 2 just before the projector (TABED's context P).
        """
        return run_to_completion(self.encode_steps(pixels, pooled=pooled))


class VideoLanguageModel(VisionAdapter):
    """A stock ``transformers`` model with its vision tower and its prompts; one subclass per family.

    Args:
        name: the name the user gave.
        model: the stock model, on its device and in its dtype.
        tokenizer: a fast tokenizer.
        processor: the video (or image) processor's config.
        template: a chat template that takes lists of ``content`` and ``text`` contents; the family's own if None.
    """

    #: Model type of the checkpoint.
    family: str
    #: Content type of the video in the template.
    content: ClassVar[str] = "video"
    #: Config key of the placeholder token's id.
    visual_token: ClassVar[str] = "video_token_id"
    #: Attention implementation of the vision tower, as ``transformers`` names it; None without a tower.
    vision_attention: ClassVar[str | None] = "sdpa"
    #: True if the rows of the video see each other, so one pass reads them all.
    has_bidirectional_rows: ClassVar[bool] = False
    #: Notices for users of this checkpoint, a line each.
    notes: tuple[str, ...] = ()
    #: Precision of the stored codes its blocks kept; None if none.
    codes: Precision | None = None

    def __init__(
        self,
        name: str,
        model: StockModel,
        tokenizer: StockTokenizer,
        processor: ProcessorConfig,
        template: str | None = None,
    ) -> None:
        self.name, self.source, self.model, self.tokenizer = name, name, model.eval(), tokenizer
        if SAME_FAMILIES.get(kind := str(model.config.model_type)) == self.family:
            self.family = kind
        self._decoder: FusedDecoder | StockDecoder | None = None
        self._quantised: dict[Precision, Self] = {}
        self.vision_lock = threading.Lock()
        self._init_parts()
        #: Dtype of the vision tower and its input.
        self.vision_dtype = self.dtype
        source = template or self.default_template()
        self.template = PromptTemplate(name, tokenizer, source, self.content, self.placeholder)
        ends = model.generation_config.eos_token_id if model.generation_config else None
        ends = self.language.config.eos_token_id if ends is None else ends
        self.eos = frozenset([ends] if isinstance(ends, int) else ends or [tokenizer.eos_token_id])
        # Heads are padded to round numbers; only ids the tokenizer knows can be emitted.
        self.vocabulary = min(int(model.lm_head.weight.shape[0]), max(tokenizer.get_vocab().values()) + 1)
        self.known_ids = int(self.language.embed_tokens.weight.shape[0])
        #: Tokens that the checkpoint bans; those that it bans everywhere have no share in the decoder's logits.
        self.bans = read_bans(name, model.generation_config, self.eos, self.vocabulary)
        self.frame_rule = self.frame_rule_of(model.config, processor)
        self._processor = processor
        self.set_up(processor)

    def _init_parts(self) -> None:
        """Set the attention implementations, the language model and the placeholder token."""
        register_window_attention()
        tower = {} if self.vision_attention is None else {"vision_config": self.vision_attention}
        self.model.set_attn_implementation({"text_config": "sdpa", **tower})
        self.language = self.language_of(self.model)
        self.visual_id = int(getattr(self.model.config, self.visual_token))
        self.placeholder: str = self.tokenizer.convert_ids_to_tokens(self.visual_id)

    def prompt_pieces(self, vision: VisionOutput) -> Sequence[str | range]:
        """Return the texts and ranges of visual tokens in the place of the video, in prompt order."""
        return [range(len(vision))]

    def positions(
        self, token_ids: torch.Tensor, vision: VisionOutput | None, rows: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        """Return the rotary positions of a prompt (L,), (1, L) or (3, 1, L), and that of the first generated token.

        ``rows`` (N,) are the rows of the visual tokens.
        """
        return torch.arange(len(token_ids), device=self.device)[None], len(token_ids)

    def prefix(
        self,
        vision: VisionOutput,
        prompt: str,
        system: str | None = None,
        earlier: Sequence[DialogueTurn] = (),
        *,
        begun: str = "",
    ) -> EmbeddedPrompt:
        """Return the embedded prompt: the rendered template with the video's features in it, and an answer so begun."""
        before, after = self.template.around_video(prompt, system, earlier)
        pieces = self.prompt_pieces(vision)
        ranges = iter([piece for piece in pieces if isinstance(piece, range)])
        middle = "".join(self.placeholder if isinstance(piece, range) else piece for piece in pieces)
        ids = list[int]()
        rows = torch.empty(len(vision), dtype=torch.long)
        # Tokenized as one text: the tokens of a part may depend on the text before it.
        for token in self.template.encode(before + middle + after + begun):
            visual_range = next(ranges, None) if token == self.visual_id else None
            if visual_range is None:
                ids.append(token)
                continue
            rows[visual_range.start : visual_range.stop] = torch.arange(len(ids), len(ids) + len(visual_range))
            ids += [self.visual_id] * len(visual_range)
        return self._embed_prompt(ids, rows.to(self.device), vision)

    def text_prefix(self, token_ids: Sequence[int]) -> EmbeddedPrompt:
        """Embed a prompt without visual tokens; ids of another model of the same vocabulary will do."""
        return self._embed_prompt(list(token_ids), torch.empty(0, dtype=torch.long, device=self.device), None)

    def _embed_prompt(self, token_ids: list[int], rows: torch.Tensor, vision: VisionOutput | None) -> EmbeddedPrompt:
        ids = torch.tensor(token_ids, device=self.device)
        embeds = self.embed(ids[None]).clone()
        visual = VisualTokens(rows, rows, rows, rows, rows < 0, embeds[0, rows])  # none
        if vision is not None:
            frame, row, column = (place.to(rows) for place in (vision.frame, vision.row, vision.column))
            embeds[0, rows] = features = vision.features.to(embeds)
            deepstack = tuple(level.to(embeds) for level in vision.deepstack)
            visual = VisualTokens(rows, frame, row, column, row < 0, features, deepstack, vision.views)
        positions, following = self.positions(ids, vision, rows)
        return EmbeddedPrompt(ids, embeds, positions, visual, following)

    @property
    def decoder(self) -> FusedDecoder | StockDecoder:
        """Decoder of the language model; :meth:`prepare` with ``packed=False`` runs on first use."""
        if self._decoder is None:
            self.prepare(packed=False)
        assert self._decoder is not None
        return self._decoder

    @property
    def matrices(self) -> list[Matrix]:
        """Matrices of the decoder, and of the towers' layers that are not as stock ones store them."""
        return [*dict.fromkeys([*self.decoder.matrices, *matrix_linears([self.model])])]

    def prepare(
        self,
        kind: Literal["auto", "fused", "stock"] = "auto",
        *,
        packed: bool | Literal["auto"] = "auto",
        wanted: WeightFormat = None,
    ) -> None:
        """Choose the decoder, see :func:`~vidspec.engine.decoders.decoder_of`, and the layout of all weights.

        On GPUs that run our kernels the blocks of the vision tower are fused too.

        Raises:
            ValueError: it cannot be fused, or its weights cannot be quantised.
        """
        if (
            kind != "stock"
            and self.device.type == "cpu"
            and unsupported_reason(self.language, self.model.lm_head) is None
        ):
            # One weight still mapped from a file keeps the pages of the fused ones resident.
            for weight in self.model.parameters():
                if not weight.untyped_storage().resizable():
                    weight.data = weight.data.clone()
        self._decoder = decoder_of(self.language, self.model.lm_head, kind, packed, wanted=wanted)
        if self.bans.always:
            self._decoder.suppressed = torch.tensor(self.bans.always, device=self.device)
        self._quantised.clear()
        lay_out_all(self.model, packed, [self.language, self.model.lm_head])
        if (kernels := load_block_kernels(self.device)) is not None:
            fuse_vision_blocks(self.model, kernels)
        if isinstance(self._decoder, StockDecoder):
            self.model.lm_head = self._decoder.head  # quantised or not
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # memory of the unfused matrices

    def quantised_copy(self, precision: Precision) -> Self:
        """Return the model with quantised copies of the language model's weights, over the same slab; cached."""
        if precision not in self._quantised:
            other = copy.copy(self)
            other._quantised = {}  # in this model's it would refer to itself
            alternatives = "a profile with draft.kind: model, or ar"
            alternatives = f"draft.precision: int4, {alternatives}" if precision == "int8" else alternatives
            with memory_for(f"{self.name}: a copy of its weights in {precision}", alternatives):
                other._decoder = self.decoder.quantised_copy(precision)
            self._quantised[precision] = other
        return self._quantised[precision]

    def with_own_slab(self) -> Self:
        """Return the model with a slab of its own, for passes in another thread."""
        other = copy.copy(self)
        other._decoder = with_own_slab(self.decoder)
        return other

    def clip_memory(self, size: tuple[int, int, int], visual: int, tokens: int, room: int) -> ClipMemory:
        """Estimate the memory of a clip on the model's device.

        Args:
            size: number of frames, their height and width.
            visual: number of visual and audio tokens.
            tokens: number of prompt tokens.
            room: number of tokens after the prompt.
        """
        rows = (0, 0) if self.frame_rule is None or not visual else self.frame_rule.tower_rows(*size)
        sizes = sizes_of(type(self), self.model, self.decoder, self.device)
        return clip_memory(sizes, visual=visual, tokens=tokens, room=room, tower_rows=rows)
