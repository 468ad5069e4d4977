"""Keyframes instead of the frames at the wanted times: which, how many, and nothing else decoded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.video.pictures import record_decoded_pts
from vidspec import video
from vidspec.errors import UsageError
from vidspec.video import sample

from . import clips
from . import damage_survey as survey

KINDS = {
    "a.mp4": {"b_frames": 3, "options": {"x264-params": "keyint=25:min-keyint=25:scenecut=0"}},
    "open.mkv": {"b_frames": 3, "options": {"x264-params": "open-gop=1:keyint=25:min-keyint=25:scenecut=0"}},
    "a.ts": {"b_frames": 2, "options": {"x264-params": "keyint=25:min-keyint=25:scenecut=0"}},
    "a.webm": {"codec": "libvpx-vp9", "gop": 25, "options": {"cpu-used": "8", "lag-in-frames": "0"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none:keyint=25:min-keyint=25:scenecut=0"}},
    "late.mkv": {"options": {"x264-params": "keyint=25:min-keyint=25:scenecut=0"}, "pts": range(50, 150)},
}


@pytest.fixture(scope="module", params=KINDS)
def clip(request, tmp_path_factory):
    """100 frames of 25 a second, a keyframe each second."""
    path = tmp_path_factory.mktemp("keys") / request.param
    return clips.make(path, **{"pts": 100, **KINDS[request.param]})


@pytest.mark.sample(quick=2)
def test_the_keyframes_nearest_to_each_time(clip):
    """Fewer than asked for where several times share one; as they are in exact reading."""
    exact = video.read(clip, frames=1000)
    keys = np.searchsorted(video.probe(clip).pts, video.probe(clip).key_pts).tolist()
    assert keys[0] == 0 and len(keys) >= 4
    got = video.read(clip, frames=32, seek="keyframes")
    assert clips.numbers(got.frames) == keys and np.array_equal(got.timestamps, exact.timestamps[keys])
    assert np.array_equal(got.frames, exact.frames[keys])
    (one,) = clips.numbers(video.read(clip, frames=1, start=1.3, end=2.6, seek="keyframes").frames)
    assert one == min(keys, key=lambda key: abs(key - 33))


def test_no_other_frame_is_decoded(clip, monkeypatch):
    seen = record_decoded_pts(monkeypatch)
    got = video.read(clip, frames=3, seek="keyframes")
    index = video.probe(clip)
    assert set(seen) <= set(index.key_pts.tolist()) and len(set(seen)) == len(got)


def test_with_a_rate_a_keyframe_is_shown_for_each_time(clip):
    got = video.read(clip, fps=4.0, end=2.0, seek="keyframes")
    assert len(got) == 8 and (np.diff(got.timestamps) >= 0).all() and len(set(got.timestamps.tolist())) < 8
    assert clips.numbers(got.frames) == (got.timestamps * 25).round().astype(int).tolist()


def test_where_timestamps_do_not_order_frames_it_is_exact(tmp_path):
    path = clips.make(tmp_path / "b.avi", b_frames=3)
    assert clips.numbers(video.read(path, frames=3, seek="keyframes").frames) == [0, 20, 39]


def test_other_ways_to_seek_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no way to seek 'fast'"):
        video.read(clips.make(tmp_path / "a.mp4", pts=3), seek="fast")


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted),
)
def test_nearest_is_nearest(among, positions):
    times = np.cumsum(np.arange(61) % 7 + 1.0)
    got = sample.nearest(times, np.asarray(among), np.asarray(positions)).tolist()
    inside = [key for key in among if positions[0] <= key <= positions[-1]] or among
    assert got == [min(inside, key=lambda key: abs(times[key] - times[at])) for at in positions]


@pytest.mark.full
def test_the_record_says_which_times_were_seen(tmp_path):
    path = clips.make(tmp_path / "a.mp4", pts=60, options={"x264-params": "keyint=20:min-keyint=20:scenecut=0"})
    command = [sys.executable, "-m", "vidspec", "caption", str(path), "--seek", "keyframes", "--max-new-tokens", "2"]
    ran = subprocess.run([*command, "--profile", "ar", "--format", "json"], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["video"]["timestamps"] == pytest.approx([0.0, 0.8, 1.6])


#: H.264 with open groups of pictures: B-pictures before a keyframe refer to what was before it, and later ones say
#: what is to be forgotten.
OPEN = {
    "references": "open-gop=1:bframes=3:ref=6:keyint=12:min-keyint=12:scenecut=0",
    "pyramid": "open-gop=1:bframes=5:b-pyramid=normal:ref=4:keyint=12:min-keyint=12:scenecut=0",
}


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("params", OPEN.values(), ids=OPEN)
def test_open_groups_of_pictures_that_were_cut_by_copying_are_read(tmp_path, params, suffix):
    whole = "whole.ts" if suffix == "ts" else "whole.mp4"  # a cut of MP4 copied into TS has no parameter sets
    source = clips.make(tmp_path / whole, pts=60, b_frames=3, options={"x264-params": params})
    path = clips.copy_from_keyframe(tmp_path / f"cut.{suffix}", source, 1)
    for choice in ({"frames": 1000}, {"frames": 5}, {"frames": 1000, "allow_damaged": True}):
        got = video.read(path, **choice)
        numbers = clips.numbers(got.frames)
        assert numbers[-1] == 59 and numbers[0] <= 12 and numbers == sorted(numbers)
    assert len(video.read(path, frames=1000)) == 60 - numbers[0]


@pytest.mark.full
def test_damage_to_a_cut_of_open_groups_is_an_error(tmp_path):
    """Nowhere are other pictures delivered: what is concealed in two ways differs."""
    source = survey.encode(tmp_path / "whole.mp4", "libx264", {"crf": "26", "x264-params": OPEN["pyramid"]})
    path = clips.copy_from_keyframe(tmp_path / "cut.mp4", source, 1)
    whole, data = video.read(path), path.read_bytes()
    verdicts = Counter()
    for number in range(40):
        damaged = bytearray(data)
        way = (survey.noise, survey.zeros, survey.some_bytes, survey.few_ones)[number % 4]
        way(damaged, np.random.default_rng(number))
        (tmp_path / "damaged.mp4").write_bytes(damaged)
        verdicts[survey.judge(tmp_path / "damaged.mp4", whole, "auto")[0]] += 1
    assert not verdicts["different"] and verdicts["error"] >= 20, verdicts
