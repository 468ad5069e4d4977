import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from fake_captioner import TEXT, FakeCaptioner, FakeReader, events, record

from vidspec.batch import inputs
from vidspec.batch.schema import record_schema
from vidspec.decoding.events import Finished
from vidspec.errors import DeviceError, ModelError

ROOT = Path(__file__).resolve().parents[2]


def test_stdout_carries_the_caption_only(vidspec):
    ran = vidspec("caption", "good.mp4")
    assert (ran.code, ran.out) == (0, TEXT + "\n")
    assert "a library prints this" in ran.err
    assert "good.mp4: 5 tokens; 1.50 s; 4.0 tokens/s; tau 3.00; decode 2.00x est." in ran.err


def test_several_clips_are_named(vidspec):
    ran = vidspec("caption", "good.mp4", "missing.mp4", "b/good.mp4")
    line = "A red circle moves left."
    assert ran.out == f"good.mp4\t{line}\nb/good.mp4\t{line}\n"
    assert ran.code == 1


def test_json_has_one_object_per_clip_failed_ones_included(vidspec):
    ran = vidspec("caption", "good.mp4", "missing.mp4", "bug.mp4", "--format", "json")
    assert ran.code == 1 and len(ran.records) == 3
    for one in ran.records:
        jsonschema.validate(one, record_schema())
    assert [one["caption"] for one in ran.records] == [TEXT, None, None]
    assert ran.records[1]["error"]["kind"] == "missing"


def test_a_failed_clip_is_one_line_without_traceback(vidspec):
    ran = vidspec("caption", "missing.mp4", "--quiet")
    assert (ran.code, ran.out) == (1, "")
    assert [line for line in ran.err.splitlines() if line != "a library prints this"] == [
        "error: missing.mp4: there is no such file (check the path)"
    ]


def test_debug_shows_tracebacks(vidspec, monkeypatch):
    assert "Traceback" in vidspec("caption", "missing.mp4", "--debug").err
    assert "Traceback" in vidspec("caption", "x", "-p", "nope", "--debug").err
    monkeypatch.setenv("VIDSPEC_DEBUG", "1")
    assert "Traceback" in vidspec("caption", "missing.mp4").err
    monkeypatch.setenv("VIDSPEC_DEBUG", "0")
    assert "Traceback" not in vidspec("caption", "missing.mp4").err


def test_a_bug_keeps_its_traceback_and_the_run_goes_on(vidspec):
    ran = vidspec("caption", "bug.mp4", "good.mp4")
    assert ran.code == 1 and "Traceback" in ran.err and "error: bug.mp4: TypeError: broken" in ran.err
    assert ran.out.startswith("good.mp4\t")


def test_a_bug_before_the_first_clip_escapes(vidspec, monkeypatch):
    monkeypatch.setattr(FakeCaptioner, "refuse", ValueError("bug"))
    with pytest.raises(ValueError, match="bug"):
        vidspec("caption", "good.mp4")


@pytest.mark.parametrize("error", [ModelError("no model x", hint="fetch it"), DeviceError("no device y")])
def test_missing_model_or_device(vidspec, monkeypatch, error):
    monkeypatch.setattr(FakeCaptioner, "refuse", error)
    ran = vidspec("caption", "good.mp4")
    assert (ran.code, ran.out, ran.err) == (3, "", f"error: {error}\n")


def test_device_lost_on_the_way(vidspec):
    ran = vidspec("caption", "good.mp4", "lost.mp4", "missing.mp4")
    assert ran.code == 3 and "error: lost.mp4: the device is gone" in ran.err


def test_interrupted_keeps_what_is_done(vidspec, tmp_path):
    ran = vidspec("caption", "good.mp4", "stop.mp4", "late/good.mp4", "--format", "json")
    assert ran.code == 130 and len(ran.records) == 1
    assert "interrupted: 1 of 3 clips were done" in ran.err
    assert FakeCaptioner.made[0].closed
    assert vidspec("caption", "good.mp4", "stop.mp4", "-o", "out.txt").code == 130
    assert Path("out.txt").read_text().startswith("good.mp4\t")


def test_interrupted_while_loading(vidspec, monkeypatch):
    monkeypatch.setattr(FakeCaptioner, "refuse", KeyboardInterrupt())
    ran = vidspec("caption", "good.mp4")
    assert ran.code == 130 and "interrupted: 0 of 1" in ran.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Missing argument 'PATH'."),
        (("x", "--foo"), "No such option: --foo"),
        (("x", "--frames", "many"), "Invalid value for '--frames'"),
        (("x", "--format", "xml"), "Invalid value for '--format'"),
        (("x", "--set", "foo"), "--set foo: must be KEY=VALUE, such as prune.alpha=0.8"),
        (("x", "--set", "video.frames=4", "--frames", "5"), "--set video.frames=4: video.frames is set twice"),
        (("x", "--set", "prune.alfa=1"), "prune.alfa: unknown key; did you mean prune.alpha?"),
        (("x", "-p", "vanila-sd"), "no profile is called 'vanila-sd'; did you mean vanilla-sd?"),
        (("x", "--frames", "4", "--fps", "1"), "video.fps: excludes video.frames"),
        (("x", "--pair", "embedded", "--target", "y"), "models.pair: excludes models.target and models.draft"),
        (("x", "--target", "y"), "models.draft: is needed with draft.kind model"),
        (("x", "--device", "gpu"), "models.device: must be auto, cpu, cuda, cuda:N or mps, not 'gpu'"),
        (("x", "--start", "-1"), "--start -1: must be zero or more seconds"),
        (("x", "--end", "nan"), "--end nan: must be zero or more seconds"),
        (("x", "--start", "3", "--end", "2"), "--end 2: must be after --start 3"),
        (("x", "-o", "no/out"), "--output no/out: there is no folder no"),
        (("x", "-o", "."), "--output .: is a folder"),
        (("x", "-o", "x"), "--output x: is one of the clips"),
        (("x", "--trace", "no/out"), "--trace no/out: there is no folder no"),
    ],
)
def test_usage_errors_are_one_line_before_any_model_is_loaded(vidspec, args, message):
    ran = vidspec("caption", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1
    assert not FakeCaptioner.made


def test_options_reach_the_profile(vidspec):
    args = (
        "--frames 8 --max-pixels 99 --decoder av --prompt hi --max-new-tokens 7 --temperature 0.5 --top-p 0.9 --seed 3"
    )
    more = "--device cpu --dtype float32 --attn sdpa --target big --draft small --set prune.alpha=0.5 -p sd-rand"
    assert vidspec("caption", "good.mp4", "--start", "1", "--end", "2", *args.split(), *more.split()).code == 0
    (made,) = FakeCaptioner.made
    assert made.calls == [("stream", "good.mp4", 1.0, 2.0)]
    profile = made.profile
    assert (profile.name, profile.prune.alpha) == ("sd-rand", 0.5)
    models = {
        "pair": None,
        "target": "big",
        "draft": "small",
        "dtype": "float32",
        "device": "cpu",
        "attention": "sdpa",
        "threads": None,
    }
    assert models.items() <= profile.models.model_dump().items()
    assert profile.video.model_dump() == {"frames": 8, "fps": None, "max_pixels": 99, "decoder": "av"}
    generate = {
        "max_new_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "prompt": "hi",
    }
    assert generate.items() <= profile.generate.model_dump().items()


def test_the_default_profile_and_its_variable(vidspec, monkeypatch):
    vidspec("caption", "good.mp4")
    monkeypatch.setenv("VIDSPEC_PROFILE", "ar")
    vidspec("caption", "good.mp4")
    vidspec("caption", "good.mp4", "-p", "sd-rand")
    assert [made.profile.name for made in FakeCaptioner.made] == ["vanilla-sd", "ar", "sd-rand"]


def test_embedded_models_are_named_once_even_if_quiet(vidspec):
    err = vidspec("caption", "good.mp4", "good.mp4", "--quiet").err
    assert err.count("the built-in models know only drawn shapes") == 1
    assert "--target llava-hf/llava-onevision-qwen2-7b-ov-hf" in err
    assert "drawn shapes" not in vidspec("caption", "missing.mp4").err, "nothing was captioned"
    assert "drawn shapes" not in vidspec("caption", "good.mp4", "--target", "a", "--draft", "b").err


def test_verify(vidspec):
    assert vidspec("caption", "good.mp4", "--verify").code == 0
    ran = vidspec("caption", "differs.mp4", "--verify", "--format", "json")
    assert ran.code == 1 and ran.records[0]["error"]["kind"] == "mismatch"
    assert "differs from plain decoding at token 3" in ran.err


def test_baseline(vidspec):
    ran = vidspec("caption", "good.mp4", "--baseline", "--format", "json")
    assert ran.records[0]["speed"]["baseline"]["decode"] == pytest.approx(3.0)
    assert "against plain decoding: decode 3.00x, first token 0.50x, end to end 2.00x" in ran.err
    assert "est." not in ran.err


def test_output_file(vidspec):
    Path("out.jsonl").write_text("old\n")
    ran = vidspec("caption", "good.mp4", "missing.mp4", "--format", "json", "-o", "out.jsonl")
    assert (ran.code, ran.out) == (1, "")
    assert [json.loads(line)["path"] for line in Path("out.jsonl").read_text().splitlines()] == [
        "good.mp4",
        "missing.mp4",
    ]
    assert Path("out.jsonl~").read_text() == "old\n" and "the earlier file is now" in ran.err


def test_trace(vidspec, monkeypatch):
    trace = {"traceEvents": [{"ph": "X", "name": "verify", "pid": 0, "tid": 0, "ts": 0, "dur": 1}]}
    monkeypatch.setattr(
        FakeCaptioner, "stream", lambda self, path, **_: iter([*events(path)[:-1], Finished(record(path, trace=trace))])
    )
    assert vidspec("caption", "a/good.mp4", "good.mp4", "--trace", "trace.json").code == 0
    written = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert [event["pid"] for event in written if event["ph"] == "X"] == [0, 1000]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("args", "term", "live"),
    [((), "xterm", True), (("--no-live",), "xterm", False), (("--quiet",), "xterm", False), ((), "dumb", False)],
)
def test_live_panel_only_where_it_belongs(capsys, monkeypatch, args, term, live):
    from vidspec.cli import main

    monkeypatch.setenv("TERM", term)
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["caption", "good.mp4", *args]) == 0
    assert ("draft sees 3/8" in err.getvalue()) == live
    assert capsys.readouterr().out == TEXT + "\n"


def test_no_panel_without_a_terminal(vidspec):
    assert "draft sees" not in vidspec("caption", "good.mp4").err


LEAVE_OUT = inputs.leave_out_missing
PIPED = """
import sys; sys.path.insert(0, {tests!r})
from types import ModuleType
from fake_captioner import FakeCaptioner, FakeReader
from vidspec import registry
from vidspec.batch import inputs, local
local.Reader, inputs.leave_out_missing = FakeReader, lambda found, named: None
registry.Registry.names = lambda self: ("none", "model", "sequential", "exact")
module = ModuleType("vidspec.captioner"); module.Captioner = FakeCaptioner
sys.modules["vidspec.captioner"] = module
from vidspec.cli import main
sys.exit(main(["caption", *map("{{}}/good.mp4".format, range(5000))]))
"""


def test_a_closed_pipe_is_quiet():
    code = PIPED.format(tests=str(ROOT / "tests"))
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "0/good.mp4\tA red circle moves left.\n"
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 1
    assert "Traceback" not in err and "BrokenPipe" not in err
    assert os.path.basename(err.splitlines()[-1])


def test_what_is_missing_is_an_error_before_models_are_loaded(vidspec, monkeypatch):
    """A clip, or a package that an option needs; nothing is recorded of either."""
    monkeypatch.setattr("vidspec.batch.inputs.leave_out_missing", LEAVE_OUT)
    Path("good.mp4").touch()
    ran = vidspec("caption", "good.mp4", "no.mp4", "-o", "out.jsonl")
    assert (ran.code, ran.err) == (2, "error: no.mp4: there is no such file (check the path)\n")
    assert "download it first" in vidspec("caption", "https://x.org/a.mp4").err
    monkeypatch.setattr("vidspec.cli.asked.find_spec", lambda name: None)
    for option, value in (("--segment", "scenes"), ("--decoder", "decord"), ("--engine", "ray")):
        ran = vidspec("caption", "good.mp4", option, value, "-o", "out.jsonl")
        assert ran.code == 2 and ran.err.startswith(f"error: {option} {value} needs ") and "pip install" in ran.err
    assert not FakeCaptioner.made and not Path("out.jsonl").exists()


def test_lists_go_on_without_what_is_missing(vidspec, monkeypatch):
    monkeypatch.setattr("vidspec.batch.inputs.leave_out_missing", LEAVE_OUT)
    Path("good.mp4").touch()
    Path("list.txt").write_text("no.mp4\ngood.mp4\n")
    ran = vidspec("caption", "--from-file", "list.txt", "--format", "jsonl")
    assert ran.code == 1 and [one["path"] for one in ran.records] == ["good.mp4"]
    assert ran.err.index("error: no.mp4: there is no such file") < ran.err.index("a library prints this")


def test_the_reader_starts_before_models_are_loaded(vidspec, monkeypatch):
    started = []
    monkeypatch.setattr(FakeReader, "start", lambda self: started.append(len(FakeCaptioner.made)))
    assert vidspec("caption", "good.mp4").code == 0 and started == [0]
