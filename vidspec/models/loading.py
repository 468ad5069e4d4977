"""Load models by hub id or folder through ``transformers``, and check that two of them make a pair.

:mod:`vidspec.models.checkpoint_config` reads their configs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from vidspec import memory
from vidspec.engine.device import memory_for
from vidspec.engine.matrix import Precision
from vidspec.engine.requests import Steps
from vidspec.errors import DeviceError, ModelError
from vidspec.models.base import Pixels, StockConfig, StockModel, StockTokenizer, VisionOutput, families
from vidspec.models.checkpoint_config import checkpoint_errors, read_config, weight_source
from vidspec.models.hub import retries_offline, show_downloads
from vidspec.models.identity import TEXT, is_related, model_identity, tokenizer_mismatch
from vidspec.models.lora import merge_lora
from vidspec.models.placement import Placement, fit_placement
from vidspec.models.quantised import KeptCodes, dequantised_tensors, weight_sizes
from vidspec.models.quantization_config import quantization_config, without_quantization
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import (
    ChatTemplate,
    check_plain,
    check_report,
    optional_file,
    read_processor,
    read_template,
    shard_files,
    stored_tensors,
    tokenizer_template,
)
from vidspec.video.base import Clip

_PAIRS = {"embedded": "pair", "embedded-qwen": "pair_qwen"}
#: Arguments of ``from_pretrained`` that run no code of a repository and read no pickle.
SAFE: Mapping[str, bool] = {
    "trust_remote_code": False,
    "use_safetensors": True,
    "weights_only": True,
    "ignore_mismatched_sizes": True,  # reported in the loading info, and refused there
    "output_loading_info": True,
}


def embedded_folder(pair: str, role: str) -> Path:
    """Return the folder of the ``target`` or ``draft`` of the built-in pair ``embedded`` or ``embedded-qwen``."""
    return Path(__file__).parents[1] / "embedded" / _PAIRS[pair] / role


@retries_offline
def load_model(name: str, where: Placement, *, text: bool = False) -> VideoLanguageModel:
    """Load a model of a supported family; code in its repository is never run.

    Args:
        name: hub id, or a folder written by ``save_pretrained``.
        where: device, dtype and decoder.
        text: also accept a language model without vision, for a draft that does not see the video.

    Raises:
        ModelError: not found (with the places searched and a download command), unreadable, or of another family.
        DeviceError: the decoder does not support the model, or out of memory.
    """
    import transformers

    config = read_config(name, text=text)
    show_downloads()
    source, family = weight_source(name), str(config.model_type)
    text_only = family not in families
    kind = adapter_class(family)
    with checkpoint_errors(name):
        if not where.settled:
            empty = empty_model(kind, config, where.dtype)
            where = fit_placement(
                where, *weight_sizes(empty, kind.language_of(empty), quantization_config(config), where)[:2]
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        tokenizer.encode("?")  # some tokenizer settings are read with the first text
        processor, template = ({}, None) if text_only else (read_processor(name, source), read_template(source))
        model, codes = _load_with_codes(name, source, where, kind, config, text=text_only)
        if where.adapter is not None:
            merge_lora(where.adapter, name, model)
        adapter = _build_adapter(kind, name, model, tokenizer, processor, template)
        adapter.codes = codes
        if where.vision is not None:
            set_vision_dtype(adapter, where.vision)
    if getattr(config, "audio_config", None) is not None and adapter.max_sound_s is None:
        adapter.notes += (f"{name}: its audio branch is left out; it describes the frames, not the sound",)
    prepare_decoder(adapter, where)
    return adapter


def _build_adapter(
    kind: type[VideoLanguageModel],
    name: str,
    model: StockModel,
    tokenizer: StockTokenizer,
    processor: dict[str, Any],
    template: ChatTemplate | None,
) -> VideoLanguageModel:
    """Build an adapter with the processor's chat template, else the tokenizer's if it can place a video, else its own.

    Older tools keep the template of a fine-tune in the tokenizer's config only. Others keep one for text there.
    """
    if template is not None:
        adapter = kind(name, model, tokenizer, processor, template.text)
        adapter.template.origin = template.origin
        if template.unread is not None:
            adapter.notes += (f"{name}: its chat template is that of {template.origin}, not of {template.unread}",)
        return adapter
    if processor and (template := tokenizer_template(tokenizer)) is not None:
        with suppress(ModelError):
            adapter = kind(name, model, tokenizer, processor, template.text)
            adapter.template.rendered("?")
            adapter.template.origin = template.origin
            return adapter
    return kind(name, model, tokenizer, processor)


def adapter_class(family: str) -> type[VideoLanguageModel]:
    """Return the adapter of a ``model_type``; one without vision if it is no family's."""
    return families.get(family) if family in families else TextModel


def empty_model(kind: type[VideoLanguageModel], config: StockConfig, dtype: torch.dtype) -> StockModel:
    """Build the stock model of a config on torch's meta device, without weights."""
    import transformers

    text = str(config.model_type) not in families
    automatic: Any = transformers.AutoModelForCausalLM if text else transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        return automatic.from_config(kind.config_of(config), dtype=dtype, trust_remote_code=False)


def prepare_decoder(adapter: VideoLanguageModel, where: Placement) -> None:
    """Choose the decoder of a loaded model.

    cuDNN's attention is turned off on CUDA: it plans again for every key length, in every thread.

    Raises:
        DeviceError: a fused decoder or quantised weights were requested, and the model supports neither.
    """
    if where.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        if where.dtype is torch.float32:  # convolutions of vision towers round to TF32 otherwise
            torch.backends.cudnn.allow_tf32 = False
    alternatives = (
        ["models.packed: false", "--dtype bfloat16"] if where.device.type == "cpu" else ["models.device_map: auto"]
    )
    if where.weights != "int4":
        alternatives.append("models.weights: int4")
    if where.decoder != "stock":
        alternatives.append("models.decoder: stock")
    hint = f"take {', '.join([*alternatives, 'or a smaller model'])}"
    try:
        with memory_for(f"{adapter.name}: laying out its weights on {where.device}", hint):
            adapter.prepare(where.decoder, packed=where.packed, wanted=where.weights)
    except ValueError as error:
        option, alternative = (
            ("models.decoder fused", "models.decoder: auto")
            if where.decoder == "fused"
            else (f"weights as {where.weights}", "models.weights: null and draft.precision: as-target")
        )
        raise DeviceError(
            f"{option}: {adapter.name}: {error}", hint=f"the nearest valid choice is {alternative}"
        ) from error
    memory.release_memory()  # weights in the files' dtype and layout


def _load_with_codes(
    name: str, source: str, where: Placement, kind: type[VideoLanguageModel], config: StockConfig, *, text: bool = False
) -> tuple[StockModel, Precision | None]:
    """Load the stock model of a config on its devices; a causal language model if ``text``.

    Weights stored as codes are dequantised, or kept as codes by the blocks; the precision of kept codes is returned.
    """
    import transformers

    settings, config = quantization_config(config), kind.config_of(config)
    options: dict[str, object] = {}
    if where.quantization is not None:
        _require_package("bitsandbytes", f"models.quantization {where.quantization}")
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_8bit=where.quantization == "8bit",
            load_in_4bit=where.quantization == "4bit",
            bnb_4bit_compute_dtype=where.dtype,
            bnb_4bit_quant_type="nf4",
        )
    if where.device_map is not None or options:
        _require_package("accelerate", "models.device_map" if where.device_map is not None else "models.quantization")
        split = where.device_map
        options["device_map"] = (
            {"": str(where.device)} if split is None else split if isinstance(split, str) else {**split}
        )
    automatic: Any = transformers.AutoModelForCausalLM if text else transformers.AutoModelForImageTextToText
    if settings is None:
        return load_weights(name, source, automatic, where, None, options, config=config), None
    config = without_quantization(config)
    with torch.device("meta"):  # loading without files needs the model's own class, not an auto class
        own = type(automatic.from_config(config, trust_remote_code=False))
    # Fetched before the weights: a hub that fails must not change the end tokens.
    generation = optional_file(source, "generation_config.json")
    load = partial(load_weights, name, None, own, where, None, options, config=config)
    kept = KeptCodes(where)
    attach = partial(kept.attach, language=kind.language_of)
    try:
        tensors = dequantised_tensors(stored_tensors(source), settings, kept if where.keeps_codes else None)
        check_plain(name, tensors)
        model = load(attach, state_dict=tensors)
    except LookupError:  # the family merges weights while loading
        kept = KeptCodes(where)
        model = load(state_dict=dequantised_tensors(stored_tensors(source), settings))
    if generation is not None:  # otherwise it follows from the config
        model.generation_config = transformers.GenerationConfig.from_pretrained(generation.parent)
    return model, kept.precision


def load_weights(
    name: str,
    source: str | None,
    automatic: Any,
    where: Placement,
    hint: str | None,
    options: Mapping[str, object],
    finish: Callable[[StockModel], None] = lambda model: None,
    **known: object,
) -> StockModel:
    """Load a stock model with its weights, on its devices.

    Args:
        name: the name the user gave.
        source: its hub id or folder; None if ``known`` has its ``state_dict``.
        automatic: the class of ``transformers`` that loads it.
        where: device and dtype.
        hint: for missing weights.
        options: device placement and quantization; empty for ``where.device``.
        finish: called with the model before it is moved to the device.
        known: further arguments of ``from_pretrained``.

    Raises:
        ModelError: weights are missing, of another shape, or unused.
        DeviceError: out of memory.
    """
    place = "on all devices together" if where.device_map is not None else f"on {where.device}"
    alternatives = "--dtype bfloat16, models.device_map: auto, models.quantization: 4bit, or a smaller model"
    with memory_for(f"{name} does not fit {place}", alternatives):
        if source is not None:
            shard_files(source)
        model, info = automatic.from_pretrained(source, dtype=where.dtype, **SAFE, **options, **known)
        if source is not None:
            check_plain(name, stored_tensors(source))
        check_report(name, info, hint)
        finish(model)
        return model if options else model.to(where.device)


def _require_package(package: str, key: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise DeviceError(f"{key}: {package} is not installed", hint=f"pip install {package}")


def check_pair(target: VideoLanguageModel, draft: VideoLanguageModel) -> None:
    """Refuse a pair with unrelated families, different tokenizers or different vocabularies.

    A language model of the same vocabulary may draft for any family if it does not see the video.

    Heads padded to different sizes are fine: both models' logits are cut to the tokenizer's ids. LLaVA-1.5 and
    LLaVA-NeXT may draft for each other, as in TABED; their visual tokens differ, so pruning does not carry over.

    Raises:
        ModelError: names the difference.
    """
    if not is_related(target.family, draft.family):
        raise ModelError(f"target {target.name} is of family {target.family}, draft {draft.name} of {draft.family}")
    if target.tokenizer is not draft.tokenizer:
        ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
        if ours != theirs:
            raise tokenizer_mismatch(
                model_identity(target), model_identity(draft), _vocabulary_difference(ours, theirs)
            )
    if target.vocabulary != draft.vocabulary:
        raise ModelError(
            f"heads of {target.name} and {draft.name} share no common vocabulary "
            f"({target.vocabulary} and {draft.vocabulary} ids)",
            kind="tokenizer",
        )


def _vocabulary_difference(ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """Return how many entries of two vocabularies are the same, and the first that is not."""
    alike = len(ours.items() & theirs.items())
    token, _ = min(ours.items() ^ theirs.items(), key=lambda entry: (entry[1], entry[0]))
    places = " and ".join(str(words.get(token, "absent")) for words in (ours, theirs))
    return f"; {alike} entries are the same, the first other one is {token!r}, with the ids {places}"


def set_vision_dtype(adapter: VideoLanguageModel, dtype: torch.dtype) -> None:
    """Cast everything but the language model and head to another dtype."""
    language_modules = {module for part in (adapter.language, adapter.model.lm_head) for module in part.modules()}
    for module in adapter.model.modules():
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        for tensor in tensors if module not in language_modules else ():
            tensor.data = tensor.data.to(dtype) if tensor.is_floating_point() else tensor.data
    adapter.vision_dtype = dtype


class TextModel(VideoLanguageModel):
    """A ``Qwen2ForCausalLM``, ``Qwen3ForCausalLM`` or ``LlamaForCausalLM``; never a target.

    As the draft of OnSD (TABED App. I.2) it reads the token ids of the target's prompt, with a text in the place of the
    video, so that it continues the same prompt. Its own chat template is not used.
    """

    family = TEXT
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
