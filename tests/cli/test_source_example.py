"""The source of docs/extend: zip archives are captioned like tars by a plugin of one file."""

import zipfile
from pathlib import Path

import pytest

from tests.plugins import forget_plugins
from tests.runs.shards import CLIP, rows
from vidspec.config.schema import load_plugin
from vidspec.errors import VideoError
from vidspec.runs.allowance import FetchLimits
from vidspec.runs.job import Job
from vidspec.runs.sources import base
from vidspec.runs.sources.base import ClipOpener, is_shard, shard_members

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def archive(monkeypatch):
    """``clips.zip`` with two clips and a text; what the plugin registers leaves with the test."""
    is_shard("clips.tar")  # the built-in sources are registered for good
    monkeypatch.setattr(base, "_BY_SUFFIX", dict(base._BY_SUFFIX))
    monkeypatch.setattr(base.sources, "_entries", dict(base.sources._entries))
    with zipfile.ZipFile("clips.zip", "w") as file:
        for name, content in (("d/good.mp4", CLIP), ("d/good.txt", b"a title\n"), ("b.mp4", b"junk"), ("c.md", b"x")):
            file.writestr(name, content)
    yield
    forget_plugins()


def test_a_zip_is_listed_and_opened_by_the_example():
    assert not is_shard("clips.zip")
    load_plugin(EXAMPLES / "zip_clips.py")
    assert is_shard("clips.ZIP")
    good, junk = shard_members(Job("clips.zip"))
    assert (good.path, good.shard, good.columns) == ("clips.zip/d/good.mp4", "clips.zip", {"text": "a title"})
    files = ClipOpener()
    with files.local(good) as path:
        assert Path(path).read_bytes() == CLIP
    with files.local(junk) as path:
        assert Path(path).read_bytes() == b"junk"
    assert not Path(path).exists()
    with (
        pytest.raises(VideoError, match=r"^clips.zip/d/good.mp4: has more than 10 bytes"),
        ClipOpener(FetchLimits(most=10)).local(good),
    ):
        pass
    Path("bad.zip").write_bytes(b"no zip")
    with pytest.raises(VideoError, match=r"^bad.zip: is not a zip archive"):
        shard_members(Job("bad.zip"))


def test_a_profile_adds_it_to_a_run(vidspec):
    ran = vidspec("caption", "clips.zip", "--profile", str(EXAMPLES / "zip.yaml"), "--output-dir", "out")
    assert ran.code == 0, ran.err
    assert [(row["path"], row["columns"]) for row in rows("out/clips.parquet")] == [
        ("clips.zip/d/good.mp4", '{"text": "a title"}'),
        ("clips.zip/b.mp4", None),
    ]
    again = vidspec("caption", "clips.zip", "--profile", str(EXAMPLES / "zip.yaml"), "--output-dir", "out")
    assert again.code == 0 and "2 of 2 clips done before" in again.err
