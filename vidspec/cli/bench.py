"""``vidspec bench``: its options; measuring and comparing themselves are in ``vidspec.bench``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from vidspec.cli.printed import print_facts, print_json, say
from vidspec.config.bounds import THREADS
from vidspec.errors import UsageError

if TYPE_CHECKING:
    from vidspec.bench.loaded import Source
    from vidspec.bench.measure import Outcome

__all__ = ["app", "counts", "run_bench"]

DEFAULT = "ar,vanilla-sd,sd-rand-chain,sd-uniform-chain,sd-attention-chain"


class PairName(str, Enum):
    """The built-in pairs."""

    embedded = "embedded"
    embedded_qwen = "embedded-qwen"


class Form(str, Enum):
    """How a result is written."""

    markdown = "markdown"
    json = "json"


class RunByDefault(TyperGroup):
    """``vidspec bench`` without the name of a command is ``vidspec bench run``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=RunByDefault, help="Measure profiles and peers side by side; `run` if no command is named.")

Pair = Annotated[PairName, typer.Option("--pair", help="A built-in pair.")]
Target = Annotated[str | None, typer.Option("--target", help="Hub id or folder; the built-in pair if left out.")]
Draft = Annotated[str | None, typer.Option("--draft", help="Hub id or folder.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=THREADS, help="CPU threads; as torch chooses if left out.")
]
Clips = Annotated[
    list[Path] | None, typer.Argument(metavar="CLIP...", help="Video files; the shipped samples if none are named.")
]
Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Of every clip.")]
NoPeers = Annotated[bool, typer.Option("--no-peers", help="Leave out transformers' own generate.")]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME=PYTHON",
        help="openvino, vllm or vllm-draft, and an interpreter that has it; any number of times.",
    ),
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Every record as it comes; the same command continues the file."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Begin FILE anew; the older becomes FILE~.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="One page: the table to sort, spreads as bars.")
]
Turns = Annotated[
    list[str] | None,
    typer.Option("--turn", metavar="TEXT", help="Ask this behind the answer before; a table for each turn."),
]


@app.command("run")
def run(
    context: typer.Context,
    clips: Clips = None,
    profiles: Annotated[
        str | None,
        typer.Option(
            "--profiles",
            help="Names or files, each with +KEY=VALUE for what is to differ, parted by commas; "
            "the first is the baseline; all: lossless.",
            show_default=DEFAULT,
        ),
    ] = None,
    pair: Pair = PairName.embedded,
    repeats: Repeats = 3,
    target: Target = None,
    draft: Draft = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    no_peers: NoPeers = False,
    peer: Peers = None,
    json: Json = None,
    overwrite: Overwrite = False,
    report: Report = None,
    turn: Turns = None,
) -> int:
    """Run profiles and peers in turn on the same clips; a Markdown table on stdout.

    Times are medians over clips, with the least and greatest in brackets. Every record goes to --json at once, and a
    run that was stopped goes on where it was when the same command is given again.
    """
    from vidspec.bench.loaded import Source, names_of

    names = names_of(profiles or DEFAULT)
    source = Source(pair.value, target, draft, device, dtype)
    run_bench(context, names, clips or (), source, repeats, threads, no_peers, peer, json, overwrite, report, turn)
    return 0


def run_bench(
    context: typer.Context,
    names: Sequence[str],
    clips: Sequence[Path],
    source: Source,
    repeats: int,
    threads: int | None,
    no_peers: bool,
    peer: Sequence[str] | None,
    json: Path | None,
    overwrite: bool,
    report: Path | None,
    turn: Sequence[str] | None,
) -> Outcome:
    """Measure what a command line asked for and print its table; the first name is the baseline.

    Raises:
        VidspecError: of options that exclude each other, and of the bench.
    """
    from vidspec.bench.measure import Bench, measure
    from vidspec.bench.outside import pythons
    from vidspec.bench.results import check_results
    from vidspec.display.pages.bench import write_bench
    from vidspec.display.pages.page import check_page

    named = list(map(str, clips))
    if json is not None:
        check_results(json, named, overwrite=overwrite)
    if report is not None:
        check_page(report, named)
    if turn and peer:
        raise UsageError("--turn and --peer exclude each other")
    if turn and not all(one.strip() for one in turn):
        raise UsageError("--turn: is empty", hint="--turn 'Describe the video.' --turn 'Where does it end?'")
    outside = pythons(peer or ())
    peers, turns = not (no_peers or turn), tuple(turn or ())  # peers know no dialogues
    outcome = measure(Bench(names, clips, repeats, source, threads, peers, outside, json, overwrite, turns), say)
    print(outcome.table)
    print_facts(outcome.machine)
    if report is not None:
        demo = any(one.demo for by_clip in outcome.records.values() for runs in by_clip.values() for one in runs)
        write_bench(report, outcome.rows, names[0], _command(context), outcome.machine, demo=demo, left=outcome.left)
    return outcome


def _command(context: typer.Context) -> str:
    """The command line as it was given, its options in the order of the help page."""
    words = context.command_path.split()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        value = context.params.get(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or value is None or value is False:
            continue
        values = value if isinstance(value, list | tuple) else [value]
        words += [parameter.opts[0]] if parameter.opts[0].startswith("-") else []
        words += [str(getattr(one, "value", one)) for one in values if one is not True]
    return shlex.join(words)


@app.command("compare")
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="Results of `vidspec bench --json`.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Those to hold against them.")],
    level: Annotated[float, typer.Option("--level", help="Of the intervals; 0.99 is wrong once in a hundred.")] = 0.99,
    form: Annotated[Form, typer.Option("--format", help="json: one object with rows and notes.")] = Form.markdown,
) -> int:
    """Tell real changes between two runs from noise, by a paired bootstrap over clips.

    Of every method and time: the geometric mean over clips of B / A, with its interval. A change is real where the
    interval leaves out 1.
    """
    from vidspec.bench import compare as comparing
    from vidspec.bench.results import read_results

    if not 0.5 <= level < 1:
        raise UsageError(f"--level must lie between 0.5 and 1, not {level:g}")
    compared = comparing.compare(read_results(before), read_results(after), level=level)
    if form is Form.json:
        print_json(compared.to_dict())
    else:
        print(comparing.markdown(compared))
    return 0


def counts(text: str, option: str, such_as: str) -> list[int]:
    """Increasing numbers, parted by commas.

    Raises:
        UsageError: they are none.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers != sorted(set(numbers)):
        raise UsageError(f"{option} {text}: must be increasing numbers", hint=f"such as {option} {such_as}")
    return numbers
