"""The dialogue of ``vidspec ask`` on a terminal or in a pipe; ``vidspec.decoding.dialogue`` generates the answers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from vidspec.bounds import LONGEST_PROMPT
from vidspec.cli.options import AnswerFormat
from vidspec.cli.printed import print_error, print_note
from vidspec.cli.report import print_failure, summary
from vidspec.cli.start import stage_status
from vidspec.errors import OutputError, UsageError, VidspecError
from vidspec.escaping import escape_text, json_text
from vidspec.events.events import Event, Finished, Opened, Round
from vidspec.events.record import Caption, failed_caption
from vidspec.events.tally import counted
from vidspec.events.wrapping import WordWrap, terminal_columns
from vidspec.files import check_output, write_whole
from vidspec.registry import nearest
from vidspec.runs.formats.base import MARK, format_of_suffix, make_format, marked_caption, one_line_caption
from vidspec.signals import Terminated, defer_signals

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.decoding.dialogue import Dialogue
    from vidspec.display.pages.report import ReportFile

#: Commands on a terminal.
COMMANDS = ("/again", "/save", "/quit", "/exit")
HELP = "/again repeats the last question, /save FILE saves the dialogue, /quit ends it; Ctrl-C stops an answer"


@contextmanager
def dialogue_page(file: Path | None, profile: Profile) -> Iterator[ReportFile | None]:
    """Context of the report page, None without one; the page is written at the end, even after an error."""
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
            print_note(f"error: --report: {error}")


def terminal_prompt(out: TextIO) -> Callable[[], str]:
    """Return a function that reads a line from the terminal, with ``readline`` if available."""
    with suppress(ImportError):
        import readline  # noqa: F401

    def read() -> str:
        with redirect_stdout(out):
            return input("? ")

    return read


class DialogueSession:
    """One dialogue of ``vidspec ask``.

    Args:
        path: the clip.
        dialogue: about it.
        out: stream for answers.
        form: of answers in a pipe.
        profile: its name, for records of failed questions.
        page: the report page that gets each turn.
        models_named: True if the user named the models; answers of the default built-in models are marked.
    """

    def __init__(
        self,
        path: str,
        dialogue: Dialogue,
        out: TextIO,
        form: AnswerFormat,
        profile: str,
        page: ReportFile | None = None,
        *,
        models_named: bool = False,
    ) -> None:
        self.path, self.dialogue, self.out, self.profile = path, dialogue, out, profile
        self.form = make_format(form)
        self.models_named = models_named
        self.page, self._turn = page, 0
        self._records: dict[int, Caption] = {}  # by turn

    def lines(self, questions: TextIO) -> int:
        """Answer each line with one line, even if an answer fails; returns the exit code.

        Raises:
            UsageError: a line is too long.
        """
        code = 0
        while text := questions.readline(LONGEST_PROMPT + 1):
            if len(text) > LONGEST_PROMPT:
                raise UsageError(f"a question is longer than {LONGEST_PROMPT >> 20} MiB")
            answer = ""
            if question := text.strip():
                try:
                    *_, last = self._turn_events(self.dialogue.stream(question))
                    caption = cast(Finished, last).caption
                except VidspecError as error:
                    caption, code = failed_caption(self.path, error, profile=self.profile), max(code, error.exit_code)
                    print_failure(caption, error, debug=False)
                    if self.page is not None:
                        self.page.end(self._turn, caption)
                answer = self._line(caption, question)
            print(answer, file=self.out, flush=True)
        return code

    def terminal(self, read: Callable[[], str], *, quiet: bool = False) -> int:
        """Answer questions and run commands until the input ends; returns the exit code."""
        while True:
            try:
                text = read().strip()
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
                    meant = nearest(word, COMMANDS)
                    print_note(f"there is no {word}; did you mean {meant}?" if meant else HELP)
                elif text:
                    self._show(self.dialogue.stream(text), quiet=quiet)
            except VidspecError as error:
                print_error(str(error))

    def _turn_events(self, events: Iterator[Event]) -> Generator[Event, None, None]:
        """Yield a turn's events, and pass them to the page; a stopped turn does not appear there."""
        self._turn += 1
        if self.page is not None:
            self.page.begin(self._turn, self.path, 2)  # more turns may follow
        with closing(cast("Generator[Event, None, None]", events)):
            for event in events:
                if self.page is not None and isinstance(event, Finished):
                    self.page.end(self._turn, event.caption)
                elif self.page is not None:
                    self.page.event(self._turn, event)
                yield event

    def _show(self, answer: Iterator[Event], *, quiet: bool) -> None:
        """Stream an answer. Ctrl-C stops it between two rounds, a second one ends the session."""
        begun, caption, events = False, None, self._turn_events(answer)
        wrap, mark = WordWrap(terminal_columns(self.out)), ""
        with defer_signals(signal.SIGINT) as interrupts, ExitStack() as waiting:
            waiting.enter_context(
                stage_status("prefill" if self.dialogue.exchanges else "vision and prefill", on=not quiet)
            )
            for event in events:
                if isinstance(event, Opened) and event.demo and not self.models_named:
                    mark = MARK
                elif isinstance(event, Round):
                    waiting.close()
                    piece = "".join(event.texts)
                    piece = piece if begun else mark + piece.lstrip() if piece.strip() else ""
                    begun = begun or bool(piece)
                    print(wrap.add(escape_text(piece)), end="", file=self.out, flush=True)
                elif isinstance(event, Finished):
                    caption = event.caption
                    self._records[caption.question["index"] if caption.question else 0] = caption
                if interrupts and caption is None:
                    events.close()
                    print(wrap.add(" [stopped]"), end="", file=self.out)
                    break
            interrupts.clear()
        print(wrap.end(), file=self.out, flush=True)
        if caption is not None and not quiet:
            print_note(summary(caption))

    def _line(self, caption: Caption, question: str) -> str:
        record = {**caption.to_dict(), "job": {"prompt": question, "models_named": self.models_named}}
        if self.form.is_journal:
            kept = self.form.stored(record)
            return json_text({key: value for key, value in kept.items() if key != "job"})
        return one_line_caption(marked_caption({**record, "caption": caption.caption or ""}))

    def _save(self, name: str) -> None:
        """Write the dialogue to a file: records if its name ends in .json or .jsonl, otherwise text.

        Raises:
            UsageError, OutputError: the file exists or cannot be written.
        """
        exchanges = self.dialogue.exchanges
        if not name:
            raise UsageError("/save needs the name of a file")
        if not exchanges:
            raise UsageError("there is nothing to save yet")
        path = Path(name).expanduser()
        check_output(path, [self.path], "/save")
        if path.exists():
            raise OutputError(f"{path}: exists already")
        suffix = format_of_suffix(path.name)
        as_records = suffix is not None and make_format(suffix).is_journal
        if as_records:
            lines = [json_text(self._records[turn].to_dict()) for turn in range(len(exchanges))]
        else:
            lines = [text for one in exchanges for text in (f"? {one.question}", one.answer, "")]
        write_whole(path, "".join(f"{text}\n" for text in lines))
        turns = counted(len(exchanges), "question")
        print_note(f"saved {turns} with answers to {path}, as {'records' if as_records else 'text'}")
