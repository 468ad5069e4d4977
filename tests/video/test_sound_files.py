"""No sound file is taken for a damaged one: codecs, containers and structures of many kinds, with all their frames."""

from __future__ import annotations

import struct
from fractions import Fraction

import av
import pytest

from tests.tiers import full_but
from vidspec import video

from . import clips

MS = Fraction(1, 1000)
COUNT = 20
#: A recorded screen: nothing for seconds, then a burst.
GAPS = [0, 40, 80, 120, 5000, 5040, 5080, 9000, 9040, 9080, 20000, 20040]
GOP = "keyint=6:min-keyint=6:scenecut=0"


def x264(params: str = GOP, **more):
    return {"options": {"x264-params": params}, **more}


def x265(params: str = "keyint=6", **more):
    return {"codec": "libx265", "options": {"x265-params": f"{params}:log-level=none"}, **more}


def vp(codec: str = "libvpx-vp9", **options):
    return {"codec": codec, "options": {"cpu-used": "8", "deadline": "realtime", **options}}


def other(codec: str, pixel_format: str = "yuv420p", **more):
    return {"codec": codec, "pixel_format": pixel_format, **more}


def muxed(how, **options):
    return {**how, "container_options": options}


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
AV1 = other("libsvtav1", options={"preset": "13", "svtav1-params": "keyint=6"})
WIDE = {"size": (352, 288)}

SOUND = {
    # H.264
    "plain.mp4": x264(),
    "plain.mov": x264(b_frames=2),
    "plain.mkv": x264(b_frames=2),
    "plain.ts": x264(b_frames=2),
    "plain.avi": x264(),
    "b.avi": x264(b_frames=2),
    "plain.flv": x264(b_frames=2),
    "plain.3gp": x264(),
    "plain.m4v": x264(),
    "plain.nut": x264(b_frames=2),
    "plain.h264": x264(b_frames=2, container="h264"),
    "blu_ray.m2ts": muxed(x264(container="mpegts"), mpegts_m2ts_mode="1"),
    "faststart.mp4": muxed(x264(), movflags="+faststart"),
    "fragments.mp4": muxed(x264(), **FRAGMENTS),
    "fragments_b.mp4": muxed(x264(b_frames=2), **FRAGMENTS),
    "no_edits.mp4": muxed(x264(b_frames=2), use_editlist="0"),
    "negative.mp4": muxed(x264(b_frames=2), movflags="+negative_cts_offsets"),
    "late.mp4": x264(pts=range(50, 70)),
    "late.ts": x264(pts=range(50, 70), b_frames=2),
    "late.mkv": x264(pts=range(50, 70)),
    "gaps.mp4": x264(pts=GAPS, time_base=MS),
    "gaps_b.mp4": x264(pts=GAPS, time_base=MS, b_frames=2),
    "gaps.mkv": x264(pts=GAPS, time_base=MS),
    "gaps_b.mkv": x264(pts=GAPS, time_base=MS, b_frames=2),
    "gaps.flv": x264(pts=GAPS, time_base=MS),
    "gaps.ts": x264(pts=GAPS, time_base=MS),
    "open_gop.mp4": x264(f"open-gop=1:bframes=3:{GOP}", b_frames=3),
    "open_gop.ts": x264(f"open-gop=1:bframes=3:{GOP}", b_frames=3),
    "pyramid.mkv": x264(f"bframes=5:b-pyramid=normal:ref=4:{GOP}", b_frames=5),
    "refresh.mp4": x264("intra-refresh=1:keyint=8"),
    "refresh.ts": x264("intra-refresh=1:keyint=8"),
    "interlaced.mp4": x264(f"interlaced=1:{GOP}"),
    "interlaced.ts": x264(f"interlaced=1:{GOP}"),
    "slices.mp4": x264(f"slices=4:{GOP}", **WIDE),
    "cavlc.mp4": x264(f"cabac=0:{GOP}"),
    "constant.ts": x264(f"nal-hrd=cbr:vbv-maxrate=400:vbv-bufsize=200:bitrate=400:filler=1:{GOP}"),
    "sound.mp4": x264(audio=True),
    "sound.ts": x264(audio=True),
    "sound.mkv": x264(audio=True),
    "live.mkv": muxed(x264(), live="1"),
    "no_crc.mkv": muxed(x264(), write_crc32="0"),
    "small_clusters.mkv": muxed(x264(), cluster_time_limit="100"),
    "ten_bits.mp4": x264(pixel_format="yuv420p10le"),
    "full_colour.mp4": x264(pixel_format="yuv444p"),
    "one.mp4": x264(pts=1),
    # HEVC, VP8, VP9, AV1
    "hevc.mp4": x265(),
    "hevc.mkv": x265(b_frames=3),
    "hevc.ts": x265(b_frames=3),
    "hevc_rows.mp4": x265("wpp=1:keyint=6", **WIDE),
    "hevc_no_rows.mp4": x265("wpp=0:keyint=6", **WIDE),
    "hevc_slices.mp4": x265("slices=2:keyint=6", **WIDE),
    "hevc_ten_bits.mp4": x265(pixel_format="yuv420p10le"),
    "vp9.webm": vp(),
    "vp9.mp4": vp(),
    "vp9_hidden.webm": vp(**{"deadline": "good", "auto-alt-ref": "1", "lag-in-frames": "16"}),
    "vp9_colour.webm": {**vp(), "pixel_format": "yuv444p"},
    "vp9_odd.mkv": {**vp(), "size": (97, 65)},
    "vp8.webm": vp("libvpx"),
    "vp8.mkv": vp("libvpx"),
    "vp8_hidden.webm": vp("libvpx", **{"deadline": "good", "auto-alt-ref": "1", "lag-in-frames": "16"}),
    "vp9_alpha.webm": {**vp(**{"auto-alt-ref": "0"}), "pixel_format": "yuva420p"},
    "vp8_alpha.webm": {**vp("libvpx", **{"auto-alt-ref": "0"}), "pixel_format": "yuva420p"},
    "av1.mp4": AV1,
    "av1.webm": AV1,
    "av1.mkv": AV1,
    # MPEG-1, 2, 4 and relatives
    "mpeg4.avi": other("mpeg4"),
    "mpeg4_b.avi": other("mpeg4", b_frames=2),
    "mpeg4.mp4": other("mpeg4", b_frames=2),
    "mpeg4.mkv": other("mpeg4"),
    "mpeg4.ts": other("mpeg4"),
    "mpeg2.ts": other("mpeg2video", b_frames=2),
    "mpeg2.mpg": other("mpeg2video", b_frames=2),
    "mpeg2.vob": other("mpeg2video"),
    "mpeg2.mkv": other("mpeg2video", b_frames=2),
    "mpeg1.mpg": other("mpeg1video", b_frames=2),
    "h263.3gp": other("h263", size=(176, 144)),
    "sorenson.flv": other("flv"),
    "divx3.avi": other("msmpeg4"),
    "wmv.wmv": other("wmv2"),
    "wmv.avi": other("wmv2"),
    # every picture by itself
    "jpeg.avi": other("mjpeg", "yuvj420p"),
    "jpeg.mov": other("mjpeg", "yuvj420p"),
    "jpeg.mkv": other("mjpeg", "yuvj420p"),
    "prores.mov": other("prores", "yuv422p10le"),
    "ffv1.mkv": other("ffv1"),
    "ffv1.avi": other("ffv1"),
    "huffyuv.avi": other("huffyuv", "yuv422p"),
    "utvideo.avi": other("utvideo"),
    "magic.avi": other("magicyuv"),
    "raw.avi": other("rawvideo"),
    "raw.mov": other("rawvideo", "rgb24"),
    "png.mov": other("png", "rgb24"),
    "animation.mov": other("qtrle", "rgb24"),
    "cinepak.avi": other("cinepak", "rgb24"),
    "screen.avi": other("zmbv", "bgr0"),
    "snow.avi": other("snow"),
    "svq1.mov": other("svq1", "yuv410p"),
    "moving.gif": other("gif", "rgb8"),
    "moving.apng": other("apng", "rgb24"),
}


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("name", full_but(list(SOUND)[::5], SOUND))
def test_a_sound_file_is_read_whole(tmp_path, name):
    how = {"pts": COUNT, "gop": 6, **SOUND[name]}
    count = how["pts"] if isinstance(how["pts"], int) else len(how["pts"])
    path = clips.make(tmp_path / name, **how)
    index = video.probe(path)
    assert (index.damage, index.truncated, len(index)) == ((), False, count)
    got = video.read(path, frames=1000)
    assert len(got) == count and got.facts.damage == ()
    assert len(video.read(path, fps=5.0, decoder="av"))


def test_there_are_sixty_kinds():
    assert len(SOUND) >= 60


@pytest.mark.parametrize(("codec", "b_frames"), [("mpeg4", 0), ("libx264", 2)])
@pytest.mark.parametrize("unknown", [0, 0xFFFFFFFF])
def test_an_avi_written_to_a_pipe(tmp_path, codec, b_frames, unknown):
    """Its writer cannot go back: sizes stay unknown, the count of frames is a guess, and there is no index."""
    data = clips.make(tmp_path / "whole.avi", codec=codec, b_frames=b_frames).read_bytes()
    movie, index = data.index(b"movi") - 8, data.rindex(b"idx1")
    head = bytearray(data[:movie])
    head[4:8] = struct.pack("<I", unknown)
    at = head.index(b"strh") + 40
    head[at : at + 4] = struct.pack("<I", 1 << 30)
    path = tmp_path / "pipe.avi"
    path.write_bytes(head + b"LIST" + struct.pack("<I", unknown) + data[movie + 8 : index])
    got = video.read(path, frames=1000)
    assert clips.numbers(got.frames) == list(range(40)) and got.facts.damage == ()
    path.write_bytes(path.read_bytes()[:-20])
    assert video.probe(path).truncated


def test_empty_packets_of_an_avi_are_repeated_frames(tmp_path):
    """A writer of steady rate fills gaps with chunks of no bytes, which the header counts and FFmpeg leaves out."""
    with av.open(str(clips.make(tmp_path / "full.avi", codec="mpeg4", pts=10))) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
        extra = container.streams.video[0].codec_context.extradata or b""
    path = tmp_path / "tree.avi"
    path.write_bytes(avi_of([part for packet in packets for part in (packet, b"", b"", b"")], extra))
    got = video.read(path, frames=1000)
    assert clips.numbers(got.frames) == list(range(10)) and got.facts.damage == ()
    assert got.timestamps.tolist() == pytest.approx([4 * n / 25 for n in range(10)])


def avi_of(packets: list[bytes], extra: bytes) -> bytes:
    """An AVI of MPEG-4 packets, 96 x 64 at 25 fps, with an index."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) & 1)

    def listed(kind: bytes, *parts: bytes) -> bytes:
        return chunk(b"LIST", kind + b"".join(parts))

    head = struct.pack("<14I", 40000, 0, 0, 16, len(packets), 0, 1, 0, 96, 64, 0, 0, 0, 0)
    stream = b"vidsFMP4" + struct.pack("<10I4H", 0, 0, 0, 1, 25, 0, len(packets), 0, 0xFFFFFFFF, 0, 0, 0, 96, 64)
    picture = struct.pack("<3I2H4sI4I", 40 + len(extra), 96, 64, 1, 24, b"FMP4", 96 * 64 * 3, 0, 0, 0, 0) + extra
    header = listed(b"hdrl", chunk(b"avih", head), listed(b"strl", chunk(b"strh", stream), chunk(b"strf", picture)))
    at, rows = 4, []
    for packet in packets:
        rows.append(b"00dc" + struct.pack("<3I", 16 if not rows else 0, at, len(packet)))
        at += 8 + len(packet) + (len(packet) & 1)
    movie = listed(b"movi", *(chunk(b"00dc", packet) for packet in packets))
    return chunk(b"RIFF", b"AVI " + header + movie + chunk(b"idx1", b"".join(rows)))
