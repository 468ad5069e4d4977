"""``vidspec bench``: its options; measuring, comparing and scaling themselves are in ``vidspec.bench``."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vidspec.cli.printed import print_facts, print_json, say
from vidspec.errors import UsageError
from vidspec.profile.bounds import THREADS

__all__ = ["app", "counts"]

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


@app.command("run")
def run(
    context: typer.Context,
    clips: Annotated[
        list[Path] | None, typer.Argument(metavar="CLIP...", help="Video files; the shipped samples if none are named.")
    ] = None,
    profiles: Annotated[
        str | None,
        typer.Option(
            "--profiles",
            help="Names or files, each with +KEY=VALUE for what is to differ, parted by commas; "
            "the first is the baseline; all: lossless.",
            show_default=DEFAULT,
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite", metavar="NAME", help="The rows of a paper's table, such as lvspec-1; papers: of all tables."
        ),
    ] = None,
    pair: Pair = PairName.embedded,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of every clip.")] = 3,
    target: Target = None,
    draft: Draft = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Leave out transformers' own generate.")] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME=PYTHON",
            help="openvino, vllm or vllm-draft, and an interpreter that has it; any number of times.",
        ),
    ] = None,
    position_bias: Annotated[
        bool, typer.Option("--position-bias", help="Also say where in the video and its frames kept tokens lie.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Every record as it comes; the same command continues the file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin FILE anew; the older becomes FILE~.")] = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Draw SVG pictures; needs matplotlib.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="One page: the table to sort, spreads as bars.")
    ] = None,
    turn: Annotated[
        list[str] | None,
        typer.Option("--turn", metavar="TEXT", help="Ask this behind the answer before; a table for each turn."),
    ] = None,
) -> int:
    """Run profiles and peers in turn on the same clips; a Markdown table on stdout.

    Times are medians over clips, with the least and greatest in brackets. Every record goes to --json at once, and a
    run that was stopped goes on where it was when the same command is given again.
    """
    from vidspec.bench.loaded import Source, names_of
    from vidspec.bench.measure import Bench, measure
    from vidspec.bench.outside import pythons
    from vidspec.bench.position_table import table
    from vidspec.bench.results import check_results
    from vidspec.papers import measured, suites
    from vidspec.papers import plots as drawing
    from vidspec.report.bench import write_bench
    from vidspec.report.page import check_page

    if suite is not None and profiles is not None:
        raise UsageError("--suite and --profiles exclude each other")
    names = names_of(profiles or DEFAULT) if suite is None else suites.contenders(suite)
    named = list(map(str, clips or ()))
    if json is not None:
        check_results(json, named, overwrite=overwrite)
    if plots is not None:
        drawing.check(plots)
    if report is not None:
        check_page(report, named)
    if turn and (peer or position_bias):
        raise UsageError(f"--turn and {'--peer' if peer else '--position-bias'} exclude each other")
    if turn and not all(one.strip() for one in turn):
        raise UsageError("--turn: is empty", hint="--turn 'Describe the video.' --turn 'Where does it end?'")
    source = Source(pair.value, target, draft, device, dtype)
    outside = pythons(peer or ())
    peers, turns = not (no_peers or turn), tuple(turn or ())  # peers know no dialogues
    bench = Bench(names, clips or (), repeats, source, threads, peers, outside, position_bias, json, overwrite, turns)
    outcome = measure(bench, say)
    print(outcome.table)
    print_facts(outcome.machine)
    if suite is not None and (of_papers := suites.papers_of(suite)):
        print(f"\n{measured.markdown(of_papers, outcome.rows, names[0])}")
    if position_bias:
        print(f"\n{table(outcome.position_bias)}")
    if plots is not None:
        for file in drawing.draw(outcome.rows, outcome.records, plots):
            say(f"drew {file}")
    if report is not None:
        demo = any(one.demo for by_clip in outcome.records.values() for runs in by_clip.values() for one in runs)
        write_bench(report, outcome.rows, names[0], _command(context), outcome.machine, demo=demo, left=outcome.left)
    return 0


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


@app.command("scale")
def scale(
    frames: Annotated[
        str, typer.Option("--frames", help="Numbers of frames, increasing; it ends where memory does.")
    ] = "8,16,32,64,128",
    tokens_per_frame: Annotated[
        int | None,
        typer.Option("--tokens-per-frame", min=1, help="[default: what the target sees; 196 with --random-init]"),
    ] = None,
    pair: Pair = PairName.embedded,
    target: Target = None,
    draft: Draft = None,
    random_init: Annotated[
        str | None,
        typer.Option("--random-init", metavar="CONFIG", help="Target of this config.json with random weights."),
    ] = None,
    random_init_draft: Annotated[
        str | None, typer.Option("--random-init-draft", metavar="CONFIG", help="Draft; the target itself if left out.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    beta: Annotated[float, typer.Option("--beta", help="Acceptance of the speed-ups' forecast.")] = 0.8,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Length of the text end to end.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of every measurement; medians.")] = 3,
    form: Annotated[Form, typer.Option("--format", help="json: one object with points.")] = Form.markdown,
) -> int:
    """Measure how prefill, passes and memory grow with the number of frames, and forecast the speed-up.

    Times do not depend on weights: --random-init makes a target from its config alone.
    """
    from vidspec.bench.loaded import Source
    from vidspec.bench.scale import markdown, measure_scale

    numbers = counts(frames, "--frames", "8,16,32")
    if not 0 <= beta < 1:
        raise UsageError(f"--beta must lie between 0 and 1, not {beta:g}")
    if random_init is not None and (target or draft):
        raise UsageError("--random-init excludes --target and --draft", hint="--random-init-draft names the draft")
    if random_init_draft is not None and random_init is None:
        raise UsageError("--random-init-draft needs --random-init")
    made = (random_init, random_init_draft) if random_init is not None else None
    facts, points = measure_scale(
        Source(pair.value, target, draft, device, dtype),
        numbers,
        made=made,
        tokens_per_frame=tokens_per_frame,
        beta=beta,
        new_tokens=tokens,
        repeats=repeats,
        threads=threads,
        say=say,
    )
    if form is Form.json:
        content = [one.to_dict() for one in points]
        print_json({"machine": facts, "beta": beta, "tokens": tokens, "points": content})
    else:
        print(markdown(points, beta, tokens))
        print_facts(facts)
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
