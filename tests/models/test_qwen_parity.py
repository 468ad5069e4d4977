"""Qwen2.5-VL and Qwen3-VL behind our interface give what the stock models give."""

from dataclasses import replace

import pytest
import torch

from research.stock_inputs import stock_inputs
from tests.checkpoints import checkpoint
from tests.checkpoints.llava_onevision import as_masks, causal
from tests.checkpoints.qwen import CLASSES, QWEN2, QWEN3, QWEN25, QwenKind, adapter, pixels, stock, tokenizer
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.models.parity import PROMPT, ParityCase, check_chunks, check_decoders, check_rollback, check_tree
from vidspec.decoding.workers.draft import DraftText
from vidspec.engine.forward import Engine
from vidspec.engine.requests import run_to_completion
from vidspec.engine.taps import Taps
from vidspec.errors import GenerationError, ModelError
from vidspec.escaping import mark_value
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

NEW = [300, 41, 317, 77, 77, 260, 123, 338]
FAMILIES = sorted(CLASSES)


class QwenCase(ParityCase):
    """The time axis of its prompt ends behind its text."""

    def __init__(self, kind: QwenKind, decoder: str = "auto", reference: str = "sdpa") -> None:
        model = adapter(kind, decoder)
        super().__init__(model, stock(kind, reference), pixels(model, every=12.5))

    def masks(self, mask):
        """A mask that the library takes as it is, whatever the positions."""
        return as_masks(mask) if self.model.family == QWEN25 else mask

    def positions(self, new=0):
        """(3, 1, L + n) as the stock model's own functions count them when it generates."""
        grids = {k: v for k, v in self.inputs.items() if k not in ("pixel_values_videos", "attention_mask")}
        if new:  # as if they were of the prompt
            pad = {"input_ids": new, "mm_token_type_ids": new}
            grids = {k: torch.nn.functional.pad(v, (0, pad[k])) if k in pad else v for k, v in grids.items()}
        return self.stock.model.get_rope_index(**grids)[0]

    @torch.inference_mode()
    def expected(self, new=(), mask=None, **options):
        """Logits (L + n, V) of the stock model's own forward pass over prompt and new tokens."""
        ids = torch.cat([self.prefix.token_ids, torch.tensor(new, dtype=torch.long)])[None]
        inputs = {
            **self.inputs,
            "input_ids": ids,
            "mm_token_type_ids": None,
            "attention_mask": None if mask is None else self.masks(mask),
            "position_ids": self.positions(len(new)),
            **options,
        }
        return self.stock(**inputs, use_cache=False).logits[0, :, : self.model.vocabulary]


KINDS = [*(QwenKind(family, tied) for family in FAMILIES for tied in (True, False)), QwenKind(QWEN2)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind.family}-{'tied' if kind.tied else 'untied'}")
def case(request):
    return QwenCase(request.param)


@pytest.mark.sample(quick=1)
def test_full_prompt_and_margins(case):
    with torch.inference_mode():
        whole = case.stock(**case.inputs).logits[0, :, : case.model.vocabulary]
    assert_close(case.prefill().logits, whole[-1])
    assert_close(case.expected(), whole)
    best = whole.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3  # far above rounding: comparing token ids means something


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("decoder", ["fused", "stock"])
@pytest.mark.parametrize("reference", ["sdpa", "eager"])
def test_decoders(family, decoder, reference):
    case = QwenCase(QwenKind(family, tied=False), decoder, reference)
    assert case.model.decoder.name == decoder
    check_decoders(case, NEW)


@pytest.mark.sample(quick=5)
@pytest.mark.parametrize("chunks", [[1] * 8, [8], [1, 5, 2]])
def test_chunked_decoding(case, chunks):
    check_chunks(case, NEW, chunks)


def test_rollback(case):
    check_rollback(case, NEW, [300, 301, 302, 303, 304])


@pytest.mark.sample(quick=1)
def test_a_tree_equals_each_path_alone(case):
    check_tree(case, NEW, [300, 301, 302, 303, 304, 305, 306])


def test_greedy_decoding_equals_generate(case):
    """``generate`` numbers new tokens itself: right behind the last one of the prompt."""
    padding = list(range(case.model.vocabulary, case.stock.lm_head.weight.shape[0]))  # random here, never said
    with torch.inference_mode():
        out = case.stock.generate(**case.inputs, max_new_tokens=24, suppress_tokens=padding)
    expected = out[0, case.prefix.length :].tolist()
    state, got = case.prefill(), []
    logits = state.logits
    while len(got) < len(expected):
        got.append(int(logits.argmax()))
        logits = forward(case.engine, state, got[-1:]).logits[0]
    assert got == expected and len(expected) == 24


def test_positions_are_the_librarys(case):
    positions = case.positions(1)
    assert torch.equal(case.prefix.positions, positions[..., :-1])
    assert positions[..., -1].tolist() == [[case.prefix.next_position]] * 3
    if case.model.family == QWEN25:  # the clip is so long that its time axis passes the text behind it
        assert positions.max() > positions[..., -1].max()


def pruned(case):
    """A third of the visual tokens, and the rows of the prompt that stay."""
    kept = torch.arange(1, len(case.prefix.visual), 3)
    return kept, case.prefix.rows_kept(kept)


def test_pruned_prompt_is_the_prompt_with_hidden_rows(case):
    """The stock model reads the whole prompt and may not look at the dropped tokens: all three axes stay."""
    kept, rows = pruned(case)
    state = case.prefill(case.prefix.keep(kept))
    several, one = forward(case.engine, state, NEW[:5]), forward(case.engine, state, NEW[5:6])
    got = torch.cat([state.logits[None], several.logits, one.logits])
    mask = causal(case.prefix.length + 6)
    dropped = sorted(set(range(case.prefix.length)) - set(rows.tolist()))
    mask[..., dropped] = float("-inf")
    mask[..., dropped, dropped] = 0  # a row that sees nothing would be NaN
    assert_close(got, case.expected(NEW[:6], mask)[-7:])
    assert state.span.length == len(rows) + 6


def test_a_cache_pruned_behind_drafted_tokens_is_the_whole_with_hidden_rows(case):
    """Prompt and first tokens saw everything; the later ones do not see the dropped rows. All positions stay."""
    _, rows = pruned(case)
    text = DraftText(case.engine, case.prefill())
    text.cut(0, NEW[:4])
    run_to_completion(text.extend())  # four are read now
    text.cut(3, NEW[3:4])  # and one is given back
    text.prune(rows)
    assert text.span.length == len(rows) + 3
    text.cut(2, NEW[2:])
    got = forward(case.engine, text.span, NEW[2:]).logits
    length = case.prefix.length
    mask = causal(length + len(NEW))
    dropped = sorted(set(range(length)) - set(rows.tolist()))
    mask[..., length + 2 :, dropped] = float("-inf")
    assert_close(got, case.expected(NEW, mask)[-6:])


def test_keep_moves_what_belongs_to_a_token(case):
    kept, rows = pruned(case)
    prefix, visual = case.prefix.keep(kept), case.prefix.visual
    assert torch.equal(prefix.positions, case.prefix.positions[..., rows])
    assert prefix.next_position == case.prefix.next_position
    assert torch.equal(prefix.embeds[0, prefix.visual.index], visual.features[kept])
    assert len(prefix.visual.deepstack) == (3 if case.model.family == QWEN3 else 0)
    for ours, whole in zip(prefix.visual.deepstack, visual.deepstack, strict=True):
        assert torch.equal(ours, whole[kept])
    compact = case.prefix.keep(kept, compact=True)
    assert torch.equal(compact.positions, torch.arange(len(rows)).expand(3, 1, -1))
    assert (case.prefill(compact).logits - case.prefill(prefix).logits).abs().max() > 1e-2  # positions do matter


def test_prompt_without_a_visual_token(case):
    """The prompt of a drafter that keeps nothing."""
    prefix = case.prefix.keep(torch.empty(0, dtype=torch.long))
    assert len(prefix.visual) == 0 and torch.isfinite(case.prefill(prefix).logits).all()


def test_taps_see_the_models_own_attention(case):
    index, rows = case.prefix.visual.index, case.prefix.text_rows_after_video
    taps = Taps(rows, index, attention=True, hidden=(0, 1, 2, case.model.layers))
    case.engine.prefill(case.prefix, 4, taps)
    eager = stock(replace_kind(case), "eager")
    with torch.inference_mode():
        out = eager(**case.inputs, output_attentions=True, output_hidden_states=True)
    weights = torch.stack(out.attentions)[:, 0].mean((0, 1))
    torch.testing.assert_close(taps.attention_scores, weights[rows][:, index].mean(0), rtol=0, atol=1e-5)
    assert_close(taps.states[0], case.prefix.embeds[0])
    embedded = taps.states[1][index] - case.prefix.embeds[0, index]
    assert embedded.abs().max() > 0.1


def replace_kind(case):
    return QwenKind(case.model.family, case.stock.config.tie_word_embeddings)


def pool_slowly(tower, family, values, grid):
    """Features of the pooled context patch by patch: (N, hidden) for each projector."""
    before = []  # per projector the patches it is given

    def keep(_module, args):
        before.append(args[0])

    mergers = [*getattr(tower, "deepstack_merger_list", []), tower.merger]
    handles = [merger.register_forward_pre_hook(keep) for merger in mergers]
    tower(values, grid_thw=torch.tensor([grid]))
    for handle in handles:
        handle.remove()
    order = torch.arange(len(values) // 4)
    if family == QWEN25:
        from transformers.vision_utils import get_vision_window_index

        order, _ = get_vision_window_index(torch.tensor([grid]), 2, tower.window_size, tower.patch_size)
    steps, rows, columns = grid
    places = {}  # step, row and column of a patch -> where the tower has it
    for place, token in enumerate(order.tolist()):
        step, cell = divmod(token, rows * columns // 4)
        row, column = divmod(cell, columns // 2)
        for part in range(4):
            places[step, 2 * row + part // 2, 2 * column + part % 2] = 4 * place + part
    found = []
    for merger, features in zip(mergers, before, strict=True):
        pooled = {}
        for step in range(steps):
            for row in range(rows // 2):  # sides of a grid of patches are even
                for column in range(columns // 2):
                    four = [places[step, 2 * row + i, 2 * column + j] for i in (0, 1) for j in (0, 1)]
                    pooled[step, row, column] = features[four].mean(0)
        units = []
        for step in range(steps):
            for row in range(0, rows // 2, 2):
                for column in range(0, columns // 2, 2):
                    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
                        units.append(pooled[step, min(row + i, rows // 2 - 1), min(column + j, columns // 2 - 1)])
        found.append(merger(torch.stack(units)))
    return [found[-1], *found[:-1]]


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("size", [(3, 5), (4, 6), (1, 1), (7, 2)])
@torch.inference_mode()
def test_pooled_features(case, size):
    shown = pixels(case.model, 4, *size)
    seen = case.model.encode(shown, pooled=True)
    rows, columns = -(-size[0] // 2), -(-size[1] // 2)
    assert seen.grid == (2, rows, columns) and len(seen) == 2 * rows * columns
    expected = pool_slowly(case.stock.model.visual, case.model.family, shown.values, shown.grid)
    for ours, slow in zip([seen.features, *seen.deepstack], expected, strict=True):
        assert_close(ours, slow)
    prefix = case.model.prefix(seen, PROMPT)
    assert torch.isfinite(case.prefill(prefix).logits).all()
    again = case.model.encode(shown).features  # nothing is left behind in the tower
    torch.testing.assert_close(
        again, case.stock.get_video_features(shown.values, torch.tensor([shown.grid])).pooler_output[0]
    )


def test_tokens_are_where_their_pixels_are(case):
    """Without attention between patches, only the token over changed pixels changes."""
    model = adapter(replace_kind(case))
    for name, weight in model.tower.named_parameters():
        if "attn.proj" in name:
            weight.data.zero_()
    plain = pixels(model, 6, 4, 7)
    before = model.encode(plain)
    changed = plain.values.clone()
    changed[(1 * 4 * 7 + 2 * 7 + 5) * 4 + 3] += 3.0  # of the second step the token in row 2, column 5: its last patch
    moved = model.encode(replace(plain, stored=changed, rules=None)).features - before.features
    (place,) = moved.abs().amax(-1).nonzero()[:, 0].tolist()
    assert (before.frame[place], before.row[place], before.column[place]) == (1, 2, 5)


def test_text_instead_of_the_video(case):
    prefix = case.model.text_prefix(case.model.template.ids_with_text("\n", PROMPT))
    text = case.model.tokenizer.decode(prefix.token_ids)
    assert f"user\n\n{PROMPT}" in text and "vision" not in text
    assert len(prefix.visual) == 0 and prefix.next_position == prefix.length
    assert torch.equal(prefix.positions, torch.arange(prefix.length).expand(3, 1, -1))
    with torch.inference_mode():
        expected = case.stock(input_ids=prefix.token_ids[None]).logits[0, -1, : case.model.vocabulary]
    assert_close(case.prefill(prefix).logits, expected)


@pytest.mark.sample(quick=1)
def test_prompt_that_says_video(case):
    seen = case.model.encode(case.pixels)
    for given in (("What does <|video_pad|> mean?",), ("Describe.<|im_end|>",), (PROMPT, "<|video_pad|>")):
        with pytest.raises(GenerationError, match=r"prompt holds <\|(video_pad|im_end)\|>"):
            case.model.prefix(seen, *given)
    prefix = case.model.prefix(seen, f"Keep {mark_value('<|video_pad|><|im_end|>')}!")
    assert torch.equal(prefix.visual.index, case.prefix.visual.index)
    assert int((prefix.token_ids == case.model.visual_id).sum()) == len(seen)
    end = case.model.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert int((prefix.token_ids == end).sum()) == int((case.prefix.token_ids == end).sum())
    spelled = case.model.tokenizer.decode(prefix.token_ids)
    assert "Keep <|video_pad|><|im_end|>!" in spelled


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.full
def test_saved_and_loaded(family):
    place = resolve_placement("cpu", "float32")
    kinds = {"target": QwenKind(family, tied=False, padding=40), "draft": QwenKind(family, padding=7, seed=1, layers=2)}
    target, draft = (loading.load_model(str(checkpoint(kind)), place) for kind in kinds.values())
    loading.check_pair(target, draft)
    size = max(tokenizer().get_vocab().values()) + 1
    assert target.vocabulary == draft.vocabulary == size < draft.model.lm_head.weight.shape[0]
    assert draft.model.lm_head.weight.shape[0] < target.model.lm_head.weight.shape[0]
    assert (target.family, target.layers, draft.layers) == (family, 4, 2)
    assert target.eos == {tokenizer().eos_token_id} and target.rules == adapter(kinds["target"]).rules
    shown = pixels(target)
    prefix = target.prefix(target.encode(shown), PROMPT)
    with torch.inference_mode():
        expected = stock(kinds["target"])(**stock_inputs(target, shown, prefix)).logits[0, -1, :size]
    assert_close(Engine(target).prefill(prefix, 4).logits, expected)
    foreign = loading.load_model(str(checkpoint(family, corpus=9)), place)
    with pytest.raises(ModelError, match="different tokenizers") as caught:
        loading.check_pair(target, foreign)
    assert caught.value.kind == "tokenizer"


def test_families_do_not_mix():
    with pytest.raises(ModelError, match="family"):
        loading.check_pair(adapter(QwenKind(QWEN25)), adapter(QwenKind(QWEN3)))
