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
from vidspec.events.tally import format_duration

if TYPE_CHECKING:
    from vidspec.config.schema import Profile

#: Seconds between lines about a long stage, without a terminal.
EVERY = 10.0

#: Options of an example with real models.
REAL = "--target Qwen/Qwen2.5-VL-7B-Instruct"


def announce(profile: Profile, *, here: bool = True) -> bool:
    """Print the models to load and to fetch, and check that the hub answers; returns True if any is fetched.

    Args:
        profile: names the models.
        here: True if this process loads them; other processes check for themselves.

    Raises:
        ModelError: models are not in the cache, and the hub does not answer.
    """
    from vidspec.models import hub

    models = profile.models
    if models.pair is not None:
        print_note(f"loading the built-in models ({models.pair})")
        return False
    print_note(f"loading {' and '.join(profile.named_models)}")
    wanted = hub.require_models(profile.named_models) if here else []
    for name in wanted:
        print_note(f"fetching {name} from the hub")
    return bool(wanted)


def demo_notes(profile: Profile, prompts: Iterable[str], command: str) -> list[str]:
    """Return lines with the warnings about captions of the built-in models, and a command with real ones.

    Args:
        profile: of the run.
        prompts: of the run.
        command: the command with a clip, shown again with other models.
    """
    from vidspec.embedded.prompts import demo_notes

    notes = demo_notes(profile.models.pair, profile.models.target, prompts)
    shown = [f"note: {note}" for note in notes]
    return [f"{shown[0]}, such as:", f"  vidspec {command} {REAL}", *shown[1:]] if notes else []


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
