"""What a head gains: the decoding loop with it and without, in turns, on clips that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vidspec.captioner import Captioner
from vidspec.errors import GenerationError, VideoError
from vidspec.events.record import Caption
from vidspec.runs.ties import is_near_tie
from vidspec.training.states import CaptionedClip

__all__ = ["DRAFTING", "MeasuredClip", "Verdict", "measure"]

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
    """

    drafted: Caption
    plain: Caption
    near_tie: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a head gains over plain decoding.

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
    def of(cls, measured: Sequence[MeasuredClip]) -> Verdict:
        """Return the verdict over measured clips, at least one."""
        lengths, tokens, passes = list[int](), 0, 0
        for one in measured:
            counters = one.drafted.counters
            lengths += counters["accepted_lengths"]
            tokens += counters["emitted"] - 1
            passes += counters["target_forwards"]

        def gain(key: str) -> float:
            plain, drafted = (
                sum(caption.timings[key] for caption in captions)
                for captions in ([one.plain for one in measured], [one.drafted for one in measured])
            )
            return plain / drafted if drafted else 1.0

        most, windows = max(lengths, default=0), max(1, len(lengths))
        reached = tuple(sum(length >= at for length in lengths) / windows for at in range(1, most + 1))
        ties = sum(one.near_tie for one in measured)
        return cls(len(measured), tokens / max(1, passes), reached, gain("decode"), gain("end_to_end"), ties)

    def __str__(self) -> str:
        ties = f", {self.near_ties} of them with a near-tie" if self.near_ties else ""
        return (
            f"decodes {self.decode:.1f} times as fast as plain decoding and captions {self.end_to_end:.1f} times as "
            f"fast, {self.tau:.1f} tokens a pass, on {self.clips} clips it was not trained on{ties}"
        )


def measure(
    captioner: Captioner,
    clips: Sequence[CaptionedClip],
    unreadable: Callable[[CaptionedClip, Exception], None],
) -> Iterator[MeasuredClip]:
    """Caption clips with the head and by plain decoding, in turns; yields each.

    Args:
        captioner: drafts with the head.
        clips: not trained on.
        unreadable: is told of a clip that cannot be captioned any more.

    Raises:
        GenerationError: two texts differ, and not at a near-tie.
    """
    captioner.client.warm_up()
    for number, clip in enumerate(clips):
        found: dict[bool, Caption] = {}
        asked = clip.request
        try:
            for plain in (False, True) if number % 2 else (True, False):
                found[plain] = captioner.caption(
                    asked.path,
                    clip=asked.clip,
                    start=asked.start,
                    end=asked.end,
                    prompt=asked.prompt,
                    system=asked.system,
                    plain=plain,
                )
        except (VideoError, GenerationError) as error:
            unreadable(clip, error)
            continue
        tie = found[True].token_ids != found[False].token_ids
        if tie:
            request = replace(captioner.client.inputs.read_request(asked), plain=False)
            if not is_near_tie(captioner.client, request, found[False].token_ids, found[True].token_ids):
                raise GenerationError(
                    f"{asked.path}: differs from plain decoding with the new head", stage="verify", kind="mismatch"
                )
        yield MeasuredClip(found[False], found[True], tie)
