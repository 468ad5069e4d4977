"""The record of one captioned (or failed) clip: what ``--format json`` prints and ``Captioner.caption`` returns.

Plain values only; computing them is the business of decoding and of the captioner.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from vidspec.errors import VidspecError

__all__ = ["RECORD_KEYS", "Caption", "failed"]

#: The keys of a JSON record, in their order.
RECORD_KEYS = (
    "path",
    "caption",
    "token_ids",
    "ended",
    "lossless",
    "demo",
    "profile",
    "models",
    "video",
    "counters",
    "lengths",
    "timings",
    "speed",
    "schedule",
    "kept_per_frame",
    "ensemble",
    "loose",
    "lossy",
    "error",
)


@dataclass(frozen=True)
class Caption:
    """A caption with everything that is known about how it was made.

    Attributes:
        path: the clip as it was named by the caller.
        caption: the text, or None if the clip failed.
        token_ids: the emitted token ids, EOS included when it was reached.
        ended: ``eos`` with an end token, ``length`` with the last token there was room for, ``loop`` saying the same
            words again and again, cut there or not; None if the clip failed.
        lossless: True if the method guarantees the target's own output, False for lossy rules, None if the clip failed.
        demo: whether the caption is the built-in models', which know drawn shapes only; None if the clip failed.
        profile: the name of the acceleration profile.
        models: ``target`` and ``draft`` (name or folder; None without one), ``family``, ``dtype``, ``device``.
        video: source facts plus ``frames`` and ``timestamps`` of what was shown to the models; ``damage``, a list of
            what is missing or broken in the file, is empty unless damage was allowed.
        counters: the raw counters of METRICS: ``target_forwards, draft_forwards, drafted, accepted, loose,
            corrections, bonus, emitted, visual_tokens, visual_tokens_kept``, and ``accepted_lengths`` (one per round).
        lengths: ``tau, tokens_per_target_pass, run_length, acceptance_rate`` (None where undefined).
        timings: seconds by kind of work, plus ``time_to_first_token, decode, end_to_end``.
        speed: ``tokens_per_s`` (decode) and, where plain decoding was measured on the same clip, ``baseline`` with
            its timings and the three speed-ups ``time_to_first_token, decode, end_to_end``; otherwise
            ``estimate`` (a decode speed-up computed from this run's own measured passes).
        schedule: ``kind``; ``why`` it was chosen, where the profile left that to measurement; of the parallel one also
            the last window ``gamma`` and how many drafted tokens were ``wasted``.
        kept_per_frame: visual tokens of each frame that the draft saw; empty without a draft.
        ensemble: None, or of an ensemble ``weights`` (by context, one per window), the ``caption`` that stood for the
            video and the ``captioner`` that wrote it (None without that context).
        loose: None with a lossless method; else ``share``, the share of the emitted tokens that a lossy rule let pass
            although the target would have chosen another, and ``tokens``, each of them: ``at`` (index in
            ``token_ids``), ``token`` and ``text``, ``wanted`` and ``wanted_text`` of the target's own token there,
            ``by`` what it passed, and the ``relevance`` (mean cosine) and ``entropy`` (nats) that the rule measured.
        lossy: None with a target that sees the whole video; else the ``method`` that prunes it, ``kept``, how many
            visual tokens each of its decoder blocks reads while decoding, and ``retention``, the mean share of all.
        error: None, or ``{stage, kind, message}``.
        trace: timed events for ``--trace``; not part of the JSON record.
    """

    path: str
    caption: str | None
    token_ids: list[int] = field(default_factory=list)
    ended: Literal["eos", "length", "loop"] | None = None
    lossless: bool | None = None
    demo: bool | None = None
    profile: str | None = None
    models: dict[str, Any] = field(default_factory=dict)
    video: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, float | None] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    kept_per_frame: list[int] = field(default_factory=list)
    ensemble: dict[str, Any] | None = None
    loose: dict[str, Any] | None = None
    lossy: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    trace: Any = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values, keys as in :data:`RECORD_KEYS`."""
        return {key: getattr(self, key) for key in RECORD_KEYS}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def failed(path: str, error: VidspecError, *, profile: str | None = None) -> Caption:
    """The record of a clip that gave no caption."""
    return Caption(
        path=path,
        caption=None,
        profile=profile,
        error={"stage": error.stage, "kind": error.kind, "message": str(error)},
    )
