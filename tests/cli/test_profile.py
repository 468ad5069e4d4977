import json

import pytest

# Before the captioner gives way to one without models.
import vidspec.bench.loaded
import vidspec.bench.profile_view
import vidspec.bench.profiled  # noqa: F401


class Report:
    """Stands for a measured one."""

    def to_dict(self):
        return {"runs": []}


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def profile_clip(clip, names, source, **options):
        calls.append((str(clip), names, source, options))
        return Report()

    monkeypatch.setattr("vidspec.bench.profiled.profile_clip", profile_clip)
    return calls


def test_what_is_asked_is_measured(vidspec, asked):
    args = ("--profiles", "ar,specvlm", "--pair", "embedded-qwen", "--set", "video.frames=4", "--repeats", "2")
    ran = vidspec("profile", "clip.mp4", *args, "--no-passes", "--threads", "1", "--format", "json")
    assert ran.code == 0 and json.loads(ran.out) == {"runs": []}
    ((clip, names, source, options),) = asked
    assert (clip, names, source.pair) == ("clip.mp4", ["ar", "specvlm"], "embedded-qwen")
    assert options["overrides"] == {"video.frames": "4"} and not options["passes"]
    assert (options["repeats"], options["threads"]) == (2, 1)


@pytest.mark.parametrize(
    "args, complaint",
    [
        ((), "Missing argument"),
        (("no.mp4",), "no.mp4: there is no such file"),
        ((".",), ".: is no file"),
        (("no.mp4", "--set", "frames"), "--set frames: must be KEY=VALUE"),
        (("no.mp4", "--set", "models.pair=embedded"), "--set models.pair: all profiles share the models"),
        (("no.mp4", "--profiles", ","), "--profiles names no profile"),
        (("no.mp4", "--format", "xml"), "--format"),
    ],
)
def test_bad_input_ends_in_one_line(vidspec, args, complaint):
    ran = vidspec("profile", *args)
    assert ran.code in (1, 2) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1
