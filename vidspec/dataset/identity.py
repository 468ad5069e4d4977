"""What makes two captionings the same: the clip, its content and the settings. Reads files only to hash them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vidspec.dataset.job import Job

__all__ = ["Content", "clip_id", "content_of", "settings_id"]

#: Keys of a profile that say where and how fast a model runs or what the profile is called, not what it answers.
#: Threads and packed weights may change the last bits of a sum, which is not meant to change a caption.
NOT_ANSWERS = ("name", "about", "models.device", "models.threads", "models.packed", "workers")
CHUNK = 1 << 20


class Content(NamedTuple):
    """A file's content, cheaply (size in bytes and time of change in ns) or surely (SHA-256); None where unknown."""

    size: int | None
    mtime_ns: int | None
    sha256: str | None = None

    def same(self, other: Content) -> bool:
        """Whether both are the same content: by their hashes if both have one, else by size and time."""
        if self.sha256 is not None and other.sha256 is not None:
            return self.sha256 == other.sha256
        return self[:2] == other[:2]


def content_of(path: str, *, checksum: bool = False) -> Content:
    """The content of the file at ``path``; unknown if it cannot be read (its error comes with its captioning)."""
    try:
        info = os.stat(path)
        if not checksum or not Path(path).is_file():
            return Content(info.st_size, info.st_mtime_ns)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        return Content(info.st_size, info.st_mtime_ns, digest.hexdigest())
    except OSError:
        return Content(None, None)


def clip_id(job: Job) -> str:
    """16 hex digits for the clip of a job: its normalised path as named, what of it is captioned, and its id if any."""
    clip = job.whole
    named = () if clip.id is None else (clip.id,)
    return _digest([os.path.normpath(clip.path), clip.start, clip.end, *named], 16)


def settings_id(profile: Mapping[str, Any], **more: Any) -> str:
    """12 hex digits for everything that may change a caption.

    Args:
        profile: the profile as nested plain values.
        more: what the run adds, such as the prompt, the system prompt and the segments.
    """
    kept = {
        key: {inner: deep for inner, deep in value.items() if f"{key}.{inner}" not in NOT_ANSWERS}
        if isinstance(value, Mapping)
        else value
        for key, value in profile.items()
        if key not in NOT_ANSWERS
    }
    return _digest([kept, {key: value for key, value in more.items() if value is not None and value is not False}], 12)


def _digest(value: Any, digits: int) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]
