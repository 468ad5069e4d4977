"""Measure drafts on real language: ``python -m research.studies.real_language [--batch 1,8] [--counters]``.

The target is that of :mod:`research.realtext`, one clip with as many subjects. Contenders share it, take turns at each
number of clips at once, and begin each turn without memory of earlier captions. Prints Markdown: tokens a target pass,
draft passes a token, the share of drafted tokens that was accepted, and captions with the token ids of plain decoding
alone; without ``--counters``, for a machine that does nothing else, also tokens a second and their ratio to plain
decoding's. An unequal caption is an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from research.ready_clips import ReadyClips
from research.realtext import PROMPT, build, subjects
from vidspec.bench.loaded import LoadedModels, ModelSource
from vidspec.bench.machine import machine
from vidspec.bench.tables import table
from vidspec.bench.turns import rotate
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.errors import VidspecError
from vidspec.events.events import Finished
from vidspec.events.record import Caption
from vidspec.models.request import CaptionRequest

#: Profiles, plain decoding first. Windows that are given do not follow measured times.
CONTENDERS = (
    "ar",
    "suffix",
    "self-int8",
    "hybrid-int8+draft.options.window=5",
    "hybrid-int8+draft.options.window=5+draft.topology=tree",
)


@dataclass(frozen=True)
class RealLanguageRow:
    """Figures of a contender at one number of clips at once.

    Attributes:
        name: label of the profile.
        batch: clips at once.
        tokens_per_target_pass: emitted tokens over passes of the target, first tokens aside.
        draft_passes_per_token: passes of the draft over emitted tokens.
        accepted: share of drafted tokens; None without any.
        equal: captions with the token ids of plain decoding of the clip alone, of ``clips``.
        tokens_per_s: the median of the turns; None if not timed.
    """

    name: str
    batch: int
    tokens_per_target_pass: float
    draft_passes_per_token: float
    accepted: float | None
    equal: int
    clips: int
    tokens_per_s: float | None


def requests(captioner: Captioner, prompts: Sequence[str]) -> list[CaptionRequest]:
    """Return a request for each prompt, over the same clip."""
    path = str(shipped()[0])
    clip = captioner.client.inputs.read(path)
    return [CaptionRequest(path, clip, prompt=prompt, key=place) for place, prompt in enumerate(prompts)]


def caption(captioner: Captioner, prompts: Sequence[str], batch: int) -> tuple[dict[int, Caption], float]:
    """Return the captions by the place of their prompt, and the seconds they took together.

    Raises:
        VidspecError: one failed.
    """
    captioner.client.setup.forget()
    asked, found, begun = requests(captioner, prompts), dict[int, Caption](), time.perf_counter()
    for key, event in captioner.client.serve(ReadyClips(asked), batch=batch):
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Finished) and isinstance(key, int):
            found[key] = event.caption
    return found, time.perf_counter() - begun


def row(
    name: str, batch: int, captions: Mapping[int, Caption], plain: Mapping[int, Caption], rates: Sequence[float]
) -> RealLanguageRow:
    """Return the figures of captions, beside plain decoding's of each clip alone."""
    total = Counter[str]()
    for one in captions.values():
        total.update({key: value for key, value in one.counters.items() if isinstance(value, int)})
    later = total["emitted"] - len(captions)  # the prefill gives each caption its first token
    return RealLanguageRow(
        name,
        batch,
        later / total["target_forwards"],
        total["draft_forwards"] / later,
        total["accepted"] / total["drafted"] if total["drafted"] else None,
        sum(one.token_ids == plain[key].token_ids for key, one in captions.items()),
        len(captions),
        median(rates) if rates else None,
    )


def markdown(rows: Sequence[RealLanguageRow]) -> str:
    """Return the table; columns of speed only if it was timed."""
    timed = all(one.tokens_per_s is not None for one in rows)
    plain = {one.batch: one.tokens_per_s for one in rows if one.name == rows[0].name}
    heading = ["clips at once", "profile", "tokens a target pass", "draft passes a token", "accepted", "equal"]
    lines = []
    for one in rows:
        share = "-" if one.accepted is None else f"{one.accepted:.0%}"
        numbers = [f"{one.tokens_per_target_pass:.2f}", f"{one.draft_passes_per_token:.2f}", share]
        line = [str(one.batch), f"`{one.name}`", *numbers, f"{one.equal}/{one.clips}"]
        if timed and one.tokens_per_s is not None:
            line += [f"{one.tokens_per_s:.1f}", f"{one.tokens_per_s / (plain[one.batch] or 1):.2f}x"]
        lines.append(line)
    return table([*heading, *(["tokens/s", "speed-up"] if timed else [])], lines)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=16, help="captions of each contender (default: 16)")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each caption (default: 96)")
    parser.add_argument("--batch", default="1,8", help="clips at once, separated by commas (default: 1,8)")
    parser.add_argument("--profiles", default=",".join(CONTENDERS), help="labels, plain decoding first")
    parser.add_argument("--repeats", type=int, default=3, help="turns that are timed (default: 3)")
    parser.add_argument("--counters", action="store_true", help="one turn, and no figures that depend on time")
    parser.add_argument("--json", type=Path, help="write the rows")
    given = parser.parse_args(args)
    prompts = [PROMPT.format(subject=one) for one in subjects(given.subjects)]
    loaded = LoadedModels(ModelSource(target=str(build()), dtype="float32"))
    settings = {"video.frames": 2, "generate.max_new_tokens": given.tokens}
    captioners = {label: loaded.captioner(label, settings) for label in given.profiles.split(",")}
    baseline, sizes = next(iter(captioners)), [int(size) for size in given.batch.split(",")]
    plain, spent = caption(captioners[baseline], prompts, 1)
    rows = list[RealLanguageRow]()
    for size in sizes:
        found, rates = dict[str, dict[int, Caption]](), dict[str, list[float]]()
        for turn in range(1 if given.counters else given.repeats):
            for label in rotate(list(captioners), turn):
                print(f"{time.strftime('%H:%M:%S')} {size} at once: {label}", file=sys.stderr, flush=True)
                known = given.counters and (label, size) == (baseline, 1)
                found[label], seconds = (plain, spent) if known else caption(captioners[label], prompts, size)
                tokens = sum(len(one.token_ids) for one in found[label].values())
                rates.setdefault(label, []).append(tokens / seconds)
        rows += [row(label, size, found[label], plain, () if given.counters else rates[label]) for label in captioners]
    print(markdown(rows))
    if given.json is not None:
        facts = machine(loaded.where.device)
        given.json.write_text(json.dumps({"rows": [asdict(one) for one in rows], "machine": facts}), encoding="utf-8")
    if unequal := [one.name for one in rows if one.equal < one.clips]:
        raise VidspecError(f"other token ids than plain decoding: {', '.join(unequal)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
