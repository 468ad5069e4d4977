"""Bulk captioning from the command line, with a captioner without models."""

import csv
import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import srt
from filelock import FileLock

from tests.cli.effects import streamed_paths
from tests.cli.terminals import Terminal
from tests.fake_captioner import SHORT, TEXT, FakeCaptioner
from vidspec.cli import main
from vidspec.config.prompts import STYLES
from vidspec.runs.schema import record_schema

FLAT = " ".join(TEXT.split())
#: For tests of what happens between two clips.
IN_TURN = pytest.mark.parametrize("options", [("--batch", "1")])


@pytest.fixture(params=[("--batch", "1"), ("--batch", "4")], ids=["one", "four"])
def options(request):
    return request.param


@pytest.fixture
def clips():
    """A folder: three clips that are captioned, one that fails, and something else."""
    for name in ("a/good.mp4", "b/good.mkv", "b/missing.mp4", "good.webm", "notes.txt"):
        path = Path("clips", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return "clips"


PATHS = ["clips/a/good.mp4", "clips/b/good.mkv", "clips/b/missing.mp4", "clips/good.webm"]


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_folder_into_one_file(vidspec, clips):
    ran = vidspec("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    assert (ran.code, ran.out) == (1, "")
    assert [line["path"] for line in lines("out.jsonl")] == sorted(PATHS)
    assert [line["caption"] for line in lines("out.jsonl")].count(TEXT) == 3
    assert "4 clips: 3 captioned, 1 failed (decode_video/missing 1); left out: 1 not video" in ran.err
    assert re.search(r"\[[1-4]/4\] clips/b/good.mkv: 5 tokens", ran.err)


def test_a_second_run_does_nothing_and_loads_nothing(vidspec, clips):
    args = ("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*args)
    before = Path("out.jsonl").read_bytes()
    ran = vidspec(*args)
    assert ran.code == 1 and len(FakeCaptioner.made) == 1 and Path("out.jsonl").read_bytes() == before
    assert "4 of 4 clips done before, 1 of them failed (--retry-failed tries them again)" in ran.err


@IN_TURN
def test_an_interrupted_run_goes_on(vidspec):
    args = ("caption", "good.mp4", "stop.mp4", "late/good.mp4", "--format", "jsonl", "-o", "out.jsonl")
    assert vidspec(*args).code == 130
    assert vidspec(*args).code == 130
    assert streamed_paths() == ["good.mp4", "stop.mp4", "stop.mp4"] and len(lines("out.jsonl")) == 1


def test_retry_failed_and_overwrite(vidspec, clips):
    args = ("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*args)
    whole = Path("out.jsonl").read_bytes()
    FakeCaptioner.made.clear()
    vidspec(*args, "--retry-failed")
    assert streamed_paths() == ["clips/b/missing.mp4"] and Path("out.jsonl").read_bytes() == whole
    FakeCaptioner.made.clear()
    ran = vidspec(*args, "--overwrite")
    assert len(streamed_paths()) == 4 and Path("out.jsonl").read_bytes() == whole == Path("out.jsonl~").read_bytes()
    assert "the earlier file is now" in ran.err


def test_a_torn_file_is_repaired(vidspec, clips):
    args = ("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*args)
    whole = Path("out.jsonl").read_bytes()
    Path("out.jsonl").write_bytes(whole[:-20])
    ran = vidspec(*args)
    assert Path("out.jsonl").read_bytes() == whole and "a torn last line was repaired" in ran.err


def test_other_settings_are_captioned_beside(vidspec, clips):
    args = ("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*args)
    ran = vidspec(*args, "--prompt", "Why?")
    assert "4 earlier records made with other settings: kept" in ran.err
    assert len(streamed_paths()) == 8 and len(lines("out.jsonl")) == 8


@pytest.mark.sample(quick=1)
def test_the_two_kinds_of_json_do_not_mix_in_one_file(vidspec, clips):
    vidspec("caption", clips, "--format", "json", "-o", "out.json")
    ran = vidspec("caption", clips, "--format", "jsonl", "-o", "out.json")
    assert (
        ran.code == 2
        and "out.json: holds records of --format json (keep to that format, or start over with --overwrite)" in ran.err
    )
    assert vidspec("caption", clips, "--format", "jsonl", "-o", "out.json", "--overwrite").code == 1
    for record in lines("out.json~"):
        jsonschema.validate(record, record_schema())


def test_the_bar_where_the_terminal_is_free(vidspec, clips, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    vidspec("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    assert "clips/s" in err.getvalue() and re.search(r"\[[1-4]/4\] clips/a/good.mp4", err.getvalue())
    last = re.sub(r"\x1b\[\d*[A-Z]", "", err.getvalue().rstrip().splitlines()[-1])
    assert last.startswith("4 clips: 3 captioned, 1 failed")
    assert " an hour); " in last and last.endswith("; the models waited for frames 25% of the time")
    assert "left out: 1 not video" in err.getvalue()


def test_captions_and_the_bar_share_a_terminal(vidspec, clips, monkeypatch):
    """A caption is written where the bar was and not into it."""
    monkeypatch.setenv("TERM", "xterm")
    both = Terminal()
    for name in ("stdout", "stderr", "__stdout__"):
        monkeypatch.setattr(sys, name, both)
    assert main(["caption", clips]) == 1
    text = both.getvalue()
    assert "clips/s" in text and "[2/4] " in text
    for line in (f"{path}\t{FLAT}" for path in PATHS if "missing" not in path):
        before, after = text.split(line)
        assert before.endswith("\x1b[2K") and after.startswith("\n"), "the bar's lines are erased"


def test_a_locked_file_is_refused_before_any_model_is_loaded(vidspec, clips):
    with FileLock(".out.jsonl.lock"):
        ran = vidspec("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    assert ran.code == 2 and "out.jsonl: another run is writing it" in ran.err and not FakeCaptioner.made


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_lines_on_standard_output(vidspec, monkeypatch, clips, form):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(PATHS).encode())))
    ran = vidspec("caption", "-", "--format", form)
    assert {record["path"] for record in ran.records} == set(PATHS) and len(ran.records) == len(PATHS)
    if form == "json":
        for record in ran.records:
            jsonschema.validate(record, record_schema())


def test_csv_and_text(vidspec, clips):
    rows = by_path(csv.DictReader(io.StringIO(vidspec("caption", clips, "--format", "csv").out)))
    assert [row["caption"] for row in rows] == [TEXT, TEXT, "", TEXT]
    assert f"clips/a/good.mp4\t{FLAT}" in vidspec("caption", clips).out.splitlines()
    vidspec("caption", clips, "--format", "csv", "-o", "out.csv")
    assert list(csv.DictReader(io.StringIO(Path("out.csv").read_text()))) == rows


def by_path(records):
    return sorted(records, key=lambda one: one["path"])


def left(folder):
    return sorted(str(path) for path in Path(folder).rglob("*") if path.is_file() and not path.name.startswith("."))


def test_sidecars_beside_and_below(vidspec, clips):
    assert vidspec("caption", clips, "--format", "webdataset-txt").code == 1
    assert left(clips) == sorted(
        [*map(str, PATHS), "clips/a/good.txt", "clips/b/good.txt", "clips/good.txt", "clips/notes.txt"]
    )
    assert Path("clips/a/good.txt").read_text() == FLAT + "\n"
    vidspec("caption", clips, "--format", "json", "--output-dir", "out", "--name", "{name}{suffix}")
    assert left("out") == ["out/a/good.mp4.json", "out/b/good.mkv.json", "out/good.webm.json"]
    vidspec("caption", clips, "--format", "jsonl", "--output-dir", "lines")
    assert left("lines") == ["lines/captions.jsonl"] and len(lines("lines/captions.jsonl")) == 4


def test_tables_hold_the_text_before_a_rewrite_and_the_summary(vidspec):
    command = ("caption", "good.mp4", "--segment", "1.5s", "--rewrite", "shorter", "--summary")
    assert vidspec(*command, "-o", "all.csv").code == 0
    with Path("all.csv").open(newline="") as file:
        first, last = csv.DictReader(file)
    assert (first["caption"], first["original"], first["summary"]) == (SHORT, TEXT, "")
    assert (last["caption"], last["original"], last["summary"]) == (SHORT, TEXT, SHORT)
    assert vidspec(*command, "-o", "all.jsonl").code == 0
    assert vidspec("merge", "all.jsonl", "-o", "merged.csv").code == 0
    assert "--format parquet: needs a file" in vidspec("merge", "all.jsonl", "--format", "parquet").err
    assert Path("merged.csv").read_bytes() == Path("all.csv").read_bytes()
    assert vidspec("caption", "good.mp4", "-o", "plain.csv").code == 0
    assert "original" not in Path("plain.csv").read_text()


def test_segments_become_cues(vidspec):
    ran = vidspec("caption", "good.mp4", "--segment", "1.5s", "--format", "srt", "-o", "-")
    cues = list(srt.parse(ran.out))
    assert [(cue.start.total_seconds(), cue.end.total_seconds()) for cue in cues] == [(0, 1.5), (1.5, 3)]
    assert FakeCaptioner.made[0].calls == [("stream", "good.mp4", 0.0, 1.5), ("stream", "good.mp4", 1.5, 3.0)]
    assert not any("prompt" in asked for asked in FakeCaptioner.made[0].asked), "context without --context"
    ran = vidspec("caption", "good.mp4", "--segment", "1.5", "--format", "jsonl")
    assert [(one["start"], one["end"]) for one in ran.records] == [(0.0, 1.5), (1.5, 3.0)]


@IN_TURN
def test_a_segmented_run_goes_on_in_the_middle_of_a_clip(vidspec, monkeypatch):
    args = ("caption", "x/good.mp4", "good.mp4", "--segment", "2s", "--context", "--format", "jsonl", "-o", "o.jsonl")
    stream = FakeCaptioner.stream

    def stops(self, path, *, start=None, **more):
        if path == "good.mp4" and start:
            raise KeyboardInterrupt
        return stream(self, path, start=start, **more)

    monkeypatch.setattr(FakeCaptioner, "stream", stops)
    assert vidspec(*args).code == 130 and len(lines("o.jsonl")) == 3
    monkeypatch.setattr(FakeCaptioner, "stream", stream)
    assert vidspec(*args).code == 0
    (again,) = FakeCaptioner.made[1].calls
    assert again == ("stream", "good.mp4", 1.5, 3.0)
    assert TEXT in FakeCaptioner.made[1].asked[0]["prompt"], "the caption before is known from the file"


@IN_TURN
@pytest.mark.parametrize(("option", "done"), [(("--fail-fast",), 1), (("--max-failures", "2"), 3)])
def test_a_run_stops_at_its_failures(vidspec, option, done):
    names = ["missing.mp4", "good.mp4", "2/missing.mp4", "3/missing.mp4", "2/good.mp4"]
    ran = vidspec("caption", *names, "--format", "json", *option)
    assert ran.code == 1 and len(ran.records) == done and "error: stopped: " in ran.err
    assert f"{5 - done} not done" in ran.err


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("option", [("--fail-fast",), ("--max-failures", "2")])
def test_what_is_finished_when_a_run_stops_at_its_failures_is_kept(vidspec, option):
    names = [f"{number}/{kind}.mp4" for number in range(20) for kind in ("good", "missing")]
    ran = vidspec("caption", *names, "--format", "jsonl", "-o", "out.jsonl", *option)
    kept = lines("out.jsonl")
    assert ran.code == 1 and "error: stopped: " in ran.err and f"{40 - len(kept)} not done" in ran.err
    assert sum(one["error"] is not None for one in kept) == len(option)
    FakeCaptioner.made.clear()
    assert vidspec("caption", *names, "--format", "jsonl", "-o", "out.jsonl").code == 1
    assert sorted(streamed_paths()) == sorted(set(names) - {one["path"] for one in kept})


@pytest.mark.parametrize("options", [("--batch", "4")])
def test_a_run_begun_in_one_batch_goes_on_in_another(vidspec, clips):
    args = ("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*args)
    assert FakeCaptioner.made[0].client.most > 1
    ran = vidspec(*args, "--ahead", "1", "--batch", "1")
    assert "4 of 4 clips done before" in ran.err and len(FakeCaptioner.made) == 1


@pytest.mark.parametrize("options", [()])
def test_plain_decoding_is_timed_alone(vidspec, clips):
    ran = vidspec("caption", clips, "--baseline", "--verify", "--batch", "4", "--format", "jsonl")
    assert "note: --baseline times each clip alone (--batch 1)" in ran.err
    assert [record["path"] for record in ran.records] == PATHS and FakeCaptioner.made[0].client.most == 1
    assert "times each clip alone" not in vidspec("caption", "good.mp4", "--baseline").err


def test_a_manifest_with_prompts_and_times(vidspec):
    Path("m.csv").write_text("path,prompt,start,end\ngood.mp4,What now?,1,2\nx/good.mp4,,,\n")
    ran = vidspec("caption", "m.csv", "--start", "0.5", "--format", "jsonl")
    (made,) = FakeCaptioner.made
    assert made.calls == [("stream", "good.mp4", 1.0, 2.0), ("stream", "x/good.mp4", 0.5, None)]
    assert made.asked[0]["prompt"] == "What now?" and "prompt" not in made.asked[1]
    assert [one["prompt"] for one in ran.records] == ["What now?", "Describe this video in detail."]


def test_prompts(vidspec):
    Path("p.txt").write_text("Say what\nyou see.\n")
    Path("notepad.txt").write_text("Say what\nyou see.\n", "utf-8-sig")
    Path("powershell.txt").write_text("Say what\nyou see.\n", "utf-16")
    for args, prompt in (
        (("--style", "brief"), STYLES["brief"]),
        *((("--prompt-file", f"{name}.txt"), "Say what\nyou see.") for name in ("p", "notepad", "powershell")),
        (("--prompt", "Why?", "--system", "Be short."), "Why?"),
    ):
        vidspec("caption", "good.mp4", *args)
        assert FakeCaptioner.made[-1].client.profile.generate.prompt == prompt
    assert FakeCaptioner.made[-1].client.profile.generate.system == "Be short."


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("name", ["good.mp4", "stop.mp4", "missing.mp4"])
def test_no_lock_stays_behind_a_run(vidspec, name):
    clip = Path("clips") / name
    clip.parent.mkdir()
    clip.touch()
    for more in (("jsonl", "-o", "out.jsonl"), ("csv", "-o", "out.csv"), ("srt",), ("vtt", "--output-dir", "out")):
        vidspec("caption", str(clip), "--format", *more)
    assert Path(".vidspec.jsonl").exists() == (name != "stop.mp4")
    assert not [path for path in Path().rglob("*") if path.name.endswith(".lock")]


def test_a_run_tells_its_pace(vidspec, clips, monkeypatch):
    monkeypatch.setattr("vidspec.cli.terminal.PROGRESS_INTERVAL", 0.0)
    err = vidspec("caption", clips).err
    assert "2/4 clips; " in err and "4/4 clips; 1 failed; " in err


def test_quiet_says_only_what_failed(vidspec, clips):
    err = vidspec("caption", clips, "--quiet", "--target", "a", "--draft", "b").err
    told = [line for line in err.splitlines() if line != "a library prints this"]
    assert told == ["error: clips/b/missing.mp4: there is no such file (check the path)"]


def test_shards_merge_to_what_one_run_writes(vidspec, clips):
    vidspec("caption", clips, "--format", "jsonl", "-o", "whole.jsonl")
    for number in (1, 2):
        vidspec("caption", clips, "--format", "jsonl", "-o", f"part{number}.jsonl", "--shard", f"{number}/2")
    assert len(lines("part1.jsonl")) + len(lines("part2.jsonl")) == 4
    ran = vidspec("merge", "part1.jsonl", "part2.jsonl", "-o", "merged.jsonl")
    assert ran.code == 0 and ran.err == "4 records, 1 failed\n"
    Path("part3.jsonl").write_bytes(Path("part1.jsonl").read_bytes().splitlines(keepends=True)[0] + b'{"path": ')
    assert vidspec("merge", "part3.jsonl", "-o", "one.jsonl").err == "1 record, 0 failed; 1 torn line left out\n"
    assert Path("merged.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert len(vidspec("merge", "part1.jsonl", "part2.jsonl", "--format", "text").out.splitlines()) == 3


def test_a_job_array_needs_no_options(vidspec, clips, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
    for task in ("1", "2"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        ran = vidspec("caption", clips, "--format", "jsonl", "-o", "out.jsonl")
        assert f"shard {task} of 2: " in ran.err
    assert len(lines("out.1-of-2.jsonl")) + len(lines("out.2-of-2.jsonl")) == 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x", "--prompt", "a", "--style", "brief"), "--prompt and --style exclude each other"),
        (("x", "--prompt", ""), "--prompt: is empty (--prompt 'What moves?')"),
        (("x", "--prompt", " "), "--prompt: is empty (--prompt 'What moves?')"),
        (("x", "--stop", ""), "--stop: must have at least 1 character"),
        (("x", "--fields", ""), "--fields: must have at least 1 character"),
        (("x", "--style", "breif"), "no style is called 'breif'; did you mean brief?"),
        (("x", "--prompt-file", "no"), "--prompt-file no: cannot be read: No such file"),
        (("x", "--prompt-file", "/dev/zero"), "--prompt-file /dev/zero: is not a regular file (write it into a file)"),
        (("--from-file", "/dev/zero"), "/dev/zero: is not a regular file"),
        (("--manifest", "/dev/zero"), "/dev/zero: is not a regular file"),
        (("x", "--segment", "0s"), "--segment 0s: must be scenes or a length"),
        (("x", "--context"), "--context needs --segment"),
        (("x", "--summary"), "--summary needs --segment"),
        (("x", "--rewrite", " "), "--rewrite: is empty"),
        (("x", "--rewrite", "@no"), "--rewrite @no: cannot be read: No such file"),
        (("x", "--rewrite", "@"), "--rewrite @: names no file"),
        (("x", "--rewrite", "{captoin}"), "--rewrite: there is no field {captoin} (did you mean {caption}?)"),
        (("x", "--timeout", "0"), "--timeout 0: must be more than 0 seconds"),
        (("x", "-o", "a", "--output-dir", "b"), "--output and --output-dir exclude each other"),
        (("x", "--name", "{nope}"), "--name {nope}: there is no field {nope}"),
        (("x", "y", "--format", "srt", "-o", "-"), "--format srt: several clips need a file each"),
        (("x.mp4", "x.mkv", "--format", "txt"), "x.mp4 and x.mkv would share the file x.txt"),
        (("x", "--retry-failed"), "--retry-failed needs an output file (name one with --output FILE"),
        (("x", "--overwrite", "-o", "-"), "--overwrite needs an output file"),
        (("x", "--shard", "3/2"), "--shard 3/2: must be I/N"),
        (("x", "--address", "y"), "--address needs --engine ray"),
        (("x", "--replicas", "2", "--trace", "t"), "--trace needs a single captioner"),
        (("x", "--replicas", "few"), "--replicas few: must be auto or a number"),
        (("x", "--batch", "0"), "--batch 0: must be auto or a number, 1 or more"),
        (("x", "--batch", "few"), "--batch few: must be auto or a number"),
        (("x", "--ahead", "0"), "Invalid value for '--ahead': "),
        (("x", "--from-file", "no"), "no: cannot be read"),
        (("x", "--include", "*"), "--include needs a folder or a list"),
        (("x.csv", "--exclude", "*"), "--exclude needs a folder or a list"),
        (("x", "--include-images"), "--include-images needs a folder or a list"),
        (("x", "--column", "video"), "--column needs a Parquet file among the inputs"),
        (("x", "--allow-paths", "."), "--allow-paths needs a Parquet file"),
        (("x", "--allow-urls", "https://*"), "--allow-urls needs a Parquet file"),
        (("x", "-o", ""), "--output: is empty"),
        (("x", "--output-dir", ""), "--output-dir: is empty"),
        (("x", "--name", ""), "--name: is empty"),
        ((".",), "there is no video to caption (the folder or list is empty)"),
    ],
)
def test_usage_errors(vidspec, args, message):
    ran = vidspec("caption", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith(f"error: {message}")


def test_what_a_manifest_says_is_kept_in_every_format(vidspec):
    Path("jobs.csv").write_text("path,id,start,Camera\ngood.mp4,one,1:30,north\n")
    (full,) = vidspec("caption", "jobs.csv", "--format", "json").records
    jsonschema.validate(full, record_schema())
    assert (full["job"]["id"], full["job"]["columns"]) == ("one", {"Camera": "north"})
    (lean,) = vidspec("caption", "jobs.csv", "--format", "jsonl").records
    assert (lean["id"], lean["columns"], lean["start"]) == ("one", {"Camera": "north"}, 90.0)
    (row,) = csv.DictReader(io.StringIO(vidspec("caption", "jobs.csv", "--format", "csv").out))
    assert row["id"] == "one"


def test_start_and_end_are_read_as_in_manifests(vidspec):
    assert vidspec("caption", "good.mp4", "--start", "1:30", "--end", "0:01:35.5").code == 0
    assert FakeCaptioner.made[0].calls == [("stream", "good.mp4", 90.0, 95.5)]


def test_several_formats_in_one_run(vidspec, clips):
    ran = vidspec("caption", clips, "--format", "jsonl,srt,vtt,csv", "--output-dir", "out")
    assert ran.code == 1 and len(streamed_paths()) == 4
    assert left("out") == [
        "out/a/good.srt",
        "out/a/good.vtt",
        "out/b/good.srt",
        "out/b/good.vtt",
        "out/captions.csv",
        "out/captions.jsonl",
        "out/good.srt",
        "out/good.vtt",
    ]
    assert [line["path"] for line in lines("out/captions.jsonl")] == sorted(PATHS)
    table = Path("out/captions.csv").read_text()
    assert table.count("vanilla-sd") == 3 and table.count(",sparrow,") == 1  # the one that failed names the default
    os.remove("out/a/good.vtt")
    again = vidspec("caption", clips, "--format", "jsonl,srt,vtt,csv", "--output-dir", "out")
    assert len(streamed_paths()) == 4 and "4 of 4 clips done before" in again.err
    assert Path("out/a/good.vtt").read_text().startswith("WEBVTT"), "written again from what is remembered"
    os.remove("out/captions.jsonl")
    vidspec("caption", clips, "--format", "jsonl,srt", "--output-dir", "out")
    assert len(streamed_paths()) == 4 and len(lines("out/captions.jsonl")) == 4, "written again, as other formats are"


def test_standard_output_beside_files(vidspec, clips):
    args = ("caption", clips, "--format", "json,txt")
    first = vidspec(*args)
    assert {record["path"] for record in first.records} == set(PATHS)
    assert Path("clips/good.txt").read_text() == FLAT + "\n"
    second = vidspec(*args)
    assert by_path(second.records) == by_path(first.records) and len(streamed_paths()) == 4


def test_one_file_for_each_format(vidspec):
    assert vidspec("caption", "good.mp4", "--format", "json,srt", "-o", "out.x").code == 0
    assert left(".") == ["out.json", "out.srt"] and lines("out.json")[0]["caption"] == TEXT


def test_a_place_that_cannot_be_opened_lets_go_of_the_others(vidspec, clips):
    Path("out").mkdir()
    with FileLock("out/.captions.csv.lock"), FileLock("out/..captions.csv.vidspec.jsonl.lock"):
        ran = vidspec("caption", clips, "--format", "jsonl,csv", "--output-dir", "out")
        assert ran.code == 2 and "another run is writing it" in ran.err and not FakeCaptioner.made
        assert vidspec("caption", clips, "--format", "jsonl", "--output-dir", "out").code == 1


def test_completion_of_formats():
    from vidspec.cli import options
    from vidspec.runs.formats.base import format_names

    assert options.complete_format("jsonl,s") == ["jsonl,srt"] and options.complete_format("jso") == ["json", "jsonl"]
    assert options.complete_format("") == list(format_names())


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize(
    ("name", "more", "first"),
    [
        ("out.jsonl", (), '{"path"'),
        ("out.JSON", (), '{"path"'),
        ("out.csv", (), "path,id,"),
        ("out.srt", (), "1\n"),
        ("out.vtt", (), "WEBVTT"),
        ("out.txt", (), FLAT),
        ("out.log", (), "path,id,"),
        ("out.jsonl", ("--format", "text"), TEXT),
    ],
)
def test_the_suffix_of_the_file_chooses_the_format(vidspec, tmp_path, name, more, first):
    """A flag wins over it, and it over the config."""
    config = tmp_path / "config" / "vidspec" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("format: csv\n")
    assert vidspec("caption", "a.mp4", "-o", name, *more).code == 0
    assert Path(name).read_text().startswith(first)


def test_a_suffix_of_one_clips_format_takes_one_clip(vidspec):
    ran = vidspec("caption", "a.mp4", "b.mp4", "-o", "out.srt")
    assert ran.code == 2 and ran.err.startswith("error: --format srt: several clips need a file each")
