"""The figures of a page about one clip: tokens and their origins, rounds, counters, speeds. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from vidspec.display.pages import words
from vidspec.display.pages.page import RecordMapping
from vidspec.display.pages.pictures import MAX_FRAMES, Picture
from vidspec.display.pages.timeline import Timeline, timeline
from vidspec.escaping import escape_text, one_line
from vidspec.events.events import Prefilled, Round
from vidspec.events.trace import Span

__all__ = ["ClipPage", "PageToken", "SpeedFigure", "VerifiedWindow"]

#: Symbol for a token that adds nothing to the text.
_SILENT = "∎"


@dataclass(frozen=True)
class PageToken:
    """A piece of the caption; ``origin`` is empty if it was not recorded, ``about`` lists the known facts."""

    text: str
    origin: str
    round: int
    about: str


@dataclass(frozen=True)
class VerifiedWindow:
    """Token counts of one verification: ``drafted``, ``accepted``, and the target's ``own``.

    ``drafted`` and ``own`` are None if only accepted lengths were recorded.
    """

    number: int
    accepted: int
    drafted: int | None = None
    own: int | None = None


@dataclass(frozen=True)
class SpeedFigure:
    """Seconds of this run and of plain decoding, and the speed-up."""

    name: str
    meaning: str
    method: float | None
    plain: float | None
    ratio: float | None


@dataclass
class ClipPage:
    """One clip, captioned or failed.

    Attributes:
        record: see :data:`~vidspec.display.pages.page.RecordMapping`.
        seen, rounds: the prefill event and the rounds of an observed run.
        spans: the trace, if there is one.
        pictures: its frames; ``unseen`` is the reason if there are none.
        number: its number on a page of several clips, from 1.
    """

    record: RecordMapping
    seen: Prefilled | None = None
    rounds: Sequence[Round] = ()
    spans: Sequence[Span] = ()
    pictures: Sequence[Picture] = ()
    unseen: str = ""
    number: int = 1

    @property
    def name(self) -> str:
        """The path, the part of the file, and the prompt if the clip has several."""
        path, prompt = one_line(self.record["path"]), self.section("question").get("prompt")
        name = path if self._time_range is None else f"{path}, {words.span(*self._time_range)}"
        return f"{name}: {one_line(prompt)}" if prompt else name

    def section(self, name: str) -> RecordMapping:
        """Return a section of the record; empty if it has none."""
        return self.record.get(name) or {}

    @property
    def _time_range(self) -> tuple[float, float] | None:
        """Start and end in seconds, from its frames if the record has neither; None for the whole file."""
        job, video = {**self.record, **self.section("job")}, self.section("video")
        start, end, duration = job.get("start"), job.get("end"), video.get("duration_s")
        if start is not None or end is not None:
            last = duration if end is None else end
            return (start or 0.0, last or start or 0.0)
        times: list[float] = video.get("timestamps") or []
        if duration is None or len(times) < 2:
            return None
        step = (times[-1] - times[0]) / (len(times) - 1)
        return (times[0], times[-1]) if times[0] > step or duration - times[-1] > 2 * step else None

    @property
    def error(self) -> str | None:
        error = self.record.get("error")
        return one_line(f"{error['stage']}/{error['kind']}: {error['message']}") if error else None

    @property
    def caption(self) -> str:
        return escape_text(self.record.get("caption") or "")

    @property
    def original(self) -> str | None:
        """Text before the rewrite, which the tokens are of; None if no second pass has rewritten the caption."""
        found = self.section("original").get("text")
        return None if found is None else escape_text(found)

    @property
    def summary(self) -> str | None:
        """Text about the whole clip, in the record of its last segment."""
        found = self.record.get("summary")
        return None if found is None else escape_text(found)

    @property
    def other_texts(self) -> list[tuple[str, str]]:
        """Names and texts that pages show folded below the caption."""
        several = ((words.ORIGINAL, self.original), (words.SUMMARY, self.summary))
        return [(name, text) for name, text in several if text]

    @property
    def demo(self) -> bool:
        return bool(self.record.get("demo"))

    @property
    def measured(self) -> bool:
        return bool(self.record.get("counters"))

    @property
    def plain(self) -> bool:
        """True if nothing was drafted."""
        return not self.section("counters").get("drafted")

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Facts about the run that captioned the clip."""
        record, models, video = self.record, self.section("models"), self.section("video")
        size = f"{video['width']} x {video['height']}" if video.get("width") else None
        length = f"{video['duration_s']:.1f} s" if video.get("duration_s") is not None else None
        schedule = self.section("schedule")
        ended = {
            "eos": "at an end token",
            "length": "at the token limit",
            "loop": "in a repetition",
            "stop": "at a stop string",
        }
        found = [
            ("profile", record.get("profile")),
            ("target", models.get("target")),
            ("draft", models.get("draft")),
            ("family", models.get("family")),
            ("ran on", ", ".join(filter(None, (models.get("device"), models.get("dtype"))))),
            ("blocks", models.get("decoder")),
            ("schedule", schedule.get("kind")),
            ("contexts", self._contexts),
            ("video", ", ".join(filter(None, (size, length, video.get("codec"), video.get("container"))))),
            ("frames shown", video.get("frames")),
            ("read by", video.get("decoder")),
            ("damage", "; ".join(video.get("damage") or ())),
            ("ended", ended.get(record.get("ended") or "")),
        ]
        return [(name, one_line(str(value))) for name, value in found if value]

    @property
    def _contexts(self) -> str:
        """Mean weight of each context of an ensemble."""
        weights = self.section("ensemble").get("weights") or {}
        return ", ".join(f"{name} {fmean(row):.0%}" for name, row in weights.items() if row)

    @property
    def signals(self) -> list[str]:
        """Signals that the slider over the frames can rank by; empty if none were observed or there are no frames."""
        drawn = self.seen is not None and any(one.levels for one in self.pictures)
        return [words.signal(name) for name, _ in self.seen.signals] if self.seen and drawn else []

    @property
    def equal_length(self) -> int | None:
        """Length in tokens of the end-to-end comparison, if plain decoding wrote more or fewer tokens than this run."""
        tokens: int | None = (self.section("speed").get("baseline") or {}).get("tokens")
        return None if tokens == len(self.record["token_ids"]) else tokens

    @cached_property
    def tokens(self) -> list[PageToken]:
        """Pieces of the caption; empty if they were not recorded."""
        return list(self._tokens())

    def _tokens(self) -> Iterator[PageToken]:
        place = 0
        for number, one in enumerate(self.rounds):
            loosened = {loose.at: loose for loose in one.loosened}
            for at, (text, origin) in enumerate(zip(one.texts, one.origins, strict=False)):
                place += 1
                facts = [f"token {place}", f"{origin}: {words.ORIGINS[origin]}"]
                if number == 0:
                    facts.append("from the target's prefill")
                elif one.drafted:
                    facts.append(f"round {number}: {one.drafted} drafted, {one.accepted} accepted")
                else:
                    facts.append(f"pass {number}")
                others = [f"“{one_line(other.text) or _SILENT}”" for other in one.rejected if other.at == at]
                facts += [f"the draft proposed {', '.join(others)} here"] if others else []
                if one.probabilities:
                    facts.append(f"target probability {one.probabilities[at]:.3g}")
                facts.append(f"{words.time(one.elapsed)} after the prefill")
                facts += [f"window {one.gamma}"] if one.gamma else []
                if (loose := loosened.get(at)) is not None:
                    facts.append(
                        f"accepted by {loose.by}, the target's choice was {self._choice(place - 1, loose.wanted)}"
                    )
                    facts += [f"visual relevance {loose.relevance:.3f}"] if loose.relevance is not None else []
                    facts += [f"entropy {loose.entropy:.2f} nats"] if loose.entropy is not None else []
                yield PageToken(escape_text(text) or _SILENT, origin, number, "; ".join(facts))

    def _choice(self, at: int, token: int) -> str:
        known = self.section("loose").get("tokens") or ()
        text = next((one["wanted_text"] for one in known if one["at"] == at), None)
        return f"token {token}" if text is None else f"“{one_line(text)}”"

    @property
    def origins(self) -> dict[str, int]:
        """Token count by origin, in the order of the definitions; from the counters if tokens were not recorded."""
        if self.tokens:
            counts = {origin: sum(one.origin == origin for one in self.tokens) for origin in words.ORIGINS}
        elif self.measured:
            of = self.record["counters"]
            counts = {
                "draft": of["accepted"] - of["loose"],
                "correction": of["corrections"],
                "bonus": of["bonus"],
                "loose": of["loose"],
            }
            counts["target"] = of["emitted"] - sum(counts.values())
        else:
            return {}
        return {origin: count for origin, count in counts.items() if count}

    @property
    def windows(self) -> list[VerifiedWindow]:
        if self.rounds:
            return [
                VerifiedWindow(number, one.accepted, one.drafted, len(one.token_ids) - one.accepted)
                for number, one in enumerate(self.rounds)
                if one.drafted
            ]
        lengths = self.section("counters").get("accepted_lengths") or ()
        return [VerifiedWindow(number, accepted) for number, accepted in enumerate(lengths, start=1)]

    @property
    def tallest(self) -> int:
        """Most tokens in a window, drafted plus the target's own; the full height of the chart."""
        return max(((one.drafted or one.accepted) + (one.own or 0) for one in self.windows), default=1) or 1

    @property
    def undrawn(self) -> int:
        """Frames that the models saw and the page leaves out."""
        moments = len({one.seconds for one in self.pictures})
        steps = self.seen.grid[0] if self.seen is not None and self.seen.grid[0] else 0
        frames = steps or len(self.record.get("kept_per_frame") or ()) or self.section("video").get("frames", 0)
        return max(0, frames - moments) if moments >= MAX_FRAMES else 0

    @property
    def counters(self) -> list[tuple[str, str, str]]:
        """Name, value and definition of each counter, then of the lengths derived from them."""
        counted, lengths = self.section("counters"), self.section("lengths")
        rows = [
            (name, words.number(counted[name]), meaning) for name, meaning in words.COUNTERS.items() if name in counted
        ]
        for name, meaning in words.LENGTHS.items():
            value = lengths.get(name)
            if name in lengths:
                shown = words.share(value) if name == "acceptance_rate" else words.number(value)
                rows.append((words.LENGTH_NAMES[name], shown, meaning))
        return [(name.replace("_", " "), value, meaning) for name, value, meaning in rows]

    @property
    def speeds(self) -> list[SpeedFigure]:
        timings, baseline = self.section("timings"), self.section("speed").get("baseline") or {}
        plain = baseline.get("timings") or {}
        equal = "; the speed-up is at equal length" if self.equal_length else ""
        names = (
            ("time_to_first_token", "time to first token", "from the start of work on the clip to the first token"),
            (
                "draft_reading",
                "draft's reading",
                "the part of decoding in which the draft reads the clip and the prompt",
            ),
            ("decode", "decoding", "from the first token to the last"),
            ("end_to_end", "end to end", f"{words.END_TO_END}{equal}"),
        )
        return [
            SpeedFigure(name, meaning, timings[key], plain.get(key), baseline.get(key))
            for key, name, meaning in names
            if timings.get(key) is not None
        ]

    @property
    def read_before(self) -> float | None:
        """Seconds spent reading frames before the trace began, in another process; None if the trace includes it."""
        seconds: float | None = self.section("timings").get("decode_video")
        return None if any(span.kind == "decode_video" for span in self.spans) else seconds

    @property
    def slowest(self) -> float:
        """The longest of the times in :attr:`speeds`; the full width of a bar."""
        return max((time or 0.0 for one in self.speeds for time in (one.method, one.plain)), default=0.0) or 1.0

    @cached_property
    def timeline(self) -> Timeline | None:
        return timeline(self.spans)
