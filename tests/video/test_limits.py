"""Small files that would take a machine's memory: refused before they are decoded, or made smaller on the way."""

import dataclasses
import io
import subprocess
import sys
import time
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from vidspec import memory, video
from vidspec.errors import GenerationError, UsageError, VideoError
from vidspec.runs.read_worker import MOST_MEMORY
from vidspec.runs.segments import cut_clip
from vidspec.video import decode_av, reading

MS = Fraction(1, 1000)
VIDEO = {"frames": None, "fps": None, "max_pixels": None, "decoder": "auto"}


def solid(path, width, height, frames, *, delta=100):
    """A clip of one colour, ``delta`` milliseconds from frame to frame."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = stream.codec_context.time_base = MS
        stream.codec_context.thread_count = 1
        stream.options = {"preset": "ultrafast", "x264-params": "ref=1:lookahead-threads=1"}
        picture = av.VideoFrame(width, height, "yuv420p")
        for plane in picture.planes:
            plane.update(b"\x64" * plane.buffer_size)
        for number in range(frames):
            picture.pts, picture.time_base = number * delta, MS
            out.mux(stream.encode(picture))
        out.mux(stream.encode(None))
    return str(path)


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    return solid(tmp_path_factory.mktemp("huge") / "huge.mp4", 8192, 8192, 2)


def most_held(reader):
    """Bytes that the reader's process had in memory at its worst."""
    with open(f"/proc/{reader._child.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


@pytest.mark.full
def test_huge_pictures_are_scaled_down_one_by_one(huge, reader):
    clip = reader.read(huge, None, None, {**VIDEO, "fps": 200.0})
    assert len(clip) == 40 and clip.frames.nbytes <= reading.MOST_BYTES // 4 and clip.facts.decoder == "av"
    assert (
        clip.frames.shape[1] == clip.frames.shape[2] > 900
        and np.ptp(clip.frames[:, ::50, ::50], axis=(0, 1, 2)).max() < 9
    )
    assert (clip.facts.width, clip.facts.height) == (8192, 8192)
    assert most_held(reader) < 1.2e9


def test_frames_that_fit_stay_as_they_are(tmp_path, monkeypatch):
    """Usual frames are not touched, whatever the budget; nothing is enlarged."""
    index = video.probe(solid(tmp_path / "a.mkv", 64, 64, 2, delta=10**9))

    def size(width, height, count):
        other = dataclasses.replace(index, width=width, height=height)
        monkeypatch.setattr(reading, "make_index", lambda path, by_decoding: other)
        planned = []

        def check(*found):
            planned.extend(found)
            raise GenerationError("seen", kind="context")

        with pytest.raises(GenerationError, match="seen"):
            video.read("a.mkv", fps=1.0, end=float(count), most_bytes=reading.MOST_BYTES, check=check)
        assert planned[0] == count
        return planned[2], planned[1]

    for width, height, count in ((1920, 1080, 64), (2560, 1440, 32), (1280, 720, 128), (64, 64, 50_000)):
        assert size(width, height, count) == (width, height)
    width, height = size(3840, 2160, 32)
    assert 336**2 < width * height < 3840 * 2160 and width * height * 3 * 32 <= reading.MOST_BYTES
    assert width / height == pytest.approx(3840 / 2160, rel=1e-2)
    width, height = size(1920, 1080, 20_000)
    assert 0.99 * 336**2 < width * height <= 336**2


@pytest.mark.full
def test_decoders_take_fewer_threads_for_larger_pictures(huge, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda who: set(range(64)))
    taken = []
    packets_of = decode_av.packets_of

    def noted(container, stream):
        try:
            yield from packets_of(container, stream)
        finally:
            taken.append(stream.codec_context.thread_count)

    monkeypatch.setattr(decode_av, "packets_of", noted)
    video.read(huge, max_pixels=4096)
    video.read(solid(tmp_path / "small.mp4", 64, 64, 40))
    assert taken == [1, 8]


def test_a_clip_is_refused_before_it_is_decoded(tmp_path, reader):
    """A long delta and a rate make 600,001 frames of two; their number alone is an error."""
    path = solid(tmp_path / "long.mkv", 64, 64, 2, delta=600_000_000)
    told = []

    def check(*planned):
        told.append(planned)
        raise GenerationError("too many", kind="context")

    with pytest.raises(GenerationError, match="too many"):
        reader.read(path, None, None, {**VIDEO, "fps": 1.0}, check)
    assert told == [(600_001, 64, 64)] and most_held(reader) < 200e6
    process = reader._child
    assert len(reader.read(path, None, None, VIDEO, lambda *planned: told.append(planned))) == 2
    assert told[1:] == [(2, 64, 64)] and reader._child is process
    with pytest.raises(GenerationError, match="too many"):
        video.read(path, fps=1.0, check=check)


def test_more_frames_than_there_is_memory_for(tmp_path, monkeypatch):
    path = solid(tmp_path / "long.mkv", 64, 64, 2, delta=1_000_000)
    monkeypatch.setattr(memory, "available_memory", lambda: 20 << 20)
    with pytest.raises(UsageError, match=r"1001 frames of 64x64 take 0\.0 GiB") as caught:
        video.read(path, fps=1.0)
    assert "lower --fps" in caught.value.hint
    assert len(video.read(path)) == 2


@pytest.mark.full
def test_timestamps_that_end_decord_are_left_to_pyav(tmp_path, reader):
    """decord makes room for all frames that fit into the duration, and aborts its process where it cannot."""
    path = solid(tmp_path / "aeon.mkv", 64, 64, 2, delta=10**12)
    assert reader.read(path, None, None, VIDEO).facts.decoder == "av"
    with pytest.raises(VideoError, match="more than 100000 segments of 30 s"):
        cut_clip(path, 30.0, None, None)


LIMITED = """
import sys
from vidspec import errors, memory, video
video.read(sys.argv[2], frames=1)
memory.limit_memory(64 << 20)
try:
    video.read(sys.argv[1])
except errors.VideoError as error:
    print(error.kind, error)
print(len(video.read(sys.argv[2], frames=1)))
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits what a process may have")
def test_what_decoding_takes_has_an_end(huge, tmp_path):
    small = solid(tmp_path / "small.mp4", 64, 64, 2)
    ran = subprocess.run([sys.executable, "-c", LIMITED, huge, small], capture_output=True, text=True, timeout=300)
    first, second = ran.stdout.splitlines()
    assert first.startswith(f"memory {huge}: frames of 8192x8192 cannot be decoded") and "ffmpeg" in first
    assert second == "1" and MOST_MEMORY < 1.5e9


def test_a_containers_memory_counts(tmp_path, monkeypatch):
    machine = memory.available_memory()
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available_memory() is None or memory.available_memory() > 1 << 20
    for limit, free in (("100000", 100_000 - 70_000 + 5_000), ("max", None)):
        for name, text in (("max", limit), ("current", "70000"), ("stat", "anon 1\ninactive_file 5000\n")):
            (tmp_path / f"memory.{name}").write_text(text)
        assert free is None or memory.available_memory() == free
    assert machine is None or machine > 1 << 20


def gif_of(path, size: int, count: int):
    """A GIF of ``count`` pictures, each of which changes one pixel of ``size`` x ``size``: 23 bytes a picture."""
    head = b"GIF89a" + size.to_bytes(2, "little") * 2 + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    control = b"\x21\xf9\x04\0\x04\0\0\0"
    picture = b"\x2c\0\0\0\0\x01\0\x01\0\0" + b"\x02\x02\x44\x01\0"
    path.write_bytes(head + (control + picture) * count + b"\x3b")
    return path


def test_an_animation_that_would_take_minutes_is_refused_at_once(tmp_path):
    assert len(video.read(gif_of(tmp_path / "small.gif", 100, 20), frames=3)) == 3
    began = time.process_time()
    with pytest.raises(VideoError, match=r"10,000 pictures of 8000x8000, more than 8\.6 billion pixels") as caught:
        video.read(gif_of(tmp_path / "large.gif", 8000, 10_000), frames=3)
    assert caught.value.kind == "unsupported" and time.process_time() - began < 5


def animation_of(path, count):
    """An animation of one pixel, of which all pictures but the first are written without an encoder."""
    if path.suffix == ".gif":
        return gif_of(path, 1, count)
    if path.suffix == ".webp":
        picture = io.BytesIO()
        Image.new("RGB", (1, 1)).save(picture, "webp", lossless=True)
        frame = bytes(12) + b"\x28\0\0\0" + picture.getvalue()[12:]
        frame = b"ANMF" + len(frame).to_bytes(4, "little") + frame
        parts = b"WEBPVP8X\x0a\0\0\0\x02" + bytes(9) + b"ANIM\x06\0\0\0" + bytes(6) + frame * count
        path.write_bytes(b"RIFF" + len(parts).to_bytes(4, "little") + parts)
        return path
    pictures = io.BytesIO()
    Image.new("L", (1, 1)).save(pictures, "png", save_all=True, append_images=[Image.new("L", (1, 1), 9)])
    head, _, rest = pictures.getvalue().partition(b"\0\0\0\x1afcTL")
    rest = b"\0\0\0\x1afcTL" + rest
    again, end = rest.rpartition(b"\0\0\0\x1afcTL")[2], b"\0\0\0\0IEND\xaeB`\x82"
    path.write_bytes(head + rest.removesuffix(end) + (b"\0\0\0\x1afcTL" + again.removesuffix(end)) * (count - 2) + end)
    return path


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.apng"])
def test_an_animation_of_more_pictures_than_anybody_captions_is_refused(tmp_path, monkeypatch, name):
    """That of a GIF before a packet is read, since checking one takes a millisecond."""
    assert len(video.read(animation_of(tmp_path / name, 20), frames=3)) == 3
    monkeypatch.setattr("vidspec.video.payload.MAX_ANIMATED_PICTURES", 30)
    monkeypatch.setattr("vidspec.video.probing.MAX_ANIMATED_PICTURES", 30)
    if name == "a.gif":
        monkeypatch.setattr("vidspec.video.probing.read_packets", lambda *_: pytest.fail("a packet is read"))
    with pytest.raises(VideoError, match=r"is an animation of more than 30 pictures") as caught:
        video.read(animation_of(tmp_path / name, 31), frames=3)
    assert caught.value.kind == "unsupported" and "ffmpeg -i IN OUT.mp4" in caught.value.hint
