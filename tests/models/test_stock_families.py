"""Families whose blocks stay stock, mixtures of experts and hybrids: they give what their own models give."""

import pytest
import torch

from tests.checkpoints import checkpoint
from tests.checkpoints.qwen import HYBRIDS, STOCK, QwenKind, adapter, pixels, stock
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.models.parity import ParityCase
from tests.tiers import full_but
from vidspec.engine.rows import Rows
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

SEEDS = range(20)


class StockFamilyCase(ParityCase):
    def __init__(self, family, seed=0):
        self.kind = QwenKind(family, tied=False, padding=0, seed=seed)
        model = adapter(self.kind)
        super().__init__(model, stock(self.kind), pixels(model, every=12.5, seed=seed))

    @torch.inference_mode()
    def whole(self, new):
        """Logits of the stock model's own forward over the prompt and ``new`` tokens, from the prompt's end on."""
        ids = torch.cat([self.prefix.token_ids, torch.tensor(new, dtype=torch.long)])[None]
        following = (self.prefix.next_position + torch.arange(len(new))).expand(3, 1, -1)
        given = {"input_ids": ids, "attention_mask": None, "mm_token_type_ids": None}
        given["position_ids"] = torch.cat([self.prefix.positions, following], -1)
        return self.stock(**{**self.inputs, **given}, use_cache=False).logits[0, self.prefix.length - 1 :]

    def greedy(self, count):
        read = self.engine.prefill(self.prefix, count)
        made = [int(read.logits.argmax())]
        while len(made) < count and made[-1] not in self.model.eos:
            made.append(int(forward(self.engine, read, made[-1:]).logits[-1].argmax()))
        return made


@pytest.fixture(scope="module", params=sorted(STOCK))
def case(request):
    return StockFamilyCase(request.param)


@pytest.mark.sample(quick=1)
def test_prefill_and_a_window(case):
    new = [300, 41, 317, 77, 77, 260, 123, 338]
    expected = case.whole(new)
    read = case.engine.prefill(case.prefix, 16)
    assert_close(read.logits, expected[0])
    assert_close(forward(case.engine, read, new).logits, expected[1:])
    assert case.model.decoder.name == "stock" and "not fused" in case.model.decoder.why


def test_a_pass_of_several_clips(case):
    """Experts are chosen row by row: company changes nothing."""
    reads = [case.engine.prefill(case.prefix, 16) for _ in range(3)]
    texts = [[300, 41, 9], [17], [260, 123, 338, 12]]
    together = case.engine.run([Rows(read.span, text) for read, text in zip(reads, texts, strict=True)])
    for text, passed in zip(texts, together, strict=True):
        alone = forward(case.engine, case.engine.prefill(case.prefix, 16), text)
        assert_close(passed.logits, alone.logits)


@pytest.mark.parametrize("family", full_but([], sorted(STOCK)))
def test_plain_decoding_is_generate(family):
    for seed in SEEDS:
        case = StockFamilyCase(family, seed)
        with torch.inference_mode():
            expected = case.stock.generate(**case.inputs, max_new_tokens=12, do_sample=False)[0, case.prefix.length :]
        assert case.greedy(12) == expected.tolist()[: len(case.greedy(12))], seed


@pytest.mark.full
def test_checkpoints_load():
    for family in sorted(STOCK):
        folder = checkpoint(family, tied=False)
        model = loading.load_model(str(folder), resolve_placement("cpu", "float32"))
        assert model.family == family
        assert (model.decoder.cached is not None) == (family in HYBRIDS)
