"""Hardware decoders, with software in their place: which frames they give, and what they refuse.

Software's pictures are given the formats of a GPU's. What a GPU itself does is in ``tests/gpu``.
"""

from __future__ import annotations

from types import SimpleNamespace

import av
import numpy as np
import pytest

from tests.tiers import full_but
from vidspec import video
from vidspec.errors import UsageError, VideoError
from vidspec.video import decode_av, decode_hardware, opening, pictures
from vidspec.video.decode_hardware import DEVICES, refusal_reason

from . import clips

FORMATS = {"yuv420p": "nv12", "yuvj420p": "nv12", "yuv420p10le": "p010le"}
OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:keyint=10:min-keyint=10:scenecut=0"}
IN_SOFTWARE = decode_av.decode_all
GOOD = {
    "plain.mp4": {},
    "b_frames.mp4": {"b_frames": 3},
    "open_gop.mkv": {"b_frames": 3, "options": OPEN_GOP},
    "b_frames.avi": {"b_frames": 3},
    "turned_90.mp4": {"rotation": 90},
    "ten_bits.mp4": {"pixel_format": "yuv420p10le"},
    "full_range.mov": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
    "odd.webm": {"codec": "libvpx-vp9", "size": (97, 65), "options": {"cpu-used": "8"}},
}


@pytest.fixture
def gpu(monkeypatch):
    """Software in the place of a GPU; the formats that were given."""
    given = set()

    def as_of_a_gpu(*args, **options):
        for picture in IN_SOFTWARE(*args, **options):
            if picture is not None:
                picture = picture.reformat(format=FORMATS[picture.format.name])
                given.add(picture.format.name)
            yield picture

    monkeypatch.setattr(decode_hardware, "refusal_reason", lambda *_: None)
    monkeypatch.setattr(opening, "accelerator", lambda device: None)
    monkeypatch.setattr(pictures, "accelerated", lambda codec: True)
    monkeypatch.setattr(decode_av, "decode_all", as_of_a_gpu)
    return given


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("decoder", DEVICES)
@pytest.mark.parametrize("name", full_but(list(GOOD)[:2], GOOD))
def test_frames_are_those_of_software(name, decoder, gpu, tmp_path):
    path = clips.make(tmp_path / name, **GOOD[name])
    for how in ({"frames": 1000}, {"frames": 5}, {"fps": 3.0, "start": 0.5}):
        got = video.read(path, decoder=decoder, **how)
        assert got.facts.decoder == decoder and gpu <= {"nv12", "p010le"} and gpu
        gpu.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_av, "decode_all", IN_SOFTWARE)
            expected = video.read(path, decoder="av", **how)
        assert np.array_equal(got.frames, expected.frames) and np.array_equal(got.timestamps, expected.timestamps)


def refused(path):
    with pytest.raises(VideoError) as caught:
        video.read(path, frames=5, decoder="nvdec")
    assert caught.value.kind == "decoder" and "av" in caught.value.hint and "\n" not in str(caught.value)
    return caught.value.message


@pytest.mark.parametrize("lost", ["damaged", "passed over"])
def test_no_other_frame_stands_in(lost, gpu, monkeypatch, tmp_path):
    """Neither another picture for one that does not come, nor another decoder's."""
    path = clips.make(tmp_path / "plain.mp4")
    wanted = video.probe(path).pts[20]

    def without(*args, **options):
        for picture in IN_SOFTWARE(*args, **options):
            if picture is None or picture.pts != wanted:
                yield picture
            elif lost == "damaged":
                yield None

    monkeypatch.setattr(decode_av, "decode_all", without)
    assert len(video.read(path, frames=2, decoder="nvdec")) == 2
    assert "plain.mp4: nvdec does not decode it exactly" in refused(path)


def test_a_stream_that_is_not_for_the_gpu_is_refused(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(pictures, "accelerated", lambda codec: codec.is_hwaccel)
    assert "h264 is not among what it decodes" in refused(clips.make(tmp_path / "plain.mp4"))


def test_a_gpu_that_fails_is_not_the_files_fault(gpu, monkeypatch, tmp_path):
    path = clips.make(tmp_path / "plain.mp4")
    whole = av.open

    def without_gpu(*args, **options):
        if "hwaccel" in options:
            raise PermissionError(1, "Operation not permitted")
        return whole(*args, **options)

    monkeypatch.setattr(av, "open", without_gpu)
    assert "plain.mp4: the hardware does not decode it: Operation not permitted" in refused(path)


@pytest.mark.parametrize(
    ("decoder", "error", "named"),
    [
        ("nvdec", PermissionError(1, "Operation not permitted"), "NVIDIA"),
        ("vaapi", NotImplementedError("no"), "VA-API"),
        ("videotoolbox", OSError(5, "no"), "VideoToolbox"),
    ],
)
def test_without_hardware_it_is_an_error_and_software_does_not_stand_in(decoder, error, named, monkeypatch, tmp_path):
    class Absent:
        def create(self, codec):
            raise error

    monkeypatch.setattr(decode_hardware, "accelerator", lambda device: Absent())
    path = clips.make(tmp_path / "plain.mp4")
    with pytest.raises(UsageError, match=f"no {named} decoder can be used here: ") as caught:
        video.read(path, frames=2, decoder=decoder)
    assert caught.value.kind == "decoder" and "--decoder av" in caught.value.hint
    assert video.read(path, frames=2, decoder="auto").facts.decoder == "av"


def test_an_nvidia_decoder_is_that_of_the_models_gpu(gpu, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(opening, "accelerator", asked.append)
    path = clips.make(tmp_path / "plain.mp4")
    for decoder, number in (("nvdec", 1), ("nvdec", 0), ("nvdec", None), ("vaapi", 1)):
        video.read(path, frames=2, decoder=decoder, gpu=number)
    assert list(dict.fromkeys(asked)) == ["cuda:1", "cuda:0", "cuda", "vaapi"]
    monkeypatch.undo()
    assert opening.accelerator("cuda:1").device_id != opening.accelerator("cuda").device_id


def test_a_driver_without_its_decoding_library_is_named(monkeypatch):
    """As in containers that were given a GPU for computing alone."""
    monkeypatch.setattr(decode_hardware, "accelerator", lambda device: SimpleNamespace(create=lambda codec: None))

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(decode_hardware.ctypes, "CDLL", missing)
    assert "nvcuvid" in refusal_reason("nvdec", 1) and refusal_reason("vaapi") is None
    monkeypatch.setattr(decode_hardware.ctypes, "CDLL", lambda name: None)
    assert refusal_reason("nvdec") is None


@pytest.mark.parametrize("decoder", DEVICES)
def test_hardware_is_probed_and_asked_never_to_leave_it_to_software(decoder):
    """This machine may have it: then the probe says so, and else gives one line."""
    assert opening.accelerator(DEVICES[decoder][0]).allow_software_fallback is False
    why = refusal_reason(decoder)
    assert why is None or (why and "\n" not in why)


def test_what_is_whole_of_a_damaged_file_is_for_software_to_say(gpu, tmp_path):
    with pytest.raises(UsageError, match="cannot tell which frames are whole"):
        video.read(clips.make(tmp_path / "plain.mp4"), decoder="nvdec", allow_damaged=True)
