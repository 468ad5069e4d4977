"""``vidspec models``: what runs on this machine and how fast, a checkpoint's findings, and the default models."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from vidspec.cli.options import BUILT_IN, TextOrJson, flatten_options, target_names
from vidspec.cli.printed import print_json, print_note, print_rows
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.cli.checkpoint import CheckpointReport
    from vidspec.models.known_pairs import KnownModel, MemoryWorkload
    from vidspec.models.own_heads import OwnHead
    from vidspec.models.recommended import Card, VideoScore

#: Rows for this machine without ``--all``, and the share of free memory that they leave on a device not in the table.
SHOWN, SPARE = 3, 0.2


@dataclass(frozen=True)
class ModelsOptions:
    """Options of ``vidspec models``, besides the words that name a model."""

    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME|FOLDER", help="Inspect, use or get NAME with this draft.")
    ] = None
    none: Annotated[bool, typer.Option("--none", help="With use: go back to the demo pair.")] = False
    every: Annotated[bool, typer.Option("--all", help="List all published pairs, the smallest first.")] = False
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 32
    size: Annotated[str, typer.Option(metavar="WxH", help="Width and height of a frame in pixels.")] = "1280x720"
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(
            help="Type of weights and KV cache.", show_default="bfloat16; for a checkpoint, the default of this device"
        ),
    ] = None
    weights: Annotated[
        Literal["int8", "int4"] | None,
        typer.Option(help="Quantise NAME, a target, at load (models.weights).", show_default="unchanged"),
    ] = None
    card: Annotated[
        str | None,
        typer.Option(help="List for a card, such as 4090 or h100.", show_default="the GPU here, if any"),
    ] = None
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a caption.")] = 512
    form: Annotated[
        TextOrJson, typer.Option("--format", help="json: a list of objects; for a checkpoint, one object.")
    ] = "text"

    def load(self, dtype: str) -> MemoryWorkload:
        """Return the clip that memory is counted for; ``dtype`` where none is given."""
        from vidspec.models.known_pairs import MemoryWorkload

        found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", self.size)
        if not found:
            raise UsageError(f"--size {self.size}: is not a size", hint="give width x height in pixels: 1280x720")
        return MemoryWorkload(self.frames, (int(found[2]), int(found[1])), self.max_new_tokens, self.dtype or dtype)

    @property
    def inspecting(self) -> list[str]:
        """The given options that inspect or list models."""
        flags = {"every": "--all", "form": "--format", "max_new_tokens": "--max-new-tokens"}
        names = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        return [flags.get(name, f"--{name}") for name in names if name not in ("draft", "none")]


@flatten_options()
def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[use|get|remove] NAME|FOLDER",
            help="A listed model, as one types it (qwen3-vl 8b), another hub id or a folder. use NAME makes it the "
            "default of `vidspec caption`, get NAME downloads it and its listed draft, remove NAME deletes a head that "
            "`vidspec train` made.",
            autocompletion=target_names,
            show_default=False,
        ),
    ] = None,
    *,
    options: ModelsOptions,
) -> int:
    """List three models for this machine: memory, predicted gain, published quality, and the command to run.

    On a GPU these are the largest listed ones that fit it, those with a gain first; without one the smallest that leave
    a fifth of the memory. With NAME, the drafts and heads of a listed model, the default one first; another checkpoint
    is inspected by its config: whether it is supported, and which drafts fit its vocabulary and this machine's memory.
    Weights are never read.

    Gains are over plain decoding, looked up in a table of predictions for NVIDIA GPUs, whose default draft `vidspec
    caption` takes. Quality is what the model's publisher states, with the address: per cent of the questions of
    Video-MME answered correctly from the video, without subtitles; some models think first there, and not here.

    `vidspec models use NAME` makes NAME the default of `vidspec caption` in the user's config; `vidspec models use
    --none` removes it. Heads that `vidspec train` made here follow the rows, with date, clips and measured gain.

    Memory is weights and KV cache, without pruning and activations; ? means unknown. In a pipe each row is one line,
    separated by tabs: model, memory, gain, quality, command.

    Exit codes: 0; with NAME, 3 if it is not supported, memory does not suffice, or its --draft does not fit it.
    """
    from vidspec.models.known_pairs import named_model

    verb, *names = words or [""]
    if verb == "remove":
        return _remove(names)
    if verb in ("use", "get"):
        return _choose(verb, names, options)
    name = " ".join([verb, *names])
    if options.none:
        raise UsageError("models: --none: unexpected argument", hint="vidspec models use --none")
    if name in BUILT_IN:
        raise UsageError(f"models: {name}: is a built-in pair", hint=f"vidspec models use {name}")
    known = named_model(name) if name else None
    if names and known is None:
        raise UsageError(f"models: {name}: no such model is listed", hint="vidspec models --all")
    if name and (known is None or options.draft is not None or options.weights is not None):
        return _print_checkpoint(known.name if known else name, options)
    return _print_listed(known, options)


def _print_listed(known: KnownModel | None, options: ModelsOptions) -> int:
    """Print the rows of a listed model, or of all that suit this machine or a card; returns the exit code."""
    from vidspec.models.known_pairs import published_heads
    from vidspec.models.own_heads import own_heads
    from vidspec.models.recommended import named_card

    for option, value in (("--draft", options.draft), ("--weights", options.weights)):
        if value is not None:
            raise UsageError(f"{option} needs the name of a target", hint=f"vidspec models TARGET {option} {value}")
    machine = _Machine.here(options.load("bfloat16"), None if options.card is None else named_card(options.card))
    rows = machine.all_rows if options.every else machine.best_rows
    found = rows() if known is None else machine.rows_of(known)
    heads = [head for head in own_heads() if known is None or head.target == known.name]
    if options.form == "json":
        own = [{**_head_row(head).to_dict(), "made": head.made, "clips": head.clips} for head in heads]
        print_json([*(row.to_dict() for row in found), *own])
    else:
        _print_rows(found)
        for head in heads:
            gain = f"{head.decode:.1f}x plain decoding, measured" if head.gains else "gains too little, not used"
            print_rows([(f"{head.target} with {head.name}", f"trained {head.made}", f"{head.clips} clips", gain)])
        if known is not None and not {row.draft for row in found}.isdisjoint(head.name for head in published_heads()):
            print_note("no published head has been run here: --baseline measures what it gains")
    if not found:
        print_note("no published model fits; the built-in ones are small: vidspec caption clip.mp4 --pair embedded")
    known_sizes = [row.fits for row in found if row.bytes is not None]
    return 3 if known is not None and known_sizes and all(fits is False for fits in known_sizes) else 0


def _choose(verb: str, names: list[str], options: ModelsOptions) -> int:
    """Run ``models use`` or ``models get``, which inspect nothing; returns the exit code."""
    from vidspec.cli import choosing
    from vidspec.models.known_pairs import named_model

    for option in options.inspecting:
        raise UsageError(f"models {verb}: takes no {option}", hint=f"vidspec models NAME {option} ... inspects NAME")
    names = [named.name if (named := named_model(name)) else name for name in names]
    if verb == "use":
        return choosing.choose_models(names, options.draft, none=options.none)
    if options.none:
        raise UsageError("models get: takes no --none", hint="vidspec models use --none")
    return choosing.download_models(names, options.draft)


def _remove(names: Sequence[str]) -> int:
    from vidspec.models.own_heads import remove_head

    if len(names) != 1:
        raise UsageError("models remove: takes the name of one head", hint="vidspec models lists them")
    head = remove_head(names[0])
    print(f"{head.name}: removed, a head of {head.target}")
    return 0


def _head_row(head: OwnHead) -> ModelRow:
    command = f"vidspec caption clip.mp4 --target {shlex.quote(head.target)}"
    return ModelRow(head.target, head.name, None, round(head.decode, 2), None, command)


def _print_checkpoint(name: str, options: ModelsOptions) -> int:
    """Inspect a checkpoint and print the findings; returns the exit code."""
    from vidspec.cli.checkpoint import inspect

    if options.card is not None:
        hint = f"vidspec models --card {options.card}"
        raise UsageError("--card lists models of the table, and inspects none", hint=hint)
    draft, load, weights = options.draft, options.load("auto"), options.weights
    found = inspect(name, draft, load, weights)
    if options.form == "json":
        print_json(found.to_dict())
    else:
        _print_rows(_inspected_rows(found))
        if not found.fits and (finer := _finer_weights(found, draft, load, weights)) is not None:
            print_note(f"with --weights {finer} it fits")
    refused = draft is not None and found.drafts[0].refused is not None
    return 3 if refused or not found.fits else 0


def _inspected_rows(found: CheckpointReport) -> Iterator[ModelRow]:
    """Yield a row for a checkpoint, and one for each draft that does not fit it, with the reason."""
    fitting = next((fit for fit in found.drafts if fit.refused is None), None)
    size = found.needed if fitting is None or "--draft" not in found.command else fitting.bytes
    yield ModelRow(found.name, None, size, None, found.fits, found.command)
    for fit in found.drafts:
        if fit.refused is not None:
            yield ModelRow(found.name, fit.draft, fit.bytes, None, False, f"not with {fit.draft}: {fit.refused}")


def _finer_weights(found: CheckpointReport, draft: str | None, load: MemoryWorkload, weights: str | None) -> str | None:
    """Return the fewest lost bits with which a target that does not fit does; None if there are none."""
    from vidspec.cli.checkpoint import inspect
    from vidspec.errors import VidspecError

    finer: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")
    for bits in finer[finer.index(weights) + 1 :] if weights in finer else finer:
        try:
            if inspect(found.name, draft, load, bits).fits:
                return bits
        except VidspecError:  # of a family, or of stored codes, that cannot be rounded
            continue
    return None


class ModelRow(NamedTuple):
    """A target with a draft, or without: bytes of both and a clip, the predicted gain, and the command.

    None is unknown; ``fits`` compares with the memory of the card or of this machine.
    """

    target: str
    draft: str | None
    bytes: int | None
    gain: float | None
    fits: bool | None
    command: str

    @property
    def quality(self) -> VideoScore | None:
        """The published score of the target."""
        from vidspec.models.recommended import video_scores

        return video_scores().get(self.target)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        from vidspec.models.known_pairs import known_model

        size = "?" if self.bytes is None else f"{self.bytes / 2**30:.1f} GiB"
        gain = "-" if self.gain is None else f"{self.gain:.1f}x"
        quality = "not published" if known_model(self.target) else "-"
        if (score := self.quality) is not None:
            quality = f"{score.benchmark} {score.score:.1f} ({score.source})"
        return self.target, size + ("" if self.fits is not False else ", too much"), gain, quality, self.command

    def to_dict(self) -> dict[str, object]:
        """Return the row as an object of JSON."""
        return {**self._asdict(), "quality": None if self.quality is None else self.quality._asdict()}


class _Machine(NamedTuple):
    """Facts that rows depend on: the clip, the card if it is in the table, free bytes, and models in the cache."""

    load: MemoryWorkload
    card: Card | None
    free: int | None
    gpu: bool
    cached: Collection[str]

    @classmethod
    def here(cls, load: MemoryWorkload, card: Card | None) -> _Machine:
        """Return this machine, or a card."""
        from vidspec.models import machine
        from vidspec.models.known_pairs import cached_models

        cached = {name for name, whole in cached_models(machine.model_cache()).items() if whole}
        if card is not None:
            return cls(load, card, round(card.usable), True, cached)
        free, gpu = machine.device_memory(), machine.has_gpu()
        if gpu:
            from vidspec.decoding import auto

            card = auto.card_here()
        return cls(load, card, free, gpu, cached)

    def rows_of(self, target: KnownModel) -> list[ModelRow]:
        """Return the rows of a target: with its default draft, other listed ones, and published heads."""
        from vidspec.models.known_pairs import known_pairs, pair_memory, published_heads
        from vidspec.models.recommended import PLAINLY, default_on

        pairs = [pair for pair in known_pairs() if pair.target == target]
        best = default_on(self.card, target, self.load, self.cached) if self.card is not None else None
        named = f"vidspec caption clip.mp4 --target {shlex.quote(target.name)}"
        found: list[ModelRow] = []
        draft: str | None
        if best is not None:
            draft = None if best.draft == PLAINLY else best.draft
            found.append(self._row(target, draft, best.bytes, best.gain, named))
        for pair in pairs:
            draft = None if pair.draft is None else pair.draft.name
            if best is None or draft not in (None, best.draft):
                more = f" --draft {draft}" if found and draft else ""
                found.append(self._row(target, draft, pair_memory(pair, self.load).total, None, named + more))
        if not found:
            weights = target.weight_bytes(self.load.dtype)
            size = None if weights is None else weights + target.kv_bytes(self.load)
            found.append(self._row(target, None, size, None, named))
        for head in published_heads():
            if head.target == target.name and (best is None or best.draft != head.name):
                command = f"{named} --profile {head.kind} --draft {head.name}"
                found.append(self._row(target, head.name, None, None, command))
        return found

    def _row(
        self, target: KnownModel, draft: str | None, size: int | None, gain: float | None, command: str
    ) -> ModelRow:
        fits = None if size is None or self.free is None else size <= self.free
        return ModelRow(target.name, draft, size, gain, fits, command)

    def all_rows(self) -> list[ModelRow]:
        """Return the rows of all published targets, the smallest first, those of unknown size last."""
        from vidspec.models.known_pairs import known_pairs

        targets = dict.fromkeys(pair.target for pair in known_pairs())
        found = [row for target in targets for row in self.rows_of(target)]
        return sorted(found, key=lambda row: (row.bytes is None, row.bytes or 0))

    def best_rows(self) -> list[ModelRow]:
        """Return the default rows of the targets that suit this machine best."""
        from vidspec.models.known_pairs import listed_targets

        room = (self.free or 0) * (1 if self.card is not None else 1 - SPARE)
        by_size: dict[int, ModelRow] = {}
        for target in listed_targets(self.load):
            row = self.rows_of(target)[0]
            if row.bytes is not None and row.bytes <= room and target.parameters is not None:
                by_size.setdefault(target.parameters, row)
        found = [by_size[size] for size in sorted(by_size, reverse=self.gpu)]
        return sorted(found, key=lambda row: (row.gain or 1.0) == 1.0)[:SHOWN]


def _print_rows(found: Iterator[ModelRow] | Sequence[ModelRow]) -> None:
    """Print rows: three lines each on a terminal, one with tabs in a pipe."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print_rows([row.cells for row in found])
        return
    for model, size, gain, quality, command in (row.cells for row in found):
        console.print(Text.assemble((model, "bold"), f"  {size}  {gain}"), soft_wrap=True)
        console.print(Text(f"  {quality}", style="dim"), soft_wrap=True)
        console.print(Text(f"  {command}"), soft_wrap=True)
