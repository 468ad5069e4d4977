"""Subtitles as SubRip, written by the library ``srt``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from vidspec.escaping import WORD_JOINER, srt_cue
from vidspec.events.record import RecordDict
from vidspec.runs.cues import escape_cue, join_cues, subtitle_cues
from vidspec.runs.formats.base import ClipFormat, caption_mark, output_formats


@output_formats.register("srt")
class SubRipFormat(ClipFormat):
    """SRT has no comments, and players may show all of its text: built-in models are marked in the caption."""

    suffix = ".srt"
    holds = "cues"

    def render(self, captioned: Sequence[RecordDict]) -> str:
        import srt  # type: ignore[import-untyped]

        times = (
            (timedelta(milliseconds=start), timedelta(milliseconds=end), escape_cue(text, srt_cue))
            for record in captioned
            for start, end, text in subtitle_cues(record, caption_mark(record))
        )
        return str(
            srt.compose([srt.Subtitle(number, *one) for number, one in enumerate(times, start=1)], reindex=False)
        )

    def read_caption(self, text: str) -> str:
        import srt

        try:
            return join_cues(cue.content.replace(WORD_JOINER, "") for cue in srt.parse(text))
        except srt.SRTParseError as error:
            raise ValueError from error
