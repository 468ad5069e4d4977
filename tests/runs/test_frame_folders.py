"""Folders of numbered frames that manifests name: each is a clip with the frames of its files."""

import av
import numpy as np
import pytest
from PIL import Image

from tests.runs.shards import CLIP
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, VideoError
from vidspec.runs.inputs import collect_inputs
from vidspec.runs.sources.base import ClipOpener
from vidspec.video import read

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def images(tmp_path):
    """Numbered images of a clip in a folder, without leading zeros."""
    (tmp_path / "clip.mp4").write_bytes(CLIP)
    (tmp_path / "imgs").mkdir()
    with av.open(str(tmp_path / "clip.mp4")) as container:
        found = [frame.to_image() for frame, _ in zip(container.decode(video=0), range(12), strict=False)]
    for number, image in enumerate(found):
        image.save(tmp_path / "imgs" / f"frame-{number}.png")
    (tmp_path / "imgs" / "notes.txt").write_text("no frame")
    return np.stack([np.asarray(image) for image in found])


def listed(text):
    with open("m.jsonl", "w") as file:
        file.write(text)
    (job,) = collect_inputs(RunSpec(paths=("m.jsonl",))).entries
    return job


def read_clip(job):
    files = ClipOpener()
    with files.local(job) as file:
        return read(file, frames=12)


@pytest.mark.parametrize(("row", "rate"), [('"fps": 8', 8), ('"fps": "12.5"', 12.5), ('"other": 1', 25)])
def test_frames_are_those_of_the_files_in_numeric_order(images, row, rate):
    job = listed(f'{{"video_path": "imgs", {row}}}')
    clip = read_clip(job)
    assert np.array_equal(clip.frames, images)
    assert clip.timestamps == pytest.approx([number / rate for number in range(12)], abs=1e-3)
    assert (job.path, job.source.kind) == ("imgs", "frames") and list(job.columns) == [row.split('"')[1]]


def test_frames_of_two_kinds_and_none(images, tmp_path):
    Image.fromarray(images[0]).save(tmp_path / "imgs" / "0.jpg")
    with pytest.raises(VideoError, match=r"^imgs: frame-0.png is not a picture like the others"):
        read_clip(listed('{"path": "imgs"}'))
    (tmp_path / "empty").mkdir()
    with pytest.raises(VideoError, match=r"^empty: is a folder without JPEG or PNG files"):
        read_clip(listed('{"path": "empty"}'))


def test_a_rate_that_is_none_names_its_row(images):
    with pytest.raises(UsageError, match=r"m.jsonl, line 1: fps 'fast': must be frames per second"):
        listed('{"path": "imgs", "fps": "fast"}')


def test_json_lists_and_file_uris(tmp_path):
    (tmp_path / "a b.mp4").write_bytes(CLIP)
    uri = (tmp_path / "a b.mp4").as_uri()
    (tmp_path / "captions.json").write_text(f'[\n  {{"media_path": "{uri}", "caption": "x"}}, {{"path": "c.mp4"}}\n]')
    (tmp_path / "list.txt").write_text(f"{uri}\nc.mp4\n")
    for sources in (RunSpec(paths=("captions.json",)), RunSpec(from_file=("list.txt",))):
        found = collect_inputs(sources).entries
        assert [job.path for job in found] == [str(tmp_path / "a b.mp4"), "c.mp4"]
    assert collect_inputs(RunSpec(paths=("captions.json",))).entries[0].columns == {"caption": "x"}
