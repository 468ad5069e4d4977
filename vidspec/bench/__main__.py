"""``python -m vidspec.bench``: profiles and peers on the sample clips; Markdown on stdout, everything to ``--json``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vidspec import profiles
from vidspec.bench.bandwidth import copy_bandwidth, weight_bytes
from vidspec.bench.interleaved import Contender, Row, machine, run, summary
from vidspec.bench.peers import PEERS, Peer
from vidspec.bench.position_table import biases, block, table
from vidspec.captioner import Captioner
from vidspec.decoding.workers.slot import DraftSlot
from vidspec.embedded.samples import shipped
from vidspec.errors import VidspecError
from vidspec.models import loading
from vidspec.registry import rules

DEFAULT = ("ar", "vanilla-sd", "sd-rand", "sd-uniform", "sd-attention")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m vidspec.bench", description=__doc__)
    parser.add_argument("clips", nargs="*", type=Path, help="video files; the shipped samples if none are named")
    parser.add_argument(
        "--profiles",
        default=",".join(DEFAULT),
        help="the first is the baseline; all: every lossless one",
    )
    parser.add_argument("--pair", default="embedded", choices=("embedded", "embedded-qwen"), help="a built-in pair")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--target", help="hub id or folder; the built-in pair if left out")
    parser.add_argument("--draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, help="CPU threads; as torch chooses if left out")
    parser.add_argument("--no-peers", action="store_true", help="leave out transformers' own generate")
    parser.add_argument(
        "--position-bias", action="store_true", help="also say where in the video and in its frames kept tokens lie"
    )
    parser.add_argument("--json", type=Path, help="write machine facts, rows and every record here")
    args = parser.parse_args()
    try:
        return _bench(args)
    except VidspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _bench(args: argparse.Namespace) -> int:
    if args.threads:
        torch.set_num_threads(args.threads)
    where = loading.placement(args.device, args.dtype)
    names = (
        (args.target, args.draft)
        if args.target
        else (str(loading.embedded_folder(args.pair, "target")), str(loading.embedded_folder(args.pair, "draft")))
    )
    target, draft = loading.load(names[0], where), loading.load(names[1], where)
    contenders: dict[str, Contender] = {}
    slots: dict[str, DraftSlot | None] = {}  # one draft process for each kind of draft serves all parallel profiles
    for name in _everything() if args.profiles == "all" else args.profiles.split(","):
        profile = profiles.load(name)
        alone = Captioner(
            profile, target, draft if profile.drafts_with_a_model else None, slot=slots.get(profile.draft.kind)
        )
        if profile.concurrent:
            slots[profile.draft.kind] = alone.slot
        contenders[name] = alone
    baseline = next(iter(contenders))
    if not args.no_peers:
        stock = loading.Placement(where.device, where.dtype, "sdpa")
        pair = loading.load(names[0], stock), loading.load(names[1], stock)
        for name in PEERS:
            contenders[name] = Peer(name, profiles.load("vanilla-sd"), *pair)
    clips = args.clips or shipped()
    records = run(contenders, clips, args.repeats, lambda text: print(text, file=sys.stderr, flush=True))
    rows = summary(records, baseline)
    facts = machine(where.device)
    bandwidth = copy_bandwidth(where.device)
    size = _pass_bytes(target)
    facts |= {"copy_GB_per_s": round(bandwidth / 1e9, 2), "target_pass_MB": round(size / 1e6, 2)}
    print(_markdown(rows, baseline, bandwidth / size))
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    bias: dict[str, Any] = {}
    if args.position_bias:
        found = biases(contenders, clips, lambda text: print(text, file=sys.stderr, flush=True))
        bias = {"position_bias": block(found)}
        print(f"\n{table(found)}")
    if args.json:
        data = {
            "machine": facts,
            "rows": [asdict(row) for row in rows],
            "records": [one.to_dict() for by_clip in records.values() for runs in by_clip.values() for one in runs],
            **bias,
        }
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for slot in slots.values():
        if slot is not None:
            slot.drop()
    return 0


def _everything() -> list[str]:
    """Every packaged lossless profile, plain decoding first."""
    names = [info.name for info in profiles.available() if info.source == "packaged"]
    lossless = [name for name in names if rules.get(profiles.load(name).accept.rule).lossless]
    return ["ar", *(name for name in lossless if name != "ar")]


def _pass_bytes(target: object) -> int:
    model = target.model  # type: ignore[attr-defined]
    return weight_bytes(model.model.language_model, model.lm_head)


def _markdown(rows: list[Row], baseline: str, limit: float) -> str:
    """The table; ``limit`` is how many plain passes a second the memory bandwidth allows."""

    def number(value: float | None, places: int = 2) -> str:
        return "-" if value is None else f"{value:.{places}f}"

    def ratio(values: tuple[float, float, float]) -> str:
        return f"{values[0]:.2f}x ({values[1]:.2f}-{values[2]:.2f})"

    lines = [
        f"| method | same tokens as {baseline} | tau | tokens / target pass | visual tokens kept | tokens/s | "
        "share of limit | first token | decode | speed model | end to end |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        passes = row.tokens_per_s / (row.tokens_per_target_pass or 1.0)
        share = f"{passes / limit:.0%}" if not row.name.startswith("generate-") else "-"
        kept = "-" if row.kept is None else f"{row.kept:.0%}"
        lines.append(
            f"| {row.name} | {row.equal}/{row.clips} | {number(row.tau)} | {number(row.tokens_per_target_pass)} | "
            f"{kept} | {row.tokens_per_s:.0f} | {share} | {ratio(row.first)} | {ratio(row.decode)} | "
            f"{number(row.model)} | {ratio(row.end_to_end)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
