"""Functions over untrusted data in processes of their own."""

import os
import subprocess
import sys
import time

import pytest

from vidspec import limited, process
from vidspec.limited import Limits, OverTime, run_limited
from vidspec.process import ChildEnded, fork

LIMITS = Limits(cpu_s=2, wall_s=10.0, room=256 << 20)
PROGRAM = """
import os
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
Tokenizer(WordLevel({"a": 0}, unk_token="a")).encode_batch(["a"] * 64)  # in parallel
from vidspec.limited import Limits, run_limited
setting = lambda: os.environ.get("TOKENIZERS_PARALLELISM", "unset").encode() + b" "
os.register_at_fork(after_in_child=lambda: os.write(1, setting()))
run_limited(len, "text", limits=Limits(2, 10.0, 256 << 20))
os.write(1, setting())
"""


@pytest.mark.parametrize("set_by_user", [None, "true"])
def test_a_fork_prints_no_warning_of_tokenizers(set_by_user):
    env = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    if set_by_user is not None:
        env["TOKENIZERS_PARALLELISM"] = set_by_user
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == 2 * [set_by_user or "unset"] and ran.stderr == ""


def evaluate(source):
    return eval(source, {"os": os, "time": time})


def run(source):
    """Evaluate Python within limits."""
    return run_limited(evaluate, source, limits=LIMITS)


@pytest.mark.full
def test_a_process_with_cuda_is_not_forked(monkeypatch):
    """A spawned process is forked instead, with the same limits."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr(process.os, "fork", lambda: pytest.fail("this process was forked"))
    working, parent = run("os.getpid(), os.getppid()")
    assert os.getpid() not in (working, parent)
    with pytest.raises(OverTime):
        run("sum(iter(int, 1))")
    with pytest.raises(ChildEnded):
        run("os._exit(3)")


def marked(folder, stuck, ends):
    """Python whose first ``stuck`` runs leave a mark and then do something else than end."""
    marks = repr(str(folder))
    first = f"len(os.listdir({marks})) < {stuck} and not os.mkdir(os.path.join({marks}, str(os.getpid())))"
    return f"{ends} if {first} else 'text'"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("stuck", "ends"), [(2, "time.sleep(60)"), (1, "os._exit(3)")])
def test_a_fork_that_is_stuck_or_dies_is_replaced(tmp_path, monkeypatch, stuck, ends):
    """A lock that a thread held when it was forked is no fault of the data."""
    monkeypatch.setattr(limited, "SILENT_S", 0.1)
    monkeypatch.setattr(limited, "ATTEMPTS", 9)  # a thread of this process may hold a lock, too
    assert run(marked(tmp_path, stuck, ends)) == "text"
    assert len(list(tmp_path.iterdir())) == stuck


def test_a_reply_that_came_in_time_is_taken_however_late(monkeypatch):
    """As by a process that was stopped meanwhile."""

    def replied(*args):
        child = fork(*args)
        assert child.channel.connection.poll(60)
        return child

    monkeypatch.setattr(limited, "fork", replied)
    assert limited.run_limited(sum, (1, 2), limits=LIMITS._replace(wall_s=0.0)) == 3


@pytest.mark.full
def test_a_process_whose_forks_are_all_stuck_spawns_one(tmp_path, monkeypatch):
    """As with PyAV 19: there Python drops another thread's scaler, which waits for threads that a fork has not."""
    monkeypatch.setattr(limited, "SILENT_S", 0.1)
    monkeypatch.setattr(process, "_forks_hang", False)
    assert run(marked(tmp_path, limited.ATTEMPTS, "time.sleep(60)")) == "text"
    assert not process.can_fork() and run("1") == 1


@pytest.mark.full
def test_forks_that_are_all_stuck_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(limited, "SILENT_S", 0.1)
    monkeypatch.setattr(process, "_forks_hang", False)
    with pytest.raises(ChildEnded, match="it hangs"):
        run(marked(tmp_path, 99, "time.sleep(60)"))
    assert limited.ATTEMPTS < len(list(tmp_path.iterdir())) <= 2 * limited.ATTEMPTS
