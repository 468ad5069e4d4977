"""Collects what a run says of its clips, and writes the page when it is over."""

from __future__ import annotations

from pathlib import Path

from vidspec.config.schema import Profile
from vidspec.display.pages.clip import Clip
from vidspec.display.pages.folder import Folder
from vidspec.display.pages.writing import IN_FULL, write
from vidspec.errors import VidspecError
from vidspec.events.events import Again, Event, Prefilled, Round
from vidspec.events.observer import Observer
from vidspec.events.record import Caption

__all__ = ["ReportFile"]


class ReportFile(Observer):
    """One page for all clips of a run.

    The first clips are kept with their events, to be shown in full; of the others only what stands in the table.

    Args:
        file: the page.
        profile: how clips are captioned.

    Attributes:
        interrupted: frames are not read again for the page, since somebody wants the run to end.
        errors: why frames could not be drawn; the captions are not touched by it.
    """

    def __init__(self, file: Path, profile: Profile) -> None:
        self.file, self.profile = file, profile
        self.interrupted = False
        self.folder = Folder()
        self.errors: list[VidspecError] = []
        self._several = False
        self._watched: dict[int, tuple[list[Prefilled], list[Round]]] = {}
        self._clips: list[Clip] = []

    def begin(self, number: int, path: str, total: int) -> None:
        self._several = total > 1
        if len(self._clips) + len(self._watched) < IN_FULL:
            self._watched[number] = ([], [])

    def event(self, number: int, event: Event) -> None:
        if number not in self._watched:
            return
        seen, rounds = self._watched[number]
        if isinstance(event, Again):
            seen.clear()
            rounds.clear()
        elif isinstance(event, Prefilled):
            seen.append(event)
        elif isinstance(event, Round):
            rounds.append(event)

    def end(self, number: int, caption: Caption) -> None:
        record = caption.to_dict()
        place = self.folder.add(record)
        seen, rounds = self._watched.pop(number, (None, None))
        if seen is not None and rounds is not None and (caption.error is None or not self._several):
            spans = caption.trace.spans if caption.trace is not None else ()
            self._clips.append(Clip(record, seen[-1] if seen else None, rounds, spans, number=place))

    def write(self) -> None:
        """Write the page; nothing where no clip ended.

        Raises:
            OutputError: it cannot be written.
        """
        if not self.folder.clips:
            return
        video = self.profile.video
        self.errors = write(
            self.file,
            self.folder,
            self._clips,
            f"Profile {self.profile.name}",
            frames=not self.interrupted,
            decoder=video.decoder,
            allow_damaged=bool(video.allow_damaged),
        )
