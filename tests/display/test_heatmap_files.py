from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.fake_captioner import record
from vidspec import Captioner, video
from vidspec.config import profiles
from vidspec.display import heatmap_image
from vidspec.display.heatmap_files import HeatmapFiles, check_heatmap
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError, VideoError
from vidspec.events.events import Finished, LoopLoad, Opened, Prefilled
from vidspec.events.observer import CombinedObserver, RunObserver


def profile(name="sd-attention", **settings):
    return profiles.load(name, settings, env={})


def events(path, steps=3, frames=3):
    """Events of a clip whose ``steps`` temporal steps of 1 x 2 tokens were made from ``frames`` frames."""
    clip = video.read(path, frames=frames)
    times = tuple(clip.timestamps.tolist())
    cells = tuple(range(2 * steps))
    return [
        Opened(str(path), clip.facts, len(clip.frames), times),
        Prefilled(9, 2 * steps, (0, 3), (1,), (2,), 0.1, (steps, 1, 2), cells),
    ]


def observed(files, path, *, number=1, total=1, error=None, **shape):
    files.begin(number, str(path), total)
    for event in events(path, **shape):
        files.event(number, event)
    files.end(number, record(str(path), error=error))


def test_one_clip_gives_the_file(tmp_path):
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    observed(files, shipped()[0])
    assert files.written == [tmp_path / "heat.png"] and not files.errors
    with Image.open(tmp_path / "heat.png") as image:
        assert image.format == "PNG" and image.width == 1600
    check_heatmap(tmp_path / "heat.png", profile(), ["clip.mp4"])  # it may be drawn again
    assert [file.name for file in tmp_path.iterdir()] == ["heat.png"]


@pytest.mark.full
def test_several_clips_give_a_file_each_and_none_is_lost(tmp_path):
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    one, other = shipped()[:2]
    for number, path in enumerate((one, other, one), start=1):
        observed(files, path, number=number, total=3)
    names = [f"heat-{one.stem}.png", f"heat-{other.stem}.png", f"heat-{one.stem}-2.png"]
    assert [file.name for file in files.written] == names
    assert all((tmp_path / name).is_file() for name in names)


@pytest.mark.full
def test_clips_in_flight_at_once_do_not_mix(tmp_path, monkeypatch):
    """The second is begun before the first ends and ends before it; a third fails meanwhile."""
    seen = []
    draw = heatmap_image.heatmap_image
    monkeypatch.setattr(heatmap_image, "heatmap_image", lambda *given: seen.append(given[2].kept) or draw(*given))
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    paths = [str(path) for path in shipped()[:3]]
    for number, path in enumerate(paths):
        files.begin(number, path, 3)
    for at in range(2):
        for number, path in enumerate(paths):
            event = events(path)[at]
            files.event(number, replace(event, kept=(number, 3)) if isinstance(event, Prefilled) else event)
    files.end(1, record(paths[1]))
    files.end(2, record(paths[2], error={"stage": "verify", "kind": "mismatch", "message": "x"}))
    files.end(0, record(paths[0]))
    assert seen == [(1, 3), (0, 3)]
    assert [file.name for file in files.written] == [f"heat-{Path(path).stem}.png" for path in (paths[1], paths[0])]


def test_segments_of_one_clip_give_a_file_each(tmp_path):
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    for _ in range(2):
        observed(files, shipped()[0])
    assert [file.name for file in files.written] == ["heat.png", "heat-2.png"]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("frames", "steps"), [(4, 2), (5, 3), (6, 3), (3, 3)])
def test_a_temporal_step_shows_its_first_frame(tmp_path, monkeypatch, frames, steps):
    asked = []
    read_at = video.read_at

    def spy(path, times, **options):
        asked.append(list(times))
        return read_at(path, times, **options)

    monkeypatch.setattr(video, "read_at", spy)
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    observed(files, shipped()[0], steps=steps, frames=frames)
    times = video.read(shipped()[0], frames=frames).timestamps.tolist()
    assert asked == [times[:: 2 if steps < frames else 1]] and len(files.written) == 1


def test_a_failed_clip_gives_no_picture(tmp_path):
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    observed(files, shipped()[0], error={"stage": "verify", "kind": "mismatch", "message": "x"})
    files.begin(1, "missing.mp4", 1)
    files.end(1, record("missing.mp4"))
    assert not files.written and not files.errors and not list(tmp_path.iterdir())


def test_a_picture_that_fails_does_not_touch_the_run(tmp_path, monkeypatch):
    files = HeatmapFiles(tmp_path / "gone" / "heat.png", profile())
    observed(files, shipped()[0])
    files.begin(2, "a", 1)
    observed(files, shipped()[0], steps=7)
    assert [str(error).count("\n") for error in files.errors] == [0, 0] and not files.written
    assert "cannot be written" in str(files.errors[0]) and "no grid" in str(files.errors[1])


def test_another_observer_sees_everything(tmp_path):
    class Seen(RunObserver):
        def __init__(self):
            self.calls = []

        def begin(self, *args):
            self.calls.append(("begin", *args))

        def event(self, number, event):
            self.calls.append((number, type(event)))

        def load(self, load):
            self.calls.append(load)

        def end(self, number, caption):
            self.calls.append(("end", number, caption.path))

    seen, path = Seen(), shipped()[0]
    files = CombinedObserver([HeatmapFiles(tmp_path / "heat.png", profile()), seen])
    load = LoopLoad(1, 0, 1, 4, 0, 1, 0, 0, 8)
    files.load(load)
    observed(files, path, number=3)
    assert seen.calls == [load, ("begin", 3, str(path), 1), (3, Opened), (3, Prefilled), ("end", 3, str(path))]


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        ("heat.jpg", "sd-attention", "--heatmap heat.jpg: must end in .png"),
        ("heat.png", "ar", "--heatmap heat.png: the profile ar drafts nothing"),
        ("heat.png", "onsd", "--heatmap heat.png: the profile onsd shows its draft no video"),
        ("heat.png", "std", "--heatmap heat.png: the profile std keeps other tokens in every layer and KV head"),
        ("no/heat.png", "sd-attention", "--heatmap no/heat.png: there is no folder no"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_any_work(tmp_path, monkeypatch, file, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        check_heatmap(Path(file), profile(name), ["clip.mp4"])
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    check_heatmap(Path("heat.PNG"), profile(), ["clip.mp4"])


@pytest.mark.full
def test_a_real_run(tmp_path):
    """The events of the captioner place every token that it says is kept in each frame."""
    with Captioner.from_profile(profile(**{"video.frames": 5, "generate.max_new_tokens": 2})) as captioner:
        files = HeatmapFiles(tmp_path / "heat.png", captioner.client.profile)
        files.begin(1, str(shipped()[0]), 1)
        for event in captioner.stream(shipped()[0]):
            files.event(1, event)
            if isinstance(event, Prefilled):
                seen = event
            if isinstance(event, Finished):
                files.end(1, event.caption)
    assert files.written == [tmp_path / "heat.png"]
    frames, rows, columns = seen.grid
    assert len(seen.cells) == seen.visual_tokens == frames * rows * columns + 1 and seen.cells[-1] == -1
    per_frame = [0] * frames
    for index in seen.kept:
        per_frame[seen.cells[index] // (rows * columns) if seen.cells[index] >= 0 else -1] += 1
    assert tuple(per_frame) == seen.kept_per_frame


def test_frames_that_cannot_be_read_again_are_an_error_of_the_picture(tmp_path):
    files = HeatmapFiles(tmp_path / "heat.png", profile())
    files.begin(1, "x", 1)
    for event in events(shipped()[0]):
        files.event(1, Opened(str(tmp_path / "x.mp4"), *event_rest(event)) if isinstance(event, Opened) else event)
    files.end(1, record("x"))
    assert isinstance(files.errors[0], VideoError) and not files.written


def event_rest(opened):
    return opened.facts, opened.frames, opened.timestamps
