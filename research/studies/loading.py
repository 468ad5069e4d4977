"""Main memory of a model, loaded and while captioning, compared with the estimate of ``vidspec models``.

``python -m research.studies.loading [SHAPE...] [--dtype DTYPE] [--weights int8|int4] [--frames N] [--new-tokens N]``

A checkpoint of a published shape with random weights is written in bfloat16, as published (``-gptq``: blocks of int4 in
groups of 128), then loaded by a separate process; one at a time to save disk. Prints GiB: weights and total as
estimated from the config alone, resident after loading, and peak while a clip was captioned, the last also as a share
of the estimate; and the seconds of that caption. With ``--weights`` the language model is rounded when loaded, which
the estimate does not include. Linux only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

CLIP = Path(__file__).parents[2] / "vidspec/embedded/clips/three-objects.mp4"
#: Rows and columns of its pixels.
SIZE = (240, 320)
MARKS = (
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
#: Inputs that share a scale in int4 checkpoints.
GROUP = 128
#: Shapes, from configs on the hub.
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
SHAPES |= {
    "qwen3-vl-2b": {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    },
    "qwen2.5-vl-3b": {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "max_position_embeddings": 128000,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "tokens_per_second": 2,
        },
    },
}
SHAPES["qwen2.5-vl-3b-gptq"] = SHAPES["qwen2.5-vl-3b"]
SHAPES["qwen2.5-vl-7b"] = {
    **SHAPES["qwen2.5-vl-3b"],
    "tie_word_embeddings": False,
    "text_config": {
        **SHAPES["qwen2.5-vl-3b"]["text_config"],
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "vision_config": {**SHAPES["qwen2.5-vl-3b"]["vision_config"], "out_hidden_size": 3584},
}
IDS = {
    "image_token_id": ("<image>", "<|image_pad|>"),
    "video_token_id": ("<video>", "<|video_pad|>"),
    "vision_start_token_id": ("", "<|vision_start|>"),
    "vision_end_token_id": ("", "<|vision_end|>"),
}
SIDES = {"llava-onevision-0.5b": {"height": 384, "width": 384}, "smolvlm2-500m": {"longest_edge": 2048}}


def write(shape: str, folder: Path) -> None:
    """Write a checkpoint as ``save_pretrained`` does."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    from research.training.architecture import build_tokenizer

    words = build_tokenizer(samples=200)
    words.add_special_tokens({"additional_special_tokens": list(MARKS)})
    config, qwen = AutoConfig.for_model(**SHAPES[shape]), "qwen" in shape
    if qwen:
        words.chat_template = None  # the family's own
    for key, tokens in IDS.items():
        if tokens[qwen]:
            setattr(config, key, words.convert_tokens_to_ids(tokens[qwen]))
    config.text_config.eos_token_id = words.eos_token_id
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    noise = torch.randn(1 << 20, dtype=torch.bfloat16) * 0.02
    with torch.no_grad():
        for weight in model.parameters():
            for part in weight.view(-1).split(len(noise)):
                part.copy_(noise[: len(part)])
    if shape.endswith("-gptq"):
        save_codes(model, folder)
    else:
        model.save_pretrained(folder)
    words.save_pretrained(folder)
    if qwen:
        return
    rules = {"size": SIDES[shape], "max_image_size": {"longest_edge": 512}, "resample": 1, "rescale_factor": 1 / 255}
    rules |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(rules), encoding="utf-8")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(rules), encoding="utf-8")


def save_codes(model: Any, folder: Path) -> None:
    """Write the checkpoint with the blocks' linear layers as GPTQ packs them."""
    from safetensors.torch import save_file

    tensors = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    for name, layer in model.model.language_model.layers.named_modules():
        if isinstance(layer, torch.nn.Linear):
            key, (out, inner) = f"model.language_model.layers.{name}", layer.weight.shape
            del tensors[f"{key}.weight"]
            tensors[f"{key}.qweight"] = torch.randint(-(2**31), 2**31 - 1, (inner // 8, out), dtype=torch.int32)
            tensors[f"{key}.qzeros"] = torch.full((inner // GROUP, out // 8), 0x77777777, dtype=torch.int32)
            tensors[f"{key}.scales"] = torch.full((inner // GROUP, out), 0.004, dtype=torch.float16)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    model.config.quantization_config = {**settings, "checkpoint_format": "gptq"}
    model.config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def measure(folder: str, dtype: str, weights: str | None, frames: int, new_tokens: int) -> None:
    """Print one JSON object; for a fresh process."""
    from vidspec import memory
    from vidspec.captioner import Captioner
    from vidspec.cli.checkpoint import inspect
    from vidspec.models.known_pairs import MemoryWorkload

    estimate = inspect(folder, load=MemoryWorkload(frames, SIZE, new_tokens, dtype)).to_dict()
    overrides = {
        "models.target": folder,
        "models.dtype": dtype,
        "models.weights": weights,
        "models.device": "cpu",
        "video.frames": frames,
        "generate.max_new_tokens": new_tokens,
    }
    captioner = Captioner.from_profile("ar", overrides=overrides)
    loaded = memory.resident_memory()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the largest size from here on
    seconds = captioner.caption(CLIP).timings["end_to_end"]
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    used = {"seconds": seconds, "loaded": loaded, "captioned": memory.resident_memory(), "peak": peak}
    print(json.dumps({**estimate, **used}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--weights", choices=("int8", "int4"))
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=4)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.dtype, args.weights, args.frames, args.new_tokens)
        return
    names = ("checkpoint", "dtype", "weights", "estimated", "loaded", "at most", "of the estimate", "caption, s")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|", flush=True)
    for shape in args.shapes or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            writing = multiprocessing.get_context("spawn").Process(target=write, args=(shape, Path(folder)))
            writing.start()
            writing.join()  # so that its memory is free
            command = [sys.executable, "-m", "research.studies.loading", "--measure", folder]
            command += ["--dtype", args.dtype, "--frames", str(args.frames), "--new-tokens", str(args.new_tokens)]
            command += ["--weights", args.weights] if args.weights else []
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        sizes = [f"{found[key] / 2**30:.2f}" for key in ("weights", "needed", "loaded", "peak")]
        share = f"{found['peak'] / found['needed']:.2f}"
        line = [shape, args.weights or found["dtype"], *sizes, share, f"{found['seconds']:.0f}"]
        print("|", " | ".join(line), "|", flush=True)


if __name__ == "__main__":
    main()
