"""What a model takes of main memory, loaded and while it captions, beside what ``vidspec models`` says before.

``python -m research.studies.loading [SHAPE...] [--dtype DTYPE] [--frames N]``

A checkpoint of a published shape with random weights is written in bfloat16, as such are published, then loaded by a
process of its own. Printed are bytes in GiB: as estimated from the config alone, resident after loading, and at most
while a clip was captioned. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

CLIP = Path(__file__).parents[2] / "vidspec/embedded/clips/three-objects.mp4"
MARKS = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
#: Of configs on the hub: what decides shapes.
SHAPES: dict[str, dict[str, Any]] = {
    "llava-onevision-0.5b": {
        "model_type": "llava_onevision",
        "tie_word_embeddings": True,
        "image_grid_pinpoints": [[384, 384]],
        "vision_feature_layer": -1,
        "text_config": {
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 152000,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 26,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    "smolvlm2-500m": {
        "model_type": "smolvlm",
        "scale_factor": 4,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "llama",
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "head_dim": 64,
            "vocab_size": 49280,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
        },
    },
}
SIDES = {"llava-onevision-0.5b": {"height": 384, "width": 384}, "smolvlm2-500m": {"longest_edge": 2048}}


def write(shape: str, folder: Path) -> None:
    """A checkpoint as ``save_pretrained`` writes it."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    from research.training.architecture import build_tokenizer

    words = build_tokenizer(samples=200)
    words.add_special_tokens({"additional_special_tokens": list(MARKS)})
    config = AutoConfig.for_model(**SHAPES[shape])
    for key, token in (("image_token_id", "<image>"), ("video_token_id", "<video>")):
        setattr(config, key, words.convert_tokens_to_ids(token))
    config.text_config.eos_token_id = words.eos_token_id
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.02)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    rules = {"size": SIDES[shape], "max_image_size": {"longest_edge": 512}, "resample": 1, "rescale_factor": 1 / 255}
    rules |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(rules), encoding="utf-8")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(rules), encoding="utf-8")


def measure(folder: str, dtype: str, frames: int) -> None:
    """Print one JSON object; for a process that has done nothing else."""
    from vidspec import memory
    from vidspec.captioner import Captioner
    from vidspec.cli.checkpoint import inspect
    from vidspec.models.known_pairs import Load

    said = inspect(folder, load=Load(frames, (480, 640), 16, dtype)).to_dict()
    overrides = {
        "models.target": folder,
        "models.dtype": dtype,
        "models.device": "cpu",
        "video.frames": frames,
        "generate.max_new_tokens": 16,
    }
    captioner = Captioner.from_profile("ar", overrides=overrides)
    loaded = memory.resident()
    captioner.caption(CLIP)
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    most = int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    print(json.dumps({**said, "loaded": loaded, "captioned": memory.resident(), "most": most}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure, asked.dtype, asked.frames)
        return
    for shape in asked.shapes or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            write(shape, Path(folder))
            command = [sys.executable, "-m", "research.studies.loading", "--measure", folder]
            command += ["--dtype", asked.dtype, "--frames", str(asked.frames)]
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        keys = ("weights", "packed_bytes", "needed", "loaded", "captioned", "most")
        print(shape, asked.dtype, {key: round(found[key] / 2**30, 2) for key in keys if key in found}, flush=True)


if __name__ == "__main__":
    main()
