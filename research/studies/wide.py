"""A Qwen2.5-VL of a published width and few blocks: ``python -m research.studies.wide FOLDER [--size 3B]``.

Peers that export a model are given it with ``vidspec bench --target FOLDER --peer openvino=PYTHON``. Tokenizer,
template and vision are the built-in Qwen pair's, all weights random; the head has as many rows as that vocabulary.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch

from research.sizes import SIZES
from vidspec.models.loading import embedded_folder

__all__ = ["main", "write"]


def write(folder: Path, name: str, layers: int) -> None:
    """Write the checkpoint in float32, with the blocks' sizes of a model in :data:`~research.sizes.SIZES`."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    size, source = SIZES[name], embedded_folder("embedded-qwen", "target")
    config = AutoConfig.from_pretrained(source)
    text, axes = config.text_config, size.width // 8
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = size.hidden, size.inner, layers
    text.num_attention_heads, text.num_key_value_heads = size.heads, size.kv_heads
    text.layer_types = text.layer_types[:1] * layers
    text.rope_parameters["mrope_section"] = [axes, 3 * axes // 2, 3 * axes // 2]
    config.vision_config.out_hidden_size = size.hidden
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder)


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="3B")
    parser.add_argument("--layers", type=int, default=4)
    asked = parser.parse_args(args)
    asked.folder.mkdir(parents=True, exist_ok=True)
    write(asked.folder, asked.size, asked.layers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
