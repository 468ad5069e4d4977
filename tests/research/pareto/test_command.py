import pytest

# Before the captioner gives way to one without models.
import vidspec.papers.pareto_run  # noqa: F401
from vidspec.papers.suites import suite


def test_help(vidspec):
    ran = vidspec("bench", "pareto", "--help")
    assert ran.code == 0 and "Usage: vidspec bench pareto" in ran.out and "--only" in ran.out


@pytest.mark.parametrize(
    "args, expected",
    [
        ((), {"count": 200, "timed": 24, "repeats": 3, "only": None, "contenders": suite("pareto")}),
        (("--count", "5", "--timed", "2", "--only", "quality"), {"count": 5, "timed": 2, "only": "quality"}),
        (("--profiles", "ar,fly+accept.theta=0.1,draft"), {"contenders": ["ar", "fly+accept.theta=0.1", "draft"]}),
    ],
)
def test_what_is_asked(vidspec, monkeypatch, args, expected):
    asked = []

    def measure(one, say):
        from vidspec.errors import UsageError

        asked.append(one)
        raise UsageError("enough")

    monkeypatch.setattr("vidspec.papers.pareto_run.measure", measure)
    assert vidspec("bench", "pareto", *args).err == "error: enough\n"
    assert {key: getattr(asked[0], key) for key in expected} == expected


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("--from", "no.json"), "no.json: cannot be read"),
        (("--from", "r.json", "--only", "times"), "--from runs nothing"),
        (("--from", "r.json", "clip.mp4"), "--from runs nothing"),
        (("clip.mp4", "--clips-dir", "d"), "--clips-dir is for drawn clips"),
        (("--svg", "p.png"), "--svg p.png: the name must end in .svg"),
        (("--png", "none/p.png"), "--png none/p.png: there is no such folder"),
        (("--only", "speed"), "--only"),
        (("--timed", "0"), "--timed"),
        (("--profiles", "ar,ar"), "--profiles names ar twice"),
    ],
)
def test_bad_input_ends_in_one_line(vidspec, args, complaint):
    ran = vidspec("bench", "pareto", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1


def test_without_matplotlib_it_says_so_first(vidspec, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "--svg: matplotlib is not installed" in vidspec("bench", "pareto", "--svg", "p.svg").err
