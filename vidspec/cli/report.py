"""What the commands say on standard error, one line each; knows nothing of captioning."""

from __future__ import annotations

import sys
import traceback

from vidspec.errors import VidspecError
from vidspec.record import Caption

__all__ = ["complain", "failure", "note", "summary"]

EMBEDDED_NOTICE = (
    "note: the built-in models know only drawn shapes; for real video name a pair, such as "
    "--target llava-hf/llava-onevision-qwen2-7b-ov-hf --draft llava-hf/llava-onevision-qwen2-0.5b-ov-hf"
)


def complain(message: str) -> None:
    """``error: message`` on stderr, on one line."""
    note(f"error: {' '.join(message.split())}")


def note(line: str) -> None:
    """A line on stderr."""
    print(line, file=sys.stderr, flush=True)


def failure(caption: Caption, error: Exception, *, debug: bool) -> None:
    """One line for a failed clip; its traceback too where it is a bug, or was asked for."""
    if debug or not isinstance(error, VidspecError):
        traceback.print_exception(error, file=sys.stderr)
    message = caption.error["message"] if caption.error else str(error)
    complain(message if caption.path in message else f"{caption.path}: {message}")


def summary(caption: Caption) -> str:
    """The figures of a captioned clip on one line."""
    facts = [f"{len(caption.token_ids)} tokens"]
    if (seconds := caption.timings.get("end_to_end")) is not None:
        facts.append(f"{seconds:.2f} s")
    if (rate := caption.speed.get("tokens_per_s")) is not None:
        facts.append(f"{rate:.1f} tokens/s")
    if (tau := caption.lengths.get("tau")) is not None:
        facts.append(f"tau {tau:.2f}")
    baseline = caption.speed.get("baseline")
    if baseline:
        kinds = (("decode", "decode"), ("first token", "time_to_first_token"), ("end to end", "end_to_end"))
        ratios = [f"{label} {baseline[key]:.2f}x" for label, key in kinds if baseline.get(key) is not None]
        facts.append("against plain decoding: " + ", ".join(ratios))
    elif (estimate := caption.speed.get("estimate")) is not None:
        facts.append(f"decode {estimate:.2f}x est.")
    return f"{caption.path}: " + "; ".join(facts)
