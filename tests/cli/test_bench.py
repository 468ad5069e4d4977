import pytest

# Before the captioner gives way to one without models.
import vidspec.bench.measure  # noqa: F401
from tests.cli.terminals import Terminal


def test_help(vidspec):
    ran = vidspec("bench", "--help")
    assert ran.code == 0 and "Usage: vidspec bench" in ran.out


def test_what_is_asked_is_measured(vidspec, monkeypatch):
    asked = []

    def measure(bench, say):
        from vidspec.errors import UsageError

        asked.append(bench)
        raise UsageError("enough")

    monkeypatch.setattr("vidspec.bench.measure.measure", measure)
    for args in ((), ("--repeats", "2"), ("clip.mp4", "--pair", "embedded-qwen")):
        assert vidspec("bench", *args).err == "error: enough\n"
    assert [one.repeats for one in asked] == [3, 2, 3]
    assert asked[0].profiles == ["ar", "vanilla-sd", "sd-rand-chain", "sd-uniform-chain", "sd-attention-chain"]
    assert str(asked[2].clips[0]) == "clip.mp4" and asked[2].source.pair == "embedded-qwen"


@pytest.fixture
def measured(monkeypatch):
    """Benches that were asked for; each gives two rows."""
    from vidspec.bench.measure import BenchResult
    from vidspec.bench.rows import BenchRow

    ones = (1.0, 1.0, 1.0)
    rows = [BenchRow(name, 1, 1, None, None, None, 1.0, ones, ones, ones) for name in ("ar", "x")]
    asked = []

    def measure(bench, say):
        asked.append(bench)
        return BenchResult(rows, "the table", {}, {}, {"x_y": "no head"})

    monkeypatch.setattr("vidspec.bench.measure.measure", measure)
    return asked


def test_keys_of_all_profiles(vidspec, measured):
    args = (
        "--frames",
        "8",
        "--max-new-tokens",
        "16",
        "--seed",
        "3",
        "--prompt",
        "What moves?",
        "--set",
        "draft.gamma=4",
    )
    assert vidspec("bench", *args).code == 0
    assert measured[0].overrides == {
        "video.frames": 8,
        "generate.max_new_tokens": 16,
        "generate.seed": 3,
        "generate.prompt": "What moves?",
        "draft.gamma": "4",
    }
    assert vidspec("bench").code == 0 and measured[1].overrides == {}


@pytest.mark.parametrize(
    "args, complaint",
    [
        (("--repeats", "0"), "--repeats"),
        (("--frames", "0"), "--frames"),
        (("--set", "video.frames"), "--set video.frames: must be KEY=VALUE"),
        (("--frames", "2", "--set", "video.frames=3"), "video.frames is set twice"),
        (("--set", "models.pair=embedded"), "--set models.pair: all profiles share the models"),
        (("--profiles", "ar+models.pair=embedded"), "ar+models.pair=embedded: all profiles share the models"),
        (("--dtype", "float99"), "--dtype: must be 'auto', 'float32', 'bfloat16' or 'float16', not 'float99'"),
        (("--overwrite",), "--overwrite needs --json"),
        (("--prompt", " "), "--prompt: is empty"),
        (("--prompt", "a", "--turn", "b"), "--prompt and --turn exclude each other"),
        (("no.mp4",), "no.mp4: there is no such file"),
        ((".",), ".: is no file"),
        (("--profiles", ","), "--profiles names no profile"),
        (("--profiles", ""), "--profiles names no profile"),
        (("--profiles", "ar,fly+theta"), "fly+theta: theta is not KEY=VALUE"),
        (("--draft", "x"), "--target: is needed with --draft"),
        (
            ("--target", "x", "--pair", "embedded"),
            "--pair: excludes --target and --draft; nearest valid choice: --pair embedded alone",
        ),
    ],
)
def test_bad_input_ends_in_one_line(vidspec, args, complaint, monkeypatch):
    ran = vidspec("bench", *args)
    assert ran.code in (1, 2, 3) and ran.out == ""
    assert ran.err.startswith("error: ") and complaint in ran.err and ran.err.count("\n") == 1


def test_a_terminal_gets_an_aligned_table_and_a_pipe_markdown(vidspec, monkeypatch):
    from vidspec.bench.measure import BenchResult

    text = "| method | tau |\n|---|---|\n| ar | 1.0 |\n| sd\\|x-chain | 12.5 (1-20) |\n\n- a note"
    monkeypatch.setattr("vidspec.bench.measure.measure", lambda bench, say: BenchResult([], text, {}, {}, {}))
    assert vidspec("bench").out.startswith(text + "\n")
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    assert vidspec("bench").code == 0
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[:3] == ["method      tau", "ar          1.0", "sd|x-chain  12.5 (1-20)"]
    assert lines[3:5] == ["", "- a note"]
