"""Exact frames from good files of many kinds, with each decoder that may read them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.video.pictures import record_decoded_pts
from vidspec import video
from vidspec.errors import UsageError, VideoError
from vidspec.video import decode_av, decode_decord

from . import clips

needs_decord = pytest.mark.skipif(not decode_decord.is_available(), reason="decord is not installed")

MS = Fraction(1, 1000)
UNEVEN = [0, 40, 80, 240, 280, 290, 300, 700, 740, 1500, 1540, 1580, 1600, 1700, 2000]
OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:keyint=10:min-keyint=10:scenecut=0"}
QUIET_265 = {"x265-params": "log-level=none"}
LATE = range(50, 90)

# name: (how to make it, the decoders that are exact)
GOOD = {
    "plain.mp4": ({}, "decord"),
    "b_frames.mp4": ({"b_frames": 3}, "decord"),
    "sound.mp4": ({"audio": True, "pts": 20}, "decord"),
    "uneven.mp4": ({"pts": UNEVEN, "time_base": MS}, "decord"),
    "uneven_b.mp4": ({"pts": UNEVEN, "time_base": MS, "b_frames": 2}, "decord"),
    "uneven.mkv": ({"pts": UNEVEN, "time_base": MS}, "decord"),
    "ntsc.mkv": ({"time_base": Fraction(1001, 30000)}, "decord"),
    "turned_90.mp4": ({"rotation": 90}, "decord"),
    "turned_180.mp4": ({"rotation": 180}, "decord"),
    "turned_270.mp4": ({"rotation": 270}, "decord"),
    "one.mp4": ({"pts": 1}, "decord"),
    "two.mp4": ({"pts": 2}, "decord"),
    "odd.mp4": ({"codec": "mpeg4", "size": (97, 65)}, "decord"),
    "odd.webm": ({"codec": "libvpx-vp9", "size": (97, 65), "options": {"cpu-used": "8"}}, "decord"),
    "vp8.webm": ({"codec": "libvpx", "options": {"cpu-used": "8"}}, "decord"),
    "ten_bits.mp4": ({"pixel_format": "yuv420p10le"}, "decord"),
    "ten_bits.mkv": ({"codec": "libx265", "pixel_format": "yuv420p10le", "options": QUIET_265}, "decord"),
    "fragments.mp4": ({"container_options": {"movflags": "frag_keyframe+empty_moov"}}, "decord"),
    # What decord 0.6.0 gets wrong without saying so, or cannot open.
    "fragments_b.mp4": ({"b_frames": 2, "container_options": {"movflags": "frag_keyframe+empty_moov"}}, "av"),
    "no_edit_list.mp4": ({"b_frames": 2, "container_options": {"use_editlist": "0"}}, "av"),
    "open_gop.mp4": ({"b_frames": 3, "options": OPEN_GOP}, "av"),
    "open_gop.mkv": ({"b_frames": 3, "options": OPEN_GOP}, "av"),
    "hevc.mp4": ({"codec": "libx265", "b_frames": 3, "options": QUIET_265}, "av"),
    "late.mp4": ({"pts": LATE}, "av"),
    "late.mkv": ({"pts": LATE, "b_frames": 2}, "av"),
    "plain.ts": ({}, "av"),
    "b_frames.ts": ({"b_frames": 3}, "av"),
    "late.ts": ({"pts": LATE, "b_frames": 3}, "av"),
    "b_frames.flv": ({"b_frames": 2}, "av"),
    "mpeg2.mpg": ({"codec": "mpeg2video", "b_frames": 2}, "av"),
    "plain.avi": ({"codec": "mpeg4"}, "av"),
    "b_frames.avi": ({"b_frames": 3}, "av"),
    "b_frames_mpeg4.avi": ({"codec": "mpeg4", "b_frames": 2}, "av"),
    "bare.h264": ({"b_frames": 3, "container": "h264"}, "av"),
    "pictures.mov": ({"codec": "mjpeg", "pixel_format": "yuvj420p"}, "av"),
    "lossless.mkv": ({"codec": "ffv1"}, "av"),
    "moving.gif": ({"codec": "gif", "pixel_format": "rgb8"}, "av"),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")

    def get(name: str) -> Path:
        path = folder / name
        return path if path.exists() else clips.make(path, **GOOD[name][0])

    return get


def expected_times(name: str) -> list[float]:
    how = GOOD[name][0]
    pts = how.get("pts", 40)
    pts = list(range(pts)) if isinstance(pts, int) else list(pts)
    return [float((t - pts[0]) * how.get("time_base", Fraction(1, 25))) for t in pts]


def decoders_for(name: str) -> list[str]:
    installed = decode_decord.is_available()
    return ["auto", *(["decord"] if installed and GOOD[name][1] == "decord" else [])]


@pytest.mark.sample(quick=15)
@pytest.mark.parametrize("name", GOOD)
def test_every_frame_is_exact_whatever_the_decoder(clip, name):
    times = expected_times(name)
    for decoder in decoders_for(name):
        got = video.read(clip(name), frames=1000, decoder=decoder)
        assert clips.numbers(got.frames) == list(range(len(times)))
        assert got.timestamps == pytest.approx(times, abs=0.0011)
        assert got.frames.dtype == np.uint8 and got.timestamps.dtype == np.float64
        assert got.facts.frame_count == len(times)


@pytest.mark.sample(quick=7)
@pytest.mark.parametrize("name", GOOD)
def test_scattered_frames_are_exact_in_any_choice(clip, name):
    times = video.probe(clip(name)).times
    rng = np.random.default_rng(len(name))
    for decoder in decoders_for(name):
        for size in (1, 2, 5):
            wanted = sorted(rng.choice(len(times), min(size, len(times)), replace=False).tolist())
            got = video.read_at(clip(name), times[wanted].tolist(), decoder=decoder)
            assert clips.numbers(got.frames) == wanted and got.timestamps.tolist() == times[wanted].tolist(), decoder


@pytest.mark.sample(quick=12)
@pytest.mark.parametrize("name", GOOD)
def test_auto_decodes_once_and_forced_decord_refuses_what_it_gets_wrong(clip, name):
    assert video.read(clip(name), frames=2).facts.decoder == "av"
    if not decode_decord.is_available():
        return
    if GOOD[name][1] == "decord":
        assert video.read(clip(name), frames=2, decoder="decord").facts.decoder == "decord"
    else:
        with pytest.raises(VideoError, match="decord") as caught:
            video.read(clip(name), decoder="decord")
        assert caught.value.kind == "unsupported" and name in str(caught.value)


def test_long_closed_and_open_gops_far_apart(tmp_path):
    for name, options in {"closed.mp4": {}, "open.mkv": {"x264-params": "open-gop=1:keyint=40:scenecut=0"}}.items():
        path = clips.make(tmp_path / name, pts=250, b_frames=3, gop=40, options=options)
        for decoder in ("auto", "av"):
            got = video.read(path, frames=9, decoder=decoder)
            assert clips.numbers(got.frames) == [0, 31, 62, 93, 124, 156, 187, 218, 249]


def test_frames_are_spread_evenly_and_32_by_default(clip):
    got = video.read(clip("plain.mp4"), frames=4)
    assert clips.numbers(got.frames) == [0, 13, 26, 39]
    assert got.timestamps.tolist() == pytest.approx([0, 0.52, 1.04, 1.56])
    assert len(video.read(clip("plain.mp4"))) == 32


def test_frames_of_a_varying_rate_are_spread_over_the_time(clip):
    got = video.read(clip("uneven.mp4"), frames=5)
    assert got.timestamps.tolist() == pytest.approx([0, 0.3, 0.74, 1.5, 2.0])
    assert clips.numbers(got.frames) == [0, 6, 8, 9, 14]
    assert len(video.read(clip("uneven.mp4"), frames=99)) == len(UNEVEN)


def test_interval_is_the_duration_of_the_part_over_its_frames(clip):
    assert video.read(clip("plain.mp4"), frames=8).interval == pytest.approx(1.6 / 8)
    assert video.read(clip("plain.mp4"), frames=4, start=0.4, end=0.79).interval == pytest.approx(0.4 / 4)
    assert video.read(clip("plain.mp4"), fps=5).interval is None


def test_fps_takes_the_frame_on_screen_at_each_tick(clip):
    assert clips.numbers(video.read(clip("plain.mp4"), fps=5).frames) == [0, 5, 10, 15, 20, 25, 30, 35]
    got = video.read(clip("uneven.mp4"), fps=5)
    assert clips.numbers(got.frames) == [0, 2, 6, 6, 8, 8, 8, 8, 12, 13, 14]
    assert got.timestamps[4] == pytest.approx(0.74)


def test_start_and_end(clip):
    got = video.read(clip("plain.mp4"), frames=3, start=0.4, end=0.8)
    assert clips.numbers(got.frames) == [10, 15, 20]
    assert clips.numbers(video.read(clip("late.mkv"), frames=3, start=0.4, end=0.8).frames) == [10, 15, 20]
    assert clips.numbers(video.read(clip("plain.mp4"), fps=5, start=0.4, end=0.8).frames) == [10, 15]
    assert clips.numbers(video.read(clip("plain.mp4"), frames=2, start=1.5, end=99).frames) == [38, 39]
    # Nothing begins between 0.8 s and 1.4 s, but a frame is on screen.
    assert clips.numbers(video.read(clip("uneven.mp4"), start=0.8, end=1.4).frames) == [8]


def test_start_behind_the_end_is_a_range_error(clip):
    for choice in ({"frames": 2}, {"fps": 2.0}):
        with pytest.raises(VideoError, match=r"plain\.mp4.*1\.6 s") as caught:
            video.read(clip("plain.mp4"), start=100, **choice)
        assert caught.value.kind == "range"


@pytest.mark.parametrize(
    "wrong",
    [
        {"frames": 2, "fps": 1.0},
        {"frames": 0},
        {"frames": -3},
        {"fps": 0.0},
        {"fps": float("nan")},
        {"fps": float("inf")},
        {"start": -1.0},
        {"start": float("nan")},
        {"end": 0.0},
        {"end": float("inf")},
        {"start": 2.0, "end": 2.0},
        {"start": 3.0, "end": 2.0},
        {"max_pixels": 0},
        {"decoder": "opencv"},
        {"fps": 1e12},
        {"fps": 1.7e308},
    ],
)
def test_impossible_arguments_are_usage_errors(clip, wrong):
    with pytest.raises(UsageError):
        video.read(clip("plain.mp4"), **wrong)


def test_facts(clip):
    facts = video.read(clip("turned_90.mp4"), frames=1).facts
    assert (facts.width, facts.height, facts.rotation) == (64, 96, 90)
    assert (facts.codec, facts.container, facts.frame_count) == ("h264", "mp4", 40)
    assert facts.duration_s == pytest.approx(1.6) and facts.fps == pytest.approx(25) and not facts.variable_fps
    assert facts.path == str(clip("turned_90.mp4"))
    assert video.read(clip("uneven.mp4"), frames=1).facts.variable_fps
    assert not video.read(clip("ntsc.mkv"), frames=1).facts.variable_fps


def test_turned_frames_are_delivered_upright(clip):
    for decoder in decoders_for("turned_270.mp4"):
        assert video.read(clip("turned_270.mp4"), frames=3, decoder=decoder).frames.shape == (3, 96, 64, 3)


@pytest.mark.parametrize(("codec", "pixel_format"), [("qtrle", "gray"), ("msrle", "pal8")])
def test_palettes_within_the_stream_survive(tmp_path, codec, pixel_format):
    """Only the first packet carries it, and a seek would pass it over."""
    path = tmp_path / ("a.mov" if codec == "qtrle" else "a.avi")
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pixel_format
        for number in range(6):
            grey = np.full((48, 64), 40 * number + 20, np.uint8)
            frame = av.VideoFrame(64, 48, "pal8")
            if pixel_format == "gray":
                frame = av.VideoFrame.from_ndarray(grey, "gray")
            else:
                frame.planes[0].update(np.full((48, frame.planes[0].line_size), number + 1, np.uint8).tobytes())
                entries = np.arange(256, dtype="<u4")[:, None] * 40 - 20
                frame.planes[1].update((entries * 0x010101 | 0xFF000000).astype("<u4").tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with av.open(str(path)) as file:
        right = [picture.to_ndarray(format="rgb24") for picture in file.decode(video=0)]
    assert video.probe(path).stateful and right[3].any()
    assert np.array_equal(video.read(path).frames, right)
    assert np.array_equal(video.read(path, start=0.1, end=0.15).frames, right[3:4])


def test_anamorphic_pixels_are_shown_square(tmp_path):
    path = clips.make(tmp_path / "a.mp4", pts=3, size=(96, 64), aspect=Fraction(4, 3))
    got = video.read(path)
    assert got.frames.shape == (3, 64, 128, 3) and clips.numbers(got.frames) == [0, 1, 2]
    assert (got.facts.width, got.facts.height, got.facts.pixel_aspect) == (128, 64, 1.333333)
    assert video.read(path, max_pixels=2048).frames.shape == (3, 32, 64, 3)
    turned = clips.make(tmp_path / "b.mp4", pts=3, size=(96, 64), aspect=Fraction(1, 2), rotation=90)
    assert video.read(turned).frames.shape == (3, 48, 64, 3)
    nearly = clips.make(tmp_path / "c.mp4", pts=3, size=(96, 64), aspect=Fraction(160, 161))
    assert video.read(nearly).frames.shape == (3, 64, 96, 3) and video.read(nearly).facts.pixel_aspect is None


@pytest.mark.parametrize(("rotation", "applied", "tilt"), [(30, 0, 30.0), (100, 90, 10.0), (90.5, 90, None)])
def test_rotation_that_is_not_applied_is_named(tmp_path, rotation, applied, tilt):
    path = clips.make(tmp_path / "a.mp4", pts=2, rotation=90)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # the matrix; FFmpeg's angle is counter-clockwise
    cosine, sine = np.cos(np.radians(rotation)), np.sin(np.radians(rotation))
    for place, value in ((0, cosine), (4, -sine), (12, sine), (16, cosine)):
        data[at + place : at + place + 4] = round(65536 * value).to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    facts = video.read(path).facts
    assert facts.rotation == applied and facts.tilt == (None if tilt is None else pytest.approx(tilt, abs=0.1))


@pytest.mark.parametrize(("aperture", "named"), [((80, 48), (80, 48)), ((96, 64), None), ((0, 64), None)])
def test_a_clean_aperture_is_named_and_not_applied(tmp_path, aperture, named):
    path = clips.make(tmp_path / "a.mp4", pts=2)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"avcC") - 4
    clap = b"".join(number.to_bytes(4, "big") for number in (aperture[0], 1, aperture[1], 1, 0, 1, 0, 1))
    insert_box(data, at, (40).to_bytes(4, "big") + b"clap" + clap)
    path.write_bytes(data)
    got = video.read(path)
    assert got.frames.shape == (2, 64, 96, 3) and got.facts.clean_aperture == named


def insert_box(data, at, box):
    """Inserts a box of the sample entry at a byte of an MP4 whose index comes last."""
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1"):
        size = data.rindex(kind) - 4
        data[size : size + 4] = (int.from_bytes(data[size : size + 4], "big") + len(box)).to_bytes(4, "big")
    data[at:at] = box


@pytest.mark.parametrize(("number", "name"), [(16, "pq"), (18, "hlg"), (1, None)])
def test_hdr_is_named(tmp_path, number, name):
    path = clips.make(tmp_path / "a.mp4", pts=2, transfer=number)
    assert video.read(path).facts.transfer == name


def test_an_avi_shows_its_last_frames_in_time(tmp_path):
    """AVI has no presentation times, and those FFmpeg makes up end too early."""
    path = clips.make(tmp_path / "a.avi", pts=range(0, 40, 2), time_base=Fraction(1, 50), b_frames=3)
    assert video.probe(path).times.tolist() == pytest.approx([number / 25 for number in range(20)])
    assert video.probe(path).duration_s == pytest.approx(0.8)


def test_a_mirrored_clip_is_unmirrored(tmp_path):
    path = clips.make(tmp_path / "mirror.mp4", pts=3)
    clips.patch_box(path, b"tkhd", 40, [-0x10000, 0, 0, 0, 0x10000, 0, 96 << 16, 0, 0x40000000])
    got = video.read(path)
    assert got.facts.decoder == "av"
    mirrored = [clips.number_of(frame[:, ::-1]) for frame in got.frames]
    assert mirrored == [0, 1, 2]  # drawn unmirrored, so honouring the matrix mirrors it


def test_frames_outside_an_edit_list_are_not_shown(tmp_path):
    path = clips.make(tmp_path / "edited.mp4")  # 512 ticks a frame, of 12800 a second
    clips.patch_box(path, b"elst", 8, [800, 10 * 512])  # 0.8 s from frame 10 on
    got = video.read(path, frames=1000)
    numbers = clips.numbers(got.frames)
    assert numbers == list(range(10, 10 + len(numbers))) and 20 <= len(numbers) <= 21
    assert got.timestamps[:2].tolist() == pytest.approx([0, 0.04])
    assert got.facts.decoder == "av"


def test_a_stream_that_begins_amid_a_gop_begins_at_its_first_keyframe(tmp_path):
    whole = clips.make(tmp_path / "whole.ts", gop=15, options={"x264-params": "keyint=15:scenecut=0"}).read_bytes()
    path = tmp_path / "recording.ts"
    path.write_bytes(whole[188 * 8 :])
    got = video.read(path, frames=1000)
    assert clips.numbers(got.frames) == list(range(15, 40))
    assert got.timestamps[0] == 0


def test_a_still_picture_is_a_clip_of_one_frame(tmp_path):
    for name, codec, pixel_format in [("still.png", "png", "rgb24"), ("still.jpg", "mjpeg", "yuvj420p")]:
        path = clips.make_picture(tmp_path / name, 5, codec, pixel_format)
        for choice in ({}, {"fps": 1.0}):
            got = video.read(path, **choice)
            assert clips.numbers(got.frames) == [5] and got.timestamps.tolist() == [0]


def test_max_pixels_keeps_the_aspect_and_the_picture(clip):
    for decoder in decoders_for("plain.mp4"):
        got = video.read(clip("plain.mp4"), frames=5, max_pixels=1536, decoder=decoder)
        assert got.frames.shape == (5, 32, 48, 3)
        assert clips.numbers(got.frames) == [0, 10, 20, 29, 39]
    assert video.read(clip("plain.mp4"), frames=1, max_pixels=10**9).frames.shape == (1, 64, 96, 3)
    assert video.read(clip("plain.mp4"), frames=1, max_pixels=1).frames.shape == (1, 1, 1, 3)
    assert video.read(clip("turned_90.mp4"), frames=1, max_pixels=1536).frames.shape == (1, 48, 32, 3)


X265 = "log-level=none:b-adapt=0:keyint=40"
SKIPPED = {
    "skips.mp4": {"options": {"x264-params": "bframes=3:b-adapt=0:b-pyramid=0:scenecut=0:keyint=40"}},
    "skips.mkv": {"codec": "mpeg4", "b_frames": 3},
    "skips.mpg": {"codec": "mpeg2video", "b_frames": 3},
    "skips_265.mp4": {"codec": "libx265", "b_frames": 3, "options": {"x265-params": X265}},
}


@pytest.mark.parametrize("name", SKIPPED)
def test_frames_that_no_other_needs_are_not_decoded(tmp_path, monkeypatch, name):
    """And those that are wanted are the very ones of a decoder that leaves out none."""
    path = clips.make(tmp_path / name, gop=40, **SKIPPED[name])
    whole = video.read(path, frames=1000).frames
    times = video.probe(path).times
    seen = record_decoded_pts(monkeypatch)
    for wanted in ([0, 38], [17], [5, 6, 30], [37, 39]):
        seen.clear()
        got = video.read_at(path, times[wanted].tolist())
        assert np.array_equal(got.frames, whole[wanted]) and clips.numbers(got.frames) == wanted
        assert len(wanted) < len(seen) < 0.7 * (wanted[-1] + 1) * (2 if name == "skips_265.mp4" else 1) + 4


@pytest.mark.full
def test_what_may_refer_to_a_frame_is_decoded(tmp_path):
    """Frames of HEVC with layers in time that FFmpeg would leave out are needed by others."""
    options = {"x265-params": f"{X265}:temporal-layers=3"}
    path = clips.make(tmp_path / "layers.mp4", codec="libx265", b_frames=3, options=options)
    whole, times = video.read(path, frames=1000).frames, video.probe(path).times
    for wanted in range(40):
        assert np.array_equal(video.read_at(path, [times[wanted]]).frames[0], whole[wanted])


def test_interlaced_frames_are_exact(tmp_path):
    path = clips.make(tmp_path / "fields.mp4", options={"x264-params": "tff=1:bframes=3:keyint=40"}, size=(96, 64))
    assert clips.numbers(video.read(path, frames=7).frames) == [0, 6, 13, 20, 26, 32, 39]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_groups_are_decoded_side_by_side(tmp_path, monkeypatch, cores):
    path = clips.make(tmp_path / "a.mp4", pts=200, b_frames=2, options={"x264-params": "keyint=20:scenecut=0"})
    expected = video.read(path, frames=1000).frames
    monkeypatch.setattr("os.sched_getaffinity", lambda who: set(range(cores)))
    threads = set()
    upright = decode_av.upright

    def noted(*args):
        threads.add(threading.get_ident())
        return upright(*args)

    monkeypatch.setattr(decode_av, "upright", noted)
    got = video.read(path, frames=64)
    positions = np.linspace(0, 199, 64).round().astype(int)
    assert np.array_equal(got.frames, expected[positions]) and 1 <= len(threads) <= cores
    assert cores > 1 or threads == {threading.get_ident()}


@needs_decord
def test_both_decoders_give_the_same_pixels(clip):
    for name in ("b_frames.mp4", "turned_90.mp4", "odd.webm"):
        one, other = (video.read(clip(name), frames=4, decoder=d).frames.astype(int) for d in ("av", "decord"))
        # Where the width is odd, the two FFmpegs place the last column's colour differently.
        assert np.abs(one - other).max() <= (2 if name != "odd.webm" else 80) and np.abs(one - other).mean() < 1


@needs_decord
def test_a_wrong_frame_of_decord_is_noticed(clip, monkeypatch):
    import decord

    class OneOff(decord.VideoReader):
        def get_batch(self, indices):
            return super().get_batch([max(0, i - 1) for i in indices])

    monkeypatch.setattr(decord, "VideoReader", OneOff)
    with pytest.raises(VideoError, match=r"plain\.mp4.*decord's frame is not PyAV's"):
        video.read(clip("plain.mp4"), frames=5, decoder="decord")


@needs_decord
def test_a_decord_that_fails_is_an_error(clip, monkeypatch):
    import decord

    def broken(*args, **kwargs):
        raise decord.DECORDError("out of luck")

    monkeypatch.setattr(decord, "VideoReader", broken)
    assert video.read(clip("plain.mp4"), frames=3).facts.decoder == "av"
    with pytest.raises(VideoError, match="out of luck"):
        video.read(clip("plain.mp4"), frames=3, decoder="decord")


def test_without_decord_auto_is_silent_and_decord_a_usage_error(clip, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "decord", None)
    assert video.read(clip("plain.mp4"), frames=3).facts.decoder == "av"
    with pytest.raises(UsageError, match="not installed"):
        video.read(clip("plain.mp4"), decoder="decord")
    assert capfd.readouterr() == ("", "")


@needs_decord
def test_no_reader_stays_open(clip, monkeypatch):
    import decord

    readers: list[object] = []
    freed: list[object] = []

    class Counted(decord.VideoReader):
        def __init__(self, *args, **kwargs):
            readers.append(1)
            super().__init__(*args, **kwargs)

        def __del__(self):
            freed.append(1)
            super().__del__()

    monkeypatch.setattr(decord, "VideoReader", Counted)
    video.read(clip("plain.mp4"), frames=12, decoder="decord")
    assert readers == freed == [1]
    monkeypatch.setattr(Counted, "get_batch", lambda self, indices: np.zeros((len(indices), 1, 1, 3), np.uint8))
    with pytest.raises(VideoError, match="have the shape"):
        video.read(clip("plain.mp4"), frames=12, decoder="decord")
    assert readers == freed == [1, 1]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("name", ["plain.mp4", "b_frames.ts", "b_frames.avi"])
def test_no_file_stays_open(clip, name):
    path = clip(name)
    video.read(path, frames=3)
    # A caller that keeps an unfinished iterator is the one way to hold a file, and read() has none.
    held = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert str(path) not in held


def test_reading_says_nothing_on_stdout_or_stderr(clip, capfd):
    video.read(clip("plain.mp4"), frames=3)
    video.read(clip("b_frames.ts"), frames=3)
    assert capfd.readouterr() == ("", "")


def test_paths_may_be_relative_and_strange(clip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a b é %03d.mp4", "concat:x.mp4", "-v.mp4"):
        Path(name).write_bytes(clip("plain.mp4").read_bytes())
        assert clips.numbers(video.read(name, frames=2).frames) == [0, 39]


def test_importing_the_package_loads_no_decoder():
    code = (
        "import sys, vidspec.video as v; assert not {'av', 'decord', 'torch', 'numpy'} & set(sys.modules); "
        "v.Clip; assert 'av' not in sys.modules; assert callable(v.read) and callable(v.probe); "
        "assert 'decord' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
