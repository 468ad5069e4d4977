"""Forks of a process that has used ``tokenizers``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["silent_tokenizers"]

_PARALLELISM = "TOKENIZERS_PARALLELISM"


@contextmanager
def silent_tokenizers() -> Iterator[None]:
    """Fork without a warning of ``tokenizers`` on the terminal: at the fork it prints one in the child unless this
    variable is set. A setting of the user stays."""
    if _PARALLELISM in os.environ:
        yield
        return
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        os.environ.pop(_PARALLELISM, None)
