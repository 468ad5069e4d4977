"""Errors that a user can cause, one family; any other exception is a bug and keeps its traceback.

Every error has a one-line message and optionally a hint. ``exit_code`` is the exit code of the command line; ``stage``
is the step of processing that failed.
"""

from __future__ import annotations

import os
from typing import ClassVar

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
    "UsageError",
    "VideoError",
    "VidspecError",
]


class VidspecError(Exception):
    """Base of all errors with a one-line ``message``, an optional ``hint`` and a machine-readable ``kind``.

    ``stage`` and ``kind`` become the ``error`` object of a failed clip's JSON record.
    """

    exit_code: ClassVar[int] = 1
    stage: str = "run"
    kind: str = "error"

    def __init__(self, message: str, *, hint: str | None = None, kind: str | None = None, stage: str | None = None):
        super().__init__(message)
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split()) if hint else None
        if kind is not None:
            self.kind = kind
        if stage is not None:
            self.stage = stage

    @classmethod
    def of(cls, error: Exception) -> VidspecError:
        """Return the error itself, or of a bug one with its type and message."""
        if isinstance(error, VidspecError):
            return error
        return VidspecError(f"{type(error).__name__}: {error}", kind="internal")

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


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
    """A profile that cannot be found, read or combined; the message names the key's path."""

    stage = "profile"
    kind = "profile"


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
