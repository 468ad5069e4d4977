"""The page of what ran on a GPU: docs/research/measured/gpu.md, from the lines of ``research.gpu`` beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

from research.gpu.results import read_last
from research.prediction.costs import ModelCost
from research.prediction.sheets import SHEETS
from research.sizes import SIZES
from vidspec.bench.tables import bullets, table
from vidspec.draft_length.speed import chain_tokens
from vidspec.models.memory_estimate import PROMPT

__all__ = ["FOLDER", "page", "predicted_rate"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "research" / "measured" / "gpu"
#: Tokens of a text halfway through it.
_HALF = 128

Row: TypeAlias = dict[str, Any]

INTRO = """\
One lent H100 ran the engine for ten minutes, for the first time. Everything here was measured before the kernels of
attention and of four-bit products were mended by what the profile below showed; that mend has not run on a GPU yet.
Weights are random, of Qwen2.5-VL-7B's shape in bfloat16, so that these are speeds and no captions; the built-in pairs
captioned real clips."""
ROUNDS = """\
The real loop, schedules and drafters; only the acceptance is forced: a drafted token is accepted with the given
probability. 2,000 entries of each clip's cache are noise. All passes were replayed as graphs. *Predicted before* is the
speed model as it stood, *model now* the same with constants corrected by these figures
(`research/prediction/constants.py`), so that it is a fit and no test of the model."""
PASSES = """\
T_p(n): one pass over n rows of each clip; T_q: a token of a greedy chain of six. *graphs*: replayed; *kernel*: the same
kernels launched one by one from Python; *eager*: torch's attention in place of ours. *Share of limit*: of the measured
copy rate, {rate:.2f} TB/s. A pass of one clip is {gain} times as fast replayed as launched; launched passes vary with
the host."""
FOLDER_ABOUT = """\
The built-in pair on {clips} clips: real captions in bfloat16, identical to plain decoding's on all of them. The target
has 9 million parameters and is bound by the host; the parallel schedules have their draft in a process of its own on
the same GPU, and lose there."""
TESTS = (
    "Attention and elementwise kernels against float64: 67 passed, 7 were skipped.",
    "Products of few rows with int8 and int4 weights: 6 passed, and the 2 that compare their times.",
    "Replayed passes against the usual ones: 21 passed. 2 failed, draws from more tokens than are sorted on the "
    "device, which a replay alone cannot decide; the test now draws from fewer, and passed.",
    "Both built-in pairs: 15 passed, among them the tokens of plain decoding with chains, trees, `self-int4`, pruned "
    "and parallel drafts. 1 failed: a chat template's process took longer than its limit on the loaded machine.",
)
SHOWED = (
    "Products in bfloat16 read their weights at 2.2 to 2.9 TB/s of the data sheet's 3.35; together 14.1 GB in 5.4 ms, "
    "78% of it.",
    "`_product4`, the kernel of four-bit weights, took 36 us a launch, 4.05 ms a pass: 0.95 TB/s. It loaded scales and "
    "zeros without a pipeline. So a draft in four bits is slower than one in eight, whose passes, by "
    "the times of rounds, take about 4.2 ms and read 2.1 TB/s of codes.",
    "`_part`, attention, took 26 us a layer at one clip where chains take 7: a pass of one row is padded to 8, and "
    "idle rows ran programs of their own (8 rows with 64 splits are 2,048 programs, of which 32 had work). At 16 clips "
    "it took 66 us; reading the keys and values takes 22.",
    "The host takes 0.77 ms of a plain turn that kernels do not cover, most of them to launch two graphs.",
    "Launched one by one, a kernel takes about 38 us of the host; 5 were assumed. This bounds models whose blocks are "
    "not replayed ([predicted.md](../predicted.md#hybrids-and-mixtures-of-experts)).",
    "The vision tower reaches 128 to 133 TFLOP/s, 13% of the data sheet; 50% were assumed.",
)
MISSING = (
    "A head (EAGLE-3) and a block head: the script's head had fewer embeddings than the target has ids, and every run "
    "ended with a device-side assert. `research.gpu rounds` has both with all ids; neither has run on a GPU.",
    "Reading a prompt, and the stock modules of transformers under our engine: no time was left. `generate` above "
    "reads its own prompt.",
    "Other sizes as targets (32B, 3B, 0.5B), batches over a folder, one row against six, `embedded-qwen` and float32 "
    "over the folder; real weights of a published model, whose acceptance is assumed.",
    "Other cards.",
)


def page(folder: Path = FOLDER) -> str:
    """Return the page from the results in a folder."""
    from research.gpu import folder as clips
    from research.gpu import sizes

    about = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    parts: dict[str, list[Row]] = {name: read_last(folder / f"{name}.jsonl") for name in ("sizes", "rounds", "folder")}
    shown: dict[str, list[Row]] = {
        name: [row for row in rows if row["kind"] != "left out"] for name, rows in parts.items()
    }
    passes = {(row["way"], row["clips"], row["entries"]): row["one"] for row in shown["sizes"] if row["kind"] == "pass"}
    rate = next(row["bytes_per_s"] for row in shown["sizes"] if row["kind"] == "device")
    gains = sorted(passes["kernel", 1, count] / passes["graphs", 1, count] for count in (2_000, 25_000))
    count = max(row["clips"] for row in shown["folder"] if row["kind"] == "profiled")
    texts = [
        "# On a GPU",
        _filled(INTRO),
        _machine(about),
        "```console\n$ python -m research.gpu --sizes 7B --profile --minutes 6\n```",
        "## Rounds beside predictions",
        _filled(ROUNDS),
        _rounds(shown["rounds"], about["predicted_before"]),
        _generate(shown["rounds"]),
        "## Passes",
        _filled(PASSES.format(rate=rate / 1e12, gain=f"{gains[0]:.1f} to {gains[1]:.1f}")),
        sizes.markdown(shown["sizes"]),
        "## Real captions of the built-in pair",
        _filled(FOLDER_ABOUT.format(clips=count)),
        clips.markdown(shown["folder"]),
        "## Tests",
        bullets(TESTS),
        "## What the profile showed",
        bullets(SHOWED),
        "Kernels of six turns of the loop, in ms of one turn; with a draft every other turn is one of its chains.",
        _kernels(shown["rounds"]),
        "## What was not measured",
        bullets(MISSING),
    ]
    return "\n\n".join(text.strip() for text in texts) + "\n"


def _filled(text: str) -> str:
    return fill(text.replace("\n", " "), 120, break_on_hyphens=False, break_long_words=False)


def _machine(about: Row) -> str:
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "triton", "transformers", "numpy"))
    return _filled(
        f"{about['card']}, {about['memory']}, driver {about['driver']}, CUDA {about['cuda']}; {versions}; commit "
        f"{about['commit']}; {about['date']}. The lines are in `docs/research/measured/gpu/`. Rounds and `generate` "
        "were run by the script that became `research.gpu rounds`; this repeats them, and what was left out:"
    )


def predicted_rate(row: Row) -> float:
    """Return tokens per second of a line of rounds by the speed model, on an H100."""
    target, card, entries = _cost(row["model"]), SHEETS["h100"], row["entries"] + PROMPT + _HALF
    clips, gamma = int(row["clips"]), int(row["gamma"])
    seconds: float = target.pass_seconds(card, clips, clips * (gamma + 1), entries) + target.host_seconds(clips)
    if row["draft"] != "none":
        draft = _cost(row["draft"]) if row["draft"] in SIZES else replace(target, weights=row["draft"])
        seconds += gamma * draft.pass_seconds(card, clips, clips, entries, chained=True) + draft.host_seconds(clips)
    return clips * chain_tokens(float(row["beta"]), gamma) / seconds


def _cost(name: str) -> ModelCost:
    size = SIZES[name]
    return ModelCost.of_decoder(size.read, size.layers, 2 * size.kv_per_token)


def _rounds(rows: Sequence[Row], before: Sequence[Sequence[Any]]) -> str:
    """Return the table of rounds, with the predictions before and after the measurement."""
    earlier = {tuple(key): rate for *key, rate in before}
    lines = []
    for row in rows:
        if row["kind"] == "rounds":
            key = row["draft"], row["clips"], row["beta"], row["gamma"]
            drafted = [f"{row['beta']:g}", str(row["gamma"])] if row["gamma"] else ["", ""]
            rates = [earlier.get(key), row["tokens_per_s"], predicted_rate(row)]
            lines.append(
                [
                    _DRAFTS.get(row["draft"], str(row["draft"])),
                    str(row["clips"]),
                    *drafted,
                    f"{1e3 * row['seconds']:.2f} ms",
                    f"{row['tokens_per_round']:.2f}",
                    *("" if rate is None else f"{rate:.0f}" for rate in rates),
                ]
            )
    heads = ["draft", "clips", "acceptance", "gamma", "a round", "tokens / round"]
    return table([*heads, "predicted before", "measured, tokens/s", "model now"], lines)


_DRAFTS: Mapping[str, str] = {"int4": "`self-int4`", "int8": "`self-int8`", "3B": "a 3B"}


def _generate(rows: Sequence[Row]) -> str:
    (one,) = [row for row in rows if row["kind"] == "generated"]
    plain = next(row for row in rows if row["kind"] == "rounds" and (row["draft"], row["clips"]) == ("none", 1))
    return _filled(
        f"`generate` of transformers on the same shape takes {1e3 * one['token']:.0f} ms a token after "
        f"{one['entries']:,} tokens of text, {1 / one['token']:.1f} tokens/s; plain decoding here is "
        f"{plain['tokens_per_s'] * one['token']:.1f} times as fast. Its prompt and first token take "
        f"{1e3 * one['first']:.0f} ms."
    )


def _kernels(rows: Sequence[Row]) -> str:
    """Return the kernels that took longest, by configuration."""
    lines = []
    for row in rows:
        if row["kind"] == "kernels":
            draft = f"{row['draft']}, gamma {row['gamma']}" if row["gamma"] else row["draft"]
            what, turns = f"{draft}, {row['clips']} clip{'s' * (row['clips'] > 1)}", row["turns"]
            for name, calls, seconds in row["top"][:5]:
                each = f"{1e3 * seconds / turns:.2f}", f"{1e6 * seconds / calls:.1f} us"
                lines.append([what, f"`{name}`", f"{calls / turns:g}", *each, f"{seconds / row['busy']:.0%}"])
                what = ""
    return table(["configuration", "kernel", "launches a turn", "ms a turn", "each", "share of kernels"], lines)
