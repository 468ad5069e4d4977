"""A peer's run over a folder: every caption goes to a file as soon as it is there.

Standard library alone, as an interpreter without vidspec uses it too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["recorded"]


def recorded(captions: Iterable[tuple[str, str, list[int]]]) -> dict[str, Any]:
    """Write down what is made while it is asked for: path, text and token ids of each clip.

    Returns:
        ``seconds`` from the first clip asked for to the last record written, token ``ids`` by clip, no ``errors``.
    """
    ids: dict[str, list[int]] = {}
    with TemporaryDirectory() as place, (Path(place) / "captions.jsonl").open("w", encoding="utf-8") as file:
        began = time.perf_counter()
        for path, text, tokens in captions:
            ids[path] = tokens
            print(json.dumps({"path": path, "caption": text, "token_ids": tokens}), file=file, flush=True)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "ids": ids, "errors": {}}
