"""Measures folders of clips beside 0.1.0 and the peers: ``python -m research.studies.throughput CLIP.mp4 ...``.

All contenders take turns over the same clips, each in a process of its own with one thread, float32 and 8 frames:
profiles of this checkout at batch 1, 4, 8 and 16, ``generate`` of ``transformers`` on padded batches, with
``--earlier DIR`` the profiles of an earlier checkout, one clip after the other, and with ``--vllm PYTHON`` (``make
peers``) vLLM. Prints Markdown for ``docs/measured.md``; ``--json`` keeps all that was measured.

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

from vidspec.bench.loaded import Source
from vidspec.bench.memory import Watch
from vidspec.bench.tables import table
from vidspec.bench.throughput import Contender, Outcome, Throughput, contenders, markdown, measure
from vidspec.events.answering import Worker

ROOT = Path(__file__).resolve().parents[2]
FRAMES = 8
PROFILES = "ar,vanilla-sd,auto,specvlm-chain"
EQUAL = "ar,vanilla-sd,sd-tree,specvlm-chain,parallelvlm"
#: Peers at fewer sizes: what is between can be told from these.
SIZES = {"generate-batched": (1, 16), "vllm": (1, 16)}

#: Runs under 0.1.0, one clip after the other by its own ``vidspec.dataset``; readers are warm before the clock as ours.
EARLIER = r"""
import importlib.util, json, sys, tempfile, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("answering", sys.argv[1])
answering = importlib.util.module_from_spec(spec)
spec.loader.exec_module(answering)
from vidspec import Captioner
from vidspec.dataset import bulk, local
from vidspec.dataset.outputs import OneFile
from vidspec.dataset.plan import plan
from vidspec.dataset.records import Settings
from vidspec.dataset.work import Entry, How
Reader = local.Reader
def prepare():
    captioner = Captioner.from_profile(sys.argv[2], overrides=json.loads(sys.argv[3]))
    profile = captioner.profile
    video = {key: getattr(profile.video, key) for key in ("frames", "fps", "max_pixels", "decoder")}
    class Heard(bulk.Listener):
        def __init__(self):
            self.ids, self.errors = {}, {}
        def outcome(self, outcome, tally):
            if outcome.error is None:
                self.ids[outcome.caption.path] = outcome.caption.token_ids
            else:
                self.errors[outcome.caption.path] = str(outcome.error)
    def run(clips, batch):
        captioner.forget()
        how = How(video=video, prompt=profile.generate.prompt, total=len(clips))
        warm = Reader(None)
        warm.read(clips[0], None, None, video)
        local.Reader = lambda timeout: warm
        heard, entries, settings = Heard(), [Entry(clip) for clip in clips], Settings(profile.model_dump(), how)
        with tempfile.TemporaryDirectory() as folder:
            output = OneFile(Path(folder) / "captions.jsonl", "jsonl", several=True)
            began = time.perf_counter()
            engine = lambda tasks: local.outcomes(captioner, tasks, how)
            tally = bulk.Tally(total=len(entries))
            bulk.execute(plan(entries, output, settings), engine, output, settings, tally, [heard])
            output.close(entries, complete=True)
            seconds = time.perf_counter() - began
        return {"seconds": seconds, "ids": heard.ids, "errors": heard.errors, "rows": None, "device_bytes": None}
    def decode(clips, batch):
        made = [captioner.caption(clip) for clip in clips]
        seconds = sum(one.timings["decode"] for one in made)
        return {"tokens": sum(len(one.token_ids) - 1 for one in made), "seconds": seconds}
    return {"run": run, "decode": decode}
answering.answer(prepare)
"""

ABOUT = """\
`python -m research.studies.throughput CLIPS --pair PAIR --earlier CHECKOUT_OF_0.1.0`, for the Qwen pair with vLLM too
(`--vllm`): drawn clips (`python -m research.draw --count 32 --seed 20000000`), float32, 8 frames, one thread for each
process, {repeats} turns, medians with the least and greatest.
Models are warm; a run is timed from the first file opened to the last record written. *Decoding alone* are tokens a
second from the moment in which the last of so many clips has its first token to the one in which a first of them ends.
Memory is resident, a process and its children, sampled in a warm-up over twice as many clips as the batch has."""


def asked_of(args: argparse.Namespace, clips: Sequence[Path], profiles: str, **more: object) -> Throughput:
    return Throughput(
        [str(clip.resolve()) for clip in clips],
        profiles.split(","),
        source=Source(args.pair, device="cpu", dtype="float32"),
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
        sizes={**SIZES, **dict.fromkeys(earlier, (1,))},
    )

    def keep(outcome: Outcome) -> None:
        if args.json:
            args.json.write_text(json.dumps(outcome.to_dict(), indent=1) + "\n", encoding="utf-8")

    left: dict[str, str] = {}
    with contenders(asked, say, left) as own, ExitStack() as stack:
        workers: dict[str, Contender] = dict(own)
        for name in earlier:
            say(f"loading {name}")
            about = [name.removeprefix("earlier "), json.dumps(asked.overrides)]
            answering = str(ROOT / "vidspec" / "telling" / "answering.py")
            env = {"PYTHONPATH": str(args.earlier.resolve()), "OMP_NUM_THREADS": "1"}
            worker = Worker(name, [sys.executable, "-c", EARLIER, answering, *about], env, cwd="/")
            stack.callback(worker.close)
            worker.ready()
            workers[name] = worker
        outcome = measure(asked, workers, say, keep, left)
    keep(outcome)
    table = markdown(outcome.rows, outcome.left)
    print(f"{ABOUT.format(repeats=args.repeats)}\n\n### {args.pair}\n\n{table}\n\n{aims(outcome)}")


def aims(outcome: Outcome) -> str:
    """What was aimed at, of the best lossless profile at its best size unless said otherwise."""
    rows = {(row.name, row.batch): row for row in outcome.rows}
    others = ("earlier ", "generate-batched", "vllm")
    own = [row for row in outcome.rows if not row.name.startswith(others) and row.plain is not None]
    best = max(own, key=lambda row: row.clips_per_s)

    def over(prefix: str) -> str:
        theirs = max((r for r in outcome.rows if r.name.startswith(prefix)), key=lambda r: r.clips_per_s, default=None)
        if theirs is None:
            return "not measured"
        ratio = best.clips_per_s / theirs.clips_per_s
        return f"{ratio:.2f}x ({best.name} at {best.batch} over {theirs.name} at {theirs.batch})"

    def alone(name: str, size: int) -> float:
        row = rows.get((name, size))
        return (row.decode_tokens_per_s or 0.0) if row else 0.0

    sizes = sorted({row.batch for row in own})
    drafting = {row.name for row in own if row.name != "ar"}
    fast = max(drafting, key=lambda name: alone(name, 8), default="ar")
    gains = {name: alone(name, 8) / alone(name, 1) if alone(name, 1) else 0.0 for name in ("ar", fast)}
    ahead = ", ".join(f"{alone(fast, size) / alone('ar', size):.2f}x" for size in sizes if alone("ar", size))
    aimed = [
        ("2.5x the clips/s of 0.1.0's best lossless profile", over("earlier ")),
        ("3x the clips/s of `generate` in batches", over("generate-batched")),
        ("2x the clips/s of vLLM's CPU build", over("vllm")),
        ("decoding alone at batch 8: `ar` 3.5x its batch 1", f"{gains['ar']:.2f}x"),
        ("decoding alone at batch 8: the best lossless drafter 2.2x its batch 1", f"{gains[fast]:.2f}x ({fast})"),
        (f"it stays ahead of `ar` at every size ({', '.join(map(str, sizes))})", ahead),
    ]
    return table(("aim", "measured"), aimed)


def equality(args: argparse.Namespace) -> None:
    """Token ids at every size and in three orders, against batch 1 in the given order and plain decoding."""
    asked = asked_of(args, args.clips, args.equal_profiles, batches=[1])
    given = list(asked.clips)
    orders = {"as given": given, "backwards": given[::-1], "shuffled": random.Random(0).sample(given, len(given))}
    sizes, lines = (1, 4, 16), []
    plain: dict[str, Any] = {}
    for label in asked.profiles:  # one at a time: nothing is timed
        alone = asked_of(args, args.clips, label, batches=[1])
        with contenders(alone, say) as workers:
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
    """Resident memory over a long run."""
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
        with contenders(asked, say) as workers:
            (worker,) = workers.values()
            with Watch(worker.pid, 0.2) as watch:
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
    parser.add_argument("--batch", default="1,4,8,16")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--earlier-profiles", default="auto,vanilla-sd")
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
