"""The loop on models that are tables: every clip gets the text it gets alone, in whatever company and order."""

import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.toys import SharedToyEngine, blend, greedy_text, on_tables, random_table, rounds_of, text_steps
from tests.tiers import examples
from vidspec.decoding import loop as loops
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.loop import SHARED, Loop, LoopClient
from vidspec.decoding.schedules.autoregressive import autoregressive
from vidspec.decoding.schedules.sequential import sequential
from vidspec.drafting.chain import ChainDrafter
from vidspec.engine.requests import Chain, Encode, Forward, PrefillPrompt, Receive
from vidspec.engine.rows import Rows
from vidspec.engine.sampling import Sampling
from vidspec.events.wake import WakeEvent

VOCABULARY = 5


def run(loop, most=10_000):
    """Turn until the loop is empty; the keys of what went on, in order."""
    keys = []
    for _ in range(most):
        if not len(loop):
            return keys
        keys += [client.key for client in loop.turn()]
    raise AssertionError("a clip waits for ever")


def begun(loop, key, steps):
    """A decoding without texts, in the loop."""
    client = LoopClient(key, steps)
    loop.begin(client)
    return client


def added(loop, key, one, schedule):
    """A sequence, in the loop."""
    one.key, one.steps = key, text_steps(schedule, one)
    loop.begin(one)
    return one


def clip(seed, target, draft, kind, limits, sampling):
    """A job whose target and draft are shared by all clips, and the text it has alone."""
    table = random_table(seed, VOCABULARY)
    other = blend(table, random_table(seed + 1000, VOCABULARY), 0.3 + 0.1 * (seed % 4))

    def made(own_target, own_draft):
        rng = torch.Generator().manual_seed(seed)
        one = on_tables(table, limits, draft=other, gamma=1 + seed % 4, sampling=sampling, rng=rng, tree=kind)
        one.target.engine, one.target.span = own_target, own_target.start_of(table)
        one.drafting.drafter.engine = own_draft
        span = own_draft.start_of(other)
        one.drafting.drafter.span = span
        if isinstance(one.drafting.drafter, ChainDrafter):
            one.drafting.drafter.spans = (span,)
        return one

    alone = [
        token for step in rounds_of(sequential, made(SharedToyEngine(), SharedToyEngine())) for token in step.token_ids
    ]
    return made(target, draft), alone


@settings(max_examples=examples(60), deadline=None)
@given(
    seeds=st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True),
    tree=st.sampled_from([None, "0 1 00 01 000"]),
    temperature=st.sampled_from([0.0, 0.8]),
    order=st.randoms(use_true_random=False),
    overlaps=st.booleans(),
)
def test_a_text_does_not_depend_on_its_company(seeds, tree, temperature, order, overlaps):
    limits = StoppingRules(24, frozenset({4}))
    sampling = Sampling(0.0 if tree else temperature)
    target, draft, loop = SharedToyEngine(), SharedToyEngine(), Loop(overlaps=overlaps)
    waiting = [(seed, *clip(seed, target, draft, tree, limits, sampling)) for seed in seeds]
    order.shuffle(waiting)
    expected, found = {}, {}
    while waiting or len(loop):  # clips come at any time
        if waiting and (not len(loop) or order.random() < 0.4):
            seed, one, expected[seed] = waiting.pop()
            found[seed] = added(loop, seed, one, sequential)
        list(loop.turn())
    assert {seed: one.token_ids for seed, one in found.items()} == expected
    assert {seed: [token for step in one.rounds for token in step.token_ids] for seed, one in found.items()} == expected
    assert all(one.over and one.error is None for one in found.values())


def test_rows_of_all_clips_share_passes():
    """Eight alike take as many passes as one; each is verified with the others."""
    limits = StoppingRules(20)
    passes = []
    for count in (1, 8):
        target, draft, loop = SharedToyEngine(), SharedToyEngine(), Loop()
        for key in range(count):
            one, _ = clip(3, target, draft, None, limits, Sampling())
            added(loop, key, one, sequential)
        run(loop)
        passes.append((len(target.passes), sum(target.passes), len(draft.passes)))
    (ones, rows, drafts), (eights, more, shared) = passes
    assert (eights, shared) == (ones, drafts) and more == 8 * rows


def test_drafts_come_before_the_target():
    """A clip that comes later is drafted for before those that wait are verified, so that it is verified with them."""
    limits = StoppingRules(20)
    target, draft, loop = SharedToyEngine(), SharedToyEngine(), Loop()
    first, _ = clip(2, target, draft, None, limits, Sampling())
    added(loop, "first", first, sequential)
    list(loop.turn())
    assert len(draft.passes) and not target.passes
    second, _ = clip(6, target, draft, None, limits, Sampling())
    added(loop, "second", second, sequential)
    list(loop.turn())
    assert not target.passes
    list(loop.turn())
    assert len(target.passes) == 1 and target.passes[0] == (1 + 2 % 4 + 1) + (1 + 6 % 4 + 1)


def plain(engine, seed, limits):
    table = random_table(seed, VOCABULARY)
    one = on_tables(table, limits)
    one.target.engine, one.target.span = engine, engine.start_of(table)
    return one, greedy_text(table, limits)


class Fragile(SharedToyEngine):
    """Fails for one span, and where it must for any company of that."""

    guilty = None

    def run(self, batch):
        if any(rows.span is self.guilty for rows in batch):
            raise RuntimeError("out of memory")
        return super().run(batch)


def test_one_clips_failure_is_its_own():
    engine, loop, limits = Fragile(), Loop(), StoppingRules(12)
    texts, found = {}, {}
    for seed in range(4):
        one, texts[seed] = plain(engine, seed, limits)
        found[seed] = added(loop, seed, one, autoregressive)
    engine.guilty = found[2].target.span
    run(loop)
    assert {seed: str(one.error) for seed, one in found.items() if one.error} == {2: "out of memory"}
    del texts[2], found[2]
    assert {seed: one.token_ids[1:] for seed, one in found.items()} == {seed: text[1:] for seed, text in texts.items()}


def test_a_decoding_that_raises_and_one_that_is_dropped():
    engine, loop, limits = SharedToyEngine(), Loop(), StoppingRules(12)
    closed = []

    def broken():
        yield Forward(engine, [Rows(engine.start_of(random_table(1, 5)), [1])])
        raise KeyError("no such thing")

    def left():
        try:
            while True:
                yield Forward(engine, [Rows(engine.start_of(random_table(2, 5)), [1])])
        finally:
            closed.append(True)

    one, text = plain(engine, 7, limits)
    raises = begun(loop, "broken", broken())
    begun(loop, "left", left())
    whole = added(loop, "whole", one, autoregressive)
    list(loop.turn())
    assert raises.over and isinstance(raises.error, KeyError) and "broken" not in loop
    loop.drop("left")
    loop.drop("left")
    assert closed == [True] and "left" not in loop and "whole" in loop
    run(loop)
    assert whole.token_ids[1:] == text[1:] and whole.error is None
    begun(loop, "x", left())
    with pytest.raises(ValueError, match="in flight"):
        begun(loop, "x", left())
    loop.close()
    assert len(loop) == 0 and closed == [True, True]


class Prompted(SharedToyEngine):
    """Prompts are numbers of rows; ``reads`` notes each stretch."""

    chunk = 4 * SHARED

    def __init__(self):
        super().__init__()
        self.reads = []

    def start_prefill(self, prompt, room, taps, *, states, cached):
        at = 0

        def rows(most):
            return range(at, min(at + most, prompt))

        def took(passed):
            nonlocal at
            at += passed
            return "read" if at == prompt else None

        return SimpleNamespace(rows=rows, add_result=took)

    def run(self, batch):
        stretches = [rows for rows in batch if isinstance(rows, range)]
        self.reads.append([len(rows) for rows in stretches])
        others = (
            super().run([rows for rows in batch if not isinstance(rows, range)]) if len(stretches) < len(batch) else []
        )
        given = iter(others)
        return [len(rows) if isinstance(rows, range) else next(given) for rows in batch]


def test_prompts_are_read_in_chunks_that_others_share():
    """Nobody waits for more than one stretch of a neighbour's prompt; alone it is read in one go."""
    engine, loop, limits = Prompted(), Loop(), StoppingRules(30)

    def reader(rows):
        return (yield PrefillPrompt(engine, rows, 0))

    begun(loop, "alone", reader(3 * SHARED))
    assert [client.value for client in loop.turn()] == ["read"] and engine.reads == [[3 * SHARED]]
    one, text = plain(engine, 5, limits)
    added(loop, "text", one, autoregressive)
    readers = [begun(loop, key, reader(rows)) for key, rows in (("long", 2 * SHARED + 7), ("short", 100))]
    list(loop.turn())
    assert engine.reads[-1] == [SHARED] and len(one.token_ids) == 2  # and both in one pass
    assert not any(client.over for client in readers)
    list(loop.turn())
    list(loop.turn())
    assert engine.reads[-1] == [7, 100]  # what is left over is the next one's
    assert [client.value for client in readers] == ["read", "read"]
    run(loop)
    assert one.token_ids == text


def test_looks_and_passes_take_turns():
    engine, loop = SharedToyEngine(), Loop()
    done = []

    def looks():
        for number in range(3):
            assert (yield Encode(lambda number=number: number)) == number
            done.append(len(engine.passes))

    one, _ = plain(engine, 1, StoppingRules(20))
    begun(loop, "looks", looks())
    added(loop, "text", one, autoregressive)
    run(loop)
    assert done == [0, 1, 2]

    def fails():
        with pytest.raises(OSError):
            yield Encode(lambda: (_ for _ in ()).throw(OSError("gone")))
        return "went on"

    client = begun(loop, "fails", fails())
    assert run(loop) == ["fails"] and client.value == "went on"


def test_hearing_waits_for_the_bell_and_not_for_ever():
    loop = Loop()
    inbox = []
    mailbox = SimpleNamespace(wake=loop.wake, take=lambda: [inbox.pop(0) for _ in range(len(inbox))])

    def hears():
        return (yield Receive(mailbox, 0.05))

    late = begun(loop, "late", hears())
    assert run(loop) == ["late"] and late.value == []
    heard = begun(loop, "heard", hears())
    inbox += [1, 2]
    loop.wake.set()
    assert run(loop) == ["heard"] and heard.value == [1, 2]


def test_who_hears_and_ends_in_one_turn_is_named_once():
    loop, engine, table = Loop(), SharedToyEngine(), random_table(3, VOCABULARY)
    mailbox = SimpleNamespace(wake=loop.wake, take=lambda: ["a message"])

    def hears():
        yield Receive(mailbox, 1)
        yield Forward(engine, [Rows(engine.start_of(table), [1])], "target")

    client = begun(loop, "hears", hears())
    assert loop.turn() == [client] and client.over


def test_chains_of_several_clips_are_continued_together():
    engine = SharedToyEngine()
    tables = [random_table(seed, VOCABULARY) for seed in range(3)]
    spans = [engine.start_of(table) for table in tables]
    loop = Loop()

    def chain(span, gamma):
        return (yield Chain(engine, span, [0], gamma))

    clients = [begun(loop, key, chain(span, key + 2)) for key, span in enumerate(spans)]
    list(loop.turn())
    assert engine.passes == [3, 3, 2, 1]
    for key, table in enumerate(tables):
        expected = [0]
        for _ in range(key + 2):
            expected.append(int(table(tuple(expected)).argmax()))
        assert clients[key].value == expected[1:]


def test_a_chain_goes_on_where_a_pass_of_another_kind_has_left_it():
    """As where the prompt of a clip that joins is read beside the first tokens of a chain."""
    engine, loop, table = SharedToyEngine(), Loop(), random_table(3, VOCABULARY)
    span, other = engine.start_of(table), engine.start_of(table)

    def chain():
        return (yield Chain(engine, span, [0], 4))

    def single():
        yield Forward(engine, [Rows(other, [1])], "draft")

    client = begun(loop, "chain", chain())
    begun(loop, "single", single())
    run(loop)
    expected = [0]
    for _ in range(4):
        expected.append(int(table(tuple(expected)).argmax()))
    assert client.value == expected[1:] and span.tokens == expected[:-1]


def test_what_passes_cost_is_told():
    told = []
    clock = iter(range(1000))
    target, draft = SharedToyEngine(), SharedToyEngine()
    loop = Loop(lambda: float(next(clock)), told.append)
    for key in range(2):
        one, _ = clip(3, target, draft, None, StoppingRules(9), Sampling())
        added(loop, key, one, sequential)
    run(loop)
    assert {one.lane for one in told} == {"target", "draft"} and all(one.seconds > 0 for one in told)
    verified = [one for one in told if one.lane == "target"]
    assert [one.rows for one in verified] == target.passes and {one.sequences for one in verified} <= {1, 2}


def test_a_pass_that_is_repeated_clip_by_clip_holds_nothing_of_the_one_that_failed():
    """As where memory ran out: the tensors of the failed pass are gone before the next begins."""

    class Tight(SharedToyEngine):
        def run(self, batch):
            assert all(one() is None for one in left), "tensors of the failed pass are still there"
            big = torch.zeros(9)
            if len(batch) > 1:
                left.append(weakref.ref(big))
                raise torch.OutOfMemoryError("too many")
            return super().run(batch)

    engine, loop, limits, left = Tight(), Loop(), StoppingRules(6), []
    found = []
    for key in range(2):
        one, text = plain(engine, key, limits)
        found.append((added(loop, key, one, autoregressive), text))
    run(loop)
    assert left and [one.token_ids[1:] for one, _ in found] == [text[1:] for _, text in found]


def test_time_in_which_a_pass_is_compiled_is_not_its_own():
    class Compiles(SharedToyEngine):
        preparing = 0.0

        def run(self, batch):
            nonlocal now
            now += 1.0
            if not self.passes:
                now += 30.0
                self.preparing += 30.0
            return super().run(batch)

    now, told = 0.0, []
    engine, loop = Compiles(), Loop(lambda: now, told.append)
    one, _ = plain(engine, 1, StoppingRules(5))
    added(loop, "a", one, autoregressive)
    run(loop)
    assert {passing.seconds for passing in told} == {1.0}


def watched(loop):
    """The loop, with this thread's steps watched."""
    loop.watch.grace = 0.001
    loop.watch.start()
    return loop


@pytest.mark.parametrize("swallowed", [0, 2])
def test_a_step_that_never_ends_is_interrupted_after_its_deadline(swallowed):
    loop, caught = watched(Loop()), []

    def endless():
        while True:
            try:
                while True:
                    pass
            except BaseException as error:
                caught.append(type(error).__name__)
                if len(caught) > swallowed:
                    raise
        yield

    client = LoopClient("endless")
    client.steps, client.deadline = endless(), 0.0
    try:
        loop.begin(client)
        engine = SharedToyEngine()
        one, text = plain(engine, 1, StoppingRules(6))
        added(loop, "other", one, autoregressive)
        while one.request is not None:
            loop.turn()
    finally:
        loop.watch.close()
    assert caught == ["StepInterrupt"] * (swallowed + 1) and one.token_ids[1:] == text[1:]
    assert "endless" in loop and client.request is None and not client.over and not loop.watch.thrown
    loop.drop("endless")
    assert not len(loop)


@pytest.mark.parametrize(("deadline", "begun"), [(None, 0.0), (float("inf"), 0.0), (0.0, float("inf"))])
def test_a_clip_in_time_and_a_step_that_has_just_begun_are_left_alone(deadline, begun):
    loop = Loop()
    client = LoopClient("in time")
    client.deadline = deadline
    loop.watch.running = client, begun
    loop.watch._check()
    assert not loop.watch.thrown


def test_an_interrupt_that_comes_as_the_step_ends_is_taken_back(monkeypatch):
    """The first is thrown and has not been raised when the step is over; a profiler shows that none is pending."""
    loop, thrown, called, throw = watched(Loop()), [], [], loops._throw
    loop.watch.close()

    def late(thread):
        thrown.append(thread)
        if len(thrown) > 1:
            throw(thread)

    monkeypatch.setattr(loops, "_throw", late)

    def steps():
        loop.watch.running = client, 0.0
        loop.watch._check()
        return "complete"
        yield

    client = LoopClient("just done")
    client.steps, client.deadline = steps(), 0.0
    loop.begin(client)
    sys.setprofile(lambda frame, event, argument: called.append(event))
    (lambda: None)()
    sys.setprofile(None)
    assert thrown == [threading.get_ident()] * 2 and "call" in called and not loop.watch.thrown
    assert client.over and client.value == "complete" and loop.watch.running is None


def test_no_torch():
    code = "import sys, vidspec.decoding.loop; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_bell_is_remembered():
    wake = WakeEvent()
    wake.set()
    assert wake.wait(0.0) and not wake.wait(0.0)
