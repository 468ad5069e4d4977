"""``vidspec models``: published pairs and whether they fit this machine, or what one checkpoint is and needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vidspec.cli.options import TextOrJson, target_names
from vidspec.cli.printed import facts_table, print_json
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from vidspec.models.known_pairs import KnownModel, Memory, Pair

__all__ = ["models"]


class Dtype(str, Enum):
    """Of weights and KV cache."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FOLDER",
            help="A checkpoint to look at: a hub id or a folder; without one published pairs are listed.",
            autocompletion=target_names,
            show_default=False,
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME|FOLDER", help="Look at NAME with this draft.")
    ] = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 32,
    size: Annotated[str, typer.Option(metavar="WxH", help="Pixels of a frame.")] = "1280x720",
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="Of weights and KV cache.", show_default="bfloat16; of a checkpoint what this machine's device takes"
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a caption.")] = 512,
    form: Annotated[
        TextOrJson, typer.Option("--format", help="json: a list of objects, of a checkpoint one.")
    ] = TextOrJson.text,
) -> int:
    """List published pairs of target and draft: the memory each needs, whether it fits here, what is in the cache.

    Of a NAME instead: whether it is supported and how, which drafts fit its vocabulary and this machine's memory, and
    the command to run. No weights are read, nor by the list any model.

    Memory is weights and KV cache, nothing pruned and without activations; ? is what is not known. In a pipe a pair is
    one line: target, draft, visual tokens, GiB, licences, cached, remarks, fits, parted by tabs.

    Exit codes: 0, of a NAME 3 if it is not supported, memory does not suffice, or its --draft does not fit it.
    """
    wide, tall = _pixels(size)
    if name is None:
        if draft is not None:
            raise UsageError("--draft needs the name of a target", hint="vidspec models TARGET --draft DRAFT")
        chosen = (dtype or Dtype.bfloat16).value
        rows = list(_rows(frames, (tall, wide), chosen, max_new_tokens))
        if form is TextOrJson.json:
            print_json([row.to_dict() for row in rows])
        else:
            _print_pairs([row.cells for row in rows], f"{frames} frames of {wide} x {tall} pixels, {chosen}")
        return 0
    from vidspec.cli.checkpoint import Load, inspect

    found = inspect(name, draft, Load(frames, (tall, wide), max_new_tokens, dtype.value if dtype else "auto"))
    if form is TextOrJson.json:
        print_json(found.to_dict())
    else:
        *facts, (_, command) = found.rows()
        facts_table(facts)
        print(command)
    refused = draft is not None and found.drafts[0].refused is not None
    return 3 if refused or not found.fits else 0


def _pixels(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if not found:
        raise UsageError(f"--size {text}: is not a size", hint="width x height in pixels, such as 1280x720")
    return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Row:
    """A published pair; ``cached`` of its models are here, and ``fits`` is None where its size is not known."""

    pair: Pair
    tokens: int
    needed: Memory
    cached: frozenset[str]
    fits: bool | None

    def to_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        needed = self.needed
        return {
            "target": self._model(self.pair.target),
            "draft": self.pair.draft and self._model(self.pair.draft),
            "visual_tokens": self.tokens,
            "bytes": {"target": needed.target, "draft": needed.draft, "kv": needed.kv, "total": needed.total},
            "papers": list(self.pair.papers),
            "note": self.pair.note,
            "fits": self.fits,
        }

    def _model(self, one: KnownModel) -> dict[str, Any]:
        return {
            "name": one.name,
            "family": one.family,
            "licence": one.licence,
            "parameters": one.parameters,
            "kv_numbers_per_token": one.kv_per_token,
            "context": one.context,
            "cached": one.name in self.cached,
        }

    @property
    def cells(self) -> tuple[str, ...]:
        """For the table."""
        pair, needed, context = self.pair, self.needed, self.pair.target.context
        both = [pair.target] if pair.draft is None else [pair.target, pair.draft]
        here = [role for role, model in zip(("target", "draft"), both, strict=False) if model.name in self.cached]
        parts = (needed.target, *([] if pair.draft is None else [needed.draft]), needed.kv)
        beyond = f"made for {context} tokens" if context and self.tokens > context else ""
        return (
            pair.target.name,
            "(itself)" if pair.draft is None else pair.draft.name,
            str(self.tokens),
            f"{_gib(needed.total)} = {' + '.join(map(_gib, parts))}",
            ", ".join(dict.fromkeys(model.licence or "?" for model in both)),
            "no" if not here else "yes" if len(here) == len(both) else f"{here[0]} only",
            "; ".join(filter(None, [", ".join(pair.papers), pair.note, beyond])),
            "?" if self.fits is None else "yes" if self.fits else "no",
        )


def _rows(frames: int, size: tuple[int, int], dtype: str, new_tokens: int) -> Iterable[Row]:
    from vidspec.cli.doctor import device_memory, model_cache
    from vidspec.models import known_pairs

    free = device_memory()
    cached = frozenset(name for name, whole in known_pairs.cached_models(model_cache()).items() if whole)
    for pair in known_pairs.known():
        needed = known_pairs.memory(pair, frames, size, dtype, new_tokens)
        tokens = known_pairs.visual_tokens(pair.target.family, frames, size)
        unknown = free is None or needed.total is None
        yield Row(pair, tokens, needed, cached, None if unknown else (needed.total or 0) <= (free or 0))


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
        print("\n".join("\t".join(row) for row in rows))
        return
    title = f"{title}; GiB = target + draft + KV caches"
    if console.width < ROOMY:
        console.print(Text(title, style="italic"))
        for target, alike in groupby(rows, key=lambda row: row[0]):
            console.print(Text(f"\n{target}", style="bold"), soft_wrap=True)
            for _, draft, tokens, gib, licences, cached, remarks, fits in alike:
                facts = (f"{tokens} visual tokens", f"{gib} GiB", f"fits: {fits}", licences, f"cached: {cached}")
                console.print(Text(f"  + {draft}"), soft_wrap=True)
                said = Text("; ".join(filter(None, (*facts, remarks))), style="dim")
                console.print(Padding(said, (0, 0, 0, 4)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for place, heading in enumerate(HEADINGS):
        width = max(len(row[place]) for row in rows) if heading in ("target", "draft") else None
        justify: JustifyMethod = "right" if heading == "visual tokens" else "left"
        table.add_column(heading, justify=justify, overflow="fold", header_style="bold", min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
