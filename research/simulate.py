"""``python -m research.simulate``: replay a paper's table, predict a speed-up by formula and simulation, or cards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from research.commands import TableFormat, run
from vidspec.bench import tables
from vidspec.cli.printed import print_json
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from research.replay.tables import Replay
    from research.replay.whatif import Estimate

TABLE_COLUMNS = ("method", "models", "benchmark", "predicted", "claimed", "deviation", "formula", "assumed")
WHATIF_COLUMNS = ("method", "gamma", "predicted", "formula", "end_to_end", "tokens_per_pass")


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
    tokens: Annotated[int, typer.Option("--tokens", min=2, max=100_000, help="Length of the text.")] = 512,
    target_prefill: Annotated[float, typer.Option("--target-prefill", help="In ms; gives end-to-end figures.")] = 0.0,
    draft_prefill: Annotated[float, typer.Option("--draft-prefill", help="In ms.")] = 0.0,
    latency: Annotated[float, typer.Option("--latency", help="Of one message between the workers, in ms.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the simulated acceptance.")] = 0,
    cards: Annotated[
        str | None,
        typer.Option("--cards", metavar="NAME[,NAME...]", help="Predict a 7B and its drafts on cards, as Markdown."),
    ] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="json: one object with rows and notes.")] = "markdown",
) -> None:
    """Predict speed-ups without running a model: a paper's table, your own forward times, or cards.

    python -m research.simulate --table parallelvlm-1

    python -m research.simulate --tp 420 --tq 47 --beta 0.87 --gamma auto

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
    if table is not None:
        if extra := [name for name in said if name not in ("--table", "--format")]:
            raise UsageError(f"--table brings its own figures; leave out {', '.join(extra)}")
        from research.replay.tables import replay

        _print_replay(replay(table), form)
        return
    given = {"--tp": tp, "--tq": tq, "--beta": beta}
    if missing := [name for name, value in given.items() if value is None]:
        raise UsageError(f"missing {', '.join(missing)}", hint="or --table with a paper's table, or --cards")
    assert tp is not None and tq is not None and beta is not None
    from research.replay.predict import Prefill, Times
    from research.replay.whatif import what_if
    from vidspec.draft_length.costs import pass_times

    _check_time("--tq", tq, positive=True)
    prefills = {"--target-prefill": target_prefill, "--draft-prefill": draft_prefill, "--latency": latency}
    for name, value in prefills.items():
        _check_time(name, value)
    if not 0 <= beta <= 1:
        raise UsageError(f"--beta must lie between 0 and 1, not {beta:g}")
    try:
        verify = pass_times(_points(tp))
    except ValueError as error:
        raise UsageError(f"--tp {tp}: {error}", hint="such as 420, or 1:420,10:435") from None
    times = Times(verify, tq, latency, Prefill(target_prefill, draft_prefill))
    found = what_if(times, beta, _window(gamma), tokens=tokens, seed=seed, rounding="up" if self_draft else "down")
    _print_estimates(found, form)


def _points(tp: str) -> list[tuple[int, float]]:
    if ":" not in tp:
        return [(1, float(tp))]
    return [(int(rows), float(time)) for rows, _, time in (part.partition(":") for part in tp.split(","))]


def _check_time(name: str, value: float, *, positive: bool = False) -> None:
    if not (value > 0 if positive else value >= 0) or value == float("inf"):
        raise UsageError(f"{name} must be {'positive' if positive else 'zero or more'}, not {value:g}")


def _window(gamma: str) -> int | None:
    from research.replay.whatif import HIGHEST_GAMMA

    if gamma == "auto":
        return None
    if not gamma.isascii() or not gamma.isdigit() or not 1 <= int(gamma) <= HIGHEST_GAMMA:
        raise UsageError(f"--gamma must be auto or a number from 1 to {HIGHEST_GAMMA}, not {gamma}")
    return int(gamma)


def _print_replay(replay: Replay, form: TableFormat) -> None:
    rows = [{name: _rounded(getattr(cell, name)) for name in TABLE_COLUMNS} for cell in replay.rows]
    deviations = [abs(row.deviation) for row in replay.rows if row.deviation is not None]
    mean = sum(deviations) / len(deviations) if deviations else None
    assumed: dict[str, dict[str, None]] = {}
    for row in replay.rows:
        if row.assumed:
            assumed.setdefault(row.assumed, {})[row.method] = None
    notes = [*replay.notes, *(f"Assumed for {'; '.join(methods)}: {text}." for text, methods in assumed.items())]
    if form == "json":
        about = {"table": replay.name, "paper": replay.paper, "where": replay.where}
        print_json({**about, "mean_absolute_deviation": _rounded(mean), "rows": rows, "notes": notes})
        return
    if mean is not None:
        notes.insert(0, f"Mean absolute deviation {mean:.1%} over {len(deviations)} cells; * assumed.")
    shown = [{**row, "deviation": _percent(row["deviation"]), "assumed": "*" if row["assumed"] else ""} for row in rows]
    _print_table(f"{replay.paper}. {replay.where}", TABLE_COLUMNS, shown, notes)


def _print_estimates(estimates: list[Estimate], form: TableFormat) -> None:
    columns = tuple(
        name for name in WHATIF_COLUMNS if name != "end_to_end" or any(one.end_to_end is not None for one in estimates)
    )
    rows = [{name: _rounded(getattr(one, name)) for name in columns} for one in estimates]
    notes = [
        "predicted: simulated with the scheduler that runs real models; formula: the renewal formula (parallel) and "
        "Leviathan's (sequential); on one shared memory-bound device a round costs the sum of both workers.",
    ]
    if form == "json":
        print_json({"rows": rows, "notes": notes})
    else:
        _print_table("Decode speed-up over autoregressive decoding", columns, rows, notes)


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _print_table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]], notes: list[str]) -> None:
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    heads = [name.replace("_", " ") for name in columns]
    print(f"**{title}**\n")
    print(f"{tables.table(heads, cells)}\n{tables.bullets(notes)}".replace("*", r"\*"))


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "simulate", args)


if __name__ == "__main__":
    sys.exit(main())
