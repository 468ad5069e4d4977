"""Command ``vidspec bench`` and its options; ``vidspec.bench`` measures and compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from vidspec.cli.options import KeyNames, ModelOptions, SetOption, flatten_options, parse_measured_settings
from vidspec.cli.printed import print_facts, print_markdown, print_note
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.bench.measure import Bench, BenchResult

DEFAULT = "ar,vanilla-sd,sd-rand-chain,sd-uniform-chain,sd-attention-chain"

ResultT = TypeVar("ResultT", bound="BenchResult")
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
        keys |= parse_measured_settings(self.settings, "draft.gamma=4", keys)
        return keys


@flatten_options()
def bench(
    *,
    clips: ClipArguments = None,
    profiles: ProfilesOption = None,
    models: ModelOptions,
    options: BenchOptions,
) -> int:
    """Measure profiles side by side: run them in turn on the same clips and print a table.

    In a pipe or a file the table is Markdown.

    Times are medians over clips, with minimum and maximum in brackets. Every record is written to --json at once; if
    a run is stopped, run the same command again to resume.
    """
    from vidspec.bench import measure

    run_bench(parse_profiles(profiles), clips or (), models, options, measure.measure)
    return 0


def parse_profiles(text: str | None) -> list[str]:
    """Return the labels of ``--profiles``, or the default ones."""
    from vidspec.bench.loaded import profile_labels

    return profile_labels(DEFAULT if text is None else text)


def run_bench(
    names: Sequence[str],
    clips: Sequence[Path],
    models: ModelOptions,
    options: BenchOptions,
    measure: Callable[[Bench, Callable[[str], None]], ResultT],
) -> ResultT:
    """Run the benchmark of a command line and print its table.

    Args:
        names: labels of profiles; the first is the baseline.
        clips: video files; the shipped samples if empty.
        models, options: of the command line.
        measure: :func:`vidspec.bench.measure.measure`, or one that adds contenders.

    Raises:
        VidspecError: options exclude each other, or the bench fails.
    """
    from vidspec.bench.measure import Bench

    overrides, turns = options.overrides(), tuple(options.turn or ())
    _check_files(options, list(map(str, clips)))
    if not all(one.strip() for one in turns):
        raise UsageError("--turn: is empty", hint="--turn 'Describe the video.' --turn 'Where does it end?'")
    asked = Bench(
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
    outcome = measure(asked, print_note)
    print_markdown(outcome.table)
    print_facts(outcome.machine)
    return outcome


def _check_files(options: BenchOptions, clips: Sequence[str]) -> None:
    """Check, before any model is loaded, that the file of a bench can be written."""
    from vidspec.bench.results import check_results

    if options.json is not None:
        check_results(options.json, clips, overwrite=options.overwrite)
    elif options.overwrite:
        raise UsageError("--overwrite needs --json", hint="--json FILE --overwrite")
