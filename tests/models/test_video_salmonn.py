"""video-SALMONN 2+ gives what the authors' code gives, with sound and without; see ``record_video_salmonn.py``."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import checkpoint, copy_checkpoint, qwen
from tests.checkpoints.qwen2_5_omni import sound
from tests.checkpoints.video_salmonn import pixels
from tests.engine.passing import forward
from tests.models.parity import PROMPT, check_profiles
from tests.models.record_video_salmonn import COLUMNS, NEW, PATCH_VALUES, ROWS, noise
from tests.ready_clips import dubbed
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.errors import ModelError
from vidspec.escaping import mark_value
from vidspec.models.base import Pixels
from vidspec.models.checkpoint_config import read_config
from vidspec.models.families.video_salmonn2_plus import audio_per_step
from vidspec.models.loading import load_model
from vidspec.models.placement import resolve_placement
from vidspec.video import Clip

PLACE = resolve_placement("cpu", "float32")
RECORDED = json.loads((Path(__file__).parent / "fixtures" / "video_salmonn.json").read_text())


@pytest.fixture(scope="module")
def loaded():
    return load_model(str(checkpoint("video_salmonn2_plus")), PLACE)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("found", RECORDED, ids=[f"{one['steps']}-{one['heard']}" for one in RECORDED])
def test_texts_are_the_authors(found, loaded):
    steps, heard = found["steps"], found["heard"]
    grid = steps, 2 * ROWS, 2 * COLUMNS
    patches = torch.randn(int(np.prod(grid)), PATCH_VALUES, generator=torch.Generator().manual_seed(0))
    seconds = tuple(found["every"] * step for step in range(steps))
    shown = Pixels(patches, grid, seconds, sound=loaded.spectrum(noise(heard)) if heard else None)
    prefix = loaded.prefix(loaded.encode(shown), PROMPT)
    assert prefix.token_ids.tolist() == found["prompt"]
    assert prefix.positions[:, 0].tolist() == found["positions"]
    assert len(prefix.audio) == loaded.audio_tokens(len(noise(heard)))
    engine = Engine(loaded)
    read = engine.prefill(prefix, NEW)
    text = [int(read.logits.argmax())]
    while len(text) < len(found["text"]):
        text.append(int(forward(engine, read, text[-1:]).logits[-1].argmax()))
    assert text == found["text"]


def test_sound_ends_before_the_video(loaded):
    """Thirty seconds of sound to two minutes of video: no step gets more than there is left."""
    assert audio_per_step(60, tuple(range(0, 120, 12))) == [24, 24, 12, *[0] * 7]
    prefix = loaded.prefix(loaded.encode(pixels(loaded, frames=12, every=12.0, heard=1.0)), PROMPT)
    assert len(prefix.audio) == 60 and len(prefix.audio.unique()) == 60


def test_pruning_keeps_the_sound(loaded):
    seen = loaded.encode(pixels(loaded, heard=3.1))
    prefix = loaded.prefix(seen, f"What is {mark_value('<|audio_pad|>')}?")
    assert len(prefix.audio) == len(seen.audio) == 60
    assert torch.equal(prefix.embeds[0, prefix.audio], seen.audio)
    assert int(prefix.text_rows_after_video[0]) == int(prefix.audio[-1]) + 1
    less = prefix.keep(torch.arange(1, len(prefix.visual), 3))
    assert torch.equal(less.embeds[0, less.audio], seen.audio)
    assert torch.equal(less.positions[..., less.audio], prefix.positions[..., prefix.audio])


def test_a_clip_without_sound(loaded):
    frames = np.zeros((4, 60, 90, 3), np.uint8)
    for samples in (None, np.zeros(0, np.float32)):
        shown = loaded.preprocess(Clip(frames, np.arange(4.0), None, samples))
        assert shown.sound is None and loaded.encode(shown).audio is None
    heard = loaded.preprocess(Clip(frames, np.arange(4.0), None, sound(30.5)))
    assert heard.sound.shape == (16, 6000) and loaded.audio_tokens(488000) == 120


@pytest.mark.full
def test_a_model_in_parts(loaded):
    """The audio tower is on one device as a whole, here on none."""
    parts = {"model": "cpu", "lm_head": "cpu", "audio": "disk"}
    spread = load_model(str(checkpoint("video_salmonn2_plus")), resolve_placement("cpu", device_map=parts))
    assert spread.model.audio.q_tokens.is_meta and "SalmonnAudioEncoder" in spread.model._no_split_modules
    shown = pixels(loaded, heard=3.1)
    torch.testing.assert_close(spread.encode(shown).audio, loaded.encode(shown).audio, rtol=0, atol=1e-5)


def refused(folder, changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    audio = config["audio_config"]
    audio["qformer_config"] |= changes.pop("qformer_config", {})
    audio |= changes.pop("audio_config", {})
    path.write_text(json.dumps(config | changes))
    with pytest.raises(ModelError) as error:
        load_model(str(folder), PLACE)
    assert str(folder) in error.value.message
    return error.value.message


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "of architecture Qwen2_5_VL"),
        ({"architectures": None}, "of architecture none"),
        ({"audio_config": {"second_per_window": 0.333}}, "audio_config.second_per_window 0.333 is not supported"),
        ({"qformer_config": {"query_length": 2}}, "audio_config.qformer_config.query_length 2"),
        ({"audio_config": {"encoder_layers": 3}}, "weights are not in the files, audio.layers.2"),
        ({"audio_token_id": 5000}, "no token 5000, its audio_token_id"),
    ],
)
def test_other_sound_is_refused(tmp_path, changes, what):
    copy_checkpoint(tmp_path, "video_salmonn2_plus")
    assert what in refused(tmp_path, changes)


def test_the_architecture_alone_says_that_it_hears(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_vl", "architectures": ["video_SALMONN2_plus"]}')
    assert read_config(str(tmp_path)).model_type == "video_salmonn2_plus"


def test_an_audio_branch_is_not_left_out(tmp_path):
    """Weights of a Qwen2.5-VL whose config names no sound."""
    copy_checkpoint(tmp_path, qwen.QwenKind(tied=False))
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "audio.conv1.weight": torch.ones(32, 128, 3)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"not part of the model, audio\.conv1"):
        load_model(str(tmp_path), PLACE)


PROFILES = (
    *("vanilla-sd", "specvlm", "specvlm-chain", "sd-frame", "uv-sequential", "hippo-sequential", "self-sd"),
    *("self-specvlm", "self-int8", "std", "sd-tree", "tabed-mtcp", "suffix", "hippo"),
)


@pytest.mark.full
def test_profiles_are_exact(loaded, tmp_path):
    """Clips with sound and one without."""
    draft = load_model(str(checkpoint("video_salmonn2_plus", noise=0.03, padding=40)), PLACE)
    paths = list(shipped())[:4]
    clips = [dubbed(path, tmp_path / f"{path.stem}.mkv", sound(2.5, seed)) for seed, path in enumerate(paths[:3])]
    check_profiles(loaded, draft, PROFILES, [*clips, str(paths[3])], {"generate.max_new_tokens": 24, "video.frames": 4})
