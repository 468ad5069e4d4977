"""Outputs that are taken away, full or not writable in the middle of a run, and runs that are told to end."""

import _thread
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import vidspec
from tests.cli.effects import streamed_paths
from tests.fake_captioner import TEXT, FakeCaptioner
from tests.tiers import full_but
from vidspec.runs.formats.base import make_format
from vidspec.runs.run_file import RunFile
from vidspec.runs.run_store import RunStore
from vidspec.signals import SIGNALS, Terminated, raise_on_signals

CLIPS = [f"{number}/good.mp4" for number in range(5)]


@pytest.fixture(autouse=True)
def clips():
    for clip in CLIPS:
        Path(clip).parent.mkdir()
        Path(clip).write_bytes(b"x")
    Path("out").mkdir()


@pytest.fixture
def meanwhile(monkeypatch):
    """Does something while the clip of this number, from 0, is captioned."""

    def plan(number, action):
        stream = FakeCaptioner.stream

        def streamed(self, path, **asked):
            if path.endswith(CLIPS[number]):
                action()
            return stream(self, path, **asked)

        monkeypatch.setattr(FakeCaptioner, "stream", streamed)
        return lambda: monkeypatch.setattr(FakeCaptioner, "stream", stream)

    return plan


@pytest.fixture
def options():
    """One clip after the other: what happens while one of them is captioned is known."""
    return ("--batch", "1")


@pytest.fixture
def heeds_hangups():
    """SIGHUP has its usual effect, here and in processes that are started, when `nohup` runs the tests too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def replaced():
    Path("out/out.jsonl.new").write_text("theirs\n")
    os.replace("out/out.jsonl.new", "out/out.jsonl")


JSONL = ("--format", "jsonl", "-o", "out/out.jsonl")
CSV = ("--format", "csv", "-o", "out/out.csv")
SRT = ("--format", "srt", "--output-dir", "out", "--name", "{clip}{suffix}")
TAKEN = [
    (JSONL, lambda: os.remove("out/out.jsonl")),
    (JSONL, lambda: os.rename("out/out.jsonl", "out/moved.jsonl")),
    (JSONL, replaced),
    *((args, lambda: shutil.rmtree("out")) for args in (JSONL, CSV, SRT)),
    *((args, lambda: os.rename("out", "moved")) for args in (JSONL, CSV, SRT)),
    (CSV, lambda: os.remove("out/out.csv")),
    (CSV, lambda: os.rename("out/out.csv", "out/moved.csv")),
]


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize(("args", "action"), TAKEN)
@pytest.mark.parametrize("at", [2, 4])
def test_an_output_that_is_taken_away_stops_the_run(vidspec, meanwhile, args, action, at):
    meanwhile(at, action)
    ran = vidspec("caption", *CLIPS, *args)
    assert ran.code == 4 and len(streamed_paths()) == at + 1
    assert "was moved, replaced or deleted while the run was writing it (put it back if it was moved" in ran.err
    assert "error: stopped: out/" in ran.err and f"{at} captioned, 0 failed" in ran.err and "Traceback" not in ran.err
    if action is replaced:
        assert Path("out/out.jsonl").read_text() == "theirs\n"
    else:
        assert not [path for path in Path("out").glob("[!.]*") if "moved" not in path.name], "begun anew"


def test_what_was_moved_is_whole_and_is_gone_on_with_where_it_is_put_back(vidspec, meanwhile):
    undo = meanwhile(2, lambda: os.rename("out/out.jsonl", "moved.jsonl"))
    vidspec("caption", *CLIPS, *JSONL)
    assert [json.loads(line)["path"] for line in Path("moved.jsonl").read_text().splitlines()] == CLIPS[:3]
    undo()
    os.rename("moved.jsonl", "out/out.jsonl")
    FakeCaptioner.made.clear()
    assert vidspec("caption", *CLIPS, *JSONL).code == 0 and streamed_paths() == CLIPS[3:]
    whole = Path("out/out.jsonl").read_bytes()
    assert vidspec("caption", *CLIPS, "--format", "jsonl", "-o", "whole.jsonl").code == 0
    assert Path("whole.jsonl").read_bytes() == whole


def test_a_table_that_was_deleted_comes_back_without_captioning(vidspec, meanwhile):
    """Its journal is still there."""
    undo = meanwhile(4, lambda: os.remove("out/out.csv"))
    assert vidspec("caption", *CLIPS, *CSV).code == 4
    undo()
    assert vidspec("caption", *CLIPS, *CSV).code == 0 and streamed_paths() == CLIPS
    assert Path("out/out.csv").read_text().count("good.mp4") == len(CLIPS)


def test_a_file_that_is_deleted_behind_the_last_clip(vidspec, monkeypatch):
    """Between its last record and its end."""
    from vidspec.cli.terminal import OutcomeLines

    monkeypatch.setattr(OutcomeLines, "result", lambda self, *given: given[-1].done < 5 or os.remove("out/out.jsonl"))
    ran = vidspec("caption", *CLIPS, *JSONL)
    assert ran.code == 4 and "error: out/out.jsonl: was moved, replaced or deleted" in ran.err
    assert "captioned" not in ran.err and not os.path.exists("out/out.jsonl")


def test_a_folder_without_permission_costs_its_clips(vidspec, monkeypatch):
    """Known before: nothing of it is captioned."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "1" and access(path, mode))
    ran = vidspec("caption", *CLIPS, "--format", "srt")
    assert ran.code == 1 and streamed_paths() == [clip for clip in CLIPS if clip != "1/good.mp4"]
    assert "1/good.srt: cannot be written: 1 takes no files (run the same command again once it does)" in ran.err
    assert "5 clips: 4 captioned, 1 failed (output/sidecar 1)" in ran.err
    FakeCaptioner.made.clear()
    monkeypatch.setattr(os, "access", access)
    assert vidspec("caption", *CLIPS, "--format", "srt").code == 0 and streamed_paths() == ["1/good.mp4"]


@pytest.mark.parametrize("others", [False, True])
def test_a_folder_whose_journal_cannot_be_written(vidspec, monkeypatch, others):
    """Clips outside the working folder are remembered beside them: each folder on its own."""
    clips = [str(Path(clip).resolve()) for clip in CLIPS]
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: others and Path(path).name != "1" and access(path, mode))
    ran = vidspec("caption", *clips, "--format", "srt")
    if others:
        assert ran.code == 1 and len(streamed_paths()) == 4 and "/1: no permission to write there" in ran.err
        assert all(Path(clip).with_suffix(".srt").exists() == (clip != clips[1]) for clip in clips)
    else:
        assert ran.code == 2 and not FakeCaptioner.made and "/0: no permission to write there" in ran.err
    assert "Traceback" not in ran.err


def test_nothing_is_loaded_where_nothing_can_be_kept(vidspec):
    Path("0/subs").write_text("no folder")
    ran = vidspec("caption", CLIPS[0], "--format", "srt", "--name", "subs/{stem}{suffix}")
    assert ran.code == 1 and not FakeCaptioner.made
    assert "0/subs/good.srt: cannot be written: 0/subs takes no files" in ran.err


def test_a_folder_that_becomes_unwritable_costs_its_clips_and_keeps_their_captions(vidspec, meanwhile):
    meanwhile(1, lambda: Path("1/.good.srt.part").mkdir())
    ran = vidspec("caption", *CLIPS, "--format", "srt")
    assert ran.code == 1 and "4 captioned, 1 failed (output/sidecar 1)" in ran.err
    assert "1/good.srt: cannot be written: Is a directory (run the same command again once it can be" in ran.err
    assert vidspec("caption", *CLIPS, "--format", "srt").code == 1
    Path("1/.good.srt.part").rmdir()
    assert vidspec("caption", *CLIPS, "--format", "srt").code == 0 and streamed_paths() == CLIPS
    assert all(TEXT.split()[0] in Path(clip).with_suffix(".srt").read_text() for clip in CLIPS)


def test_of_several_formats_the_others_keep_what_a_clips_folder_does_not_take(vidspec, meanwhile):
    meanwhile(1, lambda: Path("1/.good.srt.part").mkdir())
    ran = vidspec("caption", *CLIPS, "--format", "srt,jsonl")
    assert ran.code == 1 and "4 captioned, 1 failed (output/sidecar 1)" in ran.err
    assert [one["path"] for one in ran.records if one["caption"]] == CLIPS
    assert sum(Path(clip).with_suffix(".srt").exists() for clip in CLIPS) == 4


def test_a_journal_that_becomes_unwritable_costs_the_clips_of_its_folder(vidspec, meanwhile):
    clips = [str(Path(clip).resolve()) for clip in CLIPS]
    meanwhile(1, lambda: Path("3/.vidspec.jsonl").mkdir())
    ran = vidspec("caption", *clips, "--format", "srt")
    assert ran.code == 1 and "4 captioned, 1 failed (output/sidecar 1)" in ran.err and "Traceback" not in ran.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_ends_the_run_with_a_code_of_its_own(vidspec):
    ran = vidspec("caption", *CLIPS, "--format", "jsonl", "-o", "/dev/full")
    assert ran.code == 4 and len(streamed_paths()) == 1
    assert "error: stopped: /dev/full: cannot be written: No space left on device" in ran.err


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_a_disk_that_is_full_at_the_end_of_a_run(vidspec, monkeypatch, name):
    """The file is written or put in order then; no part of it stays, and the run can go on."""
    ordered = ("caption", *CLIPS[::-1], "-o", name)
    assert vidspec("caption", *CLIPS[1:3], "-o", name).code == 0
    before = Path(name).read_bytes()
    sync = os.fsync

    def full(file):
        if os.readlink(f"/proc/self/fd/{file}").endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    ran = vidspec(*ordered)
    assert ran.code == 4 and f"{name}: cannot be written: No space left on device" in ran.err
    assert not list(Path().rglob("*.part")) and Path(name).read_bytes()[: len(before)] == before
    monkeypatch.setattr(os, "fsync", sync)
    captioned = len(streamed_paths())
    assert vidspec(*ordered).code == 0 and len(streamed_paths()) - captioned == 2 * (name == "out.csv")


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(("first", "second"), [("csv", "jsonl"), ("jsonl", "csv"), ("csv", "text"), ("json", "csv")])
def test_a_run_in_another_format_leaves_a_live_output_alone(vidspec, first, second):
    path = Path("out/out")
    live = RunStore([RunFile(path, make_format(first, several=True))])
    ran = vidspec("caption", *CLIPS, "--format", second, "-o", str(path))
    assert ran.code == 2 and "out/out: another run is writing it" in ran.err and not FakeCaptioner.made
    live.close([], complete=True)
    assert vidspec("caption", *CLIPS, "--format", second, "-o", str(path), "--overwrite").code == 0


TERMINATED = """
import os, sys, time
number, pause = int(sys.argv[2]), float(sys.argv[3])
sys.path[:0] = sys.argv[1:2]
from types import ModuleType
import vidspec.runs.executors.local
from tests.fake_captioner import FakeCaptioner, FakeReader
vidspec.runs.executors.local.ClipReader = FakeReader
module = sys.modules["vidspec.captioner"] = ModuleType("vidspec.captioner")

class Stopped(FakeCaptioner):
    def stream(self, path, **asked):
        for event in super().stream(path, **asked):
            yield event
            if path.startswith("2/"):
                os.kill(os.getpid(), number)
                time.sleep(pause)

module.Captioner = Stopped
from vidspec.cli import main
sys.argv[1:] = sys.argv[4:]
sys.exit(main())
"""


#: Captions clips, and keeps the third one until its standard input ends.
WAITING = """
import sys
sys.path[:0] = sys.argv[1:2]
from types import ModuleType
import vidspec.runs.executors.local
from tests.fake_captioner import FakeCaptioner, FakeReader
vidspec.runs.executors.local.ClipReader = FakeReader
module = sys.modules["vidspec.captioner"] = ModuleType("vidspec.captioner")

class Waiting(FakeCaptioner):
    def stream(self, path, **asked):
        if path.startswith("2/"):
            print("waits", file=sys.stderr, flush=True)
            sys.stdin.read()
        yield from super().stream(path, **asked)

module.Captioner = Waiting
from vidspec.cli import main
sys.argv[1:] = sys.argv[2:]
sys.exit(main())
"""


def test_a_reader_of_standard_error_that_goes_away_ends_no_run():
    """As ``2>&1 | head`` does."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([str(Path(vidspec.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", WAITING, root, "caption", *CLIPS, *JSONL, "--batch", "1"]
    pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, stdout=subprocess.DEVNULL, env=env) as run:
        assert any(b"waits" in line for line in run.stderr)
        run.stderr.close()
        run.stdin.close()
        assert run.wait(120) == 0
    assert [json.loads(line)["path"] for line in Path("out/out.jsonl").read_text().splitlines()] == CLIPS


@pytest.mark.skipif(sys.platform == "win32", reason="closes a file descriptor in a shell")
def test_standard_output_that_is_closed_before_the_start():
    words = ["sh", "-c", 'exec "$0" -m vidspec caption 0/good.mp4 >&-', sys.executable]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 4 and "error: standard output is closed (name a file with --output)" in ran.stderr


def terminated(number, wait=0):
    """The command and environment of a run that gets the signal while it captions the third clip."""
    root = str(Path(__file__).resolve().parents[2])
    options = ("--format", "jsonl", "-o", "out/out.jsonl", "--batch", "1")
    command = [sys.executable, "-c", TERMINATED, root, str(int(number)), str(wait), "caption", *CLIPS, *options]
    path = os.pathsep.join([str(Path(vidspec.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    return command, {**os.environ, "TERM": "xterm", "PYTHONPATH": path}


WORDS = [(signal.SIGTERM, b"terminated"), (signal.SIGHUP, b"hung up")]


@pytest.mark.full
@pytest.mark.parametrize(("number", "word"), full_but(WORDS[:1], WORDS))
def test_a_signal_restores_the_terminal_and_keeps_what_is_done(number, word, heeds_hangups):
    import pty

    ours, theirs = pty.openpty()
    command, env = terminated(number)
    with subprocess.Popen(command, stderr=theirs, stdin=subprocess.DEVNULL, env=env) as run:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        assert run.wait(60) == 128 + number
    os.close(ours)
    hidden, again = shown.rfind(b"\x1b[?25l"), shown.rfind(b"\x1b[?25h")
    assert 0 <= hidden < again, "the cursor stays hidden"
    assert word + b": 2 of 5 clips done and kept" in shown and b"Traceback" not in shown
    assert len(Path("out/out.jsonl").read_text().splitlines()) == 2


@pytest.mark.full
def test_ctrl_c_that_is_pressed_again_and_again_shows_no_traceback():
    """While files are closed, and until the process has gone."""
    command, env = terminated(0, 600)
    records = Path("out/out.jsonl")
    for _ in range(20):
        presses = 0
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env) as run:
            until = time.monotonic() + 120
            while time.monotonic() < until and not (records.exists() and records.read_text().count("\n") == 2):
                time.sleep(0.01)
            while run.poll() is None and time.monotonic() < until:
                run.send_signal(signal.SIGINT)
                presses += 1
                time.sleep(0.003)
            shown = run.stderr.read()
        assert run.returncode in (130, -signal.SIGINT)
        assert b"Traceback" not in shown and b"KeyboardInterrupt" not in shown, shown
        assert records.read_text().count("\n") == 2
        if presses > 2:
            return
        records.unlink()  # on a busy machine it may end between two presses
    pytest.fail("it was never pressed again")


@pytest.mark.full
def test_a_terminal_that_is_closed_ends_the_run_in_order(heeds_hangups):
    """Nothing more can be shown there, and nothing fails for that."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        command, env = terminated(0, 60)  # no signal but that of the terminal
        os.execve(command[0], command, env)
    records = Path("out/out.jsonl")
    until = time.monotonic() + 120
    while time.monotonic() < until and not (records.exists() and records.read_text().count("\n") == 2):
        os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    assert records.read_text().count("\n") == 2 and not Path("out/.out.jsonl.lock").exists()


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), *((one, Terminated) for one in SIGNALS)]
)
def test_a_signal_that_comes_while_something_is_freed_is_not_lost(number, kind, heeds_hangups):
    class Freed:
        def __del__(self):
            signal.raise_signal(number)

    before = [signal.getsignal(one) for one in SIGNALS], sys.unraisablehook
    with pytest.raises(kind) as caught, raise_on_signals():
        one = Freed()
        del one  # nothing can be raised in here
        time.sleep(120)
    assert type(caught.value) is kind and getattr(caught.value, "number", number) == number
    assert ([signal.getsignal(one) for one in SIGNALS], sys.unraisablehook) == before


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), *((one, Terminated) for one in SIGNALS)]
)
def test_a_signal_just_before_a_wait_ends_the_wait(number, kind, heeds_hangups):
    """As ``interrupt_main`` does: Python knows of the signal, and no system call was interrupted."""
    before, waits = signal.getsignal(signal.SIGURG), threading.Event()
    late = threading.Timer(0.1, _thread.interrupt_main, (number,))
    with pytest.raises(kind), raise_on_signals():
        late.start()
        waits.wait(120)
        pytest.fail("the wait went on")
    assert signal.getsignal(signal.SIGURG) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    """As SIGHUP under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raise_on_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_ends_any_command_with_143(vidspec, monkeypatch):
    monkeypatch.setattr(FakeCaptioner, "load_error", Terminated())
    ran = vidspec("caption", CLIPS[0])
    assert ran.code == 143 and "terminated" in ran.err
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), raise_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    inside = []
    thread = threading.Thread(
        target=lambda: [inside.append(True) for _ in [0] if raise_on_signals().__enter__() is None]
    )
    thread.start()
    thread.join()
    assert inside == [True] and signal.getsignal(signal.SIGTERM) is before
