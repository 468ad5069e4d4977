"""Compare the engine with an earlier one: ``python -m research.studies.engine CLIP.mp4 ... [--earlier DIR]``.

All contenders take turns on every clip, each in its own process with one thread, float32 and 8 frames: plain decoding
and ``vanilla-sd`` of this checkout, and of an ``--earlier`` checkout of vidspec; ``vidspec bench`` compares with other
programs. Then the pass times of both checkouts, also in turns, and of this one with eight sequences per pass. Prints
Markdown; ``--json`` keeps the raw times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FRAMES = 8

#: Runs under any version of vidspec: answers one JSON line for each one it reads.
WORKER = r'''
import json, sys, time
import torch
torch.set_num_threads(1)
from vidspec import Captioner
from vidspec.bench.passes import measure_passes
try:
    from vidspec.bench.passes import prefill_pruned
except ImportError:  # before 0.3.0
    from vidspec.bench.passes import prefilled_at as prefill_pruned
from vidspec.events.trace import Trace
from vidspec.engine.forward import Engine
pair = sys.argv[1]
fixed = {"models.pair": pair, "models.threads": 1, "video.frames": int(sys.argv[2]), "models.dtype": "float32"}
captioners, known = {}, {}
def captioner(name):
    if name not in captioners:
        captioners[name] = Captioner.from_profile(name, overrides=fixed)
    return captioners[name]
def caption(profile, clip):
    record = captioner(profile).caption(clip)
    return record.token_ids, record.timings["decode"] / (len(record.token_ids) - 1)
def prompts(clip):
    if clip not in known:
        one = captioner("vanilla-sd")
        wanted = one.profile.generate
        read = one.read(clip)
        sides = []
        for engine in (one.target, one.draft):
            model = engine.model
            encode = getattr(model, 'encode', None) or model.see  # before 0.3.0
            prefix = model.prefix(encode(model.preprocess(read)), wanted.prompt, wanted.system)
            sides.append((engine, prefix))
        known[clip] = sides
    return known[clip]
def passes(rows, clip):
    (target, whole), (draft, own) = prompts(clip)
    sides = [(engine, prefill_pruned(engine, prefix, 0.0)[0]) for engine, prefix in ((target, whole), (draft, own))]
    found = measure_passes(sides[0], {0.0: sides[1]}, rows=rows, repeats=9)
    return {"target": dict(found.target), "draft": found.draft[0.0], "prompt": whole.length}
def together(rows, clip):
    """Seconds of a pass over eight sequences and over one, the median of many, in turns."""
    from statistics import median
    from vidspec.engine.rows import Rows
    found = {}
    for name, (engine, prefix) in zip(("target", "draft"), prompts(clip)):
        spans = [engine.prefill(prefix, rows + 1).span for _ in range(8)]
        times = {1: [], 8: []}
        for turn in range(41):
            for count in (1, 8):
                begun = time.perf_counter()
                engine.run([Rows(span, [0] * rows) for span in spans[:count]])
                seconds = time.perf_counter() - begun
                for span in spans[:count]:
                    span.rollback(prefix.length)
                if turn:
                    times[count].append(seconds)
        found[name] = {count: median(each) for count, each in times.items()}
    return found
print("ready", flush=True)
for line in sys.stdin:
    kind, about, clip = json.loads(line)
    print(json.dumps(globals()[kind](about, clip)), flush=True)
'''


class Worker:
    """A process that answers each JSON line with one."""

    def __init__(self, python: str, code: str, *args: str, path: Path | None = None) -> None:
        given = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        given.pop("PYTHONPATH", None)
        if path is not None:
            given["PYTHONPATH"] = str(path)
        self.process = subprocess.Popen(
            [python, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given, cwd="/"
        )
        if self._line() != "ready":
            raise SystemExit(f"{python} did not start")

    def _line(self) -> str:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and not line.startswith(("ready", "[", "{")):
            pass
        if not line:
            raise SystemExit("a worker ended; its words are above")
        return line.strip()

    def ask(self, question: Any) -> Any:
        assert self.process.stdin is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self._line())


def spread(values: list[float], places: int = 2, unit: str = "") -> str:
    return f"{median(values):.{places}f}{unit} ({min(values):.{places}f}-{max(values):.{places}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--pair", default="embedded-qwen")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clips = [str(clip.resolve()) for clip in args.clips]
    here = Worker(sys.executable, WORKER, args.pair, str(FRAMES), path=ROOT)
    versions = {"": here}
    contenders = {"ar": (here, "caption", "ar"), "vanilla-sd": (here, "caption", "vanilla-sd")}
    if args.earlier:
        old = versions["earlier "] = Worker(sys.executable, WORKER, args.pair, str(FRAMES), path=args.earlier)
        contenders |= {f"earlier {name}": (old, "caption", name) for name in ("ar", "vanilla-sd")}
    times: dict[str, dict[str, list[float]]] = {}
    texts: dict[str, dict[str, list[int]]] = {}
    for turn in range(args.repeats + 1):
        for clip in clips:
            for name, (worker, kind, about) in contenders.items():
                ids, seconds = worker.ask([kind, about, clip])
                texts.setdefault(name, {})[clip] = ids
                if turn:
                    times.setdefault(name, {}).setdefault(clip, []).append(seconds)
    each = {name: {clip: median(some) for clip, some in by.items()} for name, by in times.items()}
    print(f"{args.pair}, {len(clips)} clips of {FRAMES} frames, {args.repeats} turns, one thread, float32\n")
    print("| decoding | ms a token | speed beside ar | same tokens |\n|---|---|---|---|")
    for name, by in sorted(each.items(), key=lambda one: median(one[1].values())):
        ratios = [each["ar"][clip] / by[clip] for clip in clips]
        same = f"{sum(texts[name][clip] == texts['ar'][clip] for clip in clips)}/{len(clips)}"
        print(f"| {name} | {spread([1e3 * one for one in by.values()])} | {spread(ratios, unit='x')} | {same} |")
    rows = [1, 2, 3, 4, 6, 11, 26]
    found: dict[str, list[Any]] = {name: [] for name in versions}
    for _ in range(args.repeats):
        for name, worker in versions.items():
            found[name].append(worker.ask(["passes", rows, clips[0]]))
    print(
        f"\n| ms of a pass over {found[''][0]['prompt']} tokens | " + " | ".join(f"T_p({n})" for n in rows) + " | T_q |"
    )
    print("|---" * (len(rows) + 2) + "|")
    for name, some in found.items():
        cells = [median(1e3 * one["target"][str(n)] for one in some) for n in rows]
        cells.append(median(1e3 * one["draft"] for one in some))
        print(f"| {name or 'this version'} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    together = {n: [here.ask(["together", n, clips[0]]) for _ in range(args.repeats)] for n in (1, 6)}
    print("\n| eight sequences in one pass | target | draft |\n|---|---|---|")
    for n, some in together.items():
        gains = {role: [8 * one[role]["1"] / one[role]["8"] for one in some] for role in ("target", "draft")}
        both = " | ".join(spread(gains[role], unit="x") for role in gains)
        print(f"| {n} row{'s' if n > 1 else ''} each: tokens/s beside one sequence | {both} |")
    if args.json:
        args.json.write_text(json.dumps({"times": times, "passes": found, "together": together}, indent=1) + "\n")


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - began:.0f} s", file=sys.stderr)
