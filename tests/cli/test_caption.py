import gc
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from research.world.captions import PROMPTS
from tests.cli.terminals import Terminal
from tests.fake_captioner import IDS, PARTS, TEXT, FakeCaptioner, FakeReader, events, record
from vidspec import video
from vidspec.cli.printed import print_note
from vidspec.cli.report import print_failure, summary
from vidspec.cli.start import REAL
from vidspec.cli.terminal import OutcomeLines
from vidspec.config.prompts import STYLES
from vidspec.draft_length.costs import PassCosts
from vidspec.embedded.prompts import NOTICE as WARNING
from vidspec.errors import DeviceError, ModelError, VideoError
from vidspec.events.events import Finished, Restarted
from vidspec.events.observer import ClipPart
from vidspec.events.record import failed_caption
from vidspec.events.tally import Tally
from vidspec.runs import inputs
from vidspec.runs.schema import record_schema

NOTICE = f"note: {WARNING}, such as:"

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = str(ROOT / "vidspec/embedded/pair/target")


def test_stdout_carries_the_caption_only(vidspec):
    ran = vidspec("caption", "good.mp4")
    assert (ran.code, ran.out) == (0, TEXT + "\n")
    assert "a library prints this" in ran.err
    assert (
        "good.mp4: 5 tokens; 1.50 s; 4.0 tokens/s; 3.0 accepted tokens per pass; estimated 2.0x plain decoding"
        in ran.err
    )


def test_clips_that_share_passes_have_no_time_and_no_speed_of_their_own(capsys):
    """Three clips, of which the first is done before the others begin."""
    lines = OutcomeLines(several=True, quiet=False, debug=False)
    tally = Tally(3)
    for number, begun in enumerate([(0,), (1, 2), ()]):
        for one in begun:
            lines.begin(one, f"{one}.mp4", 3)
        lines.result(record(f"{number}.mp4"), None, ClipPart(), tally)
        lines.end(number, record(f"{number}.mp4"))
    alone, *shared = capsys.readouterr().err.splitlines()
    assert "1.50 s; 4.0 tokens/s; 3.0 accepted" in alone
    assert len(shared) == 2 and all("5 tokens; 3.0 accepted tokens per pass" in one for one in shared)


def test_several_clips_are_named(vidspec):
    ran = vidspec("caption", "good.mp4", "missing.mp4", "b/good.mp4", "--batch", "1")
    line = "A red circle moves left."
    assert ran.out == f"good.mp4\t{line}\nb/good.mp4\t{line}\n"
    assert ran.code == 1


def test_json_has_one_object_per_clip_failed_ones_included(vidspec):
    ran = vidspec("caption", "good.mp4", "missing.mp4", "bug.mp4", "--format", "json", "--batch", "1")
    assert ran.code == 1 and len(ran.records) == 3
    for one in ran.records:
        jsonschema.validate(one, record_schema())
    assert [one["caption"] for one in ran.records] == [TEXT, None, None]
    assert ran.records[1]["error"]["kind"] == "missing"


@pytest.mark.sample(quick=8)
@pytest.mark.parametrize("named", ["flag", "set", "variable", "config", "profile", "nobody"])
@pytest.mark.parametrize("form", ["text", "txt", "srt", "webdataset-txt"])
def test_text_of_built_in_models_that_nobody_named_is_marked(vidspec, monkeypatch, tmp_path, named, form):
    monkeypatch.setattr("tests.fake_captioner.record", partial(record, demo=True))
    more = {"flag": ("--pair", "embedded"), "set": ("--set", "models.pair=embedded")}.get(named, ())
    if named == "variable":
        monkeypatch.setenv("VIDSPEC_MODELS__PAIR", "embedded")
    if named == "config":
        config = tmp_path / "config" / "vidspec" / "config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text("models: {pair: embedded}\n")
    if named == "profile":
        Path("mine.yaml").write_text("base: vanilla-sd\nmodels: {pair: embedded}\n")
        more = ("--profile", "./mine.yaml")
    file = Path("out." + ("srt" if form == "srt" else "txt"))
    command = ("caption", "good.mp4", "--format", f"jsonl,{form}", "-o", "out", *more)
    assert vidspec(*command).code == 0
    said = " ".join(file.read_text().split())
    assert "A red circle moves left." in said and ("[demo] A red circle" in said) == (named == "nobody")
    kept = json.loads(Path("out.jsonl").read_text())
    assert kept["demo"] is True and kept["caption"] == TEXT
    again = vidspec(*command)
    assert again.code == 0 and "1 of 1 clip done before" in again.err
    assert " ".join(file.read_text().split()) == said


def test_a_marked_file_beside_a_clip_is_recognised(vidspec, monkeypatch):
    monkeypatch.setattr("tests.fake_captioner.record", partial(record, demo=True))
    Path("good.mp4").touch()
    assert vidspec("caption", "good.mp4", "--format", "txt,srt").code == 0
    texts = Path("good.txt").read_text(), Path("good.srt").read_text()
    assert texts[0] == f"[demo] {' '.join(TEXT.split())}\n" and texts[1].count("[demo]") == 1
    made = len(FakeCaptioner.made)
    again = vidspec("caption", "good.mp4", "--format", "txt,srt")
    assert again.code == 0 and "1 of 1 clip done before" in again.err and len(FakeCaptioner.made) == made
    assert (Path("good.txt").read_text(), Path("good.srt").read_text()) == texts and not Path("good.txt~").exists()


def test_the_mark_is_on_stdout_and_not_in_json(vidspec, monkeypatch):
    monkeypatch.setattr("tests.fake_captioner.record", partial(record, demo=True))
    assert vidspec("caption", "good.mp4").out == f"[demo] {TEXT}\n"
    assert vidspec("caption", "good.mp4", "--pair", "embedded").out == f"{TEXT}\n"
    (one,) = vidspec("caption", "good.mp4", "--format", "json").records
    assert (one["caption"], one["demo"]) == (TEXT, True)


@pytest.mark.parametrize("name", ["clip.mp4", "./clip.mp4", "a/../clip.mp4", "two  blanks.mp4"])
@pytest.mark.parametrize("content", ["", "text " * 99, "....moov"])
def test_an_error_names_its_file_once_and_as_it_was_named(capsys, name, content):
    Path("a").mkdir()
    Path(name).write_text(content)
    with pytest.raises(VideoError) as caught:
        video.read(name)
    print_failure(failed_caption(name, caught.value), caught.value, debug=False)
    said = capsys.readouterr().err
    assert said.startswith(f"error: {' '.join(name.split())}: ") and said.count(".mp4") == 1


def test_an_error_that_names_no_file_gets_its_own(capsys):
    error = VideoError("out/clip.mp4.txt: cannot be written")
    print_failure(failed_caption("clip.mp4", error), error, debug=False)
    assert capsys.readouterr().err == "error: clip.mp4: out/clip.mp4.txt: cannot be written\n"


def test_a_failed_clip_is_one_line_without_traceback(vidspec):
    ran = vidspec("caption", "missing.mp4", "--quiet")
    assert (ran.code, ran.out) == (1, "")
    told = [line for line in ran.err.splitlines() if line != "a library prints this"]
    assert told == ["error: missing.mp4: there is no such file (check the path)"]


def test_quiet_prints_failures_only(vidspec, monkeypatch):
    monkeypatch.setitem(PARTS, "drafter", SimpleNamespace(note="the draft is slow here"))
    args = ("good.mp4", "b/good.mp4", "--prompt", "Who wins?", "--overwrite")
    ran = vidspec("caption", *args, "-o", "o.jsonl", "--quiet")
    assert [line for line in ran.err.splitlines() if line != "a library prints this"] == [] and ran.code == 0
    assert vidspec("caption", *args, "-o", "o.jsonl").err.count("note: ") >= 3


@pytest.mark.parametrize("device", [("--device", "cuda"), ("--set", "models.device=cuda:7")])
def test_a_device_that_is_not_there_is_refused_before_anything_slow(vidspec, monkeypatch, device):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("vidspec.runs.inputs.collect_inputs", lambda spec, links: pytest.fail("clips were looked for"))
    ran = vidspec("caption", "good.mp4", *device)
    assert (ran.code, ran.out) == (3, "") and not FakeCaptioner.made
    assert ran.err.startswith("error: device cuda") and "this machine has 0 CUDA devices" in ran.err


@pytest.mark.parametrize(
    ("options", "both"),
    [
        (("-o", "t.json", "--trace", "t.json"), ("--trace t.json", "--output t.json")),
        (("-o", "t.json", "--trace", "./d/../t.json"), ("--trace d/../t.json", "--output t.json")),
        (("-o", "t.html", "--format", "txt", "--report", "t.html"), ("--report t.html", "--output t.html")),
        (("--trace", "t.html", "--report", "t.html"), ("--report t.html", "--trace t.html")),
        (("--format", "txt", "--trace", "good.txt"), ("--trace good.txt", "the file of a clip good.txt")),
        (
            ("-o", "t.csv", "--trace", ".t.csv.vidspec.jsonl"),
            ("--trace .t.csv.vidspec.jsonl", "the journal of the output"),
        ),
        (("--manifest", "m.csv", "-o", "m.csv"), ("--output m.csv", "--manifest m.csv")),
        (("--prompt-file", "p.txt", "-o", "p.txt"), ("--output p.txt", "--prompt-file p.txt")),
        (("-p", "p.yaml", "-o", "p.yaml", "--format", "csv"), ("--output p.yaml", "--profile p.yaml")),
        (("--from-file", "l.txt", "-o", "link.txt"), ("--output link.txt", "--from-file l.txt")),
    ],
)
def test_options_that_name_one_file_are_refused(vidspec, options, both):
    files = {"m.csv": "path\ngood.mp4\n", "p.txt": "What?", "p.yaml": "base: ar\n", "l.txt": "good.mp4\n"}
    for name, content in files.items():
        Path(name).write_text(content)
    os.mkdir("d")
    os.symlink("l.txt", "link.txt")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    ran = vidspec("caption", "good.mp4", *options)
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1, ran.err
    first, second = both
    assert ran.err.startswith(f"error: {first}") and f"is the same file as {second}" in ran.err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


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
    monkeypatch.setattr(FakeCaptioner, "load_error", ValueError("bug"))
    with pytest.raises(ValueError, match="bug"):
        vidspec("caption", "good.mp4")


@pytest.mark.parametrize("error", [ModelError("no model x", hint="fetch it"), DeviceError("no device y")])
def test_missing_model_or_device(vidspec, monkeypatch, error):
    monkeypatch.setattr(FakeCaptioner, "load_error", error)
    ran = vidspec("caption", "good.mp4")
    assert (ran.code, ran.out) == (3, "")
    told = [NOTICE, f"  vidspec caption good.mp4 {REAL}", "loading the built-in models (embedded)"]
    assert ran.err.splitlines() == [*told, f"error: {error}"]


def test_device_lost_on_the_way(vidspec):
    ran = vidspec("caption", "good.mp4", "lost.mp4", "missing.mp4")
    assert ran.code == 3 and "error: lost.mp4: the device is gone" in ran.err


def test_interrupted_keeps_what_is_done(vidspec, tmp_path):
    ran = vidspec("caption", "good.mp4", "stop.mp4", "late/good.mp4", "--format", "json", "--batch", "1")
    assert ran.code == 130 and len(ran.records) == 1
    assert "interrupted: 1 of 3 clips done" in ran.err
    assert FakeCaptioner.made[0].closed
    assert vidspec("caption", "good.mp4", "stop.mp4", "-o", "out.txt", "--batch", "1").code == 130
    assert Path("out.txt").read_text().startswith("good.mp4\t")


def test_interrupted_while_loading(vidspec, monkeypatch):
    monkeypatch.setattr(FakeCaptioner, "load_error", KeyboardInterrupt())
    ran = vidspec("caption", "good.mp4")
    assert ran.code == 130 and "interrupted: 0 of 1" in ran.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Missing argument 'PATH'."),
        (("x", "--foo"), "No such option: --foo"),
        (("x", "--frames", "many"), "Invalid value for '--frames'"),
        (("x", "--format", "xml"), "--format xml: must be one of "),
        (("x", "--format", "jsonl,"), "--format jsonl,: must be one of "),
        (
            ("x", "--format", "json,csv"),
            "--format json,csv: standard output takes one format (name one with --output FILE or",
        ),
        (
            ("x", "--format", "txt,webdataset-txt"),
            "--format txt,webdataset-txt: two formats would share the file x.txt",
        ),
        (("x", "--format", "text,txt", "-o", "y"), "--format text,txt: two formats would share the file y.txt"),
        (("x", "y", "--format", "jsonl,srt", "-o", "z"), "--format srt: several clips need a file each"),
        (("x", "--set", "foo"), "--set foo: must be KEY=VALUE, such as draft.gamma=4"),
        (("x", "--set", "video.frames=4", "--frames", "5"), "--set video.frames=4: video.frames is set twice"),
        (("x", "--set", "prune.alfa=1"), "prune.alfa: unknown key; did you mean prune.alpha?"),
        (("x", "-p", "vanila-sd"), "no profile is called 'vanila-sd'; did you mean vanilla-sd?"),
        (("x", "--frames", "4", "--fps", "1"), "--fps: excludes --frames"),
        (("x", "--pair", "embedded", "--target", "y"), "--pair: excludes --target and --draft"),
        (("x", "--target", "y", "-p", "specvlm"), "--draft: is needed, since this profile drafts with a smaller model"),
        (("x", "--device", "gpu"), "--device: must be auto, cpu, cuda, cuda:N, xpu, xpu:N or mps, not 'gpu'"),
        (("x", "--start", "-1"), "--start '-1': must be seconds or [hh:]mm:ss, from 0"),
        (("x", "--end", "nan"), "--end 'nan': must be seconds or [hh:]mm:ss, from 0"),
        (("x", "--start", "3", "--end", "2"), "--end 2: must be after --start 3"),
        (("x", "--start", "1:30", "--end", "1:30"), "--end 90: must be after --start 90"),
        (("x", "--start", "1:2:3:4"), "--start '1:2:3:4': must be seconds or [hh:]mm:ss, from 0"),
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
        "--frames 8 --max-pixels 99 --decoder av --seek keyframes --allow-damaged --no-audio "
        "--prompt hi --max-new-tokens 7 --temperature 0.5 --top-p 0.9 --seed 3"
    )
    more = "--device cpu --dtype float32 --target big --draft small -p sd-rand"
    more += " --set models.decoder=stock --set prune.alpha=0.5"
    assert vidspec("caption", "good.mp4", "--start", "1", "--end", "2", *args.split(), *more.split()).code == 0
    (made,) = FakeCaptioner.made
    assert made.calls == [("stream", "good.mp4", 1.0, 2.0)]
    profile = made.client.profile
    assert (profile.name, profile.prune.alpha) == ("sd-rand", 0.5)
    models = {
        "pair": None,
        "target": "big",
        "draft": "small",
        "dtype": "float32",
        "device": "cpu",
        "decoder": "stock",
        "threads": None,
    }
    assert models.items() <= profile.models.model_dump().items()
    assert profile.video.model_dump() == {
        "frames": 8,
        "fps": None,
        "max_pixels": 99,
        "decoder": "av",
        "seek": "keyframes",
        "allow_damaged": True,
        "audio": False,
        "stall": 60.0,
    }
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
    assert [made.client.profile.name for made in FakeCaptioner.made] == ["sparrow", "ar", "sd-rand"]


@pytest.mark.parametrize("options", [(), ("--pair", "embedded-qwen"), ("--target", SHIPPED, "--draft", "b")])
def test_the_built_in_models_are_told_before_they_caption(vidspec, options):
    told = vidspec("caption", "good.mp4", "b/good.mp4", *options).err.splitlines()
    assert told.count(NOTICE) == 1 and told.index(NOTICE) < told.index("a library prints this")
    assert told[told.index(NOTICE) + 1] == f"  vidspec caption good.mp4 {REAL}"


def test_other_models_are_not_the_built_in_ones(vidspec):
    assert "built-in" not in vidspec("caption", "good.mp4", "--target", "a", "--draft", "b", "--style", "brief").err


def prompt_note(err):
    return [line for line in err.splitlines() if "not trained for the prompt" in line]


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        (("--style", "brief"), STYLES["brief"]),
        (("--prompt", "Who wins?"), "Who wins?"),
        (("--segment", "30s", "--context"), f"{PROMPTS[0]} This is a later part"),
        (("--system", "You are a poet."), "You are a poet."),
    ],
)
def test_prompts_that_the_built_in_models_were_not_trained_for(vidspec, prompt):
    told = vidspec("caption", "good.mp4").err
    assert len(prompt_note(told)) == 1 and repr(prompt)[:-1] in prompt_note(told)[0]
    assert told.index("not trained for") < told.index("a library prints this")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_that_they_were_trained_for(vidspec, prompt):
    assert not prompt_note(vidspec("caption", "good.mp4", "--prompt", prompt).err)


def test_prompts_of_a_manifest(vidspec):
    Path("jobs.csv").write_text(f"path,prompt\ngood.mp4,{PROMPTS[1]}\nb/good.mp4,Why?\nc/good.mp4,How?\n")
    (told,) = prompt_note(vidspec("caption", "jobs.csv").err)
    assert "'How?' (and 1 more)" in told


def test_what_is_loaded_is_told_before_it_is(vidspec, monkeypatch):
    """And what has to be fetched for it; a second time nothing, for nothing is to be done."""
    monkeypatch.setattr("vidspec.models.hub.is_cached", lambda name: name == "org/draft")
    args = ("caption", "good.mp4", "--target", "org/target", "--draft", "org/draft", "-o", "out.txt")
    told = vidspec(*args).err.splitlines()
    assert told[0] == "loading org/target and org/draft"
    assert told[1] == "fetching org/target from the hub"
    assert "loading" not in vidspec(*args).err
    assert "loading" not in vidspec(*args, "--overwrite", "--quiet").err
    assert vidspec("caption", "good.mp4", "--target", "a", "-p", "ar").err.startswith("loading a\n")


def test_a_hub_that_does_not_answer_ends_the_run_before_models_are_loaded(vidspec, monkeypatch):
    monkeypatch.setattr("vidspec.models.hub.unreachable_reason", lambda: "no route")
    ran = vidspec("caption", "good.mp4", "--target", "a", "--draft", "b")
    hint = "`vidspec models get NAME` fetches a model where there is a network"
    said = "loading a and b\nerror: the hub cannot be reached (no route), and the cache "
    assert ran.code == 3 and ran.err.startswith(said) and ran.err.endswith(f" lacks a and b ({hint})\n")
    assert FakeCaptioner.made == []


@pytest.mark.full
def test_it_is_told_before_torch_is_imported(tmp_path):
    """Importing torch takes longer than anybody should look at nothing."""
    program = (
        "import sys; from vidspec.cli import start\n"
        "real = start.announce\n"
        "def announce(*args, **here):\n"
        "    real(*args, **here)\n"
        "    print('LOADED', [name for name in ('torch', 'transformers') if name in sys.modules])\n"
        "    raise KeyboardInterrupt\n"
        "start.announce = announce\n"
        "from vidspec.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    clip = ROOT / "vidspec/embedded/clips/one-object.mp4"
    command = [sys.executable, "-c", program, "caption", str(clip)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert ran.returncode == 130 and "loading the built-in models" in ran.stderr and "LOADED []" in ran.stderr


def test_loading_looks_for_no_garbage(vidspec, monkeypatch):
    seen = []
    real = FakeCaptioner.from_profile.__func__
    monkeypatch.setattr(
        FakeCaptioner,
        "from_profile",
        classmethod(lambda cls, profile: seen.append(gc.isenabled()) or real(cls, profile)),
    )
    vidspec("caption", "good.mp4")
    assert seen == [False] and gc.isenabled()


def test_verify(vidspec):
    ran = vidspec("caption", "good.mp4", "--verify", "--format", "json")
    assert ran.code == 0 and "verified: plain decoding's tokens; against plain decoding: decode" in ran.err
    assert ran.records[0]["verified"] is True and ran.records[0]["speed"]["baseline"]["end_to_end"] == 2.0
    assert "verified" not in vidspec("caption", "good.mp4").err
    several = vidspec("caption", "good.mp4", "other.mp4", "--verify").err
    assert several.count("verified: plain decoding's tokens") == 2 and "against plain decoding" not in several
    ran = vidspec("caption", "differs.mp4", "--verify", "--format", "json")
    assert ran.code == 1 and ran.records[0]["error"]["kind"] == "mismatch"
    assert "differs from plain decoding at token 3" in ran.err


HOT = ("--temperature", "0.7")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--profile", "vanilla-sd", *HOT), 2),
        (("--profile", "sd-attention-chain", *HOT), 2),
        (("--profile", "vanilla-sd", "--set", "draft.gamma=auto", *HOT), 0),
        (("--profile", "sd-tree", *HOT), 0),
        (("--profile", "ar", *HOT), 0),
        (("--profile", "vanilla-sd"), 0),
    ],
)
def test_verify_where_drawn_tokens_need_not_be_the_same(vidspec, args, code):
    """Refused before anything is looked at where a correct caption would fail, allowed where it cannot."""
    ran = vidspec("caption", "good.mp4", "--verify", *args)
    assert ran.code == code
    if code:
        assert "with temperature 0.7 are plain decoding's in distribution only" in ran.err and not FakeCaptioner.made
        assert vidspec("caption", "good.mp4", *args).code == 0


@pytest.mark.parametrize("quiet", [False, True])
def test_a_clip_that_is_done_again_is_said(vidspec, monkeypatch, quiet):
    def stream(self, path, **asked):
        opened, *rest = events(path)
        yield from (opened, *rest[:-1], Restarted("the draft worker failed: exit code -9"), *rest)

    monkeypatch.setattr(FakeCaptioner, "stream", stream)
    ran = vidspec("caption", "good.mp4", *["--quiet"] * quiet)
    assert (ran.code, ran.out) == (0, TEXT + "\n")
    said = "note: good.mp4: the draft worker failed: exit code -9; the clip is captioned again" in ran.err
    assert said != quiet


def test_baseline(vidspec, monkeypatch):
    monkeypatch.setattr("tests.fake_captioner.IDS", list(range(17)))
    ran = vidspec("caption", "good.mp4", "--baseline", "--format", "json")
    assert ran.records[0]["speed"]["baseline"]["decode"] == pytest.approx(3.0)
    assert "against plain decoding: decode 3.00x, end to end 2.00x, first token 0.50x" in ran.err
    assert "estimated" not in ran.err


def test_the_baseline_of_a_short_text_has_no_figure(vidspec):
    ran = vidspec("caption", "good.mp4", "--baseline", "--format", "json")
    assert ran.records[0]["speed"]["baseline"]["decode"] is None
    assert "against plain decoding: decode too short to measure, end to end 2.00x, first token 0.50x" in ran.err


def test_the_terms_of_the_field_are_for_verbose_runs(vidspec):
    said = vidspec("caption", "good.mp4").err
    assert "3.0 accepted tokens per pass" in said and "estimated 2.0x plain decoding" in said
    assert "tau" not in said and "est." not in said
    told = vidspec("caption", "good.mp4", "-v").err
    assert "tau 3.00" in told and "decode 2.00x est." in told


def test_a_speed_up_of_a_text_of_another_length_says_at_which_it_is():
    baseline = {"timings": {}, "tokens_per_s": 1.0, "time_to_first_token": 0.5, "decode": 3.0, "end_to_end": 2.0}
    for tokens, said in ((len(IDS), "end to end 2.00x"), (40, "end to end (of 40 tokens) 2.00x")):
        one = record(speed={"tokens_per_s": 4.0, "baseline": {**baseline, "tokens": tokens, "end_to_end_raw": 2.5}})
        assert summary(one).endswith(f"decode 3.00x, {said}, first token 0.50x")


def test_video_that_is_shown_otherwise_than_stored_is_noted():
    plain = record()
    told = record(video={**plain.video, "transfer": "pq", "pixel_aspect": 1.422222})
    assert "HDR (pq), not tone-mapped; pixels 1.42 times as wide as high, shown as squares" in summary(told)
    assert "HDR" not in summary(plain) and "pixels" not in summary(plain)


def test_output_file(vidspec):
    Path("out.jsonl").write_text("old\n")
    args = ("caption", "good.mp4", "missing.mp4", "--format", "json", "-o", "out.jsonl")
    refused = vidspec(*args)
    assert refused.code == 2 and Path("out.jsonl").read_text() == "old\n" and "--overwrite replaces it" in refused.err
    ran = vidspec(*args, "--overwrite")
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
    assert ("the draft sees 38%" in err.getvalue()) == live
    assert capsys.readouterr().out == TEXT + "\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_is_told_what_is_waited_for(vidspec, monkeypatch, quiet):
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    assert vidspec("caption", "good.mp4", *["--quiet"] * quiet).code == 0
    stages = ["loading weights ...", "reading frames ...", "vision and prefill ..."]
    at = [err.getvalue().find(stage) for stage in stages]
    assert at == [-1] * 3 if quiet else -1 < at[0] < at[1], err.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_terminal_lines_say_what_is_waited_for(vidspec, monkeypatch, quiet):
    made, read, told = FakeCaptioner.from_profile, FakeReader.read, threading.Event()
    monkeypatch.setattr("vidspec.cli.start.EVERY", 0.01)
    monkeypatch.setattr("vidspec.cli.start.print_note", lambda line: print_note(line) or told.set())
    for owner, name, function in ((FakeCaptioner, "from_profile", made), (FakeReader, "read", read)):

        def late(*args, _function=function, **more):
            told.clear()
            told.wait(0.3 if quiet else 60)
            return _function(*args, **more)

        monkeypatch.setattr(owner, name, late)
    lines = vidspec("caption", "good.mp4", *["--quiet"] * quiet).err.splitlines()
    assert any(re.match(r"loading weights, [\d.]+ s$", line) for line in lines) == (not quiet)
    assert ("reading frames" in lines) == (not quiet)
    assert not any(": decoding" in line for line in lines)


@pytest.mark.parametrize("live", [True, False])
def test_a_caption_on_a_terminal_is_broken_between_words(vidspec, monkeypatch, live):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "11")
    out, err = Terminal(), Terminal()
    for name, stream in (("stdout", out), ("__stdout__", out), ("stderr", err)):
        monkeypatch.setattr(sys, name, stream)
    assert vidspec("caption", "good.mp4", *["--no-live"] * (not live)).code == 0
    assert re.sub("\x1b\\[[0-9;]*m", "", out.getvalue()) == "A red\ncircle\nmoves left.\n"
    assert ("\x1b[32m" in out.getvalue()) == live, "accepted tokens stay green where the panel showed them so"
    assert live or "loading the\nbuilt-in\nmodels\n" in err.getvalue()
    assert f"  vidspec caption good.mp4 {REAL}\n" in err.getvalue(), "a command stays one line"


def test_lines_for_programs_are_not_broken(vidspec, monkeypatch):
    monkeypatch.setenv("COLUMNS", "11")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    assert vidspec("caption", "good.mp4", "--format", "jsonl").code == 0
    assert out.getvalue().count("\n") == 1 and json.loads(out.getvalue())["caption"] == TEXT


def test_no_panel_without_a_terminal(vidspec):
    said = vidspec("caption", "good.mp4").err
    assert "draft sees" not in said and "loading weights ..." not in said and "reading frames" not in said


LEAVE_OUT = inputs.drop_missing
PIPED = """
import sys; sys.path.insert(0, {root!r})
from types import ModuleType
from tests.fake_captioner import FakeCaptioner, FakeReader
from vidspec import registry
from vidspec.runs import inputs
from vidspec.runs.executors import local
local.ClipReader, inputs.drop_missing = FakeReader, lambda found, named: None
registry.Registry.names = lambda self: ("none", "model", "sequential", "exact", "text")
module = ModuleType("vidspec.captioner"); module.Captioner = FakeCaptioner
sys.modules["vidspec.captioner"] = module
from vidspec.cli import main
sys.exit(main(["caption", *map("{{}}/good.mp4".format, range(500))]))
"""


@pytest.mark.full
def test_a_closed_pipe_is_quiet():
    code = PIPED.format(root=str(ROOT))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pipesize=4096,  # the command cannot have written all captions before the pipe is closed
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "0/good.mp4\tA red circle moves left.\n"
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 4
    assert "Traceback" not in err and "BrokenPipe" not in err
    assert os.path.basename(err.splitlines()[-1])


def test_a_target_alone_takes_the_draft_of_vidspec_pairs(vidspec, tmp_path):
    target = "llava-hf/llava-onevision-qwen2-7b-ov-hf"
    ran = vidspec("caption", "good.mp4", "--target", target)
    draft = FakeCaptioner.made[-1].client.profile.models.draft
    assert ran.code == 0 and draft == "llava-hf/llava-onevision-qwen2-0.5b-ov-hf"
    assert f"note: the draft is {draft}, listed by `vidspec models` (--draft names another)" in ran.err
    assert "note: the draft" not in vidspec("caption", "good.mp4", "--target", target, "--draft", draft).err
    assert vidspec("caption", "good.mp4", "--target", target, "-p", "ar").code == 0
    assert FakeCaptioner.made[-1].client.profile.models.draft is None
    config = tmp_path / "config" / "vidspec" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("models: {draft: mine}\n")
    ran = vidspec("caption", "good.mp4", "--target", target)
    assert ran.code == 0 and "note: the draft" in ran.err, "a config's draft belongs to the config's target"


@pytest.mark.parametrize("target", ["llava-hf/llava-v1.6-mistral-7b-hf", "./own", "somebody/else", "name"])
def test_a_target_alone_without_a_listed_draft_drafts_from_earlier_captions(vidspec, target):
    """One listed with itself alone, a folder, and names that are not listed nor here; not if a method was chosen."""
    Path("own").mkdir()
    Path("own/config.json").write_text('{"model_type": "llava_onevision"}')
    ran = vidspec("caption", "good.mp4", "--target", target)
    profile = FakeCaptioner.made[-1].client.profile
    assert (ran.code, profile.name, profile.draft.kind, profile.models.target) == (0, "suffix", "suffix", target)
    assert f"note: no draft is listed for {target}, so it drafts from earlier captions" in ran.err
    assert "no draft is listed" not in vidspec("caption", "good.mp4", "--target", target, "--draft", "small").err
    assert FakeCaptioner.made[-1].client.profile.name == "vanilla-sd-auto"
    ran = vidspec("caption", "good.mp4", "--target", target, "--set", "draft.gamma=3")
    assert ran.code == 2 and "--draft: is needed" in ran.err


def test_completion_of_names():
    from vidspec.cli import options

    assert [name for name, _ in options.COMPLETIONS["pair"]("embedded-")] == ["embedded-qwen"]
    assert dict(options.target_names("Qwen/Qwen2.5-VL-7B"))["Qwen/Qwen2.5-VL-7B-Instruct"] == (
        "draft: Qwen/Qwen2.5-VL-3B-Instruct"
    )


def test_verbose_says_what_is_loaded_and_where_time_goes(vidspec):
    plain = vidspec("caption", "good.mp4")
    ran = vidspec("caption", "good.mp4", "-v")
    assert ran.code == 0 and ran.out == plain.out
    assert "loading the built-in models (embedded)" in ran.err and "profile sparrow, device auto" in ran.err
    assert "target: big (fake), float32 on cpu, fused blocks (a test)" in ran.err and "loaded in" in ran.err
    times = "time to first token 0.50 s, decode 1.00 s, end to end 1.50 s"
    assert f"  ended: eos; {times}" in ran.err and times not in plain.err
    both = vidspec("caption", "good.mp4", "-v", "--quiet")
    assert both.code == 2 and "--quiet and --verbose exclude each other" in both.err


def test_verbose_ends_with_the_measured_times_of_passes(vidspec, monkeypatch):
    costs = PassCosts()
    for _ in range(3):
        costs.add("draft", 1, 1, 0.0012, passes=5)
        costs.add("target", 1, 6, 0.01234)
    costs.add("target", 1, 1, 0.008)
    monkeypatch.setitem(PARTS, "costs", costs)
    table = [
        "pass   clips  rows median ms  passes",
        "target     1     1      8.00       1",
        "target     1     6     12.34       3",
        "draft      1     1      1.20       3",
    ]
    assert vidspec("caption", "good.mp4", "-v").err.splitlines()[-4:] == table
    assert table[0] not in vidspec("caption", "good.mp4").err


def test_how_a_caption_ended_is_said(vidspec, monkeypatch):
    monkeypatch.setattr("tests.fake_captioner.events", lambda path: [Finished(record(path, ended="loop"))])
    ran = vidspec("caption", "good.mp4", "--format", "json", "--stop-loops")
    jsonschema.validate(ran.records[0], record_schema())
    assert ran.records[0]["ended"] == "loop" and "5 tokens; ends in a loop" in ran.err
    assert FakeCaptioner.made[0].client.profile.generate.stop_loops
    assert vidspec("caption", "missing.mp4", "--format", "json").records[0]["ended"] is None


def test_what_is_missing_is_an_error_before_models_are_loaded(vidspec, monkeypatch):
    """A clip, or a package that an option needs; nothing is recorded of either."""
    monkeypatch.setattr("vidspec.runs.inputs.drop_missing", LEAVE_OUT)
    Path("good.mp4").touch()
    ran = vidspec("caption", "good.mp4", "no.mp4", "-o", "out.jsonl")
    assert (ran.code, ran.err) == (2, "error: no.mp4: there is no such file (check the path)\n")
    assert "download it first" in vidspec("caption", "https://x.org/a.mp4").err
    Path("list.txt").write_text("no.mp4\n")
    assert "no video to caption (none of them can be read)" in vidspec("caption", "--from-file", "list.txt").err
    monkeypatch.setattr("vidspec.runs.run_settings.find_spec", lambda name: None)
    for option, value in (("--segment", "scenes"), ("--decoder", "decord"), ("--engine", "ray")):
        ran = vidspec("caption", "good.mp4", option, value, "-o", "out.jsonl")
        assert ran.code == 2 and ran.err.startswith(f"error: {option} {value} needs ") and "pip install" in ran.err
    monkeypatch.setattr("vidspec.video.decode_hardware.refusal_reason", lambda *_: "no driver")
    ran = vidspec("caption", "good.mp4", "--decoder", "nvdec", "-o", "out.jsonl")
    assert ran.code == 2 and ran.err.startswith("error: no NVIDIA decoder can be used here: no driver (use --decoder")
    assert not FakeCaptioner.made and not Path("out.jsonl").exists()


@pytest.mark.parametrize("found", ["13.1.0", "14.2.0"])
def test_versions_of_pyav_that_hang_are_refused(vidspec, monkeypatch, found):
    monkeypatch.setattr("vidspec.runs.run_settings.version", lambda name: found)
    ran = vidspec("caption", "good.mp4")
    assert ran.code == 2 and not FakeCaptioner.made
    assert ran.err.splitlines() == [f"error: PyAV {found} is too old (pip install 'av>=15')"]


def test_lists_go_on_without_what_is_missing(vidspec, monkeypatch):
    monkeypatch.setattr("vidspec.runs.inputs.drop_missing", LEAVE_OUT)
    Path("good.mp4").touch()
    Path("list.txt").write_text("no.mp4\ngood.mp4\n")
    ran = vidspec("caption", "--from-file", "list.txt", "--format", "jsonl")
    assert ran.code == 1 and [one["path"] for one in ran.records] == ["good.mp4"]
    assert ran.err.index("error: no.mp4: there is no such file") < ran.err.index("a library prints this")


def test_the_reader_starts_before_models_are_loaded(vidspec, monkeypatch):
    started = []
    monkeypatch.setattr(FakeReader, "start", lambda self: started.append(len(FakeCaptioner.made)))
    assert vidspec("caption", "good.mp4").code == 0 and started == [0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--top-p", "0.9"), "--top-p changes nothing: the text is greedy"),
        (("--set", "generate.min_p=0.1"), "--min-p changes nothing: the text is greedy"),
        (("--top-p", "0.9", "--temperature", "0.8"), ""),
        ((), ""),
    ],
)
def test_keys_of_draws_that_a_greedy_text_does_not_use_are_noted(vidspec, given, said):
    ran = vidspec("caption", "good.mp4", *given)
    assert ran.code == 0 and ("changes nothing" in ran.err) == bool(said) and said in ran.err
