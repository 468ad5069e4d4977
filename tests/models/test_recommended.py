"""The table of predicted speeds: what is read from it, and the cards it knows."""

import re
from pathlib import Path

import pytest

from vidspec.errors import UsageError
from vidspec.models.known_pairs import MemoryWorkload, known_model
from vidspec.models.recommended import card_of_device, cards, named_card, predictions, predictions_of_published

TARGET = "Qwen/Qwen2.5-VL-7B-Instruct"
DRAFT = "Qwen/Qwen2.5-VL-3B-Instruct"


def found_on(key, load=None, free=None, without=()):
    return predictions_of_published(known_model(TARGET), cards()[key], load or MemoryWorkload(), free, without)


def test_speeds_are_those_of_the_card_and_memory_is_that_of_the_clip():
    slow, fast = (found_on(key).found for key in ("l4", "h100"))
    assert slow[0].name == "plain decoding" and 8 < fast[0].tokens_per_s / slow[0].tokens_per_s < 12
    assert all(one.gain == pytest.approx(one.tokens_per_s / fast[0].tokens_per_s) for one in fast)
    longer = found_on("h100", MemoryWorkload(new_tokens=1512))
    entry, of_draft = (2 * known_model(name).kv_per_token for name in (TARGET, DRAFT))
    more = {one.name: after.bytes - one.bytes for one, after in zip(fast, longer.found, strict=True)}
    assert more["plain decoding"] == more["self-int4"] == 1000 * entry and more[DRAFT] == 1000 * (entry + of_draft)


def test_the_page_has_the_least_gain_of_cards_of_its_memories():
    """The item of each memory names targets and, in words, their drafts."""
    drafts = {"Qwen/Qwen3-VL-32B-Instruct": "Qwen/Qwen3-VL-2B-Instruct"}
    drafts["llava-hf/llava-onevision-qwen2-7b-ov-hf"] = "llava-hf/llava-onevision-qwen2-0.5b-ov-hf"
    page = (Path(__file__).parents[2] / "docs" / "use" / "own-models.md").read_text()
    items = re.findall(r"^- (\d+) GB: (.*(?:\n  .*)*)", page, re.MULTILINE)
    assert [int(memory) for memory, _ in items] == [16, 24, 80]
    for memory, taken in items:
        alike = [key for key, card in cards().items() if card.memory == int(memory) * 10**9]
        for target, gain in zip(re.findall("`([^`]*)`", taken), re.findall(r"[\d.]+x", taken), strict=True):
            model, draft = known_model(target), drafts.get(target, "self-int4")
            every = [predictions_of_published(model, cards()[key], MemoryWorkload(), None).found for key in alike]
            found = [one.gain for on_card in every for one in on_card if one.name == draft]
            assert len(found) == len(alike) and gain == f"{min(found):.1f}x", target


def test_what_fits_is_by_free_memory():
    plain = found_on("h100").found[0].bytes
    fitting = {one.name: one.fits for one in found_on("h100", free=plain + 4.2e9).found}
    assert fitting["plain decoding"] and fitting["self-int4"] and not fitting["self-int8"]
    assert {one.fits for one in found_on("h100").found} == {None}
    # A target is rounded on the card, which needs its weights in 16 bits there.
    weights = known_model(TARGET).weight_bytes("bfloat16")
    assert [found_on("h100", free=free).rounded.fits for free in (weights - 1, weights)] == [False, True]


def test_drafts_may_be_left_out_and_unknown_targets_have_no_row():
    assert "self-int4" not in [one.name for one in found_on("h100", without=["self-int4"]).found]
    assert predictions("somebody/a-model", cards()["h100"], MemoryWorkload(), None, None, None) is None


def test_copies_of_a_hybrid_read_the_prompt_again():
    hybrid = predictions_of_published(known_model("Qwen/Qwen3.5-9B"), cards()["h100"], MemoryWorkload(), None)
    by_name = {one.name: one.draft for one in hybrid.found}
    assert by_name["self-int4"].arguments == "--profile self-int4 --set draft.prefill=again"
    assert hybrid.eager_launches == 24 * 101 + 8 * 69 + 33 and found_on("h100").eager_launches == 0
    smaller = found_on("h100").found
    assert [one.draft.arguments for one in smaller if one.name in ("self-int8", DRAFT)] == [
        "--profile self-int8",
        f"--profile vanilla-sd-auto --draft {DRAFT}",
    ]


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
    with pytest.raises(UsageError, match="speeds are predicted from compute capability"):
        named_card(name)
