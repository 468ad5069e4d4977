"""A language model without vision, as a draft that is shown no video (OnSD of TABED App. I.2); it is never a target."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from vidspec.errors import ModelError
from vidspec.models.adapter import Adapter
from vidspec.models.base import Pixels, Seen
from vidspec.models.identity import TEXT
from vidspec.models.llava import VICUNA
from vidspec.models.qwen2_5_vl import CHAT_TEMPLATE as QWEN2
from vidspec.models.qwen3_vl import CHAT_TEMPLATE as QWEN3

if TYPE_CHECKING:
    from vidspec.video import Clip

__all__ = ["TYPES", "TextModel"]

_QWEN_SPAN = "<|vision_start|><|video_pad|><|vision_end|>"
#: By the model's type: the template of the family whose targets it drafts for, and what that has in a video's place.
TYPES = {
    "qwen2": (QWEN2, _QWEN_SPAN),
    "qwen3": (QWEN3, _QWEN_SPAN),
    "llama": (VICUNA.replace("== 'image'", "== 'video'"), "<image>"),
}


class TextModel(Adapter):
    """A ``Qwen2ForCausalLM``, ``Qwen3ForCausalLM`` or ``LlamaForCausalLM``.

    Its prompt is that of the video models of its line, a text in the place of the video, whatever chat template it
    comes with: a draft should continue the text that the target continues.
    """

    family: ClassVar[str] = TEXT

    @staticmethod
    def language_of(model: Any) -> Any:
        return model.model

    def _parts(self) -> None:
        self.language: Any = self.language_of(self.model)
        self.chat, self.placeholder = TYPES[self.language.config.model_type]

    def own_template(self) -> str:
        return self.chat

    def opening(self) -> list[int]:
        begins = self.tokenizer.bos_token_id
        return [begins] if begins is not None and self.tokenizer.encode("?")[:1] == [begins] else []

    def preprocess(self, clip: Clip) -> Pixels:
        self._blind()

    def seeing(self, pixels: Pixels, *, pooled: bool = False) -> Generator[None, None, Seen]:
        self._blind()

    def _blind(self) -> NoReturn:
        raise ModelError(f"{self.name} is a language model without vision", hint="draft.kind: text_only")
