"""The index of a file's frames, and the reasons not to trust decord with it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import av
import numpy as np
import pytest

from vidspec import video
from vidspec.video import decode_decord as decord
from vidspec.video import probing, reading
from vidspec.video.base import Orientation

from . import clips


def test_index_of_an_ordinary_clip(tmp_path):
    index = video.probe(clips.make(tmp_path / "a.mp4", b_frames=3, options={"x264-params": "keyint=10:scenecut=0"}))
    assert len(index) == 40 and index.order == "pts" and not index.truncated
    assert index.times == pytest.approx(np.arange(40) / 25)
    assert len(index.key_pts) == 4 and (np.diff(index.key_pts) > 0).all()
    assert index.duration_s == pytest.approx(1.6) and index.fps == pytest.approx(25) and not index.variable_fps
    assert (index.width, index.height, index.turn) == (96, 64, Orientation())
    assert decord.distrust_reason(index) is None


def test_times_begin_with_the_first_frame(tmp_path):
    index = video.probe(clips.make(tmp_path / "a.mkv", pts=range(50, 60)))
    assert index.pts[0] > 0 and index.times[0] == 0
    assert index.duration_s == pytest.approx(0.4)


def test_the_last_frame_lasts_as_long_as_the_container_says(tmp_path):
    path = clips.make(tmp_path / "slides.mp4", pts=[0, 1000, 2000, 9000], time_base=Fraction(1, 1000))
    index = video.probe(path)
    assert index.variable_fps
    assert index.duration_s > 9


@pytest.mark.parametrize(
    ("name", "how"), [("b.avi", {"b_frames": 3}), ("a.h264", {"container": "h264", "b_frames": 2})]
)
def test_frames_are_counted_where_timestamps_cannot_order_them(tmp_path, name, how):
    index = video.probe(clips.make(tmp_path / name, **how))
    assert index.order == "count" and len(index) == len(index.raw) == 40
    assert index.times == pytest.approx(np.arange(40) / 25)
    assert decord.distrust_reason(index)


def test_counting_by_decoding_agrees_with_the_packets(tmp_path):
    path = clips.make(tmp_path / "a.mp4", b_frames=2)
    assert probing.make_index(path, True).times == pytest.approx(video.probe(path).times)


def test_a_packet_without_a_frame_makes_read_count_by_decoding(tmp_path, monkeypatch):
    """VP8 and VP9 have such packets; here the index pretends that there is one."""
    path = clips.make(tmp_path / "a.mkv")
    index = video.probe(path)
    pts = np.sort(np.append(index.pts, index.pts[5] + 7))
    real = probing.make_index
    pretended = dataclasses.replace(index, pts=pts, raw=pts)
    monkeypatch.setattr(reading, "make_index", lambda path, by_decoding: real(path, True) if by_decoding else pretended)
    got = video.read(path, frames=1000)
    assert clips.numbers(got.frames) == list(range(40))
    assert got.facts.decoder == "av" and got.facts.frame_count == 40


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "mpegts"}, "mpegts"),
        ({"codec": "av1"}, "av1"),
        ({"truncated": True}, "truncated"),
        ({"turn": Orientation(0, True)}, "mirror"),
        ({"doubts": ("it has several video streams",)}, "several"),
    ],
)
def test_each_doubt_is_named(tmp_path, change, why):
    index = video.probe(clips.make(tmp_path / "a.mp4", pts=3))
    assert why in (decord.distrust_reason(dataclasses.replace(index, **change)) or "")


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_turns_make_pictures_upright(degrees, mirrored):
    picture = clips.draw(77, 96, 64)
    turned = np.rot90(picture, -degrees // 90)
    coded = turned[:, ::-1] if mirrored else turned
    turn = Orientation(degrees, mirrored)
    assert clips.number_of(turn.apply(coded)) == 77
    assert turn.size(coded.shape[1], coded.shape[0]) == (96, 64)


def two_streams(path, sizes, **options):
    """A file whose video streams have these sizes; each begins with the picture of its number."""
    with av.open(str(path), "w", options=options) as out:
        streams = []
        for width, height in sizes:
            stream = out.add_stream("mpeg4", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            streams.append(stream)
        for number, stream in enumerate(streams):
            for time in range(3):
                picture = av.VideoFrame.from_ndarray(clips.draw(number, stream.width, stream.height), "rgb24")
                picture.pts, picture.time_base = time, Fraction(1, 25)
                out.mux(stream.encode(picture))
            out.mux(stream.encode(None))
    return path


SIZES = [(96, 64), (192, 128), (144, 96)]


@pytest.mark.parametrize(
    ("mode", "number"), [("infer", 0), ("passthrough", 1)], ids=["the default one", "without one, the largest"]
)
def test_of_several_video_streams_the_one_that_ffmpeg_takes(tmp_path, mode, number):
    path = two_streams(tmp_path / "a.mkv", SIZES, default_mode=mode)
    index = video.probe(path)
    assert (index.stream, index.width, index.height) == (number, *SIZES[number])
    assert clips.numbers(video.read(path).frames) == [number] * 3
