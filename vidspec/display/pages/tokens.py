"""The tokens of a caption with their origins, and the windows that verified them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from vidspec.display import figures
from vidspec.display.pages import words
from vidspec.display.pages.clip import ShownClip
from vidspec.escaping import escape_text, one_line

#: Symbol for a token that adds nothing to the text.
_SILENT = "∎"


@dataclass(frozen=True)
class PageToken:
    """A piece of the caption; ``about`` lists the known facts."""

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

    @property
    def height(self) -> int:
        """Tokens drafted, or accepted if only these are known, and the target's own."""
        return (self.drafted or self.accepted) + (self.own or 0)


def tokens(clip: ShownClip) -> Iterator[PageToken]:
    """Yield the pieces of a caption; none if they were not recorded."""
    wanted = {one["at"]: one["wanted_text"] for one in clip.get("loose").get("tokens") or ()}
    place = 0
    for number, one in enumerate(clip.rounds):
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
            facts.append(f"{figures.time(one.elapsed)} after the prefill")
            facts += [f"window {one.gamma}"] if one.gamma else []
            if (loose := loosened.get(at)) is not None:
                known = wanted.get(place - 1)
                choice = f"token {loose.wanted}" if known is None else f"“{one_line(known)}”"
                facts.append(f"accepted by {loose.by}, the target's choice was {choice}")
                facts += [f"visual relevance {loose.relevance:.3f}"] if loose.relevance is not None else []
                facts += [f"entropy {loose.entropy:.2f} nats"] if loose.entropy is not None else []
            yield PageToken(escape_text(text) or _SILENT, origin, number, "; ".join(facts))


def origin_counts(clip: ShownClip) -> dict[str, int]:
    """Return token counts by origin, in the order of the definitions; from the counters without recorded tokens."""
    counts = Counter[str](one.origin for one in tokens(clip))
    if not counts and (of := clip.get("counters")):
        counts.update(draft=of["accepted"] - of["loose"], correction=of["corrections"])
        counts.update(bonus=of["bonus"], loose=of["loose"])
        counts["target"] = of["emitted"] - counts.total()
    return {origin: counts[origin] for origin in words.ORIGINS if counts[origin]}


def windows(clip: ShownClip) -> list[VerifiedWindow]:
    """Return the verifications of a clip, from its rounds or its counters."""
    if clip.rounds:
        return [
            VerifiedWindow(number, one.accepted, one.drafted, len(one.token_ids) - one.accepted)
            for number, one in enumerate(clip.rounds)
            if one.drafted
        ]
    lengths = clip.get("counters").get("accepted_lengths") or ()
    return [VerifiedWindow(number, accepted) for number, accepted in enumerate(lengths, start=1)]
