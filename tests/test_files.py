"""What is written to a file at once."""

import multiprocessing
import os
import time

import pytest

from vidspec.errors import OutputError
from vidspec.files import Lock, write_whole


def test_a_file_is_replaced_whole(tmp_path):
    file = tmp_path / "a.txt"
    for content, held in (("ä\n", b"\xc3\xa4\n"), (b"\x89PNG", b"\x89PNG"), (os.fsdecode(b"\xff"), b"\\udcff")):
        write_whole(file, content)
        assert file.read_bytes() == held and os.listdir(tmp_path) == ["a.txt"]


def test_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("before")
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match=r"a\.txt: cannot be written: No space left on device"):
        write_whole(file, "after")
    assert file.read_text() == "before"
    with pytest.raises(OutputError, match="No such file"):
        write_whole(tmp_path / "no" / "a.txt", "x")
    assert not (tmp_path / "no").exists()


def test_a_lock_keeps_others_out_and_leaves_no_file(tmp_path):
    with Lock(tmp_path / "a.txt"):
        assert os.listdir(tmp_path) == [".a.txt.lock"]
        with pytest.raises(TimeoutError):
            Lock(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []
    with Lock(tmp_path / "a.txt") as lock:
        lock.release()
        with Lock(tmp_path / "a.txt"):
            lock.release()  # a second time: not the file of whoever has the lock now
            assert os.listdir(tmp_path) == [".a.txt.lock"]


def counting(path, times):
    for _ in range(times):
        with Lock(path, timeout=60):
            count = int(path.read_text())
            time.sleep(0.0005)  # long enough that another would read the same
            path.write_text(str(count + 1))


def test_a_lock_file_that_is_removed_lets_no_two_in(tmp_path):
    """Each release removes the file that the others wait for."""
    path = tmp_path / "count"
    path.write_text("0")
    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=counting, args=(path, 40)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert path.read_text() == "160" and os.listdir(tmp_path) == ["count"]
