"""The record of one captioned (or failed) clip, as ``--format json`` prints and ``Captioner.caption`` returns it.

Plain values only; decoding and the captioner compute them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from vidspec.errors import UsageError, VidspecError

if TYPE_CHECKING:
    from vidspec.events.trace import Trace

__all__ = [
    "OPTIONAL_KEYS",
    "RECORD_KEYS",
    "Caption",
    "CountsRecord",
    "EnsembleRecord",
    "LooseRecord",
    "LooseTokenRecord",
    "LossyRecord",
    "ModelsRecord",
    "OriginalRecord",
    "QuestionRecord",
    "RecordDict",
    "Resting",
    "ScheduleRecord",
    "VideoRecord",
    "checking_records",
    "failed_caption",
]


#: JSON-ready values with :data:`RECORD_KEYS`; records in a journal have a ``job`` too (``vidspec.runs.store.records``).
RecordDict: TypeAlias = dict[str, Any]


class ModelsRecord(TypedDict, total=False):
    """Names or folders of ``target``, ``draft`` (None without one) and ``adapter``; facts about the target.

    ``weights``: the quantised codes (int8 or int4) that a lossless text is relative to, followed by ``, as stored`` for
    the checkpoint's own codes; None if they are as loaded. ``template``: origin of the chat template, if it is not a
    file of its own in the checkpoint: another file, or ``built in``.
    """

    target: str
    adapter: str
    draft: str | None
    family: str
    template: str
    dtype: str
    weights: str | None
    device: str
    decoder: str


class VideoRecord(TypedDict, total=False):
    """Source facts, see :class:`~vidspec.events.events.SourceFacts`, and the frames shown to the models.

    ``damage`` lists missing or broken parts of the file; empty unless damage was allowed. ``pixel_aspect``,
    ``transfer``, ``tilt`` and ``clean_aperture`` are there only for video that has them.
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
    pixel_aspect: float
    transfer: str
    tilt: float
    clean_aperture: list[int]
    frames: int
    timestamps: list[float]


class CountsRecord(TypedDict, total=False):
    """The raw counters (docs/research/metrics.md), see :class:`~vidspec.events.compare.Counters`."""

    target_forwards: int
    draft_forwards: int
    drafted: int
    accepted: int
    loose: int
    corrections: int
    bonus: int
    emitted: int
    accepted_lengths: list[int]
    prompt_tokens: int
    visual_tokens: int
    visual_tokens_kept: int
    audio_tokens: int
    state_bytes: int


class LengthsRecord(TypedDict, total=False):
    """Lengths, None if undefined; see :func:`~vidspec.events.compare.lengths`."""

    tau: float | None
    tokens_per_target_pass: float | None
    run_length: float | None
    acceptance_rate: float | None


class BaselineRecord(TypedDict):
    """Figures of plain decoding (``timings``, ``tokens``, ``tokens_per_s``) and three speed-ups over it.

    ``end_to_end`` is for texts of its length, ``end_to_end_raw`` for the texts as they are.
    """

    timings: dict[str, float]
    tokens: int
    tokens_per_s: float | None
    time_to_first_token: float | None
    decode: float | None
    end_to_end: float | None
    end_to_end_raw: float | None


class SpeedRecord(TypedDict, total=False):
    """``tokens_per_s`` of decoding, and a speed-up.

    ``baseline`` if plain decoding was measured on the same clip; otherwise ``estimate``, the decode speed-up over plain
    steps timed after the text; None if none were.
    """

    tokens_per_s: float | None
    estimate: float | None
    baseline: BaselineRecord


class LimitRecord(TypedDict):
    """Length of a caption in ``unit``, the limit (``most``), times that it was asked for again, and if it was cut."""

    tokens: int
    most: int
    unit: str
    asked_again: int
    cut: bool


class Resting(TypedDict):
    """Shares of target passes without drafted tokens.

    ``share``: of all passes; ``by_cost``: of the passes that could have had some, at a cost above the expected gain.
    """

    share: float
    by_cost: float


class ScheduleRecord(TypedDict, total=False):
    """The schedule's ``kind`` and counts.

    ``gamma``: the last window if windows change. ``wasted``: drafted tokens not emitted, of the parallel schedule.
    ``resting``: None without a draft and for the parallel schedule.
    """

    kind: str
    gamma: int | None
    wasted: int | None
    resting: Resting | None


class EnsembleRecord(TypedDict):
    """``weights`` by context, one per window, and the caption context.

    ``caption`` is the text that replaced the video and ``captioner`` its model; None without that context.
    """

    weights: dict[str, list[float]]
    caption: str | None
    captioner: str | None


class LooseTokenRecord(TypedDict):
    """A token that the target would not have chosen.

    ``at`` is its index in ``token_ids``, ``wanted`` the target's choice, ``by`` the test it passed, and ``relevance``
    (mean cosine) and ``entropy`` (nats) are as the rule measured them.
    """

    at: int
    wanted: int
    by: str
    relevance: float | None
    entropy: float | None
    token: int
    text: str
    wanted_text: str


class LooseRecord(TypedDict):
    """``share`` of the emitted tokens accepted by a lossy rule although the target would have chosen others."""

    share: float
    tokens: list[LooseTokenRecord]


class LossyRecord(TypedDict):
    """The ``method`` that prunes the target, and its effect.

    ``kept``: visual tokens that each decoder block reads while decoding; ``retention``: their mean share of all.
    """

    method: str
    kept: list[int]
    retention: float | None


class QuestionRecord(TypedDict):
    """One prompt of a clip with several.

    ``kind``: a ``turn`` of a dialogue or one prompt of several sent at once. ``index`` counts from 0. ``reused``:
    tokens of the prompt, earlier turns included, that were in the target's cache; ``reused_by_draft``: in the draft's,
    None without a draft model in this process. ``saved_s``: seconds saved on the prefill compared to the first prompt.
    """

    kind: str
    index: int
    prompt: str
    reused: int
    reused_by_draft: int | None
    saved_s: float


class OriginalRecord(TypedDict):
    """A text about the video that a second pass has rewritten: the ``text``, and how it ``ended``."""

    text: str
    ended: str | None


@dataclass(frozen=True)
class Caption:
    """A caption with all facts about how it was made.

    Attributes:
        path: the clip as the caller named it.
        caption: the text, or None if the clip failed; a journal keeps it in the run's template and form.
        token_ids: the emitted token ids, EOS included when it was reached.
        ended: ``eos`` at an end token, ``length`` at the token limit, ``loop`` for a text that repeats itself, cut
            there or not, ``stop`` at a stop string; None if the clip failed.
        lossless: True if the method guarantees the target's own output, False for lossy rules, None if the clip failed.
        demo: True if the built-in models, which know drawn shapes only, wrote it; None if the clip failed.
        profile: the name of the acceleration profile.
        seed: of the clip's random numbers, derived from the run's seed and the clip; for the run's seed -1 the drawn
            one, which as ``generate.seed`` gives the text again; None if the clip failed.
        models, video, counters, lengths, speed, schedule: see their types; empty if unknown.
        timings: seconds by kind of work, plus ``time_to_first_token, draft_reading, decode, end_to_end``.
        kept_per_frame: visual tokens of each frame that the draft saw; empty without a draft.
        ensemble: None without one.
        loose: None with a lossless method.
        lossy: None with a target that is not pruned.
        question: None for a clip with one prompt.
        verified: True if ``--verify`` found the tokens of plain decoding, near-ties apart; None without it.
        near_tie: the first position at which ``--verify`` found another token than plain decoding's, with almost equal
            logits of the target; otherwise None.
        data: the parsed value of a caption that follows a JSON Schema; otherwise None.
        text: the model's own text if ``caption`` differs from it; otherwise None.
        error: None, or ``{stage, kind, message}``.
        reasoning: text before the caption of a model that thinks first; None without any, and then not in the JSON
            record.
        original: what the model wrote about the video if ``--rewrite`` or ``--limit`` has replaced it; then ``ended``
            is the rewritten text's, and ``token_ids``, counts and speeds are the original's. None without.
        summary: text about the whole clip, with the last of its segments; None without ``--summary``.
        limit: length of ``caption`` as written, and what was done for it; None without ``--limit``.
        notes: corrections of timed events; None without any.
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
    data: Any = None
    text: str | None = None
    error: dict[str, str] | None = None
    reasoning: str | None = None
    original: OriginalRecord | None = None
    summary: str | None = None
    limit: LimitRecord | None = None
    notes: list[str] | None = None
    trace: Trace | None = field(default=None, repr=False, compare=False)

    @property
    def text_about_video(self) -> str | None:
        """The text that the model wrote about the video, before any second pass; None if the clip failed."""
        return self.caption if self.original is None else self.original["text"]

    def to_dict(self) -> RecordDict:
        """Return the record as JSON-ready values, keys as in :data:`RECORD_KEYS` and the next that are not None."""
        optional = {key: value for key in OPTIONAL_KEYS if (value := getattr(self, key)) is not None}
        return {key: getattr(self, key) for key in RECORD_KEYS} | optional

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


#: Keys that a JSON record has only if they are not None.
OPTIONAL_KEYS = ("reasoning", "original", "summary", "limit", "notes")
#: The other keys of a JSON record, in their order.
RECORD_KEYS = tuple(one.name for one in fields(Caption) if one.name not in (*OPTIONAL_KEYS, "trace"))


def failed_caption(path: str, error: VidspecError, *, profile: str | None = None) -> Caption:
    """Return the record of a failed clip."""
    return Caption(
        path=path,
        caption=None,
        profile=profile,
        error={"stage": error.stage, "kind": error.kind, "message": str(error)},
    )


@contextmanager
def checking_records(command: str, *more: type[Exception]) -> Iterator[None]:
    """Turn errors from records with values of other types than ours into a one-line usage error.

    Args:
        command: what the records are read for, for the hint.
        more: further exceptions that such records cause.
    """
    errors: tuple[type[Exception], ...] = (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError)
    errors += (ValueError, *more)
    try:
        yield
    except errors as error:
        raise UsageError(
            f"a record is not as vidspec writes it: {type(error).__name__}: {error}",
            hint=f"{command} what caption --format json or jsonl wrote",
        ) from error
