"""``vidspec plan``: its options and its table; decoding measures and planning decides."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli import start
from vidspec.cli.bench import Device, Draft, Dtype, Pair, PairName, Target, Threads
from vidspec.cli.options import TextOrJson
from vidspec.cli.report import left_out, note
from vidspec.errors import GenerationError, UsageError, VideoError
from vidspec.files import Kind, check_output, write_whole

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.choosing.plan import Plan, Way
    from vidspec.config.profiles import Profile
    from vidspec.dataset.work import Entry

__all__ = ["plan"]

COLUMNS = ("way", "sees", "window", "accepted", "tokens / pass", "T_q ms", "decode", "end to end", "")
#: Instead of the first, where several clips may be decoded at once.
TOGETHER = ("way", "at once", "clips/s", "tokens/s", *COLUMNS[1:])
#: What --save writes.
SAVED = Kind("profile that `vidspec plan` saved", rb"(?m)^about: ['\"]?Chosen by vidspec plan\.")
#: Clips of a folder that are tried until one can be measured.
TRIED = 8


def plan(
    clips: Annotated[
        list[str],
        typer.Argument(metavar="CLIP...", help="A video file; several, or folders, for what is best of them."),
    ],
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
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="auto|N",
            help="Clips to caption at once; auto chooses.",
            show_default="1 for a single file, else auto",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=8, help="Of the caption that the drafters are judged by.")
    ] = 64,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE.yaml", help="Write what was chosen as a profile.")
    ] = None,
    form: Annotated[TextOrJson, typer.Option("--format", help="json: everything that was measured.")] = TextOrJson.text,
) -> None:
    """Measure on a clip's beginning which settings are fastest, and say why; nothing that changes the text is chosen.

    Times passes of target and draft, lets every drafter at hand judge the first tokens of the caption, and ranks what
    can be built from them by the speed model. `vidspec caption --profile auto` does the same while captioning.
    Of a folder the first clip is measured, also in passes that several such clips would share; what is chosen is the
    way and how many clips at once.

    vidspec plan clip.mp4 --save fast.yaml
    vidspec plan clips/
    """
    from vidspec.cli.request import batch_of
    from vidspec.config import profiles
    from vidspec.config.profiles import setting
    from vidspec.dataset import inputs

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
    found = inputs.collect(inputs.Sources(tuple(clips)))
    inputs.leave_out_missing(found, clips)
    for line in found.unreadable:
        note(f"error: {line}")
    if not found.entries:
        raise UsageError("there is no video to plan for", hint=left_out(found) or "the list is empty")
    at_once = batch_of(batch or ("auto" if found.several else "1"))
    if save is not None:
        check_output(save, [entry.path for entry in found.entries], "--save", SAVED)
    start.announce(profile)
    with start.uncollected():
        from vidspec.captioner import Captioner

        captioner = Captioner.from_profile(profile)
    with captioner:
        captioner.warm_up()
        planned = _planned(captioner, found.entries[:TRIED], tokens, at_once)
    if save is not None:
        _save(profile, planned, save)
    _print(planned, form, TOGETHER if at_once != 1 else COLUMNS)


def _planned(captioner: Captioner, entries: Sequence[Entry], tokens: int, batch: int | None) -> Plan:
    """By the first of these clips that can be measured."""
    for entry in entries:
        try:
            return captioner.plan(
                entry.path, tokens=tokens, batch=batch, start=entry.start, end=entry.end, prompt=entry.prompt
            )
        except (VideoError, GenerationError) as error:
            if entry is entries[-1]:
                raise
            note(f"note: {error.message}; the next clip is taken")
    raise AssertionError("there is a clip")


def _save(profile: Profile, found: Plan, path: Path) -> None:
    import yaml

    from vidspec.config import profiles

    chosen = profiles.override(profile, dict(found.chosen.overrides))
    content = chosen.model_dump(mode="json", exclude_defaults=True)
    content |= {"name": path.stem, "about": f"Chosen by vidspec plan. {found.why}."}
    write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _cells(way: Way, chosen: bool, columns: Sequence[str]) -> tuple[str, ...]:
    cells = {
        "way": way.label,
        "at once": str(way.batch),
        "clips/s": "-" if way.clips_per_s is None else f"{way.clips_per_s:.3g}",
        "tokens/s": "-" if way.tokens_per_s is None else f"{way.tokens_per_s:.0f}",
        "sees": "-" if way.alpha is None else f"{1 - way.alpha:.0%}",
        "window": str(way.gamma) if way.gamma else "-",
        "accepted": "-" if way.beta is None else f"{way.beta:.0%}",
        "tokens / pass": f"{way.tokens_per_pass:.2f}",
        "T_q ms": "-" if way.tq is None else f"{1e3 * way.tq:.2f}",
        "decode": f"{way.decode:.2f}x",
        "end to end": f"{way.end_to_end:.2f}x",
        "": "chosen" if chosen else "",
    }
    return tuple(cells[column] for column in columns)


def _shown(found: Plan) -> list[Way]:
    """All ways with as many clips at once as were chosen, and of other numbers the best."""
    best: dict[int, Way] = {}
    for way in found.ways:
        best.setdefault(way.batch, way)
    return [way for way in found.ways if way.batch == found.chosen.batch or way is best[way.batch]]


def _print(found: Plan, form: TextOrJson, columns: Sequence[str]) -> None:
    if form is TextOrJson.json:
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

    rows = [_cells(way, way is found.chosen, columns) for way in _shown(found)]
    console = Console(highlight=False)
    passes = ", ".join(f"{rows}: {1e3 * seconds:.1f}" for rows, seconds in found.measured["tp"].items())
    facts = f"judged by {found.measured['judged']} tokens; target passes in ms by rows: {passes}"
    if packed := found.measured.get("tp_packed"):
        many = ", ".join(f"{shape}: {1e3 * seconds:.1f}" for shape, seconds in packed.items())
        facts += f"; by clips x rows of each: {many}"
    if console.is_terminal:
        table = Table(*columns, caption=facts, caption_justify="left")
        for row in rows:
            table.add_row(*row, style="bold" if row[-1] else None)
        console.print(table)
    else:
        print("\n".join("\t".join(row) for row in (columns, *rows)))
        print(facts, file=sys.stderr)
    console.print(found.why)
