"""The answers of OpenAI's chat API, made of a clip's events, and the server's counters. No web framework."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vidspec.decoding.text_stream import TextStream
from vidspec.events.events import Prefilled, Restarted, Round

if TYPE_CHECKING:
    from vidspec.events.events import Event
    from vidspec.events.record import Caption


class ChatAnswer:
    """The answer to one request: text as it comes, without the white space around it and without a stop string.

    Args:
        model: the model's name.
        stop: the request's stop strings, of which the text is searched: work for a thread.
        details: True to add each token's origin and round, and the frames, to a stream.

    Attributes:
        frames_html: frames, as the page shows them, for the next line of a stream.
        prompt_tokens: length of the prompt; 0 until it has been read.
    """

    def __init__(self, model: str, stop: Sequence[str] = (), *, details: bool = False) -> None:
        self._text, self.stop, self._details = TextStream(stop), stop, details
        self._tokens: list[tuple[str, str, int]] = []
        self._rounds = 0
        self.frames_html = ""
        self.prompt_tokens = 0
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def add(self, event: Event) -> str:
        """Add an event; return the text that can be sent now."""
        if isinstance(event, Prefilled):
            self.prompt_tokens = event.prompt_tokens
        elif isinstance(event, Restarted):
            self._tokens, self._rounds = [], 0
        elif isinstance(event, Round):
            pairs = zip(event.texts, event.origins, strict=False)
            self._tokens += [(text, origin, self._rounds) for text, origin in pairs]
            self._rounds += 1
        return self._text.add(event)

    def message(self, caption: Caption) -> dict[str, object]:
        message = {"role": "assistant", "content": caption.caption or ""}
        if caption.reasoning is not None:
            message["reasoning_content"] = caption.reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(caption)}
        whole = {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage(caption)}
        return {**whole, "vidspec": _measured(caption)}

    def chunk(self, delta: dict[str, str], caption: Caption | None = None) -> str:
        """Return a line of a stream; the last one has the caption."""
        reason = None if caption is None else _reason(caption)
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        line: dict[str, object] = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        own = {} if caption is None else _measured(caption)
        if self._details:
            own["tokens"], self._tokens = self._tokens, []
        if self.frames_html:
            own["frames_html"], self.frames_html = self.frames_html, ""
        return _line({**line, **({"vidspec": own} if own else {})})

    def usage_chunk(self, caption: Caption) -> str:
        """Return the line of a stream with the usage, after the last one."""
        return _line({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage(caption)})

    def _usage(self, caption: Caption) -> dict[str, int]:
        written = len(caption.token_ids)
        total = self.prompt_tokens + written
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": written, "total_tokens": total}


def _line(content: object) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _reason(caption: Caption) -> str:
    return "length" if caption.ended == "length" else "stop"


def _measured(caption: Caption) -> dict[str, object]:
    """Return the answer's field ``vidspec``."""
    counters, lengths = caption.counters, caption.lengths
    return {
        "lossless": caption.lossless,
        "profile": caption.profile,
        "passes": counters.get("target_forwards"),
        "drafted": counters.get("drafted"),
        "accepted": counters.get("accepted"),
        "tokens_per_pass": lengths.get("tokens_per_target_pass"),
        "tokens_per_s": caption.speed.get("tokens_per_s"),
        "speedup": caption.speed.get("estimate"),
        "frames": caption.video.get("frames"),
        "timestamps": caption.video.get("timestamps"),
        "seed": caption.seed,
        "reused": caption.question["reused"] if caption.question is not None else 0,
    }


class Metrics:
    """Counters of the server since its start, as Prometheus reads them."""

    BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._first: Counter[float] = Counter()
        self._first_sum = 0.0

    def add_first_token(self, seconds: float) -> None:
        """Add the time from a request's arrival to its first token."""
        self._first_sum += seconds
        self._first[next((bound for bound in self.BUCKETS if seconds <= bound), float("inf"))] += 1

    def add_caption(self, caption: Caption) -> None:
        """Add an answered request."""
        self.totals["clips"] += 1
        self.totals["tokens"] += len(caption.token_ids)
        self.totals["accepted_tokens"] += caption.counters.get("accepted", 0)
        self.totals["target_passes"] += caption.counters.get("target_forwards", 0)

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return the metrics as text, with these gauges."""
        passes, seconds, count = self.totals["target_passes"], "time_to_first_token_seconds", 0
        rate = self.totals["accepted_tokens"] / passes if passes else 0.0
        lines = list[str]()
        for name in ("clips", "tokens", "accepted_tokens", "target_passes"):
            lines += [f"# TYPE vidspec_{name}_total counter", f"vidspec_{name}_total {self.totals[name]}"]
        for name, value in {"accepted_tokens_per_pass": rate, **gauges}.items():
            lines += [f"# TYPE vidspec_{name} gauge", f"vidspec_{name} {value}"]
        lines.append("# TYPE vidspec_errors_total counter")
        lines += [f'vidspec_errors_total{{code="{code}"}} {total}' for code, total in sorted(self.errors.items())]
        lines.append(f"# TYPE vidspec_{seconds} histogram")
        for bound in (*self.BUCKETS, float("inf")):
            count += self._first[bound]
            lines.append(
                f'vidspec_{seconds}_bucket{{le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {count}'
            )
        lines += [f"vidspec_{seconds}_sum {self._first_sum}", f"vidspec_{seconds}_count {count}"]
        return "\n".join(lines) + "\n"
