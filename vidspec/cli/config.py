"""``vidspec config``: the values that a run would use and where each comes from, and a reference of all keys."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from vidspec.cli.options import DebugOption, ProfileOption, SetOption, TextOrJson, parse_settings
from vidspec.cli.printed import print_json, print_note, print_rows
from vidspec.errors import UsageError
from vidspec.escaping import json_text, one_line

app = typer.Typer(help="Show defaults, and the keys of a profile.", no_args_is_help=True, suggest_commands=False)


@app.callback()
def _root() -> None:
    """Show defaults, and the keys of a profile."""


@app.command("show")
def show(
    profile: ProfileOption = None,
    settings: SetOption = None,
    form: Annotated[TextOrJson, typer.Option("--format", help="json: one object.")] = "text",
    debug: DebugOption = False,
) -> None:
    """Show every value that `vidspec caption` would use, and where it comes from.

    In order of precedence: flag, VIDSPEC_* variable, profile, user's config, default.
    """
    from vidspec.config.user_config import CHOSEN, read_config
    from vidspec.decoding.default_profile import resolve_profile

    defaults = read_config()
    resolved = resolve_profile(profile, parse_settings(settings, "draft.gamma=4"), defaults)
    config = str(defaults.path)
    rows: list[tuple[str, object, str]] = []
    if profile is not None:
        source = "VIDSPEC_PROFILE" if os.environ.get("VIDSPEC_PROFILE") == profile else "flag"
        rows.append(("profile", profile, source))
    else:
        origin = CHOSEN if resolved.sources["name"] == CHOSEN else config if defaults.profile else "default"
        rows.append(("profile", defaults.profile or resolved.profile.name, origin))
    rows.append(("format", defaults.format or "text", config if defaults.format else "default"))
    values = resolved.profile.model_dump()
    for key, source in resolved.sources.items():
        section, _, inner = key.partition(".")
        if inner:
            rows.append((key, values[section][inner], source))
    if form == "json":
        print(json.dumps({key: {"value": value, "source": source} for key, value, source in rows}, indent=2))
        return
    width = max(len(key) for key, _, _ in rows)
    for key, value, source in rows:
        print(f"{key:{width}}  {json_text(value)}  [{one_line(source)}]")
    if not defaults.path.is_file():
        print_note(f"there is no {defaults.path}; it may hold profile, format, models, video and generate")


@app.command("keys")
def keys(
    sections: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION...", help="List only these.", show_default="all")
    ] = None,
    form: Annotated[TextOrJson, typer.Option("--format", help="json: a list of objects.")] = "text",
) -> None:
    """List the keys of a profile: options that set them, values, default and meaning; in a pipe, one line each.

    A key is set in a profile, by --set KEY=VALUE or by a variable: VIDSPEC_PRUNE__ALPHA is prune.alpha. With null the
    value is chosen.
    """
    from vidspec.cli.key_reference import key_sections

    known = key_sections()
    if missing := [name for name in sections or () if name not in known]:
        raise UsageError(f"profiles have no section {missing[0]}", hint=f"the sections are {', '.join(known)}")
    shown = {name: known[name] for name in sections or known}
    found = [key for _, listed in shown.values() for key in listed]
    if form == "json":
        print_json([key._asdict() for key in found])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print_rows(found)
        return
    for name, (about, listed) in shown.items():
        console.print(Text(f"\n{name}: {about}", style="underline"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("key, option", style="bold", overflow="fold", ratio=3)
        table.add_column("values", overflow="fold", ratio=3)
        table.add_column("default", overflow="fold", ratio=1)
        table.add_column("", overflow="fold", ratio=5)
        for row in listed:
            table.add_row(*map(Text, row))
        console.print(table)
