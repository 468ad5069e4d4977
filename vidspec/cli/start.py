"""Startup of a command: notes on models and stages, device checks, and faster loading. No torch."""

from __future__ import annotations

import atexit
import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from vidspec import garbage
from vidspec.cli.printed import print_note
from vidspec.errors import UsageError
from vidspec.events.tally import format_duration

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.config.run_spec import RunSpec
    from vidspec.config.schema import Profile
    from vidspec.config.user_config import ResolvedProfile

#: Seconds between lines about a long stage, without a terminal.
EVERY = 10.0

#: Options of an example with real models.
REAL = "--target Qwen/Qwen2.5-VL-7B-Instruct"


def resolve_request_profile(spec: RunSpec, command: str, *, quiet: bool) -> tuple[RunSpec, ResolvedProfile]:
    """Return the run of a command that answers requests, with its texts read, and its profile.

    Args:
        spec: of the command line.
        command: its name, for errors.
        quiet: print no note on the choice of the profile.

    Raises:
        VidspecError: a text cannot be read, the profile is invalid, this machine cannot do it, or there are several
            prompts.
    """
    from vidspec.config.user_config import read_config
    from vidspec.decoding.default_profile import resolve_profile
    from vidspec.runs.run_settings import check_machine, profile_keys, read_texts

    require_one_prompt(spec, command)
    spec = read_texts(spec)
    resolved = resolve_profile(spec.profile, profile_keys(spec), read_config())
    if resolved.note is not None and not quiet:
        print_note(f"note: {resolved.note}")
    check_machine(spec, resolved.profile)
    return spec, resolved


def require_one_prompt(spec: RunSpec, command: str) -> None:
    """Refuse several prompts for a command that asks one at a time."""
    if len(spec.prompt) > 1:
        message = f"--prompt is given {len(spec.prompt)} times, and {command} takes one"
        raise UsageError(message, hint="vidspec caption answers several prompts about a clip")


def load_captioner(profile: Profile, *, fetches: bool, quiet: bool) -> Captioner:
    """Load the models of a profile, with their notes unless ``quiet``; ``fetches``: download bars show the progress."""
    with stage_status("loading weights", on=not (quiet or fetches)), fast_loading():
        from vidspec.captioner import Captioner
        from vidspec.decoding.captioner_models import notes_on

        captioner = Captioner.from_profile(profile)
    for line in () if quiet else notes_on(captioner.client.setup):
        print_note(f"note: {line}")
    return captioner


def announce(profile: Profile, command: str, prompts: Iterable[str] = (), *, here: bool = True) -> bool:
    """Print the models to load and to fetch, and check that the hub answers; returns True if any is fetched.

    Warnings about captions of the built-in models come first, with a command that takes real ones.

    Args:
        profile: names the models.
        command: the command with a clip, shown again with other models.
        prompts: of the run.
        here: True if this process loads them; other processes check for themselves.

    Raises:
        ModelError: models are not in the cache, and the hub does not answer.
    """
    from vidspec.embedded.prompts import demo_notes
    from vidspec.models import hub

    models = profile.models
    if notes := demo_notes(models.pair, models.target, prompts):
        first, *others = (f"note: {note}" for note in notes)
        for line in (f"{first}, such as:", f"  vidspec {command} {REAL}", *others):
            print_note(line)
    if models.pair is not None:
        print_note(f"loading the built-in models ({models.pair})")
        return False
    print_note(f"loading {' and '.join(profile.named_models)}")
    wanted = hub.require_models(profile.named_models) if here else []
    for name in wanted:
        print_note(f"fetching {name} from the hub")
    return bool(wanted)


@contextmanager
def stage_status(stage: str, *, on: bool = True) -> Iterator[None]:
    """Show a stage and its seconds: a spinner, or lines if standard error is not a terminal."""
    from rich.console import Console

    console, begun = Console(stderr=True), time.monotonic()
    with ExitStack() as stack:
        if on and console.is_terminal and not console.is_dumb_terminal:
            stack.enter_context(console.status(f"{stage} ..."))
        elif on:
            stack.enter_context(report_stage(lambda: f"{stage}, {format_duration(time.monotonic() - begun)}"))
        yield


@contextmanager
def report_stage(line: Callable[[], str | None]) -> Iterator[None]:
    """Print a line on standard error every :data:`EVERY` seconds, unless ``line`` returns None."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(EVERY):
            if text := line():
                print_note(text)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def fast_loading() -> Iterator[None]:
    """Import transformers quickly, and load without garbage collection.

    Nearly all objects made meanwhile stay alive, and collecting takes a seventh of the time to first token. They are
    not collected at exit either, which would dominate the time that Ctrl-C takes.
    """
    from vidspec.models.quick_import import import_transformers

    atexit.register(gc.freeze)
    with garbage.loading(fresh=True):
        import_transformers()
        yield
