"""Runs over many clips from Python: the command line's inputs, outputs and resuming, a caption at a time."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from vidspec.config.keywords import spell_keyword, split_keywords
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, VidspecError
from vidspec.events.record import Caption
from vidspec.runs.planning import RunPlan, plan
from vidspec.runs.running import Run

__all__ = ["run"]


def run(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    *,
    on_error: Literal["record", "raise"] = "record",
    **options: object,
) -> Iterator[Caption]:
    """Caption clips, folders, lists, manifests or shards, and yield each caption after its record was written.

    It is what ``vidspec caption`` does, with the same options as keywords: ``output="captions.jsonl"``,
    ``output_dir``, ``format``, ``segment``, ``retry_failed``, and every key of a profile that is an option, such as
    ``target``, ``frames`` or ``max_new_tokens``; ``overrides`` has others by dotted name. Keywords win over
    ``VIDSPEC_*`` variables, these over the user's config. The same call again resumes: clips that an output holds are
    not captioned, nor yielded. Without an output the captions are only yielded. Notes go to the log ``vidspec``.

    Args:
        paths: what to caption.
        on_error: ``record`` yields the record of a failed clip, whose ``error`` says why; ``raise`` raises it.
        options: fields of :class:`~vidspec.config.run_spec.RunSpec` and keys of the profile.

    Raises:
        UsageError, ProfileError: an option is wrong; raised by the call itself, before anything is loaded or written.
        ModelError, DeviceError: the models cannot be loaded.
        VidspecError: with ``on_error="raise"``, the first clip's that fails.
    """
    if on_error not in ("record", "raise"):
        raise UsageError(f"on_error: must be record or raise, not {on_error!r}")
    with _keywords():
        fields, keys = split_keywords({"paths": paths, **options})
        planned = plan(RunSpec.make(fields | {"overrides": keys}))
    return _captions(planned, raises=on_error == "raise")


def _captions(planned: RunPlan, *, raises: bool) -> Generator[Caption, None, None]:
    with Run(planned) as running:
        for result in running:
            if raises and result.error is not None:
                raise result.error
            yield result.caption


@contextmanager
def _keywords() -> Iterator[None]:
    """Context in which errors name options as keywords."""
    try:
        yield
    except VidspecError as error:
        error.spelling = spell_keyword
        raise
