"""``vidspec pairs``: lists published models that make a pair, what they need, and whether they are here."""

from __future__ import annotations

import json
import re
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vidspec.cli.options import TextOrJson
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import JustifyMethod

    from vidspec.models.known_pairs import KnownModel, Memory, Pair

__all__ = ["pairs"]


class Dtype(str, Enum):
    """Of weights and KV cache."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def pairs(
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 32,
    size: Annotated[str, typer.Option(metavar="WxH", help="Pixels of a frame.")] = "1280x720",
    dtype: Annotated[Dtype, typer.Option(help="Of weights and KV cache.")] = Dtype.bfloat16,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a caption.")] = 512,
    form: Annotated[TextOrJson, typer.Option("--format", help="json: a list of objects.")] = TextOrJson.text,
) -> None:
    """List published pairs of target and draft, the memory each needs, and which are in the local cache.

    Memory is weights and KV cache, nothing pruned and without activations; ? is what is not known. In a pipe one line
    each: target, draft, visual tokens, GiB, licences, cached, remarks, parted by tabs.
    """
    from vidspec.cli.environment import model_cache
    from vidspec.models import known_pairs

    wide, tall = _pixels(size)
    here = known_pairs.cached_models(model_cache())
    rows = [
        (
            pair,
            known_pairs.visual_tokens(pair.target.family, frames, (tall, wide)),
            known_pairs.memory(pair, frames, (tall, wide), dtype.value, max_new_tokens),
        )
        for pair in known_pairs.known()
    ]
    if form is TextOrJson.json:
        print(json.dumps([_object(*row, here) for row in rows], ensure_ascii=False, indent=2))
    else:
        _table([_cells(*row, here) for row in rows], f"{frames} frames of {wide} x {tall} pixels, {dtype.value}")


def _pixels(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if not found:
        raise UsageError(f"--size {text}: is not a size", hint="width x height in pixels, such as 1280x720")
    return int(found[1]), int(found[2])


def _object(pair: Pair, tokens: int, needed: Memory, here: Mapping[str, bool]) -> dict[str, Any]:
    def model(one: KnownModel | None) -> dict[str, Any] | None:
        if one is None:
            return None
        return {
            "name": one.name,
            "family": one.family,
            "licence": one.licence,
            "parameters": one.parameters,
            "kv_numbers_per_token": one.kv_per_token,
            "context": one.context,
            "cached": here.get(one.name, False),
        }

    counted = {"target": needed.target, "draft": needed.draft, "kv": needed.kv, "total": needed.total}
    return {
        "target": model(pair.target),
        "draft": model(pair.draft),
        "visual_tokens": tokens,
        "bytes": counted,
        "papers": list(pair.papers),
        "note": pair.note,
    }


#: Columns a terminal must have for a table whose names stay on one line; a narrower one gets a few lines for each pair.
ROOMY = 160
HEADINGS = ("target", "draft", "visual tokens", "GiB", "licences", "cached", "remarks")


def _cells(pair: Pair, tokens: int, needed: Memory, here: Mapping[str, bool]) -> tuple[str, ...]:
    models = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    cached = [name for name, model in zip(("target", "draft"), models, strict=False) if here.get(model.name)]
    parts = (needed.target, *([] if pair.draft is None else [needed.draft]), needed.kv)
    context = pair.target.context
    remarks = [", ".join(pair.papers), pair.note, f"made for {context} tokens" if context and tokens > context else ""]
    return (
        pair.target.name,
        "(itself)" if pair.draft is None else pair.draft.name,
        str(tokens),
        f"{_gib(needed.total)} = {' + '.join(map(_gib, parts))}",
        ", ".join(dict.fromkeys(model.licence or "?" for model in models)),
        "no" if not cached else "yes" if len(cached) == len(models) else f"{cached[0]} only",
        "; ".join(filter(None, remarks)),
    )


def _gib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f}"


def _table(rows: list[tuple[str, ...]], title: str) -> None:
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
            for _, draft, tokens, gib, licences, cached, remarks in alike:
                facts = (f"{tokens} visual tokens", f"{gib} GiB", licences, f"cached: {cached}", remarks)
                console.print(Text(f"  + {draft}"), soft_wrap=True)
                console.print(Padding(Text("; ".join(filter(None, facts)), style="dim"), (0, 0, 0, 4)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for place, heading in enumerate(HEADINGS):
        width = max(len(row[place]) for row in rows) if heading in ("target", "draft") else None
        justify: JustifyMethod = "right" if heading == "visual tokens" else "left"
        table.add_column(heading, justify=justify, overflow="fold", header_style="bold", min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
