"""Molmo 2 behind our interface gives what the stock model gives, for the prompt its processor writes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.molmo2.processing_molmo2 import Molmo2Processor
from transformers.video_utils import VideoMetadata

from tests.checkpoints import checkpoint
from tests.checkpoints.molmo2 import PROCESSOR, adapter, stock
from tests.models import record_preprocess_molmo2
from tests.models.closeness import assert_close
from tests.models.installed_processor import record_now
from tests.models.parity import PROMPT, ParityCase, check_chunks, check_decoders, check_generate, check_rollback
from tests.models.parity import check_tree as check_tree_of
from tests.models.record_preprocess_molmo2 import CASES, STEP, frames
from vidspec.baselines.engine import check_blocks
from vidspec.engine import forward
from vidspec.errors import ModelError, ProfileError
from vidspec.models import loading
from vidspec.models.base import Pixels
from vidspec.models.families.molmo2 import Molmo2, pooling_index
from vidspec.models.known_pairs import PUBLISHED_RULES
from vidspec.models.placement import resolve_placement
from vidspec.models.prefix_cache import PrefixCache
from vidspec.models.preprocess import PixelRules, pool_features
from vidspec.models.weight_files import read_processor
from vidspec.video import Clip

RECORDED = Path(__file__).parent / "fixtures" / "preprocess_molmo2.npz"
FRAMES, EVERY = 3, 1.25
NEW = [200, 41, 217, 77, 77, 260, 123, 238]


class BareMolmo(Molmo2):
    """Preprocesses without a model."""

    device, vision_dtype = torch.device("cpu"), torch.float32


def clip(height=30, width=44):
    shown = np.random.RandomState(0).randint(0, 256, (FRAMES, height, width, 3), dtype=np.uint8)
    return Clip.of(shown, [EVERY * frame for frame in range(FRAMES)])


class MolmoCase(ParityCase):
    def __init__(self, processor=PROCESSOR, **options):
        model = adapter(processor, **options)
        super().__init__(model, stock(**options), model.preprocess(clip()))

    @torch.inference_mode()
    def expected(self, new=()):
        """Logits (L + n, V) of the stock model's own forward pass over prompt and new tokens."""
        ids = torch.cat([self.prefix.token_ids, torch.tensor(new, dtype=torch.long)])[None]
        kinds = torch.nn.functional.pad(self.inputs["mm_token_type_ids"], (0, len(new)))
        inputs = {**self.inputs, "input_ids": ids, "mm_token_type_ids": kinds, "attention_mask": torch.ones_like(ids)}
        return self.stock(**inputs, use_cache=False).logits[0, :, : self.model.vocabulary]


#: The 4B and 8B are made of Qwen3's blocks, the 7B of OLMo's.
BLOCKS = {"qwen3": {}, "olmo": {"qk_norm_type": "olmo", "norm_after": True}}


@pytest.fixture(scope="module", params=BLOCKS)
def case(request):
    return MolmoCase(**BLOCKS[request.param])


def compare(recorded):
    """Bytes that lie between two are rounded either way, by the number of threads: fewer than one in a hundred."""
    for name, (count, *_) in CASES.items():
        model = object.__new__(BareMolmo)
        model.patch, model.pool, model.square = 14, (3, 3), PixelRules(378, 378, mode="bilinear")
        inputs = model.tower_inputs(model.preprocess(Clip.of(frames(name), list(range(count)))))
        values = inputs["pixel_values_videos"].numpy()
        apart = np.abs(values.reshape(-1)[::STEP] - recorded[name])
        assert apart.max() < 2.01 / 255 and (apart > 1e-5).mean() < 0.01
        means = values.mean(-1, dtype=np.float64)[:, ::13]
        np.testing.assert_allclose(means, recorded[f"{name}_means"], rtol=0, atol=6e-5)
        assert inputs["video_token_pooling"].tolist() == recorded[f"{name}_pooling"].tolist()
        assert inputs["video_grids"][0].tolist() == recorded[f"{name}_grid"].tolist()


def test_frames_are_the_processors():
    compare(np.load(RECORDED))


def test_published_frames():
    vision = SimpleNamespace(image_size=[378, 378], patch_size=14)
    rule = Molmo2.frame_rule_of(SimpleNamespace(vision_config=vision), {})
    assert rule == PUBLISHED_RULES["molmo2"] and rule.visual_tokens(2, 30, 44) == 2 * 81


def test_frames_are_the_installed_processors(tmp_path):
    compare(record_now(record_preprocess_molmo2.__file__, tmp_path / "now.npz"))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("marks", [{}, {"use_frame_special_tokens": False, "video_use_col_tokens": True}])
def test_prompt_is_the_processors(marks):
    """Its end token first, as its BOS is that; the tokens of frames stand for each other's neighbours."""
    case = MolmoCase({**PROCESSOR, **marks})
    library = SimpleNamespace(**{"use_frame_special_tokens": True, "video_use_col_tokens": False, **marks})
    library.get_video_string = lambda *given: Molmo2Processor.get_video_string(library, *given)
    about = VideoMetadata(total_num_frames=100, fps=1 / EVERY, frames_indices=list(range(FRAMES)))
    shown = {"video_grids": torch.tensor([[FRAMES, 3, 3]]), "video_metadata": [about]}
    video = Molmo2Processor.replace_video_token(library, shown, 0)
    text = f"<|im_end|>{video}<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    assert case.prefix.token_ids.tolist() == case.model.tokenizer.encode(text)
    assert len(case.prefix.visual) == case.model.visual_tokens(FRAMES, 30, 44) == 27
    assert len(case.prefix.bidirectional) == 27 + FRAMES * (5 if marks else 2)


@pytest.mark.sample(quick=1)
@torch.inference_mode()
def test_features_are_the_towers(case):
    inputs = {key: case.inputs[key] for key in ("pixel_values_videos", "video_token_pooling", "video_grids")}
    found = case.stock.get_video_features(**inputs, output_hidden_states=True)
    own = case.stock.model.language_model.embed_tokens.weight[case.model.visual_id]
    assert_close(case.seen.features, found.pooler_output[0] + own)
    pooled = case.model.encode(case.pixels, pooled=True)
    tower = torch.cat([found.hidden_states[layer + 1] for layer in (3, 1)], -1)
    halved = pool_features(tower.view(FRAMES, 8, 8, -1)).flatten(1, 2)
    merged = case.stock.model.multi_modal_projector(halved, pooling_index(FRAMES, 4, (3, 3))).last_hidden_state
    assert_close(pooled.features, merged + own)
    assert pooled.grid == (FRAMES, 2, 2) and case.seen.grid == (FRAMES, 3, 3)


def test_decoding(case):
    norms = case.stock.config.text_config.norm_after
    assert case.model.decoder.name == ("stock" if norms else "fused")
    assert not norms or "norms are not where Qwen3 has them" in case.model.decoder.why
    check_decoders(case, NEW)
    check_chunks(case, NEW, [1, 5, 2])
    check_rollback(case, NEW, [200, 201, 202, 203, 204])
    check_tree_of(case, NEW, [200, 201, 202, 203, 204, 205, 206])


def test_one_pass_reads_the_video(case, monkeypatch):
    monkeypatch.setattr(forward, "CHUNK", 8)
    monkeypatch.setattr(type(case.engine), "chunk", 8)
    assert_close(case.prefill().logits, case.expected()[-1])
    sizes = (case.model.clip_memory((9, 30, 44), 81, tokens, 8).passes for tokens in (10_000, 30_000))
    assert next(sizes) * 3 == next(sizes)


def test_greedy_decoding_is_generate(case):
    check_generate(case)


@torch.inference_mode()
def test_what_is_left_of_a_pruned_video_sees_itself(case):
    prefix = case.prefix.keep(torch.arange(1, 27, 4))
    linked = torch.zeros(prefix.length, dtype=torch.bool)
    linked[prefix.bidirectional] = True
    assert linked.sum() == 7 + 2 * FRAMES and linked[prefix.visual.index].all()
    visible = torch.ones(prefix.length, prefix.length, dtype=torch.bool).tril() | (linked & linked[:, None])
    mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]
    states = case.stock.model.language_model(
        inputs_embeds=prefix.embeds, attention_mask=mask, position_ids=prefix.positions, use_cache=False
    ).last_hidden_state
    expected = case.stock.lm_head(states)[0, -1, : case.model.vocabulary]
    assert_close(case.prefill(prefix).logits, expected)


@pytest.mark.sample(quick=1)
def test_a_part_of_a_video_is_not_reused(case):
    """Its rows were computed beside the rest of it."""
    earlier, first = case.prefix, PrefixCache()
    first.read(case.model, earlier, case.prefill().span, None)
    cache = first.fork()
    whole = cache.find(case.model, case.model.prefix(case.seen, "Describe it."))
    assert whole.rows > int(earlier.bidirectional[-1])
    assert cache.find(case.model, earlier.keep(torch.arange(20))).rows == int(earlier.bidirectional[0])


def test_what_cannot_be_run_is_refused():
    with pytest.raises(ProfileError, match="cannot drop visual tokens"):
        check_blocks(adapter())
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024}
    with pytest.raises(ModelError, match="only some of its blocks scale"):
        adapter(rope_parameters=yarn, rope_scaling_layers=[0, 1])


@pytest.mark.full
def test_checkpoints_load(tmp_path):
    folder = checkpoint("molmo2")
    model = loading.load_model(str(folder), resolve_placement("cpu", "float32"))
    ours, theirs = model.model.state_dict(), stock().state_dict()
    assert all(
        torch.equal(ours[name].float(), theirs[name])
        for name in ("lm_head.weight", "model.language_model.embed_tokens.weight")
    )
    shown = model.preprocess(clip())
    assert isinstance(shown, Pixels)
    assert_close(model.encode(shown).features, MolmoCase().seen.features)
    (tmp_path / "processor_config.json").write_text('{"use_frame_special_tokens": false}')
    (tmp_path / "preprocessor_config.json").write_text('{"patch_size": 14}')
    assert read_processor("it", str(tmp_path)) == {"patch_size": 14, "use_frame_special_tokens": False}
