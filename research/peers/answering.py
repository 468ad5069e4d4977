"""Both ends of a pipe to a worker process that answers requests, one JSON object per line. Knows no models.

Uses the standard library and ``vidspec.errors``, so that an interpreter without vidspec installed can serve too.
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

#: JSON values.
WorkerReply: TypeAlias = Any
#: Functions that a worker process serves, by name.
Functions: TypeAlias = Mapping[str, Callable[..., object]]

#: Program that lets an interpreter without vidspec import a module of this checkout.
_IMPORT_SCRIPT = "import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; main(sys.argv[2])"


def serve_functions(prepare: Callable[[], Functions]) -> None:
    """Answer requests from standard input with these functions until the input ends.

    Output of libraries goes to standard error. The first answer reports that ``prepare`` has made the functions.
    Exceptions are sent as answers too.
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
    """Return the command that runs a module's ``main`` with ``about`` as JSON in another interpreter."""
    root = Path(__file__).resolve().parents[2]
    return [python, "-c", _IMPORT_SCRIPT.format(module=module), str(root), json.dumps(about)]


class JsonWorker:
    """The client of a worker process. The process starts at once; :meth:`ready` waits until it has loaded.

    Args:
        name: for messages.
        command: the command line of the process.
        env: further environment variables.
        cwd: its working directory, if another; Python looks there first for modules.
        limit: seconds per answer; a process that takes longer is killed.
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
        self.name, self._limit, self._timed_out = name, limit, False
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
        """Process id."""
        return self._process.pid

    def ready(self) -> None:
        """Wait until the process has loaded; raise its exception if that failed."""
        with self._time_limit():
            self._read_answer()

    def ask(self, function: str, **arguments: object) -> WorkerReply:
        """Call a function in the process and return its result.

        Raises:
            VidspecError: the function raised it, the process ended or took too long, or its output is not an answer.
        """
        assert self._process.stdin is not None
        with self._time_limit():
            try:
                print(json.dumps({"function": function, **arguments}), file=self._process.stdin, flush=True)
            except OSError:
                raise self._exit_error() from None
            return self._read_answer()

    def close(self) -> None:
        """Wait for the process to end; kill it if it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # the last request may be unread
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _read_answer(self) -> WorkerReply:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._exit_error()
        try:
            response = json.loads(line)
            if "value" in response:
                return response["value"]
            kind: type[VidspecError] = getattr(errors, response["error"] or "", VidspecError)
            error = kind(f"{self.name}: {response['message']}", hint=response["hint"])
        except (ValueError, TypeError, LookupError):
            error = VidspecError(f"{self.name}: its process did not write an answer: {line.strip()[:80]}")
        raise error

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Kill the process when the limit passes; a reader that waits for it then sees it end."""

        def end() -> None:
            self._timed_out = True
            self._process.kill()

        timer = threading.Timer(self._limit or 0.0, end)
        if self._limit is not None:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _exit_error(self) -> VidspecError:
        code = self._process.wait()
        if self._timed_out:
            return VidspecError(f"{self.name}: its process did not answer within {self._limit:g} s")
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        why = f": {lines[-1].strip()}" if lines else ""
        return VidspecError(f"{self.name}: its process ended with exit code {code}{why}")
