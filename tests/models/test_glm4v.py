"""GLM-4.1V, GLM-4.5V and GLM-4.6V behind our interface give what the stock models give, for the same prompts."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.video_utils import VideoMetadata

from tests.checkpoints.glm4v import CLASSES, adapter, processor, stock, tokenizer
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_chunks, check_decoders, check_generate, check_rollback
from tests.models.parity import check_tree as check_tree_of
from vidspec.models.families.glm4v import Glm4v
from vidspec.models.preprocess import pool_features
from vidspec.video import Clip

FRAMES, EVERY = 5, 1.25
NEW = [300, 41, 317, 77, 77, 260, 123, 338]


def clip(height=26, width=40, seed=0):
    frames = np.random.RandomState(seed).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    return Clip.of(frames, [EVERY * frame for frame in range(FRAMES)])


class GlmCase(ParityCase):
    def __init__(self, family, seed=0):
        model = adapter(family, seed=seed)
        super().__init__(model, stock(family, seed=seed), model.preprocess(clip(seed=seed)))

    @torch.inference_mode()
    def expected(self, new=()):
        """Logits (L + n, V) of the stock model's own forward pass over prompt and new tokens."""
        ids = torch.cat([self.prefix.token_ids, torch.tensor(new, dtype=torch.long)])[None]
        kinds = 2 * (ids == self.model.visual_id).int()
        inputs = {**self.inputs, "input_ids": ids, "mm_token_type_ids": kinds, "attention_mask": torch.ones_like(ids)}
        return self.stock(**inputs, use_cache=False).logits[0, :, : self.model.vocabulary]


@pytest.fixture(scope="module", params=sorted(CLASSES))
def case(request):
    return GlmCase(request.param)


@pytest.mark.sample(quick=1)
def test_prompt_is_the_processors(case):
    """Its own rule for the place of a video; the placeholder of a picture stands for its frames."""
    kind = "Glm46V" if case.model.family == "glm46v" else "Glm4v"
    module = f"transformers.models.{kind.lower()}.processing_{kind.lower()}"
    try:
        library = getattr(import_module(module), f"{kind}Processor")
    except ImportError:
        pytest.skip(f"{module} needs a package that is not installed")
    like = SimpleNamespace(image_token="<|image|>", video_processor=SimpleNamespace(merge_size=2))
    like.replace_frame_token_id = lambda *given, **options: library.replace_frame_token_id(like, *given, **options)
    about = VideoMetadata(total_num_frames=100, fps=1 / EVERY, frames_indices=list(range(FRAMES)))
    shown = {"video_grid_thw": torch.tensor([case.pixels.grid]), "video_metadata": [about]}
    video = library.replace_video_token(like, shown, 0)
    assert ("2.5 seconds" in video) == (kind == "Glm46V")
    text = f"<|begin_of_video|>{video}<|end_of_video|>{PROMPT}/nothink"
    whole = f"[gMASK]<sop><|user|>\n{text}<|assistant|>\n<think></think>\n"
    assert case.prefix.token_ids.tolist() == case.model.tokenizer.encode(whole, add_special_tokens=False)
    assert len(case.prefix.visual) == case.model.visual_tokens(FRAMES, 26, 40)


def test_positions_are_the_librarys(case):
    keys = ("input_ids", "mm_token_type_ids", "video_grid_thw")
    found = case.stock.model.get_rope_index(**{key: case.inputs[key] for key in keys})[0]
    assert torch.equal(case.prefix.positions, found)
    assert case.prefix.next_position == found[:, 0, -1].max() + 1


@torch.inference_mode()
def test_features_are_the_towers(case):
    grid = torch.tensor([case.pixels.grid])
    assert_close(case.seen.features, case.stock.get_video_features(case.pixels.values, grid).pooler_output[0])
    assert case.seen.grid == (3, 3, 5)


@torch.inference_mode()
def test_pooled_features(case):
    """Patches averaged 2 x 2 before the convolution, which the tower's own modules then apply."""
    if case.model.family != "glm4v":
        return
    seen, tower = case.model.encode(case.pixels, pooled=True), case.stock.model.visual
    states = []
    handle = tower.post_layernorm.register_forward_hook(lambda _module, _given, out: states.append(out))
    case.stock.get_video_features(case.pixels.values, torch.tensor([case.pixels.grid]))
    handle.remove()
    steps, rows, columns = case.pixels.grid
    image = torch.empty(steps, rows, columns, states[0].shape[-1])
    for place, state in enumerate(states[0]):
        token, part = divmod(place, 4)
        step, cell = divmod(token, rows * columns // 4)
        row, column = divmod(cell, columns // 2)
        image[step, 2 * row + part // 2, 2 * column + part % 2] = state
    halved = pool_features(image)
    halved = torch.cat([halved, halved[:, -1:]], 1)  # three rows of patches make two of tokens
    halved = torch.cat([halved, halved[:, :, -1:]], 2)
    merged = tower.downsample(halved.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(0, 2)
    assert seen.grid == (3, 2, 3)
    assert_close(seen.features, tower.merger(merged))


@pytest.mark.sample(quick=1)
def test_decoding(case):
    assert case.model.decoder.name == "stock" and "are not fused" in case.model.decoder.why
    check_decoders(case, NEW)
    check_chunks(case, NEW, [1, 5, 2])
    check_rollback(case, NEW, [300, 301, 302, 303, 304])
    check_tree_of(case, NEW, [300, 301, 302, 303, 304, 305, 306])


def test_greedy_decoding_is_generate(case):
    check_generate(case)


def test_times_are_the_processors():
    """The same model type has had two processors, and a config may name either in any of its keys."""
    for named, tenths in (
        ({"processor_class": "Glm46VProcessor"}, True),
        ({"video_processor_type": "Glm46VVideoProcessor"}, True),
        ({"processor_class": "Glm4vProcessor"}, False),
        ({}, False),
    ):
        plain = {key: value for key, value in processor("glm4v").items() if key != "processor_class"}
        made = Glm4v("tiny", stock("glm4v"), tokenizer(), {**plain, **named})
        assert made.tenths == tenths, named


def test_a_config_without_sections_has_the_librarys():
    config = stock("glm4v").config
    del config.text_config.rope_parameters["mrope_section"]
    assert Glm4v.config_of(config).text_config.rope_parameters["mrope_section"] == [8, 12, 12]
