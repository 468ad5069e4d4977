"""On an NVIDIA GPU: block heads with Markov heads of each kind (DSpark) beside a small random target."""

from __future__ import annotations

import pytest
import torch

from tests.checkpoints import checkpoint
from tests.checkpoints import dflash as heads
from tests.checkpoints.qwen import QWEN25, QwenKind
from tests.gpu.places import DEVICE, DTYPES, SMOKE
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.drafting.base import Draft
from vidspec.drafting.block import BlockDrafter
from vidspec.models import dflash, loading
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest
from vidspec.runs.ties import logit_gap, tie_limit
from vidspec.video import Clip

pytestmark = pytest.mark.gpu
KIND, GAMMA, TOKENS = QwenKind(QWEN25, tied=False), 4, 30
KINDS = ["vanilla", "gated", "rnn"]


@pytest.fixture(scope="module", params=["float32"] if SMOKE else [str(DTYPES[0]).removeprefix("torch."), "float32"])
def target(request):
    made = loading.load_model(str(checkpoint(KIND)), resolve_placement(str(DEVICE), request.param))
    made.eos = frozenset()
    return made


@pytest.fixture(params=KINDS)
def head(request, target, tmp_path):
    kind = request.param
    weights = heads.tensors() | heads.dspark_tensors(len(target.model.lm_head.weight), kind)
    config = heads.speculators_config(KIND, "dspark", markov_rank=6, markov_head_type=kind)
    folder = str(heads.save(tmp_path, config, weights))
    place = resolve_placement(str(DEVICE), str(target.dtype).removeprefix("torch."))
    return dflash.load_block_head(folder, target, place)


def captioner(name, target, head=None, **settings):
    same = {"models.target": "target", "generate.max_new_tokens": TOKENS, **settings}
    same |= {"models.draft": head.name} if head else {}
    return Captioner(profiles.load(name, same, env={}), target, None, head=head)


def test_same_tokens_as_plain_decoding_whatever_is_accepted(target, head, monkeypatch):
    """Of the n-th window the first n tokens, modulo its length and one, are plain decoding's."""
    generator = torch.Generator().manual_seed(0)
    clip = Clip.of(torch.randint(0, 256, (6, 24, 40, 3), generator=generator, dtype=torch.uint8).numpy(), range(6))
    plain = captioner("ar", target).caption("", clip=clip).token_ids
    emitted, proposals, propose, read = [plain[0]], [0], BlockDrafter.propose, BlockDrafter.read

    def proposes(self, gamma):
        draft = yield from propose(self, gamma)
        right = proposals[0] % (len(draft.tokens) + 1)
        proposals[0] += 1
        truth = [*plain, *[0] * GAMMA][len(emitted) :]
        tokens = [
            true if at < right else token + (token == true)
            for at, (token, true) in enumerate(zip(draft.tokens, truth, strict=False))
        ]
        self._draft = Draft.chain(tokens, draft.probs)
        return self._draft

    def reads(self, tokens, passed):
        emitted.extend(tokens)
        read(self, tokens, passed)

    monkeypatch.setattr(BlockDrafter, "propose", proposes)
    monkeypatch.setattr(BlockDrafter, "read", reads)
    drafted = captioner("dflash", target, head, **{"draft.gamma": GAMMA, "draft.options.visual": "none"})
    caption = drafted.caption("", clip=clip)
    limit = tie_limit(target.dtype, target.device)
    assert logit_gap(drafted.client, CaptionRequest("", clip), plain, caption.token_ids) <= limit
    lengths = set(caption.counters["accepted_lengths"])
    assert lengths >= ({0, 1, GAMMA} if target.dtype == torch.float32 else {0, 1})


def test_bias_and_memory_of_a_step_are_those_of_the_cpu_in_float32(target, head, tmp_path):
    place = resolve_placement("cpu", "float32")
    exact = dflash.load_block_head(str(tmp_path), loading.load_model(str(checkpoint(KIND)), place), place)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, heads.HIDDEN, generator=generator)
    before, memories = torch.tensor([7]), [None, None]
    for _ in range(3):
        here = exact.decoder.markov_step(before, hidden, memories[0])
        there = head.decoder.markov_step(before.to(DEVICE), hidden.to(DEVICE, target.dtype), memories[1])
        close = 1e-4 if target.dtype == torch.float32 else 5e-2
        assert there.bias.device.type == DEVICE.type
        assert float((there.bias.cpu().float() - here.bias).abs().max()) <= close * float(here.bias.abs().max())
        before, memories = here.bias.argmax(-1), [here.memory, there.memory]
