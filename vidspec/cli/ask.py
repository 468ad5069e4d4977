"""``vidspec ask``: a talk about one clip, on a terminal or line by line in a pipe."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vidspec.cli.options import (
    Debug,
    Device,
    Draft,
    Dtype,
    End,
    Fps,
    Frames,
    Pair,
    Profile,
    Quiet,
    Request,
    Settings,
    Start,
    System,
    Target,
    Temperature,
)  # fmt: skip
from vidspec.errors import OutputError, UsageError, VidspecError

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.config.schema import Profile as Loaded
    from vidspec.decoding.dialogue import Dialogue
    from vidspec.display.pages.report import ReportFile
    from vidspec.events.events import Event
    from vidspec.events.record import Caption

__all__ = ["Form", "Session", "ask"]

HELP = "/again asks the last question again, /save FILE keeps the talk, /quit ends it; Ctrl-C stops an answer"


class Form(str, Enum):
    """How answers are written."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


def ask(
    clip: Annotated[str, typer.Argument(metavar="CLIP", help="A video file.")],
    profile: Profile = None,
    settings: Settings = None,
    pair: Pair = None,
    target: Target = None,
    draft: Draft = None,
    device: Device = None,
    dtype: Dtype = None,
    frames: Frames = None,
    fps: Fps = None,
    start: Start = None,
    end: End = None,
    system: System = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer.", rich_help_panel="Generation")] = None,
    temperature: Temperature = None,
    form: Annotated[
        Form, typer.Option("--format", help="Of answers in a pipe; json: with all that was measured.")
    ] = Form.text,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="One page to look at the talk with.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Talk about a clip: each question is asked behind the answers before, without reading the video again.

    In a pipe each line is a question and gives a line, an empty one an empty one; on a terminal there are /again,
    /save FILE and /quit.
    """
    request = Request(
        paths=[clip],
        profile=profile,
        settings=settings,
        pair=pair,
        target=target,
        draft=draft,
        device=device,
        dtype=dtype,
        frames=frames,
        fps=fps,
        start=start,
        end=end,
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        report=report,
        quiet=quiet,
    )
    return _talk(clip, request, form)


def _talk(clip: str, request: Request, form: Form) -> int:
    """Open what is asked about and answer until nothing more is asked; the exit code."""
    from vidspec.cli import start as beginning
    from vidspec.cli.report import note
    from vidspec.cli.request import how_of, overrides_of, part_of
    from vidspec.config.user_config import read_config, resolve

    report, quiet = request.report, request.quiet
    if report is not None:
        from vidspec.display.pages.page import check_page

        check_page(report, [clip])
    part = part_of(request)
    laid = resolve(request.profile, overrides_of(request), read_config())
    resolved = laid.profile
    how = how_of(request, resolved, 1)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    out = sys.stdout
    with redirect_stdout(sys.stderr):  # libraries that print must not mix with answers
        for line in beginning.demo_notes(resolved, (), f"ask {shlex.quote(clip)}"):
            note(line)
        fetches = False if quiet else beginning.announce(resolved)
        with (
            _opened(clip, part, resolved, how.video, (not quiet, not quiet and not fetches)) as (captioner, dialogue),
            _page(report, resolved) as page,
        ):
            captioner.return_probs = page is not None
            for line in captioner.notes:
                note(f"note: {line}")
            session = Session(clip, dialogue, out, form, resolved.name, page, models_named=laid.models_named)
            if not terminal:
                return session.lines(sys.stdin)
            if not quiet:
                note(HELP)
            return session.terminal(_prompted(out), quiet=quiet)


@contextmanager
def _opened(
    path: str, part: tuple[float | None, float | None], profile: Loaded, frames: Any, stages: tuple[bool, bool]
) -> Iterator[tuple[Captioner, Dialogue]]:
    """The models, and the clip read by a process of its own; ``stages``: whether reading and loading are shown."""
    from vidspec.cli import start as beginning
    from vidspec.dataset.job import JobConfig
    from vidspec.dataset.local import readers_for

    (reader,) = readers_for(JobConfig(batch=1), 1)
    with closing(reader):
        reader.start()
        with beginning.uncollected(), beginning.status("loading", on=stages[1]):
            from vidspec.captioner import Captioner

            captioner = Captioner.from_profile(profile)
        with captioner:
            refuse = getattr(captioner, "refuse", None)
            with beginning.status("reading frames", on=stages[0]):
                clip = reader.read(path, *part, frames, partial(refuse, path, None) if refuse is not None else None)
            reader.close()
            yield captioner, captioner.dialogue(path, clip=clip)


@contextmanager
def _page(file: Path | None, profile: Loaded) -> Iterator[ReportFile | None]:
    """Where turns are told to; it is written in the end, however that comes."""
    from vidspec.cli.report import note

    if file is None:
        yield None
        return
    from vidspec.display.pages.report import ReportFile

    page = ReportFile(file, profile)
    try:
        yield page
    except KeyboardInterrupt:
        page.interrupted = True
        raise
    finally:
        page.write()
        for error in page.errors:
            note(f"error: --report: {error}")


def _prompted(out: TextIO) -> Callable[[], str]:
    """Asks for a line; with the keys and the history of a shell where there is ``readline``."""
    with suppress(ImportError):
        import readline  # noqa: F401

    def line() -> str:
        with redirect_stdout(out):
            return input("? ")

    return line


class Session:
    """A talk, as it is led and shown.

    Args:
        path: the clip.
        dialogue: about it.
        out: where answers go.
        form: of answers in a pipe.
        profile: its name, for records of what failed.
        page: is told of each turn.
        models_named: whether the user named the models; answers of built-in ones that nobody named are marked.
    """

    def __init__(
        self,
        path: str,
        dialogue: Dialogue,
        out: TextIO,
        form: Form,
        profile: str,
        page: ReportFile | None = None,
        *,
        models_named: bool = False,
    ) -> None:
        self.path, self.dialogue, self.out, self.form, self.profile = path, dialogue, out, form, profile
        self.models_named = models_named
        self.page, self._turn = page, 0
        self._records: dict[int, Caption] = {}  # by turn

    def lines(self, questions: TextIO) -> int:
        """Answer each line with a line, an empty one with an empty one, also where an answer failed; the exit code.

        Raises:
            UsageError: a line is longer than any question.
        """
        from vidspec.cli.report import failure
        from vidspec.config.bounds import LONGEST_PROMPT
        from vidspec.events.events import Finished
        from vidspec.events.record import failed

        code = 0
        while line := questions.readline(LONGEST_PROMPT + 1):
            if len(line) > LONGEST_PROMPT:
                raise UsageError(f"a question is longer than {LONGEST_PROMPT >> 20} MiB")
            if not (text := line.strip()):
                print(file=self.out, flush=True)
                continue
            try:
                *_, last = self._told(self.dialogue.stream(text))
                assert isinstance(last, Finished)
                caption = last.caption
            except VidspecError as error:
                caption, code = failed(self.path, error, profile=self.profile), max(code, error.exit_code)
                failure(caption, error, debug=False)
                if self.page is not None:
                    self.page.end(self._turn, caption)
            print(self._line(caption, text), file=self.out, flush=True)
        return code

    def terminal(self, line: Callable[[], str], *, quiet: bool = False) -> int:
        """Ask for lines until there are no more; the exit code."""
        from vidspec.cli.interrupts import Terminated
        from vidspec.cli.report import complain, note

        while True:
            try:
                text = line().strip()
            except EOFError:
                print(file=self.out)
                return 0
            except KeyboardInterrupt as stop:
                if isinstance(stop, Terminated):
                    raise
                print(file=self.out)
                continue
            word, _, rest = text.partition(" ")
            try:
                if word in ("/quit", "/exit"):
                    return 0
                if word == "/save":
                    self._save(rest.strip())
                elif word == "/again":
                    self._show(self.dialogue.again(), quiet=quiet)
                elif word.startswith("/"):
                    note(HELP)
                elif text:
                    self._show(self.dialogue.stream(text), quiet=quiet)
            except VidspecError as error:
                complain(str(error))

    def _told(self, events: Iterator[Event]) -> Iterator[Event]:
        """A turn's events, which the page hears too; of a turn that is given up it shows nothing."""
        from vidspec.events.events import Finished

        self._turn += 1
        if self.page is not None:
            self.page.begin(self._turn, self.path, 2)  # more turns may follow
        with closing(events) as heard:  # type: ignore[type-var]
            for event in heard:
                if self.page is not None and isinstance(event, Finished):
                    self.page.end(self._turn, event.caption)
                elif self.page is not None:
                    self.page.event(self._turn, event)
                yield event

    def _show(self, events: Iterator[Event], *, quiet: bool) -> None:
        """An answer as it is written. Ctrl-C stops it between two of its rounds, a second one the session."""
        from vidspec.cli.report import note, summary
        from vidspec.cli.start import status
        from vidspec.dataset.formats import MARK
        from vidspec.escaping import shown
        from vidspec.events.events import Finished, Opened, Round
        from vidspec.events.wrapping import WordWrap, columns

        begun, caption, events = False, None, self._told(events)
        wrap, mark = WordWrap(columns(self.out)), ""
        with _stoppable() as stopped, ExitStack() as waiting:
            waiting.enter_context(status("prefill" if self.dialogue.exchanges else "vision and prefill", on=not quiet))
            for event in events:
                if isinstance(event, Opened) and event.demo and not self.models_named:
                    mark = MARK
                elif isinstance(event, Round):
                    waiting.close()
                    piece = "".join(event.texts)
                    piece = piece if begun else mark + piece.lstrip() if piece.strip() else ""
                    begun = begun or bool(piece)
                    print(wrap.add(shown(piece)), end="", file=self.out, flush=True)
                elif isinstance(event, Finished):
                    caption = event.caption
                    self._records[caption.question["index"] if caption.question else 0] = caption
                if stopped() and caption is None:
                    events.close()  # type: ignore[attr-defined]
                    print(wrap.add(" [stopped]"), end="", file=self.out)
                    break
        print(wrap.end(), file=self.out, flush=True)
        if caption is not None and not quiet:
            note(summary(caption))

    def _line(self, caption: Caption, text: str) -> str:
        from vidspec.dataset.formats import line
        from vidspec.dataset.records import lean
        from vidspec.escaping import json_text

        record = caption.to_dict()
        if self.form is Form.json:
            return json_text(record)
        if self.form is Form.jsonl:
            return json_text(
                {key: value for key, value in lean({**record, "job": {"prompt": text}}).items() if key != "job"}
            )
        # As a segment's or a turn's caption is written: on one line.
        said = {**record, "caption": caption.caption or "", "job": {"models_named": self.models_named}}
        return line(said, "webdataset-txt", several=False) or ""

    def _save(self, name: str) -> None:
        """What was said, in a file: records where it ends in .json or .jsonl, else as text.

        Raises:
            UsageError, OutputError: it cannot be written, or there is one of that name.
        """
        from vidspec.escaping import json_text
        from vidspec.files import check_output, write_whole

        said = self.dialogue.exchanges
        if not name:
            raise UsageError("/save needs the name of a file")
        if not said:
            raise UsageError("nothing was said yet")
        path = Path(name).expanduser()
        check_output(path, [self.path], "/save")
        if path.exists():
            raise OutputError(f"{path}: is there already")
        if path.suffix in (".json", ".jsonl"):
            lines = [json_text(self._records[turn].to_dict()) for turn in range(len(said))]
        else:
            lines = [line for one in said for line in (f"? {one.question}", one.answer, "")]
        write_whole(path, "".join(f"{line}\n" for line in lines))


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """In here Ctrl-C is only noted, once, so that no cache is left half written; outside the main thread it is not."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def press(_number: int, _frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
