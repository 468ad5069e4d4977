"""Writes the table of predicted speeds that ``vidspec models`` and the default draft look up.

``python -m research.recommended`` prints it, ``--write`` replaces ``vidspec/models/recommended.yaml``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
import yaml

from research.commands import run
from research.prediction.costs import ACCEPTANCE, predict
from research.prediction.drafts import cost_of_known, draft_candidates
from research.prediction.sheets import SHEETS
from vidspec.cli.printed import print_note
from vidspec.files import write_whole
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, known_pairs
from vidspec.models.memory_estimate import PROMPT
from vidspec.models.recommended import TABLE, SpeedPrediction

__all__ = ["main", "table_text"]

_HEAD = """\
# Predicted speeds of published targets on cards, from data sheets, the sizes of models and constants measured on one
# H100 (docs/research/measured/gpu.md); none of these models was run.
# Written by `python -m research.recommended --write`. `plain`, `rates` and `windows` have a value for each card, in the
# order of `cards`: tokens per second of one such clip, and tokens drafted at a time (0: the draft does not pay).
# `rounded` is the target in four bits, which `saves` bytes. `launches`: kernels of a pass that runs kernel by kernel.
# `states`: bytes of recurrent states.
"""
LOAD = MemoryWorkload(dtype="bfloat16")


def table_text() -> str:
    """Return the content of ``recommended.yaml``."""
    listed = dict.fromkeys(model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None)
    table = {
        "clip": {"frames": LOAD.frames, "size": list(LOAD.size), "new_tokens": LOAD.new_tokens},
        "cards": {key: {"name": sheet.name, "memory": int(sheet.memory)} for key, sheet in SHEETS.items()},
        "acceptance": {name: assumed._asdict() for name, assumed in ACCEPTANCE.items()},
        "targets": {model.name: row for model in listed if (row := _target(model)) is not None},
    }
    return _HEAD + "\n".join(_lines(table, {"clip": 0, "targets": 3})) + "\n"


def _lines(table: Mapping[str, Any], levels: Mapping[str, int], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping; values of 1, or so many, further ``levels`` by key are blocks, others one line."""
    for key, value in table.items():
        name = yaml.safe_dump(key).splitlines()[0]
        if isinstance(value, dict) and (deep := levels.get(key, levels.get("", 1))):
            yield f"{indent}{name}:"
            yield from _lines(value, {"": deep - 1, "rounded": 0}, f"{indent}  ")
        else:
            flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
            yield f"{indent}{name}: {flow.splitlines()[0]}"


def _target(target: KnownModel) -> dict[str, Any] | None:
    """Return the row of a target; None if its size is not known."""
    if (cost := cost_of_known(target)) is None:
        return None
    siblings = {
        pair.draft.name: pair.draft for pair in known_pairs() if pair.draft is not None and pair.target == target
    }
    entries = (LOAD.visual_tokens(target.family) or 0) + PROMPT + LOAD.new_tokens / 2
    drafts = draft_candidates(target.name, cost, siblings.values(), LOAD, entries)
    rounded = replace(cost, weights="int4")
    by_card = [predict(sheet, cost, drafts, entries=entries) for sheet in SHEETS.values()]
    plain, *drafted = zip(*by_card, strict=True)  # by draft
    row: dict[str, Any] = {"plain": _rates(plain)}
    if cost.eager is not None:
        row["launches"] = cost.launches
    if cost.states:
        row["states"] = cost.states
    row["rounded"] = {
        "saves": round(cost.weight_bytes - rounded.weight_bytes),
        "rates": _rates(predict(sheet, rounded, (), entries=entries)[0] for sheet in SHEETS.values()),
    }
    row["drafts"] = {
        draft.name: {
            "kind": draft.kind,
            "acceptance": next(name for name, assumed in ACCEPTANCE.items() if assumed == draft.assumed),
            # Keys and values of a model are counted for the clip at hand.
            "bytes": draft.bytes - (siblings[draft.name].kv_bytes(LOAD) if draft.name in siblings else 0),
            "windows": [one.gamma for one in found],
            "rates": _rates(found),
        }
        for draft, found in zip(drafts, drafted, strict=True)
    }
    return row


def _rates(found: Iterable[SpeedPrediction]) -> list[float]:
    """Return tokens per second to four digits: more than a prediction resolves."""
    return [float(f"{one.tokens_per_s:.4g}") for one in found]


def command(
    write: Annotated[bool, typer.Option("--write", help="Replace vidspec/models/recommended.yaml.")] = False,
) -> int:
    """Print the predicted speeds of all listed targets and their drafts on all cards, as YAML. No model is run."""
    text = table_text()
    if write:
        write_whole(TABLE, text)
        print_note(f"wrote {TABLE}")
    else:
        print(text, end="")
    return 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(command, "recommended", args)


if __name__ == "__main__":
    sys.exit(main())
