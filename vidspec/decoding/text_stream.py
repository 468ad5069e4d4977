"""Text of a clip's events as soon as it is certain."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from vidspec.errors import GenerationError
from vidspec.events.events import Finished, Restarted, Round
from vidspec.models.detokenizer import cut_at_stop

if TYPE_CHECKING:
    from vidspec.events.events import Event


class TextStream:
    """The part of a caption that no later event changes, without white space around it.

    After ``Restarted`` the same text comes again; only what is new is returned.

    Args:
        stop: stop strings of the request.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._text = self._returned = ""

    def add(self, event: Event) -> str:
        """Add an event; return the text that has become certain.

        Raises:
            GenerationError: after ``Restarted`` another text came, as sampling may draw it.
        """
        if isinstance(event, Finished):
            text = event.caption.caption or ""
            if not text.startswith(self._returned):
                message = f"{event.caption.path}: the text changed after a part of it was streamed"
                raise GenerationError(message, kind="restarted", hint="the clip began again, and sampling drew another")
        elif isinstance(event, Round):
            self._text += "".join(event.texts)
            text = cut_at_stop(self._text, self._stop, unfinished=True).strip()
        else:
            if isinstance(event, Restarted):
                self._text = ""
            return ""
        if not text.startswith(self._returned):
            return ""
        added, self._returned = text[len(self._returned) :], text
        return added


def stream_certain_text(events: Generator[Event, None, None], stop: Sequence[str]) -> Generator[str, None, None]:
    """Yield the text of a clip's events as it becomes certain; close them at the end."""
    stream = TextStream(stop)
    with closing(events):
        for event in events:
            if text := stream.add(event):
                yield text
