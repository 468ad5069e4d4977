"""Startup of a command: notes on models and stages, device checks, and faster loading. No torch."""

from __future__ import annotations

import atexit
import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from vidspec import garbage
from vidspec.cli.printed import print_note
from vidspec.config.user_config import DEFAULT_PROFILE
from vidspec.events.tally import format_duration

if TYPE_CHECKING:
    from vidspec.config.profiles import Profile
    from vidspec.config.user_config import ResolvedProfile, UserConfig

__all__ = [
    "announce",
    "demo_notes",
    "fast_loading",
    "report_stage",
    "require_devices",
    "resolve_profile",
    "stage_status",
]

#: Seconds between lines about a long stage, without a terminal.
EVERY = 10.0

NOTICE = (
    "note: the built-in models know only drawn shapes; their captions of real video are wrong; `vidspec models` "
    "lists real models, such as:"
)
REAL = "--target Qwen/Qwen2.5-VL-7B-Instruct"


def resolve_profile(
    name: str | None, overrides: Mapping[str, object], defaults: UserConfig, *, verbose: bool = False
) -> ResolvedProfile:
    """Resolve the profile of a command; without a named one, the default for a lone target follows this GPU.

    Args:
        name: of the profile; None for the default.
        overrides: flags, by dotted key.
        defaults: the user's config.
        verbose: print the reason.

    Raises:
        ProfileError: as :func:`~vidspec.config.user_config.resolve`.
    """
    from vidspec.cli.doctor import has_gpu, model_cache
    from vidspec.config.user_config import resolve, user_keys

    chosen = None
    if name is None and defaults.profile is None and "models.target" in (keys := user_keys(overrides, defaults)):
        if has_gpu():
            from vidspec.decoding import auto
            from vidspec.models.known_pairs import cached_models

            cached = {name for name, whole in cached_models(model_cache()).items() if whole}
            chosen = auto.default_draft(keys, cached)
        if chosen is not None and verbose:
            print_note(f"profile: {chosen.keys.get('name', DEFAULT_PROFILE)}: {chosen.why}")
    return resolve(name, overrides, defaults, chosen=chosen and chosen.keys)


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


def require_devices(profile: Profile) -> None:
    """Check that the devices a profile names are available; imports torch only if it names one besides the CPU.

    Raises:
        DeviceError: a device is not available.
    """
    models, workers = profile.models, profile.workers
    named = (models.device, models.draft_device, workers.target, workers.draft)
    if any(device not in (None, "auto", "cpu") for device in named):
        from vidspec.decoding import auto

        auto.target_placement(profile)
        auto.draft_placement(profile)


def demo_notes(profile: Profile, prompts: Iterable[str], command: str) -> list[str]:
    """Return warnings about captions of the built-in models; none for other models.

    Args:
        profile: of the run.
        prompts: of the run.
        command: the command with a clip, shown again with other models.
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
            f"is meaningless. They know {PROMPTS[0]!r} and similar prompts, and follow-up questions such as "
            f"{QUESTIONS['count']!r}"
        )
    return notes


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
