"""A clip and what is asked about it, from the one who asks to the models; knows neither a model nor how to read a file.

No torch here: whoever hands clips to a captioner may be without.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self

    from vidspec.models.base import Pixels, VideoLanguageModel, VisionOutput
    from vidspec.models.prefix_cache import PrefixCache
    from vidspec.video.base import Clip

__all__ = ["CaptionRequest", "DialogueTurn", "Question"]


#: Bytes of a clip's frames that its seed follows from.
SAMPLED = 1 << 16


class DialogueTurn(NamedTuple):
    """One turn of a dialogue about a clip."""

    question: str
    answer: str


@dataclass(frozen=True)
class Question:
    """Of a clip that is asked several things: which of them this is, from 0, and whether those before it were answered
    when it is asked (``turn``) or all are asked at once (``prompt``)."""

    kind: Literal["turn", "prompt"]
    index: int


@dataclass(frozen=True, eq=False)
class CaptionRequest:
    """What is asked about which clip.

    Attributes:
        path: for messages and the record.
        clip: its frames; None until they have been read.
        prompt, system: None for the profile's; where that has no system prompt either, the model's template has.
        start, end: seconds from the start of the stream, between which frames are taken.
        key: tells its events from those of others.
        timeout: seconds it may take from now on, in which others that are captioned at the same time count; None for no
            limit.
        spent: seconds of those that are gone already.
        ahead: what was made of the clip before its turn, by model: pixels, or the visual tokens seen in them.
        earlier: what was asked and answered about it before; the prompt is the next question.
        attempt: how often the same was asked before; where tokens are drawn, they are drawn with another seed.
        question: which of several this is.
        cache: what the others left in caches; None to read all of the prompt.
        return_probs: whether rounds tell how probable the target thought their tokens.
        reread: reads the frames again, for a repetition of the clip; where it is given, they are let go of once the
            models have seen them.
    """

    path: str
    clip: Clip | None = None
    prompt: str | None = None
    system: str | None = None
    start: float | None = None
    end: float | None = None
    key: Hashable = None
    timeout: float | None = None
    spent: float = 0.0
    ahead: Mapping[VideoLanguageModel, Pixels | VisionOutput] = field(default_factory=dict)
    earlier: tuple[DialogueTurn, ...] = ()
    attempt: int = 0
    question: Question | None = None
    cache: PrefixCache | None = None
    return_probs: bool = False
    reread: Callable[[], Clip] | None = None

    def seed(self, run: int) -> int:
        """The seed of this request's random numbers, below 2^48 so that JSON readers keep it exact.

        It follows from the run's seed, the frames and when they are shown, and what is asked about them; so a clip
        draws the same numbers wherever its file lies, alone or among others, in any order, batch or shard, and other
        clips draw others. Of frames at most :data:`SAMPLED` bytes at even spacing count.

        Args:
            run: the run's seed (``generate.seed``).
        """
        frames = self.frames.frames.reshape(-1)
        told = [
            run + self.attempt,
            self.frames.frames.shape,
            self.frames.timestamps.tolist(),
            self.prompt,
            *self.earlier,
        ]
        digest = blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=6)
        digest.update(frames[:: max(1, -(-len(frames) // SAMPLED))].tobytes())
        return int.from_bytes(digest.digest(), "big")

    def without_pixels(self) -> Self:
        """What is left once the models have seen the clip: its frames only where they cannot be read again."""
        return replace(self, clip=self.clip if self.reread is None else self.frames.without_frames(), ahead={})

    def text_ids(self, model: VideoLanguageModel, instead: str) -> list[int]:
        """Token ids of a model's prompt with a text where the video would be."""
        return model.text_ids(instead, self.prompt or "", self.system, self.earlier)

    @property
    def frames(self) -> Clip:
        """The frames.

        Raises:
            ValueError: they have not been read.
        """
        if self.clip is None:
            raise ValueError(f"{self.path}: the clip has not been read")
        return self.clip
