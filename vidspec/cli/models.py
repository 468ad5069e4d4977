"""``vidspec models``: lists published pairs, inspects a checkpoint, and chooses the default models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vidspec.cli.options import BUILT_IN, TextOrJson, target_names
from vidspec.cli.printed import facts_table, print_json, print_rows
from vidspec.errors import ModelError, UsageError
from vidspec.events.tally import counted

if TYPE_CHECKING:
    from vidspec.cli.checkpoint import CheckpointReport
    from vidspec.cli.predictions import CardPredictions
    from vidspec.models.known_pairs import KnownModel, MemoryWorkload, ModelPair, PairMemory
    from vidspec.models.recommended import Card

__all__ = ["models"]


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[use|get] NAME|FOLDER",
            help="A checkpoint to inspect: a hub id or a folder. Without it, published pairs are listed. use NAME "
            "makes it the default of `vidspec caption`, get NAME downloads it and its listed draft.",
            autocompletion=target_names,
            show_default=False,
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME|FOLDER", help="Inspect, use or get NAME with this draft.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="With use: go back to the demo pair.")] = False,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 32,
    size: Annotated[str, typer.Option(metavar="WxH", help="Width and height of a frame in pixels.")] = "1280x720",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(
            help="Type of weights and KV cache.", show_default="bfloat16; for a checkpoint, the default of this device"
        ),
    ] = None,
    weights: Annotated[
        Literal["int8", "int4"] | None,
        typer.Option(help="Quantise NAME, a target, at load (models.weights).", show_default="unchanged"),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            help="Predict speeds of NAME on a card, such as 4090 or h100.", show_default="the GPU here, if any"
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a caption.")] = 512,
    form: Annotated[
        TextOrJson, typer.Option("--format", help="json: a list of objects; for a checkpoint, one object.")
    ] = "text",
) -> int:
    """List published pairs of target and draft: memory, whether each fits this machine, what is in the cache.

    With NAME, inspect a checkpoint instead: whether and how it is supported, which drafts fit its vocabulary and this
    machine's memory, and the command to run. Weights are never read; the list reads no models at all. On an NVIDIA GPU,
    or with --card, the speeds of plain decoding and of every draft that exists for NAME are predicted.

    `vidspec models use NAME` makes NAME the default of `vidspec caption` in the user's config; `vidspec models use
    --none` removes it. The list marks the pair in use and recommends one: with a GPU the largest target that leaves a
    fifth of the free memory, without one the smallest.

    Memory is weights and KV cache, without pruning and activations; ? means unknown. In a pipe each pair is one line,
    separated by tabs: target, draft, visual tokens, GiB, licences, cached, remarks, fits.

    Exit codes: 0; with NAME, 3 if it is not supported, memory (with --card, the card's) does not suffice, or its
    --draft does not fit it.
    """
    from vidspec.models.known_pairs import MemoryWorkload

    width, height = _parse_size(size)
    load = MemoryWorkload(frames, (height, width), max_new_tokens, dtype or "auto")
    verb, *names = words or [""]
    if verb in ("use", "get"):
        inspects = {"--dtype": dtype, "--weights": weights, "--card": card, "--format": form != "text"}
        inspects |= {"--frames": frames != 32, "--size": size != "1280x720", "--max-new-tokens": max_new_tokens != 512}
        return _choose(verb, names, draft, [option for option, given in inspects.items() if given], none=none)
    if none or names:
        what = "--none" if none else names[0]
        raise UsageError(f"models: {what}: unexpected argument", hint="vidspec models [use|get] NAME")
    if verb in BUILT_IN:
        raise UsageError(f"models: {verb}: is a built-in pair", hint=f"vidspec models use {verb}")
    if verb:
        return _print_checkpoint(verb, draft, load, weights, card, form)
    for option, value in (("--card", card), ("--draft", draft), ("--weights", weights)):
        if value is not None:
            raise UsageError(f"{option} needs the name of a target", hint=f"vidspec models TARGET {option} {value}")
    load = load._replace(dtype=dtype or "bfloat16")
    if form == "json":
        print_json([row.to_dict() for row in _rows(load)])
    else:
        clip = f"{counted(frames, 'frame')} of {width} x {height} pixels"
        _print_pairs(list(_rows(load)), f"{clip}, {load.dtype}")
    return 0


def _choose(verb: str, names: list[str], draft: str | None, others: Sequence[str], *, none: bool) -> int:
    """Run ``models use`` or ``models get``, which take no other options; returns the exit code."""
    from vidspec.cli import choosing

    for option in others:
        raise UsageError(f"models {verb}: takes no {option}", hint=f"vidspec models NAME {option} ... inspects NAME")
    if verb == "use":
        return choosing.choose_models(names, draft, none=none)
    if none:
        raise UsageError("models get: takes no --none", hint="vidspec models use --none")
    return choosing.download_models(names, draft)


def _parse_size(size: str) -> tuple[int, int]:
    """Parse ``--size`` into width and height."""
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if not found:
        raise UsageError(f"--size {size}: is not a size", hint="give width x height in pixels, such as 1280x720")
    return int(found[1]), int(found[2])


def _print_checkpoint(
    name: str,
    draft: str | None,
    load: MemoryWorkload,
    weights: Literal["int8", "int4"] | None,
    card: str | None,
    form: TextOrJson,
) -> int:
    """Inspect a checkpoint and print the findings; returns the exit code."""
    from vidspec.models.recommended import named_card

    on = None if card is None else named_card(card)
    from vidspec.cli.checkpoint import inspect

    try:
        found = inspect(name, draft, load, weights, on)
    except ModelError as error:
        load = load._replace(dtype="bfloat16" if load.dtype == "auto" else load.dtype)
        rows = _rows(load, None if on is None else round(on.usable))
        named = (row for row in rows if name in (row.pair.target.name, row.pair.draft and row.pair.draft.name))
        published = list(named)
        if error.kind not in ("missing", "connection") or not published or weights is not None:
            raise
        return _print_published(name, published, _predict_published(name, load, on), load, on, form)
    if form == "json":
        print_json(found.to_dict())
    else:
        facts_table(found.rows())
        fits = found.fits_on(on) or (found.predicted is not None and not found.predicted.is_too_large)
        print(found.command if fits else _smaller_choice(found, draft, load, weights, on))
    refused = draft is not None and found.drafts[0].refused is not None
    return 3 if refused or not found.fits_on(on) else 0


def _smaller_choice(
    found: CheckpointReport, draft: str | None, load: MemoryWorkload, weights: str | None, card: Card | None
) -> str:
    """Return the line that names what fits in place of a target that does not: its rounded weights or another model."""
    from vidspec.cli.checkpoint import inspect
    from vidspec.errors import VidspecError

    finer: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")
    for bits in finer[finer.index(weights) + 1 :] if weights in finer else finer:
        try:
            rounded = inspect(found.name, draft, load, bits, card)
        except VidspecError:  # of a family, or of stored codes, that cannot be rounded
            continue
        if rounded.fits_on(card):
            return f"with --weights {bits} it fits: {rounded.command}"
    return _fitting_model(load._replace(dtype=found.dtype), card)


def _fitting_model(load: MemoryWorkload, card: Card | None) -> str:
    """Return the line that names the published model that fits best, on a card or on this machine."""
    from vidspec.models.known_pairs import recommended_pair
    from vidspec.models.machine import device_memory, has_gpu

    free = device_memory() if card is None else round(card.usable)
    best = recommended_pair(load, free, smallest=card is None and not has_gpu()) if free else None
    if best is None:
        return "no published model fits; the built-in ones are small: vidspec caption clip.mp4 --pair embedded"
    return f"{best.target.name} fits: vidspec models {best.target.name}"


def _predict_published(name: str, load: MemoryWorkload, card: Card | None) -> CardPredictions | None:
    """Return predicted speeds of a published target on a card; None without a card, or if it is not in the table."""
    from vidspec.cli.predictions import CardPredictions
    from vidspec.decoding import auto
    from vidspec.models.known_pairs import known_model
    from vidspec.models.machine import device_memory
    from vidspec.models.recommended import predictions_of_published

    target, at = known_model(name), card or auto.card_here()
    if target is None or at is None:
        return None
    predicted = predictions_of_published(target, at, load, device_memory() if card is None else at.usable)
    return None if predicted is None else CardPredictions(at, name, predicted)


def _print_published(
    name: str,
    rows: list[PairRow],
    predicted: CardPredictions | None,
    load: MemoryWorkload,
    card: Card | None,
    form: TextOrJson,
) -> int:
    """Print the published pairs of a model whose config is not available; returns the exit code."""
    fits = [row.fits for row in rows] + ([predicted.fits] if predicted is not None and card is not None else [])
    if form == "json":
        facts = {"name": name, "supported": True, "cached": False, "pairs": [row.to_dict() for row in rows]}
        print_json(facts | {"predicted": predicted and predicted.to_dict()})
    else:
        facts_table(_published_facts(name, rows, predicted, card))
        drafted = any(row.pair.draft is not None and row.pair.target.name == name for row in rows)
        plain_command = f"vidspec caption clip.mp4 --target {name}" + ("" if drafted else " --profile ar")
        too_large = all(one is False for one in fits) if predicted is None else predicted.is_too_large
        command = plain_command if predicted is None else predicted.command
        print(_fitting_model(load, card) if too_large else command)
    return 3 if all(one is False for one in fits) else 0


def _published_facts(
    name: str, rows: list[PairRow], predicted: CardPredictions | None, card: Card | None
) -> Iterator[tuple[str, str]]:
    """Yield labels and values for the table of a published model."""
    place = "this machine" if card is None else card.name
    yield "model", name
    yield "family", f"{next(model.family for row in rows for model in row.models if model.name == name)}, supported"
    yield "figures", "published ones: its config is not in the cache and cannot be fetched now"
    for row in sorted(rows, key=lambda row: row.pair.target.name != name):
        yield row.fact(name, place)
    if predicted is not None:
        yield from predicted.rows()
    elif card is not None:
        yield "predicted", f"no speeds on {card.name}: it is not in the table of predictions"


@dataclass(frozen=True)
class PairRow:
    """A published pair in the list.

    ``cached`` models are in the cache; ``fits`` is None if the pair's size is not known; ``chosen`` is the one in the
    user's config.
    """

    pair: ModelPair
    tokens: int | None
    needed: PairMemory
    cached: frozenset[str]
    fits: bool | None
    chosen: bool = False
    recommended: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return the object for ``--format json``."""
        pair = self.pair
        return {
            "target": self._model(pair.target),
            "draft": pair.draft and self._model(pair.draft),
            "visual_tokens": self.tokens,
            "bytes": {**asdict(self.needed), "total": self.needed.total},
            "papers": list(pair.papers),
            "note": pair.note,
            "fits": self.fits,
            "chosen": self.chosen,
            "recommended": self.recommended,
        }

    def _model(self, one: KnownModel) -> dict[str, object]:
        facts = {key: getattr(one, key) for key in ("name", "family", "licence", "parameters", "context")}
        return {**facts, "kv_numbers_per_token": one.kv_per_token, "cached": one.name in self.cached}

    @property
    def models(self) -> tuple[KnownModel, ...]:
        return (self.pair.target,) if self.pair.draft is None else (self.pair.target, self.pair.draft)

    def fact(self, name: str, place: str) -> tuple[str, str]:
        """Return a label and the memory of the pair, for one of its models; ``place`` has the memory."""
        label = "draft" if self.pair.target.name == name else "drafts for"
        other = next((model.name for model in self.models if model.name != name), "(itself)")
        room = "" if self.fits is None else f", {'fits' if self.fits else 'too much for'} {place}"
        return label, f"{other}: {_gib(self.needed.total)} GiB together with a clip{room}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of the table."""
        pair, needed, context = self.pair, self.needed, self.pair.target.context
        roles = {"target": pair.target} | ({} if pair.draft is None else {"draft": pair.draft})
        here = [role for role, model in roles.items() if model.name in self.cached]
        parts = [getattr(needed, part) for part in (*roles, "kv")]
        marks = ["in use"] * self.chosen + ["recommended here"] * self.recommended
        beyond = f"made for {context} tokens" if context and (self.tokens or 0) > context else ""
        return (
            pair.target.name,
            "(itself)" if pair.draft is None else pair.draft.name,
            "?" if self.tokens is None else str(self.tokens),
            f"{_gib(needed.total)} = {' + '.join(map(_gib, parts))}",
            ", ".join(dict.fromkeys(model.licence or "?" for model in roles.values())),
            "no" if not here else "yes" if len(here) == len(roles) else f"{here[0]} only",
            "; ".join(filter(None, [*marks, ", ".join(pair.papers), pair.note, beyond])),
            "?" if self.fits is None else "yes" if self.fits else "no",
        )


def _rows(load: MemoryWorkload, free: int | None = None) -> Iterator[PairRow]:
    """Yield the published pairs; they fit if ``free`` bytes suffice, by default those of this machine."""
    from vidspec.config.user_config import read_config
    from vidspec.models import known_pairs
    from vidspec.models.machine import device_memory, has_gpu, model_cache

    free, keys = free or device_memory(), read_config().keys
    target, draft = keys.get("models.target"), keys.get("models.draft")
    draft = known_pairs.listed_draft(str(target)) if draft is None else draft
    advised = known_pairs.recommended_pair(load, free, smallest=not has_gpu()) if free else None
    cached = frozenset(name for name, whole in known_pairs.cached_models(model_cache()).items() if whole)
    for pair in known_pairs.known_pairs():
        needed = known_pairs.pair_memory(pair, load)
        tokens = load.visual_tokens(pair.target.family)
        fits = None if free is None or needed.total is None else needed.total <= free
        chosen = (pair.target.name, pair.draft and pair.draft.name) == (target, draft)
        yield PairRow(pair, tokens, needed, cached, fits, chosen, pair is advised)


def _gib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f}"


#: Terminal columns needed for the table; a narrower terminal gets a few lines per pair.
TABLE_COLUMNS = 166
HEADINGS = ("target", "draft", "visual tokens", "GiB", "licences", "cached", "remarks", "fits")


def _choice_lines(found: list[PairRow]) -> Iterator[str]:
    """Yield lines that name the default models and the recommended ones."""
    from vidspec.config.user_config import read_config

    config = read_config()
    pair, target = (config.keys.get(f"models.{key}") for key in ("pair", "target"))
    demo = f"the built-in pair {pair or 'embedded'}, a demo that knows drawn shapes only"
    yield f"in use: {target or demo} ({config.path if target or pair else 'no models are chosen'})"
    yield from (f"recommended here: vidspec models use {row.pair.target.name}" for row in found if row.recommended)


def _print_pairs(found: list[PairRow], title: str) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console, rows = Console(), [row.cells for row in found]
    if not console.is_terminal:
        print_rows(rows)
        return
    for line in _choice_lines(found):
        console.print(Text(line))
    title = f"{title}; GiB = target + draft + KV caches"
    if console.width < TABLE_COLUMNS:
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
