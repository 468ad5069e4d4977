"""``vidspec plan``: its options and its table; decoding measures and planning decides."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli import start
from vidspec.cli.bench import Device, Draft, Dtype, Pair, PairName, Target, Threads
from vidspec.errors import OutputError, UsageError

if TYPE_CHECKING:
    from vidspec.planning.plan import Plan, Way
    from vidspec.profiles import Profile

__all__ = ["plan"]

COLUMNS = ("way", "sees", "window", "accepted", "tokens / pass", "T_q ms", "decode", "end to end", "")


class Form(str, Enum):
    """How the plan is written."""

    text = "text"
    json = "json"


def plan(
    clip: Annotated[Path, typer.Argument(metavar="CLIP", help="A video file.")],
    pair: Pair = PairName.embedded,
    target: Target = None,
    draft: Draft = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override any key of the profile auto: --set video.frames=16."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=8, help="Of the caption that the drafters are judged by.")
    ] = 64,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE.yaml", help="Write what was chosen as a profile.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="json: everything that was measured.")] = Form.text,
) -> None:
    """Measure on a clip's beginning which settings are fastest, and say why; nothing that changes the text is chosen.

    Times passes of target and draft, lets every drafter at hand judge the first tokens of the caption, and ranks what
    can be built from them by the speed model. `vidspec caption --profile auto` does the same while captioning.

    vidspec plan clip.mp4 --save fast.yaml
    """
    from vidspec import profiles
    from vidspec.profiles import setting

    overrides: dict[str, object] = {"models.device": device, "models.dtype": dtype, "models.threads": threads}
    if target is not None:
        overrides |= {"models.pair": None, "models.target": target, "models.draft": draft}
    elif draft is not None:
        raise UsageError("--draft needs --target", hint="or --pair alone for a built-in pair")
    else:
        overrides["models.pair"] = pair.value
    for given in settings or ():
        try:
            key, value = setting(given)
        except ValueError:
            raise UsageError(f"--set {given}: must be KEY=VALUE, such as video.frames=16") from None
        overrides[key] = value
    profile = profiles.load("auto", overrides)
    if not clip.is_file():
        raise UsageError(f"{clip}: there is no such file")
    if save is not None and not save.resolve().parent.is_dir():
        raise OutputError(f"--save {save}: there is no such folder")
    start.announce(profile)
    with start.uncollected():
        from vidspec.captioner import Captioner

        captioner = Captioner.from_profile(profile)
    with captioner:
        captioner.warm_up()
        found = captioner.plan(clip, tokens=tokens)
    if save is not None:
        _save(profile, found, save)
    _print(found, form)


def _save(profile: Profile, found: Plan, path: Path) -> None:
    import yaml

    from vidspec import profiles

    chosen = profiles.override(profile, dict(found.chosen.overrides))
    content = chosen.model_dump(mode="json", exclude_defaults=True)
    content |= {"name": path.stem, "about": f"Chosen by vidspec plan. {found.why}."}
    try:
        path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"--save {path}: cannot be written: {error.strerror}") from error


def _cells(way: Way, chosen: bool) -> tuple[str, ...]:
    return (
        way.label,
        "-" if way.alpha is None else f"{1 - way.alpha:.0%}",
        str(way.gamma) if way.gamma else "-",
        "-" if way.beta is None else f"{way.beta:.0%}",
        f"{way.tokens_per_pass:.2f}",
        "-" if way.tq is None else f"{1e3 * way.tq:.2f}",
        f"{way.decode:.2f}x",
        f"{way.end_to_end:.2f}x",
        "chosen" if chosen else "",
    )


def _print(found: Plan, form: Form) -> None:
    if form is Form.json:
        import json

        content = {
            "chosen": found.chosen.to_dict(),
            "why": found.why,
            "ways": [way.to_dict() for way in found.ways],
            "measured": dict(found.measured),
        }
        print(json.dumps(content, ensure_ascii=False, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    rows = [_cells(way, way is found.chosen) for way in found.ways]
    console = Console(highlight=False)
    passes = ", ".join(f"{rows}: {1e3 * seconds:.1f}" for rows, seconds in found.measured["tp"].items())
    facts = f"judged by {found.measured['judged']} tokens; target passes in ms by rows: {passes}"
    if console.is_terminal:
        table = Table(*COLUMNS, caption=facts, caption_justify="left")
        for row in rows:
            table.add_row(*row, style="bold" if row[-1] else None)
        console.print(table)
    else:
        print("\n".join("\t".join(row) for row in (COLUMNS, *rows)))
        print(facts, file=sys.stderr)
    console.print(found.why)
