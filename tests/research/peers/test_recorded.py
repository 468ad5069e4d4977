"""Reading ahead of a peer, and its captions in a file."""

import threading

import pytest

from research.peers.recorded import read_ahead, write_captions


def test_items_come_in_order_and_at_most_so_many_are_read_ahead():
    read, begun = [], []

    def one(item):
        read.append(item)
        return item * 2

    found = read_ahead(one, range(9), 2, lambda: begun.append(threading.current_thread()))
    for at in range(9):
        assert next(found) == 2 * at and len(read) <= at + 3
    assert list(found) == [] and read == list(range(9)) and begun != [threading.main_thread()] and len(begun) == 1


def test_what_cannot_be_read_is_raised_where_its_turn_is():
    found = read_ahead(lambda item: 1 // item, [1, 0, 1], 3)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_token_ids_by_clip_and_seconds():
    run = write_captions(iter([("a.mp4", "one", [1, 2]), ("b.mp4", "two", [3])]))
    assert run["ids"] == {"a.mp4": [1, 2], "b.mp4": [3]} and run["errors"] == {} and run["seconds"] > 0
