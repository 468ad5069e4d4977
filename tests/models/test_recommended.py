"""The table of default drafts: what is read from it, and the cards it knows."""

import re
from pathlib import Path

import pytest

from vidspec.errors import UsageError
from vidspec.models.known_pairs import MemoryWorkload, known_model, listed_models
from vidspec.models.recommended import PLAINLY, card_of_device, cards, default_on, named_card, video_scores

TARGET = "Qwen/Qwen2.5-VL-7B-Instruct"


def on(key, target=TARGET, load=None, heads=()):
    return default_on(cards()[key], known_model(target), load or MemoryWorkload(), heads)


def test_memory_is_that_of_the_clip():
    known, entry = known_model(TARGET), 2 * known_model(TARGET).kv_per_token
    short, long = on("h100"), on("h100", load=MemoryWorkload(new_tokens=1512))
    assert long.bytes - short.bytes == 1000 * entry and short.draft == "self-int8"
    copy = short.bytes - known.weight_bytes("bfloat16") - known.kv_bytes(MemoryWorkload(dtype="bfloat16"))
    assert 7e9 < copy < 7.2e9
    target, draft = "llava-hf/llava-onevision-qwen2-7b-ov-hf", "llava-hf/llava-onevision-qwen2-0.5b-ov-hf"
    both = [2 * known_model(name).kv_per_token for name in (target, draft)]
    pair = [on("h100", target, load) for load in (None, MemoryWorkload(new_tokens=1512))]
    assert pair[0].draft == draft and pair[1].bytes - pair[0].bytes == 1000 * sum(both)


def test_the_page_has_the_least_gain_of_cards_of_its_memories():
    """The item of each memory names targets and the gain of their default drafts."""
    page = (Path(__file__).parents[2] / "docs" / "use" / "own-models.md").read_text()
    items = re.findall(r"^- (\d+) GB: (.*(?:\n  .*)*)", page, re.MULTILINE)
    assert [int(memory) for memory, _ in items] == [16, 24, 80]
    for memory, taken in items:
        alike = [key for key, card in cards().items() if card.memory == int(memory) * 10**9]
        for target, gain in zip(re.findall("`([^`]*)`", taken), re.findall(r"[\d.]+x", taken), strict=True):
            assert gain == f"{min(on(key, target).gain for key in alike):.1f}x", target
        stated = re.findall(r"Video-MME ([\d.]+)", taken)
        assert stated == [f"{video_scores()[target].score:.1f}" for target in re.findall("`([^`]*)`", taken)]


def test_published_scores_are_of_listed_models_and_name_an_address():
    scores = video_scores()
    assert set(scores) <= set(listed_models()) and len(scores) > 25
    assert all(0 < one.score < 100 and re.match(r"https://[\w.-]+/\S+$", one.source) for one in scores.values())
    table = (Path(__file__).parents[2] / "vidspec" / "models" / "video_scores.yaml").read_text()
    assert len(re.findall(r"^    \S+/\S+: [\d.]+$", table, re.MULTILINE)) == len(scores)  # each model stands once


def test_targets_that_do_not_fit_or_are_unknown_have_no_default():
    assert on("4080", TARGET) is None and on("h200", "Qwen/Qwen2.5-VL-72B-Instruct") is None
    assert on("b200", "Qwen/Qwen2.5-VL-3B-Instruct").draft == PLAINLY


def test_a_head_counts_only_if_it_is_here():
    head = "Rayzl/qwen2.5-vl-7b-eagle3-sgl"
    assert on("h100", heads={head}).draft == head and on("h100", heads={"x/y"}).draft == "self-int8"
    assert on("h100", heads={head}).gain > on("h100").gain


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "6000ada"),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA H100 NVL", None),
        ("Tesla T4", None),
    ],
)
def test_names_of_the_driver(name, key):
    assert card_of_device(name) == (key and cards()[key])


def test_names_that_users_type():
    assert named_card("H100") == cards()["h100"] and named_card("RTX 4090") == cards()["4090"]
    assert named_card("a100-40GB") == cards()["a100-40gb"]
    with pytest.raises(UsageError, match="--card h10: not in the table") as error:
        named_card("h10")
    assert error.value.hint.startswith("did you mean h100? the known ones are l4, ")
    with pytest.raises(UsageError, match="--card gaudi: not in the table") as error:
        named_card("gaudi")
    assert error.value.hint.startswith("the known ones are l4, ")


@pytest.mark.parametrize("name", ["t4", "Tesla T4", "V100", "RTX 2080", "rtx-2080", "2080"])
def test_cards_whose_passes_are_not_replayed(name):
    with pytest.raises(UsageError, match="gains are predicted from compute capability"):
        named_card(name)
