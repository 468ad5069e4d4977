"""Other programs beside vidspec with the same weights: a table of docs/research/measured.md, what is ahead first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from research.gains import default_profile
from vidspec.bench.tables import table

#: The programs by their names in results.
PROGRAMS = {
    "openvino": "OpenVINO GenAI",
    "openvino-int8-cache": "OpenVINO GenAI, cache in eight bits",
    "vllm": "vLLM",
    "vllm-ngram": "vLLM with prompt lookup",
}
#: Ratios of rows of single clips, and rates of rows of folders.
_SINGLE = {"decode": "decoding", "first": "first token", "end_to_end": "end to end"}
_FOLDER = {"clips_per_s": "clips a second", "decode_tokens_per_s": "decoding alone"}


class Compared(NamedTuple):
    """A program's speed over plain decoding and over the default here; None where the latter was not measured."""

    what: str
    program: str
    plain: float
    default: float | None


def _clips(single: Mapping[str, Any]) -> Iterator[Compared]:
    rows = {row["name"]: row for row in single["rows"]}
    default = rows[default_profile(rows)]
    for name, program in PROGRAMS.items():
        for key, what in _SINGLE.items() if name in rows else ():
            plain = rows[name][key][0]
            yield Compared(f"one clip: {what}", program, plain, plain / default[key][0])


def _folder(folder: Mapping[str, Any]) -> Iterator[Compared]:
    rows = {(row["name"], row["batch"]): row for row in folder["rows"]}
    default = default_profile(name for name, _ in rows)
    for name, batch in rows:
        for key, what in _FOLDER.items() if name in PROGRAMS else ():
            rate, plain, best = (rows[one, batch].get(key) for one in (name, "ar", default))
            if rate and plain:
                yield Compared(f"{batch} at once: {what}", PROGRAMS[name], rate / plain, rate / best if best else None)


def beside(single: Mapping[str, Any], folder: Mapping[str, Any]) -> str:
    """Return the table from results of single clips and of a folder with one pair, the largest leads first; "" if no
    other program was measured."""
    found = sorted([*_clips(single), *_folder(folder)], key=lambda one: -one.plain)
    lines = [
        (one.program, one.what, f"{one.plain:.2f}x", "-" if one.default is None else f"{one.default:.2f}x")
        for one in found
    ]
    heads = ("program", "what", "over plain decoding here", "over the default here")
    return table(heads, lines) if lines else ""
