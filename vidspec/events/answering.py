"""Two ends of a pipe: a process that answers requests, a line of JSON each. Knows neither models nor the functions.

Standard library alone, so that another interpreter, which has nothing of vidspec installed, can answer too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from vidspec import errors
from vidspec.errors import VidspecError

__all__ = ["Functions", "JsonWorker", "WorkerReply", "serve_functions", "worker_command"]

#: JSON values.
WorkerReply: TypeAlias = Any
#: By name what a process can be asked to do.
Functions: TypeAlias = Mapping[str, Callable[..., object]]

#: Lets an interpreter without vidspec import this one, and nothing else of the environment it lies in.
_LENDING = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("vidspec", sys.argv[1] + "/__init__.py",
                                              submodule_search_locations=[sys.argv[1]])
sys.modules["vidspec"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from {module} import main
main(sys.argv[2])
"""


def serve_functions(prepare: Callable[[], Functions]) -> None:
    """Answer the requests of standard input by the functions of these names, until it ends.

    What libraries print goes to standard error. A first answer says that ``prepare`` has made the functions; an
    exception is an answer too.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    functions: Functions | None = None

    def respond(call: Callable[[], object]) -> None:
        response: dict[str, object]
        try:
            response = {"value": call()}
        except Exception as error:
            traceback.print_exc()
            known = error if isinstance(error, VidspecError) else None
            response = {
                "error": type(known).__name__ if known else None,
                "message": known.message if known else f"{type(error).__name__}: {error}",
                "hint": known.hint if known else None,
            }
        print(json.dumps(response), file=answers, flush=True)

    def begin() -> bool:
        nonlocal functions
        functions = prepare()
        return True

    respond(begin)
    if functions is None:
        return
    for line in sys.stdin:
        request = json.loads(line)
        respond(partial(functions[request.pop("function")], **request))


def worker_command(python: str, module: str, about: object) -> list[str]:
    """The command by which another interpreter runs a module's ``main`` with ``about`` as JSON."""
    folder = Path(__file__).resolve().parents[1]
    return [python, "-c", _LENDING.format(module=module), str(folder), json.dumps(about)]


class JsonWorker:
    """The end that sends requests. The process starts at once; :meth:`ready` waits until it has loaded what it needs.

    Args:
        name: for messages.
        command: the process.
        env: variables for it, besides those of this process.
        cwd: where it runs, if elsewhere: Python looks there for modules before all others.
        limit: seconds that an answer may take; a process that takes longer is ended.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        *,
        limit: float | None = None,
    ) -> None:
        self.name, self._limit, self._late = name, limit, False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the worker
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                encoding="utf-8",
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )
        except OSError as error:
            raise errors.UsageError(f"{name}: {command[0]} cannot be run: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ready(self) -> None:
        """Wait until it has loaded; raises what that raised."""
        with self._in_time():
            self._answer()

    def ask(self, function: str, **arguments: object) -> WorkerReply:
        """What the function of this name returns there.

        Raises:
            VidspecError: it says so, has ended, took too long, or what it wrote is no answer.
        """
        assert self._process.stdin is not None
        with self._in_time():
            try:
                print(json.dumps({"function": function, **arguments}), file=self._process.stdin, flush=True)
            except OSError:
                raise self._ended() from None
            return self._answer()

    def close(self) -> None:
        """Let it end, or end it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # the last request, which it has not read
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _answer(self) -> WorkerReply:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        try:
            response = json.loads(line)
            if "value" in response:
                return response["value"]
            kind: type[VidspecError] = getattr(errors, response["error"]) if response["error"] else VidspecError
            error = kind(f"{self.name}: {response['message']}", hint=response["hint"])
        except (ValueError, TypeError, LookupError, AttributeError):
            error = VidspecError(f"{self.name}: its process wrote what is no answer: {line.strip()[:80]}")
        raise error

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """End the process if this takes longer than the limit; whoever waits for it then sees it end."""

        def end() -> None:
            self._late = True
            self._process.kill()

        timer = threading.Timer(self._limit or 0.0, end)
        if self._limit is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _ended(self) -> VidspecError:
        code = self._process.wait()
        if self._late:
            return VidspecError(f"{self.name}: its process did not answer within {self._limit:g} s")
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        why = f": {lines[-1].strip()}" if lines else ""
        return VidspecError(f"{self.name}: its process ended with exit code {code}{why}")
