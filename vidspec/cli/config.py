"""``vidspec config``: the values that a run would use, and where each comes from."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from vidspec.cli.options import CaptionArguments, DebugOption, ProfileOption, SetOption, TextOrJson
from vidspec.cli.printed import print_note
from vidspec.escaping import json_text, one_line

__all__ = ["app"]

app = typer.Typer(help="Show the user's own defaults.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Show the user's own defaults."""


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
    from vidspec.cli.request import profile_overrides
    from vidspec.cli.start import resolve_profile
    from vidspec.config.user_config import CHOSEN, read_config

    defaults = read_config()
    resolved = resolve_profile(profile, profile_overrides(CaptionArguments(settings=settings)), defaults)
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
        print_note(f"there is no {defaults.path}; it may hold profile, format and any section of a profile")
