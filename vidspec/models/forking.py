"""Fork a process that has used ``tokenizers``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["silent_tokenizers"]

_PARALLELISM = "TOKENIZERS_PARALLELISM"


@contextmanager
def silent_tokenizers() -> Iterator[None]:
    """Silence the warning that ``tokenizers`` prints in a forked child, unless the user set the variable."""
    if _PARALLELISM in os.environ:
        yield
        return
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        os.environ.pop(_PARALLELISM, None)
