"""Files that are written at once."""

import errno
import fcntl
import multiprocessing
import os
import time

import pytest

from vidspec.errors import OutputError, UsageError
from vidspec.files import FileLock, read_text, read_whole, write_whole


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


def test_a_name_of_255_bytes_is_written(tmp_path):
    file = tmp_path / ("é" * 125 + "x.txt")
    write_whole(file, "text")
    assert file.read_text() == "text" and os.listdir(tmp_path) == [file.name]


def test_only_so_much_is_read(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(bytes(2 << 20))
    assert len(read_whole(file, 2 << 20, "a")) == 2 << 20
    with pytest.raises(UsageError, match=r"^a: is longer than 1 MiB$"):
        read_whole(file, 1 << 20, "a")
    for name, why in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file"), ("a\0b", "null")):
        with pytest.raises(UsageError, match=f"^x: cannot be read: .*{why}"):
            read_whole(name, 9, "x")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_text_of_windows_tools_is_read(tmp_path, encoding):
    """Notepad writes a byte order mark before UTF-8, and PowerShell 5 writes UTF-16 with one."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "a").write_bytes(f"{mark}gr\u00fcn \ufeff\r\n".encode(encoding))
    assert read_text(tmp_path / "a", 99, "a") == "gr\u00fcn \ufeff\r\n", "only the mark at the beginning is dropped"


def test_what_is_no_text_is_refused(tmp_path):
    for content in (b"\xff", b"\xff\xfea", b"\xfe\xff\xdc\x00", b"\xef\xbb\xbf\xff"):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UsageError, match=r"^list a: is not UTF-8 text$"):
            read_text(tmp_path / "a", 99, "list a")
    assert read_text(tmp_path / "a", 99, "a", errors="surrogateescape") == "\udcff", "file names may be other bytes"


def test_what_has_no_end_is_not_read(tmp_path):
    """Nor is it opened: a pipe without a writer would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    for name, pipe in (("/dev/zero", False), ("/dev/zero", True), (tmp_path / "pipe", False)):
        with pytest.raises(UsageError, match=r"^x: is not a regular file"):
            read_whole(name, 9, "x", pipe=pipe)
    reading, writing = os.pipe()
    os.write(writing, b"a.mp4\n")
    os.close(writing)
    assert read_whole(f"/dev/fd/{reading}", 9, "x", pipe=True) == b"a.mp4\n", "as of a process substitution"
    os.close(reading)


def test_a_lock_keeps_others_out_and_leaves_no_file(tmp_path):
    with FileLock(tmp_path / "a.txt"):
        assert os.listdir(tmp_path) == [".a.txt.lock"]
        with pytest.raises(TimeoutError):
            FileLock(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []
    with FileLock(tmp_path / "a.txt") as lock:
        lock.release()
        with FileLock(tmp_path / "a.txt"):
            lock.release()  # a second time: not the file of whoever has the lock now
            assert os.listdir(tmp_path) == [".a.txt.lock"]


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.full
def test_a_file_is_the_lock_where_the_file_system_has_none(tmp_path, monkeypatch):
    """As on NFS mounted with ``nolock``. One that a killed process left is taken over."""
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with FileLock(tmp_path / "a.txt"):
        assert os.listdir(tmp_path) == [".a.txt.held"]
        with pytest.raises(TimeoutError):
            FileLock(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []
    killed = multiprocessing.get_context("fork").Process(target=lock_and_die, args=(tmp_path / "a.txt",))
    killed.start()
    killed.join()
    assert os.listdir(tmp_path) == [".a.txt.held"]
    FileLock(tmp_path / "a.txt", timeout=30).release()


def lock_and_die(path):
    lock = FileLock(path)
    os._exit(int(lock is None))


def counting(path, times):
    for _ in range(times):
        with FileLock(path, timeout=300):
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
        process.join(300)
    assert path.read_text() == "160" and os.listdir(tmp_path) == ["count"]
