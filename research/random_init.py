"""Models of a given config with random weights and no tokenizer, for times that do not depend on weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vidspec.errors import DeviceError, ModelError
from vidspec.models.base import families
from vidspec.models.checkpoint_config import check_kernels, load_error, unsupported_error
from vidspec.models.loading import prepare_decoder
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel


class _NoTokenizer:
    """Placeholder for an adapter's tokenizer: every id is a token, and no text can be encoded."""

    eos_token_id = 0

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return {"": self.vocabulary - 1}

    def apply_chat_template(self, *_: object, **__: object) -> str:
        raise NotImplementedError("a model of random weights reads no text")

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError("a model of random weights reads no text")

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        return [str(one) for one in ids] if isinstance(ids, list) else str(ids)


def random_model(config: str | Path, where: Placement, like: Path | None = None) -> VideoLanguageModel:
    """Create a model of a config's size on its device.

    Args:
        config: ``config.json``, or a folder that holds one; no weights are read.
        where: device, dtype and decoder.
        like: folder of a tokenizer with fewer ids, whose prompts it reads; None for none.

    Raises:
        ModelError: there is no such file, or its family is not supported.
        DeviceError: memory does not suffice.
    """
    import transformers

    path = Path(config).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{config}: no config.json there", hint="name a config.json, or a folder that holds one")
    try:
        read = transformers.AutoConfig.from_pretrained(str(file), trust_remote_code=False)
    except Exception as error:  # any error that the library raises here is the config's fault
        raise load_error(str(file), error) from error
    check_kernels(str(config), str(file))
    family = str(read.model_type)
    if family not in families.names():
        raise unsupported_error(str(config), family)
    automatic: Any = transformers.AutoModelForImageTextToText
    kind: Any = families.get(family)
    try:
        with torch.device(where.device):
            model = automatic.from_config(kind.config_of(read), dtype=where.dtype, trust_remote_code=False)
        model = model.to(where.device)
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"{config} does not fit on {where.device}", hint="--dtype bfloat16", kind="memory") from error
    count = int(model.lm_head.weight.shape[0])
    tokenizer = _NoTokenizer(count) if like is None else transformers.AutoTokenizer.from_pretrained(str(like))
    made = kind(str(config), model, tokenizer, {})
    made.vocabulary = count
    prepare_decoder(made, where)
    return made  # type: ignore[no-any-return]
