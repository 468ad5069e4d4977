"""Command ``vidspec bench throughput`` and its options; ``vidspec.bench.throughput`` measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.bench import parse_counts
from vidspec.cli.options import ModelOptions, flatten_options
from vidspec.cli.printed import print_facts, print_note
from vidspec.errors import UsageError

__all__ = ["throughput"]

DEFAULT = ("ar", "vanilla-sd", "auto")


@flatten_options()
def throughput(
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP...", help="Video files and folders.")],
    *,
    batch: Annotated[str, typer.Option(metavar="N,N,...", help="Batch sizes, increasing.")] = "1,4,8,16",
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name or file, with +KEY=VALUE for keys to change; may be repeated.",
            show_default=", ".join(DEFAULT),
        ),
    ] = None,
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
        Path | None, typer.Option(metavar="FILE", help="Write every measurement as JSON, updated after every run.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.")] = False,
) -> int:
    """Caption the same clips with profiles and peers at several batch sizes and print a Markdown table.

    Each contender is a process of its own with its models loaded; they take turns. A run is timed from opening the
    first file to writing the last record; decoding is also timed without prompts. Token ids are compared with batch 1
    and with plain decoding.
    """
    from dataclasses import asdict

    from vidspec.bench.interleaved import machine
    from vidspec.bench.outside import peer_interpreters
    from vidspec.bench.results import RESULTS
    from vidspec.bench.throughput import BATCHED, Throughput, ThroughputResult, markdown, measure, start_contenders
    from vidspec.files import check_output, write_whole

    paths = _clips(tuple(map(str, clips)))
    labels, others = list(profile or DEFAULT), list(peer or ())
    for option, names in (("--profile", labels), ("--peer", others)):
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"{option} names {twice[0]} twice")
    outside = peer_interpreters([one for one in others if one != BATCHED], ("vllm",), (BATCHED,))
    peers = [one.partition("=")[0] for one in others]
    if output is not None:
        check_output(output, paths, "--output", RESULTS)
        if output.exists() and not overwrite:
            raise UsageError(f"--output {output}: exists already", hint="name another file, or --overwrite")
    source = models.source
    sizes = parse_counts(batch, "--batch", "1,4,8,16")
    plan = Throughput(paths, labels, peers, sizes, repeats, source, frames, models.threads, outside)
    facts = machine(source.placement().device) | ({"threads": models.threads} if models.threads else {})

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
    return 0


def _clips(named: tuple[str, ...]) -> list[str]:
    """Return the videos among files and folders.

    Raises:
        UsageError: one cannot be found, or there are none.
    """
    from vidspec.dataset.inputs import InputSources, collect_inputs, drop_missing

    found = collect_inputs(InputSources(paths=named))
    drop_missing(found, named)
    if found.unreadable:
        raise UsageError(found.unreadable[0])
    if not found.entries:
        raise UsageError("there is no video to caption")
    return [entry.path for entry in found.entries]
