"""Sound beside frames: exact samples at their times, and the message where there are none."""

from fractions import Fraction

import av
import numpy as np
import pytest

from tests.video import clips
from vidspec import video
from vidspec.errors import VideoError
from vidspec.video.sound import RATE

FRAMES, FPS = 100, 25
#: Samples of a frame of FLAC at this rate.
PACKET = 1152


def wave(seconds: float, rate: int = RATE):
    """int16 samples, no second like another."""
    time = np.arange(int(seconds * rate)) / rate
    return (12000 * np.sin(2 * np.pi * (200 + 40 * time) * time)).astype(np.int16)


def write(path, samples, *, codec="flac", rate=RATE, layout="mono", begin=0.0, gap=None, broken=()):
    """A clip of four seconds with these samples; ``gap``: from which sample on they come how many seconds later;
    ``broken``: packets that hold nothing a decoder takes."""
    with av.open(str(path), "w") as out:
        pictures = out.add_stream("libx264", rate=FPS)
        pictures.width, pictures.height, pictures.pix_fmt = 96, 64, "yuv420p"
        track = out.add_stream(codec, rate=rate, layout=layout)
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(clips.draw(number, 96, 64), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            out.mux(pictures.encode(frame))
        out.mux(pictures.encode(None))
        packets = []
        for start in range(0, len(samples), PACKET):
            late = begin + (gap[1] if gap and start >= gap[0] else 0)
            part = np.repeat(samples[None, start : start + PACKET], 1 + (layout == "stereo"), 0)
            kind = "fltp" if codec == "aac" else "s16"
            if kind == "fltp":
                part = (part / 32768).astype(np.float32)
            elif layout == "stereo":
                part = np.ascontiguousarray(part.T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), kind, layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, start + round(late * rate), Fraction(1, rate)
            packets += track.encode(frame)
        for number, packet in enumerate([*packets, *track.encode(None)]):
            if number in broken:
                junk = av.Packet(b"\xff" * packet.size)
                junk.pts, junk.dts, junk.time_base = packet.pts, packet.dts, packet.time_base
                junk.duration, junk.stream, packet = packet.duration, track, junk
            out.mux(packet)
    return path


def heard(path, **asked):
    return video.read(path, frames=4, **{"sound": 300.0, **asked})


@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_samples_are_exact(tmp_path, layout):
    clip = heard(write(tmp_path / "a.mkv", wave(4), layout=layout))
    assert clip.sound.dtype == np.float32 and clip.facts.damage == ()
    np.testing.assert_allclose(clip.sound, wave(4) / 32768, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("start", "end"), [(None, 1.5), (0.5, 1.0), (2.0, None), (2.52, 3.12)])
def test_a_part_is_a_slice(tmp_path, start, end):
    """From the first frame that is shown; found by seeking, or not."""
    path = write(tmp_path / "a.mkv", wave(4))
    clip = heard(path, start=start, end=end)
    low, high = round(float(clip.timestamps[0]) * RATE), round((end or 4.0) * RATE)
    assert len(clip.sound) == high - low
    np.testing.assert_allclose(clip.sound, wave(4)[low:high] / 32768, rtol=0, atol=2e-3)


def test_so_many_seconds_at_most(tmp_path):
    assert len(heard(write(tmp_path / "a.mkv", wave(4)), start=1.0, sound=1.25).sound) == 1.25 * RATE


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("codec", "name"), [("flac", "a.mkv"), ("aac", "a.mp4"), ("aac", "a.ts")])
def test_other_rates_keep_their_time(tmp_path, codec, name):
    clip = heard(write(tmp_path / name, wave(4, 44100), codec=codec, rate=44100, layout="stereo"))
    expected = wave(4) / 32768
    count = min(len(clip.sound), len(expected))
    assert abs(len(clip.sound) - len(expected)) < 0.05 * RATE
    shifts = {
        by: np.abs(clip.sound[800 : count - 800] - np.roll(expected, by)[800 : count - 800]) for by in range(-40, 41)
    }
    best = min(shifts, key=lambda by: shifts[by].mean())
    assert abs(best) <= 1 and shifts[best].mean() < 0.03


def test_silence_where_there_is_nothing(tmp_path):
    """Sound that begins after the frames, and pauses, stays in step with them."""
    path = write(tmp_path / "a.mkv", wave(2), codec="pcm_s16le", begin=0.5, gap=(4 * PACKET, 1.0))
    sound, cut = heard(path).sound, 4 * PACKET
    first, second = RATE // 2, RATE // 2 + cut + RATE
    assert not sound[:first].any() and not sound[first + cut + 50 : second - 50].any()
    np.testing.assert_allclose(sound[first : first + cut - 50], wave(2)[: cut - 50] / 32768, rtol=0, atol=2e-3)
    np.testing.assert_allclose(sound[second:][: 2 * RATE - cut], wave(2)[cut:] / 32768, rtol=0, atol=2e-3)


def test_nothing_to_hear(tmp_path):
    assert heard(clips.make(tmp_path / "silent.mp4")).sound is None
    path = write(tmp_path / "a.mkv", wave(1))
    assert heard(path, start=2.0).sound is None and heard(path, sound=None).sound is None


def test_damage(tmp_path):
    path = write(tmp_path / "a.mkv", wave(4), broken=(5, 9))
    with pytest.raises(VideoError) as raised:
        heard(path)
    error = raised.value
    assert error.kind == "damaged" and "sound cannot be decoded at 0.36 s and 1 times more" in error.message
    assert "--no-audio" in error.hint and "--allow-damaged" in error.hint
    assert len(heard(path, end=0.32).sound) == 0.32 * RATE and len(video.read(path, frames=4)) == 4
    clip = heard(path, allow_damaged=True)
    assert clip.facts.damage == ("its sound cannot be decoded at 0.36 s and 1 times more",)
    lost = slice(5 * PACKET + 50, 6 * PACKET - 50)
    assert not clip.sound[lost].any() and clip.sound[6 * PACKET + 50 : 9 * PACKET - 50].any()


def test_a_stream_that_begins_amid_something(tmp_path):
    clip = heard(write(tmp_path / "a.mkv", wave(4), broken=(0, 1)))
    assert not clip.sound[: 2 * PACKET - 50].any() and len(clip.sound) == 4 * RATE
