"""Effects of commands: files, and captioned clips."""

from pathlib import Path

from tests.fake_captioner import FakeCaptioner


def files_here():
    """Contents of all files below the current folder, by path."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def streamed_paths():
    """Paths of clips that fake captioners captioned."""
    return [path for made in FakeCaptioner.made for kind, path, *_ in made.calls if kind == "stream"]
