"""Subtitles as Advanced SubStation Alpha, for players and editors that style them."""

from __future__ import annotations

from collections.abc import Sequence

from vidspec.escaping import one_line
from vidspec.events.record import RecordDict
from vidspec.runs.cues import subtitle_cues
from vidspec.runs.formats.base import ClipFormat, output_formats

STYLE = {
    "Name": "Default",
    "Fontname": "Arial",
    "Fontsize": 48,
    "PrimaryColour": "&H00FFFFFF",
    "SecondaryColour": "&H000000FF",
    "OutlineColour": "&H00000000",
    "BackColour": "&H00000000",
    **dict.fromkeys(("Bold", "Italic", "Underline", "StrikeOut"), 0),
    **dict.fromkeys(("ScaleX", "ScaleY"), 100),
    **dict.fromkeys(("Spacing", "Angle"), 0),
    "BorderStyle": 1,
    "Outline": 2,
    "Shadow": 0,
    "Alignment": 2,
    **dict.fromkeys(("MarginL", "MarginR", "MarginV"), 30),
    "Encoding": 1,
}
EVENT = ("Layer", "Start", "End", "Style", "Name", "MarginL", "MarginR", "MarginV", "Effect", "Text")
#: Comment in a file of the built-in models' captions.
DEMO = "; Captions of vidspec's built-in models, which know drawn shapes only."


@output_formats.register("ass")
class SubStationFormat(ClipFormat):
    """Built-in models are marked in a comment. Times have hundredths of a second."""

    suffix = ".ass"

    def render(self, captioned: Sequence[RecordDict]) -> str:
        demo = [DEMO] if any(record.get("demo") for record in captioned) else []
        lines = ["[Script Info]", *demo, "ScriptType: v4.00+", "PlayResX: 1280", "PlayResY: 720", "WrapStyle: 2", ""]
        lines += ["[V4+ Styles]", f"Format: {', '.join(STYLE)}", f"Style: {','.join(map(str, STYLE.values()))}", ""]
        lines += ["[Events]", f"Format: {', '.join(EVENT)}"]
        for start, end, text in (one for record in captioned for one in subtitle_cues(record)):
            lines.append(f"Dialogue: 0,{_clock(start)},{_clock(end)},Default,,0,0,0,,{_escape(text)}")
        return "\n".join(lines) + "\n"


def _clock(milliseconds: int) -> str:
    """Format a time as ``h:mm:ss.cc``."""
    minutes, rest = divmod(round(milliseconds / 10), 6000)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest // 100:02d}.{rest % 100:02d}"


def _escape(text: str) -> str:
    r"""Escape the lines of a cue: braces begin style codes, and ``\N``, ``\n`` and ``\h`` break lines.

    ASS has no escaped backslash; a word joiner after it keeps players from reading a code.
    """
    lines = (
        one_line(line).replace("\\", "\\\u2060").replace("{", "\\{").replace("}", "\\}") for line in text.split("\n")
    )
    return "\\N".join(lines)
