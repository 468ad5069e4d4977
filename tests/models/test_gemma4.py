"""Gemma 4 behind our interface gives what the stock model gives, for the prompt its processor writes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from transformers.video_utils import VideoMetadata

from tests.checkpoints import checkpoint
from tests.checkpoints.gemma4 import MOST, PATCH, POOL, WINDOW, adapter, stock
from tests.engine.passing import forward, poison
from tests.models import record_preprocess_gemma4
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_generate, check_profiles
from vidspec.captioner import Captioner
from vidspec.cli.checkpoint import inspect
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.engine.decoders import decoder_of
from vidspec.engine.gemma4 import Gemma4Decoder
from vidspec.engine.rows import Rows
from vidspec.errors import ProfileError
from vidspec.models import loading
from vidspec.models.families.gemma4 import Gemma4
from vidspec.models.families.gemma4_unified import Gemma4Unified
from vidspec.models.frame_rules import TokenGrid, fit_token_grid
from vidspec.models.placement import resolve_placement

RECORDED = Path(__file__).parent / "fixtures" / "preprocess_gemma4.npz"
SEEDS = range(20)
FRAMES = 3
#: As E2B and E4B are, and as the larger ones are.
KINDS = {
    "small": {},
    "large": {
        "use_bidirectional_attention": "vision",
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "experts": {
        "use_bidirectional_attention": "vision",
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
}
#: Without a tower.
KINDS["unified"] = {"unified": True}
NEW = [300, 41, 317, 77, 260, 123, 338, 9, 41]


def clip(height=40, width=60, seed=0):
    frames = np.random.RandomState(seed).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    return SimpleNamespace(frames=frames, timestamps=np.arange(FRAMES) * 33.4)


def made(kind="small", seed=0):
    model = adapter(seed=seed, **KINDS[kind])
    return ParityCase(model, stock(seed=seed, **KINDS[kind]), model.preprocess(clip(seed=seed)))


@pytest.fixture(scope="module", params=sorted(KINDS))
def case(request):
    return made(request.param)


@torch.inference_mode()
def whole(case, new=()):
    """Logits of the stock model's own forward over the prompt and ``new`` tokens, from the prompt's end on."""
    ids = torch.cat([case.prefix.token_ids, torch.tensor(new, dtype=torch.long)])[None]
    kinds = 2 * (ids == case.model.visual_id).long()
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
    logits = case.stock(**{**case.inputs, **given}, use_cache=False).logits[0, case.prefix.length - 1 :]
    return logits[:, : case.model.vocabulary]


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("name", record_preprocess_gemma4.CASES)
def test_pixels_are_the_processors(name, unified):
    most, _, height, width = record_preprocess_gemma4.CASES[name]
    model = object.__new__(Gemma4Unified if unified else Gemma4)
    model.patch, model.pool, model.mode = 48 if unified else 16, 1 if unified else 3, "bicubic"
    model.frame_rule = TokenGrid(48, model.pool, most)
    model.language = SimpleNamespace(embed_tokens=SimpleNamespace(weight=torch.empty(0)))
    model.vision_dtype = torch.float32
    frames = record_preprocess_gemma4.frames(name)
    pixels = model.preprocess(SimpleNamespace(frames=frames, timestamps=np.arange(len(frames))))
    recorded, name = np.load(RECORDED), f"{name}_unified" if unified else name
    values = pixels.values.numpy().reshape(-1)[:: record_preprocess_gemma4.STEP * (1 + unified)]
    np.testing.assert_allclose(values, recorded[name], rtol=0, atol=1e-6)
    _, places = model.patches(pixels)
    assert places[0].tolist() == recorded[f"{name}_places"].tolist()
    assert model.visual_tokens(len(frames), height, width) == len(frames) * places.shape[1] // model.pool**2


@pytest.fixture
def processing():
    """The library's, which some versions import with torchvision only."""
    return pytest.importorskip("transformers.models.gemma4.processing_gemma4", exc_type=ImportError)


@pytest.mark.parametrize("size", [(40, 60), (720, 1280), (10, 900), (700, 3), (384, 384)])
@pytest.mark.parametrize("most", [70, 280])
def test_sizes_are_the_processors(size, most, processing):
    expected = processing.get_aspect_ratio_preserving_size(*size, 16, most * 9, 3)
    assert tuple(48 * side for side in fit_token_grid(size, 48, most)) == expected


@pytest.mark.sample(quick=1)
def test_prompt_is_the_processors(case, processing):
    like = SimpleNamespace(boi_token="<|image>", eoi_token="<image|>", video_token="<|video|>")
    each = len(case.prefix.visual) // FRAMES
    about = VideoMetadata(4000, fps=1 / 33.4, frames_indices=list(range(FRAMES)))
    shown = {"num_soft_tokens_per_video": [each], "video_metadata": [about]}
    video = processing.Gemma4Processor.replace_video_token(like, shown, 0)
    assert video.startswith("00:00 <|image><|video|>") and " 01:06 <|image>" in video
    text = f"<bos><|turn>user\n\n\n{video}\n\n{PROMPT}<turn|>\n<|turn>model\n"
    assert case.prefix.token_ids.tolist() == case.model.tokenizer.encode(text, add_special_tokens=False)
    assert each == case.model.visual_tokens(1, 40, 60) <= MOST
    rows, columns = fit_token_grid((40, 60), PATCH * POOL, MOST)
    assert case.prefix.visual.frame.tolist() == [frame for frame in range(FRAMES) for _ in range(each)]
    assert case.prefix.visual.row[: columns + 1].tolist() == [0] * columns + [1]
    assert case.prefix.visual.column[:each].tolist() == list(range(columns)) * rows


@torch.inference_mode()
def test_features_are_the_towers(case):
    """The library pads a frame's patches; ours are as many as there are."""
    values, places = case.model.patches(case.pixels)
    missing = MOST * case.model.pool**2 - values.shape[1]
    assert missing > 0
    padded = torch.nn.functional.pad(values, (0, 0, 0, missing))
    where = torch.nn.functional.pad(places, (0, 0, 0, missing), value=-1)
    found = case.stock.model.get_video_features(padded, where, torch.tensor([FRAMES])).pooler_output[0]
    assert_close(case.model.encode(case.pixels).features, found)
    pooled = case.model.encode(case.pixels, pooled=True)
    assert pooled.grid == (FRAMES, 1, 2) and len(pooled) == 2 * FRAMES


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("chunk", [512, 11, 3])
def test_prefill_and_windows_of_any_size(case, monkeypatch, chunk):
    """The prompt is longer than the blocks' window and is read in parts of about ``chunk`` rows; no frame is cut."""
    monkeypatch.setattr(type(case.engine), "chunk", chunk)
    assert case.prefix.length > 2 * WINDOW and case.model.decoder.name == "stock"
    read, expected = case.engine.prefill(case.prefix, 32), whole(case, NEW)
    assert_close(read.logits, expected[0])
    for size in range(1, 10):
        read.span.rollback(case.prefix.length)
        assert_close(forward(case.engine, read, NEW[:size]).logits, expected[1 : size + 1])


def test_going_back_across_the_windows_border(case):
    """Everything is kept, so what a rejected window pushed out of sight is seen again."""
    read = case.engine.prefill(case.prefix, 4 * WINDOW)
    far = [40 + i % 200 for i in range(2 * WINDOW)]
    forward(case.engine, read, far)
    read.span.rollback(case.prefix.length + 2)
    poison(read)
    got = forward(case.engine, read, NEW).logits
    assert_close(got, whole(case, [*far[:2], *NEW])[3:])


@pytest.mark.sample(quick=1)
def test_a_tree_and_company(case):
    read = case.engine.prefill(case.prefix, 32)
    other = case.engine.prefill(case.prefix, 32)
    parents, tokens = [-1, -1, 0, 0, 2], NEW[:5]
    tree, _ = case.engine.run([Rows(read.span, tokens, parents), Rows(other.span, [7, 8])])
    for node, path in enumerate([(0,), (1,), (0, 2), (0, 3), (0, 2, 4)]):
        assert_close(tree.logits[node], whole(case, [tokens[i] for i in path])[-1])


def test_what_is_kept_is_kept_once():
    """Shared caches take no room, and heads of each kind their own."""
    small, large = made().model.decoder, made("large").model.decoder
    assert len(small.slab) == 3 and small.sources == [0, 1, 2, 1, 2]
    assert small.slab.entry_bytes == 4 * 2 * (2 * 16 + 2 * 16 + 2 * 32)
    assert large.slab.entry_bytes == 4 * 2 * (3 * 2 * 16 + 2 * 1 * 32)


#: E2B's text, as tests of several other runtimes have its config (GitHub); the rest is the library's default.
E2B = {
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 30.0,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
}


def test_a_published_one():
    config = transformers.Gemma4Config(text_config=E2B)
    with torch.device("meta"):
        model = transformers.Gemma4ForConditionalGeneration(config).to(torch.bfloat16)
    decoder = decoder_of(model.model.language_model, model.lm_head)
    assert isinstance(decoder, Gemma4Decoder) and not decoder.mutual
    assert len(decoder.slab) == 15 and decoder.sources[15:20] == [13, 13, 13, 13, 14]
    assert decoder.slab.entry_bytes == 2 * 2 * (12 * 256 + 3 * 512)
    assert decoder.windows is not None and decoder.windows[:5] == (512,) * 4 + (None,)
    assert 4.6e9 < sum(weight.numel() for weight in model.model.language_model.parameters()) < 5.1e9


@pytest.mark.full
@pytest.mark.parametrize("kind", ["small", "large", "unified"])
def test_plain_decoding_is_generate(kind):
    for seed in SEEDS:
        check_generate(made(kind, seed))


PROFILES = (
    "vanilla-sd",
    "specvlm",
    "sd-frame",
    "uv-sequential",
    "hippo-sequential",
    "self-sd",
    "self-int8",
    "std",
    "tabed-mtcp",
)


@pytest.mark.full
def test_profiles_are_exact():
    """A small model drafts for a large one."""
    place = resolve_placement("cpu", "float32")
    target = loading.load_model(str(checkpoint("gemma4", **KINDS["large"])), place)
    draft = loading.load_model(str(checkpoint("gemma4")), place)
    settings = {"generate.max_new_tokens": 24, "video.frames": 4}
    check_profiles(target, draft, PROFILES, [str(path) for path in shipped()], settings)
    with pytest.raises(ProfileError, match=r"lossy.method: blocks of gemma4 cannot drop visual tokens"):
        Captioner(profiles.load("fastv", settings, env={}), target, draft)


@pytest.mark.full
def test_models_counts_its_cache():
    folder = str(checkpoint("gemma4"))
    found, model = inspect(folder), loading.load_model(folder, resolve_placement("cpu"))
    assert (found.family, found.kv_bytes) == ("gemma4", 4 * 2 * 128)
    assert found.visual_tokens == model.visual_tokens(32, 720, 1280)  # by its own processor
