"""``vidspec profiles``: lists profiles."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Annotated

import typer

from vidspec.cli.options import TextOrJson, profile_names
from vidspec.cli.printed import facts_table, print_json, print_rows
from vidspec.errors import UsageError
from vidspec.registry import nearest


def profiles(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="List only these.", autocompletion=profile_names, show_default="the main ones"
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also list baselines, ablations and the papers' other variants.")
    ] = False,
    form: Annotated[TextOrJson, typer.Option("--format", help="json: a list of objects.")] = "text",
) -> None:
    """List the main profiles and your own by group; in a pipe, one line each: name, description, group.

    Start with a recommended one. Exact and parallel profiles give the target's own text; loose and lossy ones do not.
    """
    from vidspec.config.files import user_folder
    from vidspec.config.profiles import available

    known = available()
    wanted = set(names or ())
    if missing := wanted - {info.name for info in known}:
        name = sorted(missing)[0]
        close = nearest(name, [info.name for info in known])
        meant = f"; did you mean {close}?" if close else ""
        raise UsageError(f"there is no profile {name}{meant}", hint="vidspec profiles --all lists them")
    found = [info for info in known if (info.name in wanted if wanted else every or info.chosen)]
    if form == "json":
        print_json([{**info._asdict(), "path": str(info.path)} for info in found])
        return
    from rich.console import Console
    from rich.text import Text

    rows = [
        (info.name, info.about if info.source == "packaged" else f"{info.about} [{info.path}]".strip(), info.group)
        for info in found
    ]
    console = Console()
    if not console.is_terminal:
        print_rows(rows)
        return
    for group, listed in groupby(rows, itemgetter(2)):
        console.print(Text(f"\n{group}", style="underline"))
        facts_table((name, about) for name, about, _ in listed)
    more = f"{len(known) - len(found)} more with --all. " if len(found) < len(known) else ""
    Console(stderr=True).print(Text(f"{more}Your own profiles: {user_folder()}", style="dim"), soft_wrap=True)
