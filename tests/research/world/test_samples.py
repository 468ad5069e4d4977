import json
from dataclasses import asdict

import numpy as np
import pytest

from research.world import samples
from research.world.drawing import frames
from research.world.samples import draw, draw_sample, read_truth
from research.world.scoring import score, truth
from vidspec.embedded.samples import shipped
from vidspec.errors import OutputError, UsageError
from vidspec.video import read


@pytest.fixture
def brief(monkeypatch):
    """Clips of about a second, for what does not depend on their length."""
    monkeypatch.setattr(samples, "SECONDS", (1, 1))


def test_drawn_clips_can_be_read(tmp_path):
    (path,) = draw(tmp_path / "new" / "clips", 1, seed=17)  # two large things that move all the time
    assert path == tmp_path / "new" / "clips" / "clip-0000.mp4"
    (record,) = json.loads((path.parent / "truth.json").read_text())
    clip = read(path, frames=5)
    assert (clip.facts.codec, clip.facts.width, clip.facts.height, clip.facts.fps) == ("h264", 320, 240, 15)
    assert 8 <= record["duration"] <= 15 and path.stat().st_size < 500_000
    assert clip.facts.duration_s == pytest.approx(record["duration"])
    sample = draw_sample(record["seed"])
    assert clip.facts.frame_count == sample.frames
    times = clip.timestamps * samples.FPS / (sample.frames - 1)
    assert times[0] == 0 and times[-1] == pytest.approx(1)
    assert off(clip, sample.scene, times) < 3  # lossy, yet the right scene
    for earlier in (0.9, 0.99):  # at the right time
        assert off(clip, sample.scene, earlier * times) > 1.1 * off(clip, sample.scene, times)


def off(clip, scene, times):
    """Mean difference between the clip's frames and those drawn at ``times``, in steps of 0..255."""
    return np.abs(clip.frames.astype(int) - frames(scene, list(times))).mean()


def test_truth_json(tmp_path, brief):
    paths = draw(tmp_path, 3, seed=2)
    records = json.loads((tmp_path / "truth.json").read_text())
    assert [record["file"] for record in records] == [path.name for path in paths]
    for record in records:
        assert set(record) == {"file", "seed", "duration", "facts", "caption"}
        scene = draw_sample(record["seed"]).scene
        assert record["facts"] == asdict(truth(scene))
        assert score(record["caption"], scene).f1 == 1.0


def test_truth_read_again(tmp_path, brief):
    assert read_truth(tmp_path) == {}
    paths = draw(tmp_path, 3, seed=2)
    read_again = read_truth(tmp_path)
    assert list(read_again) == [path.name for path in paths]
    assert all(facts == truth(draw_sample(seed).scene) for seed, facts in read_again.values())
    for other in ("{", '{"a": 1}', "[1]", '[{"file": "a.mp4", "seed": 1, "facts": {"colour": "red"}}]'):
        (tmp_path / "truth.json").write_text(other)
        with pytest.raises(UsageError, match=r"is not a truth\.json of"):
            read_truth(tmp_path)


def test_same_seed_same_bytes(tmp_path, brief):
    first = draw(tmp_path / "a", 2, seed=7)
    again = draw(tmp_path / "b", 3, seed=7)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again[:2]]
    other = draw(tmp_path / "c", 1, seed=8)
    assert other[0].read_bytes() != first[0].read_bytes()
    assert first[0].read_bytes() != first[1].read_bytes()


@pytest.mark.parametrize("name", ["truth.json", "clip-0001.mp4"])
def test_nothing_is_overwritten(tmp_path, brief, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=f"{name}: exists already"):
        draw(tmp_path, 2, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_folder_that_cannot_be_made(tmp_path, brief):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        draw(tmp_path / "file" / "clips", 1, seed=0)


def test_file_that_cannot_be_written(tmp_path, brief, monkeypatch):
    (tmp_path / "clip-0000.mp4").symlink_to(tmp_path / "nowhere" / "clip.mp4")
    with pytest.raises(OutputError, match="cannot be written"):
        draw(tmp_path, 1, seed=0)
    assert not (tmp_path / "truth.json").exists()


def test_shipped_clips_are_those_that_ship_makes():
    paths = shipped()
    assert paths == sorted(paths) and len(paths) == 4
    records = {record["file"]: record for record in json.loads((samples.CLIPS / "truth.json").read_text())}
    assert sorted(records) == [path.name for path in paths]
    for name, seed, count in samples.SHIPPED:
        sample = draw_sample(seed, count)
        assert records[f"{name}.mp4"] == sample.record(f"{name}.mp4")
        clip = read(samples.CLIPS / f"{name}.mp4", frames=2)
        assert clip.facts.frame_count == sample.frames and 8 <= sample.duration <= 15
        assert (clip.facts.width, clip.facts.height) == (320, 240)
        assert (samples.CLIPS / f"{name}.mp4").stat().st_size < 500_000
        assert off(clip, sample.scene, [0.0, 1.0]) < 3


def test_shipped_clips_show_variety():
    scenes = [draw_sample(seed, count).scene for _, seed, count in samples.SHIPPED]
    assert sorted(len(scene.things) for scene in scenes) == [1, 2, 3, 3]
    motions = {thing.motion for scene in scenes for thing in scene.things}
    assert {"appears", "vanishes", "circles"} <= motions and len(motions) >= 6
