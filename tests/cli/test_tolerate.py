"""``--tolerate``: the exit code of a run in which few clips failed."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def clips():
    for number in range(19):
        Path(f"k/{number}").mkdir(parents=True)
        Path(f"k/{number}/good.mp4").write_bytes(b"x")
    Path("k/missing.mp4").write_bytes(b"x")


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    ("tolerate", "code"), [("0", 1), ("1", 0), ("2", 0), ("4.99%", 1), ("5%", 0), ("100%", 0), ("0%", 1)]
)
def test_a_number_or_a_share_of_the_clips_may_fail(vidspec, tolerate, code):
    command = ("caption", "k", "--format", "jsonl", "-o", "out.jsonl", "--tolerate", tolerate)
    for _ in range(2):  # a failure of an earlier run counts the same
        ran = vidspec(*command)
        assert ran.code == code and (f"note: 1 failed, not more than --tolerate {tolerate} allows" in ran.err) == (
            not code
        )


@pytest.mark.parametrize("clip", ["lost", "stop"])
def test_a_lost_device_and_an_interrupted_run_are_not_tolerated(vidspec, clip):
    Path(f"k/{clip}.mp4").write_bytes(b"x")
    assert vidspec("caption", "k", "-o", "out.jsonl", "--tolerate", "100%").code == {"lost": 3, "stop": 130}[clip]


def test_a_run_that_stops_early_is_not_tolerated(vidspec):
    Path("k/18/bug.mp4").write_bytes(b"x")
    more = ("--batch", "1", "--max-failures", "1", "--tolerate", "5")
    Path("k/a").mkdir()
    Path("k/missing.mp4").rename("k/0/missing.mp4")
    ran = vidspec("caption", "k", "-o", "out.jsonl", *more)
    assert ran.code == 1 and "as many as --max-failures allows" in ran.err


@pytest.mark.parametrize("text", ["101%", "-1", "many", "", "1.5", "%", "٣"])
def test_what_is_no_tolerance(vidspec, text):
    ran = vidspec("caption", "k", f"--tolerate={text}")
    assert ran.code == 2 and f"--tolerate {text}: must be a number of clips or a share" in ran.err
    assert vidspec("caption", "k", "--tolerate", "1", "--fail-fast").code == 2
