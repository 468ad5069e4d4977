"""Write small quantised checkpoints by the libraries that publish them, and what these libraries make of them.

    python -m tests.models.quantised.make FORMAT...

Formats whose names begin with ``ct`` want llm-compressor, ``gptq`` and ``awq`` want gptqmodel (and
``GPTQMODEL_CPU_WORKERS=4`` on two cores), ``bnb`` bitsandbytes. The files here were written on a CPU by llmcompressor
0.14.0.1 with compressed-tensors 0.19.0, gptqmodel 7.6.0, bitsandbytes 0.50.2 and transformers 5.23.0 (5.17.0 beside
llm-compressor). A format is three files:

``FORMAT.json``             the checkpoint's config, whole
``FORMAT.safetensors``      those of its tensors that the model it was made from does not have in the same place
``FORMAT.out.safetensors``  of the library: a part of ``logits`` (L, V) for ``ids`` (L,), and of its dequantised weights

The unquantised rest, ``text.safetensors`` and ``video.safetensors``, is shared; :func:`assemble` joins both.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import llava_onevision

HERE = Path(__file__).parent
#: Ids of the prompt; below the number of rows of the smallest head.
IDS = (5, 9, 2, 61, 44, 17, 17, 3, 30, 52, 8, 25)
ROWS = 64
#: The part that is kept of the library's own: so many rows, and no more than ``ROWS`` columns.
SOME, KEPT = 12, ("logits", "mlp.down_proj")
SCHEMES = {
    "ct_int4": {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    "ct_int8": {"num_bits": 8, "strategy": "channel", "symmetric": True},
    "ct_fp8": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    "ct_fp8_block": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [48, 32]},
}
GPTQ = {
    "gptq": {"bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "gptq_order": {"bits": 4, "group_size": 32, "desc_act": True, "act_group_aware": False, "sym": False},
    "awq": {"bits": 4, "group_size": 32, "sym": False, "method": "awq", "format": "gemm"},
}
FORMATS = (*SCHEMES, *GPTQ, "fp8", "bnb_nf4", "bnb_int8")


def base(kind: str) -> torch.nn.Module:
    """The model that is quantised: one with vision, or a language model without (``text``); of one block."""
    config = llava_onevision.config(llava_onevision.UNTIED)
    config.text_config.num_hidden_layers, config.text_config.layer_types = 1, ["full_attention"]
    config.vision_config.num_hidden_layers = 1
    config.vision_config.hidden_size, config.vision_config.intermediate_size = 16, 24
    from transformers import LlavaOnevisionForConditionalGeneration, Qwen2ForCausalLM

    config.text_config.vocab_size = ROWS if kind == "text" else config.text_config.vocab_size
    config.text_config.tie_word_embeddings = config.tie_word_embeddings = True
    if kind == "text":  # AWQ's search for scales wants multiples of 64 outputs
        config.text_config.num_key_value_heads, config.text_config.intermediate_size = llava_onevision.HEADS, 128
        config.text_config.eos_token_id = config.text_config.pad_token_id = 1
    maker = Qwen2ForCausalLM if kind == "text" else LlavaOnevisionForConditionalGeneration
    model = maker(config.text_config if kind == "text" else config).eval()
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=rng)
            scale = 0.2 if "norm" in name else 0.7 if "embed" in name else 1.3 / weight[0].numel() ** 0.5
            weight.copy_(scale * noise + (1 if "norm" in name and name.endswith("weight") else 0))
    return model.half()


def linears(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The layers of the language model's blocks by their names in the block."""
    return {
        name.rpartition("layers.0.")[2]: module
        for name, module in model.named_modules()
        if name.endswith("_proj") and "vision" not in name
    }


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([IDS])).logits[0].float()


def keep(name: str, folder: Path, out: dict[str, torch.Tensor]) -> None:
    """Take what is a format's own out of a checkpoint."""
    kind = "text" if name in GPTQ else "video"
    shared = HERE / f"{kind}.safetensors"
    known, own = load_file(shared), {}
    for path in folder.glob("*.safetensors"):
        for key, tensor in load_file(path).items():
            if key not in known or not torch.equal(known[key], tensor):
                own[key] = tensor
    save_file(own, HERE / f"{name}.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", HERE / f"{name}.json")
    out = {key: tensor[:SOME, :ROWS].detach().float().contiguous() for key, tensor in out.items() if key in KEPT}
    save_file({"ids": torch.tensor(IDS), **out}, HERE / f"{name}.out.safetensors")


def assemble(name: str, folder: Path) -> Path:
    """A checkpoint's folder as its library saves it, in two shards."""
    own = load_file(HERE / f"{name}.safetensors")
    shared = load_file(HERE / f"{'text' if name in GPTQ else 'video'}.safetensors")
    places = {}
    for file, tensors in (("first", {key: shared[key] for key in shared.keys() - own.keys()}), ("second", own)):
        save_file(tensors, folder / f"{file}.safetensors", {"format": "pt"})
        places |= dict.fromkeys(tensors, f"{file}.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8"
    )
    shutil.copy(HERE / f"{name}.json", folder / "config.json")
    llava_onevision.tokenizer().save_pretrained(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(llava_onevision.PROCESSOR), encoding="utf-8")
    return folder


def compressed(name: str, folder: Path) -> None:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForImageTextToText

    base("video").save_pretrained(folder / "base")
    llava_onevision.tokenizer().save_pretrained(folder / "base")
    model = AutoModelForImageTextToText.from_pretrained(folder / "base", dtype=torch.float16)
    group = {"targets": ["Linear"], "weights": SCHEMES[name]}
    recipe = QuantizationModifier(
        config_groups={"group_0": group}, ignore=["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"]
    )
    oneshot(model=model, processor=llava_onevision.tokenizer(), recipe=recipe)
    folder = folder / "saved"
    model.save_pretrained(folder, save_compressed=True)
    from compressed_tensors.compressors import ModelCompressor

    ModelCompressor.from_pretrained_model(model).decompress_model(model)
    weights = {key: layer.weight for key, layer in linears(model).items()}
    keep(name, folder, {"logits": logits(model.float()), **weights})


def by_gptqmodel(name: str, folder: Path) -> None:
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

    source = folder / "base"
    base("text").save_pretrained(source)
    llava_onevision.tokenizer().save_pretrained(source)
    rng = torch.Generator().manual_seed(5)
    rows = [torch.randint(2, ROWS, (64,), generator=rng) for _ in range(16)]
    shown = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in rows]
    model = GPTQModel.load(str(source), QuantizeConfig(**GPTQ[name], device="cpu"))
    backend = BACKEND.TORCH_AWQ if name == "awq" else BACKEND.TORCH
    model.quantize(shown, batch_size=1, backend=backend)
    model.save(str(folder / "saved"))
    read = GPTQModel.load(str(folder / "saved"), device="cpu", backend=backend, dtype=torch.float16)
    weights = {}
    if name != "awq":
        weights = {key: layer.dequantize_weight().t() for key, layer in linears(read.model).items()}
    keep(name, folder / "saved", {"logits": logits(read.model), **weights})


def by_transformers(name: str, folder: Path) -> None:
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig, FineGrainedFP8Config

    source, saved = folder / "base", folder / "saved"
    base("video").save_pretrained(source)
    left_out = ["lm_head", "vision_tower", "multi_modal_projector"]
    if name == "fp8":  # a CPU may not quantise; the library's own operation can
        import transformers.quantizers.quantizer_finegrained_fp8 as quantizer

        quantizer.FineGrainedFP8HfQuantizer.validate_environment = lambda *_, **__: None
        wanted = FineGrainedFP8Config(modules_to_not_convert=left_out, weight_block_size=(32, 32))
    elif name == "bnb_nf4":
        wanted = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
            llm_int8_skip_modules=left_out,
        )
    else:
        wanted = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=left_out)
    model = AutoModelForImageTextToText.from_pretrained(
        source, dtype=torch.float16, quantization_config=wanted, device_map={"": "cpu"}
    )
    model.save_pretrained(saved)
    again = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if name == "fp8" else {}
    read = AutoModelForImageTextToText.from_pretrained(saved, dtype=torch.float32, device_map={"": "cpu"}, **again)
    weights = {}
    if name.startswith("bnb"):
        read.dequantize()
    weights = {key: layer.weight for key, layer in linears(read).items()}
    keep(name, saved, {"logits": logits(read.float()), **weights})


def adapter() -> None:
    """A LoRA of the checkpoint ``fp8``, in ``adapter/``, and what PEFT's own merge of both gives."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText, FineGrainedFP8Config

    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForImageTextToText.from_pretrained(
            assemble("fp8", Path(folder)),
            dtype=torch.float32,
            device_map={"": "cpu"},
            quantization_config=FineGrainedFP8Config(dequantize=True),
        )
    wanted = LoraConfig(
        r=4,
        lora_alpha=8,
        use_rslora=True,
        alpha_pattern={"down_proj": 3},
        target_modules=r".*language_model.*(q_proj|down_proj)",
        init_lora_weights=False,
    )
    torch.manual_seed(11)
    lora = get_peft_model(model.float(), wanted)
    lora.save_pretrained(HERE / "adapter")
    (HERE / "adapter" / "README.md").unlink()
    config = HERE / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace(lora.peft_config["default"].base_model_name_or_path, "base"))
    merged = lora.merge_and_unload()
    weights = {key: layer.weight[:SOME, :ROWS].contiguous() for key, layer in linears(merged).items() if key in KEPT}
    weights["self_attn.q_proj"] = linears(merged)["self_attn.q_proj"].weight[:SOME, :ROWS].contiguous()
    save_file({**weights, "logits": logits(merged)[:SOME, :ROWS].contiguous()}, HERE / "adapter.out.safetensors")


def main(names: list[str]) -> None:
    for kind in ("text", "video"):
        if not (HERE / f"{kind}.safetensors").is_file():
            with tempfile.TemporaryDirectory() as folder:
                base(kind).save_pretrained(folder)
                whole = load_file(Path(folder, "model.safetensors"))
                rest = {key: whole[key] for key in whole if "_proj.weight" not in key or "vision" in key}
                save_file(rest, HERE / f"{kind}.safetensors", {"format": "pt"})
    for name in names:
        if name == "adapter":
            adapter()
            continue
        with tempfile.TemporaryDirectory() as folder:
            write = compressed if name in SCHEMES else by_gptqmodel if name in GPTQ else by_transformers
            write(name, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:] or [*FORMATS, "adapter"])
