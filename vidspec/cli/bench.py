"""Command ``vidspec bench`` and its options; ``vidspec.bench`` measures and compares."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from typer.core import TyperGroup

from vidspec.cli.options import KeyNames, ModelOptions, SetOption, flatten_options
from vidspec.cli.printed import print_facts, print_json, print_note
from vidspec.cli.typed_settings import parse_settings
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.bench.measure import Bench, BenchResult

__all__ = [
    "BenchFormat",
    "BenchOptions",
    "ClipArguments",
    "ProfilesOption",
    "app",
    "parse_profiles",
    "run_bench",
]

DEFAULT = "ar,vanilla-sd,sd-rand-chain,sd-uniform-chain,sd-attention-chain"

#: Format of a result.
BenchFormat: TypeAlias = Literal["markdown", "json"]
ClipArguments: TypeAlias = Annotated[
    list[Path] | None, typer.Argument(metavar="CLIP...", help="Video files (default: the built-in samples).")
]


ProfilesOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--profiles",
        help="Names or files, separated by commas, each with +KEY=VALUE for keys to change; "
        "the first is the baseline; all: every lossless profile.",
        show_default=DEFAULT,
    ),
]


class RunByDefault(TyperGroup):
    """Group of commands with ``run`` as the default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "-h", "--help", "throughput"):  # the last has left
            args = ["run", *args]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class BenchOptions:
    """Options of every command that runs a benchmark."""

    repeats: Annotated[int, typer.Option(min=1, help="Runs of every clip.")] = 3
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append every record to FILE; the same command continues the file."),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start FILE over; the earlier one becomes FILE~.")] = (
        False
    )
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with a sortable table and error bars.")
    ] = None
    turn: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Ask this after the previous answer; one table per turn."),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Question or instruction about the video, for all profiles."),
    ] = None
    #: Keys of all profiles, by dotted key: those that were given.
    video: Annotated[Mapping[str, object], KeyNames(("frames",))] = field(default_factory=dict)
    generate: Annotated[Mapping[str, object], KeyNames(("max_new_tokens", "seed"))] = field(default_factory=dict)
    settings: SetOption = None
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures of the table as CSV, a row per method.")
    ] = None
    latex: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table's main columns as a LaTeX tabular.")
    ] = None

    def overrides(self) -> dict[str, object]:
        """Return the keys that the options set in all profiles, by dotted key.

        Raises:
            UsageError: a key is set twice, a prompt is empty or given with ``--turn``, or a key is a model's.
        """
        keys = {**self.video, **self.generate}
        if self.prompt is not None:
            if self.turn:
                raise UsageError("--prompt and --turn exclude each other")
            if not self.prompt.strip():
                raise UsageError("--prompt: is empty", hint="--prompt 'What moves?'")
            keys["generate.prompt"] = self.prompt
        keys |= parse_settings(self.settings, "draft.gamma=4", keys)
        if named := next((key for key in keys if key.startswith("models.")), None):
            raise UsageError(
                f"--set {named}: all profiles share the models",
                hint="--pair, --target, --draft, --device, --dtype, --weights or --threads",
            )
        return keys


app = typer.Typer(cls=RunByDefault, help="Measure profiles side by side; `run` is the default command.")


@app.command("run")
@flatten_options()
def run(
    context: typer.Context,
    *,
    clips: ClipArguments = None,
    profiles: ProfilesOption = None,
    models: ModelOptions,
    options: BenchOptions,
) -> int:
    """Run profiles in turn on the same clips and print a Markdown table.

    Times are medians over clips, with minimum and maximum in brackets. Every record is written to --json at once; if
    a run is stopped, run the same command again to resume.
    """
    from vidspec.bench import measure

    run_bench(context, parse_profiles(profiles), clips or (), models, options, measure.measure)
    return 0


def parse_profiles(text: str | None) -> list[str]:
    """Return the labels of ``--profiles``, or the default ones."""
    from vidspec.bench.loaded import profile_labels

    return profile_labels(text or DEFAULT)


def run_bench(
    context: typer.Context,
    names: Sequence[str],
    clips: Sequence[Path],
    models: ModelOptions,
    options: BenchOptions,
    measure: Callable[[Bench, Callable[[str], None]], BenchResult],
) -> BenchResult:
    """Run the benchmark of a command line and print its table.

    Args:
        context: of the command.
        names: labels of profiles; the first is the baseline.
        clips: video files; the shipped samples if empty.
        models, options: of the command line.
        measure: :func:`vidspec.bench.measure.measure`, or one that adds contenders.

    Raises:
        VidspecError: options exclude each other, or the bench fails.
    """
    from vidspec.bench import exports
    from vidspec.bench.measure import Bench
    from vidspec.display.pages.bench import write_bench
    from vidspec.files import write_whole

    overrides, turns = options.overrides(), tuple(options.turn or ())
    _check_files(options, list(map(str, clips)))
    if not all(one.strip() for one in turns):
        raise UsageError("--turn: is empty", hint="--turn 'Describe the video.' --turn 'Where does it end?'")
    bench = Bench(
        names,
        clips,
        options.repeats,
        models.source,
        models.threads,
        options.json,
        options.overwrite,
        turns,
        overrides,
    )
    outcome = measure(bench, print_note)
    print(outcome.table)
    print_facts(outcome.machine)
    if options.csv is not None:
        write_whole(options.csv, exports.csv_table(outcome.rows))
    if options.latex is not None:
        write_whole(options.latex, exports.latex_table(outcome.rows, _command(context), outcome.left))
    if options.report is not None:
        demo = any(one.demo for by_clip in outcome.records.values() for runs in by_clip.values() for one in runs)
        command = _command(context)
        write_bench(options.report, outcome.rows, names[0], command, outcome.machine, demo=demo, left=outcome.left)
    return outcome


def _check_files(options: BenchOptions, clips: Sequence[str]) -> None:
    """Check, before any model is loaded, that the files of a bench can be written."""
    from vidspec.bench.exports import CSV, LATEX
    from vidspec.bench.results import check_results
    from vidspec.display.pages.page import check_page
    from vidspec.files import check_distinct, check_output

    if options.json is not None:
        check_results(options.json, clips, overwrite=options.overwrite)
    if options.report is not None:
        check_page(options.report, clips)
    if options.csv is not None:
        check_output(options.csv, clips, "--csv", CSV)
    if options.latex is not None:
        check_output(options.latex, clips, "--latex", LATEX)
    check_distinct((f"--{name}", getattr(options, name)) for name in ("json", "report", "csv", "latex"))


def _command(context: typer.Context) -> str:
    """Return the command line, its options in the order of the help page."""
    words = context.command_path.split()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        value = context.params.get(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or value is None or value is False:
            continue
        values = value if isinstance(value, list | tuple) else [value]
        words += [parameter.opts[0]] if parameter.opts[0].startswith("-") else []
        words += [str(one) for one in values if one is not True]
    return shlex.join(words)


@app.command("compare")
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="Results of `vidspec bench --json`.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Results to compare with A.")],
    level: Annotated[
        float, typer.Option("--level", help="Confidence level of the intervals; 0.99 is wrong once in a hundred.")
    ] = 0.99,
    form: Annotated[BenchFormat, typer.Option("--format", help="json: one object with rows and notes.")] = "markdown",
) -> int:
    """Separate real changes between two runs from noise, by a paired bootstrap over clips.

    For every method and time it prints the geometric mean over clips of B / A with its interval. A change is real if
    the interval excludes 1.
    """
    from vidspec.bench import compare as comparing
    from vidspec.bench.results import read_results

    if not 0.5 <= level < 1:
        raise UsageError(f"--level must lie between 0.5 and 1, not {level:g}")
    compared = comparing.compare(read_results(before), read_results(after), level=level)
    if form == "json":
        print_json(compared.to_dict())
    else:
        print(comparing.markdown(compared))
    return 0
