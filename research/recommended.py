"""Writes the table of default drafts and gains that ``vidspec models`` and the default draft look up.

``python -m research.recommended`` prints it, ``--write`` replaces ``vidspec/models/recommended.yaml``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
import yaml

from research.commands import run
from research.prediction.costs import predict
from research.prediction.drafts import cost_of_known, draft_candidates
from research.prediction.sheets import SHEETS
from vidspec.cli.printed import print_note
from vidspec.files import write_whole
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, known_pairs, listed_draft
from vidspec.models.memory_estimate import PROMPT
from vidspec.models.recommended import PLAINLY, TABLE, USABLE

_HEAD = """\
# The default draft of published targets by card, and its gain over plain decoding of one clip. Predicted from data
# sheets, the sizes of models and constants measured on one H100 (docs/research/measured/gpu.json); none of these models
# was run. Written by `python -m research.recommended --write`. `drafts` and `gains` have a value for each card, in the
# order of `cards`: the fastest draft that fits the card beside the target in 16 bits and a clip (plain: none gains;
# null: the target does not fit). `copies`: bytes of copies of the target. `heads` are not fetched by default.
"""
LOAD = MemoryWorkload(dtype="bfloat16")


def table_text() -> str:
    """Return the content of ``recommended.yaml``."""
    listed = dict.fromkeys(model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None)
    table = {
        "clip": {"frames": LOAD.frames, "size": list(LOAD.size), "new_tokens": LOAD.new_tokens},
        "cards": {key: {"name": sheet.name, "memory": int(sheet.memory)} for key, sheet in SHEETS.items()},
        "targets": {model.name: row for model in listed if (row := _target(model)) is not None},
    }
    return _HEAD + "\n".join(_lines(table, {"clip": 0, "targets": 2})) + "\n"


def _lines(table: Mapping[str, Any], levels: Mapping[str, int], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping; values of 1, or so many, further ``levels`` by key are blocks, others one line."""
    for key, value in table.items():
        name = yaml.safe_dump(key).splitlines()[0]
        if isinstance(value, dict) and (deep := levels.get(key, levels.get("", 1))):
            yield f"{indent}{name}:"
            yield from _lines(value, {"": deep - 1}, f"{indent}  ")
        else:
            flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
            yield f"{indent}{name}: {flow.splitlines()[0]}"


def _target(target: KnownModel) -> dict[str, Any] | None:
    """Return the row of a target; None if its size is not known, or without a choice.

    The default of a target whose blocks run kernel by kernel is its listed draft, since copies of it are not replayed.
    """
    cost, weights, draft = cost_of_known(target), target.weight_bytes("bfloat16"), listed_draft(target.name)
    if cost is None or weights is None or (cost.eager is not None and draft is None):
        return None
    siblings = [
        pair.draft for pair in known_pairs() if pair.draft and pair.target == target and pair.draft.name == draft
    ]
    entries = (LOAD.visual_tokens(target.family) or 0) + PROMPT + LOAD.new_tokens / 2
    candidates = draft_candidates(target.name, cost, siblings, LOAD, entries)
    heads = {one.name: one for one in candidates if one.kind == "eagle3"}
    held = weights + target.kv_bytes(LOAD)
    drafts, gains, of_heads = list[str | None](), list[float](), {name: list[float]() for name in heads}
    for card in SHEETS.values():
        plain, *found = predict(card, cost, candidates, entries=entries, held=held, free=USABLE * card.memory)
        fitting = [plain] * (cost.eager is None) + [one for one in found if one.name not in heads]
        fitting = [one for one in fitting if one.fits and (cost.eager is None or one.name == draft)]
        best = max(fitting, key=lambda one: one.gain, default=None)
        drafts.append(None if best is None else best.name if best.draft else PLAINLY)
        gains.append(1.0 if best is None else float(f"{best.gain:.3g}"))
        for one in found:
            if one.name in heads:
                of_heads[one.name].append(float(f"{one.gain:.3g}") if one.fits else 0.0)
    used = {one.name: one.bytes for one in candidates if one.kind in ("int8", "int4") and one.name in drafts}
    row: dict[str, Any] = {"drafts": drafts, "gains": gains, "copies": used}
    if heads:
        row["heads"] = {name: {"bytes": one.bytes, "gains": of_heads[name]} for name, one in heads.items()}
    return row


def command(
    write: Annotated[bool, typer.Option("--write", help="Replace vidspec/models/recommended.yaml.")] = False,
) -> int:
    """Print the default draft and its gain for all listed targets on all cards, as YAML. No model is run."""
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
