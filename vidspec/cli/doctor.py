"""``vidspec doctor``: prints what ``vidspec.cli.environment`` found."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from vidspec.cli.options import TextOrJson

__all__ = ["doctor"]


def doctor(
    form: Annotated[TextOrJson, typer.Option("--format", help="json: one object.")] = TextOrJson.text,
) -> int:
    """Show versions, devices, what runs language models, video decoders and the model cache; what is missing.

    Exit codes: 0 captioning can work, 3 something it needs is missing.
    """
    from vidspec.cli.environment import inspect

    found = inspect()
    if form is TextOrJson.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False, indent=2))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for label, value in found.rows():
            table.add_row(Text(label), Text(value))
        console = Console()
        console.print(table)
        for missing in found.missing:
            need = "missing" if missing.needed else "optional"
            console.print(Text(f"{need}: {missing.what}; {missing.remedy}"), soft_wrap=True)
    return 3 if any(missing.needed for missing in found.missing) else 0
