"""``vidspec review``: captions on a page of this machine, to read and to edit."""

from __future__ import annotations

import sys
from contextlib import closing, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vidspec.cli.options import PROFILE_HELP, SERVING, TerminalOptions, flatten_options
from vidspec.cli.printed import print_note
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError
from vidspec.events.tally import counted

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.config.schema import Profile
    from vidspec.runs.planning import RunPlan
    from vidspec.runs.review import CaptionFiles

#: Options of ``vidspec caption`` that name clips and their files.
NAMING = ("paths", "from_file", "manifest", "include", "exclude", "include_images", "format", "output_dir", "name")
HELPS = {
    "prompt": "Question about a clip that is captioned again, unless the page changes it.",
    "profile": PROFILE_HELP,
}
HOST = "127.0.0.1"


@flatten_options(*NAMING, *SERVING, helps=HELPS)
def review(
    spec: RunSpec,
    options: TerminalOptions,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Write the page for reading only; start no server."),
    ] = None,
) -> int:
    """Show clips beside their caption files on a page of this machine: edit, save, or caption again by another prompt.

    Another caption is made as the run of the clip made it, but for options given here. A saved file counts as edited:
    no later run overwrites it unless --overwrite says so. Name clips and --output-dir as for `vidspec caption --format
    txt`. Models are loaded when a caption is first asked for. Ctrl-C ends it.
    """
    from vidspec.cli.start import require_one_prompt
    from vidspec.display.pages.page import check_page
    from vidspec.runs.planning import plan
    from vidspec.runs.review import CaptionFiles

    require_one_prompt(spec, "review")
    served = {"--open": open_browser, "--port": port, "--prompt": spec.prompt}
    if output is not None and (wrong := next((option for option, value in served.items() if value), None)):
        raise UsageError(f"--output and {wrong} exclude each other", hint="a page for reading has no server")
    planned = plan(spec.model_copy(update={"format": spec.format or "txt"}))
    files = CaptionFiles(planned, spec)
    title = f"Captions of {', '.join(spec.paths) or 'listed clips'}"
    if output is None:
        with redirect_stdout(sys.stderr):
            return _serve(planned, files, title, port, open_browser=open_browser, quiet=options.quiet)
    check_page(output, [job.path for job in files.jobs], "--output")
    return _write(files, title, output, quiet=options.quiet)


def _write(files: CaptionFiles, title: str, output: Path, *, quiet: bool) -> int:
    from vidspec.display.pages.page import source_beside
    from vidspec.display.pages.review import write_review
    from vidspec.runs.review import review_rows
    from vidspec.runs.store.caption_set import CAPTION_STATES

    rows = review_rows(files, lambda _, job: source_beside(job.path, output))
    write_review(output, rows, CAPTION_STATES, title)
    if not quiet:
        print_note(f"{output}: {counted(len(rows), 'clip')}, for reading only")
    return 0


def _serve(planned: RunPlan, files: CaptionFiles, title: str, port: int, *, open_browser: bool, quiet: bool) -> int:
    import secrets

    from vidspec.cli.serve import listen, require_packages

    require_packages("review")
    from vidspec.serve.config import ServeConfig
    from vidspec.serve.connections import BACKLOG, build_server
    from vidspec.serve.review import FreshCaptions, build_review

    listener, token = listen(HOST, port, f"--port {port}"), secrets.token_urlsafe(24)
    # A paused video is not read for a long time; one that plays must not delay the end.
    config = ServeConfig(timeout=1.0, patience=3600.0)
    with closing(FreshCaptions(lambda profile: _load(planned, profile, quiet=quiet))) as recaptioner:
        server = build_server(build_review(files, recaptioner, config, token, title), config)
        listener.listen(BACKLOG)
        address = f"http://{HOST}:{listener.getsockname()[1]}/{token}/"
        print_note(f"reviewing at {address} (Ctrl-C ends)")
        if open_browser:
            typer.launch(address)
        with suppress(KeyboardInterrupt):  # raised again after the server has ended
            server.run(sockets=[listener])
    return 0


def _load(planned: RunPlan, profile: Profile, *, quiet: bool) -> Captioner:
    """Load the models of a profile, with the notes of ``vidspec caption``."""
    from vidspec.cli import start

    fetches = not quiet and start.announce(profile, "review", planned.prompts)
    return start.load_captioner(profile, fetches=fetches, quiet=quiet)
