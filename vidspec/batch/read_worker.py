"""The process that reads clips for another: ``python -m vidspec.batch.read_worker``. Loads no model.

It says that it is ready with one byte. Requests are lines of JSON on standard input. An answer is the length of a
header (8 bytes, big endian), the header as JSON, and for frames their bytes and those of their timestamps. The process
ends when its standard input does, whatever it is doing then, so that it never outlives the run it belongs to.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any, BinaryIO

__all__ = ["main"]


def main() -> None:
    """Serve requests until standard input ends."""
    # Libraries that print must not write into the answers: they get standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import vidspec.batch.segments
    import vidspec.video.reading  # noqa: F401  what every request needs

    answers.write(b"!")
    answers.flush()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        _answer(json.loads(requests.get()), answers)


def _listen(source: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        requests.put(line)
    os._exit(0)


def _answer(request: dict[str, Any], answers: BinaryIO) -> None:
    from dataclasses import asdict

    import numpy as np

    from vidspec import video
    from vidspec.batch.segments import cut
    from vidspec.errors import VidspecError

    payload: tuple[Any, ...] = ()
    try:
        if request.pop("op") == "segments":
            header: dict[str, Any] = {"segments": cut(**request)}
        else:
            clip = video.read(**request)
            header = {"shape": clip.frames.shape, "facts": asdict(clip.facts)}
            payload = (np.ascontiguousarray(clip.frames), np.ascontiguousarray(clip.timestamps))
    except VidspecError as error:
        known = {"message": error.message, "hint": error.hint, "kind": error.kind, "stage": error.stage}
        header = {"error": known, "class": type(error).__name__}
    except Exception as error:  # the parent tells it apart from the errors above, and goes on
        header = {"error": {"message": f"{type(error).__name__}: {error}"}, "class": None}
    text = json.dumps(header).encode()
    answers.write(len(text).to_bytes(8, "big") + text)
    for array in payload:
        answers.write(memoryview(array).cast("B"))
    answers.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # nobody waits for the answer any more
        os._exit(0)
