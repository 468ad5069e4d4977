"""``vidspec caption``; its options are the fields of a request, which ``vidspec.cli.bulk`` fulfils."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from vidspec.cli.options import Request

__all__ = ["caption"]

P = ParamSpec("P")
R = TypeVar("R")


def taking(request: Callable[P, R]) -> Callable[[Callable[[R], int]], Callable[P, int]]:
    """Makes a command of what takes a request: its options are the fields of ``request``."""

    def made(command: Callable[[R], int]) -> Callable[P, int]:
        @wraps(request, assigned=("__annotations__",))  # whose signature is looked for behind a wrapper
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            return command(request(*args, **kwargs))

        run.__doc__ = command.__doc__
        return run

    return made


@taking(Request)
def caption(request: Request) -> int:
    """Caption videos: files, whole folders, lists and manifests.

    Captions go to stdout, to FILE or to a file for each clip; everything else goes to stderr. A run into files that
    was interrupted goes on where it was when it is given again.

    --help-all shows all options, docs/usage.md says more of each.

    Exit codes: 0 all captioned, 1 some clip failed, 2 usage or profile error,
    3 model or device unavailable, 130 interrupted, 143 terminated.
    """
    from vidspec.cli.bulk import caption_all

    return caption_all(request)
