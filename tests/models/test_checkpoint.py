"""The answer of ``vidspec models NAME`` on a checkpoint, by its config alone."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer

from tests.checkpoints import qwen
from tests.checkpoints.qwen import QwenKind
from vidspec.cli import main
from vidspec.cli.app import app
from vidspec.cli.checkpoint import inspect
from vidspec.config.user_config import UserConfig
from vidspec.decoding.default_profile import resolve_profile
from vidspec.engine.layouts import stored_bytes
from vidspec.models.checkpoint_config import read_config
from vidspec.models.memory_estimate import PROCESS
from vidspec.models.placement import Placement

GIB = 1 << 30
#: Parts of the memory that is needed, beside keys and values and the process.
PARTS = ("weights", "packed_bytes", "working", "state_bytes")
FIXTURES = Path(__file__).parent / "fixtures" / "configs"


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def vidspec(capsys, monkeypatch):
    """Runs a command line in this process, on a machine of a known size."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: 40 * GIB)
    monkeypatch.setattr("vidspec.models.placement.has_slow_half_precision", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return lambda *args: Ran(main(args), *capsys.readouterr())


@pytest.fixture
def written(tmp_path):
    def write(config):
        config.to_json_file(tmp_path / "config.json")
        return tmp_path

    return write


def said(vidspec, folder, *args):
    ran = vidspec("models", str(folder), *args, "--format", "json")
    return ran.code, json.loads(ran.out)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl_moe", "qwen3_5"])
def test_what_is_said_is_what_loading_finds(vidspec, written, family, monkeypatch):
    kind = QwenKind(family, tied=False)
    monkeypatch.setattr("vidspec.models.placement", lambda dtype: Placement(torch.device("cpu"), torch.float32))
    code, found = said(vidspec, written(qwen.config(kind)))
    model = qwen.adapter(kind)
    decoder = model.decoder
    assert code == 0 and found["supported"] and found["fits"] and found["family"] == family
    assert found["vocabulary"] == model.model.lm_head.weight.shape[0]
    assert found["parameters"] == sum(weight.numel() for weight in model.model.parameters())
    assert found["kv_bytes"] == decoder.slab.entry_bytes and found["state_bytes"] == decoder.state_bytes
    kv = found["kv_bytes"] * (found["visual_tokens"] + 64 + 512)
    assert found["needed"] == PROCESS + sum(found[key] for key in PARTS) + kv


@pytest.mark.full
def test_drafts_by_memory_and_vocabulary(vidspec, written, monkeypatch):
    """A model like Qwen2.5-VL-7B in a folder: 3B fits beside it or not, and not where its vocabulary is another."""
    from transformers import Qwen2_5_VLConfig

    text = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    text |= {"num_key_value_heads": 4, "vocab_size": 152064, "rope_parameters": {"mrope_section": [16, 24, 24]}}
    config = Qwen2_5_VLConfig(text_config=text, tie_word_embeddings=False)
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: 20 * GIB)
    monkeypatch.setattr("vidspec.memory.available_memory", lambda: 20 * GIB)
    _, found = said(vidspec, written(config))
    small = "Qwen/Qwen2.5-VL-3B-Instruct"
    assert found["dtype"] == "bfloat16" and found["packed_bytes"] == 0
    assert {fit["draft"]: fit["refused"] for fit in found["drafts"]}[small].endswith("too much for this machine")
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: 90 * GIB)
    code, found = said(vidspec, written(config))
    fits = {fit["draft"]: fit for fit in found["drafts"]}
    assert code == 0 and fits[small]["refused"] is None and fits[small]["bytes"] > found["needed"]
    assert "Qwen/Qwen2.5-VL-32B-Instruct" not in fits and not any("llava" in name for name in fits)
    assert found["command"].startswith("vidspec caption clip.mp4 --target /")
    config.text_config.vocab_size = 32064
    _, found = said(vidspec, written(config))
    fits = {fit["draft"]: fit["refused"] for fit in found["drafts"]}
    assert fits[small] == "another vocabulary, of 151936 ids" and "--draft" not in found["command"]


@pytest.mark.full
def test_a_thinker_is_what_counts(vidspec, tmp_path):
    """A model that also speaks: the numbers of the part that writes, and the smaller one as its draft."""
    config = json.loads((FIXTURES / "Qwen2.5-Omni-7B.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, found = said(vidspec, tmp_path)
    assert code == 0 and found["family"] == "qwen2_5_omni"
    assert found["parameters"] == 8931813888 and found["visual_tokens"] == 16 * 20 * 36
    assert [fit["draft"] for fit in found["drafts"]] == ["Qwen/Qwen2.5-Omni-3B"]


def test_video_salmonn_is_no_plain_qwen(vidspec, tmp_path):
    config = json.loads((FIXTURES / "Qwen2.5-VL-7B-Instruct.json").read_text())["config"]
    changes = {"architectures": ["video_SALMONN2_plus"], "audio_config": {}, "audio_token_id": 151665}
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    code, found = said(vidspec, tmp_path)
    assert code == 0 and found["family"] == "video_salmonn2_plus"
    assert found["parameters"] == 9220244992 and found["visual_tokens"] == 16 * 26 * 46
    assert [fit["draft"] for fit in found["drafts"]] == ["tsinghua-ee/video-SALMONN2_plus_3B_full"]


@pytest.mark.full
def test_text_and_too_little_memory(vidspec, written, monkeypatch):
    folder = written(qwen.config(QwenKind("qwen3_5")))
    alone = vidspec("models", str(folder)).out.splitlines()[0].split("\t")
    assert alone[2:] == ["-", "-", f"vidspec caption clip.mp4 --target {folder}"]
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: 1000)
    monkeypatch.setattr("vidspec.models.machine.device_memory", lambda: 1000)
    ran = vidspec("models", str(folder))
    assert ran.code == 3 and "GiB, too much" in ran.out


def test_a_language_model_drafts(vidspec, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "num_hidden_layers": 2}))
    _, found = said(vidspec, tmp_path)
    assert found["text"] and "--profile onsd" in found["command"] and not found["drafts"]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"model_type": "video_llava"},
            "type video_llava are not supported; nearest: video_llama_3; supported: gemma4",
        ),
        ({"model_type": "gpt2"}, "models of type gpt2 are not supported; supported: gemma4, gemma4_unified, glm"),
        (None, "no config.json in this folder (name a folder with a saved model, or a hub id)"),
    ],
)
def test_one_line_where_there_is_none(vidspec, tmp_path, config, line):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    ran = vidspec("models", str(tmp_path))
    assert ran.code == 3 and ran.out == "" and line in ran.err and ran.err.count("\n") == 1


def test_a_hub_id_that_is_not_here(vidspec):
    ran = vidspec("models", "nobody/nothing")
    assert ran.code == 3 and "lacks nobody/nothing (" in ran.err


def test_a_published_model_needs_no_config(vidspec, monkeypatch):
    name = "Qwen/Qwen2.5-VL-7B-Instruct"
    monkeypatch.setattr("vidspec.models.machine.device_memory", lambda: 40 * GIB)
    ran = vidspec("models", name)
    assert ran.err.startswith("no published head has been run here") and ran.out.splitlines()[0].endswith(
        f"\tvidspec caption clip.mp4 --target {name}"
    )
    monkeypatch.setattr("vidspec.models.machine.device_memory", lambda: 1)
    assert vidspec("models", name).code == 3
    assert vidspec("models", "Qwen/Qwen2.5-VL-7B").err.count("did you mean Qwen/Qwen2.5-VL-7B-Instruct?") == 1


def test_no_such_folder(vidspec):
    ran = vidspec("models", "./nonexist")
    assert ran.code == 3 and ran.err.startswith("error: ./nonexist: no such folder (")


@pytest.mark.full
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rounded", ["int8", "int4"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5"])
def test_a_target_that_is_rounded_when_it_is_loaded(vidspec, written, monkeypatch, family, rounded, tied):
    """It then takes what loading makes of it, and before that what it takes unrounded, and a block's largest weight."""
    monkeypatch.setattr("vidspec.models.placement", lambda dtype: Placement(torch.device("cpu"), torch.float32))
    kind = QwenKind(family, tied=tied)
    folder = written(qwen.config(kind))
    _, plain = said(vidspec, folder)
    ran = vidspec("models", str(folder), "--weights", rounded, "--format", "json")
    found, model = json.loads(ran.out), qwen.adapter(kind)
    model.prepare(packed=False, wanted=rounded)
    parameters = {
        id(one): one.nbytes
        for part in (model.model, model.decoder.head)
        if hasattr(part, "parameters")
        for one in part.parameters()
    }
    if isinstance(model.decoder.head, torch.nn.Module):
        parameters |= {id(one): one.nbytes for one in model.decoder.head.parameters()}
    assert ran.code == 0 and found["codes"] == stored_bytes(model.decoder.matrices)
    assert found["weights"] == found["codes"] + sum(parameters.values())
    assert found["while_loading"] > plain["weights"] + PROCESS > found["weights"] + PROCESS
    assert found["command"].endswith(f"--set models.weights={rounded}")
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: found["while_loading"] - 1)
    short = vidspec("models", str(folder), "--weights", rounded)
    assert short.code == (3 if found["while_loading"] > found["needed"] else short.code)
    assert ("GiB, too much" in short.out) == (short.code == 3)


def test_the_list_takes_no_weights(vidspec):
    ran = vidspec("models", "--weights", "int8")
    assert ran.code == 2 and ran.err.startswith("error: --weights needs the name of a target")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("name", "fixture"),
    [
        ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", "SmolVLM2-500M-Video-Instruct"),
        ("Qwen/Qwen3.5-27B", "Qwen3.5-27B"),
        ("Qwen/Qwen3-VL-32B-Instruct", "Qwen3-VL-32B-Instruct"),
    ],
)
def test_the_command_names_the_listed_pair(vidspec, monkeypatch, tmp_path, name, fixture):
    """The default profile fits every pair: it prunes nothing and drafts a chain."""
    config = json.loads((FIXTURES / f"{fixture}.json").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_config(str(tmp_path))
    monkeypatch.setattr("vidspec.cli.checkpoint.read_config", lambda named, text: read)
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: 400 * GIB)
    found = inspect(name)
    draft = found.drafts[0].draft
    assert found.command == f"vidspec caption clip.mp4 --target {name} --draft {draft}"
    profile = resolve_profile(
        None, {"models.target": name, "models.draft": draft}, UserConfig(tmp_path / "none")
    ).profile
    assert (profile.prune.method, profile.draft.topology) == ("none", "chain")


@pytest.mark.full
def test_a_draft_that_is_named(vidspec, tmp_path, monkeypatch):
    """Its own config is counted beside the target's, and it alone is looked at."""
    target, draft, text, other = (tmp_path / name for name in ("target", "draft", "text", "other"))
    for folder, config in (
        (target, qwen.config(QwenKind("qwen2_5_vl"))),
        (draft, qwen.config(QwenKind("qwen2_5_vl"))),
        (other, qwen.config(QwenKind("qwen3_vl"))),
    ):
        config.save_pretrained(folder)
    rows = json.loads((target / "config.json").read_text())["text_config"]["vocab_size"]
    text.mkdir()
    small = {"model_type": "qwen2", "num_hidden_layers": 2, "vocab_size": rows}
    (text / "config.json").write_text(json.dumps(small))

    def beside(folder, *more):
        ran = vidspec("models", str(target), "--draft", str(folder), "--format", "json", *more)
        return ran.code, json.loads(ran.out)

    code, found = beside(draft)
    (fit,) = found["drafts"]
    assert code == 0 and fit["refused"] is None and fit["bytes"] == 2 * found["needed"] - PROCESS
    assert found["command"].endswith(f"clip.mp4 --target {target} --draft {draft}")
    _, longer = beside(draft, "--max-new-tokens", "1512", "--frames", "64", "--size", "640x360")
    more = 1000 + longer["visual_tokens"] - found["visual_tokens"]
    needed, longer_needed = (one["needed"] - one["working"] for one in (found, longer))
    assert longer_needed - needed == found["kv_bytes"] * more
    _, half = beside(draft, "--dtype", "bfloat16")
    assert half["dtype"] == "bfloat16" and half["weights"] == found["parameters"] * 2
    code, found = beside(text)
    assert code == 0 and "--profile onsd" in found["command"] and f"--draft {text}" in found["command"]
    code, found = beside(other)
    assert code == 3 and found["drafts"][0]["refused"] and "--draft" not in found["command"]
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: found["needed"] + 1)
    code, found = beside(draft)
    assert code == 3 and found["fits"] and found["drafts"][0]["refused"].endswith("too much for this machine")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("card", ["4090", "l40s", "a100", "h100"])
def test_printed_commands_parse(vidspec, tmp_path, card):
    """Every row of a card: the options exist, and the profile loads with its keys."""
    found = json.loads(vidspec("models", "--all", "--card", card, "--format", "json").out)
    assert len(found) > 40
    for row in found:
        program, command, *words = shlex.split(row["command"])
        assert (program, command) == ("vidspec", "caption")
        context = typer.main.get_command(app).commands["caption"].make_context("caption", words)
        keys = {f"models.{name}": value for name in ("target", "draft") if (value := context.params[name])}
        assert resolve_profile(context.params["profile"], keys, UserConfig(tmp_path / "config.yaml")).profile.name


@pytest.mark.full
def test_a_target_that_does_not_fit_ends_with_the_weights_that_do(vidspec, written, monkeypatch):
    folder = written(qwen.config(QwenKind("qwen2_5_vl")))
    needed = {bits: said(vidspec, folder, *bits)[1]["needed"] for bits in ((), ("--weights", "int4"))}
    whole, rounded = needed.values()
    assert rounded < whole
    monkeypatch.setattr("vidspec.cli.checkpoint.free_memory", lambda device: whole - 1)
    ran = vidspec("models", str(folder))
    assert ran.code == 3 and re.fullmatch(r"with --weights int[48] it fits\n", ran.err)
