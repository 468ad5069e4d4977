"""Rendering of chat templates in processes of their own."""

import os
import subprocess
import sys
import time

import pytest

from vidspec import limited, process
from vidspec.errors import ModelError
from vidspec.models import chat_template
from vidspec.models.chat_template import TemplateRenderer
from vidspec.process import fork

PROGRAM = """
import os
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
Tokenizer(WordLevel({"a": 0}, unk_token="a")).encode_batch(["a"] * 64)  # in parallel
from vidspec.models.chat_template import TemplateRenderer
setting = lambda: os.environ.get("TOKENIZERS_PARALLELISM", "unset").encode() + b" "
os.register_at_fork(after_in_child=lambda: os.write(1, setting()))
TemplateRenderer(lambda messages: "text")("t", [])
os.write(1, setting())
"""


@pytest.mark.parametrize("set_by_user", [None, "true"])
def test_rendering_a_template_prints_no_warning_of_tokenizers(set_by_user):
    env = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    if set_by_user is not None:
        env["TOKENIZERS_PARALLELISM"] = set_by_user
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == 2 * [set_by_user or "unset"] and ran.stderr == ""


def apply(messages, template=""):
    """A template of Python instead of Jinja."""
    return str(eval(template, {"messages": messages, "os": os, "time": time}))


@pytest.mark.full
def test_a_process_with_cuda_is_not_forked(monkeypatch):
    """A spawned process is forked instead, with the same limits; it is kept, and replaced when it ends."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr(process.os, "fork", lambda: pytest.fail("this process was forked"))
    monkeypatch.setattr(chat_template, "LIMITS", chat_template.LIMITS._replace(wall_s=60.0))
    renderer = TemplateRenderer(apply)
    child = renderer._child
    assert renderer("m", [{"role": "user"}], template="messages[0]['role']") == "user"
    rendering, parent = renderer("m", [], template="os.getpid(), os.getppid()")[1:-1].split(", ")
    assert int(parent) == child.pid != int(rendering)
    with pytest.raises(ModelError, match="m: its chat template takes too long"):
        renderer("m", [], template="sum(iter(int, 1))")
    with pytest.raises(ModelError, match="m: its chat template cannot be rendered: division by zero"):
        renderer("m", [], template="1 / 0")
    child.kill()
    with pytest.raises(ModelError, match=r"its process ended \(SIGKILL\)"):
        renderer("m", [], template="1")
    assert renderer("m", [], template="1") == "1" and renderer._child is not child
    renderer._child.end()


def marked(folder, stuck, ends):
    """A template whose first ``stuck`` renderings leave a mark and then do something else than end."""
    marks = repr(str(folder))
    first = f"len(os.listdir({marks})) < {stuck} and not os.mkdir(os.path.join({marks}, str(os.getpid())))"
    return f"{ends} if {first} else 'text'"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("stuck", "ends"), [(2, "time.sleep(60)"), (1, "os._exit(3)")])
def test_a_fork_that_is_stuck_or_dies_is_replaced(tmp_path, monkeypatch, stuck, ends):
    """A lock that a thread held when it was forked is no fault of the template."""
    monkeypatch.setattr(limited, "SILENT_S", 0.1)
    monkeypatch.setattr(limited, "ATTEMPTS", 9)  # a thread of this process may hold a lock, too
    assert TemplateRenderer(apply)("m", [], template=marked(tmp_path, stuck, ends)) == "text"
    assert len(list(tmp_path.iterdir())) == stuck


def test_a_reply_that_came_in_time_is_taken_however_late(monkeypatch):
    """As by a process that was stopped meanwhile."""

    def replied(*args):
        child = fork(*args)
        assert child.channel.connection.poll(60)
        return child

    monkeypatch.setattr(limited, "fork", replied)
    assert limited.run_limited(sum, (1, 2), limits=chat_template.LIMITS._replace(wall_s=0.0)) == 3


@pytest.mark.full
def test_a_process_whose_forks_are_all_stuck_spawns_one(tmp_path, monkeypatch):
    """As with PyAV 19: there Python drops another thread's scaler, which waits for threads that a fork has not."""
    monkeypatch.setattr(limited, "SILENT_S", 0.1)
    monkeypatch.setattr(process, "_forks_hang", False)
    renderer = TemplateRenderer(apply)
    assert renderer("m", [], template=marked(tmp_path, limited.ATTEMPTS, "time.sleep(60)")) == "text"
    assert not process.can_fork() and renderer("m", [], template="1") == "1"
    renderer._child.end()


@pytest.mark.full
def test_forks_that_are_all_stuck_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(limited, "SILENT_S", 0.1)
    monkeypatch.setattr(process, "_forks_hang", False)
    with pytest.raises(ModelError, match=r"its process ended 3 times \(it hangs\)"):
        TemplateRenderer(apply)("m", [], template=marked(tmp_path, 99, "time.sleep(60)"))
    assert limited.ATTEMPTS < len(list(tmp_path.iterdir())) <= 2 * limited.ATTEMPTS
