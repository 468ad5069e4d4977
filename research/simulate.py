"""``python -m research.simulate``: replay a paper's table, predict a what-if, or predict a batch on a device.

A what-if is answered by formula, simulation and a timeline; a batch by tokens/s and clips/s of many clips at once.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from research.commands import run
from research.prediction.constants import DECODE_USE
from vidspec.bench import tables
from vidspec.cli.printed import print_json
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from research.replay.load import Assumed
    from research.replay.predict import Times
    from research.replay.tables import Replay
    from research.replay.whatif import Estimate

TableFormat: TypeAlias = Literal["text", "json", "csv", "markdown"]

TABLE_COLUMNS = ("method", "models", "benchmark", "predicted", "claimed", "deviation", "formula", "assumed")
WHATIF_COLUMNS = ("method", "gamma", "predicted", "formula", "end_to_end", "tokens_per_pass")
AT_ONCE = "Many clips at once, beside --batch"
BATCH_COLUMNS = (
    "device",
    "pair",
    "visual",
    "batch",
    "plain_tokens_per_s",
    "unpruned_gain",
    "unpruned_gamma",
    "pruned_gain",
    "pruned_gamma",
    "plain_clips_per_s",
    "pruned_clips_per_s",
    "plain_memory",
    "pruned_memory",
)
#: Options that need --batch, and those that may be combined with it.
OF_BATCH = {"--device", "--pair", "--visual", "--kept", "--weights", "--decode-use", "--prefill-use"}
BESIDE_BATCH = {"--batch", "--beta", "--gamma", "--tokens", "--format"}
MOST_CLIPS, MOST_VISUAL = 4096, 1_000_000


def command(
    context: typer.Context,
    table: Annotated[
        str | None, typer.Option("--table", help="A paper's table, such as parallelvlm-1, replayed beside its claims.")
    ] = None,
    tp: Annotated[
        str | None, typer.Option("--tp", help="Target pass in ms: one figure, or by rows: 1:420,10:435.")
    ] = None,
    tq: Annotated[float | None, typer.Option("--tq", help="Draft pass on one token, in ms.")] = None,
    beta: Annotated[float | None, typer.Option("--beta", help="Probability that a drafted token is accepted.")] = None,
    gamma: Annotated[str, typer.Option("--gamma", help="Draft window: a number, or auto.")] = "auto",
    self_draft: Annotated[bool, typer.Option("--self", help="Self drafting: auto rounds up instead of down.")] = False,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Length of the text.", show_default="512; with --batch 256")
    ] = None,
    target_prefill: Annotated[float, typer.Option("--target-prefill", help="In ms; gives end-to-end figures.")] = 0.0,
    draft_prefill: Annotated[float, typer.Option("--draft-prefill", help="In ms.")] = 0.0,
    latency: Annotated[float, typer.Option("--latency", help="Of one message between the workers, in ms.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the simulated acceptance.")] = 0,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="N[,N...]", help="Clips at once on a data-centre GPU, predicted.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="With --batch.", rich_help_panel=AT_ONCE)] = "h100,h200",
    pair: Annotated[
        str, typer.Option("--pair", help="Target and draft.", rich_help_panel=AT_ONCE)
    ] = "7b+0.5b,7b+3b,32b+7b",
    visual: Annotated[
        str, typer.Option("--visual", help="Visual tokens of a clip.", rich_help_panel=AT_ONCE)
    ] = "2000,8000,25000",
    kept: Annotated[
        float, typer.Option("--kept", help="Share of them that a pruned draft sees.", rich_help_panel=AT_ONCE)
    ] = 0.1,
    weights: Annotated[
        str, typer.Option("--weights", help="bfloat16, float8 or int4.", rich_help_panel=AT_ONCE)
    ] = "bfloat16",
    decode_use: Annotated[
        float,
        typer.Option("--decode-use", help="Of the data sheet, while decoding.", rich_help_panel=AT_ONCE),
    ] = DECODE_USE,
    prefill_use: Annotated[
        float,
        typer.Option("--prefill-use", help="Of it, in vision and prompts.", rich_help_panel=AT_ONCE),
    ] = 0.5,
    cards: Annotated[
        str | None,
        typer.Option("--cards", metavar="NAME[,NAME...]", help="Predict a 7B and its drafts on cards, as Markdown."),
    ] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="json: one object with rows and notes.")] = "text",
) -> None:
    """Predict speed-ups without running a model: a paper's table, your own forward times, or many clips at once.

    python -m research.simulate --table parallelvlm-1

    python -m research.simulate --tp 420 --tq 47 --beta 0.87 --gamma auto

    python -m research.simulate --batch 1,8,32 --device h100 --pair 7b+3b

    python -m research.simulate --cards 4090,a100,h100
    """
    sources = {one.opts[0]: context.get_parameter_source(one.name or "") for one in context.command.params}
    said = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if cards is not None:
        if extra := [name for name in said if name != "--cards"]:
            raise UsageError(f"--cards takes no other options; leave out {', '.join(extra)}")
        from research.predicted import page

        print(page(cards.split(",")), end="")
        return
    if batch is not None:
        if extra := [name for name in said if name not in OF_BATCH | BESIDE_BATCH]:
            raise UsageError(f"--batch brings its own times; leave out {', '.join(extra)}")
        from research.replay.load import Assumed

        assumed = Assumed(
            beta=0.8 if beta is None else _probability(beta),
            kept=_share("--kept", kept),
            tokens=256 if tokens is None else _length(tokens),
            gamma=_window(gamma),
            weights=weights,
            decode_use=_share("--decode-use", decode_use),
            prefill_use=_share("--prefill-use", prefill_use),
        )
        _many_clips(batch, device, pair, visual, assumed, form)
        return
    if extra := [name for name in said if name in OF_BATCH]:
        raise UsageError(f"{', '.join(extra)} without --batch says nothing", hint="--batch 1,8,32, clips at once")
    given = {"--tp": tp, "--tq": tq, "--beta": beta}
    if table is not None:
        if extra := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"--table brings its own figures; leave out {', '.join(extra)}")
        from research.replay.tables import replay

        _print_replay(replay(table), form)
        return
    if missing := [name for name, value in given.items() if value is None]:
        raise UsageError(f"missing {', '.join(missing)}", hint="or --table with a paper's table, or --batch")
    assert tp is not None and tq is not None and beta is not None
    from research.replay.predict import Prefill, Times
    from research.replay.whatif import what_if
    from vidspec.draft_length.costs import pass_times

    _positive("--tq", tq)
    for name, value in (
        ("--target-prefill", target_prefill),
        ("--draft-prefill", draft_prefill),
        ("--latency", latency),
    ):
        _positive(name, value, zero=True)
    _probability(beta)
    tokens = 512 if tokens is None else _length(tokens)
    try:
        verify = pass_times(_points(tp))
    except ValueError as error:
        raise UsageError(f"--tp {tp}: {error}", hint="such as 420, or 1:420,10:435") from None
    times = Times(verify, tq, latency, Prefill(target_prefill, draft_prefill))
    window = _window(gamma)
    estimates = what_if(times, beta, window, tokens=tokens, seed=seed, rounding="up" if self_draft else "down")
    _print_estimates(estimates, times, form)


def _points(tp: str) -> list[tuple[int, float]]:
    if ":" not in tp:
        return [(1, float(tp))]
    return [(int(rows), float(time)) for rows, _, time in (part.partition(":") for part in tp.split(","))]


def _positive(name: str, value: float, *, zero: bool = False) -> None:
    if not (value >= 0 if zero else value > 0) or value == float("inf"):
        raise UsageError(f"{name} must be {'zero or more' if zero else 'positive'}, not {value:g}")


def _window(gamma: str) -> int | None:
    from research.replay.whatif import HIGHEST_GAMMA

    if gamma == "auto":
        return None
    if not gamma.isascii() or not gamma.isdigit() or not 1 <= int(gamma) <= HIGHEST_GAMMA:
        raise UsageError(f"--gamma must be auto or a number from 1 to {HIGHEST_GAMMA}, not {gamma}")
    return int(gamma)


def _probability(beta: float) -> float:
    if not 0 <= beta <= 1:
        raise UsageError(f"--beta must lie between 0 and 1, not {beta:g}")
    return beta


def _length(tokens: int) -> int:
    if not 2 <= tokens <= 100_000:
        raise UsageError(f"--tokens must lie between 2 and 100000, not {tokens}")
    return tokens


def _chosen(option: str, given: str, known: Iterable[str], most: int | None = None) -> list[str]:
    """Return comma-separated names, each once."""
    names = list(dict.fromkeys(given.split(",")))
    if (wrong := [name for name in names if name not in known]) or len(names[:most]) < len(names):
        what = repr(wrong[0]) if wrong else given
        raise UsageError(f"{option} does not know {what}", hint="one of " + ", ".join(known))
    return names


def _numbers(option: str, given: str, highest: int) -> list[int]:
    """Return comma-separated integers, each once."""
    parts = given.split(",")
    if not all(one.isascii() and one.isdigit() and len(one) < 10 and 1 <= int(one) <= highest for one in parts):
        raise UsageError(f"{option} {given}: must be numbers from 1 to {highest}", hint=f"such as {option} 1,8,32")
    return list(dict.fromkeys(map(int, parts)))


def _share(name: str, value: float) -> float:
    if not 0 < value <= 1:
        raise UsageError(f"{name} must be more than 0 and at most 1, not {value:g}")
    return value


def _many_clips(batch: str, device: str, pair: str, visual: str, assumed: Assumed, form: TableFormat) -> None:
    from research.replay.load import PAIRS, WEIGHTS, notes, throughput
    from research.sizes import DEVICES

    devices = [DEVICES[name] for name in _chosen("--device", device, DEVICES)]
    _chosen("--weights", assumed.weights, WEIGHTS, most=1)
    clips, shown = _numbers("--batch", batch, MOST_CLIPS), _numbers("--visual", visual, MOST_VISUAL)
    at = product(devices, _chosen("--pair", pair, PAIRS), shown, clips)
    found = [throughput(*one, assumed) for one in at]
    rows = [{name: _rounded(getattr(one, name)) for name in BATCH_COLUMNS} for one in found]
    said = notes(devices, assumed)
    if _print_data(form, rows, said):
        return
    for row in rows:
        row |= {name: f"{row[name]:.0%}" for name in ("plain_memory", "pruned_memory")}
        if row["plain_tokens_per_s"] is not None:
            row["plain_tokens_per_s"] = round(row["plain_tokens_per_s"])
        row |= {name: "does not fit" for name in BATCH_COLUMNS if row[name] is None and "gamma" not in name}
    _print_table("Many clips at once: plain decoding, and speculation beside it", BATCH_COLUMNS, rows, said, form)


def _print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows])


def _print_data(form: TableFormat, rows: list[dict[str, Any]], notes: list[str], **about: Any) -> bool:
    """Print JSON or CSV; return False for formats for people."""
    if form == "json":
        print_json({**about, "rows": rows, "notes": notes})
    elif form == "csv":
        _print_csv(list(rows[0]), [list(row.values()) for row in rows])
    return form in ("json", "csv")


def _print_replay(replay: Replay, form: TableFormat) -> None:
    rows = [{name: _rounded(getattr(cell, name)) for name in TABLE_COLUMNS} for cell in replay.rows]
    deviations = [abs(row.deviation) for row in replay.rows if row.deviation is not None]
    mean = sum(deviations) / len(deviations) if deviations else None
    assumed: dict[str, dict[str, None]] = {}
    for row in replay.rows:
        if row.assumed:
            assumed.setdefault(row.assumed, {})[row.method] = None
    notes = [*replay.notes, *(f"Assumed for {'; '.join(methods)}: {text}." for text, methods in assumed.items())]
    about = {"table": replay.name, "paper": replay.paper, "where": replay.where}
    if _print_data(form, rows, notes, **about, mean_absolute_deviation=_rounded(mean)):
        return
    if mean is not None:
        notes.insert(0, f"Mean absolute deviation {mean:.1%} over {len(deviations)} cells; * assumed.")
    shown = [{**row, "deviation": _percent(row["deviation"]), "assumed": "*" if row["assumed"] else ""} for row in rows]
    _print_table(f"{replay.paper}. {replay.where}", TABLE_COLUMNS, shown, notes, form)


def _print_estimates(estimates: list[Estimate], times: Times, form: TableFormat) -> None:
    columns = tuple(
        name for name in WHATIF_COLUMNS if name != "end_to_end" or any(one.end_to_end is not None for one in estimates)
    )
    rows = [{name: _rounded(getattr(one, name)) for name in columns} for one in estimates]
    notes = [
        "predicted: simulated with the scheduler that runs real models; formula: the renewal formula (parallel) and "
        "Leviathan's (sequential); on one shared memory-bound device a round costs the sum of both workers.",
    ]
    if not _print_data(form, rows, notes):
        _print_table("Decode speed-up over autoregressive decoding", columns, rows, notes, form)
        if form == "text":
            _print_timelines(estimates)


def _print_timelines(estimates: list[Estimate]) -> None:
    from rich.console import Console
    from rich.text import Text

    from research.replay.timeline import timeline
    from vidspec.display.lanes import LaneGlyphs

    console = Console(highlight=False)
    glyphs = LaneGlyphs() if console.encoding.lower().startswith("utf") else LaneGlyphs.ascii()
    for one in estimates:
        if one.run is not None and one.gamma:
            console.print(Text(f"\n{one.method}, gamma {one.gamma}", style="bold"))
            for line in timeline(one.run, width=console.width, strips=2, glyphs=glyphs):
                console.print(line, no_wrap=True, overflow="crop")


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _print_table(
    title: str, columns: tuple[str, ...], rows: list[dict[str, Any]], notes: list[str], form: TableFormat
) -> None:
    """Print a table: with title and notes on a terminal and as Markdown; tab-separated lines in a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(row[name]) for name in columns] for row in rows]
    heads = [name.replace("_", " ") for name in columns]
    console = Console(highlight=False)
    if form == "markdown":
        print(f"**{title}**\n")
        print(f"{tables.table(heads, cells)}\n{tables.bullets(notes)}".replace("*", r"\*"))
        return
    if not console.is_terminal:
        print("\n".join("\t".join(one) for one in [heads, *cells]))
    else:
        drawn = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1, 0, 0))
        numbers = {name for name in columns if any(isinstance(row[name], int | float) for row in rows)} | {"deviation"}
        for name, head in zip(columns, heads, strict=True):
            number = name in numbers
            drawn.add_column(
                "*" if name == "assumed" else head,
                justify="right" if number else "left",
                no_wrap=number,
                overflow="fold",
            )
        for one in cells:
            drawn.add_row(*map(Text, one))
        console.print(drawn)
    for note in notes:
        console.print(Text(f"- {note}", style="dim"), soft_wrap=not console.is_terminal)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "simulate", args)


if __name__ == "__main__":
    sys.exit(main())
