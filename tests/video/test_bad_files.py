"""Every bad file gives one error of one line that names it, at once; damaged ones give only frames that are whole."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from vidspec import video
from vidspec.errors import VideoError
from vidspec.video import decode_decord

from . import clips

FAST = {"container_options": {"movflags": "+faststart"}}


def error_of(path, **options) -> VideoError:
    began = time.monotonic()
    with pytest.raises(VideoError) as caught:
        video.read(path, **options)
    assert time.monotonic() - began < 5
    assert os.path.basename(str(path)) in caught.value.message
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(params=["auto", "decord"])
def decoder(request):
    if request.param == "decord" and not decode_decord.available():
        pytest.skip("decord is not installed")
    return request.param


def test_missing(tmp_path, decoder):
    assert error_of(tmp_path / "none.mp4", decoder=decoder).kind == "missing"
    error = error_of("https://example.org/a.mp4", decoder=decoder)
    assert error.kind == "missing" and error.hint


def test_folder(tmp_path, decoder):
    assert error_of(tmp_path, decoder=decoder).kind == "folder"


def test_empty(tmp_path, decoder):
    (tmp_path / "empty.mp4").write_bytes(b"")
    assert error_of(tmp_path / "empty.mp4", decoder=decoder).kind == "empty"


@pytest.mark.parametrize("name", ["text.mp4", "text.txt", "text.mkv", "text.ts", "text.gif", "text"])
def test_text(tmp_path, decoder, name):
    (tmp_path / name).write_text("Call me Ishmael.\n" * 200)
    assert error_of(tmp_path / name, decoder=decoder).kind == "not_video"


def test_noise(tmp_path, decoder):
    import numpy as np

    (tmp_path / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(60_000))
    assert error_of(tmp_path / "noise.mp4", decoder=decoder).kind in ("not_video", "no_video_stream", "no_frames")


def test_only_sound(tmp_path, decoder):
    path = clips.make_audio(tmp_path / "sound.m4a")
    error = error_of(path, decoder=decoder)
    assert error.kind == "no_video_stream" and "only sound" in error.message


def test_playlists_are_refused(tmp_path, decoder):
    clips.make(tmp_path / "a.ts", pts=5)
    lists = {
        "list.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\na.ts\n#EXT-X-ENDLIST\n",
        "list.txt": "ffconcat version 1.0\nfile a.ts\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        assert error_of(tmp_path / name, decoder=decoder).kind == "unsupported"


def test_pipes_and_devices_are_refused_without_opening_them(tmp_path, decoder):
    os.mkfifo(tmp_path / "pipe.mp4")
    assert error_of(tmp_path / "pipe.mp4", decoder=decoder).kind == "unsupported"
    assert error_of("/dev/zero", decoder=decoder).kind == "unsupported"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path, decoder):
    path = clips.make(tmp_path / "secret.mp4", pts=3)
    path.chmod(0)
    assert error_of(path, decoder=decoder).kind == "unreadable"


def test_names_that_cannot_be(decoder):
    with pytest.raises(VideoError):
        video.read("a\0b.mp4", decoder=decoder)
    with pytest.raises(VideoError):
        video.read("x" * 5000, decoder=decoder)


def test_an_mp4_without_its_index(tmp_path, decoder):
    path = clips.cut(tmp_path / "download.mp4", clips.make(tmp_path / "whole.mp4"), 0.6)
    error = error_of(path, decoder=decoder)
    assert error.kind == "truncated" and error.hint


@pytest.mark.parametrize("name", ["cut.mp4", "cut.mkv", "cut.avi"])
def test_a_file_cut_short_is_read_up_to_the_cut_but_not_beyond(tmp_path, name):
    how = {"mp4": FAST, "mkv": {}, "avi": {"codec": "mpeg4"}}[name[-3:]]
    whole = clips.make(tmp_path / f"whole.{name[-3:]}", pts=80, gop=10, size=(192, 128), **how)
    path = clips.cut(tmp_path / name, whole, 0.6)
    for choice in ({}, {"frames": 2}, {"fps": 5.0}, {"end": 3.0}):
        error = error_of(path, **choice)
        assert error.kind == "truncated" and "first" in error.message
    index = video.probe(path)
    assert index.truncated and 20 <= len(index) < 70
    got = video.read(path, frames=1000, end=float(index.times[-1]) - 0.2)
    numbers = clips.numbers(got.frames)
    assert numbers == list(range(len(numbers))) and len(numbers) == len(index) - 5
    assert got.facts.decoder == "av"


def test_a_cut_transport_stream_is_a_shorter_one(tmp_path):
    whole = clips.make(tmp_path / "whole.ts", pts=60, b_frames=2)
    got = video.read(clips.cut(tmp_path / "cut.ts", whole, 0.5), frames=1000, end=0.8)
    numbers = clips.numbers(got.frames)
    assert len(numbers) > 10 and numbers == list(range(len(numbers)))


def test_every_cut_gives_exact_frames_or_one_error(tmp_path, decoder):
    whole = clips.make(tmp_path / "whole.mp4", pts=30, b_frames=2, gop=10, **FAST)
    path = tmp_path / "part.mp4"
    kinds = set()
    for share in range(1, 100, 4):
        clips.cut(path, whole, share / 100)
        try:
            got = video.read(path, frames=6, end=0.5, decoder=decoder)
        except VideoError as error:
            kinds.add(error.kind)
        else:
            assert clips.numbers(got.frames) == [round(t * 25) for t in got.timestamps]
    assert kinds <= {"truncated", "not_video", "no_frames", "no_video_stream", "unsupported", "damaged"}


def test_damage_in_the_middle_spares_the_rest(tmp_path):
    path = clips.make(
        tmp_path / "hole.mp4", pts=60, gop=10, size=(192, 128), options={"x264-params": "scenecut=0"}, **FAST
    )
    clean = tmp_path / "clean.mp4"
    shutil.copy(path, clean)
    data = bytearray(path.read_bytes())
    middle = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2
    data[middle : middle + 400] = b"\x55" * 400
    path.write_bytes(data)
    error = error_of(path, frames=1000)
    assert error.kind == "damaged" and "damaged" in error.message and error.hint
    for window in ({"end": 0.36}, {"start": 2.0}):
        got = video.read(path, frames=1000, **window)
        assert clips.numbers(got.frames) == [round(t * 25) for t in got.timestamps]
        assert (got.frames == video.read(clean, frames=1000, **window).frames).all()


def test_bad_files_cause_no_noise(tmp_path, capfd, decoder):
    path = clips.cut(tmp_path / "cut.mp4", clips.make(tmp_path / "whole.mp4", b_frames=2, **FAST), 0.6)
    (tmp_path / "text.mp4").write_text("nothing")
    capfd.readouterr()
    error_of(path, decoder=decoder)
    error_of(tmp_path / "text.mp4", decoder=decoder)
    assert capfd.readouterr() == ("", "")
