"""Measure adaptive draft windows: ``python -m research.studies.draft_windows [--part useless|fixed|trees]``.

*useless*: plain decoding, plain decoding again (the control), the adaptive profiles with a draft whose weights have
noise of 1.5 times their standard deviation, and a block head with such weights. Windows begin as in a new process.
*fixed*: the adaptive window and fixed ones with the pair's own draft. One thread; contenders share the models, but for
the block head's, and take turns on every clip. *trees*: chains and trees from one block of heads with some noise in
their weights; only counts.

Prints Markdown: seconds a token of a reference over those of each contender, on the same clip in the same turn, the
median of turns for each clip. Wants a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

from vidspec import video
from vidspec.bench.tables import table
from vidspec.bench.turns import rotate
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.draft_length.blocks import BlockController
from vidspec.draft_length.costs import Lane, PassCosts, TokenPrices
from vidspec.draft_length.pace import WindowController
from vidspec.embedded.samples import shipped
from vidspec.events.record import Caption
from vidspec.models.loading import embedded_folder

#: Noise of the useless draft, in standard deviations of each tensor.
NOISE = 1.5
ADAPTIVE, BLOCK = ("vanilla-sd-auto", "sd-adaptive-tree"), "sparrow"
#: Noise of block heads, in the same measure.
WORSE = (0.0, 0.8, 1.0, 1.2)
#: Prices of a row, in tokens.
ROWS = (0.02, 0.05)
#: Fixed windows compared with the adaptive one.
GAMMAS = (4, 6, 8, 12, 16, 20, 24)


def add_noise(folder: Path, out: Path, sigma: float = NOISE, seed: int = 0) -> None:
    """Copy a checkpoint, with normal noise of ``sigma`` standard deviations added to each of its tensors."""
    shutil.copytree(folder, out)
    generator = torch.Generator().manual_seed(seed)
    for file in out.glob("*.safetensors"):
        tensors = load_file(file)
        for name, weight in tensors.items():
            if weight.is_floating_point() and weight.numel() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                tensors[name] = (weight.float() + sigma * weight.float().std() * noise).to(weight.dtype)
        file.chmod(0o644)
        save_file(tensors, file, metadata={"format": "pt"})


def settings(pair: str, draft: Path | None) -> dict[str, object]:
    """Return overrides of a pair's profiles, with another draft if given."""
    common: dict[str, object] = {"models.threads": 1, "video.frames": 8}
    if draft is None:
        return {**common, "models.pair": pair}
    target = str(embedded_folder(pair, "target"))
    return {**common, "models.pair": None, "models.target": target, "models.draft": str(draft)}


@contextmanager
def opened(names: Mapping[str, str], changes: Mapping[str, object]) -> Iterator[dict[str, Captioner]]:
    """Return captioners by name, which share the models; a name is a profile, with ``+gamma=N`` for a fixed window."""
    with Captioner.from_profile("vanilla-sd-auto", overrides=changes) as first:
        made = {}
        for name, wanted in names.items():
            profile, _, gamma = wanted.partition("+gamma=")
            plain = {key: value for key, value in changes.items() if profile != "ar" or key != "models.draft"}
            loaded = profiles.load(profile, {**plain, **({"draft.gamma": int(gamma)} if gamma else {})})
            draft = None if profile == "ar" or first.client.setup.draft is None else first.client.setup.draft.model
            made[name] = Captioner(loaded, first.client.setup.target.model, draft)
        yield made


def measure(
    captioners: Mapping[str, Captioner], clips: Sequence[Path], repeats: int
) -> dict[str, dict[Path, list[Caption]]]:
    """Return records of all turns by name and clip; the warm-up is neither kept nor known to windows."""
    frames = {clip: video.read(clip, frames=8) for clip in clips}
    found: dict[str, dict[Path, list[Caption]]] = {name: {clip: [] for clip in clips} for name in captioners}
    for captioner in captioners.values():
        captioner.caption(clips[0], clip=frames[clips[0]])
        if captioner.client.setup.pace is not None:
            captioner.client.setup.costs = costs = PassCosts()
            captioner.client.setup.pace = WindowController(costs)
    gc.collect()
    gc.freeze()
    for turn in range(repeats):
        for at, clip in enumerate(clips):
            for name in rotate(list(captioners), turn + at):
                gc.collect()
                found[name][clip].append(captioners[name].caption(clip, clip=frames[clip]))
    return found


def _pace(record: Caption) -> float:
    """Return the decoding seconds per token after the first."""
    return record.timings["decode"] / (len(record.token_ids) - 1)


def ratios(found: Mapping[Path, Sequence[Caption]], reference: Mapping[Path, Sequence[Caption]]) -> list[float]:
    """Return, by clip, the median over turns of the reference's seconds per token over a contender's."""
    return [
        median(_pace(a) / _pace(b) for a, b in zip(reference[clip], records, strict=True))
        for clip, records in found.items()
    ]


def useless(pair: str, clips: Sequence[Path], repeats: int) -> str:
    """Return the table of a draft and a block head of little use."""
    names = {"ar": "ar", "ar again": "ar", **{name: name for name in ADAPTIVE}}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for role in ("draft", "block_head"):
            add_noise(embedded_folder(pair, role), Path(folder) / role)
        captioners = stack.enter_context(opened(names, settings(pair, Path(folder) / "draft")))
        head = Captioner.from_profile(BLOCK, overrides=settings(pair, Path(folder) / "block_head"))
        found = measure({**captioners, BLOCK: stack.enter_context(head)}, clips, repeats)
    lines = []
    for name, records in found.items():
        every = [one for some in records.values() for one in some]
        rounds = sum(one.counters["target_forwards"] for one in every)
        drafted = sum(len(one.counters["accepted_lengths"]) for one in every)
        same = all(one.token_ids == found["ar"][clip][0].token_ids for clip in clips for one in records[clip])
        by_clip = ratios(records, found["ar"])
        cells = f"{median(by_clip):.3f}x", f"{min(by_clip):.3f}x", f"{rounds - drafted} of {rounds}"
        lines.append((f"`{name}`", *cells, "yes" if same else "NO"))
    heads = ("method", "decoding, median of clips", "worst clip", "rounds without a draft", "same tokens")
    return table(heads, lines)


def fixed(pair: str, clips: Sequence[Path], repeats: int) -> str:
    """Return the table of fixed windows and the adaptive one."""
    names = {"auto": "vanilla-sd-auto", **{f"{gamma}": f"vanilla-sd+gamma={gamma}" for gamma in GAMMAS}}
    with opened(names, settings(pair, None)) as captioners:
        found = measure(captioners, clips, repeats)
    lines = []
    for name, records in found.items():
        every = [one for some in records.values() for one in some]
        windows = [one.schedule["gamma"] or 0 for one in every] if name == "auto" else [int(name)]
        tokens = sum(len(one.token_ids) - 1 for one in every)
        rate = tokens / sum(one.timings["decode"] for one in every)
        tau = sum(one.counters["accepted"] for one in every) / sum(one.counters["target_forwards"] for one in every)
        by_clip = ratios(records, found["auto"])
        lines.append((name, f"{median(windows):g}", f"{tau:.2f}", f"{rate:.0f}", f"{median(by_clip):.3f}x"))
    heads = ("window", "last window, median", "accepted per pass", "tokens/s", "over auto, median of clips")
    return table(heads, lines)


class FixedPrices(TokenPrices):
    """Prices that follow no measured time: ``row`` tokens for a drafted row, 1 for a plain round, none for a block."""

    def __init__(self, costs: PassCosts, row: float) -> None:
        super().__init__(costs, fade=0.98)
        self.row = row

    def row_prices(self, rows: int) -> list[float]:
        return [self.row * count for count in range(rows + 1)]

    def of_pass(self, lane: Lane, rows: int) -> float:
        return float(lane == "target")


def trees(pair: str, clips: Sequence[Path], repeats: int) -> str:
    """Return the table of chains and trees from one block, by the noise of the head and the price of a row."""
    lines = []
    for sigma, row in product(WORSE, ROWS):
        counts: dict[str, tuple[float, float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            add_noise(embedded_folder(pair, "block_head"), Path(folder) / "head", sigma)
            for topology in ("chain", "adaptive"):
                changes = {**settings(pair, Path(folder) / "head"), "draft.topology": topology}
                with Captioner.from_profile(BLOCK, overrides=changes) as captioner:
                    setup = captioner.client.setup
                    setup.pace = pace = WindowController(setup.costs)
                    pace.prices = FixedPrices(setup.costs, row)  # also counts the rounds of a rest
                    pace.blocks = BlockController(pace.prices)
                    every = [captioner.caption(clip) for clip in clips for _ in range(repeats)]
                passes = sum(one.counters["target_forwards"] for one in every)
                tokens, drafted = (
                    sum(len(one.token_ids) - 1 for one in every),
                    sum(one.counters["drafted"] for one in every),
                )
                counts[topology] = tokens / passes, drafted / passes
        (chain, first), (tree, second) = counts["chain"], counts["adaptive"]
        lines.append((f"{sigma:g}", f"{row:g}", *(f"{one:.2f}" for one in (chain, first, tree, second))))
    heads = ("noise", "price of a row", "chain: tokens per pass", "drafted", "tree: tokens per pass", "drafted")
    return table(heads, lines)


def main(args: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="*", type=Path, help="the clips that come with the package if none are named")
    parser.add_argument("--part", choices=("useless", "fixed", "trees"), action="append")
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(args)
    tables = {"useless": useless, "fixed": fixed, "trees": trees}
    for part in asked.part or tables:
        print(tables[part](asked.pair, asked.clips or shipped(), asked.repeats), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
