"""``vidspec caption``: its options are the fields of a request, which ``vidspec.cli.bulk`` fulfils."""

from __future__ import annotations

from vidspec.cli.options import CaptionArguments, flatten_options

__all__ = ["caption"]


@flatten_options()
def caption(request: CaptionArguments) -> int:
    """Caption videos: files, whole folders, lists and manifests.

    Captions go to standard output, to FILE or to one file per clip; everything else goes to standard error. If a run
    that writes files is interrupted, the same command continues it.

    --help-all shows all options; docs/usage.md describes them.

    Exit codes: 0 all clips captioned, 1 some clip failed, 2 usage or profile error,
    3 model or device unavailable, 130 interrupted, 143 terminated.
    """
    from vidspec.cli.bulk import caption_all

    return caption_all(request)
