"""Files that are written at once."""

import ast
import errno
import fcntl
import multiprocessing
import os
import re
import time
from pathlib import Path

import pytest

import vidspec
from vidspec.errors import OutputError, UsageError
from vidspec.files import FileLock, behind_link, open_own, read_text, read_whole, write_whole

PACKAGE = Path(vidspec.__file__).parent


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


#: Places that open for writing by themselves, and why; everything else calls ``open_own``.
OPENS_ITSELF = {
    ("files.py", "open_own"): "the function itself",
    ("runs/writers.py", "write"): "a device or a pipe that the user named",
    ("training/head.py", "save"): "a folder of the user's cache",
}


def text_of(node):
    return ast.unparse(node) if node is not None else ""


def is_opened_for_writing(call):
    """Return True if a call opens a file by its name to write it."""
    name = text_of(call.func)
    given = {one.arg: one.value for one in call.keywords}
    if name in ("os.open", "posix.open"):
        return text_of(call.args[0]) != "os.devnull" and "O_RDONLY" not in text_of(call.args[1])
    if name.rpartition(".")[2] in (
        "write_text",
        "write_bytes",
        "touch",
        "FileHandler",
        "savez",
        "savefig",
        "save_file",
    ):
        return True
    if name.startswith("shutil.") and name.partition(".")[2] in ("copy", "copy2", "copyfile", "copytree", "move"):
        return True
    if name.rpartition(".")[2] != "open" or "fileobj" in given:
        return False
    first = call.args[0] if call.args else None
    mode = given.get("mode", first if name.endswith(".open") and len(call.args) == 1 else None)
    if name in ("open", "av.open", "tarfile.open", "gzip.open", "io.open") and len(call.args) > 1:
        mode = call.args[1]
    value = mode.value if isinstance(mode, ast.Constant) else None
    if name == "av.open" and text_of(first) == "file":  # opened before
        return False
    if isinstance(mode, ast.Constant) and isinstance(value, str):
        return re.fullmatch(r"[rwaxbt+]+(:\w*)?", value) is not None and bool(
            set(value.partition(":")[0]) & set("wax+")
        )
    return name == "open" and mode is not None


def writing_calls(tree, function=""):
    """Yield the outermost function and the line of each call that opens a file for writing."""
    for node in ast.iter_child_nodes(tree):
        inner = function or (node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else "")
        if isinstance(node, ast.Call) and is_opened_for_writing(node):
            yield function, node.lineno
        yield from writing_calls(node, inner)


def test_each_file_is_opened_for_writing_by_one_function():
    """A folder of clips may hold links under any name: ``open_own`` follows none."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for function, line in writing_calls(ast.parse(path.read_text())):
            found.setdefault((path.relative_to(PACKAGE).as_posix(), function), []).append(line)
    others = {place: lines for place, lines in found.items() if place not in OPENS_ITSELF}
    assert not others, "open these with vidspec.files.open_own"
    assert set(found) == set(OPENS_ITSELF), "no longer needed in the list"


@pytest.mark.parametrize(
    "code",
    [
        "open(p, 'w')",
        "open(p, mode='ab')",
        "open(p, mode)",
        "p.open('r+b')",
        "p.open(mode='x')",
        "p.write_text(t)",
        "p.write_bytes(t)",
        "os.open(p, os.O_WRONLY | os.O_CREAT)",
        "av.open(out, 'w', format='mp4')",
        "tarfile.open(p, 'w')",
        "tarfile.open(p, mode='w:gz')",
        "shutil.copyfile(a, b)",
        "shutil.copy2(a, b)",
    ],
)
def test_the_search_finds(code):
    assert [line for _, line in writing_calls(ast.parse(code))] == [1]


@pytest.mark.parametrize("code", ["open(p)", "open(p, 'rb')", "p.open('rb')", "os.open(os.devnull, os.O_WRONLY)"])
def test_the_search_passes_over(code):
    assert not [*writing_calls(ast.parse(code))]


def outside(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    return victim, folder


@pytest.mark.parametrize("join", [os.symlink, os.link])
def test_a_new_file_replaces_a_link_of_its_name(tmp_path, join):
    victim, folder = outside(tmp_path)
    join(victim, folder / "a")
    with open_own(folder / "a", "xb") as file:
        file.write(b"mine")
    assert (folder / "a").read_text() == "mine" and not (folder / "a").is_symlink()
    assert victim.read_text() == "precious\n"


@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_a_link_and_a_pipe_are_not_opened(tmp_path, mode):
    victim, folder = outside(tmp_path)
    (folder / "a").symlink_to(victim)
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="a is a link"):
        open_own(folder / "a", mode)
    with pytest.raises(OSError, match=r"not a regular file|No such device"):
        open_own(folder / "pipe", mode)


@pytest.mark.parametrize("join", [os.symlink, os.link])
def test_a_lock_is_no_other_name_of_a_file(tmp_path, join):
    """Older versions of filelock empty what they lock."""
    victim, folder = outside(tmp_path)
    join(victim, folder / ".a.lock")
    with pytest.raises(OSError, match=r"\.a\.lock is a link"):
        FileLock(folder / "a")
    assert victim.read_text() == "precious\n"


def test_a_file_keeps_its_permissions_and_a_link_is_not_replaced(tmp_path):
    victim, folder = outside(tmp_path)
    victim.chmod(0o640)
    write_whole(victim, "new\n")
    assert victim.stat().st_mode & 0o777 == 0o640 and victim.read_text() == "new\n"
    (folder / "a").symlink_to(victim)
    with pytest.raises(OutputError, match="a is a link"):
        write_whole(folder / "a", "mine")
    write_whole(behind_link(folder / "a"), "through\n")
    assert (folder / "a").is_symlink() and victim.read_text() == "through\n"
