"""Evaluation of a trained head: the decoding loop with it and without, in turns, on clips it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from vidspec.captioner import Captioner
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.clip_sections import clip_sections
from vidspec.display.pages.page import Page, section
from vidspec.errors import GenerationError, VideoError, VidspecError
from vidspec.events.events import Finished, Restarted, Round
from vidspec.events.record import Caption
from vidspec.files import write_whole
from vidspec.models.request import CaptionRequest
from vidspec.runs.sources.base import ClipOpener
from vidspec.runs.ties import is_near_tie
from vidspec.training.states import CaptionedClip

__all__ = ["DRAFTING", "HeadEvaluation", "MeasuredClip", "measure", "write_report"]

#: Captions that a page shows in full.
SHOWN = 2

#: Keys of a profile that drafts with a head that reads text rows only, over those of plain decoding.
DRAFTING: Mapping[str, object] = {
    "draft.topology": "chain",
    "draft.gamma": "auto",
    "schedule.kind": "sequential",
    "accept.rule": "exact",
}


@dataclass(frozen=True)
class MeasuredClip:
    """A clip captioned with the head and by plain decoding.

    Attributes:
        drafted, plain: the captions.
        near_tie: True if they differ where two logits of the target are almost equal.
        rounds: of the caption with the head.
    """

    drafted: Caption
    plain: Caption
    near_tie: bool = False
    rounds: Sequence[Round] = ()


@dataclass(frozen=True)
class HeadEvaluation:
    """Speedup and acceptance of a head, measured against plain decoding.

    Attributes:
        clips: number of clips that it was not trained on.
        tau: tokens a pass of the target, first tokens of captions aside.
        reached: share of windows in which the first, second, ... drafted token was accepted.
        decode, end_to_end: seconds of plain decoding over those with the head; end to end with reading the clips.
        near_ties: captions that differ where two logits are almost equal.
    """

    clips: int
    tau: float
    reached: tuple[float, ...]
    decode: float
    end_to_end: float
    near_ties: int = 0

    @classmethod
    def of(cls, measured: Sequence[MeasuredClip]) -> HeadEvaluation:
        """Return the evaluation over one or more measured clips."""
        counters = [one.drafted.counters for one in measured]
        lengths = [length for one in counters for length in one["accepted_lengths"]]
        tau = sum(one["emitted"] - 1 for one in counters) / max(1, sum(one["target_forwards"] for one in counters))

        def gain(key: str) -> float:
            plain, drafted = (sum(getattr(one, by).timings[key] for one in measured) for by in ("plain", "drafted"))
            return plain / drafted if drafted else 1.0

        most, windows = max(lengths, default=0), max(1, len(lengths))
        reached = tuple(sum(length >= at for length in lengths) / windows for at in range(1, most + 1))
        ties = sum(one.near_tie for one in measured)
        return cls(len(measured), tau, reached, gain("decode"), gain("end_to_end"), ties)

    def __str__(self) -> str:
        ties = f", {self.near_ties} of them with a near-tie" if self.near_ties else ""
        return (
            f"decodes {self.decode:.1f} times as fast as plain decoding and captions {self.end_to_end:.1f} times as "
            f"fast, {self.tau:.1f} tokens a pass, on {self.clips} clips it was not trained on{ties}"
        )


def measure(
    captioner: Captioner, clips: Sequence[CaptionedClip], unreadable: list[VidspecError]
) -> Iterator[MeasuredClip]:
    """Caption clips with the head and by plain decoding, in turns; yields each.

    Args:
        captioner: drafts with the head.
        clips: not trained on.
        unreadable: receives the reason for each clip that cannot be captioned any more.

    Raises:
        GenerationError: two texts differ, and not at a near-tie.
    """
    captioner.client.warm_up()
    with closing(ClipOpener()) as files:
        for number, clip in enumerate(clips):
            try:
                with clip.local(files) as path:
                    one = _measured(captioner, replace(clip.request, path=path), first=bool(number % 2))
            except (VideoError, GenerationError) as error:
                if error.kind == "mismatch":
                    raise
                unreadable.append(error)
            else:
                yield replace(one, drafted=replace(one.drafted, path=clip.request.path))


def _measured(captioner: Captioner, asked: CaptionRequest, *, first: bool) -> MeasuredClip:
    """Caption a clip with the head and by plain decoding, which is ``first`` or last."""
    found, rounds = dict[bool, Caption](), list[Round]()
    for plain in (first, not first):
        given = {key: getattr(asked, key) for key in ("clip", "start", "end", "prompt", "system", "earlier")}
        for event in captioner.stream(asked.path, **given, plain=plain):
            if isinstance(event, Round) and not plain:
                rounds.append(event)
            elif isinstance(event, Restarted):
                rounds.clear()
            elif isinstance(event, Finished):
                found[plain] = event.caption
    drafted, without = found[False], found[True]
    tie = without.token_ids != drafted.token_ids
    if tie:
        request = replace(captioner.client.inputs.read_request(asked), plain=False)
        if not is_near_tie(captioner.client, request, drafted.token_ids, without.token_ids):
            raise GenerationError(
                f"{asked.path}: differs from plain decoding with the new head", stage="verify", kind="mismatch"
            )
    return MeasuredClip(drafted, without, tie, rounds)


def write_report(
    file: Path, evaluation: HeadEvaluation, measured: Sequence[MeasuredClip], taus: Sequence[tuple[int, float]]
) -> None:
    """Write a page: the evaluation, tokens a round over the steps of the training, and two captions token by token.

    Args:
        file: replaced whole.
        evaluation: of the head.
        measured: the clips.
        taus: steps, and tokens a round then.

    Raises:
        OutputError: it cannot be written.
    """
    best, last = max((tau for _, tau in taus), default=1.0), max((step for step, _ in taus), default=1)
    points = [f"{600 * step / last:.0f},{200 - 190 * tau / best:.0f}" for step, tau in taus]
    content = {"evaluation": str(evaluation), "curve": " ".join(points), "best": best, "last": last}
    sections = [section("training", **content, reached=evaluation.reached)]
    for number, one in enumerate(measured[:SHOWN], 1):
        sections.append(clip_sections(ShownClip(one.drafted.to_dict(), rounds=one.rounds, number=number)))
    write_whole(file, Page("A head of one's own", sections).render())
