"""The command line: thin commands over the library, one file each. Imports no torch, av or transformers."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.signals import end_quietly_on_interrupt

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run ``vidspec`` with ``args`` (by default the process's own) and return its exit code."""
    if args is None:
        end_quietly_on_interrupt()
        from vidspec.cli.printed import complete_streams

        complete_streams()
    from vidspec.cli.app import app, run_app

    return run_app(app, "vidspec", args)
