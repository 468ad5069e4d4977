"""``vidspec caption --heatmap``, with the built-in models."""

from pathlib import Path

import pytest
from PIL import Image

from vidspec.cli import main
from vidspec.embedded.samples import shipped
from vidspec.errors import VideoError

FEW = ("--frames", "4", "--max-new-tokens", "3", "--profile", "sd-attention")


@pytest.mark.full
def test_a_clip_gives_the_picture(real, capsys):
    assert main(["caption", str(shipped()[0]), *FEW, "--heatmap", "heat.png"]) == 0
    assert capsys.readouterr().out.strip()
    with Image.open("heat.png") as picture:
        assert picture.format == "PNG"
    assert [path.name for path in Path().glob("*.p*")] == ["heat.png"]


@pytest.mark.full
def test_several_clips_give_a_picture_each(real):
    one, other = map(str, shipped()[:2])
    assert main(["caption", one, other, *FEW, "--heatmap", "heat.png"]) == 0
    assert {path.name for path in Path().glob("*.png")} == {f"heat-{Path(clip).stem}.png" for clip in (one, other)}


@pytest.mark.full
def test_a_picture_that_fails_is_said_and_counts(real, capsys, monkeypatch):
    def gone(*_, **__):
        raise VideoError("clip.mp4: no such file", kind="missing")

    monkeypatch.setattr("vidspec.video.read_at", gone)
    assert main(["caption", str(shipped()[0]), *FEW, "--heatmap", "heat.png"]) == 1
    captured = capsys.readouterr()
    assert captured.out.strip() and "error: --heatmap: clip.mp4: no such file" in captured.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--heatmap", "x.jpg", "-p", "sd-attention"), "--heatmap x.jpg: must end in .png"),
        (("--heatmap", "x.png", "-p", "ar"), "--heatmap x.png: the profile ar drafts nothing"),
        (("--heatmap", "no/x.png", "-p", "sd-attention"), "--heatmap no/x.png: there is no folder no"),
        (("--heatmap", "x.png", "--replicas", "2"), "--heatmap needs a single captioner"),
    ],
)
def test_refused_before_any_model_is_loaded(vidspec, args, message):
    Path("good.mp4").touch()
    ran = vidspec("caption", "good.mp4", *args)
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1
