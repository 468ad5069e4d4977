"""What is written to a file at once."""

import os

import pytest

from vidspec.errors import OutputError
from vidspec.files import write_whole


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
