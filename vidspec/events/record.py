"""The record of one captioned (or failed) clip: what ``--format json`` prints and ``Captioner.caption`` returns.

Plain values only; computing them is the business of decoding and of the captioner.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from vidspec.errors import VidspecError

if TYPE_CHECKING:
    from vidspec.events.trace import Trace

__all__ = [
    "RECORD_KEYS",
    "BaselineRecord",
    "Caption",
    "CountsRecord",
    "EnsembleRecord",
    "LengthsRecord",
    "LooseRecord",
    "LooseTokenRecord",
    "LossyRecord",
    "ModelsRecord",
    "QuestionRecord",
    "RecordDict",
    "Resting",
    "ScheduleRecord",
    "SpeedRecord",
    "VideoRecord",
    "failed_caption",
]


#: JSON-ready values with :data:`RECORD_KEYS`; what a run keeps has a ``job`` too (``vidspec.dataset.records``).
RecordDict: TypeAlias = dict[str, Any]


class ModelsRecord(TypedDict, total=False):
    """``target``, ``draft`` and ``adapter`` are names or folders; the draft's is None without one. The rest is the
    target's: ``weights`` as codes, int8 or int4, which a lossless text is relative to, with ``, as stored`` those that
    the checkpoint has; None as they were loaded."""

    target: str
    adapter: str
    draft: str | None
    family: str
    dtype: str
    weights: str | None
    device: str
    decoder: str


class VideoRecord(TypedDict, total=False):
    """Source facts, see :class:`~vidspec.events.source.SourceFacts`, and what was shown to the models.

    ``damage``, a list of what is missing or broken in the file, is empty unless damage was allowed.
    """

    path: str
    duration_s: float
    width: int
    height: int
    codec: str
    container: str
    fps: float
    variable_fps: bool
    rotation: int
    frame_count: int
    decoder: str
    damage: list[str]
    frames: int
    timestamps: list[float]


class CountsRecord(TypedDict, total=False):
    """The raw counters (docs/metrics.md), see :class:`~vidspec.events.counters.Counters`."""

    target_forwards: int
    draft_forwards: int
    drafted: int
    accepted: int
    loose: int
    corrections: int
    bonus: int
    emitted: int
    accepted_lengths: list[int]
    visual_tokens: int
    visual_tokens_kept: int
    audio_tokens: int
    state_bytes: int


class LengthsRecord(TypedDict, total=False):
    """Each None where it is undefined, see :func:`~vidspec.events.counters.lengths`."""

    tau: float | None
    tokens_per_target_pass: float | None
    run_length: float | None
    acceptance_rate: float | None


class BaselineRecord(TypedDict):
    """Plain decoding's own ``timings``, ``tokens`` and ``tokens_per_s``, and the three speed-ups over it;
    ``end_to_end`` is for texts of its length, ``end_to_end_raw`` for the texts as they are."""

    timings: dict[str, float]
    tokens: int
    tokens_per_s: float | None
    time_to_first_token: float | None
    decode: float | None
    end_to_end: float | None
    end_to_end_raw: float | None


class SpeedRecord(TypedDict, total=False):
    """``tokens_per_s`` of decoding and, where plain decoding was measured on the same clip, ``baseline``; otherwise
    ``estimate``, the decode speed-up over plain steps that were timed after the text; None where none were."""

    tokens_per_s: float | None
    estimate: float | None
    baseline: BaselineRecord


class Resting(TypedDict):
    """``share`` of the target's passes that had no drafted tokens, and of the passes in which there could have been
    some, at a cost above the expected gain, ``by_cost``."""

    share: float
    by_cost: float


class ScheduleRecord(TypedDict, total=False):
    """The last window ``gamma`` where windows change, and of the parallel one how many drafted tokens were
    ``wasted``. ``resting`` is None without a draft and for the parallel one."""

    kind: str
    gamma: int | None
    wasted: int | None
    resting: Resting | None


class EnsembleRecord(TypedDict):
    """``weights`` by context, one per window; the ``caption`` that stood for the video and the ``captioner`` that
    wrote it, None without that context."""

    weights: dict[str, list[float]]
    caption: str | None
    captioner: str | None


class LooseTokenRecord(TypedDict):
    """A token that the target would not have chosen: index in ``token_ids``, what it ``wanted``, ``by`` what the token
    passed, and the ``relevance`` (mean cosine) and ``entropy`` (nats) that the rule measured."""

    at: int
    wanted: int
    by: str
    relevance: float | None
    entropy: float | None
    token: int
    text: str
    wanted_text: str


class LooseRecord(TypedDict):
    """``share`` of the emitted tokens that a lossy rule let pass although the target would have chosen another."""

    share: float
    tokens: list[LooseTokenRecord]


class LossyRecord(TypedDict):
    """The ``method`` that prunes the target; ``kept``, how many visual tokens each of its decoder blocks reads while
    decoding, and ``retention``, the mean share of all."""

    method: str
    kept: list[int]
    retention: float | None


class QuestionRecord(TypedDict):
    """Of a clip that is asked several things: whether this is a ``turn`` of a dialogue or one prompt of several asked
    at once (``kind``), and which, from 0; what was asked (``prompt``); of the prompts that target and draft read, all
    earlier turns among them, how many tokens were in a cache already, ``reused_by_draft`` None without a draft model in
    this process; and ``saved_s``, how many seconds fewer than for the first question it took until they were read."""

    kind: str
    index: int
    prompt: str
    reused: int
    reused_by_draft: int | None
    saved_s: float


@dataclass(frozen=True)
class Caption:
    """A caption with everything that is known about how it was made.

    Attributes:
        path: the clip as it was named by the caller.
        caption: the text, or None if the clip failed; what a run keeps has it in the run's template and form.
        token_ids: the emitted token ids, EOS included when it was reached.
        ended: ``eos`` with an end token, ``length`` with the last token there was room for, ``loop`` saying the same
            words again and again, cut there or not, ``stop`` with a stop string; None if the clip failed.
        lossless: True if the method guarantees the target's own output, False for lossy rules, None if the clip failed.
        demo: whether the caption is the built-in models', which know drawn shapes only; None if the clip failed.
        profile: the name of the acceleration profile.
        seed: of the clip's own random numbers, which follows from the run's and the clip; None if the clip failed.
        models, video, counters, lengths, speed, schedule: see their types; empty where they are not known.
        timings: seconds by kind of work, plus ``time_to_first_token, decode, end_to_end``.
        kept_per_frame: visual tokens of each frame that the draft saw; empty without a draft.
        ensemble: None without one.
        loose: None with a lossless method.
        lossy: None with a target that sees the whole video.
        question: None for a clip that is asked one thing.
        verified: True where ``--verify`` found plain decoding's tokens, near-ties apart; None without it.
        near_tie: in half precision the first position at which ``--verify`` found another token than plain decoding's,
            where the target's logits of both are almost equal; otherwise None.
        text: what the model wrote, where ``caption`` is not just that; otherwise None.
        error: None, or ``{stage, kind, message}``.
        trace: timed events for ``--trace``; not part of the JSON record.
    """

    path: str
    caption: str | None
    token_ids: list[int] = field(default_factory=list)
    ended: Literal["eos", "length", "loop", "stop"] | None = None
    lossless: bool | None = None
    demo: bool | None = None
    profile: str | None = None
    seed: int | None = None
    models: ModelsRecord = field(default_factory=ModelsRecord)
    video: VideoRecord = field(default_factory=VideoRecord)
    counters: CountsRecord = field(default_factory=CountsRecord)
    lengths: LengthsRecord = field(default_factory=LengthsRecord)
    timings: dict[str, float] = field(default_factory=dict)
    speed: SpeedRecord = field(default_factory=SpeedRecord)
    schedule: ScheduleRecord = field(default_factory=ScheduleRecord)
    kept_per_frame: list[int] = field(default_factory=list)
    ensemble: EnsembleRecord | None = None
    loose: LooseRecord | None = None
    lossy: LossyRecord | None = None
    question: QuestionRecord | None = None
    verified: bool | None = None
    near_tie: int | None = None
    text: str | None = None
    error: dict[str, str] | None = None
    trace: Trace | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> RecordDict:
        """The record as JSON-ready values, keys as in :data:`RECORD_KEYS`."""
        return {key: getattr(self, key) for key in RECORD_KEYS}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


#: The keys of a JSON record, in their order.
RECORD_KEYS = tuple(one.name for one in fields(Caption) if one.name != "trace")


def failed_caption(path: str, error: VidspecError, *, profile: str | None = None) -> Caption:
    """The record of a clip that gave no caption."""
    return Caption(
        path=path,
        caption=None,
        profile=profile,
        error={"stage": error.stage, "kind": error.kind, "message": str(error)},
    )
