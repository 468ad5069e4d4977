"""``vidspec train``: a draft head for a target, from captions that it wrote."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.options import flatten_options
from vidspec.cli.printed import print_note
from vidspec.config.values import parse_size

if TYPE_CHECKING:
    from rich.progress import Progress

    from vidspec.training.train import Trained, TrainingEvent, TrainingPlan


@dataclass(frozen=True)
class TrainingOptions:
    """Arguments of :func:`vidspec.training.train.train`."""

    target: Annotated[
        str | None,
        typer.Option(metavar="NAME|FOLDER", help="The target.", show_default="the one that wrote most of the captions"),
    ] = None
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="HEAD",
            help="Begin with this head, a block or an EAGLE-3 one, a hub id or folder; its layout stays.",
            show_default="the target's last blocks",
        ),
    ] = None
    minutes: Annotated[
        float, typer.Option(metavar="N", help="Train at most this long; less once accepted tokens rise no longer.")
    ] = 60.0
    blocks: Annotated[int, typer.Option(min=1, max=8, help="Blocks of a new head.")] = 2
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is random.")] = 0
    disk: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Most room for states in the cache: 20GB.", show_default="what is free"),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Also write the head to DIR, in the layout of speculators."),
    ] = None


@flatten_options()
def train(
    captions: Annotated[
        list[Path],
        typer.Argument(
            metavar="CAPTIONS|CLIPS...",
            help="Captions that the target wrote: folders, or files of --format jsonl, json, parquet or webdataset. "
            "Or clips, which are captioned first.",
            show_default=False,
        ),
    ],
    options: TrainingOptions,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Write a page: tokens a round while it learned, two captions with each token's origin.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> int:
    """Train a draft head for your own target on captions that it wrote, and measure what it gains.

    Captions that were edited, that other targets wrote, or that are no longer as a run wrote them are left out, and
    counted. At least 50 must be left; 300 to 5,000 are usual. A tenth of the clips is never trained on: the head is
    measured on them, in turns with plain decoding. If it decodes at least 5% faster, `vidspec caption --target` uses it
    from then on for these weights. It never changes a caption.

    Ctrl-C ends training with the best head so far; the same command continues. `vidspec models` lists heads.
    """
    from vidspec.display.pages.page import check_page
    from vidspec.training.evaluation import write_report
    from vidspec.training.steps import StepsProgress
    from vidspec.training.train import Trained
    from vidspec.training.train import train as run

    room = None if options.disk is None else parse_size(options.disk, "--disk")
    if report is not None:
        check_page(report, [str(place) for place in captions])
    taus = list[tuple[int, float]]()
    with ExitStack() as stack:
        bars = _Bars(stack, quiet=quiet)
        for event in run(captions, **{**vars(options), "disk": room}):
            bars.show(event)
            if isinstance(event, StepsProgress) and event.validated and event.tau is not None:
                taus.append((event.step, event.tau))
            if isinstance(event, Trained):
                ended = event
    _print_end(ended)
    if report is not None:
        write_report(report, ended.evaluation, ended.measured, taus)
    return 0


class _Bars:
    """The progress of a training: bars on a terminal, a line for each stage elsewhere.

    Args:
        stack: takes the bars away at its end.
        quiet: True for neither.
    """

    def __init__(self, stack: ExitStack, *, quiet: bool) -> None:
        self.quiet = quiet
        self._progress: Progress | None = None
        self._stage, self._stack = "", stack

    def show(self, event: TrainingEvent) -> None:
        """Show an event."""
        from vidspec.training.evaluation import MeasuredClip
        from vidspec.training.steps import StepsProgress
        from vidspec.training.train import ClipCaptioned, StatesProgress, TrainingPlan

        if self.quiet:
            return
        if isinstance(event, TrainingPlan):
            for line in planned_lines(event):
                print_note(line)
        elif isinstance(event, ClipCaptioned):
            self._advance("captioning clips", event.number, None)
        elif isinstance(event, StatesProgress):
            self._advance("reading captions", event.done, event.total)
            if event.done == event.total and event.unreadable:
                count, first = len(event.unreadable), event.unreadable[0].message
                print_note(f"{count} captions are left out, as their clips cannot be read; the first: {first}")
        elif isinstance(event, StepsProgress):
            tau = "" if event.tau is None else f", {event.tau:.2f} tokens a round"
            self._advance(f"training: loss {event.loss:.2f}{tau}", event.seconds, event.seconds + event.left)
            if event.stopped:
                print_note("stopped: measuring the best head so far")
        elif isinstance(event, MeasuredClip):
            self._advance("measuring", None, None)

    def _advance(self, text: str, done: float | None, total: float | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        stage = text.partition(":")[0]
        if self._progress is None:
            console = Console(stderr=True)
            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
            self._stack.enter_context(self._progress)
        if stage != self._stage:
            self._stage = stage
            for task in self._progress.task_ids:
                self._progress.remove_task(task)
            self._progress.add_task(text, total=total)
            if self._progress.disable:
                print_note(f"{stage} ...")
        self._progress.update(self._progress.task_ids[-1], description=text, completed=done, total=total)


def planned_lines(planned: TrainingPlan) -> list[str]:
    """Return the lines about what is going to be done."""
    lines = [f"{count} captions {reason} are left out" for reason, count in planned.left_out.items()]
    prompts = "" if planned.prompts == 1 else f", of {planned.prompts} prompts"
    clips = f"{planned.clips} captions{prompts} to train on, {planned.held_out} to measure with"
    disk, memory = planned.states_bytes / 1e9, planned.memory_bytes / 2**30
    lines.append(f"{planned.target}: {clips}")
    lines.append(
        f"a head of {planned.parameters / 1e6:.0f} million weights; training takes about {memory:.1f} GiB of memory, "
        f"and its states {disk:.2f} GB in {planned.folder}, until the end"
    )
    return [*lines, *(["continuing where an earlier command ended"] if planned.continues else [])]


def _print_end(ended: Trained) -> None:
    reached = " ".join(f"{share:.0%}" for share in ended.evaluation.reached)
    print(f"accepted at position 1, 2, ...: {reached or 'none'}")
    print(f"the head {ended.evaluation}")
    if ended.kept is not None:
        print(f"`vidspec caption --target {ended.kept.target}` uses it from now on ({ended.kept.name})")
    else:
        print("it is not used by default: it gains less than 5%")
    if ended.out is not None:
        print(f"written to {ended.out}")
