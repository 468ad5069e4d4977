"""What ``vidspec caption`` says and does before the first caption: what is being loaded, what the built-in models are
not, and how to have them soon. Imports no torch."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vidspec.cli.report import note

if TYPE_CHECKING:
    from vidspec.profile.profiles import Profile

__all__ = ["announce", "demo_notes", "uncollected"]

NOTICE = (
    "note: the built-in models know only drawn shapes; for real video name a pair, such as "
    "--target llava-hf/llava-onevision-qwen2-7b-ov-hf --draft llava-hf/llava-onevision-qwen2-0.5b-ov-hf"
)


def announce(profile: Profile, *, here: bool = True) -> None:
    """Say what is being loaded, and what of it has to be fetched; see that it can be.

    Args:
        profile: names the models.
        here: whether this process loads them; what others can reach is theirs to find out.

    Raises:
        ModelError: a model is not in the cache, and the hub does not answer.
    """
    from vidspec.models import hub

    models = profile.models
    if models.pair is not None:
        note(f"loading the built-in models ({models.pair})")
        return
    drafts = profile.drafts_with_a_model or profile.names_a_head
    wanted = (models.target, models.draft if drafts else None, models.captioner)
    names = list(dict.fromkeys(name for name in wanted if name))
    note(f"loading {' and '.join(names)}")
    for name in names if here else ():
        if hub.reach(name) and not hub.is_cached(name):
            note(f"fetching {name} from the hub")


def demo_notes(profile: Profile, prompts: Iterable[str]) -> list[str]:
    """What must be known of captions that the built-in models are about to write; nothing of other models' captions.

    Args:
        profile: the run's.
        prompts: all that are asked in the run.
    """
    from vidspec.embedded import ships
    from vidspec.embedded.prompts import PROMPTS, QUESTIONS, is_known

    models = profile.models
    if models.pair is None and not ships(models.target or ""):
        return []
    notes = [NOTICE]
    if untrained := sorted({prompt for prompt in prompts if not is_known(prompt)}):
        more = f" (and {len(untrained) - 1} more)" if len(untrained) > 1 else ""
        shown = " ".join(untrained[0].split())
        notes.append(
            f"note: the built-in models were not trained for the prompt {shown[:60]!r}{more}; what they answer to it "
            f"means nothing. They know {PROMPTS[0]!r} and others like it, and behind it such as {QUESTIONS['count']!r}"
        )
    return notes


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
