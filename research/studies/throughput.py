"""Compare throughput with an earlier version and the peers: ``python -m research.studies.throughput CLIP...``.

All contenders take turns over the same clips, each in its own process with one thread, float32 and 8 frames:
profiles of this checkout, ``generate`` of ``transformers`` on padded batches, with ``--earlier DIR`` profiles of an
earlier checkout, which is given the same weights, and with ``--vllm PYTHON`` (``make peers``) vLLM; all at every size
of ``--batch``. Prints Markdown; ``--json`` keeps all measurements.

``--equality`` instead: token ids of five profiles at batch 1, 4 and 16, the clips in three orders.
``--memory`` instead: resident memory over a run of 300 clips at batch 8, of the process and its children.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

from vidspec.bench.loaded import ModelSource
from vidspec.bench.memory import MemorySampler
from vidspec.bench.tables import table
from vidspec.bench.throughput import ContenderProcess, Throughput, ThroughputResult, markdown, measure, start_contenders
from vidspec.events.answering import JsonWorker
from vidspec.models.loading import embedded_folder

FRAMES = 8
PROFILES = "ar,vanilla-sd-auto,vanilla-sd,sd-adaptive-tree,hybrid"
EQUAL = "ar,vanilla-sd,sd-tree,specvlm-chain,parallelvlm"
#: Program that captions a folder in a checkout, with current or earlier names.
TIMED = ("vidspec/dataset/timed.py", "vidspec/batch/timed.py")

ABOUT = """\
{clips} clips of 8 frames, float32, one thread for each process, {repeats} turns, medians with the least and greatest.
Models are warm; a run is timed from the first file opened to the last record written. *Decoding alone* are tokens a
second from the moment in which the last of so many clips has its first token to the one in which a first of them ends.
Memory is resident, a process and its children, sampled in a warm-up over twice as many clips as the batch has."""


def asked_of(args: argparse.Namespace, clips: Sequence[Path], profiles: str, **more: object) -> Throughput:
    return Throughput(
        [str(clip.resolve()) for clip in clips],
        profiles.split(","),
        source=ModelSource(args.pair, device="cpu", dtype="float32"),
        frames=FRAMES,
        threads=1,
        **more,  # type: ignore[arg-type]
    )


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def throughput(args: argparse.Namespace) -> None:
    pythons = {"vllm": args.vllm} if args.vllm else {}
    earlier = [f"earlier {name}" for name in args.earlier_profiles.split(",")] if args.earlier else []
    asked = asked_of(
        args,
        args.clips,
        args.profiles,
        peers=["generate-batched", *pythons],
        batches=[int(size) for size in args.batch.split(",")],
        repeats=args.repeats,
        pythons=pythons,
    )

    def keep(outcome: ThroughputResult) -> None:
        if args.json:
            args.json.write_text(json.dumps(outcome.to_dict(), indent=1) + "\n", encoding="utf-8")

    left: dict[str, str] = {}
    with start_contenders(asked, say, left) as own, ExitStack() as stack:
        workers: dict[str, ContenderProcess] = dict(own)
        for name in earlier:
            say(f"loading {name}")
            worker = JsonWorker(name, *earlier_command(args.earlier, name.removeprefix("earlier "), asked), cwd="/")
            stack.callback(worker.close)
            worker.ready()
            workers[name] = worker
        outcome = measure(asked, workers, say, keep, left)
    keep(outcome)
    about = ABOUT.format(clips=len(args.clips), repeats=args.repeats)
    print(f"{about}\n\n### {args.pair}\n\n{markdown(outcome.rows, outcome.left)}\n\n{aims(outcome)}")


def earlier_command(checkout: Path, label: str, wanted: Throughput) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a profile in an earlier checkout with this one's weights, and its environment."""
    name = next((name for name in TIMED if (checkout / name).is_file()), None)
    if name is None:
        raise SystemExit(f"{checkout}: has none of {', '.join(TIMED)}")
    folder = embedded_folder(wanted.source.pair, "target").parent
    overrides = {key: value for key, value in wanted.overrides.items() if value is not None}
    overrides |= {"models.target": str(folder / "target"), "models.draft": str(folder / "draft")}
    del overrides["models.pair"]
    about = json.dumps({"label": label, "overrides": overrides})
    command = [sys.executable, "-m", name.removesuffix(".py").replace("/", "."), about]
    if name == TIMED[1]:  # the request's key for the function was "what"
        command = ["sh", "-c", 'sed -u \'s/^{"function"/{"what"/\' | "$@"', "sh", *command]
    return command, {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": str(wanted.threads)}


def aims(outcome: ThroughputResult) -> str:
    """Return the goals and results, by default of the best lossless profile at its best batch size."""
    rows = {(row.name, row.batch): row for row in outcome.rows}
    others = ("earlier ", "generate-batched", "vllm")
    own = [row for row in outcome.rows if not row.name.startswith(others) and row.plain is not None]
    best = max(own, key=lambda row: row.clips_per_s)

    def speedup(one: float | None, base: float | None) -> str:
        return f"{one / base:.2f}x" if one and base else "not measured"

    def over(prefix: str) -> str:
        theirs = max((r for r in outcome.rows if r.name.startswith(prefix)), key=lambda r: r.clips_per_s, default=None)
        if theirs is None:
            return "not measured"
        names = f"{best.name} at {best.batch} over {theirs.name} at {theirs.batch}"
        return f"{speedup(best.clips_per_s, theirs.clips_per_s)} ({names})"

    def alone(name: str, size: int) -> float | None:
        row = rows.get((name, size))
        return row.decode_tokens_per_s if row else None

    sizes = sorted({row.batch for row in own})
    drafting = {row.name for row in own if row.name != "ar"}
    fast = max(drafting, key=lambda name: alone(name, 8) or 0.0, default="ar")
    gains = {name: speedup(alone(name, 8), alone(name, 1)) for name in ("ar", fast)}
    ahead = ", ".join(speedup(alone(fast, size), alone("ar", size)) for size in sizes)
    aimed = [
        ("2.5x the clips/s of the earlier version's best profile", over("earlier ")),
        ("3x the clips/s of `generate` in batches", over("generate-batched")),
        ("2x the clips/s of vLLM's CPU build", over("vllm")),
        ("decoding alone at batch 8: `ar` 3.5x its batch 1", gains["ar"]),
        ("decoding alone at batch 8: the best lossless drafter 2.2x its batch 1", f"{gains[fast]} ({fast})"),
        (f"it stays ahead of `ar` at every size ({', '.join(map(str, sizes))})", ahead),
    ]
    return table(("aim", "measured"), aimed)


def equality(args: argparse.Namespace) -> None:
    """Compare token ids at every size and in three orders with batch 1 in the given order and plain decoding."""
    asked = asked_of(args, args.clips, args.equal_profiles, batches=[1])
    given = list(asked.clips)
    orders = {"as given": given, "backwards": given[::-1], "shuffled": random.Random(0).sample(given, len(given))}
    sizes, lines = (1, 4, 16), []
    plain: dict[str, Any] = {}
    for label in asked.profiles:  # one at a time: nothing is timed
        alone = asked_of(args, args.clips, label, batches=[1])
        with start_contenders(alone, say) as workers:
            (worker,) = workers.values()
            reference = worker.ask("run", clips=given, batch=1)["ids"]
            plain = plain or (reference if label == "ar" else worker.ask("plain", clips=given))
            same = [f"{sum(reference.get(clip) == plain[clip] for clip in given)}/{len(given)}"]
            for size in sizes[1:]:
                for order, clips in orders.items():
                    say(f"{label} at batch {size}, {order}")
                    ids = worker.ask("run", clips=clips, batch=size)["ids"]
                    same.append(f"{sum(ids.get(clip) == reference.get(clip) for clip in given)}/{len(given)}")
        lines.append((label, *same))
    heads = [f"batch {size}, {order}" for size in sizes[1:] for order in orders]
    print(f"### {args.pair}: the same token ids\n")
    print(table(("profile", "batch 1 and plain decoding", *heads), lines))


def memory(args: argparse.Namespace) -> None:
    """Measure resident memory over a long run."""
    with tempfile.TemporaryDirectory() as place:
        many = []
        for number in range(args.count):  # other names of the same clips
            source = args.clips[number % len(args.clips)]
            many.append(Path(place) / f"{number:04d}-{source.name}")
            try:
                os.link(source, many[-1])
            except OSError:
                shutil.copy(source, many[-1])
        size = max(int(one) for one in args.batch.split(",") if int(one) <= 8)
        asked = asked_of(args, many, args.memory_profile, batches=[size])
        with start_contenders(asked, say) as workers:
            (worker,) = workers.values()
            with MemorySampler(worker.pid, 0.2) as watch:
                told = worker.ask("run", clips=list(asked.clips), batch=size)
    held = [one / 2**20 for _, one in watch.samples]

    def part(low: float, high: float) -> str:
        some = held[int(low * len(held)) : max(int(low * len(held)) + 1, int(high * len(held)))]
        return f"{median(some):.0f} MiB ({min(some):.0f}-{max(some):.0f})"

    print(f"### {args.pair}: memory of {args.memory_profile} at batch {size} over {len(many)} clips\n")
    cells = [("first tenth", part(0.0, 0.1)), ("second tenth", part(0.1, 0.2)), ("middle tenth", part(0.45, 0.55))]
    cells += [("last tenth", part(0.9, 1.0)), ("peak", f"{max(held):.0f} MiB"), ("mean", f"{fmean(held):.0f} MiB")]
    print(table(("resident, with children", "median (least-greatest)"), cells))
    print(f"\n{len(told['ids'])} captioned, {len(told['errors'])} failed, {told['seconds']:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--pair", default="embedded-qwen")
    parser.add_argument("--profiles", default=PROFILES)
    parser.add_argument("--batch", default="1,8,16")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--earlier-profiles", default="ar,vanilla-sd")
    parser.add_argument("--vllm", metavar="PYTHON", help="the interpreter of an environment with vLLM")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--equality", action="store_true")
    parser.add_argument("--equal-profiles", default=EQUAL)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--memory-profile", default="vanilla-sd")
    parser.add_argument("--count", type=int, default=300, help="clips of --memory")
    args = parser.parse_args()
    began = time.perf_counter()
    (equality if args.equality else memory if args.memory else throughput)(args)
    say(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
