"""Cost of a head's rounds to the host: waits, and launches outside replayed passes, that do not grow with clips."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from research.random_decoder import engine_of, language
from research.sizes import Size
from tests.checkpoints.eagle3 import HEADS, INNER, KV_HEADS, WIDTH, layout
from tests.checkpoints.mtp import FAMILY, save, tensors
from tests.checkpoints.qwen import QwenKind
from tests.decoding.test_round_counts import PENALTIES, ROUNDS, TREE, Launches, Waits
from tests.decoding.toys import turn
from tests.engine import standin
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.sequential import sequential
from vidspec.decoding.sequence import Drafting, Sequence
from vidspec.decoding.target import Target
from vidspec.drafting.tree import HeadAdaptive, HeadChain, HeadTree
from vidspec.engine.forward import Engine
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.graphs.step import GraphStep
from vidspec.engine.head_states import StateInputs
from vidspec.engine.penalties import PenaltyHistory
from vidspec.engine.rows import HeadState, PrefillResult, Rows
from vidspec.engine.sampling import Sampling
from vidspec.events.trace import Trace
from vidspec.models.eagle3 import Eagle3Decoder, StateProjection, head_config
from vidspec.models.loading import load_model
from vidspec.models.mtp import load_mtp
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest

SIZE = Size(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=220)
BLOCKS, TOKENS, GAMMA = (0, 1, 2), 10, 5
#: More than the rounds whose launches are counted can give.
ENDLESS = 80
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


def eagle_engines():
    """A random target and a head of it, whose passes are replayed."""
    torch.manual_seed(1)
    target = engine_of(language(SIZE, CPU, torch.float32))
    target.model.decoder.graphs = ReplayedPasses(target.model.decoder, standin.attention)
    tensors = layout(SIZE.hidden, SIZE.vocabulary)
    config = {"hidden_size": SIZE.hidden, "intermediate_size": INNER, "num_attention_heads": HEADS}
    config |= {"num_key_value_heads": KV_HEADS, "head_dim": WIDTH, "vocab_size": SIZE.vocabulary}
    decoder = Eagle3Decoder(head_config(config), tensors)
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    inputs = StateInputs(SIZE.hidden, StateProjection(tensors, 1e-6), ids, SIZE.vocabulary)
    decoder.bind(target.model.decoder.embed, inputs, None)
    decoder.graphs = ReplayedPasses(decoder, standin.attention)
    return target, Engine(DrawnHead(decoder, CPU, ids, len(ids)))


@cache
def mtp_engines():
    """A random target with recurrent blocks, which run kernel by kernel, and its MTP layer, which is replayed."""
    kind = QwenKind(FAMILY, tied=False)
    with tempfile.TemporaryDirectory() as folder:
        target = load_model(str(save(kind, Path(folder) / "mtp", tensors(kind))), resolve_placement("cpu", "float32"))
        head = load_mtp(target)
    head.decoder.graphs = ReplayedPasses(head.decoder, standin.attention)
    return Engine(target), Engine(head)


ENGINES = {"eagle3": eagle_engines, "mtp": mtp_engines}


def begun(loop, kind, clips, head="eagle3", penalties=None, tokens=TOKENS):
    """Sequences of so many tokens that have requested their first passes."""
    target, head = ENGINES[head]()
    blocks, sequences = head.model.blocks, []
    for clip in range(clips):
        one = Sequence(CaptionRequest(str(clip)), SimpleNamespace(window=GAMMA), Trace(loop.synchronise), clip)
        span, pairs = target.open(tokens + 16), head.open(tokens + 16)
        (passed,) = target.run([Rows(span, [clip, 1, 2, 3], tapped=blocks)])
        head.run([Rows(pairs, [1, 2, 3], head_states=[HeadState(passed.tapped, row) for row in range(3)], tapped=(1,))])
        rng = torch.Generator().manual_seed(clip)
        history = penalties and PenaltyHistory(penalties, [clip, 1, 2, 3])
        prefill = PrefillResult(span, passed.logits[-1])
        one.target = Target(target, prefill, Sampling(), rng, acceptance=ExactRule(), history=history)
        one.target.tapped, one.limits = blocks, StoppingRules(tokens)
        last = passed.tapped[-1:]
        if kind == "adaptive":
            drafter = HeadAdaptive(head, pairs, last)
        else:
            windows = HeadChain if kind == "chain" else HeadTree
            drafter = windows(head, pairs, () if kind == "chain" else TREE, last)
        one.drafting, drafter.history = Drafting(drafter, GAMMA), history
        one.emit_first()
        drafter.begin(one.token_ids[0])
        one.steps = sequential(one)
        loop.begin(one)
        sequences.append(one)
    return sequences


@cache
def texts(kind, clips, head="eagle3", penalties=None):
    waits, passes = Waits(), []
    loop = Loop(on_pass=passes.append, synchronise=waits.synchronise)
    sequences = begun(loop, kind, clips, head, penalties)
    waits.synchronised = 0
    with waits:
        while len(loop):
            turn(loop)
    assert all(one.over and one.error is None and len(one.token_ids) == TOKENS for one in sequences)
    return [one.token_ids for one in sequences], waits, passes, max(len(one.rounds) for one in sequences) - 1


@pytest.mark.sample(quick=1, full=9)
@pytest.mark.parametrize("clips", [1, 16])
@pytest.mark.parametrize(
    "kind, head, penalties",
    [
        ("chain", "eagle3", None),
        ("chain", "eagle3", PENALTIES),
        ("chain", "mtp", None),
        ("chain", "mtp", PENALTIES),
        ("tree", "eagle3", None),
        ("adaptive", "eagle3", None),
    ],
    ids=str,
)
def test_a_round_has_two_waits(kind, head, penalties, clips):
    """One for the head and one for the target; adaptive trees have one for each pass."""
    _, waits, passes, rounds = texts(kind, clips, head, penalties)
    assert waits.reads == {"tolist": len(passes)} and waits.synchronised == 0
    if kind != "adaptive":
        assert waits.reads.total() <= 2 * rounds


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, penalties", [("chain", None), ("chain", PENALTIES), ("tree", None), ("adaptive", None)], ids=str
)
def test_a_pass_serves_all_clips(kind, penalties):
    """The texts are those of each clip alone."""
    together, _, passes, _ = texts(kind, 16, penalties=penalties)
    assert max(one.sequences for one in passes if one.lane == "draft") == 16
    assert together[:1] == texts(kind, 1, penalties=penalties)[0]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind, penalties", [("chain", PENALTIES), ("tree", None), ("adaptive", None)], ids=str)
def test_replayed_passes_draft_what_the_others_do(monkeypatch, kind, penalties):
    """Two clips: as many tokens of each window are accepted."""
    found = []
    for replayed in (True, False):
        loop = Loop()
        sequences = begun(loop, kind, 2, penalties=penalties)
        if not replayed:
            sequences[0].drafting.drafter.engine.model.decoder.graphs = None
        while len(loop):
            turn(loop)
        found.append([[(one.token_ids, one.drafted, one.rejected) for one in each.rounds] for each in sequences])
    assert found[0] == found[1] and any(drafted for _, drafted, _ in found[0][0])


def test_memory_that_captures_of_a_head_keep_is_known_before(monkeypatch):
    """Logits, states and last states of each pass."""
    _, head = eagle_engines()
    graphs, decoder, kept = head.model.decoder.graphs, head.model.decoder, 0
    monkeypatch.setattr(graphs, "_can_capture", True)
    before = graphs.bytes_to_capture
    for count in (8, 16, 32, 64, 128, 256, 512):
        step = GraphStep(decoder, count, head.model.vocabulary, standin.attention, (1,))
        with torch.inference_mode():
            step()
        kept += sum(one.nbytes for one in (step.logits, step.hidden, step.states, step.entering[1]))
    assert kept < before < 3 * kept + 512 * decoder.pass_width * 4


@pytest.mark.full
@pytest.mark.parametrize("kind, penalties", [("chain", None), ("chain", PENALTIES), ("tree", None)], ids=str)
def test_a_round_of_sixteen_clips_launches_little_outside_replayed_passes(monkeypatch, kind, penalties):
    """Drafting and verification: what is left are tables, the clips' states and the read-backs."""
    each, launches, _ = launched(monkeypatch, kind, "eagle3", penalties)
    assert launches.copies == {"vidspec.engine.graphs.step": 2 * ROUNDS}
    assert each < 40, launches.found


@pytest.mark.full
@pytest.mark.parametrize("penalties", [None, PENALTIES], ids=str)
def test_an_mtp_layer_of_sixteen_clips_launches_little_outside_replayed_passes(monkeypatch, penalties):
    """Drafting only: the recurrent target, which verifies no trees, runs kernel by kernel."""
    _, _, each = launched(monkeypatch, "chain", "mtp", penalties)
    assert each < 30


def launched(monkeypatch, kind, head, penalties=None):
    """Operations of a round outside of replayed passes, what they are, and the head's part of them."""
    loop, launches = Loop(), Launches(monkeypatch)
    sequences = begun(loop, kind, 16, head, penalties, ENDLESS)
    for _ in range(2):  # the passes are made
        turn(loop)
    launches.found.clear()
    launches.copies.clear()
    drafting = 0
    with launches:
        for _ in range(ROUNDS):
            before = launches.found.total() + launches.copies.total()
            turn(loop)
            drafting += launches.found.total() + launches.copies.total() - before
            turn(loop)
    assert {len(one.rounds) for one in sequences} == {2 + ROUNDS}
    return (launches.found.total() + launches.copies.total()) / ROUNDS, launches, drafting / ROUNDS
