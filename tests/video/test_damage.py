"""Lost video is an error that says what is lost, or captioned as what it is where that is allowed."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

import av
import numpy as np
import pytest
from PIL import Image

from tests.tiers import full_but
from vidspec import video
from vidspec.errors import VideoError
from vidspec.video import decode_av, decode_decord
from vidspec.video.gif import gif_broken
from vidspec.video.payload import PictureInspector
from vidspec.video.pictures import PLAIN, DecodeMode

from . import clips, damage_survey, sound_kinds

LONG = {"pts": 499, "gop": 50, "size": (320, 240), "b_frames": 2, "options": {"x264-params": "keyint=50"}}


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """20 s of MPEG-TS."""
    return clips.make(tmp_path_factory.mktemp("ts") / "whole.ts", **LONG)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    """3 s of H.264 in MP4, 75 frames, about 90 KB."""
    folder = tmp_path_factory.mktemp("mp4")
    return damage_survey.encode(folder / "whole.mp4", *damage_survey.SOURCES["h264"][:2])


def without(path, source, at, size):
    data = source.read_bytes()
    at = at // 188 * 188
    path.write_bytes(data[:at] + data[at + size :])
    return path


def zeroed(path, source, at, size):
    data = bytearray(source.read_bytes())
    at += data.index(b"mdat") + 4
    data[at : at + size] = bytes(len(data[at : at + size]))
    path.write_bytes(data)
    return path


def refused(path, **options):
    with pytest.raises(VideoError) as caught:
        video.read(path, **options)
    assert caught.value.kind == "damaged" and "--allow-damaged" in (caught.value.hint or "")
    return caught.value.message


@pytest.mark.full
def test_four_packets_cut_from_a_transport_stream(tmp_path, stream):
    path = without(tmp_path / "cut.ts", stream, stream.stat().st_size // 2, 752)
    assert "frames are missing between" in refused(path)
    got = video.read(path, frames=1000, allow_damaged=True)
    assert clips.numbers(got.frames) == [round(time * 25) % 256 for time in got.timestamps]
    assert 440 < len(got) < 499 and got.timestamps[-1] == pytest.approx(498 / 25)
    assert len(got.facts.damage) == 1 and "missing" in got.facts.damage[0]


def test_a_transport_stream_without_a_quarter(tmp_path, stream):
    size = stream.stat().st_size
    path = without(tmp_path / "quarter.ts", stream, size // 4, size // 4 // 188 * 188)
    assert "frames are missing between" in refused(path)
    got = video.read(path, frames=20, allow_damaged=True)
    assert clips.numbers(got.frames) == [round(time * 25) % 256 for time in got.timestamps]
    beyond = video.read(path, frames=4, start=16.0)
    assert clips.numbers(beyond.frames) == [round(time * 25) % 256 for time in beyond.timestamps]
    assert beyond.facts.damage == ()


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("at", "first"), [(0, 2.4), (20_000, 0.0)])
def test_zeros_in_an_mp4_cost_frames_and_move_none_in_time(tmp_path, picture, at, first):
    path = zeroed(tmp_path / "zeros.mp4", picture, at, 65536)
    assert "are missing between" in refused(path)
    whole = video.read(picture, frames=1000, decoder="av")
    got = video.read(path, frames=1000, allow_damaged=True)
    assert got.timestamps[0] == pytest.approx(first) and 0 < len(got) < 60 and got.facts.damage
    places = [round(time * 25) for time in got.timestamps]
    assert (got.frames == whole.frames[places]).all()


def test_lost_packets_show_in_one_count_or_another(tmp_path, stream):
    """16 lost packets leave the count as it was; that of the tables between them shows it, with the gap in time."""
    data = stream.read_bytes()
    for number in range(20):
        at = (len(data) // 3 + number * 3000) // 188 * 188
        (tmp_path / "cut.ts").write_bytes(data[:at] + data[at + 160 * 188 :])
        with pytest.raises(VideoError):
            video.read(tmp_path / "cut.ts", frames=1000)


@pytest.mark.skipif(not decode_decord.is_available(), reason="decord is not installed")
def test_decord_is_not_believed_where_pyav_finds_damage(tmp_path, picture):
    data = bytearray(picture.read_bytes())
    at = data.index(b"mdat") + 30_000
    data[at : at + 400] = b"\x55" * 400
    (tmp_path / "noise.mp4").write_bytes(data)
    for decoder in ("auto", "decord"):
        assert "damaged" in refused(tmp_path / "noise.mp4", decoder=decoder, frames=1000)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("sound", [False, True])
def test_two_transport_streams_in_one_file_are_called_joined(tmp_path, sound):
    parts = [clips.make(tmp_path / f"{n}.ts", pts=n, b_frames=2, gop=10, audio=sound) for n in (50, 30)]
    path = tmp_path / "joined.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(VideoError, match=r"joined to it: its clock restarts at 2 s \(ffmpeg") as caught:
        video.read(path)
    assert caught.value.kind == "damaged"
    got = video.read(path, frames=1000, end=1.5)
    assert clips.numbers(got.frames) == list(range(len(got))) and 36 < len(got) < 40 and not got.facts.damage
    got = video.read(path, frames=1000, allow_damaged=True)
    assert clips.numbers(got.frames) == list(range(len(got))) and 40 < len(got) <= 50
    (line,) = got.facts.damage
    assert "restarts at 2 s" in line


def test_a_transport_stream_whose_clock_goes_round_is_not_joined(tmp_path):
    """Its 33 bits suffice for a day."""
    path = clips.make(
        tmp_path / "a.ts", pts=range((1 << 33) - 90_000, (1 << 33) + 90_000, 3600), time_base=Fraction(1, 90_000)
    )
    data = path.read_bytes()
    at = len(data) // 2 // 188 * 188
    path.write_bytes(data[:at] + data[at + 752 :])
    with pytest.raises(VideoError) as caught:
        video.read(path)
    assert "joined" not in caught.value.message


def test_a_matroska_file_is_known_by_its_checksums(tmp_path):
    path = clips.make(tmp_path / "a.mkv", pts=40, gop=10, container_options={"cluster_time_limit": "400"})
    data = bytearray(path.read_bytes())
    data[data.index(b"\x1f\x43\xb6\x75", len(data) // 2) + 100] ^= 1
    path.write_bytes(data)
    assert "missing" in refused(path)
    got = video.read(path, frames=40, allow_damaged=True)
    assert 0 < len(got) <= 30 and clips.numbers(got.frames) == np.round(got.timestamps * 25).tolist()
    assert got.facts.damage


def test_what_is_whole_is_captioned_of_a_file_cut_short(tmp_path):
    whole = clips.make(tmp_path / "whole.mkv", pts=80, gop=10, size=(192, 128))
    path = clips.cut(tmp_path / "cut.mkv", whole, 0.6)
    got = video.read(path, frames=1000, allow_damaged=True)
    assert clips.numbers(got.frames) == list(range(len(got))) and 20 < len(got) < 80
    assert any("end is missing" in line for line in got.facts.damage)


def test_nothing_whole_is_an_error_also_where_damage_is_allowed(tmp_path, picture):
    path = zeroed(tmp_path / "zeros.mp4", picture, 0, 1_000_000)
    data = bytearray(picture.read_bytes())
    start, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    with pytest.raises(VideoError):
        video.read(path, allow_damaged=True)


def test_pictures_in_which_two_decoders_differ_are_left_out(tmp_path, monkeypatch):
    """With all that depend on the same keyframe: the damage may lie in an earlier one."""
    path = clips.make(tmp_path / "a.mp4", gop=10, options={"x264-params": "scenecut=0:min-keyint=10"})
    monkeypatch.setitem(decode_av._CHECKED_MODES, "h264", (PLAIN, DecodeMode(threads="SLICE")))
    identical, differing = decode_av._identical, int(video.probe(path).pts[15])
    monkeypatch.setattr(decode_av, "_identical", lambda one, other: one.pts != differing and identical(one, other))
    assert "the frame at 0.6 s" in refused(path, frames=40)
    got = video.read(path, frames=40, allow_damaged=True)
    assert clips.numbers(got.frames) == [*range(10), *range(20, 40)]
    assert got.facts.damage == ("10 of the frames from 0.4 s to 0.76 s could not be decoded exactly",)


def moving_gif(path):
    frames = [Image.fromarray(picture) for picture in islice(damage_survey.scene(128, 96), 12)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=40)
    return path


def test_half_a_gif(tmp_path):
    path = clips.cut(tmp_path / "half.gif", moving_gif(tmp_path / "whole.gif"), 0.5)
    assert refused(path)
    got = video.read(path, allow_damaged=True)
    assert got.facts.damage and 0 < len(got) < 12
    assert np.array_equal(got.frames, video.read(tmp_path / "whole.gif").frames[: len(got)])


def test_changed_codes_of_a_gif(tmp_path):
    path = moving_gif(tmp_path / "a.gif")
    data = path.read_bytes()
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    for at in [position + size * 2 // 3 for position, size in packets[4:8]]:
        path.write_bytes(data[:at] + bytes(byte ^ 4 for byte in data[at : at + 8]) + data[at + 8 :])
        assert refused(path)


def lzw_without_clearing(pixels, bits=8):
    """GIF's codes of ``pixels``, by an encoder that goes on with a full table."""
    table, size, entry, out, used = (
        {bytes([n]): n for n in range(1 << bits)},
        bits + 1,
        (1 << bits) + 2,
        1 << bits,
        bits + 1,
    )
    word = b""

    def put(code):
        nonlocal out, used
        out, used = out | code << used, used + size

    for pixel in pixels:
        if word + bytes([pixel]) in table:
            word += bytes([pixel])
            continue
        put(table[word])
        if entry < 4096:
            table[word + bytes([pixel])], entry = entry, entry + 1
            size = min(12, (entry - 1).bit_length())
        word = bytes([pixel])
    put(table[word])
    size = min(12, entry.bit_length())
    put((1 << bits) + 1)
    return out.to_bytes((used + 7) // 8, "little")


@pytest.mark.parametrize("count", [1, 300, 40_000])
def test_gif_codes_of_a_full_table(count):
    pixels = np.random.default_rng(0).integers(0, 40, count).astype(np.uint8).tobytes()
    data = lzw_without_clearing(pixels)
    parts = b"".join(bytes([len(data[at : at + 255])]) + data[at : at + 255] for at in range(0, len(data), 255))
    head = b"\x2c\0\0\0\0" + count.to_bytes(2, "little") + b"\x01\0\0\x08"
    assert not gif_broken(head + parts + b"\0")
    assert gif_broken(head + parts[:-2] + b"\0") and gif_broken(head + parts)


@pytest.mark.parametrize(
    ("data", "broken"),
    [
        (b"\0\0\0\x03\x65ab\0\0\0\x02\x41c", False),
        (b"\0\0\0\x05\x65a\0\0\0", False),  # padded
        (b"\0\0\0\x03\x65ab\0\0\0\x03\x41c", True),  # longer than the packet
        (b"\0\0\0\x03\x65ab\0\0\0\0", True),
        (b"\0\0\0\x03\xe5ab", True),  # a bit that is never set
        (b"\0\0\0\x06\x65\0\0\0ab", True),
        (b"\0\0\0\x06\x65\0\0\x03\x01b", False),
    ],
)
def test_units_fill_their_packet(data, broken):
    assert PictureInspector("h264", 1 << 16, 4).broken(data) is broken


ONES, ZEROS = b"\xff" * 40, bytes(40)
MIXED = bytes(range(1, 200))


@pytest.mark.parametrize(
    ("codec", "data", "broken"),
    [
        ("h264", b"\0\0\1\x65" + MIXED + ONES + MIXED, True),
        ("h264", b"\0\0\1\x41" + MIXED + ONES + MIXED, False),  # blocks that stay as they are, without CABAC
        ("h264", b"\0\0\1\x41" + MIXED + 16 * ONES + MIXED, True),  # more than there are
        ("h264", b"\0\0\1\x0c" + ONES + b"\x80\0\0\1\x65" + MIXED, False),  # filler
        ("hevc", b"\0\0\1\x26\1" + MIXED + ONES + MIXED, True),
        ("hevc", b"\0\0\1\x4c\1" + ONES + b"\x80\0\0\1\x26\1" + MIXED, False),  # filler
        ("vp9", MIXED + ONES + MIXED, True),
        ("vp9", MIXED + ZEROS + MIXED, True),
        ("vp9", MIXED + ZEROS, False),  # padding
        ("vp8", b"\x30\x0c\0" + 7 * b"\1" + 97 * b"\1" + ZEROS + MIXED, True),
        ("vp8", b"\x30\x0c\0" + 7 * b"\1" + 50 * b"\1" + ZEROS + MIXED, False),  # modes: 97 bytes
        ("mpeg4", b"\0\0\1\xb6\x10" + MIXED + ONES + MIXED, True),
        ("mpeg4", b"\0\0\1\xb6\x50" + MIXED + ONES + MIXED, False),  # 320 of 768 blocks stay as they are
        ("mpeg4", b"\0\0\1\xb6\x50" + MIXED + 3 * ONES + MIXED, True),
        ("mpeg4", b"\0\0\1\xb6\x50" + MIXED + ONES + b"\0\0\1\xc3" + 9 * ONES, False),  # stuffing
        ("mpeg4", b"\0\0\1\xb6\x50" + MIXED + bytes(8) + b"\x70" + MIXED, True),
        ("mpeg4", b"\0\0\1\xb2" + ONES + ZEROS + b"\0\0\1\xb6\x50" + MIXED, False),  # user data
    ],
)
def test_runs_that_no_encoder_writes(codec, data, broken):
    assert PictureInspector(codec, 512 * 384).broken(data) is broken


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("codec", "byte"), [("vp9", 0), ("vp9", 255), ("hevc-plain", 255), ("mpeg4", 255)])
@pytest.mark.parametrize("size", full_but([40], [40, 300]))
def test_a_run_inside_a_picture_is_noticed(tmp_path, codec, byte, size):
    path = damage_survey.encode(tmp_path / "a.mp4", *damage_survey.SOURCES[codec][:2])
    data = path.read_bytes()
    with av.open(str(path)) as container:
        packets = [packet.pos for packet in container.demux(video=0) if packet.size > 3 * size]
    for at in packets[1::2]:
        for offset in (size // 2, 3 * size // 2):
            path.write_bytes(data[: at + offset] + bytes([byte]) * size + data[at + offset + size :])
            assert "damaged" in refused(path, frames=1000)


@pytest.mark.full
def test_a_hidden_picture_of_vp9_is_read_to_its_end(tmp_path):
    """It shares a packet with one that is shown, and only what depends on it shows that it was changed."""
    path = damage_survey.encode(tmp_path / "a.webm", *damage_survey.SOURCES["vp9"][:2])
    data = path.read_bytes()
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0)]
    shared = [packet for packet in packets if len(packet) > 2000 and packet[-1] & 0xE7 == 0xC1]
    assert shared
    for packet in shared:
        for share in (0.2, 0.35, 0.5, 0.65):
            at = data.index(packet) + int(share * len(packet))
            path.write_bytes(data[:at] + MIXED[:20] + data[at + 20 :])
            assert "damaged" in refused(path, frames=1000)


@pytest.mark.full
def test_still_pictures_and_filler_are_no_damage(tmp_path, monkeypatch):
    kinds = ["h264 cavlc", "h264 filler", "hevc steady", "vp8 steady", "vp9 steady", "mpeg4 steady", "mpeg2 steady"]
    monkeypatch.setattr(sound_kinds, "ENCODERS", {name: sound_kinds.ENCODERS[name] for name in kinds})
    assert damage_survey.sound_survey(tmp_path, [(176, 144)]) == (70, [])


@pytest.mark.full
def test_a_sample_of_damaged_files(tmp_path):
    """``damage_survey`` runs the whole of it; bits changed in compressed pictures are those that may not show."""
    names = ["h264", "hevc", "vp9", "mpeg4", "av1"]
    results = list(damage_survey.survey(tmp_path, 40, 7, names, judged=damage_survey.judge))
    silent = [one for one in results if one.verdict == "different"]
    assert len(results) == 40 and {one.verdict for one in results} <= {"error", "exact", "different"}
    assert [one for one in silent if one.damage not in ("a bit flipped", "a run of noise")] == []
    assert len(silent) <= 3


@pytest.mark.full
def test_allowed_damage_never_ends_in_anything_but_whole_frames_or_an_error(tmp_path):
    def allowed(path, whole, decoder):
        try:
            got = video.read(path, decoder=decoder, allow_damaged=True)
        except VideoError:
            return "error", ""
        return ("exact" if len(got) and got.frames.any() else "different"), ""

    results = list(damage_survey.survey(tmp_path, 32, 8, ["h264", "mpeg4"], judged=allowed))
    assert {one.verdict for one in results} == {"error", "exact"}
