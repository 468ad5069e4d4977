"""One-line summaries of captions and runs, which ``vidspec caption`` and ``ask`` print on standard error."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

from vidspec.cli.printed import print_error
from vidspec.errors import VidspecError
from vidspec.escaping import escape_text
from vidspec.events.record import Caption
from vidspec.events.tally import Tally, counted, format_duration

if TYPE_CHECKING:
    from vidspec.captioner import Captioner
    from vidspec.runs.inputs import InputListing


def print_failure(caption: Caption, error: Exception, *, debug: bool) -> None:
    """Print one line for a failed clip, and its traceback too if it is a bug or ``debug`` is set."""
    print_traceback(error, debug=debug)
    message = caption.error["message"] if caption.error else str(error)
    prefix = f"{' '.join(caption.path.split())}: "  # print_error collapses blanks
    print_error(prefix + message.removeprefix(prefix))


def print_traceback(error: Exception, *, debug: bool) -> None:
    """Print the traceback of a failure if it is a bug or ``debug`` is set."""
    if debug or not isinstance(error, VidspecError):
        print(escape_text("".join(traceback.format_exception(error))), end="", file=sys.stderr)


def summary(caption: Caption, *, verbose: bool = False, shared: bool = False) -> str:
    """Return the figures of a captioned clip on one line.

    Args:
        caption: of the clip.
        verbose: with the names in docs/research/metrics.md.
        shared: other clips shared its passes, so its time and rate are not its own and are left out.
    """
    facts = [counted(len(caption.token_ids), "token")]
    if caption.ended == "loop":
        facts.append("ends in a loop")
    if not shared and (seconds := caption.timings.get("end_to_end")) is not None:
        facts.append(f"{seconds:.2f} s")
    if not shared and (rate := caption.speed.get("tokens_per_s")) is not None:
        facts.append(f"{rate:.1f} tokens/s")
    if (tau := caption.lengths.get("tau")) is not None:
        facts.append(f"tau {tau:.2f}" if verbose else f"{tau:.1f} accepted tokens per pass")
    if (transfer := caption.video.get("transfer")) is not None:
        facts.append(f"HDR ({transfer}), not tone-mapped")
    if (aspect := caption.video.get("pixel_aspect")) is not None:
        facts.append(f"pixels {aspect:.3g} times as wide as high, shown as squares")
    if (tilt := caption.video.get("tilt")) is not None:
        facts.append(f"shown without the rotation by {tilt:g} degrees that the file asks for")
    if (aperture := caption.video.get("clean_aperture")) is not None:
        facts.append(f"shown whole, although players crop it to {aperture[0]}x{aperture[1]}")
    if caption.loose is not None:
        facts.append(f"not lossless, {caption.loose['share']:.0%} of the tokens changed")
    elif caption.lossless is False:
        facts.append("not lossless")
    if caption.verified:
        tie = "" if caption.near_tie is None else f" but for a near-tie at token {caption.near_tie}"
        facts.append(f"verified: plain decoding's tokens{tie}")
    if baseline := caption.speed.get("baseline"):
        first, whole = baseline["time_to_first_token"], baseline["end_to_end"]
        length = baseline.get("tokens", len(caption.token_ids))  # older records lack it
        at = "" if length == len(caption.token_ids) else f" (of {counted(length, 'token')})"
        decode = "too short to measure" if baseline["decode"] is None else f"{baseline['decode']:.2f}x"
        ratios = [f"decode {decode}"]
        ratios += [f"end to end{at} {whole:.2f}x"] if whole else []
        ratios += [f"first token {first:.2f}x"] if first else []
        facts.append(f"against plain decoding: {', '.join(ratios)}")
    elif (estimate := caption.speed.get("estimate")) is not None:
        facts.append(f"decode {estimate:.2f}x est." if verbose else f"estimated {estimate:.1f}x plain decoding")
    return f"{caption.path}: " + "; ".join(facts)


def loaded_summary(captioner: Captioner, seconds: float) -> list[str]:
    """Return lines about a loaded captioner: in general, per model, and per value that its profile leaves open."""
    import torch

    from vidspec.decoding.auto import explain
    from vidspec.decoding.captioner_models import models_record
    from vidspec.engine.layouts import describe_layouts

    setup = captioner.client.setup
    lines = [f"loaded in {seconds:.1f} s; {counted(torch.get_num_threads(), 'thread')}; torch {torch.__version__}"]
    engines = {"target": setup.target, "draft": setup.draft}
    for role, model in ((role, engine.model) for role, engine in engines.items() if engine is not None):
        decoder = model.decoder
        blocks = f"{decoder.name} blocks ({decoder.why})"
        if model.device.type == "cuda":
            blocks += f", passes {'replayed' if decoder.eager is None else f'not replayed: {decoder.eager}'}"
        dtype = str(model.dtype).removeprefix("torch.")
        lines.append(f"{role}: {model.name} ({model.family}), {dtype} on {model.device}, {blocks}")
        if model.device.type == "cpu" and (layouts := describe_layouts(model.matrices)):
            lines.append(f"weights of the {role} (out x in): {layouts}")
    if setup.slot is not None:
        lines.append(f"draft: {models_record(setup)['draft'] or 'the target again'}, in a process of its own")
    return lines + [f"{key}: {value}: {why}" for key, value, why in explain(setup)]


def timing_summary(caption: Caption) -> str:
    """Return the decoder and the times of a captioned clip on one line, the longest first."""
    whole = ("time_to_first_token", "draft_reading", "decode", "end_to_end")
    times = sorted(((s, kind) for kind, s in caption.timings.items() if kind not in whole), reverse=True)
    totals = [f"{kind.replace('_', ' ')} {caption.timings[kind]:.2f} s" for kind in whole if kind in caption.timings]
    facts = [f"decoder {caption.video['decoder']}"] if "decoder" in caption.video else []
    facts += [f"{caption.schedule['kind']}"] if caption.schedule.get("kind") else []
    facts += [f"ended: {caption.ended}", ", ".join(totals), ", ".join(f"{kind} {s:.2f} s" for s, kind in times)]
    return "  " + "; ".join(filter(None, facts))


def progress(tally: Tally) -> str:
    """Return the progress of a run on one line."""
    parts = [f"{tally.done}/{counted(tally.total, 'clip')}", f"{tally.failed} failed", *_rates(tally)]
    if tally.eta is not None:
        parts.append(f"{format_duration(tally.eta)} left")
    return "; ".join(parts)


def totals(tally: Tally, found: InputListing) -> str:
    """Return the results of a run on one line."""
    parts = [f"{counted(tally.total, 'clip')}: {tally.captioned} captioned, {tally.failed} failed"]
    if tally.kinds:
        parts[0] += f" ({', '.join(f'{kind} {count}' for kind, count in sorted(tally.kinds.items()))})"
    earlier = tally.earlier + tally.earlier_failed
    if earlier:
        failed = f" ({tally.earlier_failed} of them failed)" if tally.earlier_failed else ""
        parts.append(f"{earlier} done before{failed}")
    if tally.kept:
        parts.append(f"{tally.kept} not captioned, whose files are kept")
    if tally.done < tally.total:
        parts.append(f"{tally.total - tally.done} not done")
    if others := found.left_out:
        parts.append(f"left out: {others}")
    if tally.captioned + tally.failed:
        parts += [format_duration(tally.seconds), *_rates(tally)]
    return "; ".join(parts)


def _rates(tally: Tally) -> list[str]:
    hourly = f"{tally.clips_per_s:.2f} clips/s ({3600 * tally.clips_per_s:.0f} an hour)"
    waited = [] if tally.waited is None else [f"the models waited for frames {tally.waited:.0%} of the time"]
    return [hourly, f"{tally.tokens_per_s:.1f} tokens/s", *waited]
