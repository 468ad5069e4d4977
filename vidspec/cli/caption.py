"""Command ``vidspec caption``; ``vidspec.cli.bulk`` runs it."""

from __future__ import annotations

from vidspec.cli.options import CaptionArguments, flatten_options

__all__ = ["caption"]


@flatten_options()
def caption(request: CaptionArguments) -> int:
    """Caption videos: files, whole folders, lists and manifests.

    Captions go to standard output, to FILE or to one file per clip; everything else goes to standard error. If a run
    that writes files is interrupted, run the same command again to resume.

    --help-all shows all options; docs/use/reference.md describes them.

    Exit codes: 0 all clips captioned, 1 some clip failed, 2 usage or profile error,
    3 model or device unavailable, 130 interrupted, 143 terminated.
    """
    from vidspec.cli.bulk import caption_all

    return caption_all(request)
