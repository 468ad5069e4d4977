import pytest

from research.suites.rows import suite


def test_help(command):
    ran = command("pareto", "--help")
    assert ran.code == 0 and "Usage: python -m research.pareto" in ran.out and "--only" in ran.out


@pytest.mark.parametrize(
    "args, expected",
    [
        ((), {"count": 200, "timed": 24, "repeats": 3, "only": None, "contenders": suite("pareto")}),
        (("--count", "5", "--timed", "2", "--only", "quality"), {"count": 5, "timed": 2, "only": "quality"}),
        (("--profiles", "ar,fly+accept.theta=0.1,draft"), {"contenders": ["ar", "fly+accept.theta=0.1", "draft"]}),
    ],
)
def test_what_is_asked(command, monkeypatch, args, expected):
    asked = []

    def measure(one, say):
        from vidspec.errors import UsageError

        asked.append(one)
        raise UsageError("enough")

    monkeypatch.setattr("research.pareto.run.measure", measure)
    assert command("pareto", *args).err == "error: enough\n"
    assert {key: getattr(asked[0], key) for key in expected} == expected


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("clip.mp4", "--clips-dir", "d"), "--clips-dir is for drawn clips"),
        (("--svg", "p.png"), "--svg p.png: the name must end in .svg"),
        (("--svg", "none/p.svg"), "--svg none/p.svg: there is no folder none"),
        (("--only", "speed"), "--only"),
        (("--timed", "0"), "--timed"),
        (("--profiles", "ar,ar"), "--profiles names ar twice"),
    ],
)
def test_bad_input_ends_in_one_line(command, args, complaint):
    ran = command("pareto", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1


def test_without_matplotlib_it_says_so_first(command, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "--svg: matplotlib is not installed" in command("pareto", "--svg", "p.svg").err
