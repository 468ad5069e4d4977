import pytest

from vidspec.embedded.samples import CLIPS, TRUTH, copy, shipped
from vidspec.errors import OutputError


def test_copies_are_the_shipped_clips(tmp_path):
    out = tmp_path / "new" / "clips"
    paths = copy(out)
    assert paths == [out / clip.name for clip in shipped()] and len(paths) == 4
    assert sorted(out.iterdir()) == sorted([*paths, out / TRUTH])
    assert all(path.read_bytes() == (CLIPS / path.name).read_bytes() for path in out.iterdir())


@pytest.mark.parametrize("name", [TRUTH, "one-object.mp4"])
def test_nothing_is_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=f"{name}: exists already"):
        copy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        copy(tmp_path / "file" / "clips")
