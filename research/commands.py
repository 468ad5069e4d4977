"""Entry point of research commands: like ``vidspec``, every error is one line on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import typer

from vidspec.cli.app import run_app
from vidspec.cli.options import flatten_options
from vidspec.errors import UsageError

TableFormat: TypeAlias = Literal["markdown", "json"]


def application(command: Callable[..., int | None]) -> typer.Typer:
    """Return an application of a single command."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command()(flatten_options()(command))
    return app


def run(command: Callable[..., int | None], name: str, args: Sequence[str] | None = None) -> int:
    """Run the function behind ``python -m research.NAME`` on arguments (the process's own if None)."""
    return run_app(application(command), f"python -m research.{name}", args)


def parse_counts(text: str, option: str, example: str) -> list[int]:
    """Parse increasing numbers, separated by commas.

    Raises:
        UsageError: ``text`` is anything else.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers != sorted(set(numbers)):
        raise UsageError(f"{option} {text}: must be increasing numbers", hint=f"such as {option} {example}")
    return numbers
