"""The slab: spans that never overlap, rollback, gather, copies, growth."""

import gc
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from vidspec.engine.device import slab_budget
from vidspec.engine.slab import Slab
from vidspec.errors import GenerationError

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def slab(layers=3, budget=None):
    return Slab(2, 4, torch.float32, [CPU] * layers, budget)


@torch.inference_mode()
def append(span, values):
    """Entries whose keys are full of their value plus the layer, and values of the negative."""
    for layer, into in enumerate(span.entries_to_write(len(values))):
        keys = (torch.tensor(values, dtype=torch.float32) + 1000 * layer)[None, :, None].expand(2, -1, 4)
        into.copy_(torch.stack([keys, -keys]))
    span.length += len(values)


def held(span):
    """Return the entries that each layer reads, the layer's thousand taken off."""
    found = []
    for layer, (keys, values) in enumerate(zip(*span.entries_to_read(0), strict=True)):
        assert torch.equal(keys, -values) and keys.shape == (1, 2, span.length, 4)
        assert (keys == keys[:, :1, :, :1]).all()
        found.append((keys[0, 0, :, 0] - 1000 * layer).tolist())
    assert all(one == found[0] for one in found)
    return found[0]


def test_reads_include_what_the_pass_writes():
    span = slab().open(6)
    append(span, [1, 2])
    with torch.inference_mode():
        for into in span.entries_to_write(1):
            into.fill_(7)
    keys, values = span.entries_to_read(1)
    assert keys[0][0, 0, :, 0].tolist() == [1, 2, 7] and values[2][0, 1, :, 0].tolist() == [-2001, -2002, 7]
    assert span.length == 2


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("oofaaarg"), st.integers(0, 30), st.integers(1, 9)), max_size=60))
def test_sequences_never_see_each_other(steps):
    """Any order of opening, freeing, forgetting, appending, rolling back and gathering, against lists."""
    one, spans, count = slab(layers=2), [], 0
    for kind, which, size in steps:
        if kind == "o":
            spans.append((one.open(size), []))
            continue
        if not spans:
            continue
        span, text = spans[which % len(spans)]
        if kind == "f":
            spans.pop(which % len(spans))
            if size % 2:
                span.free()
            del span
            gc.collect() if not size % 3 else None
        elif kind == "a":
            new = list(range(count, count + min(size, span.room - len(text))))
            count += len(new)
            if new:
                append(span, new)
                text += new
        elif kind == "r":
            keep = min(size, len(text))
            span.rollback(keep)
            del text[keep:]
        elif kind == "g":
            start = min(which, len(text))
            kept = list(range(0, len(text) - start, size))
            span.gather(start, kept)
            text[start:] = [text[start + at] for at in kept]
    for span, text in spans:
        assert held(span) == text and span.length == len(text)
    taken = sorted((span.start, span.start + span.room) for span, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))


def test_entries_that_were_given_back_are_used_again():
    one = slab()
    first, second = one.open(10), one.open(5)
    append(second, [1, 2, 3])
    assert one.capacity == 15 and one.used == 15 and one.entry_bytes == 2 * 3 * 2 * 4 * 4
    first.free()
    third = one.open(8)
    assert third.start == 0 and one.capacity == 15 and held(second) == [1, 2, 3]
    del third
    gc.collect()
    assert one.used == 5
    one.open(20)
    assert held(second) == [1, 2, 3]  # the slab has moved


def test_a_lone_sequence_takes_no_more_than_its_room():
    one = slab()
    for room in (10, 12, 8):
        span = one.open(room)
        assert one.capacity == max(10 if room == 10 else 12, room)
        span.free()


def test_what_a_sequence_would_take():
    one = slab()
    assert one.growth_bytes(10) == 10 * one.entry_bytes
    first, second = one.open(10), one.open(5)
    assert one.growth_bytes(3) == 22 * one.entry_bytes  # a slab half as large again, beside this one
    first.free()
    assert one.growth_bytes(10) == 0 and one.growth_bytes(11) == 26 * one.entry_bytes
    second.free()
    assert one.growth_bytes(15) == 0 and one.growth_bytes(16) == one.entry_bytes


def test_a_slab_on_a_cpu_copies_its_entries_a_few_times_only(monkeypatch):
    """Not for every clip of a folder; the spare entries are a small share of the free memory, or none."""
    for free, most in ((10**9, 8), (None, 8), (1000, 32)):
        monkeypatch.setattr("vidspec.memory.available_memory", lambda free=free: free)
        one, versions = slab(), set()
        spans = [one.open(10)]
        append(spans[0], [1, 2, 3])
        for _ in range(31):
            spans.append(one.open(10))
            versions.add(one.version)
        assert len(versions) <= most and held(spans[0]) == [1, 2, 3]
        assert one.capacity == 320 or (most < 32 and one.capacity <= 1.5 * 320)
    assert len(versions) == 31  # of a machine whose memory is full


def test_a_device_without_room_to_grow_by_half_gets_what_is_needed(monkeypatch):
    one = Slab(2, 4, torch.float32, [torch.device("meta")] * 3)
    first = one.open(3000)
    original = torch.empty

    def empty(*shape, **options):
        if shape[-2] > 4001:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty)
    second = one.open(928)
    assert one.capacity == 3928 and first.start == 0 and second.start == 3000
    with pytest.raises(torch.OutOfMemoryError):
        one.open(2000)
    one.reserve(10_000)  # which is no error: it grows, or fails, when it must
    first.free()
    second.free()
    with pytest.raises(torch.OutOfMemoryError):
        one.open(5000)
    assert one.open(10).start == 0


def test_the_budget():
    one = slab(budget=10 * 2 * 3 * 2 * 4 * 4)
    span = one.open(7)
    append(span, [1])
    with pytest.raises(GenerationError, match="allowed"):
        one.open(4)
    assert held(span) == [1]
    span.free()
    assert one.open(10).room == 10


def test_no_more_than_its_room():
    span = slab().open(3)
    append(span, [1, 2, 3])
    with pytest.raises(IndexError, match="of 3 entries cannot take 4"):
        span.entries_to_write(1)
    assert held(span) == [1, 2, 3]


@pytest.mark.parametrize("length", [-1, 6])
def test_rollback_refuses(length):
    span = slab().open(9)
    append(span, range(5))
    with pytest.raises(ValueError, match=f"of 5 entries to {length}"):
        span.rollback(length)
    assert span.length == 5


@pytest.mark.parametrize(
    "start, kept, left",
    [
        (3, [0, 2, 3], [0, 1, 2, 3, 5, 6]),
        (3, [], [0, 1, 2]),
        (3, [4], [0, 1, 2, 7]),
        (3, [0, 1, 2, 3, 4], list(range(8))),
        (0, [1, 3, 5, 6, 7], [1, 3, 5, 6, 7]),
        (8, [], list(range(8))),
        (2, [1, 2, 4], [0, 1, 3, 4, 6]),
    ],
)
def test_gather(start, kept, left):
    span = slab().open(9)
    append(span, range(8))
    span.gather(start, kept)
    assert held(span) == left


@pytest.mark.parametrize("start, kept", [(3, [5]), (3, [-1]), (3, [1, 0]), (0, [8]), (9, []), (-1, [0])])
def test_gather_refuses(start, kept):
    span = slab().open(9)
    append(span, range(8))
    with pytest.raises(ValueError):
        span.gather(start, kept)
    assert held(span) == list(range(8))


def test_selected_entries_are_copies():
    span = slab().open(9)
    append(span, range(8))
    chosen = span.select(torch.tensor([0, 3, 4, 7]), 5)
    assert (chosen.length, chosen.room) == (4, 5) and held(chosen) == [0, 3, 4, 7]
    append(chosen, [50])
    span.rollback(2)
    append(span, [60])
    assert held(chosen) == [0, 3, 4, 7, 50] and held(span) == [0, 1, 60]


def test_entries_selected_for_each_head():
    span = slab().open(9)
    append(span, range(8))
    rows = [torch.tensor([[0, 3], [1, 7]]), torch.tensor([[2, 4], [0, 1]]), torch.tensor([[6, 7], [5, 5]])]
    keys, values = span.select(rows, 4).entries_to_read(0)
    for layer, index in enumerate(rows):
        for head in range(2):
            assert (keys[layer][0, head, :, 0] - 1000 * layer).tolist() == index[head].tolist()
    assert torch.equal(keys[1], -values[1])


def test_selecting_what_is_not_there():
    span = slab().open(9)
    append(span, range(8))
    for rows, room in ((torch.tensor([8]), 5), (torch.tensor([0, 1, 2]), 2), ([torch.tensor([[0], [9]])] * 3, 5)):
        with pytest.raises(ValueError, match="cannot select"):
            span.select(rows, room)


def test_layers_on_several_devices():
    one = Slab(1, 4, torch.float32, [CPU, CPU, torch.device("meta"), torch.device("meta")])
    span = one.open(5)
    assert [layer.device.type for layer in span.entries_to_write(2)] == ["cpu", "cpu", "meta", "meta"]
    assert one.capacity == 1024  # a device's slab grows by steps


def test_a_budget_by_what_is_free(monkeypatch):
    """The GPU that is full first decides for layers on two; memory that torch holds and does not use is free."""
    free = {FIRST: 1000, SECOND: 500}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device], 10**6))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert slab_budget({CPU: 4}) is None and slab().budget is None
    assert slab_budget({FIRST: 4}) == int(0.9 * 1050)
    assert slab_budget({FIRST: 3, SECOND: 1}) == int(0.9 * 1400)
    assert slab_budget({FIRST: 1, SECOND: 1}) == int(0.9 * 1100)
