"""Every bad file gives one error of one line that names it, at once; damaged ones give only frames that are whole."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import av
import pytest

from vidspec import video
from vidspec.errors import DescriptorError, VideoError
from vidspec.video import decode_decord
from vidspec.video.opening import FORMATS

from . import clips

FAST = {"container_options": {"movflags": "+faststart"}}


def error_of(path, **options) -> VideoError:
    began = time.monotonic()
    with pytest.raises(VideoError) as caught:
        video.read(path, **options)
    assert time.monotonic() - began < 60
    assert os.path.basename(str(path)) in caught.value.message
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(params=["auto", "decord"])
def decoder(request):
    if request.param == "decord" and not decode_decord.is_available():
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


@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "picture.png"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 123\n")
    error = error_of(tmp_path / name)
    assert error.kind == "not_video" and "pointer of Git LFS" in error.message and "git lfs pull" in error.hint


@pytest.mark.parametrize("entry", [b"encv", b"drmi"])
def test_encrypted_video_is_named(tmp_path, entry):
    path = clips.make(tmp_path / "a.mp4", pts=3)
    data = path.read_bytes()
    assert data.count(b"avc1") == 2  # a brand, and the sample entry
    head, _, tail = data.rpartition(b"avc1")
    path.write_bytes(head + entry + tail)
    error = error_of(path)
    assert error.kind == "encrypted" and error.message.endswith("is encrypted") and "decrypt it" in error.hint


def test_encrypted_matroska_is_named(tmp_path):
    """Track 1 gets a ContentEncodings element with a key, as encrypted WebM has it."""
    path = clips.make(tmp_path / "a.webm", pts=3, codec="libvpx-vp9", container_options={"live": "1"})

    def element(name: str, content: bytes) -> bytes:
        return bytes.fromhex(name) + (1 << 56 | len(content)).to_bytes(8, "big") + content

    key = element("47E1", b"\5") + element("47E2", b"\4" * 16)  # AES, the key's id
    encryption = element("6D80", element("6240", element("5033", b"\1") + element("5035", key)))
    data = path.read_bytes()
    tracks = data.rindex(bytes.fromhex("1654AE6B"))
    entry = data.index(b"\xae\1", tracks)  # its size has 8 bytes
    end = entry + 9 + int.from_bytes(data[entry + 2 : entry + 9], "big")
    track = element("AE", data[entry + 9 : end] + encryption)
    path.write_bytes(data[:tracks] + element("1654AE6B", track) + data[end:])
    error = error_of(path)
    assert error.kind == "encrypted" and error.message.endswith("is encrypted") and "decrypt it" in error.hint


@pytest.mark.parametrize("name", ["plain.mp4", "plain.mov", "faststart.mp4"])
def test_a_film_appended_to_another_is_reported(tmp_path, name):
    options = FAST if name == "faststart.mp4" else {}
    path = clips.make(tmp_path / name, pts=10, **options)
    other = clips.make(tmp_path / f"b-{name}", pts=30, **options)
    whole = video.read(path)
    path.write_bytes(path.read_bytes() + other.read_bytes())
    error = error_of(path)
    assert error.kind == "damaged" and "another film is appended to it" in error.message and "--allow" in error.hint
    assert len(video.read(path, end=0.3)) == 8  # before the end of the first one
    first = video.read(path, allow_damaged=True)
    assert clips.numbers(first.frames) == clips.numbers(whole.frames)
    assert first.facts.damage == ("another film is appended to it, which is not read",)


def test_too_many_open_files_are_no_damage(tmp_path, monkeypatch):
    """Each place at which reading a clip opens a file tells it."""
    path, picture = clips.make(tmp_path / "a.mp4", pts=5), clips.make_picture(tmp_path / "a.png", 1, "png", "rgb24")
    for file, opener in ((path, "mmap.mmap"), (path, "av.open"), (picture, "PIL.Image.open")):
        with monkeypatch.context() as patched:

            def refuse(*_args, **_options):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            patched.setattr(opener, refuse)
            with pytest.raises(DescriptorError, match="too many open files") as caught:
                video.read(file)
        assert (
            caught.value.kind == "descriptors" and "ulimit -n" in caught.value.hint and file.name in str(caught.value)
        )


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


#: Files that lead to another one, which FFmpeg would open: by their names, with where they lead.
LEADING = {
    "concat.mp4": ("ffconcat version 1.0\nfile other.ts\n", "other.ts"),
    "list.m3u8": ("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nother.ts\n#EXT-X-ENDLIST\n", "other.ts"),
    "vob.mp4": ("# VobSub index file, v7 (do not modify this line!)\nsize: 720x480\n", "vob.sub"),
    "raw.mp4": ("MLVI\x34\0\0\0v2.0\0" + "\0" * 100, "raw.m00"),
}
READ = """
import sys
from vidspec import video
from vidspec.errors import VideoError
for path in sys.argv[1:]:
    for decoder in DECODERS:
        try:
            print(len(video.read(path, decoder=decoder, sound=1.0)))
        except VideoError as error:
            print(error.kind)
"""


def traced(code: str, paths: list[Path], log: Path) -> tuple[list[str], Counter[str]]:
    """Return the words that Python code prints about files of one folder, and how often it opens files there."""
    strace = ["strace", "-f", "-qq", "-e", "trace=open,openat,openat2,connect", "-o", str(log)]
    command = [*strace, sys.executable, "-c", code, *map(str, paths)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    names = re.findall(r'open\w*\([^"]*"([^"]*)"', log.read_text(errors="replace"))
    assert "connect(" not in log.read_text(errors="replace")
    return ran.stdout.split(), Counter(Path(name).name for name in names if Path(name).parent == paths[0].parent)


@pytest.mark.skipif(
    shutil.which("strace") is None or subprocess.run(["strace", "true"], capture_output=True).returncode != 0,
    reason="system calls cannot be traced here",
)
def test_a_file_opens_nothing_but_itself(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    good = clips.make(folder / "good.mp4", pts=5, audio=True)
    for name, (text, led) in LEADING.items():
        (folder / name).write_text(text)
        if not (folder / led).exists():
            os.mkfifo(folder / led)  # which to open would wait for ever
    decoders = ["auto", "decord"] if decode_decord.is_available() else ["auto"]
    paths = [good, *map(folder.joinpath, LEADING)]
    said, opened = traced(READ.replace("DECODERS", repr(decoders)), paths, tmp_path / "log")
    assert said[: len(decoders)] == ["5"] * len(decoders) and not any(word.isdigit() for word in said[len(decoders) :])
    assert opened.keys() == {"good.mp4", *LEADING}, "and each of them was looked at"


def test_containers_of_other_files_are_not_among_those_that_are_opened():
    names = set(FORMATS.split(","))
    assert names.isdisjoint({"concat", "hls", "dash", "sdp", "rtp", "imf", "image2", "lavfi", "vobsub", "mlv", "tty"})
    known = {name for form in av.formats_available for name in form.split(",")}
    assert {"mov", "matroska", "avi", "mpegts"} <= names & known


def test_pipes_and_devices_are_refused_without_opening_them(tmp_path, decoder):
    os.mkfifo(tmp_path / "pipe.mp4")
    assert error_of(tmp_path / "pipe.mp4", decoder=decoder).kind == "unsupported"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket.mp4"))
        assert error_of(tmp_path / "socket.mp4", decoder=decoder).kind == "unsupported"
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


@pytest.mark.sample(quick=1)
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


@pytest.mark.sample(quick=1)
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
