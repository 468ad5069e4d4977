"""The hub of models as loading meets it: asked once whether it answers, and its downloads shown. Imports no torch."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from vidspec.errors import ModelError
from vidspec.models.known_pairs import known_pairs
from vidspec.registry import nearest

__all__ = [
    "check_reachable",
    "config_file",
    "download_hint",
    "is_cached",
    "is_local",
    "nearest_published",
    "require_models",
    "retries_offline",
    "show_downloads",
]

#: Seconds that the hub may take to answer. ``huggingface_hub`` itself waits ten for each of a model's files, and asks
#: five times where a connection is refused.
ANSWER = 4.0
#: Seconds for which it is not asked again.
KNOWN = 60.0

T = TypeVar("T")
P = ParamSpec("P")

#: Of each endpoint: when it was asked, and why it gave no answer.
answers: dict[str, tuple[float, str]] = {}


def is_local(name: str) -> bool:
    """Whether ``name`` is a folder, or looks like one that should be there; otherwise it is a hub id."""
    return Path(name).expanduser().exists() or name.startswith((".", "/", "~"))


def is_cached(name: str) -> bool:
    """Whether the config of a hub id is in the cache."""
    return not is_local(name) and config_file(name) is not None


def config_file(name: str) -> Path | None:
    """The config of a model in its folder, or of a hub id in the cache; None if it is not there."""
    if is_local(name):
        file = Path(name).expanduser() / "config.json"
        return file if file.is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def check_reachable(name: str) -> bool:
    """Whether the hub can be asked for the model; not asked for folders, and not in offline mode.

    Any answer counts: that there is no such model, or that it is not for everyone, is said by whoever loads it.

    Raises:
        ModelError: the hub does not answer, or must not be asked, and the model is not in the cache.
    """
    import huggingface_hub.constants as hub

    if is_local(name):
        return False
    if hub.HF_HUB_OFFLINE:
        reason = "offline mode is on"
    else:
        asked, reason = answers.get(hub.ENDPOINT, (-KNOWN, ""))
        if time.monotonic() - asked >= KNOWN:
            reason = hub_failure(hub.ENDPOINT)
            answers[hub.ENDPOINT] = time.monotonic(), reason
        reason = reason and f"the hub does not answer: {reason}"
    if reason and not is_cached(name):
        cache = os.environ.get("HF_HUB_CACHE") or hub.HF_HUB_CACHE
        raise ModelError(
            f"{name}: no such folder, not in the cache {cache}, and {reason}", hint=download_hint(name), kind="missing"
        )
    return not reason


def require_models(names: Iterable[str]) -> list[str]:
    """The models that have to be fetched, as far as their configs tell.

    Raises:
        ModelError: as :func:`check_reachable`, naming all that are missing.
    """
    wanted, missing = [], dict[str, ModelError]()
    for name in names:
        try:
            if check_reachable(name) and not is_cached(name):
                wanted.append(name)
        except ModelError as error:
            missing[name] = error
    if missing:
        first, why = next(iter(missing.items()))
        reason = why.message.removeprefix(f"{first}: ")
        raise ModelError(f"{' and '.join(missing)}: {reason}", hint=download_hint(*missing), kind="missing")
    return wanted


def nearest_published(name: str, published: Iterable[str]) -> str | None:
    """The published model that a mistyped name most likely means, whatever its last word says of it."""
    short = {re.sub("-(Instruct|hf)$", "", one): one for one in sorted(published)}
    found = nearest(re.sub("-(Instruct|hf)$", "", name), short)
    return short[found] if found else None


def download_hint(*names: str) -> str:
    """The hint for models that are not there: the published model that a mistyped name means, and what fetches them.

    Only published models are proposed for download: the hub may have no other.
    """
    published = {model.name for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}
    strange = [name for name in names if name not in published]
    hints = [f"did you mean {one}?" for name in strange if (one := nearest_published(name, published))]
    if there := [name for name in names if name in published]:
        them = "it" if len(there) == 1 else "them"
        downloads = " && ".join(f"hf download {name}" for name in there)
        hints.append(f"fetch {them} where there is a network: {downloads}")
    elif not hints:
        called, them = ("names are", "them") if len(strange) > 1 else ("name is", "it")
        hints.append(f"if the {called} right, `vidspec models get` fetches {them} where there is a network")
    return " ".join(hints)


def retries_offline(load: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """Decorator of what loads a model by its name: without a hub it takes the cache, as in offline mode, or fails soon.

    Raises:
        ModelError: of :func:`check_reachable`.
    """

    @functools.wraps(load)
    def loaded(name: str, /, *args: P.args, **options: P.kwargs) -> T:
        if is_local(name) or check_reachable(name):
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


def hub_failure(endpoint: str) -> str:
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
