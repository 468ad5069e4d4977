import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.checkpoints.llava_onevision import (
    CELLS,
    IMAGE_SIZE,
    LAYERS,
    PADDED,
    PROCESSOR,
    TIED,
    UNTIED,
    OnevisionKind,
    adapter,
    as_masks,
    as_pixels,
    blank,
    causal,
    pixels,
    stock,
    tokenizer,
)
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_chunks, check_decoders, check_rollback, check_tree
from vidspec.engine.forward import Engine
from vidspec.errors import GenerationError, ModelError
from vidspec.escaping import mark_value
from vidspec.models.families.llava_onevision import LlavaOnevision

FRAMES = 3
NEW = [300, 41, 517, 77, 77, 260, 123, 388]


class OnevisionCase(ParityCase):
    def __init__(self, kind: OnevisionKind, decoder: str = "auto", reference: str = "sdpa") -> None:
        super().__init__(adapter(kind, decoder), stock(kind, reference), pixels(FRAMES))

    @torch.inference_mode()
    def expected(self, new=(), **options):
        """Logits (L + n, V) of the stock model's own forward pass over prompt and new tokens."""
        ids = torch.cat([self.prefix.token_ids, torch.tensor(new, dtype=torch.long)])
        out = self.stock(input_ids=ids[None], pixel_values_videos=self.pixels.values[None], use_cache=False, **options)
        return out.logits[0, :, : self.model.vocabulary]


@pytest.fixture(scope="module", params=[TIED, UNTIED, PADDED], ids=["tied", "untied", "padded"])
def case(request):
    return OnevisionCase(request.param)


@pytest.fixture(scope="module")
def tied():
    return OnevisionCase(TIED)


@pytest.mark.sample(quick=1)
def test_full_prompt_and_margins(case):
    expected = case.expected()
    assert_close(case.prefill().logits, expected[-1])
    best = expected.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3  # far above rounding: comparing token ids means something


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("decoder", ["fused", "stock"])
@pytest.mark.parametrize("reference", ["sdpa", "eager"])
def test_decoders(decoder, reference):
    case = OnevisionCase(TIED, decoder, reference)
    assert case.model.decoder.name == decoder
    check_decoders(case, NEW)


@pytest.mark.parametrize("chunks", [[1] * 8, [8], [1, 5, 2], [4, 1, 3]])
def test_chunked_decoding(case, chunks):
    check_chunks(case, NEW, chunks)


def test_rollback(tied):
    check_rollback(tied, NEW, [500, 501, 502, 503, 504])


def test_a_tree_equals_each_path_alone(tied):
    got = check_tree(tied, NEW, [600, 601, 602, 603, 604, 605, 606])
    with torch.inference_mode():
        logits = tied.model.decoder.logits(got.hidden)[:, : tied.model.vocabulary]
        assert_close(logits, got.logits)


def pruned(case):
    """A prompt that lost two of three visual tokens but kept the required one, and the rows that stayed."""
    visual = case.prefix.visual
    kept = torch.tensor([i for i in range(len(visual)) if i % 3 == 1 or visual.required[i]])
    gone = torch.ones(case.prefix.length, dtype=torch.bool)
    gone[visual.index] = False
    gone[visual.index[kept]] = True
    return kept, gone.nonzero()[:, 0]


def test_pruned_prompt_is_the_prompt_with_hidden_rows(case):
    """The stock model reads the whole prompt and may not look at the dropped tokens."""
    kept, rows = pruned(case)
    prefix = case.prefix.keep(kept)
    state = case.prefill(prefix)
    got = torch.cat(
        [state.logits[None], forward(case.engine, state, NEW[:5]).logits, forward(case.engine, state, NEW[5:6]).logits]
    )
    mask = causal(case.prefix.length + 6)
    dropped = sorted(set(range(case.prefix.length)) - set(rows.tolist()))
    mask[..., dropped] = float("-inf")
    mask[..., dropped, dropped] = 0  # a row that sees nothing would be NaN
    assert_close(got, case.expected(NEW[:6], attention_mask=as_masks(mask))[-7:])
    assert state.span.length == len(rows) + 6 and state.span.length + state.span.offset == case.prefix.length + 6


@pytest.mark.parametrize("compact", [False, True], ids=["gapped", "compact"])
def test_pruned_prompt_at_the_same_positions(tied, compact):
    kept, rows = pruned(tied)
    prefix = tied.prefix.keep(kept, compact=compact)
    state = tied.prefill(prefix)
    got = torch.cat([state.logits[None], forward(tied.engine, state, NEW).logits])
    after = len(rows) if compact else tied.prefix.length
    positions = torch.arange(len(rows)) if compact else rows
    positions = torch.cat([positions, torch.arange(after, after + len(NEW))])[None]
    with torch.inference_mode():
        whole = tied.stock.model
        features = whole.get_video_features(tied.pixels.values[None]).pooler_output[0, kept]
        ids = torch.cat([tied.prefix.token_ids[rows], torch.tensor(NEW)])
        embeds = whole.language_model.embed_tokens(ids)
        embeds = embeds.masked_scatter((ids == tied.model.visual_id)[:, None], features)
        out = tied.stock(inputs_embeds=embeds[None], position_ids=positions, attention_mask=as_masks(causal(len(ids))))
    assert_close(got, out.logits[0, -9:, : tied.model.vocabulary])
    other = tied.prefill(tied.prefix.keep(kept, compact=not compact))
    assert (other.logits - state.logits).abs().max() > 1e-2  # positions do matter


def test_keep_moves_what_belongs_to_a_token(tied):
    kept, rows = pruned(tied)
    prefix, visual = tied.prefix.keep(kept), tied.prefix.visual
    assert torch.equal(rows[prefix.visual.index], visual.index[kept])
    assert torch.equal(prefix.embeds[0, prefix.visual.index], visual.features[kept])
    assert torch.equal(prefix.visual.features, visual.features[kept])
    for name in ("frame", "row", "column", "required"):
        assert torch.equal(getattr(prefix.visual, name), getattr(visual, name)[kept])
    assert torch.equal(prefix.token_ids, tied.prefix.token_ids[rows])
    assert prefix.text_rows_after_video.tolist() == list(range(int(prefix.visual.index[-1]) + 1, prefix.length))


def test_cache_is_not_shared_between_prefills(tied):
    first, second = tied.prefill(), tied.prefill()
    forward(tied.engine, first, NEW[:4])
    assert_close(forward(tied.engine, second, NEW[4:]).logits, tied.expected(NEW[4:])[-4:])


def test_visual_tokens(tied):
    visual, ids = tied.prefix.visual, tied.prefix.token_ids
    cells = [(t, r, c) for t in range(FRAMES) for r in range(CELLS) for c in range(CELLS)]
    assert len(visual) == FRAMES * CELLS**2 + 1 and visual.frames == FRAMES
    got = list(zip(visual.frame.tolist(), visual.row.tolist(), visual.column.tolist(), strict=True))
    assert got == [*cells, (FRAMES - 1, -1, -1)]
    assert visual.required.tolist() == [False] * len(cells) + [True]
    assert torch.equal((ids == tied.model.visual_id).nonzero()[:, 0], visual.index)
    assert torch.equal(visual.features[-1], tied.stock.model.image_newline)
    assert torch.equal(tied.prefix.embeds[0, visual.index], visual.features)


def test_cells_are_where_their_pixels_are():
    """Without attention between patches, only the cells over changed pixels change."""
    model = adapter(TIED)
    for name, weight in model.model.model.vision_tower.named_parameters():
        if "out_proj" in name:
            weight.data.zero_()
    plain = torch.zeros(2, 3, IMAGE_SIZE, IMAGE_SIZE)
    before = model.encode(as_pixels(plain))
    visual = model.prefix(before, PROMPT).visual
    plain[1, :, 24:36, 48:60] = 3.0  # of the second frame, the middle patch of the last column
    changed = (model.encode(as_pixels(plain)).features - before.features).abs().amax(-1).nonzero()[:, 0]
    places = {(int(visual.frame[i]), int(visual.row[i]), int(visual.column[i])) for i in changed}
    assert places == {(1, 1, 2)}


@pytest.mark.parametrize("size, patch, cells", [(384, 14, 14), (96, 12, 4), (60, 12, 3), (48, 12, 2)])
def test_cells_of_other_towers(size, patch, cells):
    model = stock()
    model.config.vision_config.image_size, model.config.vision_config.patch_size = size, patch
    model = LlavaOnevision("tiny", model, tokenizer(), {})
    frame = SimpleNamespace(frames=np.zeros((1, 8, 8, 3), dtype=np.uint8), timestamps=np.zeros(1))
    model.rules = replace(model.rules, height=size, width=size)
    shown = model.preprocess(frame)
    assert shown.grid == (1, size // patch, size // patch)
    assert math.ceil(shown.grid[1] / 2) == cells


@pytest.mark.parametrize("prompt", [PROMPT, "", "Zwei Wörter?\nEin 🚲!", "a <im_end> b"])
def test_prompt_text_is_the_chat_template(tied, prompt):
    model = tied.model
    prefix = model.prefix(blank(FRAMES), prompt)
    content = [{"type": "video"}, {"type": "text", "text": prompt}]
    message = [{"role": "user", "content": content}]
    rendered = model.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert rendered == f"<|im_start|>user <video>\n{prompt}<|im_end|><|im_start|>assistant\n"
    expanded = rendered.replace("<video>", "<video>" * len(prefix.visual))
    assert prefix.token_ids.tolist() == model.tokenizer.encode(expanded, add_special_tokens=False)
    assert prefix.positions.tolist() == [list(range(prefix.length))] and prefix.next_position == prefix.length


def test_prompt_that_says_video(tied):
    features = tied.model.encode(tied.pixels)
    with pytest.raises(GenerationError, match="the prompt holds <video>, which stands for the video"):
        tied.model.prefix(features, "What does <video> mean?")
    prefix = tied.model.prefix(features, f"What does {mark_value('<video>')} mean?")
    assert torch.equal(prefix.visual.index, tied.prefix.visual.index)
    assert torch.equal(prefix.embeds[0, prefix.visual.index], features.features)
    assert int((prefix.token_ids == tied.model.visual_id).sum()) == len(features)


def test_prefix_leaves_the_embeddings_alone(tied):
    before = tied.model.language.embed_tokens.weight.clone()
    tied.model.prefix(replace(blank(FRAMES), features=torch.ones(FRAMES * CELLS**2 + 1, 64)), PROMPT)
    assert torch.equal(tied.model.language.embed_tokens.weight, before)


def test_template_without_a_place_for_the_video():
    model = LlavaOnevision("tiny", stock(), tokenizer(), {}, template="{{ messages[0]['role'] }}")
    with pytest.raises(ModelError, match=r"tiny.*<video>"):
        model.prefix(blank(1), PROMPT)


def test_own_template_wins():
    model = LlavaOnevision("tiny", stock(), tokenizer(), {}, template="system <video> says")
    assert model.prefix(blank(1), PROMPT).token_ids.tolist() == [
        *tokenizer().encode("system "),
        *[model.visual_id] * 10,
        *tokenizer().encode(" says"),
    ]


def test_vocabulary_ends_where_the_tokenizer_does():
    plain, padded = adapter(TIED), adapter(PADDED)
    size = max(tokenizer().get_vocab().values()) + 1
    assert padded.model.lm_head.weight.shape[0] == size + 57
    assert plain.vocabulary == padded.vocabulary == size
    assert Engine(padded).prefill(padded.text_prefix(padded.template.ids_with_text("", PROMPT)), 1).logits.shape == (
        size,
    )


@pytest.mark.parametrize(
    "generation, text, expected", [(5, 2, {5}), ([5, 6], 2, {5, 6}), (None, 2, {2}), (None, None, {"tokenizer"})]
)
def test_eos(generation, text, expected):
    model = stock()
    model.generation_config.eos_token_id = generation
    model.config.text_config.eos_token_id = text
    got = LlavaOnevision("tiny", model, tokenizer(), {}).eos
    assert got == ({tokenizer().eos_token_id} if expected == {"tokenizer"} else expected)


def test_shape_of_the_model(tied):
    assert tied.model.layers == LAYERS == tied.model.decoder.depth
    assert tied.model.dtype == torch.float32 and tied.model.device.type == "cpu"


def test_preprocess_and_see(tied):
    frames = np.random.RandomState(0).randint(0, 256, (FRAMES, 30, 40, 3), dtype=np.uint8)
    shown = tied.model.preprocess(SimpleNamespace(frames=frames, timestamps=np.arange(FRAMES)))
    assert shown.values.shape == (FRAMES, 3, IMAGE_SIZE, IMAGE_SIZE) and shown.values.dtype == torch.float32
    expected = tied.stock.model.get_video_features(shown.values[None]).pooler_output[0]
    assert_close(tied.model.encode(shown).features, expected)


def test_rules_come_from_the_processor():
    model = LlavaOnevision("tiny", stock(), tokenizer(), {**PROCESSOR, "size": {"height": 30, "width": 40}})
    assert (model.rules.height, model.rules.width) == (30, 40)
    assert LlavaOnevision("tiny", stock(), tokenizer(), {}).rules.height == IMAGE_SIZE


def test_capacity_is_prompt_and_room(tied):
    state = tied.engine.prefill(tied.prefix, room=2)
    forward(tied.engine, state, NEW[:2])
    with pytest.raises(IndexError, match="cannot take"):
        forward(tied.engine, state, NEW[:1])


def test_positions_reach_the_model(tied):
    """Shifted by a constant nothing changes (rotary positions are relative); stretched, everything does."""
    plain, shifted, stretched = (
        tied.prefill(replace(tied.prefix, positions=positions)).logits
        for positions in (tied.prefix.positions, tied.prefix.positions + 9, tied.prefix.positions * 2)
    )
    assert_close(shifted, plain)
    assert (stretched - plain).abs().max() > 1e-2


def test_prefix_is_not_changed_by_its_prefill(tied):
    before = replace(tied.prefix, embeds=tied.prefix.embeds.clone())
    forward(tied.engine, tied.prefill(), NEW)
    assert torch.equal(before.embeds, tied.prefix.embeds)
