"""``vidspec profiles``: lists the profiles that can be named."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

__all__ = ["profiles"]


class Form(str, Enum):
    """How the list is written."""

    text = "text"
    json = "json"


def profiles(
    form: Annotated[Form, typer.Option("--format", help="json: a list of objects.")] = Form.text,
) -> None:
    """List the profiles, packaged and yours, by group; in a pipe one line each: name, tab, description, tab, group.

    Begin with a recommended one. Exact and parallel ones give the target's own text, loose and lossy ones do not.
    """
    from vidspec.config.files import user_folder
    from vidspec.config.profiles import available

    found = available()
    if form is Form.json:
        fields = ({**info._asdict(), "path": str(info.path)} for info in found)
        print(json.dumps(list(fields), ensure_ascii=False, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [
        (info.name, info.about if info.source == "packaged" else f"{info.about} [{info.path}]".strip(), info.group)
        for info in found
    ]
    console = Console()
    if not console.is_terminal:
        print("\n".join("\t".join(row) for row in rows))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    group = ""
    for name, about, new in rows:
        if new != group:
            group = new
            table.add_row(Text(f"\n{group}", style="underline"), Text(""))
        table.add_row(Text(name), Text(about))
    console.print(table)
    Console(stderr=True).print(Text(f"Your own profiles: {user_folder()}", style="dim"), soft_wrap=True)
