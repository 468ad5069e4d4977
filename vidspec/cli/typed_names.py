"""Replaces profile keys in error messages by the flag or variable that set them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from vidspec.cli.keys import FLAGS
from vidspec.cli.options import ModelOptions
from vidspec.config.profiles import PREFIX, RESERVED_VARIABLES
from vidspec.errors import VidspecError

__all__ = ["as_typed"]

#: Key of each flag: those of ``vidspec caption``, of commands that measure, its ways to name a prompt, and ``--json``.
KEY_OF_FLAG = {
    **{f"--{option.name}": f"models.{option.name}" for option in fields(ModelOptions)},
    **FLAGS,
    **dict.fromkeys(("--prompt", "--prompt-file", "--style"), "generate.prompt"),
    "--json": "generate.json_schema",
}


def as_typed(error: VidspecError, args: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the error in one line, its key replaced by the flag in ``args`` or the variable in ``env`` that set it.

    Keys of files and of ``--set`` stay. Hints show keys as written in a profile, and stay too.
    """
    message, hint = error.message, error.hint
    for key, name in _names(args, env).items():
        # Not a part of a longer key or of a path.
        message = re.sub(rf"(?<![\w./-]){re.escape(key)}(?![\w/-]|\.\w)", name, message)
        if hint == f"set by {name}":
            hint = None
    return f"{message} ({hint})" if hint else message


def _names(args: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the flag or variable that set each key; flags win."""
    names = {}
    for variable, value in env.items():
        section, double, key = variable.removeprefix(PREFIX).lower().partition("__")
        if variable.startswith(PREFIX) and variable not in RESERVED_VARIABLES and double and value:
            names[f"{section}.{key}"] = variable
    typed = [arg.partition("=")[0] for arg in args]
    names |= {key: flag for flag, key in KEY_OF_FLAG.items() if flag in typed}
    settings = [arg.removeprefix("--set=").partition("=")[0] for arg in args]
    return {key: name for key, name in names.items() if key not in settings}
