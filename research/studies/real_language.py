"""Measure drafts of a lone target on two grounds: ``python -m research.studies.real_language [--counters] [CLIP...]``.

The ground ``real`` is the target of :mod:`research.realtext` with one clip and many subjects; ``built-in`` is that of
the Qwen2.5-VL pair without its draft and its head, with CLIPs. On each, profiles share the target and begin without
memory of earlier captions. Those that are timed take turns after every few captions; all other lossless profiles that
need no second model write the captions of one turn, and drafts with ``--head DIR`` are timed too. Prints Markdown:
tokens a target pass, draft passes a token, the share of drafted tokens that was accepted, and captions with the token
ids of plain decoding alone; without ``--counters``, for a machine that does nothing else, also tokens a second from the
prompt to the last token, and their ratio to plain decoding's. An unequal caption is an error.
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

from research.ready_clips import ReadyClips
from research.realtext import PROMPT, build, subjects
from vidspec.bench.loaded import LoadedModels, ModelSource
from vidspec.bench.machine import machine
from vidspec.bench.tables import table
from vidspec.bench.turns import rotate
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.errors import VidspecError
from vidspec.events.events import Finished
from vidspec.events.record import Caption
from vidspec.models.loading import embedded_folder
from vidspec.models.request import CaptionRequest

#: Candidates for the default of a lone target, plain decoding first; timed on both grounds.
CANDIDATES = ("ar", "suffix", "hybrid-int8", "self-int8")
#: Profiles that are timed on real language alone. A window that is given does not follow measured times.
VARIANTS = ("hybrid-int8+draft.options.window=5", "self-int8+draft.gamma=auto", "self-int4")
#: Profiles that draft with a head, by its kind.
HEAD_PROFILES = {
    "eagle3": ("eagle3", "hybrid-eagle3"),
    "dflash": (
        "sparrow",
        "hybrid-sparrow",
        "sparrow+draft.gamma=5",
        "hybrid-sparrow+draft.options.window=5",
    ),
}
#: Labels beside the packaged profiles that are not timed.
TREES = ("hybrid-int8+draft.options.window=5+draft.topology=tree",)


@dataclass(frozen=True)
class Ground:
    """A target and clips.

    Attributes:
        name: ``real`` or ``built-in``.
        loaded: the target.
        timed, counted: labels of profiles; the first of ``timed`` is plain decoding.
        settings: keys of all profiles.
        clips: path and prompt of each caption, None for the profile's prompt.
    """

    name: str
    loaded: LoadedModels
    timed: tuple[str, ...]
    counted: tuple[str, ...]
    settings: Mapping[str, object]
    clips: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class GroundRow:
    """Figures of a profile on a ground at one number of clips at once.

    Attributes:
        ground: its name.
        name: label of the profile.
        batch: clips at once.
        tokens_per_target_pass: emitted tokens over passes of the target, first tokens aside.
        draft_passes_per_token: passes of the draft over emitted tokens.
        accepted: share of drafted tokens; None without any.
        equal: captions with the token ids of plain decoding of the clip alone, of ``clips``.
        tokens_per_s: emitted tokens over the seconds of all turns; None if not timed.
    """

    ground: str
    name: str
    batch: int
    tokens_per_target_pass: float
    draft_passes_per_token: float
    accepted: float | None
    equal: int
    clips: int
    tokens_per_s: float | None


def other_profiles(timed: Sequence[str]) -> tuple[str, ...]:
    """Return the packaged lossless profiles that need no second model and no head, without those that are timed."""
    named = [info.name for info in profiles.available() if info.source == "packaged" and info.name not in timed]
    loaded = {name: profiles.load(name) for name in sorted(named)}
    return tuple(
        name for name, one in loaded.items() if one.lossless and not (one.draft.has_model or one.draft.has_head)
    )


def caption(
    captioner: Captioner, clips: Mapping[int, tuple[str, str | None]], batch: int
) -> tuple[dict[int, Caption], float]:
    """Return the captions of clips and prompts by their key, and the seconds they took together, reading aside.

    Raises:
        VidspecError: one failed.
    """
    frames = {path: captioner.client.inputs.read(path) for path, _ in clips.values()}
    asked = [CaptionRequest(path, frames[path], prompt=prompt, key=key) for key, (path, prompt) in clips.items()]
    found, begun = dict[int, Caption](), time.perf_counter()
    for key, event in captioner.client.serve(ReadyClips(asked), batch=batch):
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Finished) and isinstance(key, int):
            found[key] = event.caption
    return found, time.perf_counter() - begun


def row(
    ground: str,
    name: str,
    batch: int,
    captions: Mapping[int, Caption],
    plain: Mapping[int, Caption],
    seconds: float | None,
) -> GroundRow:
    """Return the figures of captions, beside plain decoding's of each clip alone."""
    total = Counter[str]()
    for one in captions.values():
        total.update({key: value for key, value in one.counters.items() if isinstance(value, int)})
    later = total["emitted"] - len(captions)  # the prefill gives each caption its first token
    return GroundRow(
        ground,
        name,
        batch,
        later / total["target_forwards"],
        total["draft_forwards"] / later,
        total["accepted"] / total["drafted"] if total["drafted"] else None,
        sum(one.token_ids == plain[key].token_ids for key, one in captions.items()),
        len(captions),
        None if seconds is None else total["emitted"] / seconds,
    )


def measure(ground: Ground, sizes: Sequence[int], *, counters: bool) -> list[GroundRow]:
    """Return the rows of a ground; the first of ``sizes`` must be 1, whose plain captions all others are held against.

    Turns are as long as the largest size, so that timed profiles see the same state of the machine.
    """
    captioners = {label: ground.loaded.captioner(label, ground.settings) for label in ground.timed}
    every, most = dict(enumerate(ground.clips)), max(sizes)
    turns = [dict([*every.items()][start : start + most]) for start in range(0, len(every), most)]
    rows, plain = list[GroundRow](), dict[int, Caption]()
    for size in sizes:
        found = {label: dict[int, Caption]() for label in ground.timed}
        spent = dict.fromkeys(ground.timed, 0.0)
        for captioner in captioners.values():
            captioner.client.setup.forget()
        for turn, clips in enumerate(turns):
            for label in rotate(ground.timed, turn):
                _note(ground, size, label)
                captions, seconds = caption(captioners[label], clips, size)
                found[label] |= captions
                spent[label] += seconds
        plain = plain or found[ground.timed[0]]
        for label, captions in found.items():
            rows.append(row(ground.name, label, size, captions, plain, None if counters else spent[label]))
        for label in ground.counted:
            _note(ground, size, label)
            captions, _ = caption(ground.loaded.captioner(label, ground.settings), turns[0], size)
            rows.append(row(ground.name, label, size, captions, plain, None))
    return rows


def _note(ground: Ground, size: int, label: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {ground.name}, {size} at once: {label}", file=sys.stderr, flush=True)


def markdown(rows: Sequence[GroundRow]) -> str:
    """Return a table for each ground; columns of speed only if something was timed."""
    timed = any(one.tokens_per_s is not None for one in rows)
    plain = {(one.ground, one.batch): one.tokens_per_s for one in rows if one.name == rows[0].name}
    heading = ["clips at once", "profile", "tokens a target pass", "draft passes a token", "accepted", "equal"]
    parts = []
    for ground in dict.fromkeys(one.ground for one in rows):
        lines = []
        for one in (one for one in rows if one.ground == ground):
            share = "-" if one.accepted is None else f"{one.accepted:.0%}"
            numbers = [f"{one.tokens_per_target_pass:.2f}", f"{one.draft_passes_per_token:.2f}", share]
            line, base = (
                [str(one.batch), f"`{one.name}`", *numbers, f"{one.equal}/{one.clips}"],
                plain[ground, one.batch],
            )
            if timed and one.tokens_per_s is not None and base is not None:
                line += [f"{one.tokens_per_s:.1f}", f"{one.tokens_per_s / base:.2f}x"]
            lines.append([*line, *["-"] * (timed * 2 + len(heading) - len(line))])
        head = [*heading, *(["tokens/s", "speed-up"] if timed else [])]
        parts.append(f"### Ground: {ground}\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def real_ground(count: int, tokens: int, head: str | None, after: int = 0) -> Ground:
    """Return the target with real language and ``count`` subjects ``after`` others; ``head`` is timed too."""
    loaded = LoadedModels(ModelSource(target=str(build()), draft=head, dtype="float32"))
    if head is not None and loaded.named_head is None:
        raise VidspecError(f"--head {head}: is no head", hint=f"folders of {' and '.join(HEAD_PROFILES)} heads are")
    timed = (*CANDIDATES, *VARIANTS, *HEAD_PROFILES.get(loaded.named_head or "", ()))
    prompts = [PROMPT.format(subject=one) for one in subjects(after + count)[after:]]
    settings = {"video.frames": 2, "generate.max_new_tokens": tokens}
    clips = tuple((str(shipped()[0]), prompt) for prompt in prompts)
    return Ground("real", loaded, timed, (*other_profiles(timed), *TREES), settings, clips)


def built_in_ground(clips: Sequence[str]) -> Ground:
    """Return the target of the Qwen2.5-VL pair by itself; its captions are as long as they are."""
    loaded = LoadedModels(ModelSource(target=str(embedded_folder("embedded-qwen", "target")), dtype="float32"))
    settings = {"video.frames": 8}
    return Ground("built-in", loaded, CANDIDATES, (), settings, tuple((clip, None) for clip in clips))


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="*", default=[*map(str, shipped())], help="clips of the built-in target")
    parser.add_argument("--grounds", default="real,built-in", help="default: real,built-in")
    parser.add_argument("--subjects", type=int, default=16, help="captions on real language (default: 16)")
    parser.add_argument("--after", type=int, default=0, help="of others that a head learned from (default: 0)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each of them (default: 64)")
    parser.add_argument("--batch", default="1,8", help="clips at once, 1 first, separated by commas (default: 1,8)")
    parser.add_argument("--head", metavar="DIR", help="a head of the target with real language")
    parser.add_argument("--counters", action="store_true", help="no figures that depend on time")
    parser.add_argument("--json", type=Path, help="write the rows")
    given = parser.parse_args(args)
    sizes = [int(size) for size in given.batch.split(",")]
    if sizes[0] != 1:
        parser.error("--batch: 1 must be first: its plain captions are those that all others are held against")
    rows = list[GroundRow]()
    for name in given.grounds.split(","):
        ground = (
            built_in_ground(given.clips)
            if name == "built-in"
            else real_ground(given.subjects, given.tokens, given.head, given.after)
        )
        rows += measure(ground, sizes, counters=given.counters)
        ground.loaded.close()
    print(markdown(rows))
    if given.json is not None:
        facts = machine(ground.loaded.where.device)
        given.json.write_text(json.dumps({"rows": [asdict(one) for one in rows], "machine": facts}), encoding="utf-8")
    if unequal := [f"{one.ground}: {one.name}" for one in rows if one.equal < one.clips]:
        raise VidspecError(f"other token ids than plain decoding: {', '.join(unequal)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
