"""Names keys of a profile in error messages as the user gave them: by the flag or the variable that set them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vidspec.cli.request import KEYS
from vidspec.config.profiles import PREFIX, RESERVED_VARIABLES
from vidspec.errors import VidspecError

__all__ = ["as_typed"]

#: Flags whose name is not that of the key's last part.
_OTHER_FLAGS = {
    "--style": "generate.prompt",
    "--prompt-file": "generate.prompt",
    "--no-audio": "video.audio",
}
#: Keys that only commands other than ``vidspec caption`` have a flag for.
_FURTHER = {"models": ("weights", "threads"), "generate": ("prompt",)}


def as_typed(error: VidspecError, args: Sequence[str], env: Mapping[str, str]) -> str:
    """The error in one line; a key that a flag in ``args`` set is named by the flag, one of ``env`` by the variable.

    Keys of files and of ``--set`` stay as they are. Hints show keys as they are written into a profile, and stay too.
    """
    message, hint = error.message, error.hint
    for key, name in _names(args, env).items():
        # Not a part of a longer key or of a path.
        message = re.sub(rf"(?<![\w./-]){re.escape(key)}(?![\w/-]|\.\w)", name, message)
        if hint == f"set by {name}":
            hint = None
    return f"{message} ({hint})" if hint else message


def _names(args: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """How the user gave each key: by a flag, which wins, or by a variable."""
    names = {}
    for variable, value in env.items():
        section, double, key = variable.removeprefix(PREFIX).lower().partition("__")
        if variable.startswith(PREFIX) and variable not in RESERVED_VARIABLES and double and value:
            names[f"{section}.{key}"] = variable
    flags = {
        f"--{option.replace('_', '-')}": f"{section}.{option}"
        for sections in (KEYS, _FURTHER)
        for section, options in sections.items()
        for option in options
    } | _OTHER_FLAGS
    typed = [arg.partition("=")[0] for arg in args]
    names |= {key: flag for flag, key in flags.items() if flag in typed}
    settings = [arg.removeprefix("--set=").partition("=")[0] for arg in args]
    return {key: name for key, name in names.items() if key not in settings}
