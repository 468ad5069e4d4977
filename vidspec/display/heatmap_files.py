"""Writes a heatmap of the draft's visual tokens, one file per clip. Reads the sampled frames again."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from io import BytesIO
from pathlib import Path

from vidspec.config.schema import Profile
from vidspec.display.state import ClipStates
from vidspec.errors import OutputError, UsageError, VidspecError, option
from vidspec.events.events import Opened, Prefilled
from vidspec.events.record import Caption
from vidspec.files import PICTURE, check_output, write_whole

__all__ = ["HeatmapFiles", "check_heatmap"]

_MAX_PIXELS = 400 * 400
#: Reason for having no picture, by ``drafter.sees``; None without a draft.
_NO_PICTURE = {
    None: "drafts nothing",
    "nothing": "shows its draft no video",
    "own": "keeps other tokens in every layer and KV head",
}


def check_heatmap(file: Path, profile: Profile, inputs: Sequence[str]) -> None:
    """Check that a heatmap can be drawn, before any model is loaded.

    Raises:
        UsageError: the file cannot be written, or the draft of ``profile`` does not see a subset of the visual tokens.
    """
    if file.suffix.lower() != ".png":
        raise UsageError(f"{option('heatmap', file)}: must end in .png")
    sees = profile.drafter.sees if profile.drafter is not None else None
    if (why := _NO_PICTURE.get(sees)) is not None:
        hint = "take a profile with a pruner, such as sd-attention"
        raise UsageError(f"{option('heatmap', file)}: the profile {profile.name} {why}", hint=hint)
    names: dict[Path, None] = {}
    for clip in inputs:
        names[_picture_path(file, clip, names, several=len(inputs) > 1)] = None
    for name in names:
        check_output(name, inputs, option("heatmap"), PICTURE)


class HeatmapFiles(ClipStates):
    """Draws one picture per captioned clip.

    Args:
        file: the picture of a single clip; with several, each gets ``STEM-CLIP.png`` in the same folder. Equal names
            within a run are numbered, so that no picture replaces another.
        profile: the acceleration profile.

    Attributes:
        written: the files, in order.
        errors: reasons for missing pictures; captions are not affected.
    """

    def __init__(self, file: Path, profile: Profile) -> None:
        super().__init__()
        self.file, self.profile = file, profile
        self.written: list[Path] = []
        self.errors: list[VidspecError] = []
        self._several = False

    def begin(self, number: int, path: str, total: int) -> None:
        super().begin(number, path, total)
        self._several = total > 1

    def end(self, number: int, caption: Caption) -> None:
        state = self.states.pop(number)
        if state.opened is None or state.prefilled is None or caption.error is not None:
            return
        try:
            self._write(state.opened, state.prefilled)
        except VidspecError as error:
            self.errors.append(error)

    def _write(self, opened: Opened, seen: Prefilled) -> None:
        from PIL.PngImagePlugin import PngInfo

        from vidspec import video
        from vidspec._version import __version__
        from vidspec.display.heatmap_image import heatmap_image
        from vidspec.video.sample import first_of_steps

        times = first_of_steps(opened.timestamps, seen.grid[0])
        if not times or 0 in seen.grid:
            raise OutputError(f"{opened.path}: its visual tokens lie in no grid of frames, so there is no heatmap")
        wanted = self.profile.video
        clip = video.read_at(
            opened.path, times, max_pixels=_MAX_PIXELS, decoder=wanted.decoder, allow_damaged=wanted.allow_damaged
        )
        title, frames = self._title(opened, seen), list(clip.frames)
        picture = heatmap_image(frames, times, seen, title)
        file = _picture_path(self.file, opened.path, self.written, several=self._several)
        png, mark = BytesIO(), PngInfo()
        mark.add_text("Software", f"vidspec {__version__}")
        picture.save(png, "png", pnginfo=mark)
        write_whole(file, png.getvalue())
        self.written.append(file)

    def _title(self, opened: Opened, seen: Prefilled) -> str:
        prune = self.profile.prune
        total = seen.visual_tokens
        return (
            f"{os.path.basename(opened.path)}: profile {self.profile.name}, method {prune.method}, "
            f"alpha {prune.alpha:g}, kept {len(seen.kept)}/{total} ({len(seen.kept) / max(1, total):.1%})"
        )


def _picture_path(file: Path, clip: str, taken: Container[Path], *, several: bool) -> Path:
    """Return the file for a clip's picture, not one of ``taken``."""
    stem = f"{file.stem}-{Path(clip).stem}" if several else file.stem
    name, count = file.with_stem(stem), 1
    while name in taken:
        count += 1
        name = file.with_stem(f"{stem}-{count}")
    return name
