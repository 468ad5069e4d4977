"""Image files are clips of one frame: upright, in RGB, exact, or one clear error."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from vidspec import video
from vidspec.errors import VideoError
from vidspec.runs.segments import cut_clip

PIXELS = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
#: Those that keep every pixel, and their options.
EXACT = {"png": {}, "webp": {"lossless": True}, "tiff": {}, "bmp": {}}


def saved(path, orientation=1, pixels=PIXELS, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, exif=exif, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "JPG", "jpeg", "webp", "tif", "tiff", "bmp"])
def test_a_picture_is_one_frame(tmp_path, suffix):
    clip = video.read(saved(tmp_path / f"a.{suffix}", **EXACT.get(suffix, {})))
    assert clip.frames.shape == (1, 40, 60, 3) and clip.timestamps.tolist() == [0.0] and clip.sound is None
    assert (clip.facts.width, clip.facts.height, clip.facts.frame_count) == (60, 40, 1)
    assert clip.facts.container.startswith("image/") and clip.facts.decoder == "pillow"
    if suffix in EXACT:
        assert np.array_equal(clip.frames[0], PIXELS)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, suffix, orientation):
    path = saved(tmp_path / f"a.{suffix}", orientation, **EXACT.get(suffix, {}))
    clip = video.read(path)
    with Image.open(path) as image:
        assert np.array_equal(clip.frames[0], np.asarray(ImageOps.exif_transpose(image).convert("RGB")))
    assert (clip.facts.height, clip.facts.width) == clip.frames.shape[1:3]
    assert clip.facts.rotation == {3: 180, 4: 180, 5: 90, 6: 270, 7: 270, 8: 90}.get(orientation, 0)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        pytest.param(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255), id="transparent"),
        pytest.param(Image.new("RGBA", (4, 4), (10, 20, 30, 255)), (10, 20, 30), id="opaque"),
        pytest.param(Image.new("L", (4, 4), 7), (7, 7, 7), id="grey"),
        pytest.param(np.full((4, 4), 7 << 8, np.uint16), (7, 7, 7), id="grey of 16 bits"),
        pytest.param(Image.new("RGB", (4, 4), (9, 8, 7)).quantize(4), (9, 8, 7), id="palette"),
        pytest.param(Image.new("1", (4, 4), 1), (255, 255, 255), id="one bit"),
    ],
)
def test_modes(tmp_path, pixels, expected):
    clip = video.read(saved(tmp_path / "a.png", pixels=pixels))
    assert clip.frames.dtype == np.uint8 and (clip.frames == expected).all()


def test_a_large_picture_is_scaled_and_turned(tmp_path):
    clip = video.read(saved(tmp_path / "a.png", 6), max_pixels=600)
    assert clip.frames.shape == (1, 30, 20, 3) and (clip.facts.width, clip.facts.height) == (40, 60)


def test_what_is_asked_of_videos(tmp_path):
    path = str(saved(tmp_path / "a.png"))
    assert len(video.read(path, fps=2.0)) == len(video.read(path, frames=8, sound=5.0)) == 1
    assert len(video.read_at(path, [0.0])) == 1
    assert cut_clip(path, 30.0, None, None) == [(0.0, 0.04)]
    with pytest.raises(VideoError, match="has no frame at 1 s or later"):
        video.read(path, start=1.0)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
def test_a_picture_cut_short(tmp_path, suffix):
    whole = io.BytesIO()
    Image.fromarray(PIXELS).save(whole, "jpeg" if suffix == "jpg" else suffix)
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(whole.getvalue()[: len(whole.getvalue()) * 2 // 3])
    with pytest.raises(VideoError, match="damaged") as caught:
        video.read(path)
    assert caught.value.kind == "damaged" and "\n" not in str(caught.value)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_with_noise_in_it(tmp_path, progressive):
    """Pillow's decoder makes a picture of it without a word."""
    path = saved(tmp_path / "a.jpg", progressive=progressive)
    video.read(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 60] = np.random.default_rng(0).bytes(60)
    path.write_bytes(data)
    with pytest.raises(VideoError, match="is damaged"):
        video.read(path)


@pytest.mark.parametrize(
    "options", [{"restart_marker_blocks": 2}, {"subsampling": 0, "optimize": True}, {"quality": 5}]
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_whole_jpegs_of_many_kinds(tmp_path, options, mode):
    for name, progressive in (("a.jpg", False), ("b.jpg", True)):
        saved(tmp_path / name, pixels=Image.fromarray(PIXELS).convert(mode), progressive=progressive, **options)
        assert video.read(tmp_path / name).frames.shape == (1, 40, 60, 3)


def test_a_webp_whose_parts_do_not_fill_it(tmp_path):
    path = saved(tmp_path / "a.webp", lossless=True)
    path.write_bytes(path.read_bytes() + b"JUNKJUNK")
    assert len(video.read(path)) == 1  # what follows is not of the file
    data = path.read_bytes()[:-8]
    path.write_bytes(data[:40] + data[44:])
    with pytest.raises(VideoError, match="damaged"):
        video.read(path)


def test_animated_webp(tmp_path):
    frames = [Image.fromarray(np.roll(PIXELS, step, 1)) for step in range(4)]
    path = tmp_path / "a.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=[100, 50, 0, 200], lossless=True)
    clip = video.read(path)
    assert all(np.array_equal(one, frame) for one, frame in zip(clip.frames, frames, strict=True))
    assert clip.timestamps.tolist() == pytest.approx([0, 0.1, 0.15, 0.25]) and clip.facts.duration_s == 0.45
    assert np.array_equal(video.read(path, start=0.16, end=0.2).frames, [np.asarray(frames[2])])


def test_other_files_with_the_suffix_of_a_picture(tmp_path):
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(VideoError, match="is damaged or not a picture") as caught:
        video.read(tmp_path / "a.png")
    assert caught.value.kind == "damaged"


def test_a_picture_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(VideoError, match="too large") as caught:
        video.read(saved(tmp_path / "a.png"))
    assert caught.value.kind == "memory"


def test_an_animation_is_a_video(tmp_path):
    frames = [Image.fromarray(np.roll(PIXELS, step, 1)) for step in range(3)]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:], duration=100)
    clip = video.read(tmp_path / "a.png")
    assert len(clip) == 3 and all(np.array_equal(one, frame) for one, frame in zip(clip.frames, frames, strict=True))
