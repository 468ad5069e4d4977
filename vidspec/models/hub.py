"""The hub of models as loading meets it: asked once whether it answers, and its downloads shown. Imports no torch."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from vidspec.errors import ModelError

__all__ = ["is_cached", "is_local", "patient", "reach", "show_downloads"]

#: Seconds that the hub may take to answer. ``huggingface_hub`` itself waits ten for each of a model's files, and asks
#: five times where a connection is refused.
ANSWER = 4.0
#: Seconds for which it is not asked again.
KNOWN = 60.0

T = TypeVar("T")
P = ParamSpec("P")

#: Of each endpoint: when it was asked, and why it gave no answer.
_answers: dict[str, tuple[float, str]] = {}


def is_local(name: str) -> bool:
    """Whether ``name`` is a folder, or looks like one that should be there; otherwise it is a hub id."""
    return Path(name).expanduser().exists() or name.startswith((".", "/", "~"))


def is_cached(name: str) -> bool:
    """Whether the config of a hub id is in the cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def reach(name: str) -> bool:
    """Whether the hub can be asked for the model; not asked for folders, and not in offline mode.

    Any answer counts: that there is no such model, or that it is not for everyone, is said by whoever loads it.

    Raises:
        ModelError: the hub does not answer, and the model is not in the cache.
    """
    import huggingface_hub.constants as hub

    if is_local(name) or hub.HF_HUB_OFFLINE:
        return False
    asked, reason = _answers.get(hub.ENDPOINT, (-KNOWN, ""))
    if time.monotonic() - asked >= KNOWN:
        reason = _asked(hub.ENDPOINT)
        _answers[hub.ENDPOINT] = time.monotonic(), reason
    if reason and not is_cached(name):
        raise ModelError(
            f"{name}: no such folder, not in the cache {os.environ.get('HF_HUB_CACHE') or hub.HF_HUB_CACHE}, "
            f"and the hub does not answer: {reason}",
            hint=f"fetch it where there is a network: hf download {name}",
            kind="missing",
        )
    return not reason


def patient(load: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """Decorator of what loads a model by its name: without a hub it takes the cache, as in offline mode, or fails soon.

    Raises:
        ModelError: of :func:`reach`.
    """

    @functools.wraps(load)
    def loaded(name: str, /, *args: P.args, **options: P.kwargs) -> T:
        if is_local(name) or reach(name):
            return load(name, *args, **options)
        with _offline():
            return load(name, *args, **options)

    return loaded


def show_downloads() -> None:
    """Bars for downloads where standard error is a terminal, none elsewhere; none for weights that are on the disk."""
    import transformers
    from huggingface_hub.utils.tqdm import enable_progress_bars

    transformers.utils.logging.disable_progress_bar()
    if sys.stderr.isatty() and not os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS"):
        enable_progress_bars()


def _asked(endpoint: str) -> str:
    """Why the hub gives no answer; empty if it gives one."""
    from huggingface_hub import get_session

    try:
        status = get_session().head(f"{endpoint}/api/models", timeout=ANSWER).status_code
    except Exception as error:  # of whichever library huggingface_hub speaks HTTP with
        return " ".join(str(error).split()) or type(error).__name__
    # huggingface_hub would repeat these, for each file.
    return f"its server says {status}" if status >= 500 else ""


@contextmanager
def _offline() -> Iterator[None]:
    import huggingface_hub.constants as hub

    before, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
