"""Qwen3-Omni's thinker behind our interface gives what the stock thinker gives, with sound and without."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor

from tests.checkpoints import checkpoint
from tests.checkpoints.qwen2_5_omni import sound
from tests.checkpoints.qwen3_omni_moe import NAMED, PROCESSOR, adapter, pixels, stock
from tests.models.closeness import assert_close
from tests.models.parity import (
    PROMPT,
    SoundCase,
    check_chunks,
    check_decoders,
    check_generate,
    check_profiles,
    check_rollback,
    check_tree,
)
from tests.models.test_exact_profiles import PROFILES
from tests.ready_clips import dubbed
from tests.tiers import full_but
from vidspec.embedded.samples import shipped
from vidspec.models import loading
from vidspec.models.families import qwen3_omni_moe
from vidspec.models.families.qwen2_5_vl import seconds_per_step
from vidspec.models.placement import resolve_placement
from vidspec.video import Clip

NEW = [300, 41, 317, 77, 260, 123, 338, 9, 41]
SETTINGS = ("feature_size", "chunk_length", "hop_length", "n_fft", "sampling_rate")


class OmniCase(SoundCase):
    def __init__(self, heard=0.0, every=0.7, **shape):
        model = adapter()
        super().__init__(model, stock(), pixels(model, every=every, heard=heard, **shape))


@pytest.fixture(scope="module", params=[0.0, 3.1], ids=["silent", "sound"])
def case(request):
    return OmniCase(request.param)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("heard", [0.0, 0.05, 2.0, 7.3])
@pytest.mark.parametrize("every", full_but([0.7, 2.0], [0.04, 0.7, 2.0, 3.3]))
def test_positions_are_the_librarys(every, heard):
    """Fractions of a position where a step is no whole number of them long."""
    case = OmniCase(heard, every=every)
    positions = case.positions(1)
    assert torch.equal(case.prefix.positions, positions[..., :-1])
    assert positions[..., -1].tolist() == [[case.prefix.next_position]] * 3


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("heard", "every"), [(0.05, 0.5), (3.1, 0.5), (7.0, 0.77)])
def test_prompt_and_spectrum_are_the_processors(heard, every):
    """The library's own code for the sound, and for what stands in the place of the video."""
    library = object.__new__(Qwen3OmniMoeProcessor)
    for name, token in NAMED.items():
        setattr(library, name, token)
    library.feature_extractor = WhisperFeatureExtractor(**{key: PROCESSOR[key] for key in SETTINGS})
    library.video_processor = SimpleNamespace(merge_size=2)
    model, samples = adapter(), sound(heard)
    frames = np.random.RandomState(0).randint(0, 256, (5, 60, 90, 3), dtype=np.uint8)
    made = model.preprocess(Clip(frames, np.arange(5) * every, None, samples))
    theirs, _ = library._process_audio([samples], **library.audio_kwargs, return_tensors="pt")
    expected = theirs["input_features"][0][:, theirs["feature_attention_mask"][0].bool()]
    assert torch.equal(made.sound, expected)
    about = {"video_grid_thw": np.array([made.grid]), "video_second_per_grid": [seconds_per_step(made.seconds)]}
    video = library.replace_video_with_audio_token(about, 0, theirs, 0, position_id_per_seconds=13.0)
    text = f"<|im_start|>user\n<|vision_start|>{video}<|vision_end|>{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    prefix = model.prefix(model.encode(made), PROMPT)
    assert prefix.token_ids.tolist() == model.tokenizer.encode(text)
    assert len(prefix.audio) == model.audio_tokens(len(samples)) == int(theirs["num_audio_tokens"][0])
    assert len(prefix.visual) == model.visual_tokens(5, 60, 90) == 3 * 140


@pytest.mark.parametrize("samples", [0, 100, 200])
def test_too_short_to_hear(samples):
    frames = np.zeros((2, 60, 90, 3), np.uint8)
    assert adapter().preprocess(Clip(frames, np.arange(2.0), None, np.zeros(samples, np.float32))).sound is None


@pytest.mark.sample(quick=1)
def test_decoding(case):
    assert case.model.decoder.name == "stock" and "are not fused" in case.model.decoder.why
    check_decoders(case, NEW)
    check_chunks(case, NEW, [1, 5, 3])
    check_rollback(case, NEW, [300, 301, 302, 303, 304])
    check_tree(case, NEW, [300, 301, 302, 303, 304, 305, 306])


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("every", [0.7, 2.0])
def test_greedy_decoding_is_generate(every):
    check_generate(OmniCase(3.1, every=every))


def test_pooled_features(case):
    pooled = case.model.encode(case.pixels, pooled=True)
    assert pooled.grid == (3, 2, 3) and len(pooled.deepstack) == 3 and torch.isfinite(pooled.features).all()
    assert case.seen.grid == (3, 3, 5)


@pytest.mark.full
def test_sound_is_encoded_in_parts(monkeypatch):
    """Parts of whole windows give what the tower gives at once; a rest shorter than a piece goes with the last."""
    for heard, count in ((4.5, 2), (6.0, 3)):
        whole = OmniCase(heard)
        lone = whole.model.encode_spectrum(whole.pixels.sound)
        monkeypatch.setattr(qwen3_omni_moe, "BUDGET", 1)
        parts = list(whole.model.split_spectrum(whole.pixels.sound))
        assert len(parts) == count and sum(part.shape[1] for part in parts) == whole.pixels.sound.shape[1]
        torch.testing.assert_close(whole.model.encode(whole.pixels).audio, lone, rtol=0, atol=1e-5)
        monkeypatch.undo()


@pytest.mark.full
def test_profiles_are_exact(tmp_path):
    place = resolve_placement("cpu", "float32")
    target, draft = (
        loading.load_model(str(checkpoint("qwen3_omni_moe", **one)), place) for one in ({}, {"noise": 0.03})
    )
    assert_close(target.model.lm_head.weight, stock().lm_head.weight)
    paths = list(shipped())[:4]
    clips = [dubbed(path, tmp_path / f"{path.stem}.mkv", sound(2.5, seed)) for seed, path in enumerate(paths[:3])]
    settings = {"generate.max_new_tokens": 12, "video.frames": 4}
    check_profiles(target, draft, PROFILES, [*clips, str(paths[3])], settings)
