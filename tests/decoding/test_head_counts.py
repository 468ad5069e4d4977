"""Cost of a head's rounds to the host: waits, and launches outside replayed passes, that do not grow with clips."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from research.random_decoder import engine_of, language
from research.sizes import Size
from tests.checkpoints.eagle3 import HEADS, INNER, KV_HEADS, WIDTH, layout
from tests.decoding.test_round_counts import ROUNDS, TREE, Launches, Waits
from tests.engine import standin
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.sequential import sequential
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.target import Target
from vidspec.drafting.head_windows import HeadAdaptive, HeadChain, HeadTree
from vidspec.engine.forward import Engine
from vidspec.engine.graphs import ReplayedPasses
from vidspec.engine.head_states import StateInputs
from vidspec.engine.rows import HeadState, PrefillResult, Rows
from vidspec.engine.sampling import Sampling
from vidspec.events.trace import Trace
from vidspec.models.eagle3 import Eagle3Decoder, head_config
from vidspec.models.request import CaptionRequest

SIZE = Size(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=220)
BLOCKS, TOKENS, GAMMA = (0, 1, 2), 24, 5
CPU = torch.device("cpu")


@dataclass(eq=False)
class DrawnHead:
    """A head of a target without a checkpoint."""

    decoder: Eagle3Decoder
    device: torch.device
    tokens: torch.Tensor
    vocabulary: int
    blocks: tuple[int, ...] = BLOCKS
    name: str = "head"


def engines():
    """A random target and a head of it, whose passes are replayed."""
    torch.manual_seed(1)
    target = engine_of(language(SIZE, CPU, torch.float32))
    target.model.decoder.graphs = ReplayedPasses(target.model.decoder, standin.attention)
    tensors = layout(SIZE.hidden, SIZE.vocabulary)
    config = {"hidden_size": SIZE.hidden, "intermediate_size": INNER, "num_attention_heads": HEADS}
    config |= {"num_key_value_heads": KV_HEADS, "head_dim": WIDTH, "vocab_size": SIZE.vocabulary}
    decoder = Eagle3Decoder(head_config(config), tensors)
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    decoder.bind(target.model.decoder.embed, StateInputs(SIZE.hidden, decoder.joined, ids), None)
    decoder.graphs = ReplayedPasses(decoder, standin.attention)
    return target, Engine(DrawnHead(decoder, CPU, ids, len(ids)))


def begun(loop, kind, clips):
    """Sequences that have requested their first passes."""
    target, head = engines()
    sequences = []
    for clip in range(clips):
        one = Sequence(CaptionRequest(str(clip)), Trace(loop.synchronise))
        span, pairs = target.open(80), head.open(80)
        (passed,) = target.run([Rows(span, [clip, 1, 2, 3], tapped=BLOCKS)])
        head.run([Rows(pairs, [1, 2, 3], head_states=[HeadState(passed.tapped, row) for row in range(3)], tapped=(1,))])
        one.rng = torch.Generator().manual_seed(clip)
        one.target = Target(target, PrefillResult(span, passed.logits[-1]), Sampling(), one.rng, BLOCKS)
        one.limits, one.gamma, one.acceptance = StoppingRules(TOKENS), GAMMA, ExactRule()
        last = passed.tapped[-1:]
        if kind == "adaptive":
            one.drafter = HeadAdaptive(head, pairs, last)
        else:
            drafter = HeadChain if kind == "chain" else HeadTree
            one.drafter = drafter(head, pairs, () if kind == "chain" else TREE, last)
        one.key, one.steps = clip, sequential(one)
        loop.begin(one)
        sequences.append(one)
    return sequences


def texts(kind, clips):
    waits, passes = Waits(), []
    loop = Loop(on_pass=passes.append, synchronise=waits.synchronise)
    sequences = begun(loop, kind, clips)
    waits.synchronised = 0
    with waits:
        while len(loop):
            list(loop.turn())
    assert all(one.over and one.error is None and len(one.token_ids) == TOKENS for one in sequences)
    return [one.token_ids for one in sequences], waits, passes, max(len(one.rounds) for one in sequences) - 1


@pytest.mark.parametrize("clips", [1, 16])
@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
def test_a_pass_is_waited_for_once_and_a_chain_twice_a_round(kind, clips):
    _, waits, passes, rounds = texts(kind, clips)
    assert waits.reads == {"tolist": len(passes)} and waits.synchronised == 0
    if kind == "chain":
        assert waits.reads.total() <= 3 * rounds


@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
def test_a_pass_serves_all_clips(kind):
    """The texts are those of each clip alone."""
    together, _, passes, _ = texts(kind, 16)
    assert max(one.sequences for one in passes if one.lane == "draft") == 16
    assert together[:1] == texts(kind, 1)[0]


def test_a_round_of_sixteen_clips_launches_little_outside_replayed_passes(monkeypatch):
    """Drafting and verification: what is left are tables, the clips' states and the read-backs."""
    loop, launches = Loop(), Launches(monkeypatch)
    sequences = begun(loop, "chain", 16)
    for _ in range(2):  # the passes are made
        list(loop.turn())
    launches.found.clear()
    launches.copies.clear()
    with launches:
        for _ in range(2 * ROUNDS):
            list(loop.turn())
    assert {len(one.rounds) for one in sequences} == {2 + ROUNDS}
    assert launches.copies == {"vidspec.engine.host_table": 2 * ROUNDS}
    assert (launches.found.total() + launches.copies.total()) / ROUNDS < 40, launches.found
