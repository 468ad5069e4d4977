"""Costs of a round for the host: one wait for each pass, however many clips are in it, and few calls of Python."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from research.random_decoder import engine_of, language
from research.sizes import Size
from tests.checkpoints.llava_onevision import tokenizer
from tests.decoding.toys import turn
from tests.engine import standin
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import Loop
from vidspec.decoding.schedules.sequential import sequential
from vidspec.decoding.sequence import Drafting, Sequence
from vidspec.decoding.target import Target
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.static_tree import parse_tree
from vidspec.drafting.tree import AdaptiveDrafter, TreeDrafter
from vidspec.engine.device import to_device
from vidspec.engine.graphs.choice import ChoiceStep
from vidspec.engine.graphs.passes import ReplayedPasses
from vidspec.engine.graphs.step import GraphStep
from vidspec.engine.penalties import Penalties, PenaltyHistory
from vidspec.engine.rows import PrefillResult, Rows
from vidspec.engine.sampling import Sampling
from vidspec.events.trace import Trace
from vidspec.models.detokenizer import Detokenizer
from vidspec.models.request import CaptionRequest

SIZE = Size(layers=1, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=60)
READS = ("tolist", "item", "numpy", "cpu", "__int__", "__float__", "__bool__", "__index__")
TREE = parse_tree("0 1 2 | 00 01 10 | 000 001")
#: Rounds whose launches are counted.
ROUNDS = 3
#: Calls of Python in a round of 16 clips.
CALLS = 1225
GREEDY, DRAWN = Sampling(), Sampling(0.8, 0.9)
PENALTIES = Penalties(1.2, 0.3)
LAUNCHED = [
    ("chain", GREEDY, None),
    ("chain", DRAWN, None),
    ("chain", Sampling(0.8, 1.0, 20, 0.05), None),
    ("chain", GREEDY, Penalties(repetition_penalty=1.2)),
    ("chain", GREEDY, Penalties(presence_penalty=0.3)),
    ("chain", DRAWN, PENALTIES),
    ("tree", GREEDY, None),
]


class Waits(TorchFunctionMode):
    """Counts what would wait for a device; the host's own random numbers are in float64."""

    def __init__(self):
        super().__init__()
        self.reads, self.synchronised = Counter(), 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in READS and args[0].dtype is not torch.float64:
            self.reads[name] += 1
        if name in ("__getitem__", "__setitem__") and any(map(copied, args[1:])):
            self.reads[name] += 1
        return func(*args, **(kwargs or {}))

    def synchronise(self):
        self.synchronised += 1


def copied(index):
    """Copies that indexing makes from pageable memory, or counts there: a list, a number to assign, a mask."""
    if isinstance(index, tuple):
        return any(map(copied, index))
    return isinstance(index, (list, range, float)) or (isinstance(index, torch.Tensor) and index.dtype is torch.bool)


class Launches(TorchDispatchMode):
    """Counts operations outside of replayed passes, the host's own included, and copies to a device."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.found, self.replaying = Counter(), False
        for kind in (GraphStep, ChoiceStep):
            monkeypatch.setattr(kind, "__call__", lambda step, run=kind.__call__: self.replay(step, run))
        self.copies = Counter()
        for name, module in list(sys.modules.items()):
            if name.startswith("vidspec.engine.") and hasattr(module, "to_device"):
                monkeypatch.setattr(module, "to_device", partial(self.copy, name))

    def copy(self, name, host, device, out=None):
        self.copies[name] += 1
        return to_device(host, device, out)

    def replay(self, step, run):
        self.replaying = True
        run(step)
        self.replaying = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if self.replaying:
            return out
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
        made = [one for one in tree_leaves(out) if torch.is_tensor(one)]
        name = func.overloadpacket.__name__
        computed = func._schema.is_mutable or any(one.untyped_storage()._cdata not in given for one in made)
        if computed and not name.startswith(("empty", "lift", "detach", "_local_scalar")):
            self.found[name] += 1
        return out


def replaying(seed):
    torch.manual_seed(seed)
    engine = engine_of(language(SIZE, torch.device("cpu"), torch.float32))
    engine.model.decoder.graphs = ReplayedPasses(engine.model.decoder, standin.attention)
    return engine


def read(engine, clip):
    span = engine.open(80)
    (passed,) = engine.run([Rows(span, [clip, 1, 2, 3])])
    return PrefillResult(span, passed.logits[-1])


def drafter_of(kind, engine, span, sampling):
    if kind == "chain":
        return ChainDrafter(engine, span, sampling, torch.Generator().manual_seed(2))
    return TreeDrafter(engine, span, TREE) if kind == "tree" else AdaptiveDrafter(engine, span)


def begun(loop, kind, clips, sampling=GREEDY, gamma=5, text=None, models=(1, 2), penalties=None):
    """Sequences that have requested their first passes."""
    target, draft = map(replaying, models)
    sequences = []
    for clip in range(clips):
        setup = SimpleNamespace(window=gamma)
        one = Sequence(CaptionRequest(str(clip)), setup, Trace(loop.synchronise), clip)
        rng = torch.Generator().manual_seed(clip)
        history = penalties and PenaltyHistory(penalties, [clip, 1, 2, 3])
        one.target = Target(target, read(target, clip), sampling, rng, acceptance=ExactRule(), history=history)
        one.limits, one.text = StoppingRules(24), text and text()
        drafter = drafter_of(kind, draft, read(draft, clip).span, sampling)
        one.drafting, drafter.history = Drafting(drafter, gamma), history
        one.emit_first()
        drafter.begin(one.token_ids[0])
        one.steps = sequential(one)
        sequences.append(one)
        loop.begin(one)
    return sequences


def launched(monkeypatch, kind, clips, sampling=GREEDY, models=(1, 2), penalties=None):
    """Operations of a round outside of replayed passes, copies to the device included, and what they are."""
    loop, launches = Loop(), Launches(monkeypatch)
    sequences = begun(loop, kind, clips, sampling, models=models, penalties=penalties)
    for _ in range(2):  # the passes are made
        turn(loop)
    launches.found.clear()
    launches.copies.clear()
    with launches:
        while max(len(one.rounds) for one in sequences) < 2 + ROUNDS:
            turn(loop)
    return (launches.found.total() + launches.copies.total()) / ROUNDS, launches


def counted(kind, clips, sampling=GREEDY, penalties=None):
    """Waits, passes and the most rounds of a clip, once all clips have requested their first passes."""
    waits, passes = Waits(), []
    loop = Loop(on_pass=passes.append, synchronise=waits.synchronise)
    sequences = begun(loop, kind, clips, sampling, penalties=penalties)
    waits.synchronised = 0
    with waits:
        while len(loop):
            turn(loop)
    assert all(one.over and one.error is None and len(one.token_ids) == 24 for one in sequences)
    return waits, passes, max(len(one.rounds) for one in sequences) - 1


@pytest.mark.sample(quick=1, full=11)
@pytest.mark.parametrize("clips", [1, pytest.param(16, marks=pytest.mark.full)])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
def test_a_pass_is_waited_for_once(kind, clips, sampling):
    waits, passes, _ = counted(kind, clips, sampling)
    assert waits.reads == {"tolist": len(passes)}  # a replayed chain is one
    assert waits.synchronised == 0


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("clips", [1, pytest.param(16, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "sampling, penalties",
    [(GREEDY, None), (DRAWN, None), (GREEDY, PENALTIES), (DRAWN, PENALTIES)],
    ids=["greedy", "drawn", "penalised", "both"],
)
def test_a_round_of_chains_has_two_waits(sampling, penalties, clips):
    """One for the draft and one for the target, at any number of clips."""
    waits, _, rounds = counted("chain", clips, sampling, penalties)
    assert waits.reads.total() <= 2 * rounds


@pytest.mark.parametrize("clips", [1, pytest.param(16, marks=pytest.mark.full)])
def test_a_round_of_trees_has_two_waits(clips):
    """All levels of a tree whose shape is known are one."""
    waits, _, rounds = counted("tree", clips)
    assert waits.reads.total() <= 2 * rounds


class Calls:
    """Python functions that are entered or resumed, those of a model's pass left out: a device does that by itself."""

    def __init__(self, monkeypatch):
        self.found = Counter()
        for kind in (GraphStep, ChoiceStep):
            monkeypatch.setattr(kind, "__call__", lambda step, run=kind.__call__: self.uncounted(step, run))

    def uncounted(self, step, run):
        counting = sys.getprofile()
        sys.setprofile(None)
        run(step)
        sys.setprofile(counting)

    def profile(self, frame, event, _):
        if event == "call":
            self.found[frame.f_code.co_name] += 1

    def __enter__(self):
        sys.setprofile(self.profile)

    def __exit__(self, *_):
        sys.setprofile(None)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("models", [(1, 2), (1, 1)], ids=["rejected", "accepted"])
def test_a_round_of_16_clips_is_little_work_for_the_host(monkeypatch, models):
    """Windows of 5 tokens, text and events included."""
    words, loop, calls = tokenizer(), Loop(), Calls(monkeypatch)
    sequences = begun(loop, "chain", 16, text=lambda: Detokenizer(words), models=models)
    for _ in range(2):  # the passes are made
        turn(loop)
    rounds = 3
    with calls:
        for _ in range(2 * rounds):
            turn(loop)
    assert {len(one.rounds) for one in sequences} == {2 + rounds}
    assert calls.found.total() / rounds <= CALLS


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind, sampling, penalties", LAUNCHED, ids=str)
def test_few_launches_outside_of_replayed_passes(monkeypatch, kind, sampling, penalties):
    each, launches = launched(monkeypatch, kind, 16, sampling, penalties=penalties)
    assert each < 40, (launches.found, launches.copies)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("clips", [1, 16])
@pytest.mark.parametrize("kind, sampling, penalties", LAUNCHED, ids=str)
def test_all_host_data_of_a_pass_is_one_copy(monkeypatch, kind, sampling, penalties, clips):
    """One for the draft, all of whose passes are known before, and one for the target."""
    _, launches = launched(monkeypatch, kind, clips, sampling, penalties=penalties)
    assert launches.copies == {"vidspec.engine.graphs.step": 2 * ROUNDS}


def test_a_path_of_a_tree_is_kept_by_one_gather_of_all_layers_and_clips(monkeypatch):
    """Once for the target and once for the draft, when their next passes begin."""
    accepted = launched(monkeypatch, "tree", 16, models=(1, 1))[1]
    assert 0 < accepted.found["index_copy_"] <= 2 * ROUNDS
    assert accepted.copies == {"vidspec.engine.graphs.step": 2 * ROUNDS}  # together with the other data
