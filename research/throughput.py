"""Many clips at once: ``python -m research.throughput CLIP...`` measures profiles and peers over the same folder.

Each contender is a process of its own with its models loaded; they take turns at every batch size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from research.commands import parse_counts, run
from vidspec.cli.options import ModelOptions
from vidspec.cli.printed import print_facts, print_note
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from research.peers.throughput import Throughput

DEFAULT = "ar,sparrow,vanilla-sd-auto,sd-adaptive-tree"


def command(
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP...", help="Video files and folders.")],
    *,
    batch: Annotated[str, typer.Option(metavar="N,N,...", help="Batch sizes, increasing.")] = "1,8,16",
    profiles: Annotated[
        str, typer.Option("--profiles", help="Names or files as of `vidspec bench`; peers get the frames of the first.")
    ] = DEFAULT,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="generate-batched: transformers' generate on padded batches; vllm=PYTHON: vLLM, with the interpreter "
            "of an environment that has vLLM and PyAV; may be repeated.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs over all clips; the medians are shown.")] = 3,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames per clip (default: as in the profiles).")] = None,
    models: ModelOptions,
    output: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write every measurement, updated after every run."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
) -> int:
    """Caption the same clips with profiles and peers at several batch sizes and print a Markdown table.

    A run is timed from opening the first file to writing the last record; decoding is also timed without prompts, from
    the first token of the last clip in flight to the end of the first. Token ids are compared with batch 1 and with
    plain decoding.
    """
    from research.peers.outside import peer_interpreters
    from research.peers.throughput import BATCHED, Throughput
    from vidspec.bench.loaded import profile_labels
    from vidspec.bench.results import RESULTS
    from vidspec.files import check_output

    paths, others = _clips(tuple(map(str, clips))), list(peer or ())
    if twice := [name for name in others if others.count(name) > 1]:
        raise UsageError(f"--peer names {twice[0]} twice")
    outside = peer_interpreters([one for one in others if one != BATCHED], ("vllm",), (BATCHED,))
    peers = [one.partition("=")[0] for one in others]
    if output is not None:
        check_output(output, paths, "--json", RESULTS)
        if output.exists() and not overwrite:
            raise UsageError(
                f"--json {output}: exists already", hint="name another file, or start over with --overwrite"
            )
    sizes, labels = parse_counts(batch, "--batch", "1,8,16"), profile_labels(profiles)
    plan = Throughput(paths, labels, peers, sizes, repeats, models.source, frames, models.threads, outside)
    _measure(plan, output)
    return 0


def _measure(plan: Throughput, output: Path | None) -> None:
    """Measure, write every result to ``output``, and print the table."""
    from research.peers.throughput import ThroughputResult, markdown, measure, start_contenders
    from vidspec.bench.machine import machine
    from vidspec.files import write_whole

    facts = machine(plan.source.placement().device) | ({"threads": plan.threads} if plan.threads else {})

    def keep(outcome: ThroughputResult) -> None:
        if output is not None:
            content = {"machine": facts, "settings": asdict(plan), **outcome.to_dict()}
            write_whole(output, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    left: dict[str, str] = {}
    with start_contenders(plan, print_note, left) as workers:
        outcome = measure(plan, workers, print_note, keep, left)
    keep(outcome)
    print(markdown(outcome.rows, outcome.left))
    print_facts(facts)


def _clips(named: tuple[str, ...]) -> list[str]:
    """Return the videos among files and folders, as absolute paths.

    Raises:
        UsageError: one cannot be found, or there are none.
    """
    from vidspec.config.run_spec import RunSpec
    from vidspec.runs.inputs import collect_inputs, drop_missing

    found = collect_inputs(RunSpec(paths=named))
    drop_missing(found, named)
    if found.unreadable:
        raise UsageError(found.unreadable[0])
    if not found.entries:
        raise UsageError("there is no video to caption")
    return [str(Path(entry.path).resolve()) for entry in found.entries]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "throughput", args)


if __name__ == "__main__":
    sys.exit(main())
