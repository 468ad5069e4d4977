"""Subtitles as WebVTT, written by the library ``webvtt-py``."""

from __future__ import annotations

import html
from collections.abc import Sequence

from vidspec.escaping import vtt_cue
from vidspec.events.record import RecordDict
from vidspec.runs.cues import escape_cue, join_cues, subtitle_cues
from vidspec.runs.formats.base import ClipFormat, clock, output_formats

#: Comment in a file of the built-in models' captions.
DEMO = "Captions of vidspec's built-in models, which know drawn shapes only."


@output_formats.register("vtt")
class WebVttFormat(ClipFormat):
    """Built-in models are marked in a comment."""

    suffix = ".vtt"
    holds = "cues"

    def render(self, captioned: Sequence[RecordDict]) -> str:
        import webvtt

        file = webvtt.WebVTT()
        if any(record.get("demo") for record in captioned):
            file.header_comments.append(DEMO)
        for start, end, text in (one for record in captioned for one in subtitle_cues(record)):
            file.captions.append(webvtt.Caption(clock(start / 1000), clock(end / 1000), escape_cue(text, vtt_cue)))
        return str(file.content) + "\n"

    def read_caption(self, text: str) -> str:
        import webvtt

        try:
            return join_cues(html.unescape(cue.raw_text) for cue in webvtt.from_string(text).captions)
        except webvtt.errors.MalformedFileError as error:
            raise ValueError from error
