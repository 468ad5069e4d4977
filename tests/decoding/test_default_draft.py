"""The default of a lone target follows the prediction for the GPU that is there, and nothing else."""

import copy
import re
from pathlib import Path

import pytest

from vidspec.decoding import auto
from vidspec.models import recommended
from vidspec.models.recommended import cards

TARGET = "Qwen/Qwen2.5-VL-7B-Instruct"
KEYS = {"models.target": TARGET}


@pytest.fixture
def on(monkeypatch):
    """Pretend that there is one GPU of a card."""

    def pretend(card, free=None, count=1):
        monkeypatch.setattr(auto, "card_here", lambda device="auto": card)
        monkeypatch.setattr(auto.torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(auto, "free_memory", lambda device: card and (free or card.memory))

    return pretend


@pytest.mark.parametrize(("card", "precision"), [("4090", "int4"), ("a100", "int4"), ("h100", "int8")])
def test_a_copy_in_few_bits_before_a_draft_of_half_the_size(on, card, precision):
    """In eight bits where the kernel for four bits cannot follow the memory."""
    on(cards()[card])
    chosen = auto.default_draft(KEYS)
    assert chosen.keys == {"name": f"self-{precision}", "draft.kind": "self", "draft.precision": precision}
    assert chosen.why.startswith(f"self-{precision}: predicted the fastest on ") and "not measured" in chosen.why


@pytest.fixture
def row(monkeypatch):
    """Replace values of the target's row in the table."""

    def change(**values):
        table = copy.deepcopy(recommended._table())
        table["targets"][TARGET] |= values
        monkeypatch.setattr(recommended, "_table", lambda: table)

    return change


def test_plain_decoding_where_no_draft_gains(on, row):
    on(cards()["h100"])
    row(drafts=[recommended.PLAINLY] * 15, gains=[1.0] * 15)
    chosen = auto.default_draft(KEYS)
    assert chosen.keys["name"] == "ar" and chosen.keys["draft.kind"] == "none"


def test_what_does_not_fit_is_not_taken(on):
    on(cards()["h100"], free=18.6e9)
    assert auto.default_draft(KEYS).keys["name"] == "ar"
    on(cards()["h100"], free=25e9)
    assert auto.default_draft(KEYS).keys["name"] == "self-int8"


def test_a_small_draft_is_the_default_profile(on):
    """The 0.5B of LLaVA-OneVision is predicted faster than a copy in few bits."""
    on(cards()["h100"])
    assert auto.default_draft({"models.target": "llava-hf/llava-onevision-qwen2-7b-ov-hf"}).keys == {}


def test_the_models_that_the_readme_names_by_memory_have_a_draft_by_default(on):
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"--target (\S+) +# [\w ]+, (\d+) GB: ", page, re.MULTILINE)
    assert [int(memory) for _, memory in named] == [16, 24, 80]
    for target, memory in named:
        alike = [card for card in cards().values() if card.memory == int(memory) * 10**9]
        for card in alike:
            on(card, free=card.usable)
            assert auto.default_draft({"models.target": target}).keys.get("name") != "ar", (target, card.name)


def test_a_model_that_is_listed_as_a_draft_may_be_the_target(on):
    on(cards()["h100"])
    assert auto.default_draft({"models.target": "Qwen/Qwen2.5-VL-3B-Instruct"}).keys["name"] == "self-int8"


def test_heads_only_if_they_are_here(on):
    head = "Rayzl/qwen2.5-vl-7b-eagle3-sgl"
    on(cards()["h100"])
    assert auto.default_draft(KEYS).keys["name"] == "self-int8"
    chosen = auto.default_draft(KEYS, {head})
    assert chosen.keys == {"name": "eagle3", "draft.kind": "eagle3", "models.draft": head}


@pytest.mark.parametrize(
    "more",
    [
        {"models.draft": "Qwen/Qwen2.5-VL-3B-Instruct"},
        {"draft.kind": "model"},
        {"prune.method": "specvlm"},
        {"models.weights": "int4"},
        {"models.target": "./a-folder"},
    ],
)
def test_choices_of_the_user_and_unknown_models_stay(on, more):
    on(cards()["h100"])
    assert auto.default_draft(KEYS | more) is None


def test_a_target_kernel_by_kernel_keeps_the_default_profile(on):
    on(cards()["h100"])
    assert auto.default_draft({"models.target": "Qwen/Qwen3-VL-30B-A3B-Instruct"}).keys == {}


def test_a_second_gpu_has_the_draft(on):
    on(cards()["h100"], count=2)
    assert auto.default_draft(KEYS) is None


def test_nothing_changes_on_a_cpu():
    assert auto.default_draft(KEYS) is None and auto.card_here("cpu") is None


def test_the_command_line_follows_it(on, row, monkeypatch, tmp_path, caplog):
    from vidspec.config.user_config import CHOSEN, UserConfig
    from vidspec.decoding.default_profile import resolve_profile

    on(cards()["h100"])
    defaults = UserConfig(tmp_path / "config.yaml")
    assert resolve_profile(None, KEYS, defaults).profile.name == "vanilla-sd-auto"  # no GPU
    monkeypatch.setattr("vidspec.models.machine.has_gpu", lambda: True)
    caplog.set_level("DEBUG", "vidspec")
    resolved = resolve_profile(None, KEYS, defaults)
    profile = resolved.profile
    assert profile.name == "self-int8" and profile.draft.precision == "int8" and profile.draft.gamma == "auto"
    assert profile.draft.is_target and profile.named_models == (TARGET,)
    assert resolved.sources["draft.kind"] == CHOSEN and caplog.messages[0].startswith("profile: self-int8: ")
    assert resolve_profile("ar", KEYS, defaults).profile.name == "ar"
    named = {**KEYS, "models.draft": "Qwen/Qwen2.5-VL-3B-Instruct"}
    assert resolve_profile(None, named, defaults).profile.name == "vanilla-sd-auto"
    row(drafts=[recommended.PLAINLY] * 15)
    plain = resolve_profile(None, KEYS, defaults).profile
    assert plain.name == "ar" and plain.drafter is None


def test_the_default_of_a_lone_target_needs_no_second_model(tmp_path):
    from vidspec.config.user_config import UserConfig
    from vidspec.decoding.default_profile import resolve_profile

    keys, defaults = {"models.target": "somebody/else", "video.frames": 4}, UserConfig(tmp_path / "config.yaml")
    found = resolve_profile(None, keys, defaults)
    profile = found.profile
    assert profile.name == "suffix" and profile.drafter is not None and profile.video.frames == 4
    assert profile.named_models == ("somebody/else",) and "so it drafts from earlier captions" in found.note
