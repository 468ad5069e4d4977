"""Runs a peer over a folder: clips are read ahead, and every caption is written to a file as soon as it is ready.

Uses the standard library alone, as an interpreter without vidspec runs it too.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(
    read: Callable[[T], R], items: Iterable[T], count: int, begin: Callable[[], None] = lambda: None
) -> Iterator[R]:
    """Yield ``read`` of each item, in order; a thread reads up to ``count`` items ahead.

    Args:
        read: reads an item; its exceptions end the iteration.
        items: any number of items.
        count: items read ahead.
        begin: called once in the thread.
    """
    with ThreadPoolExecutor(1, initializer=begin) as thread:
        coming: deque[Future[R]] = deque()
        for item in items:
            coming.append(thread.submit(read, item))
            if len(coming) > count:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def write_captions(captions: Iterable[tuple[str, str, list[int]]]) -> dict[str, object]:
    """Write captions to a file as they are made: path, text and token ids of each clip.

    Returns:
        ``seconds`` from the start of the first clip to the last record written, token ``ids`` by clip, no ``errors``.
    """
    ids: dict[str, list[int]] = {}
    with TemporaryDirectory() as place, (Path(place) / "captions.jsonl").open("w", encoding="utf-8") as file:
        began = time.perf_counter()
        for path, text, tokens in captions:
            ids[path] = tokens
            print(json.dumps({"path": path, "caption": text, "token_ids": tokens}), file=file, flush=True)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "ids": ids, "errors": {}}
