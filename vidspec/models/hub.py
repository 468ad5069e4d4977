"""Access to the model hub: reachability checks, offline fallback and download bars. Imports no torch."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from vidspec.errors import ModelError
from vidspec.models.known_pairs import known_pairs, published_heads
from vidspec.registry import nearest

#: Timeout of the reachability check, in seconds. ``huggingface_hub`` itself waits ten for each of a model's files, and
#: retries a refused connection five times.
ANSWER = 4.0
#: Seconds for which the result is reused.
KNOWN = 60.0

T = TypeVar("T")
P = ParamSpec("P")

#: Last check of each endpoint: its time, and the reason of a failure (empty if it answered).
answers: dict[str, tuple[float, str]] = {}


class UnreachableError(ModelError):
    """The hub does not answer or offline mode is on, and a model is not in the cache."""

    def __init__(self, message: str, *, reason: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint, kind="missing")
        self.reason = reason


def is_local(name: str) -> bool:
    """Return True if ``name`` is an existing path or looks like one; otherwise it is a hub id."""
    return Path(name).expanduser().exists() or name.startswith((".", "/", "~"))


def is_cached(name: str) -> bool:
    """Return True if the config of a hub id is in the cache."""
    return not is_local(name) and config_file(name) is not None


def config_file(name: str) -> Path | None:
    """Return the path of a model's config, in its folder or in the hub cache; None if absent."""
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
    """Return True if the hub can serve the model; False for folders, or if only the cache can.

    Any answer of the hub counts; missing and gated models are reported by the loader.

    Raises:
        UnreachableError: the hub does not answer or offline mode is on, and the model is not in the cache.
        ModelError: it is in GGUF.
    """
    import huggingface_hub.constants as hub

    refuse_gguf(name)
    if is_local(name):
        return False
    if hub.HF_HUB_OFFLINE:
        reason = "offline mode is on"
    else:
        checked_at, reason = answers.get(hub.ENDPOINT, (-KNOWN, ""))
        if time.monotonic() - checked_at >= KNOWN:
            reason = hub_failure(hub.ENDPOINT)
            answers[hub.ENDPOINT] = time.monotonic(), reason
    if reason and not is_cached(name):
        raise _unreachable_error([name], reason)
    return not reason


def _unreachable_error(names: Sequence[str], reason: str) -> UnreachableError:
    """Return the error of models that neither the hub nor the cache can give."""
    import huggingface_hub.constants as hub

    cache = os.environ.get("HF_HUB_CACHE") or hub.HF_HUB_CACHE
    whose = (
        f"{names[0]} is neither a folder nor" if len(names) == 1 else f"{' and '.join(names)} are neither folders nor"
    )
    message = f"the hub cannot be reached ({reason}), and {whose} in the cache {cache}"
    return UnreachableError(message, reason=reason, hint=download_hint(*names))


def require_models(names: Iterable[str]) -> list[str]:
    """Return the models that must be downloaded, judged by their cached configs.

    Raises:
        ModelError: as in :func:`check_reachable`, with the names of all missing models.
    """
    to_download, missing = [], dict[str, UnreachableError]()
    for name in names:
        try:
            if check_reachable(name) and not is_cached(name):
                to_download.append(name)
        except UnreachableError as error:
            missing[name] = error
    if missing:
        raise _unreachable_error(list(missing), next(iter(missing.values())).reason)
    return to_download


def nearest_published(name: str, published: Iterable[str]) -> str | None:
    """Return the published model closest to a mistyped name, ignoring the suffixes ``-Instruct`` and ``-hf``."""
    short = {re.sub("-(Instruct|hf)$", "", full): full for full in sorted(published)}
    match = nearest(re.sub("-(Instruct|hf)$", "", name), short)
    return short[match] if match else None


def download_hint(*names: str) -> str:
    """Return the hint for missing models: the closest published name, and the command that downloads them.

    It names published models only, since others may not exist on the hub.
    """
    published = {model.name for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}
    unlisted = [name for name in names if name not in published]
    hints = [f"did you mean {match}?" for name in unlisted if (match := nearest_published(name, published))]
    if listed := [name for name in names if name in published]:
        pronoun = "it" if len(listed) == 1 else "them"
        hints.append(f"`vidspec models get {' '.join(listed)}` fetches {pronoun} where there is a network")
    elif not hints:
        subject, pronoun = ("names are", "them") if len(unlisted) > 1 else ("name is", "it")
        hints.append(f"if the {subject} right, `vidspec models get` fetches {pronoun} where there is a network")
    return " ".join(hints)


def refuse_gguf(name: str) -> None:
    """Refuse a model in GGUF.

    Raises:
        ModelError: names the model in safetensors to take.
    """
    if (gguf := gguf_reason(name)) is not None:
        raise ModelError(gguf[0], hint=f"take {gguf[1]}", kind="unreadable")


def is_listed(name: str) -> bool:
    """Return True if a hub id is a target, a draft or a head that is listed."""
    models = {model.name for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}
    return name in models or any(head.name == name for head in published_heads())


def fetch_note(name: str) -> str:
    """Return the line that announces a download, before any of it."""
    unlisted = "not among the models that `vidspec models` lists; loads if its config has a supported layout"
    return f"fetching {name} from the hub" + ("" if is_listed(name) else f": {unlisted}")


def gguf_reason(name: str) -> tuple[str, str] | None:
    """Return why a model in GGUF is refused, and the model in safetensors to take; None for other models.

    Args:
        name: hub id, a folder, or a file.
    """
    path = Path(name).expanduser()
    files: list[Path] = []
    if is_local(name):
        files = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf")) if path.is_dir() else []
        if not files or any(path.glob("*.safetensors")):
            return None
    elif "gguf" not in name.rpartition("/")[2].lower():
        return None
    stem = re.sub(r"(?i)[-._]gguf$", "", files[0].stem if files else name)
    words = re.split(r"[-.](?:UD-)?(?:I?Q\d|BF16|F16|F32|MXFP4)", stem.rpartition("/")[2])[0]
    published = {model.name for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None}
    twin = next((full for full in sorted(published) if full.rpartition("/")[2].lower() == words.lower()), None)
    other = f"{words}, the model it was made from, in safetensors"
    return f"{name}: is in GGUF, whose weights are not read", twin or other


def retries_offline(load: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """Decorate a loader to use the cache, as in offline mode, if the hub does not answer.

    Raises:
        ModelError: from :func:`check_reachable`.
    """

    @functools.wraps(load)
    def loaded(name: str, /, *args: P.args, **options: P.kwargs) -> T:
        if is_local(name) or check_reachable(name):
            return load(name, *args, **options)
        with _offline_mode():
            return load(name, *args, **options)

    return loaded


def show_downloads() -> None:
    """Enable download bars if stderr is a terminal, and disable the bars for loading weights."""
    import transformers
    from huggingface_hub.utils.tqdm import enable_progress_bars

    transformers.utils.logging.disable_progress_bar()
    if sys.stderr.isatty() and not os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS"):
        enable_progress_bars()


def hub_failure(endpoint: str) -> str:
    """Return the reason the hub does not answer; empty if it does."""
    from huggingface_hub import get_session

    try:
        status = get_session().head(f"{endpoint}/api/models", timeout=ANSWER).status_code
    except Exception as error:  # from any HTTP library under huggingface_hub
        return " ".join(str(error).split()) or type(error).__name__
    # huggingface_hub would retry these for each file.
    return f"its server says {status}" if status >= 500 else ""


@contextmanager
def _offline_mode() -> Iterator[None]:
    import huggingface_hub.constants as hub

    before, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
