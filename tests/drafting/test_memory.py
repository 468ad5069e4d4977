"""The memory of lookup drafting: found as a literal search finds it, bounded, shared by threads, kept in a file."""

import threading
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from vidspec.drafting import memory
from vidspec.drafting.memory import BREAK, IndexedText, MemoryFile, TextMemory
from vidspec.errors import OutputError, UsageError

TOKENS = st.lists(st.integers(-1, 3), max_size=90)


def ids(*tokens):
    return array("i", tokens)


def literal(tokens, end, least, most):
    """Every place behind which the longest end of ``end`` occurs, and its length."""
    found = {}
    for at in range(1, len(tokens)):
        length = 0
        while length < min(at, len(end), most) and tokens[at - 1 - length] == end[-1 - length]:
            length += 1
        if length >= least:
            found[at] = length
    return {at: length for at, length in found.items() if length == max(found.values())}


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(TOKENS, max_size=4), TOKENS, st.integers(1, 3), st.integers(0, 400))
def test_finds_what_a_literal_search_finds(parts, end, least, room):
    text = IndexedText(room, least, most=16)
    for part in parts:
        text.add(part)
    tokens = [token for part in parts for token in part]
    assert list(text.tokens) == tokens
    found = text.find(array("i", end))
    expected = literal(tokens, end, least, 16)
    assert [match.at for match in found] == sorted((match.at for match in found), reverse=True)
    if not found or max(found[0].length, max(expected.values())) >= 4 * least or len(expected) > memory.FOLLOWED:
        # Chains are followed so far and no further: what is found is real, and the newest of all is among it.
        assert bool(found) == bool(expected)
        assert all(literal(tokens[: match.at + 1], end, least, 16).get(match.at) == match.length for match in found)
    else:
        assert {match.at: match.length for match in found} == expected


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(TOKENS, max_size=4), st.integers(1, 3), st.integers(0, 400))
def test_all_at_once_is_one_by_one(parts, least, room):
    one, many = IndexedText(room, least), IndexedText(room, least)
    for part in parts:
        one.add(part[:60])
        many._add_many(part[:60])
    assert (one.tokens, one._chains) == (many.tokens, many._chains)


def test_a_match_goes_on_into_no_other_text():
    known = TextMemory(100)
    known.add([1, 2, 3])
    known.add([4, 5, 6])
    (match,) = known.find(ids(1, 2, 3))
    assert match.length == 3 and match.tokens[match.at] == BREAK
    assert known.find(ids(9)) == []


def test_the_oldest_are_dropped():
    known = TextMemory(100)
    for first in range(0, 1000, 10):
        known.add(range(first, first + 10))
        assert len(known) <= 100
    assert known.find(ids(998)) and known.find(ids(960)) and not known.find(ids(5))
    known.add(range(5000, 9000))
    assert len(known) <= 100 and known.find(ids(8990)) and not known.find(ids(5000))
    assert TextMemory(1_000_000).nbytes < 12_000_000


def test_threads_share_it():
    known = TextMemory(10_000)
    wrong = []

    def work(number):
        text = [number, *range(100, 140)] * 3
        for _ in range(30):
            known.add(text)
            found = known.find(ids(number, 100, 101))
            wrong.extend(match for match in found if match.tokens[match.at] != 102)
            if not found:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(known) <= 10_000


def opened(path, tokenizer="abc", capacity=100):
    return TextMemory(capacity, file=MemoryFile(path, tokenizer, capacity))


def test_a_file_keeps_texts_from_run_to_run(tmp_path):
    path = tmp_path / "new folder" / "captions.memory"
    first, beside = opened(path), opened(path)
    first.add([1, 2, 3])
    first.save()
    beside.add([1, 2, 4])
    beside.save()
    beside.save()
    later = opened(path)
    assert list(later.file.read()) == [BREAK, 1, 2, 3, BREAK, 1, 2, 4]
    assert {match.tokens[match.at] for match in later.find(ids(1, 2))} == {3, 4}
    for number in range(40):
        later.add([number, 7, 8])
    later.save()
    kept = later.file.read()
    assert len(kept) <= 100 and kept[0] == BREAK and list(kept[-3:]) == [39, 7, 8]
    assert [file.name for file in path.parent.iterdir() if "part" in file.name] == []


@pytest.mark.parametrize("damage", ["cut", "changed", "head", "empty"])
def test_a_damaged_file_is_written_anew(tmp_path, damage):
    path = tmp_path / "memory"
    first = opened(path)
    first.add([1, 2, 3])
    first.save()
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-3], "changed": whole[:-1] + b"\x01", "head": whole[:20], "empty": b""}[damage])
    again = opened(path)
    assert len(again) == 0 and again.file.damaged == (damage != "empty")
    again.add([4, 5])
    again.save()
    assert list(opened(path).file.read()) == [BREAK, 4, 5]


def test_what_is_no_memory_or_another_tokenizers_stays_as_it_is(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"\x00\x00 ftyp")
    with pytest.raises(UsageError, match=r"draft.memory: .*clip.mp4: is not a memory file of vidspec"):
        opened(path)
    assert path.read_bytes() == b"\x00\x00 ftyp"
    with pytest.raises(UsageError, match=r"/dev/zero: is not a memory file of vidspec"):
        opened(Path("/dev/zero"))
    path = tmp_path / "memory"
    one = opened(path)
    one.add([1])
    one.save()
    whole = path.read_bytes()
    with pytest.raises(UsageError, match="another tokenizer"):
        opened(path, tokenizer="xyz")
    path.write_bytes(whole.replace(b"memory 1", b"memory 2"))
    with pytest.raises(UsageError, match="another version"):
        opened(path)
    with pytest.raises(OutputError, match="cannot be read: Is a directory"):
        opened(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"draft\.memory: .*cannot be"):
        opened(tmp_path / "file" / "memory")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    one = opened(path)
    one.add([1, 2])
    one.save()
    whole = path.read_bytes()
    one.add([3, 4])

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        one.save()
    monkeypatch.setattr(memory, "EVERY", 0.0)
    one.add([5])  # while captions are written nothing fails
    monkeypatch.undo()
    assert path.read_bytes() == whole and sorted(p.name for p in tmp_path.iterdir()) == ["memory"]
    one.save()
    assert list(one.file.read()) == [BREAK, 1, 2, BREAK, 3, 4, BREAK, 5]
