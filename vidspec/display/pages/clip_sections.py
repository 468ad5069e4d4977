"""The sections of a page about one clip, each a function of the clip; empty if there is nothing to show."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.page import section
from vidspec.display.pages.pictures import MAX_FRAMES
from vidspec.display.pages.timeline import timeline
from vidspec.display.pages.tokens import origin_counts, tokens, windows
from vidspec.escaping import one_line

if TYPE_CHECKING:
    from markupsafe import Markup

#: Name and meaning of a time in the table of speeds.
_TIMES = {
    "time_to_first_token": ("time to first token", "from the start of work on the clip to the first token"),
    "draft_reading": ("draft's reading", "the part of decoding in which the draft reads the clip and the prompt"),
    "decode": ("decoding", "from the first token to the last"),
    "end_to_end": ("end to end", words.END_TO_END),
}
_ENDED = {
    "eos": "at an end token",
    "length": "at the token limit",
    "loop": "in a repetition",
    "stop": "at a stop string",
}


class SpeedFigure(NamedTuple):
    """Seconds of this run and of plain decoding, and the speed-up."""

    name: str
    meaning: str
    method: float
    plain: float | None
    ratio: float | None


def clip_sections(clip: ShownClip) -> Markup:
    whole = () if clip.error is not None else (_in_short, _text, _rounds, _frames, _timeline, _speed, _counters)
    made = [section("failure", clip=clip)] if clip.error is not None else []
    made += [found for one in whole if (found := one(clip)) is not None]
    return section("clip", sections=made, clip=clip, facts=facts(clip), tokens=any(tokens(clip)))


def _in_short(clip: ShownClip) -> Markup:
    return section("in_short", clip=clip, equal_length=_equal_length(clip))


def _text(clip: ShownClip) -> Markup:
    return section("text", clip=clip, tokens=list(tokens(clip)), origins=origin_counts(clip))


def _rounds(clip: ShownClip) -> Markup | None:
    found = windows(clip)
    tallest = max((one.height for one in found), default=0) or 1
    return section("rounds", windows=found, tallest=tallest) if found else None


def _frames(clip: ShownClip) -> Markup | None:
    if not clip.pictures:
        return None
    ranked = clip.seen is not None and any(one.levels for one in clip.pictures)
    signals = [words.signal(name) for name, _ in clip.seen.signals] if clip.seen and ranked else []
    return section("frames", clip=clip, pictures=clip.pictures, signals=signals, undrawn=_undrawn(clip))


def _undrawn(clip: ShownClip) -> int:
    """Return the number of frames that the models saw and the page leaves out."""
    moments = len({one.seconds for one in clip.pictures})
    steps = clip.seen.grid[0] if clip.seen is not None and clip.seen.grid[0] else 0
    frames = steps or len(clip.record.get("kept_per_frame") or ()) or clip.get("video").get("frames", 0)
    return max(0, frames - moments) if moments >= MAX_FRAMES else 0


def _timeline(clip: ShownClip) -> Markup | None:
    line = timeline(clip.spans)
    traced = any(span.kind == "decode_video" for span in clip.spans)  # otherwise another process read the frames
    read_before = None if traced else clip.get("timings").get("decode_video")
    return section("timeline", line=line, read_before=read_before) if line is not None else None


def _speed(clip: ShownClip) -> Markup | None:
    found = speeds(clip)
    slowest = max((time or 0.0 for one in found for time in (one.method, one.plain)), default=0.0) or 1.0
    return section("speed", speeds=found, slowest=slowest, profile=clip.record["profile"]) if found else None


def _counters(clip: ShownClip) -> Markup | None:
    found = counters(clip)
    return section("counters", counters=found) if found else None


def _equal_length(clip: ShownClip) -> int | None:
    """Return the tokens of the end-to-end comparison, if plain decoding wrote more or fewer than this run."""
    count: int | None = (clip.get("speed").get("baseline") or {}).get("tokens")
    return None if count == len(clip.record["token_ids"]) else count


def speeds(clip: ShownClip) -> list[SpeedFigure]:
    """Return the times of a clip beside plain decoding's."""
    timings, baseline = clip.get("timings"), clip.get("speed").get("baseline") or {}
    plain = baseline.get("timings") or {}
    equal = "; the speed-up is at equal length" if _equal_length(clip) else ""
    return [
        SpeedFigure(name, meaning + equal * (key == "end_to_end"), timings[key], plain.get(key), baseline.get(key))
        for key, (name, meaning) in _TIMES.items()
        if timings.get(key) is not None
    ]


def counters(clip: ShownClip) -> list[tuple[str, str, str]]:
    """Return name, value and definition of each counter, then of the lengths derived from them."""
    counted, lengths = clip.get("counters"), clip.get("lengths")
    rows = [(name, figures.number(counted[name]), about) for name, about in words.COUNTERS.items() if name in counted]
    for name, about in words.LENGTHS.items():
        if name in lengths:
            shown = figures.share if name == "acceptance_rate" else figures.number
            rows.append((words.LENGTH_NAMES[name], shown(lengths[name]), about))
    return [(name.replace("_", " "), value, about) for name, value, about in rows]


def facts(clip: ShownClip) -> list[tuple[str, str]]:
    record, models, video = clip.record, clip.get("models"), clip.get("video")
    size = f"{video['width']} x {video['height']}" if video.get("width") else None
    length = f"{video['duration_s']:.1f} s" if video.get("duration_s") is not None else None
    weights = clip.get("ensemble").get("weights") or {}
    found = {
        "profile": record.get("profile"),
        "target": models.get("target"),
        "draft": models.get("draft"),
        "family": models.get("family"),
        "ran on": ", ".join(filter(None, (models.get("device"), models.get("dtype")))),
        "blocks": models.get("decoder"),
        "schedule": clip.get("schedule").get("kind"),
        "contexts": ", ".join(f"{name} {fmean(row):.0%}" for name, row in weights.items() if row),
        "video": ", ".join(filter(None, (size, length, video.get("codec"), video.get("container")))),
        "frames shown": video.get("frames"),
        "read by": video.get("decoder"),
        "damage": "; ".join(video.get("damage") or ()),
        "ended": _ENDED.get(record.get("ended") or ""),
    }
    return [(name, one_line(str(value))) for name, value in found.items() if value]
