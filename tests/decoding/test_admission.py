"""Clips in flight at once, by the memory of devices: models of published sizes, without weights."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from tests.checkpoints import checkpoint, readable
from tests.ready_clips import ReadyClips
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.admission import SHARE, MemoryClaim, has_room, memory_claims, needed_bytes, reserve_memory
from vidspec.engine.slab import Slab
from vidspec.events.events import Opened, SourceFacts
from vidspec.models.families.llava_onevision import LlavaOnevision
from vidspec.models.request import CaptionRequest
from vidspec.models.vision import BUDGET
from vidspec.video import Clip

FRAMES = 64
TEXTS = {
    "7b": {
        "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, "vocab_size": 152128,
    },
    "0.5b": {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "vocab_size": 152000, "tie_word_embeddings": True,
    },
}  # fmt: skip
TOWER = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "image_size": 384, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip


@cache
def model(name, device="meta"):
    """LLaVA-OneVision of that size in bfloat16, without weights."""
    words = readable.tokenizer()
    ids = {f"{kind}_token_id": words.convert_tokens_to_ids(f"<{kind}>") for kind in ("image", "video")}
    text = {"model_type": "qwen2", "max_position_embeddings": 32768, "tie_word_embeddings": False, **TEXTS[name]}
    config = LlavaOnevisionConfig(
        vision_config=TOWER, text_config=text, vision_feature_select_strategy="full", vision_feature_layer=-1,
        tie_word_embeddings=text["tie_word_embeddings"], **ids,
    )  # fmt: skip
    with torch.device(device):
        stock = LlavaOnevisionForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    return LlavaOnevision(name, stock, words, {"size": {"height": 384, "width": 384}})


@pytest.fixture
def loaded():
    settings = {"models.device": "cpu", "models.dtype": "float32", "video.frames": 4}
    with Captioner.from_profile(
        "ar", overrides={**settings, "models.target": str(checkpoint("readable"))}
    ) as captioner:
        yield captioner


def captioner(name="vanilla-sd"):
    """A captioner with slabs of its own, in which nothing is allocated."""
    profile = profiles.load(name, {"video.frames": FRAMES, "generate.max_new_tokens": 512}, env={})
    draft = model("0.5b").with_own_slab() if profile.draft.has_model else None
    return Captioner(profile, model("7b").with_own_slab(), draft)


def clip(key, frames=FRAMES):
    shown = np.broadcast_to(np.zeros((1, 384, 384, 3), np.uint8), (frames, 384, 384, 3))
    return CaptionRequest(
        "",
        Clip(shown, np.arange(float(frames)), SourceFacts("", 9.0, 384, 384, "", "", 1.0, False, 0, 64, "")),
        key=key,
    )


def free(monkeypatch, size):
    monkeypatch.setattr("vidspec.decoding.admission.free_memory", lambda device: size)


def admitted(made, clips=40):
    """Clips that are begun before any has been read."""
    with_slabs = made.client.serve(ReadyClips(clip(key) for key in range(clips)), batch=clips)
    count = 0
    for _, event in with_slabs:
        if not isinstance(event, Opened):
            break
        count += 1
    with_slabs.close()
    return count


@pytest.mark.full
def test_eight_clips_of_64_frames_are_in_flight_within_24_gb_beside_a_7b_and_a_half_b(monkeypatch):
    made = captioner()
    slabs = [one.model.decoder.slab for one in memory_claims(made.client.setup, clip(0))]
    monkeypatch.setattr(
        "vidspec.decoding.admission.free_memory",
        lambda device: int(24e9) - sum(slab.capacity * slab.entry_bytes for slab in slabs),
    )
    assert admitted(made) >= 8 and [slab.version for slab in slabs] == [1, 1]


def test_what_a_clip_takes():
    made = captioner()
    target, draft = memory_claims(made.client.setup, clip(0))
    visual = FRAMES * 14**2 + 1
    text = target.entries - visual - made.client.setup.room
    assert 0 < text < 100 and draft.entries == target.entries
    for claim, hidden in ((target, 3584), (draft, 896)):
        assert claim.prompt == (2 * visual + text) * hidden * 2  # the visual tokens, and all of the prompt, bfloat16
        assert claim.tower == BUDGET
    assert target.model.decoder.slab.entry_bytes == 28 * 2 * 4 * 128 * 2
    assert draft.model.decoder.slab.entry_bytes == 24 * 2 * 2 * 64 * 2


def test_clips_that_are_being_read_count_with_their_prompts(monkeypatch):
    made = captioner()
    claims = memory_claims(made.client.setup, clip(0))
    kept = sum(one.entries * one.model.decoder.slab.entry_bytes for one in claims)
    read = sum(one.prompt for one in claims)
    for count in (1, 3):
        enough = (count * (kept + read) + BUDGET) / SHARE
        free(monkeypatch, int(enough) + 2)
        assert has_room(claims * count) and not has_room(claims * (count + 1))
        free(monkeypatch, int(enough) - 2)
        assert not has_room(claims * count)
    free(monkeypatch, None)
    assert has_room(claims * 1000)


def test_a_target_that_drafts_takes_its_own_slab_twice():
    first, second = memory_claims(captioner("self-sd").client.setup, clip(0))
    assert first.model is second.model and first.entries == second.entries and second.prompt == second.tower == 0


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("device", "shares"), [("meta", True), ("cpu", False)])
def test_a_draft_in_another_process_counts_on_the_device_of_the_target(device, shares):
    profile = profiles.load("parallelvlm", {"video.frames": FRAMES}, env={})
    slot = SimpleNamespace(device=torch.device(device))
    target, *beside = memory_claims(
        Captioner(profile, model("7b").with_own_slab(), None, slot=slot).client.setup, clip(0)
    )
    assert len(beside) == shares
    for other in beside:  # its slab is not this one
        keys = target.entries * target.model.decoder.slab.entry_bytes
        assert other[1:] == (0, target.prompt, target.tower, keys)


def test_layers_count_on_their_devices():
    meta, cpu = torch.device("meta"), torch.device("cpu")
    slab = Slab(2, 8, torch.float32, [meta, cpu, cpu])
    model = SimpleNamespace(device=meta, decoder=SimpleNamespace(slab=slab, state_bytes=100, graphs=None))
    layer = 2 * 2 * 8 * 4 * 10
    assert needed_bytes([MemoryClaim(model, 10)]) == {meta: layer + 100, cpu: 2 * layer}


def test_passes_to_capture_count_once_for_each_model():
    slab, meta = Slab(2, 8, torch.float32, [torch.device("meta")]), torch.device("meta")
    graphs = SimpleNamespace(bytes_to_capture=1000)
    model = SimpleNamespace(device=meta, decoder=SimpleNamespace(slab=slab, state_bytes=0, graphs=graphs))
    assert needed_bytes([MemoryClaim(model, 0), MemoryClaim(model, 0)]) == {meta: 1000}


def test_slabs_on_a_device_are_allocated_once_for_all_that_fit(monkeypatch):
    """Admissions do not move them, which would void captured passes; a longer clip still does."""
    free(monkeypatch, int(24e9))
    made = captioner()
    claims = memory_claims(made.client.setup, clip(0))
    slabs = [one.model.decoder.slab for one in claims]
    reserve_memory(claims, 32)
    count, left = divmod(slabs[0].capacity, claims[0].entries)
    assert 8 <= count < 32 and left < 1024 and [slab.version for slab in slabs] == [1, 1]
    assert slabs[1].capacity == slabs[0].capacity
    spans = [slab.open(claim.entries) for claim, slab in zip(claims, slabs, strict=True) for _ in range(count)]
    assert len(spans) == 2 * count and [slab.version for slab in slabs] == [1, 1]
    more = slabs[0].open(claims[0].entries)
    assert slabs[0].version == 2 and more.room == claims[0].entries
    reserve_memory(claims, 1)
    assert slabs[1].version == 1


@pytest.mark.full
def test_on_a_cpu_nothing_is_allocated_ahead(loaded):
    claims = memory_claims(loaded.client.setup, clip(0, frames=4))
    reserve_memory(claims, 4)
    assert [one.model.decoder.slab.capacity for one in claims] == [0]
