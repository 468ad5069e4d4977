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
#: A key with its value in a hint, and the name of a profile's file.
_KEY_VALUE = re.compile(
    r"(?<![\w./-])((?:models|video|draft|prune|schedule|workers|accept|lossy|generate)\.[\w.]+): ([\w./%-]*\w)"
)
_FILE = re.compile(r"\S+\.ya?ml\b")


def as_typed(error: VidspecError, args: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the error in one line, its keys replaced by the flags or variables that set them.

    Keys of ``--set`` stay. Unless a file is the profile, other keys become flags if ``args`` has any, and what to
    choose instead is written as options.
    """
    message, hint = error.message, error.hint
    of_file = any(map(_FILE.match, (message, *(arg.removeprefix("--profile=") for arg in args))))
    names = _names(args, env, every=not of_file)
    if not of_file:
        message, nearest, choice = message.partition("; nearest valid choice: ")
        message += nearest + _as_options(choice)
        hint = hint and _as_options(hint)
    for key, name in names.items():
        # Perhaps with the number of a value, but not a part of a longer key or of a path.
        message = re.sub(rf"(?<![\w./-]){re.escape(key)}(?:\.\d+)?(?![\w/=-]|\.\w)", name, message)
        if hint == f"set by {name}":
            hint = None
    return f"{message} ({hint})" if hint else message


def _as_options(choice: str) -> str:
    """Return a choice with keys and values, as in a profile, as options."""

    def option(found: re.Match[str]) -> str:
        flag = next((flag for flag, key in KEY_OF_FLAG.items() if key == found[1]), None)
        return f"{flag} {found[2]}" if flag else f"--set {found[1]}={found[2]}"

    return _KEY_VALUE.sub(option, choice)


def _names(args: Sequence[str], env: Mapping[str, str], *, every: bool) -> dict[str, str]:
    """Return the flag or variable that set each key, flags first.

    With ``every``, if there are flags, also those of the other keys.
    """
    names: dict[str, str] = {}
    for variable, value in env.items():
        section, double, key = variable.removeprefix(PREFIX).lower().partition("__")
        if variable.startswith(PREFIX) and variable not in RESERVED_VARIABLES and double and value:
            names[f"{section}.{key}"] = variable
    typed = [arg.partition("=")[0] for arg in args]
    if flags := {key: flag for flag, key in KEY_OF_FLAG.items() if flag in typed}:
        others = {key: flag for flag, key in reversed(KEY_OF_FLAG.items())} if every else {}
        names = others | names | flags
    settings = [arg.removeprefix("--set=").partition("=")[0] for arg in args]
    return {key: name for key, name in names.items() if key not in settings}
