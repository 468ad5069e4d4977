"""LLaVA-1.5, and of LLaVA-NeXT what is the same; its tiles are in ``test_llava_next``."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from research.stock_inputs import stock_inputs
from tests.checkpoints import checkpoint
from tests.checkpoints.llava import IMAGE_SIZE, PATCH, SIDE, LlavaKind, adapter, clip, stock, tokenizer
from tests.checkpoints.llava_onevision import causal
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_chunks, check_rollback, check_tree
from vidspec.engine.forward import Engine
from vidspec.engine.taps import Taps
from vidspec.errors import GenerationError, ModelError
from vidspec.escaping import mark_value, without_marks
from vidspec.models.families.llava import VICUNA
from vidspec.models.families.llava_next import MISTRAL
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement
from vidspec.models.request import DialogueTurn

FRAMES = 3
NEW = [300, 41, 117, 77, 77, 260, 123, 288]
CPU = Placement(torch.device("cpu"), torch.float32)
KINDS = {
    "llava": LlavaKind(),
    "llava-qwen2": LlavaKind(text="qwen2", seed=3),
    "llava-all-features": LlavaKind(select="full", layer=(-3, -1)),
    "llava-window": LlavaKind(text="mistral", window=7),
    "next": LlavaKind(family="llava_next"),
    "next-mistral": LlavaKind(family="llava_next", text="mistral"),
    "next-window": LlavaKind(family="llava_next", text="mistral", window=7),
}


class LlavaCase(ParityCase):
    def __init__(self, kind: LlavaKind, decoder: str = "auto", reference: str = "sdpa") -> None:
        self.kind, model = kind, adapter(kind, decoder)
        super().__init__(model, stock(kind, reference), model.preprocess(clip(FRAMES, 60, 90)))

    @torch.inference_mode()
    def expected(self, new=(), **options):
        """Logits (L + n, V) of the stock model's own forward pass over prompt and new tokens."""
        inputs = stock_inputs(self.model, self.pixels, self.prefix)
        ids = torch.cat([inputs.pop("input_ids"), torch.tensor([list(new)], dtype=torch.long)], dim=1)
        del inputs["attention_mask"]
        return self.stock(input_ids=ids, use_cache=False, **inputs, **options).logits[0, :, : self.model.vocabulary]


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def case(request):
    return LlavaCase(request.param)


@pytest.fixture(scope="module", params=["llava", "next-mistral"])
def plain(request):
    return LlavaCase(KINDS[request.param])


@pytest.mark.sample(quick=1)
def test_full_prompt_and_margins(case):
    expected = case.expected()
    assert_close(case.prefill().logits, expected[-1])
    best = expected.topk(2).values
    assert (best[:, 0] - best[:, 1]).median() > 0.1  # far above rounding: comparing token ids means something


@pytest.mark.sample(quick=9)
@pytest.mark.parametrize("chunks", [[1] * 8, [8], [1, 5, 2], [4, 1, 3]])
def test_chunked_decoding(case, chunks):
    check_chunks(case, NEW, chunks)


def test_rollback(case):
    check_rollback(case, NEW, [150, 151, 152, 153, 154])


@pytest.mark.sample(quick=2)
def test_a_tree_equals_each_path_alone(case):
    check_tree(case, NEW, [200, 201, 202, 203, 204, 205, 206])


def test_greedy_decoding_equals_generate(case):
    expected = case.generated(24, do_sample=False)
    made = case.greedy(len(expected))
    assert made == expected and len(set(made)) > 3


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("decoder", ["fused", "stock"])
@pytest.mark.parametrize("reference", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llava", "llava-window", "next-mistral"])
def test_decoders(name, decoder, reference):
    case = LlavaCase(KINDS[name], decoder, reference)
    assert case.model.decoder.name == decoder
    state = case.prefill()
    passes = [forward(case.engine, state, NEW[:5]).logits, forward(case.engine, state, NEW[5:6]).logits]
    assert_close(torch.cat([state.logits[None], *passes]), case.expected(NEW[:6])[-7:])


@pytest.mark.full
def test_window_matters():
    near, far = (LlavaCase(LlavaKind(text="mistral", window=window)) for window in (7, None))
    assert (near.prefill().logits - far.prefill().logits).abs().max() > 0.1


@pytest.mark.sample(quick=1)
def test_pruned_prompt_is_the_prompt_with_hidden_rows(plain):
    visual = plain.prefix.visual
    kept = torch.tensor([i for i in range(len(visual)) if i % 3 == 1 or visual.required[i]])
    prefix = plain.prefix.keep(kept)
    state = plain.prefill(prefix)
    got = torch.cat([state.logits[None], forward(plain.engine, state, NEW[:5]).logits])
    mask = causal(plain.prefix.length + 5)
    dropped = sorted(set(range(plain.prefix.length)) - set(plain.prefix.rows_kept(kept).tolist()))
    mask[..., dropped] = float("-inf")
    mask[..., dropped, dropped] = 0  # a row that sees nothing would be NaN
    expected = plain.expected(NEW[:5], attention_mask=mask, position_ids=torch.arange(mask.shape[-1])[None])
    assert_close(got, expected[-6:])
    assert len(dropped) > 10 and state.span.length + state.span.offset == plain.prefix.length + 5


def test_taps_see_the_stock_models_attention(plain):
    visual, rows = plain.prefix.visual.index, plain.prefix.text_rows_after_video
    taps = Taps(rows=rows, visual=visual, attention=True, hidden=(0, 2))
    plain.engine.prefill(plain.prefix, 4, taps)
    reference = stock(plain.kind, "eager")
    with torch.inference_mode():
        out = reference(
            **stock_inputs(plain.model, plain.pixels, plain.prefix), output_attentions=True, output_hidden_states=True
        )
    weights = torch.stack([layer[0].mean(0)[rows][:, visual].mean(0) for layer in out.attentions]).mean(0)
    torch.testing.assert_close(taps.attention_scores, weights, rtol=0, atol=1e-5)
    assert_close(taps.states[2], out.hidden_states[2][0])


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_loaded_from_a_folder(name):
    kind = KINDS[name]
    model = load_model(str(checkpoint(kind)), CPU)
    assert model.family == kind.family and model.eos == {2}
    ours, theirs = model.model.state_dict(), stock(kind).state_dict()
    assert all(torch.equal(ours[key], weight) for key, weight in theirs.items())
    made = model.preprocess(clip(2, 50, 80))
    torch.testing.assert_close(made.values, adapter(kind).preprocess(clip(2, 50, 80)).values)


# Where visual tokens are.


def test_visual_tokens():
    case = LlavaCase(LlavaKind())
    visual = case.prefix.visual
    cells = [(t, r, c) for t in range(FRAMES) for r in range(SIDE) for c in range(SIDE)]
    assert list(zip(visual.frame.tolist(), visual.row.tolist(), visual.column.tolist(), strict=True)) == cells
    assert not visual.required.any() and case.seen.grid == (FRAMES, SIDE, SIDE)
    inputs = stock_inputs(case.model, case.pixels, case.prefix)
    features = torch.cat(list(case.stock.get_image_features(inputs["pixel_values"]).pooler_output))
    assert_close(case.prefix.embeds[0, visual.index], features)


def test_a_class_token_is_nowhere_and_stays():
    visual = LlavaCase(KINDS["llava-all-features"]).prefix.visual
    assert len(visual) == FRAMES * (SIDE**2 + 1)
    assert visual.required.nonzero()[:, 0].tolist() == [t * (SIDE**2 + 1) for t in range(FRAMES)]
    assert visual.row[1:4].tolist() == [0, 0, 0] and visual.column[1:4].tolist() == [0, 1, 2]


def mute(model):
    """Make patches independent of each other."""
    for name, weight in model.model.model.vision_tower.named_parameters():
        if "out_proj" in name:
            weight.data.zero_()
    return model


def test_cells_are_where_their_pixels_are():
    model = mute(adapter(LlavaKind()))
    plain = model.preprocess(clip(2, IMAGE_SIZE, IMAGE_SIZE))
    changed = plain.values.clone()
    changed[1, :, PATCH : 2 * PATCH, 2 * PATCH :] += 3.0  # of the second frame, the middle patch of the last column
    seen, before = model.encode(replace(plain, stored=changed, rules=None)), model.encode(plain)
    moved = (seen.features - before.features).abs().amax(-1).nonzero()[:, 0]
    assert [(int(seen.frame[i]), int(seen.row[i]), int(seen.column[i])) for i in moved] == [(1, 1, 2)]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", ["llava", "llava-all-features"])
def test_pooled_features(name):
    """2 x 2 means of the tower's features before the projector; of an odd side the last stands alone."""
    case = LlavaCase(KINDS[name])
    tower = case.stock.model.vision_tower(case.pixels.values, output_hidden_states=True).hidden_states
    chosen = torch.cat([tower[layer] for layer in ((-3, -1) if "all" in name else (-2,))], dim=-1)
    own, cells = chosen[:, :1], chosen[:, 1:].reshape(FRAMES, SIDE, SIDE, -1)
    means = [cells[:, r : r + 2, c : c + 2].mean((1, 2)) for r in range(0, SIDE, 2) for c in range(0, SIDE, 2)]
    parts = torch.stack(means, dim=1)
    parts = torch.cat([own, parts], dim=1) if "all" in name else parts
    expected = case.stock.model.multi_modal_projector(parts).flatten(0, 1)
    seen = case.model.encode(case.pixels, pooled=True)
    assert_close(seen.features, expected)
    assert seen.grid == (FRAMES, 2, 2) and int(seen.row.max()) == int(seen.column.max()) == 1
    prefix = case.model.prefix(seen, PROMPT)
    assert prefix.length == case.prefix.length - len(case.seen) + len(seen)
    assert torch.isfinite(case.prefill(prefix).logits).all()


# Templates and words.


def test_a_text_instead_of_the_video(plain):
    prefix = plain.model.text_prefix(plain.model.template.ids_with_text("\n", PROMPT))
    text = plain.model.tokenizer.decode(prefix.token_ids, skip_special_tokens=True)
    assert PROMPT in text and "<image>" not in text and len(prefix.visual) == 0
    assert prefix.token_ids[0] == 1 and prefix.token_ids[1:].tolist().count(1) == 0
    assert torch.isfinite(plain.prefill(prefix).logits).all()


TURNS = [DialogueTurn("What is <image>?", "That.")]


@pytest.mark.sample(quick=1)
def test_control_tokens_in_prompts(plain):
    """Refused, placeholder or not; in a marked value they are the tokens of their letters, and change no other."""
    refused = r"prompt holds (<image>, which stands for the video|</s>, a control token)"
    for given in (("What does <image> mean?",), ("a</s>",), (PROMPT, "Look at <image>."), (PROMPT, None, TURNS)):
        with pytest.raises(GenerationError, match=refused):
            plain.model.prefix(plain.seen, *given)
    value = mark_value("a <image></s> <b>")
    prefix = plain.model.prefix(plain.seen, f"Keep {value}?", None, [DialogueTurn("Why?", "So.</s>")])
    assert torch.equal(prefix.visual.index, plain.prefix.visual.index)
    text = prefix.token_ids[prefix.text_rows_after_video].tolist()
    assert plain.model.visual_id not in text
    spelled = plain.model.tokenizer.decode(text).replace(" ", "")
    assert "So.</s>" in spelled and "Keepa<image></s><b>?" in spelled
    assert text.count(plain.model.tokenizer.convert_tokens_to_ids("</s>")) <= 1, "the template's own"
    marked, usual = (
        plain.model.template.ids_with_text("\n", f"Keep {value}?") for value in (mark_value("a <b> | c"), "a <b> | c")
    )
    assert marked == usual


def test_control_tokens_across_the_ends_of_values(plain):
    """A token that arises of a prompt and a value, or of two values, is the tokens of its letters too."""
    ids, value = plain.model.template.control_tokens.encode, mark_value
    controls = {plain.model.visual_id, plain.model.tokenizer.convert_tokens_to_ids("</s>")}
    for prompt in (
        f"<ima{value('ge>')}",
        f"{value('<ima')}ge>",
        f"{value('<')}{value('/s>')} <",
        f"<{value('image>')}",
    ):
        assert controls.isdisjoint(ids(prompt)) and controls & {*ids(without_marks(prompt))}
        assert plain.model.tokenizer.decode(ids(prompt)).replace(" ", "") == without_marks(prompt).replace(" ", "")
    assert controls <= {*ids(f"<image>{value('<')}</s>")}, "the template's own stay"


def test_template_without_a_place_for_images():
    model = adapter(LlavaKind(), template="{{ messages[0]['role'] }}")
    with pytest.raises(ModelError, match=r"tiny.*<image>"):
        model.prefix(model.encode(model.preprocess(clip(1, 50, 50))), PROMPT)


@pytest.mark.sample(quick=1)
def test_template_with_several_places_for_the_video(plain):
    model = adapter(LlavaKind(), template="<image> {{ messages[0]['content'][1]['text'] }} <image>")
    with pytest.raises(ModelError, match=r"tiny.*several places for a video \(<image>\)"):
        model.prefix(plain.seen, PROMPT)


@pytest.mark.sample(quick=1)
def test_a_value_before_the_video_is_not_its_place(plain):
    model = adapter(LlavaKind(), template="{{ messages[0]['content'][1]['text'] }} <image> Why?")
    prefix = model.prefix(plain.seen, f"Not {mark_value('<image>')}:")
    (before,) = {int(prefix.visual.index[0])}
    assert model.tokenizer.decode(prefix.token_ids[:before]).replace(" ", "").endswith("Not<image>:")


def test_template_with_one_image_takes_all_frames():
    model = adapter(LlavaKind(tokenizer="bare"), template="see <image> now")
    words, ids = tokenizer("bare"), model.visual_id
    prefix = model.prefix(model.encode(model.preprocess(clip(2, 50, 50))), PROMPT)
    assert prefix.token_ids.tolist() == [*words.encode("see "), *[ids] * 2 * SIDE**2, *words.encode(" now")]


def test_next_without_a_template_speaks_its_language_models_form():
    for text, expected in (("mistral", MISTRAL), ("llama", VICUNA)):
        assert adapter(LlavaKind(family="llava_next", text=text)).template.source == expected


def test_vocabulary_ends_where_the_tokenizer_does():
    model = adapter(LlavaKind(padding=62))
    assert model.model.lm_head.weight.shape[0] == len(tokenizer()) + 62
    assert model.vocabulary == len(tokenizer())
    assert Engine(model).prefill(model.text_prefix(model.template.ids_with_text("", "Describe.")), 1).logits.shape == (
        len(tokenizer()),
    )


def test_frames_of_one_clip_do_not_influence_each_other():
    model, shown = adapter(LlavaKind(family="llava_next")), clip(3, 60, 90)
    whole = model.preprocess(shown)
    shown.frames = np.ascontiguousarray(shown.frames[1:2])
    torch.testing.assert_close(model.preprocess(shown).values[0], whole.values[1], rtol=0, atol=0)
