"""Attacks by a foreign checkpoint: code beside its weights, pickles, templates that do not end."""

import builtins
import json
import os
import pickle

import pytest
import torch
import transformers

from research.random_init import random_model
from tests.checkpoints import copy_checkpoint
from tests.checkpoints.llava_onevision import pixels
from vidspec.errors import ModelError
from vidspec.models import image_captioner, prompt_template, weight_files
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement

CPU = Placement(torch.device("cpu"), torch.float32)
CODE = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Mine:\n    pass\n"
MAP = {
    f"Auto{part}": "mine.Mine"
    for part in ("Config", "Model", "ModelForImageTextToText", "Processor", "ImageProcessor", "VideoProcessor")
} | {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch, library_verbosity):
    def asked(*_):
        raise AssertionError("a question on the terminal")

    monkeypatch.setattr(builtins, "input", asked)


def with_code(folder, **config):
    """``folder`` with code of its own behind every class that the library could ask it for."""
    (folder / "mine.py").write_text(CODE)
    for file in ("config", "tokenizer_config", "preprocessor_config", "video_preprocessor_config", "processor_config"):
        path = folder / f"{file}.json"
        said = json.loads(path.read_text()) if path.is_file() else {}
        said |= config if file == "config" else {}
        path.write_text(json.dumps(said | {"auto_map": MAP}))
    return folder


def refused(loader, folder, *, says):
    with pytest.raises(ModelError) as caught:
        loader(str(folder), CPU)
    assert says in caught.value.message and "\n" not in str(caught.value) and caught.value.exit_code == 3
    return caught.value


def test_code_beside_a_known_model_is_left_alone(copy):
    assert load_model(str(with_code(copy)), CPU).layers == 4
    assert not (copy / "ran").exists()


@pytest.mark.parametrize("loader", [load_model, image_captioner.load_image_captioner, random_model])
def test_code_that_is_needed_is_refused_unasked(copy, loader):
    refused(loader, with_code(copy, model_type="my-own"), says="needs its own code, which is not run")
    assert not (copy / "ran").exists()


def test_code_of_a_tokenizer_is_refused_unasked(copy):
    with_code(copy)
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "MineTokenizer"}))
    try:
        load_model(str(copy), CPU)
    except ModelError as error:
        assert "\n" not in str(error)
    assert not (copy / "ran").exists()


def test_code_beside_a_captioner_is_left_alone(tmp_path):
    folder = with_code(copy_checkpoint(tmp_path / "blip", "blip"))
    assert image_captioner.load_image_captioner(str(folder), CPU).name == str(folder)
    assert not (folder / "ran").exists()


class Runs:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (self.file,)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("loader", [load_model, image_captioner.load_image_captioner])
def test_pickles_are_not_read(copy, loader, listed):
    """Neither instead of weights, nor where an index of safetensors names one."""
    (copy / "model.safetensors").unlink()
    with (copy / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"lm_head.weight": Runs(str(copy / "ran"))}, file, protocol=2)
    if listed:
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}
        (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refused(loader, copy, says="its weights are pickled (pytorch_model.bin)")
    assert "model.safetensors" in error.hint and not (copy / "ran").exists()


@pytest.mark.sample(quick=9)
@pytest.mark.parametrize("loader", [load_model, image_captioner.load_image_captioner, random_model])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
@pytest.mark.parametrize("value", ["their/kernel", {"vision_config": "their/kernel@main"}, "paged|their/kernel:fn"])
def test_kernels_of_the_hub_are_not_fetched(copy, loader, key, value, monkeypatch):
    """The library would fetch and run them with the package kernels installed; here it is never asked to."""
    monkeypatch.setattr(transformers.PreTrainedModel, "__init__", lambda *_, **__: pytest.fail("a model was made"))
    config = json.loads((copy / "config.json").read_text())
    for place in (config, config["text_config"]):
        place[key] = value
        (copy / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError) as caught:
            loader(str(copy), CPU)
        assert "\n" not in str(caught.value)
        del place[key]


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "[" * 100_000),
        ("config.json", '{"model_type": "llava_onevision", "text_config": 3}'),
        ("config.json", '{"model_type": "llava_onevision", "vision_config": {"num_attention_heads": 0}}'),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"model_max_length": "x"}'),
        ("generation_config.json", '{"eos_token_id": 1e308}'),
        ("video_preprocessor_config.json", '{"rescale_factor": []}'),
        ("video_preprocessor_config.json", "[" * 100_000),
        ("chat_template.json", "[]"),
    ],
)
def test_files_of_nonsense_are_one_line(copy, file, text):
    (copy / "chat_template.jinja").unlink(missing_ok=True)
    (copy / file).write_text(text)
    refused(load_model, copy, says=str(copy))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% if %}", "cannot be rendered: Expected an expression"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot be rendered: access to attribute '__class__'"),
        ("{{ raise_exception('one\ntwo') }}", "cannot be rendered: one"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be rendered: maximum recursion"),
        ("{{" + "(" * 50_000 + ")" * 50_000 + "}}", "cannot be rendered: maximum recursion"),
        ("{{ 'a' * 3000000 }}", "gives a prompt of 3000000 characters"),
        ("nothing to see", "has no place for a video"),
    ],
)
def test_bad_templates(copy, template, says):
    (copy / "chat_template.jinja").write_text(template)
    model = load_model(str(copy), CPU)
    with pytest.raises(ModelError) as caught:
        model.prefix(model.encode(pixels(2)), "Describe the video.")
    assert f"{model.name}: its chat template {says}" in caught.value.message and "\n" not in str(caught.value)


@pytest.mark.full
def test_a_prompt_that_a_tokenizer_multiplies(copy):
    file = copy / "tokenizer.json"
    growth = {"type": "Replace", "pattern": {"String": "zebra"}, "content": "zebra" * 35}
    normalizer = {"type": "Sequence", "normalizers": [growth] * 4}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": normalizer}))
    model = load_model(str(copy), CPU)
    with pytest.raises(ModelError, match=r"gives a prompt of which the tokenizer makes \d{7,} tokens"):
        model.prefix(model.encode(pixels(2)), "Is there a zebra?")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "sub\\model.safetensors", ".."])
def test_an_index_names_plain_files(copy, place):
    whole = copy / "model.safetensors"
    whole.rename(copy.parent / "model.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": place}}))
    refused(load_model, copy, says=f"model.safetensors.index.json names {place!r}, and only files beside it")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"weight_map": [1]}', "nothing", "[" * 100_000], ids=lambda text: text[:9]
)
def test_an_index_of_another_form(copy, text):
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(text)
    refused(load_model, copy, says="model.safetensors.index.json is not an index of weights")


@pytest.mark.parametrize(
    "part, key, value",
    [
        ("text_config", "num_hidden_layers", 10**6),
        ("vision_config", "num_hidden_layers", 10**6),
        ("text_config", "hidden_size", 1 << 30),
        ("text_config", "vocab_size", 10**12),
    ],
)
def test_sizes_that_no_memory_holds(copy, part, key, value):
    config = json.loads((copy / "config.json").read_text())
    config[part][key] = value
    (copy / "config.json").write_text(json.dumps(config))
    refused(load_model, copy, says=f"{key} {value} in its config is more than")


@pytest.mark.parametrize("size", [{"height": 10**6, "width": 10**6}, {"height": 1, "width": 1 << 40}])
def test_frames_that_no_memory_holds(copy, size):
    (copy / "video_preprocessor_config.json").write_text(json.dumps({"size": size}))
    refused(load_model, copy, says=f"makes frames of {size['width']} x {size['height']} pixels, too many")


LONG = """config.json generation_config.json tokenizer.json tokenizer_config.json preprocessor_config.json vocab.json
chat_template.jinja chat_template.json model.safetensors.index.json merges.txt"""


@pytest.mark.parametrize("name", LONG.split())
def test_files_that_are_too_long(copy, monkeypatch, name):
    monkeypatch.setattr(weight_files, "LARGEST", dict.fromkeys(weight_files.LARGEST, 1 << 20))
    with open(copy / name, "ab") as file:
        file.truncate(1 << 21)
    assert refused(load_model, copy, says=f"{name} has 2097152 bytes, more than 1048576").kind == "unreadable"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_pointers_of_git_lfs(copy, name):
    (copy / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 123\n")
    assert "git lfs pull" in refused(load_model, copy, says=f"{name} is a pointer of Git LFS").hint


def test_a_generation_config_that_is_nested_deep(copy):
    (copy / "generation_config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    refused(load_model, copy, says="cannot be loaded: maximum recursion depth exceeded")


@pytest.mark.full
def test_what_is_rendered_is_what_the_template_says_and_once_for_each_prompt(checkpoints, monkeypatch):
    model = load_model(str(checkpoints["tied"]), CPU)
    asked = []
    render = prompt_template.render_template
    monkeypatch.setattr(
        prompt_template,
        "render_template",
        lambda name, *args, **more: asked.append(name) or render(name, *args, **more),
    )

    def message(text):
        return [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": text}]}]

    for text in ("Warum?", "Warum?", "\u4e2d\u6587 \ud83d"):
        stock = model.tokenizer.apply_chat_template(
            message(text), chat_template=model.template.source, tokenize=False, add_generation_prompt=True
        )
        assert model.template.render(message(text)) == stock
    assert len(asked) == 2
