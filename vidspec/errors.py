"""Errors that a user can cause, one family; any other exception is a bug and keeps its traceback.

Every error has a one-line message and optionally a hint. ``exit_code`` is the exit code of the command line; ``stage``
is the step of processing that failed.

A check names what it is about by :func:`option`: a field of a run or a key of a profile. The command line, Python and
the server each show it by the name under which it was given.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

__all__ = [
    "ArgumentError",
    "ClosedError",
    "DescriptorError",
    "DeviceError",
    "GenerationError",
    "LostOutputError",
    "ModelError",
    "OutputError",
    "ProfileError",
    "Spelling",
    "UsageError",
    "VideoError",
    "VidspecError",
    "option",
    "reason_of",
    "spell_argument",
    "value_text",
]

#: Returns an option as a user gives it, from its name and, unless None, its value.
Spelling: TypeAlias = Callable[[str, object], str]

#: An option within a text: its name, and its value as JSON, between noncharacters of Unicode.
_OPTION = re.compile("\ufdd0([^\ufdd1]*)\ufdd1([^\ufdd2]*)\ufdd2")


def option(name: str, value: object = None) -> str:
    """Return the mark of an option in an error's text, which is spelled when the error is shown.

    Args:
        name: a field of :class:`~vidspec.config.run_spec.RunSpec`, or a dotted key of a profile.
        value: shown with the name if it is not None; True shows a switch.
    """
    return f"\ufdd0{name}\ufdd1{'' if value is None else json.dumps(value, default=str)}\ufdd2"


def spell_argument(name: str, value: object) -> str:
    """Spell a field as an argument of Python, ``segment='30s'``, and a key as in a profile, ``draft.gamma: 4``."""
    if value is None:
        return name
    return f"{name}: {value_text(value)}" if "." in name else f"{name}={value!r}"


def value_text(value: object) -> str:
    """Return the value of an option as YAML and the command line take it."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


class VidspecError(Exception):
    """Base of all errors with a one-line ``message``, an optional ``hint`` and a machine-readable ``kind``.

    ``stage`` and ``kind`` become the ``error`` object of a failed clip's JSON record.

    Attributes:
        spelling: how the message and the hint name options; None for :meth:`spell`. Who shows the error sets it.
    """

    exit_code: ClassVar[int] = 1
    stage: str = "run"
    kind: str = "error"

    def __init__(self, message: str, *, hint: str | None = None, kind: str | None = None, stage: str | None = None):
        super().__init__(message)
        self.spelling: Spelling | None = None
        self._hint = hint
        if kind is not None:
            self.kind = kind
        if stage is not None:
            self.stage = stage

    @property
    def message(self) -> str:
        """The problem in one line."""
        return self._spelled(self.args[0])

    @property
    def hint(self) -> str | None:
        """The remedy in one line."""
        return self._spelled(self._hint) if self._hint else None

    @property
    def field(self) -> str | None:
        """Name of the option that the error is about, the first one in the message; None if there is none."""
        found = _OPTION.search(self.args[0])
        return found[1] if found else None

    def spell(self, name: str, value: object) -> str:
        """Spell an option, from its name and, unless None, its value."""
        return spell_argument(name, value)

    def _spelled(self, text: str) -> str:
        spell = self.spelling or self.spell

        def spelled(found: re.Match[str]) -> str:
            return spell(found[1], json.loads(found[2]) if found[2] else None)

        return " ".join(_OPTION.sub(spelled, text).split())

    @classmethod
    def of(cls, error: Exception) -> VidspecError:
        """Return the error itself, or of a bug one with its type and message."""
        if isinstance(error, VidspecError):
            return error
        return VidspecError(f"{type(error).__name__}: {error}", kind="internal")

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def reason_of(error: Exception) -> str:
    """Return what an error of a library or of the system says, on one line."""
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class UsageError(VidspecError):
    """An option or argument that cannot be honoured."""

    exit_code = 2
    stage = "usage"
    kind = "usage"


class ArgumentError(UsageError, TypeError):
    """An unknown keyword argument of a library method."""


class ClosedError(UsageError, AttributeError):
    """Use of a captioner during or after its :meth:`~vidspec.captioner.Captioner.close`."""

    kind = "closed"

    def __init__(self, message: str = "this captioner is closed") -> None:  # copies and pickles pass the message
        super().__init__(message, hint="make another with Captioner.from_profile")


class ProfileError(UsageError):
    """A profile that cannot be found, read or combined.

    Args:
        message, hint, stage: as of any error.
        sources: variable or file that set a key, by dotted key; other keys were set by the caller, or are defaults.
    """

    stage = "profile"
    kind = "profile"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        stage: str | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, stage=stage)
        self.sources = dict(sources or {})

    def spell(self, name: str, value: object) -> str:
        """Spell a key by the variable that set it, if one did."""
        source = self.sources.get(name, "")
        is_variable = source.startswith("VIDSPEC_") and "." not in source
        return source if value is None and is_variable else spell_argument(name, value)


class ModelError(VidspecError):
    """A model that is missing, unreadable or of an unsupported family."""

    exit_code = 3
    stage = "models"
    kind = "model"


class DeviceError(VidspecError):
    """A device, dtype or attention kernel that this machine does not have."""

    exit_code = 3
    stage = "models"
    kind = "device"


class DescriptorError(VidspecError):
    """This process may open no further file."""

    kind = "descriptors"

    def __init__(self, message: str = "too many open files", *, hint: str | None = None, stage: str | None = None):
        super().__init__(message, hint=hint or "raise the limit of file descriptors: ulimit -n 4096", stage=stage)

    @classmethod
    def of_clip(cls, path: str | os.PathLike[str]) -> DescriptorError:
        """Return the error of a clip that cannot be opened."""
        return cls(f"{os.fsdecode(path)}: cannot be read now: too many open files", stage=VideoError.stage)


class VideoError(VidspecError):
    """A file without usable frames: missing, a folder, empty, not a video, damaged.

    Kinds: ``missing``, ``folder``, ``unreadable``, ``empty``, ``not_video``, ``no_video_stream``, ``truncated``,
    ``damaged``, ``encrypted``, ``unsupported``, ``decoder``, ``no_frames``, ``range``, ``memory``; from a reader
    process also ``timeout``, ``stalled`` and ``crashed``; from shards and URLs ``timeout``, ``too_large``, and
    ``refused`` if a row names a path or URL that is not allowed.
    """

    stage = "decode_video"
    kind = "unreadable"


class GenerationError(VidspecError):
    """A failure to caption a clip after its frames were read (out of memory, prompt too long)."""

    stage = "generate"
    kind = "generation"


class OutputError(VidspecError):
    """A caption or other output that could not be written."""

    stage = "output"
    kind = "output"


class LostOutputError(OutputError):
    """The end of a run whose output can no longer be written: the disk is full, or the file was taken away."""

    exit_code = 4
