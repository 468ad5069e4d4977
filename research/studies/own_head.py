"""Heads of one's own: ``python -m research.studies.own_head costs | drawn | brief | again | tuned | language``.

``costs`` prints what training takes for published shapes, computed. The others train with ``vidspec.training`` on
captions that a target wrote, measure on clips never trained on, and print a row of a table for each, which ``--out``
collects as JSON lines; the same command continues. ``drawn``: the built-in target without its shipped head, over
numbers of clips. ``brief``: the same with a prompt of another style. ``again``: heads of ``drawn``, or of the files of
captions that ``--captions`` names, measured once more. ``tuned``: the same target with noise in its weights, begun with
the shipped head and anew. ``language``: the target of :mod:`research.realtext`, over numbers of captions. Heads stay in
``--folder``; ``research.studies.real_language --head`` measures them beside lookup. Speeds count on a machine that does
nothing else; ``--counters`` leaves them out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import vidspec
from research.realtext import PROMPT, build, subjects
from research.world.samples import draw
from vidspec.bench.tables import table
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError, VidspecError
from vidspec.models.loading import embedded_folder
from vidspec.runs.store.places import read_captions
from vidspec.training.captions import learnable_captions
from vidspec.training.evaluation import HeadEvaluation, MeasuredClip
from vidspec.training.states import hold_out
from vidspec.training.steps import StepsProgress
from vidspec.training.train import Trained, measure_head, training_bytes

#: Numbers of clips in the table, and the seed of drawn clips that no shipped head saw.
CLIPS, SEED = (100, 300, 1000, 3000), 75
#: Published shapes: hidden, MLP, heads, KV heads, width of a head, blocks, vocabulary, tied embedding.
SHAPES = {
    "0.5B (LLaVA-OneVision-0.5B)": (896, 4864, 14, 2, 64, 24, 151936, True),
    "7B (Qwen2.5-VL-7B)": (3584, 18944, 28, 4, 128, 28, 152064, False),
    "32B (Qwen2.5-VL-32B)": (5120, 27648, 40, 8, 128, 64, 152064, False),
}
#: Text rows of a clip and tokens of its caption, for the size of states.
ROWS, TOKENS, BLOCKS, TAPS, RANK = 200, 150, 2, 5, 256


@dataclass(frozen=True)
class OwnHeadRow:
    """One head: what it learned from, and what it gains.

    Speeds are None where only acceptance counts, minutes and tokens a round where nothing was trained. ``curve`` has
    the minutes and the tokens a round of each validation.
    """

    study: str
    clips: int
    minutes: float | None
    tau_held_out: float | None
    tau: float
    decode: float | None
    end_to_end: float | None
    equal: int
    measured: int
    curve: tuple[tuple[float, float], ...] = ()


def costs() -> str:
    """Return the computed costs of training heads for targets of published shapes."""
    lines = []
    for name, (hidden, inner, heads, kv_heads, width, _, words, tied) in SHAPES.items():
        rank = min(RANK, hidden // 4)
        block = 2 * hidden * width * (heads + kv_heads) + 3 * hidden * inner
        numbers = BLOCKS * block + TAPS * hidden * hidden + 2 * words * rank
        for gpu in (False, True) if tied else (True,):
            shared = words * hidden * (1 if tied else 2) * (2 if gpu else 4)
            memory = training_bytes(numbers, shared, words, hidden, heads, ROWS + TOKENS, gpu=gpu)
            states = 2 * (ROWS * TAPS + TOKENS) * hidden
            lines.append(
                [
                    name,
                    "GPU" if gpu else "CPU",
                    f"{numbers / 1e6:.0f} million",
                    f"{memory / 2**30:.1f} GiB",
                    f"{states / 1e6:.1f} MB",
                    f"{1000 * states / 1e9:.1f} GB",
                    f"{16 * numbers / 1e9:.1f} GB",
                ]
            )
    return table(["target", "on", "weights", "memory", "states a clip", "of 1,000 clips", "to continue from"], lines)


def drawn_captions(folder: Path, count: int, target: str, *style: str) -> Path:
    """Return the captions of ``count`` drawn clips by a target, made as far as they are missing."""
    clips = folder / f"clips-{count}"
    if len(list(clips.glob("*.mp4"))) < count:
        shutil.rmtree(clips, ignore_errors=True)  # of a study that was stopped
        draw(clips, count, SEED)
    file = folder / f"captions-{count}{''.join(f'-{one}' for one in style)}.jsonl"
    more: dict[str, Any] = {"style": style[0]} if style else {}
    for _ in vidspec.run(str(clips), target=target, profile="ar", output=str(file), **more):
        pass
    return file


def language_captions(folder: Path, count: int, target: str) -> Path:
    """Return captions of as many subjects by the target with real language."""
    manifest, file, clip = folder / f"subjects-{count}.jsonl", folder / f"language-{count}.jsonl", str(shipped()[0])
    rows = [{"path": clip, "id": row, "subject": text} for row, text in enumerate(subjects(count))]
    manifest.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for _ in vidspec.run(
        str(manifest), target=target, profile="ar", prompt=PROMPT, max_new_tokens=160, output=str(file)
    ):
        pass
    return file


def noisy(folder: Path, source: Path, noise: float = 0.02) -> Path:
    """Return a copy of a target whose weights have changed, as a fine-tune's: noise of this part of their deviation."""
    import torch
    from safetensors.torch import load_file, save_file

    if not (folder / "complete").exists():
        shutil.copytree(source, folder, dirs_exist_ok=True)
        rng = torch.Generator().manual_seed(1)
        for file in folder.glob("*.safetensors"):
            held = load_file(file)
            for name, tensor in held.items():
                if tensor.is_floating_point() and tensor.dim() > 1:
                    drawn = torch.randn(tensor.shape, generator=rng) * tensor.float().std() * noise
                    held[name] = (tensor.float() + drawn).to(tensor.dtype)
            save_file(held, file, metadata={"format": "pt"})
        (folder / "complete").touch()
    return folder


def trained(
    study: str, captions: Path, minutes: float, *, begin: str | None = None, counters: bool = False
) -> OwnHeadRow:
    """Train a head on captions, and return its row."""
    best, seconds, curve = 0.0, 0.0, list[tuple[float, float]]()
    out = head_of(captions, begin)
    shutil.rmtree(out, ignore_errors=True)  # of an earlier run of the study
    for event in vidspec.train(captions, minutes=minutes, begin=begin, out=out):
        if isinstance(event, StepsProgress):
            best, seconds = event.best or 0.0, event.seconds
            if event.validated and event.tau is not None:
                curve.append((round(event.seconds / 60, 2), round(event.tau, 3)))
        if isinstance(event, Trained):
            ended = event
    row = row_of(study, captions, ended.measured, seconds / 60, best, counters=counters)
    return replace(row, curve=tuple(curve))


def measured_again(captions: Path, *, counters: bool) -> Iterator[OwnHeadRow]:
    """Measure the heads of captions once more on those that they were not trained on, and yield their rows.

    Raises:
        UsageError: there are none beside the captions.
    """
    heads = [head for head in (head_of(captions), head_of(captions, "begun")) if head.is_dir()]
    if not heads:
        raise UsageError(f"{captions}: there is no {head_of(captions)}", hint="train it first")
    found = learnable_captions(read_captions([captions]), None, [captions])
    for head in heads:
        measured = [*measure_head(head, found.profile, hold_out(found.clips)[1], [])]
        yield row_of(f"{head.name}, again", captions, measured, None, None, counters=counters)


def head_of(captions: Path, begin: str | None = None) -> Path:
    """Return the folder of the head of captions, begun with another head or anew."""
    return captions.with_name(f"head-{captions.stem}{'' if begin is None else '-from'}")


def row_of(
    study: str,
    captions: Path,
    measured: Sequence[MeasuredClip],
    minutes: float | None,
    held_out: float | None,
    *,
    counters: bool,
) -> OwnHeadRow:
    """Return the row of a head from the clips that it was measured on."""
    evaluation = HeadEvaluation.of(measured)
    equal = sum(one.drafted.token_ids == one.plain.token_ids for one in measured)
    decode, whole = (None, None) if counters else (evaluation.decode, evaluation.end_to_end)
    count = sum(1 for _ in captions.open(encoding="utf-8"))
    return OwnHeadRow(study, count, minutes, held_out, evaluation.tau, decode, whole, equal, evaluation.clips)


def rows(args: argparse.Namespace) -> Iterator[OwnHeadRow]:
    """Yield the rows of a study."""
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    if args.study == "language":
        target = str(build())
        for count in args.clips:
            yield trained("language", language_captions(folder, count, target), args.minutes, counters=args.counters)
        return
    shipped_target = embedded_folder("embedded-qwen", "target")
    if args.study == "again":
        for file in args.captions or [folder / f"captions-{count}.jsonl" for count in args.clips]:
            yield from measured_again(file, counters=args.counters)
        return
    if args.study == "drawn":
        for count in args.clips:
            file = drawn_captions(folder, count, str(shipped_target))
            yield trained("drawn", file, args.minutes, counters=args.counters)
        return
    if args.study == "brief":
        brief = drawn_captions(folder, args.clips[0], str(shipped_target), "brief")
        yield trained("drawn, --style brief", brief, args.minutes, counters=args.counters)
        return
    target = str(noisy(folder / "tuned", shipped_target))
    head = str(embedded_folder("embedded-qwen", "block_head"))
    for count in args.clips:
        file = drawn_captions(folder / "of-tuned", count, target)
        for begin, name in ((None, "tuned, anew"), (head, "tuned, --from the shipped head")):
            yield trained(name, file, args.minutes, begin=begin, counters=args.counters)


def markdown(found: Sequence[OwnHeadRow]) -> str:
    """Return the table."""
    lines = [
        [
            one.study,
            str(one.clips),
            "-" if one.minutes is None else f"{one.minutes:.0f}",
            "-" if one.tau_held_out is None else f"{one.tau_held_out:.2f}",
            f"{one.tau:.2f}",
            *("-" if speed is None else f"{speed:.2f}x" for speed in (one.decode, one.end_to_end)),
            f"{one.equal}/{one.measured}",
        ]
        for one in found
    ]
    heading = ["study", "captions", "minutes", "tokens a round", "tokens a pass", "decoding", "end to end", "equal"]
    return table(heading, lines)


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("costs", "drawn", "brief", "again", "tuned", "language"))
    parser.add_argument("--folder", type=Path, default=Path(".cache/own-head"), help="of clips and captions")
    parser.add_argument("--clips", type=lambda text: tuple(map(int, text.split(","))), default=CLIPS)
    parser.add_argument("--captions", type=Path, nargs="+", help="of heads to measure again, in place of --clips")
    parser.add_argument("--minutes", type=float, default=15.0, help="of training, each")
    parser.add_argument("--counters", action="store_true", help="leave speeds out")
    parser.add_argument("--out", type=Path, help="append each row as a line of JSON")
    given = parser.parse_args(args)
    if given.study == "costs":
        print(costs())
        return 0
    found: list[OwnHeadRow] = []
    try:
        for one in rows(given):
            found.append(one)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    except VidspecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
