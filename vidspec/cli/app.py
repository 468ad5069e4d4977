"""The ``vidspec`` application: registers the commands, and turns errors into a line on stderr and an exit code."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from inspect import cleandoc, signature
from itertools import pairwise
from typing import Annotated

import typer

from vidspec.cli import (
    ask,
    bench,
    caption,
    compare,
    config,
    doctor,
    merge,
    models,
    profile,
    profiles,
    report_page,
    review,
    sample,
    serve,
    train,
)
from vidspec.cli.keys import spell_flags
from vidspec.cli.options import Command, Group, LongHelp
from vidspec.cli.printed import FULL, events_on_stderr, print_error
from vidspec.config.sections import Flag
from vidspec.config.values import require_text
from vidspec.errors import LostOutputError, UsageError, VidspecError
from vidspec.escaping import HALF_CHARACTER, escape_text
from vidspec.signals import ending_of, raise_on_signals

#: Base of all usage errors in the click that Typer bundles, found through a class that Typer exports.
ClickError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException" and issubclass(base, Exception)
)

#: Commands by group, each with an example.
COMMANDS: Mapping[str, Mapping[str, tuple[Callable[..., object], str]]] = {
    "Caption": {
        "caption": (caption.caption, "vidspec caption clips/ -o captions.jsonl"),
        "ask": (ask.ask, "vidspec ask clip.mp4 'What moves?' 'Which way?'"),
        "merge": (merge.merge, "vidspec merge clips/ --format ltx -o dataset.jsonl"),
        "serve": (serve.serve, "vidspec serve --port 8000"),
    },
    "Look": {
        "review": (review.review, "vidspec review clips/ --open"),
        "compare": (compare.compare, "vidspec compare a.jsonl b.jsonl -o page.html"),
        "report": (report_page.report, "vidspec report captions.jsonl -o report.html"),
    },
    "Models": {
        "train": (train.train, "vidspec train captions.jsonl"),
        "models": (models.models, "vidspec models --card 4090"),
        "profiles": (profiles.profiles, "vidspec profiles"),
        "sample": (sample.sample, "vidspec sample --out clips"),
        "doctor": (doctor.doctor, "vidspec doctor"),
    },
    "Measure": {
        "bench": (bench.bench, "vidspec bench clip.mp4 --profiles ar,specvlm"),
        "profile": (profile.profile, "vidspec profile clip.mp4"),
    },
}
EXAMPLES = [example for group in COMMANDS.values() for _, example in group.values()] + ["vidspec config keys"]

app = typer.Typer(
    name="vidspec",
    cls=Group,
    help="Caption video with large video-language models, faster: a draft proposes, the target verifies.",
    epilog="\n".join(["\b", "Examples:", *EXAMPLES]),
    no_args_is_help=True,
    suggest_commands=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, group in COMMANDS.items():
    for name, (function, _) in group.items():
        has_more = "help_all" in signature(function).parameters
        app.command(name, cls=LongHelp if has_more else Command, rich_help_panel=panel)(function)
app.add_typer(config.app, name="config", cls=Group, rich_help_panel="Models")


def _paragraphs(help_text: str) -> str:
    """Return a docstring with a line for each paragraph, which the help page wraps to the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(help_text).split("\n\n"))


for command in (*app.registered_commands, *config.app.registered_commands):
    if command.callback is not None and command.callback.__doc__:
        command.help = _paragraphs(command.callback.__doc__)


def version() -> str:
    """Return the installed version of vidspec."""
    try:
        return installed_version("vidspec")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vidspec {version()}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Caption video with large video-language models, faster: a draft proposes, the target verifies."""


def run_app(application: typer.Typer, name: str, args: Sequence[str] | None = None) -> int:
    """Run a command line of an application and return the exit code. Bugs keep their traceback.

    Args:
        application: the Typer application.
        name: the program's name on help pages.
        args: the process's own if None.
    """
    args = list(sys.argv[1:] if args is None else args)
    as_json = "--progress=json" in args or ("--progress", "json") in pairwise(args)
    debug = "--debug" in args or os.environ.get("VIDSPEC_DEBUG", "") not in ("", "0")
    with events_on_stderr() if as_json else nullcontext():
        try:
            _check_start(application, args)
            with raise_on_signals():
                code = application(args=args, prog_name=name, standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except VidspecError as error:
            if debug:
                print(escape_text(traceback.format_exc()), end="", file=sys.stderr)
            error.spelling = spell_flags(error, args)
            print_error(str(error))
            return error.exit_code
        except ClickError as error:
            return _usage(error)
        except (KeyboardInterrupt, typer.Abort) as stop:
            ending = ending_of(stop)
            print_error(ending.word)
            return ending.code
        except SystemExit as stopped:  # raised by Typer, for one when the reader of a pipe is gone
            if isinstance(stopped.__context__, BrokenPipeError):
                return LostOutputError.exit_code
            return stopped.code if isinstance(stopped.code, int) else 1
        except BrokenPipeError:
            _discard_stdout()  # the reader of a pipe (`| head`) has closed it
            return LostOutputError.exit_code
        except OSError as error:
            if error.errno not in FULL:
                raise
            _discard_stdout()
            lost = LostOutputError(f"{error.filename or 'the output'}: cannot be written: {error.strerror}")
            print_error(str(lost))
            return lost.exit_code


def _check_start(application: typer.Typer, args: Sequence[str]) -> None:
    """Refuse a working folder that was deleted, and bytes that are not UTF-8 in values of options but names of files.

    Paths have no meaning in such a folder, and libraries of torch do not load. A script in Latin-1 has such bytes.

    Raises:
        UsageError: naming the folder, or the option.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder: {error.strerror}", hint="change to one that exists") from None
    odd = [number for number, arg in enumerate(args) if HALF_CHARACTER.search(arg)]
    if not odd:
        return
    command = typer.main.get_command(application)
    for arg in args:
        if (inner := getattr(command, "commands", {}).get(arg)) is None:
            break
        command = inner
    texts = {
        spelling: not Flag(metavar=getattr(one, "metavar", None)).names_files
        for one in command.params
        for spelling in one.opts
        if not getattr(one, "is_flag", False)
    }
    for number in odd:
        before, arg = args[number - 1] if number else "", args[number]
        spelling = next((one for one in (arg.partition("=")[0], arg[:2], before) if one in texts), "")
        if texts.get(spelling) and "--" not in args[:number]:
            require_text(spelling, arg)


def _discard_stdout() -> None:
    """Send what standard output still holds to nowhere, since flushing it at exit would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _meant_command(word: str, commands: Iterable[str]) -> str | None:
    """Return what an unknown command stands for: captioning a path, or a command of a similar name."""
    if "caption" in commands and (os.path.exists(word) or "/" in word or os.path.splitext(word)[1] != ""):
        return f"`vidspec caption {shlex.quote(word)}`"
    return next(iter(difflib.get_close_matches(word, commands, 1)), None)


def _usage(error: Exception) -> int:
    """Print a usage error in one line, or the help page if there are no arguments; returns the exit code."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 2
    path = context.command_path if context else "vidspec"
    unknown = re.fullmatch(r"No such command '(.*)'\.", message, re.DOTALL)
    if unknown and (meant := _meant_command(unknown[1], getattr(context.command, "commands", ()) if context else ())):
        print_error(f"{unknown[1]} is not a command; did you mean {meant}?")
        return 2
    print_error(f"{' '.join(message.split())} (see `{path} --help`)")
    return 2
