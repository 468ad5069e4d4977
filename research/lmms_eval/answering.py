"""Answering of requests by captioners over the same loaded models, one per set of options, with totals of tokens.

Knows nothing of the harness, so that it can be tested without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from research.lmms_eval.arguments import wanted
from research.lmms_eval.visuals import shown
from vidspec.captioner import Captioner, CaptionOptions
from vidspec.config import profiles
from vidspec.events.record import Caption


@dataclass
class Totals:
    """Totals over answers.

    Attributes:
        answers: how many there are.
        tokens: emitted, EOS included.
        later: tokens after the first of each answer, which are decoded.
        windows: verifications.
        accepted: drafted tokens that verifications kept.
        loose: drafted tokens that were kept though the target would not have chosen them.
        decode, seconds: in decoding, and from the opened file to the last token.
    """

    answers: int = 0
    tokens: int = 0
    later: int = 0
    windows: int = 0
    accepted: int = 0
    loose: int = 0
    decode: float = 0.0
    seconds: float = 0.0

    def add(self, record: Caption) -> None:
        """Add an answer."""
        counters = record.counters
        self.answers += 1
        self.tokens += counters["emitted"]
        self.later += counters["emitted"] - 1
        self.windows += len(counters["accepted_lengths"])
        self.accepted += sum(counters["accepted_lengths"])
        self.loose += counters["loose"]
        self.decode += record.timings["decode"]
        self.seconds += record.timings["end_to_end"]

    @property
    def rates(self) -> dict[str, float]:
        """Return ``decode_tokens_per_s``, ``tau`` (accepted draft tokens per verification), ``loose_share`` of tokens.

        Those that are undefined are left out.
        """
        found = {
            "decode_tokens_per_s": (self.later, self.decode),
            "tau": (self.accepted, self.windows),
            "loose_share": (self.loose, self.tokens),
        }
        return {name: part / whole for name, (part, whole) in found.items() if whole}

    def __str__(self) -> str:
        rates = self.rates
        parts = [f"{self.answers} answers", f"{self.tokens} tokens"]
        if (speed := rates.get("decode_tokens_per_s")) is not None:
            parts.append(f"{speed:.1f} tokens/s in decoding")
        if (tau := rates.get("tau")) is not None:
            parts.append(f"tau {tau:.2f}")
        parts.append(f"{rates.get('loose_share', 0.0):.1%} of the tokens loosely accepted")
        return ", ".join(parts)


class Answering:
    """A captioner that answers under the settings each request comes with.

    Args:
        captioner: its profile has the defaults of requests.

    Attributes:
        unread: keys of ``generation_kwargs`` that were met and have no effect.
    """

    def __init__(self, captioner: Captioner) -> None:
        self.captioner = captioner
        self.unread: set[str] = set()
        self._others: dict[tuple[tuple[str, object], ...], Captioner] = {}

    def answer(
        self, context: str, kwargs: Mapping[str, Any], visual: Any, name: str, repeat: int = 0
    ) -> tuple[str, Caption]:
        """Answer one request.

        Args:
            context: the question; the profile's prompt if empty. Places for images in it are taken out: the video
                has its own.
            kwargs: the task's ``generation_kwargs``.
            visual: result of its ``doc_to_visual``.
            name: name of the request in messages.
            repeat: number of earlier repeats, each of which draws other tokens when sampling.

        Returns:
            the answer, and the record of the text before a string of ``until`` cut it.

        Raises:
            VidspecError: the video or the settings are no good.
        """
        asked = wanted(kwargs)
        self.unread.update(asked.unread)
        captioner = self.under(asked.overrides, repeat)
        what = shown(visual, captioner.client.profile.video)
        question: CaptionOptions = {"prompt": context.replace("<image>", "").replace("<video>", "").strip() or None}
        if not isinstance(what, str):
            question["clip"], what = what, name
        record = captioner.caption(what, **question)
        text = record.caption or ""
        for end in asked.until:
            text = text.split(end, 1)[0]
        return text, record

    def under(self, overrides: Mapping[str, object], repeat: int = 0) -> Captioner:
        """Return a captioner with ``overrides``, over the loaded models."""
        base = self.captioner
        profile = profiles.override(base.client.profile, overrides)
        if repeat and profile.generate.temperature > 0:
            profile = profiles.override(profile, {"generate.seed": profile.generate.seed + repeat})
        if profile == base.client.profile:
            return base
        generate = tuple(profile.generate.model_dump().items())
        if generate not in self._others:
            setup = base.client.setup
            self._others[generate] = Captioner(
                profile,
                setup.target.model,
                setup.draft.model if setup.draft is not None else None,
                describe=setup.describe,
                slot=setup.slot,
            )
        return self._others[generate]

    def close(self) -> None:
        """Release the models."""
        self._others.clear()
        self.captioner.close()
