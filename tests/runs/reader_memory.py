"""Measures what the processes that read clips take together.

``python -m tests.runs.reader_memory FILE... --readers 2``

Each file is read as ``vidspec batch`` reads it and let go at once. The peak is of the memory that the processes do not
share with others (the sum of their "Private" pages), sampled every 20 ms; this process is not counted.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from vidspec.config import profiles
from vidspec.config.run_spec import RunSpec
from vidspec.runs.feed import Feed
from vidspec.runs.job import Job
from vidspec.runs.reader import ClipReader


def private(process: int) -> int:
    """Bytes of a process's own; 0 where it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private"))
    return 0


def peak(paths: list[str], count: int) -> tuple[int, list[str]]:
    """(the most bytes that ``count`` readers had at once, the errors that they gave)."""
    readers = [ClipReader() for _ in range(count)]
    how = RunSpec(batch=8)
    most, errors, over = 0, [], threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            processes = [reader._child for reader in readers]
            most = max(most, sum(private(process.pid) for process in processes if process is not None))

    watcher = threading.Thread(target=watch)
    watcher.start()
    tasks = [Job(path, number=number) for number, path in enumerate(paths, start=1)]
    with closing(Feed(tasks, how, profiles.parse({"name": "any", "video": {"frames": 32}}), readers)) as feed:
        while not feed.over:
            work = feed.take()
            if work is None:
                feed.wake.wait(0.1)
                continue
            if work.job.error is not None:
                errors.append(str(work.job.error))
            feed.release(work)
            del work
    over.set()
    watcher.join()
    return most, errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--readers", type=int, default=2)
    asked = parser.parse_args()
    began = time.monotonic()
    most, errors = peak(asked.files, asked.readers)
    print(f"{len(asked.files)} files, {asked.readers} readers: {most / 1e9:.2f} GB, {time.monotonic() - began:.0f} s")
    print(*errors, sep="\n")


if __name__ == "__main__":
    main()
