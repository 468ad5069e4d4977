"""``python -m research.peers [CLIP...]``: profiles and other programs with the same weights, in turns on every clip."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from research.commands import run
from vidspec.cli.bench import BenchOptions, ClipArguments, ProfilesOption, parse_profiles, run_bench
from vidspec.cli.options import ModelOptions
from vidspec.errors import UsageError


def command(
    *,
    clips: ClipArguments = None,
    profiles: ProfilesOption = None,
    no_generate: Annotated[bool, typer.Option("--no-generate", help="Leave out transformers' own generate.")] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PYTHON",
            help="openvino, openvino-int8-cache, vllm or vllm-ngram, and a Python interpreter that has it; "
            "may be repeated.",
        ),
    ] = None,
    models: ModelOptions,
    options: BenchOptions,
) -> int:
    """Run profiles and peers in turn on the same clips, as `vidspec bench` does, and print a Markdown table.

    Peers get the frames and the prompt of the first profile, and decode greedily.
    """
    from research.peers.bench import measure
    from research.peers.outside import peer_interpreters

    if options.turn:
        raise UsageError("peers know no dialogues", hint="vidspec bench --turn, or research.suites")
    with_peers = partial(measure, generate=not no_generate, pythons=peer_interpreters(peer or ()))
    run_bench(parse_profiles(profiles), clips or (), models, options, with_peers)
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "peers", args)


if __name__ == "__main__":
    sys.exit(main())
