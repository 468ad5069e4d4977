"""Child processes: what passes between them and their parent, how they end, and what is left."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from vidspec import channel as transport
from vidspec import process
from vidspec.channel import SharedBlock
from vidspec.errors import DescriptorError
from vidspec.process import ChildEnded, fork, spawn


def echo(channel, *first):
    for message in first:
        channel.send(message)
    while True:
        channel.send(channel.receive())


def act(channel, deed):
    """Runs ``deed`` with this module's names."""
    exec(deed, {**globals(), "channel": channel})


def open_files():
    """The files of this process, by their numbers and what they are."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture(params=[fork, spawn])
def begin(request):
    """Starts children, and checks that nothing of them is left."""
    before, begun = open_files(), []

    def start(function, *args, **more):
        begun.append(request.param(function, *args, **({"name": "test"} if request.param is spawn else {}), **more))
        return begun[-1]

    yield start
    for child in begun:
        child.end()
    assert not any(child.alive for child in begun)
    pids = [child.pid for child in begun]
    del child
    begun.clear()
    gc.collect()  # of what a test has caught
    assert not open_files() - before  # what other tests have left may be closed meanwhile
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.sample(quick=1)
def test_messages_arrays_and_tensors_come_over(begin):
    import torch  # not above: spawned children import this module

    child = begin(echo, "first", 2)
    assert [child.receive(), child.receive()] == ["first", 2]
    message = {
        "large": np.arange(90_000).reshape(300, 300),
        "small": np.float32([1, 2]),
        "half": torch.randn(300, 300).to(torch.bfloat16),
        "none": torch.empty(0, 3),
        "number": torch.tensor(7),
        "slice": np.arange(90_000).reshape(300, 300)[:, ::2],
    }
    child.send(message)
    back = child.receive()
    for name, value in message.items():
        same = torch.equal if isinstance(value, torch.Tensor) else np.array_equal
        assert same(back[name], value) and back[name].dtype == value.dtype, name
    back["large"][0, 0] = 5  # may be written to


@pytest.mark.sample(quick=1)
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has anonymous shared memory")
def test_large_arrays_are_shared_and_freed(begin):
    def mapped(pid):
        return sum("memfd:vidspec" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())

    gc.collect()  # clips of other tests must not be freed meanwhile
    before = mapped("self")
    child = begin(echo)
    block = SharedBlock.create(1 << 20)
    array = np.frombuffer(block, np.uint8).reshape(1024, 1024)
    for _ in range(3):  # a block is passed on without a copy
        child.send(array)
        back = child.receive()
        array[0, 0] += 1
        assert back[0, 0] == array[0, 0]
    assert mapped("self") == before + 2
    del back, array, block
    assert mapped("self") == before
    child.send(None)
    assert child.receive() is None and mapped(child.pid) <= before + 2


@pytest.mark.sample(quick=1)
def test_arrays_come_over_without_shared_memory(begin, monkeypatch):
    monkeypatch.setattr(transport, "_memory_file", lambda: None)
    child = begin(echo)
    child.send(np.arange(1 << 18))
    assert np.array_equal(child.receive(), np.arange(1 << 18)) and SharedBlock.create(9) is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has anonymous shared memory")
def test_a_message_without_descriptors_left_is_an_error_and_the_next_comes(begin):
    import resource

    child = begin(echo)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    child.send(np.arange(1 << 18))
    assert child.channel.connection.poll(60)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        with pytest.raises(DescriptorError, match="too many open files"):
            child.receive()
        with pytest.raises(DescriptorError):
            spawn(echo, name="test")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    child.send("next")
    assert child.receive() == "next"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("pass", "exit code 0"),
        ("os.kill(os.getpid(), 15)", "SIGTERM"),
    ],
)
def test_an_end_is_reported_with_its_reason(begin, deed, reason):
    child = begin(act, deed)
    with pytest.raises(ChildEnded) as caught:
        child.receive()
    assert caught.value.reason == reason and ("in act" in caught.value.traceback) == ("Error" in reason)
    with pytest.raises(ChildEnded):
        child.receive()
    assert not child.alive


def test_what_cannot_be_imported_is_reported():
    child = spawn(act, "import no_such_module", name="test")
    with pytest.raises(ChildEnded, match="ModuleNotFoundError: No module named 'no_such_module'"):
        child.receive()


@pytest.mark.sample(quick=1)
def test_progress_counts_and_silence_does_not(begin):
    steady = "import itertools; n = itertools.count(); channel.send_heartbeats(lambda: next(n)); time.sleep(1.2); "
    child = begin(act, steady + "channel.send('done'); time.sleep(60)")
    assert child.receive(stall=10.0) == "done"
    with pytest.raises(TimeoutError):  # and not ChildEnded, as after its 60 seconds
        child.receive(time.monotonic() + 0.5)
    stuck = begin(act, "channel.send_heartbeats(lambda: 1); channel.send('here'); time.sleep(60)")
    assert stuck.receive() == "here"
    with pytest.raises(TimeoutError):
        stuck.receive(stall=0.5)


@pytest.mark.sample(quick=1)
def test_a_kill_ends_the_wait_of_another_thread(begin):
    child, found = begin(echo, "here"), []
    child.receive()

    def listen():
        try:
            child.receive()
        except ChildEnded as ended:
            found.append(ended.reason)

    thread = threading.Thread(target=listen)
    thread.start()
    child.kill()
    thread.join(60)
    assert found == ["SIGKILL"]


@pytest.mark.sample(quick=1)
def test_a_stopped_process_is_silent_and_a_busy_one_is_not(begin):
    child = begin(act, "channel.send('here')\nwhile True: pass")
    child.receive()
    time.sleep(0.3)
    assert child.silent_s() < 0.2
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)  # it stops when it is scheduled
    child.silent_s()
    time.sleep(0.3)
    assert child.silent_s() >= 0.3


@pytest.mark.full
def test_threads_and_environment_are_the_childs():
    child = spawn(
        act,
        "import torch; channel.send((torch.get_num_threads(), os.environ['A']))",
        name="x",
        env={"A": "b"},
        threads=3,
    )
    assert child.receive() == (3, "b") and "A" not in os.environ
    child.end()


def test_a_fork_finalizes_none_of_its_parents_garbage(begin):
    """A finalizer may wait for a thread that the copy does not have; one of fsspec's file systems does."""

    class Waits:
        def __init__(self):
            self.itself = self  # so that only the collector finds it

        def __del__(self):
            if os.getpid() != parent:
                threading.Event().wait()

    parent = os.getpid()
    gc.disable()
    try:
        Waits()
        child = begin(act, "channel.send(gc.collect())")
    finally:
        gc.enable()
    assert child.receive(time.monotonic() + 60) is not None


def test_cuda_forbids_a_fork(monkeypatch):
    """Its state is useless in the copy."""
    assert process.can_fork()
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert not process.can_fork()
    with pytest.raises(RuntimeError, match="cannot be forked"):
        fork(echo)


PARENT = """
import os, sys, time
from vidspec.process import fork, spawn
from tests.test_process import act
deed = "channel.send(os.getpid()); time.sleep(60)"
children = [spawn(act, deed, name="test"), fork(act, deed)]  # without a guard: no child runs this again
print(*[child.receive() for child in children], flush=True)
time.sleep(60)
"""


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_children_end_with_their_parent_and_do_not_hear_the_terminal(tmp_path, number):
    file = tmp_path / "parent.py"
    file.write_text(PARENT)
    root = str(Path(__file__).resolve().parents[1])
    with subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        os.killpg(parent.pid, number)
        errors = parent.stderr.read()
        parent.wait(60)
    assert errors.count("Traceback") == (number == signal.SIGINT), errors
    until = time.monotonic() + 60
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.01)
    assert len(pids) == 2


def test_nothing_heavy_is_imported():
    code = "import sys, vidspec.process; print({'torch', 'numpy'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_threads_that_fork_at_once_wait_for_each_other():
    """On Python 3.12 and later filelock refuses a fork while another thread forks."""
    code = """
import os, time
from concurrent.futures import ThreadPoolExecutor
from vidspec.process import fork
begun, most = [], []
before = lambda: (begun.append(1), most.append(len(begun)), time.sleep(0.02))
os.register_at_fork(before=before, after_in_parent=begun.pop)
def run(_):
    child = fork(lambda channel: channel.send(3))
    try:
        return child.receive(time.monotonic() + 60)
    finally:
        child.end()
with ThreadPoolExecutor(4) as pool:
    print({*pool.map(run, range(12))}, max(most))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout == "{3} 1\n", ran.stdout + ran.stderr
