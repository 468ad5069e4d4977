"""Captions of a single frame, for the draft context that has a text instead of the video (C of TABED 6.2 and App. D).

The captioner is a hub model in ``transformers``' own classes, or the draft model itself. It runs once per clip,
concurrently with the target's prefill unless both would share one core or one device.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from vidspec.engine.device import CoreSharing
from vidspec.engine.forward import Engine
from vidspec.engine.requests import Chain, PrefillPrompt, Steps, run_to_completion
from vidspec.errors import ModelError
from vidspec.models.checkpoint_config import any_config, checkpoint_errors, weight_source
from vidspec.models.detokenizer import CLOSING_TAG, split_reasoning, token_decoder
from vidspec.models.hub import retries_offline, show_downloads
from vidspec.models.loading import load_weights
from vidspec.models.placement import Placement
from vidspec.models.prompt_template import render_template

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import BatchFeature

    from vidspec.models.base import StockModel
    from vidspec.models.video_language_model import VideoLanguageModel
    from vidspec.video import Clip

#: Maximum new tokens.
LONGEST = 32
#: Prompts for instruction models; the built-in ones know the first from their training.
VIDEO_PROMPT, IMAGE_PROMPT = "Caption this video.", "Describe this image in one short sentence."
#: Task prompts of families without instructions (Florence-2).
TASKS = {"florence2": "<CAPTION>"}


class ImageCaptioner(ABC):
    """Captioner of a clip in one sentence.

    Args:
        beside: True if threads other than the one that runs target and draft passes call it; calls are serialised.

    Attributes:
        sharing: lets the thread of those passes leave it a core meanwhile.
    """

    def __init__(self, *, beside: bool) -> None:
        self.beside = beside
        self.sharing = CoreSharing(lambda threads: max(1, threads - 1))
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the record."""

    @abstractmethod
    def __call__(self, clip: Clip) -> str:
        """Return one line, possibly empty."""

    def steps(self, clip: Clip) -> Steps[str]:
        """Run the captioner as engine steps."""
        yield from ()
        return self(clip)


def middle_frame(clip: Clip) -> Clip:
    """Return a clip of the middle frame."""
    middle = slice(len(clip.frames) // 2, len(clip.frames) // 2 + 1)
    return replace(clip, frames=clip.frames[middle], timestamps=clip.timestamps[middle])


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    line = " ".join(text.split())
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]


class DraftCaptioner(ImageCaptioner):
    """Captioner that runs the draft model on the middle frame; greedy, at most 32 tokens, without reasoning.

    Args:
        model: the draft model.
        beside: True if it runs in other threads; it then shares only the weights with the draft's passes.
    """

    def __init__(self, model: VideoLanguageModel, *, beside: bool = False) -> None:
        super().__init__(beside=beside)
        self.engine = Engine(model.with_own_slab() if beside else model)

    @property
    def name(self) -> str:
        return self.engine.model.name

    def __call__(self, clip: Clip) -> str:
        with self._lock:
            return run_to_completion(self.steps(clip))

    def steps(self, clip: Clip) -> Steps[str]:
        model = self.engine.model
        begun = f"\n{CLOSING_TAG}\n\n" if model.template.thinks else ""
        prefix = model.prefix(model.encode(model.preprocess(middle_frame(clip))), VIDEO_PROMPT, begun=begun)
        read = yield PrefillPrompt(self.engine, prefix, LONGEST, lane="draft")
        tokens, decode = list[int](), token_decoder(model.tokenizer)
        text, token = "", int(read.logits.argmax())
        while token not in model.eos:
            tokens.append(token)
            text = split_reasoning(decode(tokens), thinks=False).answer or ""
            if len(tokens) == LONGEST or text.rstrip().endswith((".", "!", "?")):
                break
            (token,) = yield Chain(self.engine, read.span, [token], 1)
        return first_sentence(text)


class HubCaptioner(ImageCaptioner):
    """Captioner that runs an image-text-to-text model, such as BLIP, GIT or Florence-2, on the middle frame.

    Args:
        name: the name the user gave.
        model: the stock model, on its device.
        processor: its stock processor.
    """

    def __init__(self, name: str, model: StockModel, processor: StockModel) -> None:
        super().__init__(beside=True)
        self._name, self.model, self.processor = name, model.eval(), processor
        self._prompt: str | None = None

    @property
    def name(self) -> str:
        return self._name

    @torch.inference_mode()
    def __call__(self, clip: Clip) -> str:
        inputs = self._inputs(middle_frame(clip).frames[0]).to(self.model.device, self.model.dtype)
        prompt_length = (
            0 if self.model.config.is_encoder_decoder or "input_ids" not in inputs else inputs["input_ids"].shape[1]
        )
        with self._lock:
            ids = self.model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False, num_beams=1)
        return first_sentence(self.processor.batch_decode(ids[:, prompt_length:], skip_special_tokens=True)[0])

    def _inputs(self, frame: NDArray[np.uint8]) -> BatchFeature:
        texts: dict[str, str] = {}
        if task := TASKS.get(self.model.config.model_type):
            texts = {"text": task}
        elif getattr(self.processor, "chat_template", None):
            content = [{"type": "image"}, {"type": "text", "text": IMAGE_PROMPT}]
            messages = [{"role": "user", "content": content}]
            if self._prompt is None:
                apply = self.processor.apply_chat_template
                self._prompt = render_template(self.name, apply, messages, add_generation_prompt=True)
            texts = {"text": self._prompt}
        inputs: BatchFeature = self.processor(images=frame, return_tensors="pt", **texts)
        return inputs


@retries_offline
def load_image_captioner(name: str, where: Placement) -> HubCaptioner:
    """Load a captioning model.

    Args:
        name: hub id, or a folder written by ``save_pretrained``.
        where: device and dtype.

    Raises:
        ModelError: not found, unreadable, or not an image-to-text model; code of the repository is never run.
        DeviceError: out of memory.
    """
    import transformers

    show_downloads()
    config, source = any_config(name), weight_source(name)
    auto_class: Any = transformers.AutoModelForImageTextToText
    if type(config) not in auto_class._model_mapping:
        raise ModelError(
            f"{name}: models of type {config.model_type} caption no images",
            hint="name one such as Salesforce/blip-image-captioning-base or florence-community/Florence-2-large-ft",
            kind="family",
        )
    hint = "weights laid out for a repository's own code do not fit transformers' classes"
    with checkpoint_errors(name):
        processor = transformers.AutoProcessor.from_pretrained(source, trust_remote_code=False)
        model = load_weights(name, source, auto_class, where, hint, {})
    return HubCaptioner(name, model, processor)
