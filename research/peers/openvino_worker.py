"""OpenVINO GenAI as a peer, under an interpreter that has it and ``optimum-intel``, and no vidspec.

The model is exported when the process starts, in the dtype of the request, or with weights of eight or four bits by
NNCF. It decodes plainly and greedily, on a CPU.
``VLMPipeline`` takes the rendered template as text and the frames unscaled; it resizes them by its own rule and does
not use their times, so its captions may differ from ours, which read the same frames.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from research.peers.answering import Functions, serve_functions
from vidspec.errors import ModelError

#: Names of each dtype in the export and in OpenVINO.
_DTYPES = {"float32": ("fp32", "f32"), "float16": ("fp16", "f16")}


class OpenVinoPipeline:
    """The exported model, loaded."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        import openvino_genai  # type: ignore[import-not-found]

        if about["dtype"] not in _DTYPES:
            raise ModelError(f"its export has no {about['dtype']}", hint=f"--dtype {' or '.join(_DTYPES)}")
        weights, precision = _DTYPES[about["dtype"]]
        folder = Path(about["place"]) / "exported"
        _export(about["model"], folder, weights, about["weights"])
        self.about, self.genai = about, openvino_genai
        options = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": "u8" if about["int8_cache"] else precision,  # u8 unless told, whatever the hint
            "INFERENCE_NUM_THREADS": about["threads"],
        }
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False  # a clip's second run would reuse its prompt
        scheduling.max_num_batched_tokens = 2**31 - 1  # the prompt in one pass, as without this config
        self.pipe = openvino_genai.VLMPipeline(folder, "CPU", scheduler_config=scheduling, **options)

    def facts(self) -> dict[str, object]:
        names = ("openvino-genai", "openvino", "optimum-intel", "transformers", "torch")
        versions = {name: version(name) for name in names}
        return {**versions, "python": platform.python_version(), "device": "cpu", "threads": self.about["threads"]}

    def caption(
        self, frames: str, seconds: Sequence[float], text: str, ids: list[int], prompt: list[int], ends: list[int]
    ) -> dict[str, object]:
        """Return the token ids of one clip, the seconds to the first token and from there to the last.

        Args:
            frames: a file with (N, H, W, 3) uint8.
            seconds: of each frame; unused by this pipeline.
            text: the rendered template with the family's placeholder for a video.
            ids: the expected ids of the text.
            prompt: ids of the whole prompt; only their number can be compared here.
            ends: ids that end a caption.
        """
        import openvino  # type: ignore[import-not-found]

        read = self.pipe.get_tokenizer().encode(text, add_special_tokens=False).input_ids.data
        if read[0].tolist() != ids:
            raise ModelError("its tokenizer makes other ids of the prompt")
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.apply_chat_template = self.about["max_new_tokens"], False, False
        config.stop_token_ids = set(ends)
        shown, tokens = openvino.Tensor(np.load(frames)), list[tuple[float, int]]()
        status = self.genai.StreamingStatus.RUNNING

        class Streamer(self.genai.StreamerBase):  # type: ignore[misc,name-defined]
            def write(self, new: Any) -> Any:
                now = time.perf_counter()
                tokens.extend((now, token) for token in (new if isinstance(new, list) else [new]))
                return status

            def end(self) -> None:
                pass

        began = time.perf_counter()
        found = self.pipe.generate(text, videos=[shown], generation_config=config, streamer=Streamer())
        if (length := found.perf_metrics.get_num_input_tokens()) != len(prompt):
            raise ModelError(f"its prompt has {length} tokens, ours {len(prompt)}")
        first, last = tokens[0][0], tokens[-1][0]
        return {"token_ids": [token for _, token in tokens], "first": first - began, "decode": last - first}

    @property
    def functions(self) -> Functions:
        return {"facts": self.facts, "caption": self.caption}


def _export(model: str, folder: Path, dtype: str, weights: str | None) -> None:
    """Export a model of the hub or of a folder. ``weights``: ``int8`` or ``int4``, or None to keep ``dtype``."""
    from optimum.exporters.openvino import main_export  # type: ignore[import-not-found]
    from optimum.intel import OVConfig  # type: ignore[import-not-found]
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    with suppress(ImportError, AttributeError):
        from optimum.exporters.openvino.input_generators import (  # type: ignore[import-not-found]
            DummyQwen2VLVisionEmbedInputGenerator as Picture,
        )

        # Qwen's tower is traced with a picture of 420 x 420, which only fits patches of 14 pixels.
        side = 15 * config.vision_config.patch_size * config.vision_config.spatial_merge_size
        known = Picture.__init__.__defaults__
        Picture.__init__.__defaults__ = tuple(side if one == 420 else one for one in known)
    main_export(model, folder, task="image-text-to-text", ov_config=OVConfig(dtype=dtype), convert_tokenizer=True)
    if weights is not None:
        _quantise(folder, weights)


def _quantise(folder: Path, weights: str) -> None:
    """Quantise the language model's weights with NNCF, as ``--weights`` does."""
    import nncf  # type: ignore[import-not-found]
    import openvino

    mode = nncf.CompressWeightsMode
    given = (
        {"mode": mode.INT8_SYM} if weights == "int8" else {"mode": mode.INT4_ASYM, "group_size": 64, "all_layers": True}
    )
    name = "openvino_language_model"
    rounded = nncf.compress_weights(openvino.Core().read_model(folder / f"{name}.xml"), **given)
    openvino.save_model(rounded, folder / "rounded.xml", compress_to_fp16=False)
    del rounded
    for kind in ("xml", "bin"):
        (folder / f"rounded.{kind}").replace(folder / f"{name}.{kind}")


def main(about: str) -> None:
    """Serve requests.

    Args:
        about: JSON: ``model, dtype, weights, threads, max_new_tokens``, a ``place`` to write to.
    """
    serve_functions(lambda: OpenVinoPipeline(json.loads(about)).functions)
