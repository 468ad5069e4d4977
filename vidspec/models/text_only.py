"""Language models without vision as drafts that do not see the video (OnSD of TABED App. I.2); never a target."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from vidspec.engine.requests import Steps
from vidspec.errors import ModelError
from vidspec.models.base import Pixels, StockModel, VisionOutput
from vidspec.models.identity import TEXT
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.video.base import Clip

#: Supported model types.
TYPES = frozenset({"qwen2", "qwen3", "llama"})


class TextModel(VideoLanguageModel):
    """A ``Qwen2ForCausalLM``, ``Qwen3ForCausalLM`` or ``LlamaForCausalLM``.

    It reads the token ids of the target's prompt, with a text in the place of the video, so that it continues the same
    prompt. Its own chat template is not used.
    """

    family: ClassVar[str] = TEXT
    chat_template: ClassVar[str] = ""

    @staticmethod
    def language_of(model: StockModel) -> StockModel:
        return model.model

    def _init_parts(self) -> None:
        self.language: StockModel = self.language_of(self.model)
        self.placeholder = ""

    def preprocess(self, clip: Clip) -> Pixels:
        self._raise_no_vision()

    def encode_steps(self, pixels: Pixels, *, pooled: bool = False) -> Steps[VisionOutput]:
        self._raise_no_vision()

    def _raise_no_vision(self) -> NoReturn:
        raise ModelError(f"{self.name} is a language model without vision", hint="set draft.kind: text_only")
