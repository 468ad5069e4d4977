"""What ``vidspec caption`` says and does before the first caption: what is being loaded, what the built-in models are
not, and how to have them soon. Imports no torch."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vidspec.cli.printed import note

if TYPE_CHECKING:
    from vidspec.config.profiles import Profile

__all__ = ["announce", "demo_notes", "status", "uncollected"]

NOTICE = (
    "note: the built-in models know only drawn shapes, and what they say of real video is false; `vidspec models` "
    "lists real models, such as:"
)
REAL = "--target Qwen/Qwen2.5-VL-7B-Instruct --draft Qwen/Qwen2.5-VL-3B-Instruct"


def announce(profile: Profile, *, here: bool = True) -> bool:
    """Say what is being loaded, and what of it has to be fetched; see that it can be. Returns whether something has to.

    Args:
        profile: names the models.
        here: whether this process loads them; what others can reach is theirs to find out.

    Raises:
        ModelError: models are not in the cache, and the hub does not answer.
    """
    from vidspec.models import hub

    models = profile.models
    if models.pair is not None:
        note(f"loading the built-in models ({models.pair})")
        return False
    note(f"loading {' and '.join(profile.named_models)}")
    wanted = hub.require(profile.named_models) if here else []
    for name in wanted:
        note(f"fetching {name} from the hub")
    return bool(wanted)


def demo_notes(profile: Profile, prompts: Iterable[str], command: str) -> list[str]:
    """What must be known of captions that the built-in models are about to write; nothing of other models' captions.

    Args:
        profile: the run's.
        prompts: all that are asked in the run.
        command: with a clip, as it would be given again with other models.
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
            f"note: the built-in models were not trained for the prompt {shown[:60]!r}{more}; what they answer to it "
            f"means nothing. They know {PROMPTS[0]!r} and others like it, and behind it such as {QUESTIONS['count']!r}"
        )
    return notes


@contextmanager
def status(stage: str, *, on: bool = True) -> Iterator[None]:
    """A spinner beside the name of a stage while it lasts, where standard error is a terminal that can show one."""
    from rich.console import Console

    console = Console(stderr=True)
    if not on or not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    with console.status(f"{stage} ..."):
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """Import and load without looking for garbage: nearly all that is made meanwhile stays, and to look for what does
    not takes a seventh of the time until the first token. Nor is it looked for when the process ends, or Ctrl-C would
    take longer for that than for all else."""
    atexit.register(gc.freeze)
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
