"""``vidspec ask``: a dialogue about one clip, interactive or line by line in a pipe."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from vidspec.cli.options import ASKING, AnswerFormat, TerminalOptions, flatten_options
from vidspec.config.run_spec import RunSpec

if TYPE_CHECKING:
    from vidspec.cli.session import DialogueSession

#: Options shared with ``vidspec caption``.
SHARED = (*ASKING, "start", "end", "report")


@flatten_options(*SHARED)
def ask(
    clip: Annotated[str, typer.Argument(metavar="CLIP", help="A video file.")],
    spec: RunSpec,
    options: TerminalOptions,
    form: Annotated[
        AnswerFormat, typer.Option("--format", help="Format of answers in a pipe; json includes every measurement.")
    ] = "text",
) -> int:
    """Ask several questions about a clip, each after the previous answers, without reading the video again.

    In a pipe every input line is a question and gets one output line; an empty line gets an empty line. A terminal
    also understands /again, /save FILE and /quit.
    """
    from vidspec.cli.printed import print_note
    from vidspec.cli.session import HELP, terminal_prompt

    terminal, out = sys.stdin.isatty() and sys.stdout.isatty(), sys.stdout
    with redirect_stdout(sys.stderr), ExitStack() as stack:  # keeps output of libraries out of the answers
        session = _open_session(stack, clip, spec, options, out, form)
        if not terminal:
            return session.lines(sys.stdin)
        if not options.quiet:
            print_note(HELP)
        return session.terminal(terminal_prompt(out), quiet=options.quiet)


def _open_session(
    stack: ExitStack, clip: str, spec: RunSpec, options: TerminalOptions, out: TextIO, form: AnswerFormat
) -> DialogueSession:
    """Open the session: check the clip, load the models, read its frames in the reader process."""
    from vidspec.cli import start
    from vidspec.cli.session import DialogueSession, dialogue_page
    from vidspec.runs.executors.local import readers_for
    from vidspec.runs.inputs import require_file

    require_file(clip)
    if spec.report is not None:
        from vidspec.display.pages.page import check_page

        check_page(spec.report, [clip])
    part, quiet = (spec.start, spec.end), options.quiet
    spec, resolved = start.resolve_request_profile(spec, "ask", quiet=quiet)
    profile = resolved.profile
    fetches = not quiet and start.announce(profile, f"ask {shlex.quote(clip)}")
    (reader,) = readers_for(spec, profile, 1)
    stack.callback(reader.close)
    with start.stage_status("opening the clip", on=not quiet):
        reader.require_frames(clip, *part, profile.video.arguments)
    captioner = stack.enter_context(start.load_captioner(profile, fetches=fetches, quiet=quiet))
    with start.stage_status("reading frames", on=not quiet):
        frames = reader.read(clip, *part, profile.video.arguments, partial(captioner.client.inputs.refuse, clip, None))
    reader.close()
    page = stack.enter_context(dialogue_page(spec.report, profile))
    captioner.client.return_probs = page is not None
    dialogue = captioner.dialogue(clip, clip=frames)
    return DialogueSession(clip, dialogue, out, form, profile.name, page, models_named=resolved.models_named)
