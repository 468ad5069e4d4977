"""``vidspec doctor``: prints what ``vidspec.cli.environment`` found, or ``vidspec.cli.checkpoint`` of one model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.options import TextOrJson

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["doctor"]


def doctor(
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME|FOLDER", help="Look at this checkpoint's config instead.")
    ] = None,
    form: Annotated[TextOrJson, typer.Option("--format", help="json: one object.")] = TextOrJson.text,
) -> int:
    """Show versions, devices, what runs language models, video decoders and the model cache; what is missing.

    Of a --model instead: whether it is supported and how, which drafts fit its vocabulary and this machine's memory,
    and the command to run. No weights are read.

    Exit codes: 0 captioning can work, 3 something it needs is missing, or memory does not suffice.
    """
    if model is not None:
        return _model(model, form)
    from vidspec.cli.environment import inspect

    found = inspect()
    if form is TextOrJson.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False, indent=2))
    else:
        from rich.text import Text

        console = _table(found.rows())
        for missing in found.missing:
            need = "missing" if missing.needed else "optional"
            console.print(Text(f"{need}: {missing.what}; {missing.remedy}"), soft_wrap=True)
    return 3 if any(missing.needed for missing in found.missing) else 0


def _model(name: str, form: TextOrJson) -> int:
    from vidspec.cli.checkpoint import inspect

    found = inspect(name)
    if form is TextOrJson.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False, indent=2))
    else:
        *rows, (_, command) = found.rows()
        _table(rows)
        print(command)
    return 0 if found.fits else 3


def _table(rows: Sequence[tuple[str, str]]) -> Console:
    """Labels and values; what they were printed on."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), Text(value))
    console = Console()
    console.print(table)
    return console
