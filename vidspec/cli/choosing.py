"""``vidspec models use`` and ``get``: choose the default models, and download models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vidspec.cli.options import BUILT_IN
from vidspec.cli.printed import print_note
from vidspec.config.user_config import read_config, resolve, with_models, write_models
from vidspec.decoding.default_profile import resolve_profile
from vidspec.errors import ModelError, UsageError
from vidspec.models import hub
from vidspec.models.known_pairs import listed_draft

#: Files of a repository that loading may read; others duplicate the weights.
READ = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


def choose_models(names: Sequence[str], draft: str | None, *, none: bool) -> int:
    """Write a target, and its draft if named, into the user's config; with ``none`` remove both.

    Raises:
        UsageError: not exactly one name, a draft for a built-in pair, or a folder without a model.
        ModelError: one is in GGUF.
        OutputError: the config cannot be written.
    """
    if len(names) + none != 1:
        raise UsageError("models use: takes one model, or --none", hint="vidspec models use NAME [--draft DRAFT]")
    if draft is not None and (none or names[0] in BUILT_IN):
        raise UsageError("models use: --draft needs the name of a target", hint="vidspec models use NAME --draft DRAFT")
    chosen: dict[str, str] = {}
    if names and names[0] in BUILT_IN:
        chosen = {} if names[0] == "embedded" else {"pair": names[0]}
    elif names:
        chosen = {"target": _resolve_name(names[0])} | ({} if draft is None else {"draft": _resolve_name(draft)})
    defaults = read_config()
    resolved = resolve_profile(None, {}, with_models(defaults, chosen))  # validate before writing
    profile = resolved.profile
    write_models(defaults.path, chosen)
    models = profile.models
    who = f"the built-in pair {models.pair}, a demo that knows drawn shapes only" if models.pair else models.target
    drafted = f", drafted by {models.draft}" if models.draft else ""
    print(f"vidspec caption uses {who}{drafted} by default: {defaults.path}")
    if resolved.note is not None:
        print_note(f"note: {resolved.note}")
    if missing := [name for name in profile.named_models if not hub.is_local(name) and not hub.is_cached(name)]:
        print_note(f"note: `vidspec models get` fetches {' and '.join(missing)}; otherwise the first caption does")
    return 0


def download_models(names: Sequence[str], draft: str | None) -> int:
    """Download models into the hub's cache: the named ones with their listed drafts, or the chosen ones.

    Raises:
        UsageError: one is a folder or built in, or none is named or chosen.
        ModelError: the hub does not answer, has no such model, or refuses this user.
    """
    if draft is not None and len(names) != 1:
        raise UsageError("models get: --draft needs the name of one target")
    if shipped := next((name for name in names if name in BUILT_IN), None):
        raise UsageError(f"models get: {shipped}: is built in", hint=f"vidspec models use {shipped}")
    drafts = [draft] if draft is not None else [one for name in names if (one := listed_draft(name))]
    wanted = tuple(dict.fromkeys([*names, *drafts])) or resolve(None, {}, read_config()).profile.named_models
    if not wanted:
        raise UsageError("models get: no model is named or chosen", hint="vidspec models get NAME")
    if folders := [name for name in wanted if hub.is_local(name)]:
        raise UsageError(f"models get: {folders[0]}: is a folder, not the name of a model on the hub")
    hub.require_models(wanted)
    if reason := hub.unreachable_reason():
        raise ModelError(f"the hub cannot be reached ({reason}); configs of all these models are in the cache already")
    for name in wanted:
        print_note(f"fetching {name} from the hub")
        print(f"{name}\t{_download(name)}", flush=True)
    return 0


def _download(name: str) -> str:
    """Download a model, with bars if standard error is a terminal, and return its folder in the cache."""
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return str(huggingface_hub.snapshot_download(name, allow_patterns=READ))
    except GatedRepoError:
        hint = f"accept its terms on its page, then `hf auth login` and vidspec models get {name}"
        raise ModelError(f"{name}: access is restricted", hint=hint) from None
    except RepositoryNotFoundError:
        raise ModelError(f"{name}: not found on the hub, or no access to it", hint=hub.download_hint(name)) from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{name}: cannot be fetched: {reason}", hint="run the same command again to resume") from None


def _resolve_name(name: str) -> str:
    """Return a hub id unchanged, and a folder as an absolute path.

    Raises:
        UsageError: the folder has no config.
        ModelError: it is in GGUF.
    """
    hub.refuse_gguf(name)
    if not hub.is_local(name):
        return name
    if hub.config_file(name) is None:
        raise UsageError(f"models use: {name}: is not a model folder: it has no config.json")
    return str(Path(name).expanduser().resolve())
