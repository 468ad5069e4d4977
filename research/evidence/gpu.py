"""The page of what ran on a GPU, gpu.md on the site: from docs/research/measured/gpu.json and the lines in gpu/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

from research.gpu.results import read_last
from research.prediction.costs import ModelCost
from research.prediction.drafts import HEAD_LAUNCHES
from research.prediction.sheets import SHEETS
from research.random_heads import BLOCK_HEADS, DRAFTED
from research.sizes import SIZES
from vidspec.bench.tables import bullets, table
from vidspec.draft_length.window import chain_tokens
from vidspec.models.memory_estimate import PROMPT

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "research" / "measured" / "gpu"
#: Tokens of a text halfway through it.
_HALF = 128

Row: TypeAlias = dict[str, Any]

INTRO = """\
Lent H100s ran the engine for 25 minutes in all; the figures are of the last run, after the kernels were mended by what
profiles of the runs before showed. Weights are random, of Qwen2.5-VL-7B's shape in bfloat16, so that these are speeds
and no captions; the built-in pairs captioned real clips."""
ROUNDS = """\
The real loop, schedules and drafters; only the acceptance is forced: a drafted token is accepted with the given
probability. 2,000 entries of each clip's cache are noise. All passes were replayed as graphs. *Predicted before* is the
speed model as it stood before anything ran, *first run* what was measured then; *model now* has constants corrected by
the figures of the last run (`research/prediction/constants.py`), so that it is a fit and no test of the model. The
speed of block heads is not predicted."""
PASSES = """\
T_p(n): one pass over n rows of each clip; T_q: a token of a greedy chain of six. *graphs*: replayed; *kernel*: the same
kernels launched one by one from Python; *stock*: the modules of transformers under our engine. *Share of limit*: of the
measured copy rate, {rate:.2f} TB/s. A pass of one clip is {gain} times as fast replayed as launched; launched passes
vary with the host."""
FOLDER_ABOUT = """\
The built-in pair on {clips} clips: real captions in bfloat16, identical to plain decoding's on all of them. The target
has 9 million parameters and is bound by the host; the parallel schedules have their draft in a process of its own on
the same GPU, and lose there."""
TESTS = (
    "Attention and elementwise kernels against float64: 91 passed, 7 that are about the CPU were skipped.",
    "Products of few rows with int8 and int4 weights: 6 passed, and the 2 that compare their times.",
    "Replayed passes against the usual ones: 23 passed. Pixels against the CPU's: 35 passed, after the tolerance of "
    "bilinear resizing was widened: means of two bytes are often halves, which a GPU rounds to the even level.",
    "Vision towers in bfloat16 and float16 against the CPU's in float32: 8 passed; 2 of Qwen3-VL failed, since "
    "transformers 5.17 on that machine is older than what vidspec requires.",
    "Both built-in pairs: 11 passed, among them the tokens of plain decoding with chains, trees, `self-int4`, and "
    "pruned drafts. With block heads, EAGLE-3 heads and `sparrow`, in float32 and bfloat16, the tokens of all 4 clips "
    "were those of plain decoding.",
)
SHOWED = (
    "Products in bfloat16 read their weights at 2.2 to 2.9 TB/s of the data sheet's 3.35; together 14.1 GB in 5.4 ms, "
    "78% of it.",
    "`_product4`, the kernel of four-bit weights, takes 18.2 us a launch, 2.06 ms a pass: 1.93 TB/s; in the first run "
    "36 us. `_product8` takes 26.0 us: 2.4 TB/s of codes.",
    "`_part`, attention, takes 7 us a layer at one clip and 39 us at 16, of which reading the keys and values takes "
    "22; in the first run 26 and 66.",
    "The host takes 0.46 ms of a plain turn that kernels do not cover, and 2 to 5 ms of a round of 16 clips with a "
    "head.",
    "Launched one by one, a kernel takes about 16 us of this host, and took 38 us of that of the first run. This "
    "bounds models whose blocks are not replayed ([predicted.md](../predicted.md)).",
    "The vision tower takes 27 ms for 2,000 visual tokens, and took 80 ms in the first run, when products of its inner "
    "size 3,420 ran in unaligned kernels and norms, rotations and activations in many. It reaches 380 to 400 TFLOP/s, "
    "reading a prompt 450 to 550, of the data sheet's 989.",
)
#: Lines of rounds and files of results, each with what was not measured while it is missing.
UNMEASURED_DRAFTS = {
    "dspark": "Block heads with a Markov head (DSpark).",
    "selector": "Block heads with a selector.",
}
UNMEASURED_FILES = {
    "records": "A folder at a 7B's shape from decoded frames to records: whether the models wait for frames.",
    "train": "Training of a head at a 7B's shape.",
}
MISSING = (
    "Trees from one block; other sizes as targets (32B, 3B, 0.5B), stock blocks of hybrids and mixtures, towers of "
    "other families than Qwen2.5-VL.",
    "Speeds of `embedded-qwen` and of float32 over the folder, and of batches with drafts; real weights of a published "
    "model, whose acceptance is assumed.",
    "Other cards.",
)


def page(folder: Path = FOLDER) -> str:
    """Return the page from the results in a folder."""
    from research.gpu import folder as clips
    from research.gpu import sizes

    about = json.loads(folder.with_suffix(".json").read_text(encoding="utf-8"))
    parts: dict[str, list[Row]] = {name: read_last(folder / f"{name}.jsonl") for name in ("sizes", "rounds", "folder")}
    shown: dict[str, list[Row]] = {
        name: [row for row in rows if row["kind"] != "left out"] for name, rows in parts.items()
    }
    passes = {(row["way"], row["clips"], row["entries"]): row["one"] for row in shown["sizes"] if row["kind"] == "pass"}
    rate = next(row["bytes_per_s"] for row in shown["sizes"] if row["kind"] == "device")
    gains = sorted(passes["kernel", 1, count] / passes["graphs", 1, count] for count in (2_000, 25_000))
    count = max(row["clips"] for row in shown["folder"] if row["kind"] == "profiled")
    drafts = {row["draft"] for row in shown["rounds"] if row["kind"] == "rounds"}
    texts = [
        "# On a GPU",
        _filled(INTRO),
        _machine(about),
        "```console\n$ python -m research.gpu --sizes 7B --profile --minutes 6\n```",
        "## Rounds beside predictions",
        _filled(ROUNDS),
        _rounds(shown["rounds"], about["predicted_before"], about["first_run"]),
        _generate(shown["rounds"]),
        *_records(folder),
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
        bullets(
            [
                *(what for draft, what in UNMEASURED_DRAFTS.items() if draft not in drafts),
                *(what for name, what in UNMEASURED_FILES.items() if not (folder / f"{name}.jsonl").exists()),
                *MISSING,
            ]
        ),
    ]
    return "\n\n".join(text.strip() for text in texts) + "\n"


def _records(folder: Path) -> list[str]:
    """Return the sections of runs from frames to records and of training, where they were measured."""
    from research.gpu import records

    files = {"records": "## From decoded frames to records", "train": "## Training of a head"}
    found = {title: folder / f"{name}.jsonl" for name, title in files.items()}
    rows = {title: read_last(file) for title, file in found.items() if file.exists()}
    return [text for title, lines in rows.items() for text in (title, records.markdown(lines))]


def _filled(text: str) -> str:
    return fill(text.replace("\n", " "), 120, break_on_hyphens=False, break_long_words=False)


def _machine(about: Row) -> str:
    versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "triton", "transformers", "numpy"))
    return _filled(
        f"{about['card']}, {about['memory']}, driver {about['driver']}, CUDA {about['cuda']}; {versions}; commit "
        f"{about['commit']}; {about['date']}. The lines are in `docs/research/measured/gpu/`. This repeats them, and "
        "what was left out:"
    )


def predicted_rate(row: Row) -> float | None:
    """Return tokens per second of a line of rounds by the speed model, on an H100; None for block heads."""
    if row["draft"] in BLOCK_HEADS:
        return None
    target, card, entries = _cost(row["model"]), SHEETS["h100"], row["entries"] + PROMPT + _HALF
    clips, gamma = int(row["clips"]), int(row["gamma"])
    seconds: float = target.pass_seconds(card, clips, clips * (gamma + 1), entries) + target.host_seconds(clips)
    if row["draft"] != "none":
        draft = _draft_cost(row["draft"], row["model"], target)
        seconds += gamma * draft.pass_seconds(card, clips, clips, entries, chained=True) + draft.host_seconds(clips)
    return clips * chain_tokens(float(row["beta"]), gamma) / seconds


def _cost(name: str) -> ModelCost:
    """Return the cost of a size, or of one in few bits: ``32B in int4``."""
    name, _, weights = name.partition(" in ")
    size = SIZES[name]
    cost = ModelCost.of_decoder(size.read, size.layers, 2 * size.kv_per_token)
    return replace(cost, weights=weights) if weights else cost  # type: ignore[arg-type]


def _draft_cost(name: str, model: str, target: ModelCost) -> ModelCost:
    """Return the cost of a smaller model, of a copy of the target's weights, or of an EAGLE-3 head."""
    if name in SIZES:
        return _cost(name)
    if name != "eagle3":
        return replace(target, weights=name)  # type: ignore[arg-type]
    size = SIZES[model.partition(" in ")[0]]
    entries = 2 * size.kv_heads * size.width
    read = size.hidden * (2 * (size.hidden + entries) + size.hidden + 3 * size.inner + DRAFTED)
    return ModelCost(read, target.entry // size.layers, HEAD_LAUNCHES)


def _rounds(rows: Sequence[Row], *before: Sequence[Sequence[Any]]) -> str:
    """Return the table of rounds, with the predictions before and after, and the rates of the first run."""
    earlier = [{tuple(key): rate for *key, rate in rates} for rates in before]
    lines = []
    for row in rows:
        if row["kind"] == "rounds":
            key = row["draft"], row["clips"], row["beta"], row["gamma"]
            drafted = [f"{row['beta']:g}", str(row["gamma"])] if row["gamma"] else ["", ""]
            rates = [*(one.get(key) for one in earlier), row["tokens_per_s"], predicted_rate(row)]
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
    return table([*heads, "predicted before", "first run", "measured, tokens/s", "model now"], lines)


_DRAFTS: Mapping[str, str] = {
    "int4": "`self-int4`",
    "int8": "`self-int8`",
    "3B": "a 3B",
    "eagle3": "an EAGLE-3 head",
    "dflash": "a block head",
    "dspark": "a block head with a Markov head",
    "selector": "a block head with a selector",
}


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
