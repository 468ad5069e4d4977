"""``vidspec models``: published pairs and whether they fit this machine, or what one checkpoint is and needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vidspec.cli.options import TextOrJson, target_names
from vidspec.cli.printed import facts_table, print_json, print_rows
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.models.known_pairs import KnownModel, Load, Memory, Pair

__all__ = ["models"]


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FOLDER",
            help="A checkpoint to inspect: a hub id or a folder. Without it, published pairs are listed.",
            autocompletion=target_names,
            show_default=False,
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME|FOLDER", help="Inspect NAME with this draft.")
    ] = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 32,
    size: Annotated[str, typer.Option(metavar="WxH", help="Width and height of a frame in pixels.")] = "1280x720",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(
            help="Of weights and KV cache.", show_default="bfloat16; for a checkpoint, the default of this device"
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a caption.")] = 512,
    form: Annotated[
        TextOrJson, typer.Option("--format", help="json: a list of objects; for a checkpoint, one object.")
    ] = "text",
) -> int:
    """List published pairs of target and draft: the memory each needs, whether it fits here, what is in the cache.

    With NAME it shows instead whether and how the checkpoint is supported, which drafts fit its vocabulary and this
    machine's memory, and the command to run. Weights are never read; the list reads no models at all.

    Memory is weights and KV cache, without pruning and activations; ? means unknown. In a pipe each pair is one line,
    separated by tabs: target, draft, visual tokens, GiB, licences, cached, remarks, fits.

    Exit codes: 0; with NAME, 3 if it is not supported, memory does not suffice, or its --draft does not fit it.
    """
    from vidspec.models.known_pairs import Load

    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if not found:
        raise UsageError(f"--size {size}: is not a size", hint="width x height in pixels, such as 1280x720")
    load = Load(frames, (int(found[2]), int(found[1])), max_new_tokens, dtype or "auto")
    if name is not None:
        return _checkpoint(name, draft, load, form)
    if draft is not None:
        raise UsageError("--draft needs the name of a target", hint="vidspec models TARGET --draft DRAFT")
    load = load._replace(dtype=dtype or "bfloat16")
    if form == "json":
        print_json([row.to_dict() for row in _rows(load)])
    else:
        clip = f"{frames} frames of {found[1]} x {found[2]} pixels"
        _print_pairs([row.cells for row in _rows(load)], f"{clip}, {load.dtype}")
    return 0


def _checkpoint(name: str, draft: str | None, load: Load, form: TextOrJson) -> int:
    """Print what is known of one checkpoint; returns the exit code."""
    from vidspec.cli.checkpoint import inspect

    found = inspect(name, draft, load)
    if form == "json":
        print_json(found.to_dict())
    else:
        facts_table(found.rows())
        print(found.command)
    refused = draft is not None and found.drafts[0].refused is not None
    return 3 if refused or not found.fits else 0


@dataclass(frozen=True)
class Row:
    """A published pair. ``cached`` models are in the cache; ``fits`` is None where the pair's size is not known."""

    pair: Pair
    tokens: int
    needed: Memory
    cached: frozenset[str]
    fits: bool | None

    def to_dict(self) -> dict[str, object]:
        """For ``--format json``."""
        pair = self.pair
        return {
            "target": self._model(pair.target),
            "draft": pair.draft and self._model(pair.draft),
            "visual_tokens": self.tokens,
            "bytes": {**asdict(self.needed), "total": self.needed.total},
            "papers": list(pair.papers),
            "note": pair.note,
            "fits": self.fits,
        }

    def _model(self, one: KnownModel) -> dict[str, object]:
        facts = {key: getattr(one, key) for key in ("name", "family", "licence", "parameters", "context")}
        return {**facts, "kv_numbers_per_token": one.kv_per_token, "cached": one.name in self.cached}

    @property
    def cells(self) -> tuple[str, ...]:
        """For the table."""
        pair, needed, context = self.pair, self.needed, self.pair.target.context
        roles = {"target": pair.target} | ({} if pair.draft is None else {"draft": pair.draft})
        here = [role for role, model in roles.items() if model.name in self.cached]
        parts = [getattr(needed, part) for part in (*roles, "kv")]
        beyond = f"made for {context} tokens" if context and self.tokens > context else ""
        return (
            pair.target.name,
            "(itself)" if pair.draft is None else pair.draft.name,
            str(self.tokens),
            f"{_gib(needed.total)} = {' + '.join(map(_gib, parts))}",
            ", ".join(dict.fromkeys(model.licence or "?" for model in roles.values())),
            "no" if not here else "yes" if len(here) == len(roles) else f"{here[0]} only",
            "; ".join(filter(None, [", ".join(pair.papers), pair.note, beyond])),
            "?" if self.fits is None else "yes" if self.fits else "no",
        )


def _rows(load: Load) -> Iterator[Row]:
    from vidspec.cli.doctor import device_memory, model_cache
    from vidspec.models import known_pairs

    free = device_memory()
    cached = frozenset(name for name, whole in known_pairs.cached_models(model_cache()).items() if whole)
    for pair in known_pairs.known():
        needed = known_pairs.memory(pair, load)
        tokens = known_pairs.visual_tokens(pair.target.family, load.frames, load.size)
        yield Row(pair, tokens, needed, cached, None if free is None or needed.total is None else needed.total <= free)


def _gib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f}"


#: Columns a terminal must have for a table whose names stay on one line; a narrower one gets a few lines for each pair.
ROOMY = 166
HEADINGS = ("target", "draft", "visual tokens", "GiB", "licences", "cached", "remarks", "fits")


def _print_pairs(rows: list[tuple[str, ...]], title: str) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print_rows(rows)
        return
    title = f"{title}; GiB = target + draft + KV caches"
    if console.width < ROOMY:
        console.print(Text(title, style="italic"))
        for target, alike in groupby(rows, key=lambda row: row[0]):
            console.print(Text(f"\n{target}", style="bold"), soft_wrap=True)
            for _, draft, tokens, gib, licences, cached, remarks, fits in alike:
                facts = [f"{tokens} visual tokens", f"{gib} GiB", f"fits: {fits}", licences, f"cached: {cached}"]
                facts += [remarks] if remarks else []
                console.print(Text(f"  + {draft}"), soft_wrap=True)
                console.print(Padding(Text("; ".join(facts), style="dim"), (0, 0, 0, 4)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for place, heading in enumerate(HEADINGS):
        width = max(len(row[place]) for row in rows) if heading in ("target", "draft") else None
        justify: Literal["left", "right"] = "right" if heading == "visual tokens" else "left"
        table.add_column(heading, justify=justify, overflow="fold", header_style="bold", min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
