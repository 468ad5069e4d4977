"""Access to the model hub: a check that it answers, the cache if it does not, and download bars. Imports no torch.

``huggingface_hub`` waits ten seconds for each of a model's files, and retries a refused connection five times: without
the check, a model in the cache would take minutes to load on a machine without a network.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from vidspec.errors import ModelError
from vidspec.models.known_pairs import listed_models
from vidspec.models.machine import model_cache
from vidspec.registry import nearest

#: Timeout of the check, in seconds.
ANSWER = 4.0
#: Seconds for which the result is reused.
KNOWN = 60.0

T = TypeVar("T")
P = ParamSpec("P")

#: Last check of each endpoint: its time, and the reason of a failure (empty if it answered).
answers: dict[str, tuple[float, str]] = {}


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


def unreachable_reason() -> str:
    """Return the reason why the hub cannot be asked; empty if it answers, whatever the answer is.

    Missing and gated models are reported by the loader.
    """
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return "offline mode is on"
    checked_at, reason = answers.get(hub.ENDPOINT, (-KNOWN, ""))
    if time.monotonic() - checked_at >= KNOWN:
        reason = hub_failure(hub.ENDPOINT)
        answers[hub.ENDPOINT] = time.monotonic(), reason
    return reason


def require_models(names: Sequence[str]) -> list[str]:
    """Return the models that must be downloaded, judged by their cached configs.

    Raises:
        ModelError: one is in GGUF; or some are not in the cache, and the hub cannot be asked: names all of them.
    """
    for name in names:
        refuse_gguf(name)
    absent = [name for name in names if not (is_local(name) or is_cached(name))]
    if absent and (reason := unreachable_reason()):
        where = f"the cache {model_cache()} lacks {' and '.join(absent)}"
        raise ModelError(
            f"the hub cannot be reached ({reason}), and {where}", hint=download_hint(*absent), kind="missing"
        )
    return absent


def download_hint(*names: str) -> str:
    """Return the hint for missing models: the listed name that a mistyped one is close to, or the download command.

    The suffixes ``-Instruct`` and ``-hf`` are ignored.
    """
    listed = listed_models()
    short = {re.sub("-(Instruct|hf)$", "", full): full for full in sorted(listed)}
    meant = [nearest(re.sub("-(Instruct|hf)$", "", name), short) for name in names if name not in listed]
    hints = [f"did you mean {short[match]}?" for match in meant if match is not None]
    return " ".join(hints) or "`vidspec models get NAME` fetches a model where there is a network"


def refuse_gguf(name: str) -> None:
    """Refuse a hub id, a folder or a file of a model in GGUF.

    Raises:
        ModelError: it is in GGUF, and there is no other form beside it.
    """
    path = Path(name).expanduser()
    in_folder = path.is_dir() and any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))
    if in_folder or ("gguf" in name.rpartition("/")[2].lower() and not path.is_dir()):
        raise ModelError(
            f"{name}: is in GGUF, whose weights are not read",
            hint="take the model it was made from, in safetensors",
            kind="unreadable",
        )


def retries_offline(load: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """Decorate a loader to use the cache, as in offline mode, if the hub does not answer.

    Raises:
        ModelError: from :func:`require_models`.
    """

    @functools.wraps(load)
    def loaded(name: str, /, *args: P.args, **options: P.kwargs) -> T:
        require_models([name])
        if is_local(name) or not unreachable_reason():
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
