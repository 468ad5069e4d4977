"""Before the first caption: notes on what is loaded and on the built-in models, and faster loading. No torch."""

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
    from vidspec.config.profiles import Profile

__all__ = ["announce", "demo_notes", "report_stage", "require_devices", "stage_status", "uncollected"]

#: Seconds between lines on a stage that lasts, where no terminal shows it.
EVERY = 10.0

NOTICE = (
    "note: the built-in models know only drawn shapes, and what they say about real video is wrong; `vidspec models` "
    "lists real models, such as:"
)
REAL = "--target Qwen/Qwen2.5-VL-7B-Instruct --draft Qwen/Qwen2.5-VL-3B-Instruct"


def announce(profile: Profile, *, here: bool = True) -> bool:
    """Print what is loaded and what has to be fetched, and check that the hub answers; returns whether it has to.

    Args:
        profile: names the models.
        here: whether this process loads them; other processes check for themselves.

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


def require_devices(profile: Profile) -> None:
    """Find out before anything slow that a device is not there that the profile names; imports torch only if it does.

    Raises:
        DeviceError: it is not there.
    """
    models, workers = profile.models, profile.workers
    named = (models.device, models.draft_device, workers.target, workers.draft)
    if any(device not in (None, "auto", "cpu") for device in named):
        from vidspec.decoding.workers import places

        places.target_placement(profile)
        places.draft_placement(profile)


def demo_notes(profile: Profile, prompts: Iterable[str], command: str) -> list[str]:
    """Notes on what captions of the built-in models are worth; none for other models.

    Args:
        profile: the run's.
        prompts: all prompts of the run.
        command: the command with a clip, to be repeated with other models.
    """
    from vidspec.embedded import ships
    from vidspec.embedded.prompts import PROMPTS, QUESTIONS, is_known

    models = profile.models
    if models.pair is None and not ships(models.target or ""):
        return []
    notes = [NOTICE, f"  vidspec {command} {REAL}"]
    if untrained := sorted({prompt for prompt in prompts if not is_known(prompt)}):
        more = f" (and {len(untrained) - 1} more)" if len(untrained) > 1 else ""
        shown = " ".join(untrained[0].split())
        notes.append(
            f"note: the built-in models were not trained for the prompt {shown[:60]!r}{more}; their answer "
            f"means nothing. They know {PROMPTS[0]!r} and similar prompts, and after it questions such as "
            f"{QUESTIONS['count']!r}"
        )
    return notes


@contextmanager
def stage_status(stage: str, *, on: bool = True) -> Iterator[None]:
    """The name of a stage and its seconds while it lasts: a spinner, or lines where standard error is no terminal."""
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
    """Every :data:`EVERY` seconds a line on standard error; none where there is None."""
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
def uncollected() -> Iterator[None]:
    """Import and load without garbage collection: nearly all objects made meanwhile stay, and looking for the others
    takes a seventh of the time until the first token. At the end of the process they are not looked for either, which
    would take Ctrl-C longer than everything else."""
    atexit.register(gc.freeze)
    with garbage.loading(fresh=True):
        yield
