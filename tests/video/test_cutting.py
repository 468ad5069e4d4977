"""Parts of a video as files of their own: exact frames, their sound, copied where that is possible."""

from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from tests.video import clips
from tests.video.test_sound import wave, write
from vidspec.errors import OutputError, VideoError
from vidspec.video import read
from vidspec.video.cutting import write_part
from vidspec.video.sound import RATE


def cut(path, start, end, out):
    """Return how a part was written, and the numbers of its frames."""
    how = write_part(str(path), start, end, str(out))
    clip = read(out, frames=100)
    assert clip.timestamps[0] == 0
    return how, clips.numbers(clip.frames)


@pytest.mark.parametrize(
    ("start", "end", "how"), [(0.48, 0.96, "copied"), (0.96, 1.6, "copied"), (0.2, 0.7, "encoded")]
)
def test_a_part_has_exactly_its_frames_whether_copied_or_encoded(tmp_path, start, end, how):
    film = clips.make(tmp_path / "film.mp4")  # a key frame every 0.48 s
    expected = list(range(round(start * 25 + 0.49), round(end * 25 + 0.49)))
    assert cut(film, start, end, tmp_path / "part.mp4") == (how, expected)


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("b.mp4", {"b_frames": 2, "rotation": 90}),
        ("b.mkv", {"b_frames": 2}),
        ("open.mp4", {"codec": "libx265", "b_frames": 2, "options": {"log-level": "none"}}),
        ("late.mp4", {"pts": range(100, 140)}),
        ("counted.avi", {"codec": "mpeg4", "b_frames": 2}),
        ("odd.mkv", {"codec": "ffv1", "size": (99, 63), "pixel_format": "bgr0"}),
        ("uneven.mp4", {"pts": [n + n // 3 for n in range(30)]}),
    ],
)
def test_parts_follow_each_other_without_a_gap_in_any_kind_of_video(tmp_path, name, made):
    film = clips.make(tmp_path / name, **made)
    bounds = [0, 0.4, 0.96, 1.6]
    parts = [cut(film, low, high, tmp_path / f"{low}.mp4") for low, high in pairwise(bounds)]
    assert [number for _, part in parts for number in part] == clips.numbers(read(film, frames=100).frames)


def test_a_long_held_frame_is_the_whole_part(tmp_path):
    film = clips.make(tmp_path / "slides.mp4", pts=[0, 50, 100])
    assert cut(film, 2.4, 3.2, tmp_path / "part.mp4")[1] == [1]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("codec", "kept"), [("flac", "flac"), ("pcm_s16le", "aac")])
def test_the_sound_is_that_of_the_part(tmp_path, codec, kept):
    """A tone in the third second of four."""
    film, part = tmp_path / "film.mkv", tmp_path / "part.mp4"
    tone = wave(4)
    tone[: 2 * RATE], tone[3 * RATE :] = 0, 0
    write(film, tone, codec=codec)
    levels = []
    for start in (1, 2, 3):
        write_part(str(film), start, start + 1.0, str(part))
        with av.open(str(part)) as found:
            assert found.streams.audio[0].codec_context.name == kept
        heard = read(part, frames=1, sound=1.0).sound
        assert heard is not None and abs(len(heard) / RATE - 1) < 0.1
        levels.append(float(abs(heard[2000:-2000]).mean()))
    assert levels[1] > 0.2 > 0.02 > max(levels[0], levels[2])


def test_a_part_after_the_end_of_the_sound_has_none(tmp_path):
    film, part = clips.make(tmp_path / "film.mp4", audio=True), tmp_path / "part.mp4"
    for start, streams in ((0.2, 2), (1.2, 1)):
        write_part(str(film), start, start + 0.4, str(part))
        with av.open(str(part)) as found:
            assert len(found.streams) == streams


def test_the_same_part_has_the_same_bytes(tmp_path):
    """Whatever the encoder's memory held before: here small negative numbers, which could be motion vectors."""
    film, part = clips.make(tmp_path / "film.mp4", audio=True), tmp_path / "part.mp4"
    draw, parts = np.random.default_rng(0), set()
    for _ in range(12):
        left = [draw.integers(-255, 0, int(size), np.int16) for size in 2 ** draw.uniform(12, 15, 200)]
        del left
        write_part(str(film), 0.2, 0.7, str(part))
        parts.add(part.read_bytes())
    assert len(parts) == 1 and b" mbtree=0 " in parts.pop()  # with it they differ in some processes only


def test_what_cannot_be_cut_or_written_is_an_error(tmp_path):
    film = clips.make(tmp_path / "film.mp4")
    with pytest.raises(OutputError, match="its part from 0 to 1 s cannot be written: No such file"):
        write_part(str(film), 0, 1, str(tmp_path / "none" / "part.mp4"))
    picture = clips.make_picture(tmp_path / "picture.png", 3, "png", "rgb24")
    with pytest.raises(VideoError, match="is a picture"):
        write_part(str(picture), 0, 1, str(tmp_path / "part.mp4"))
    assert not Path(tmp_path, "part.mp4").exists()
