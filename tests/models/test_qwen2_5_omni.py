"""Qwen2.5-Omni's thinker behind our interface gives what the stock thinker gives, with sound and without."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor

from tests.checkpoints import checkpoint
from tests.checkpoints.qwen2_5_omni import NAMED, PROCESSOR, adapter, pixels, sound, stock
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, SoundCase, check_generate
from tests.ready_clips import dubbed, read_requests, serve_captions
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError
from vidspec.models import loading
from vidspec.models.families.qwen2_5_vl import seconds_per_step
from vidspec.models.placement import resolve_placement
from vidspec.models.vision import token_bytes
from vidspec.runs.reader import ClipReader
from vidspec.video import Clip

SEEDS = range(20)
NEW = [300, 41, 317, 77, 260, 123, 338, 9, 41]
SETTINGS = ("feature_size", "chunk_length", "hop_length", "n_fft", "sampling_rate")


class OmniCase(SoundCase):
    """The thinker behind our interface, the same untouched, and a prompt of both."""

    def __init__(self, heard=0.0, seed=0, every=0.7, prompt=PROMPT, **shape):
        model = adapter(seed)
        super().__init__(model, stock(seed), pixels(model, seed=seed, every=every, heard=heard, **shape), prompt)


@pytest.fixture(scope="module", params=[0.0, 3.1], ids=["silent", "sound"])
def case(request):
    return OmniCase(request.param)


@pytest.mark.sample(quick=1, full=18)
@pytest.mark.parametrize("heard", [0.0, 0.05, 1.2, 2.0, 7.3, 11.99])
@pytest.mark.parametrize("every", full_but([0.7, 2.0], [0.04, 0.7, 1.0, 2.0, 3.3, 12.5]))
def test_positions_are_the_librarys(every, heard):
    case = OmniCase(heard, every=every)
    positions = case.positions(1)
    assert torch.equal(case.prefix.positions, positions[..., :-1])
    assert positions[..., -1].tolist() == [[case.prefix.next_position]] * 3


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("heard", "every"), [(0.05, 0.5), (3.1, 0.5), (7.0, 1.0), (11.9, 3.5), (14.0, 1.0)])
def test_prompt_and_spectrum_are_the_processors(heard, every):
    """The library's own code for the sound, and for what stands in the place of the video."""
    library = object.__new__(Qwen2_5OmniProcessor)
    for name, token in NAMED.items():
        setattr(library, name, token)
    library.feature_extractor = WhisperFeatureExtractor(**{key: PROCESSOR[key] for key in SETTINGS})
    library.video_processor = SimpleNamespace(merge_size=2)
    model, samples = adapter(), sound(heard)
    frames = np.random.RandomState(0).randint(0, 256, (5, 60, 90, 3), dtype=np.uint8)
    made = model.preprocess(Clip(frames, np.arange(5) * every, None, samples))
    theirs, _ = library._process_audio([samples], **library.audio_kwargs, return_tensors="pt")
    expected = theirs["input_features"][0][:, theirs["feature_attention_mask"][0].bool()]
    torch.testing.assert_close(made.sound, expected, rtol=0, atol=1e-5)
    about = {"video_grid_thw": np.array([made.grid]), "video_second_per_grid": [seconds_per_step(made.seconds)]}
    times = {key: getattr(library, key) for key in ("position_id_per_seconds", "seconds_per_chunk")}
    video = library.replace_video_with_audio_token(about, 0, theirs, 0, **times)
    contents = [{"type": "video"}, {"type": "text", "text": PROMPT}]
    text = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": contents}],
        chat_template=model.template.source,
        add_generation_prompt=True,
        tokenize=False,
    )
    prefix = model.prefix(model.encode(made), PROMPT)
    assert prefix.token_ids.tolist() == model.tokenizer.encode(text.replace("<|VIDEO|>", video))
    assert len(prefix.audio) == model.audio_tokens(len(samples)) == int(theirs["num_audio_tokens"][0])
    assert len(prefix.visual) == model.visual_tokens(5, 60, 90)


def test_too_short_to_hear():
    frames = np.zeros((2, 60, 90, 3), np.uint8)
    made = adapter().preprocess(Clip(frames, np.arange(2.0), None, np.zeros(100, np.float32)))
    assert made.sound is None


@pytest.mark.sample(quick=1)
def test_prefill_and_windows(case):
    read = case.engine.prefill(case.prefix, 32)
    assert_close(read.logits, case.expected()[-1])
    assert case.model.decoder.name == "fused"
    expected = case.expected(NEW)[case.prefix.length :]
    for size in range(1, 10):
        read.span.rollback(case.prefix.length)
        assert_close(forward(case.engine, read, NEW[:size]).logits, expected[:size])


@pytest.mark.full
@pytest.mark.parametrize("heard", [0.0, 2.3])
def test_plain_decoding_is_generate(heard):
    for seed in SEEDS:
        check_generate(OmniCase(heard, seed))


@pytest.mark.full
def test_sound_is_heard_in_parts(monkeypatch):
    """A tower that may take little at a time gives what it gives at once; a rest too short for a token counts."""
    for heard, count in ((7.3, 2), (8.01, 2), (8.03, 3)):
        whole = OmniCase(heard)
        monkeypatch.setattr(
            "vidspec.models.families.qwen2_5_omni.BUDGET", 200 * token_bytes(whole.model.model.config.audio_config)
        )
        parts = list(whole.model.split_spectrum(whole.pixels.sound))
        assert len(parts) == count and sum(part.shape[1] for part in parts) == whole.pixels.sound.shape[1]
        torch.testing.assert_close(whole.model.encode(whole.pixels).audio, whole.seen.audio, rtol=0, atol=1e-5)
        monkeypatch.undo()


@pytest.mark.full
def test_what_is_heard_is_neither_seen_nor_text():
    with pytest.raises(GenerationError, match=r"the prompt holds <\|AUDIO\|>, a control token"):
        OmniCase(3.1, prompt="What does <|AUDIO|> mean?")
    case = OmniCase(3.1)
    prefix, heard = case.prefix, len(case.seen.audio)
    assert (prefix.token_ids == case.model.audio_id).sum() == heard == len(prefix.audio)
    assert torch.equal(prefix.embeds[0, prefix.audio], case.seen.audio)
    assert int(prefix.audio[-1]) > int(prefix.visual.index[-1])  # what is heard at the end comes last
    assert int(prefix.text_rows_after_video[0]) == int(prefix.audio[-1]) + 1
    assert len(prefix.text_ids) == prefix.length - heard - len(prefix.visual)
    for kept in (torch.arange(0), torch.arange(1, len(prefix.visual), 3)):
        less = prefix.keep(kept)
        assert torch.equal(less.embeds[0, less.audio], case.seen.audio)
        assert torch.equal(less.positions[..., less.audio], prefix.positions[..., prefix.audio])


def test_pooled_features(case):
    pooled = case.model.encode(case.pixels, pooled=True)
    assert pooled.grid == (3, 2, 3) and torch.isfinite(pooled.features).all()
    prefix = case.model.prefix(pooled, PROMPT)
    assert len(prefix.audio) == len(case.prefix.audio)


PROFILES = (
    *("vanilla-sd", "specvlm", "specvlm-chain", "sd-frame", "uv-sequential", "hippo-sequential", "self-sd"),
    *("self-specvlm", "self-int8", "std", "sd-tree", "tabed-mtcp", "suffix", "hippo"),
)


@pytest.fixture(scope="module")
def pair():
    place, options = resolve_placement("cpu", "float32"), ({}, {"noise": 0.03, "padding": 40})
    target, draft = (loading.load_model(str(checkpoint("qwen2_5_omni", **one)), place) for one in options)
    return SimpleNamespace(target=target, draft=draft)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips that sound, and one that is silent."""
    folder = tmp_path_factory.mktemp("clips")
    paths = list(shipped())[:4]
    return [
        *(dubbed(path, folder / f"{path.stem}.mkv", sound(2.5, seed)) for seed, path in enumerate(paths[:3])),
        str(paths[3]),
    ]


def captioner(pair, name, **video):
    asked = {"generate.max_new_tokens": 24, "video.frames": 4} | {f"video.{key}": value for key, value in video.items()}
    profile = profiles.load(name, asked, env={})
    return Captioner(profile, pair.target, pair.draft if profile.draft.has_model else None)


@pytest.mark.full
def test_profiles_are_exact(pair, clips):
    records = {path: captioner(pair, "ar").caption(path) for path in clips}
    texts = {path: record.token_ids for path, record in records.items()}
    tokens = [records[path].counters["audio_tokens"] for path in clips]
    assert tokens[-1] == 0 and min(tokens[:-1]) > 40
    for number, name in enumerate(PROFILES):
        path = clips[number % 3]
        with captioner(pair, name) as drafting:
            record = drafting.caption(path)
        assert record.token_ids == texts[path], name
        assert record.counters["audio_tokens"] == records[path].counters["audio_tokens"]
    for name in ("ar", "specvlm"):
        four = captioner(pair, name)
        captions = serve_captions(four, read_requests(four, clips), batch=4)
        together = {key: caption.token_ids for key, caption in captions.items()}
        assert together == texts, name


@pytest.mark.full
def test_by_sight_alone(pair, clips):
    """Without its sound a clip is captioned as if it had none."""
    deaf = captioner(pair, "specvlm", audio=False)
    assert deaf.client.inputs.max_sound_s is None and captioner(pair, "specvlm").client.inputs.max_sound_s == 12
    record = deaf.caption(clips[0])
    assert record.counters["audio_tokens"] == 0 and deaf.client.inputs.read(clips[0]).sound is None
    silent = captioner(pair, "ar").caption("", clip=deaf.client.inputs.read(clips[0]))
    assert record.token_ids == silent.token_ids != captioner(pair, "ar").caption(clips[0]).token_ids


@pytest.mark.full
def test_sound_comes_through_the_reader(pair, clips):
    hearing = captioner(pair, "ar")
    reader = ClipReader(timeout=60)
    try:
        for path in (clips[0], clips[-1]):
            ours, theirs = (
                hearing.client.inputs.read(path),
                reader.read(path, None, None, {"frames": 4, "sound": hearing.client.inputs.max_sound_s}),
            )
            assert np.array_equal(ours.frames, theirs.frames)
            assert (ours.sound is None) == (theirs.sound is None) == (path == clips[-1])
            if ours.sound is not None:
                assert np.array_equal(ours.sound, theirs.sound) and ours.nbytes == theirs.nbytes > ours.frames.nbytes
    finally:
        reader.close()
