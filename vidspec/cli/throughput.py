"""``vidspec bench throughput``: its options; measuring and summing up are in ``vidspec.bench.throughput``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vidspec.cli.bench import Device, Draft, Dtype, Pair, PairName, Target, Threads, counts
from vidspec.cli.printed import print_facts, say
from vidspec.errors import UsageError

__all__ = ["throughput"]

DEFAULT = ("ar", "vanilla-sd", "auto")

Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="A name or file with +KEY=VALUE for what is to differ; any number of times.",
        show_default=", ".join(DEFAULT),
    ),
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME",
        help="generate-batched, transformers' generate on padded batches; vllm=PYTHON, with the interpreter of an "
        "environment that has vLLM and PyAV; any number of times.",
    ),
]


def throughput(
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP...", help="Video files and folders.")],
    batch: Annotated[str, typer.Option("--batch", metavar="N,N,...", help="Clips at once, increasing.")] = "1,4,8,16",
    profile: Profiles = None,
    peer: Peers = None,
    pair: Pair = PairName.embedded,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs over all clips; medians.")] = 3,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Of every clip; as the profiles have it if left out.")
    ] = None,
    target: Target = None,
    draft: Draft = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="All that was measured as JSON, after every run.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write FILE anew.")] = False,
) -> int:
    """Caption the same clips by profiles and peers, so many at once; a Markdown table on stdout.

    Each is a process of its own with its models loaded; they take turns. A run is timed from the first file opened to
    the last record written, decoding alone without prompts. Token ids are held against batch 1 and plain decoding.
    """
    from dataclasses import asdict

    from vidspec.bench.interleaved import machine
    from vidspec.bench.loaded import Source
    from vidspec.bench.outside import pythons
    from vidspec.bench.results import RESULTS
    from vidspec.bench.throughput import BATCHED, Outcome, Throughput, contenders, markdown, measure
    from vidspec.files import check_output, write_whole

    paths = _clips(tuple(map(str, clips)))
    labels, others = list(profile or DEFAULT), list(peer or ())
    for option, names in (("--profile", labels), ("--peer", others)):
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"{option} names {twice[0]} twice")
    outside = pythons([one for one in others if one != BATCHED], ("vllm",), (BATCHED,))
    peers = [one.partition("=")[0] for one in others]
    if output is not None:
        check_output(output, paths, "--output", RESULTS)
        if output.exists() and not overwrite:
            raise UsageError(f"--output {output}: exists already", hint="name another file, or --overwrite")
    source = Source(pair.value, target, draft, device, dtype)
    asked = Throughput(
        paths, labels, peers, counts(batch, "--batch", "1,4,8,16"), repeats, source, frames, threads, outside
    )
    facts = machine(source.placement().device) | ({"threads": threads} if threads else {})

    def keep(outcome: Outcome) -> None:
        if output is not None:
            content = {"machine": facts, "settings": asdict(asked), **outcome.to_dict()}
            write_whole(output, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    left: dict[str, str] = {}
    with contenders(asked, say, left) as workers:
        outcome = measure(asked, workers, say, keep, left)
    keep(outcome)
    print(markdown(outcome.rows, outcome.left))
    print_facts(facts)
    return 0


def _clips(named: tuple[str, ...]) -> list[str]:
    """The videos among files and folders.

    Raises:
        UsageError: one cannot be found, or there are none.
    """
    from vidspec.dataset.inputs import Sources, collect, leave_out_missing

    found = collect(Sources(paths=named))
    leave_out_missing(found, named)
    if found.unreadable:
        raise UsageError(found.unreadable[0])
    if not found.entries:
        raise UsageError("there is no video to caption")
    return [entry.path for entry in found.entries]
