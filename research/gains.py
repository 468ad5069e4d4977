"""Gains by user: measured with the built-in pairs, predicted for GPUs. A table of docs/research/measured.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from research.predicted import TOKENS, VISUAL, forecasts
from research.prediction.constants import PREFILL_USE, TOWER_FLOPS
from research.prediction.sheets import SHEETS, DataSheet
from research.sizes import MODELS, PER_FRAME
from vidspec.bench.tables import table
from vidspec.config.user_config import BUILT_IN_PROFILE, DEFAULT_PROFILE
from vidspec.models.memory_estimate import PROMPT

_QWEN, _LLAVA = "Qwen/Qwen2.5-VL-7B-Instruct", "llava-hf/llava-onevision-qwen2-7b-ov-hf"
#: Cards by memory, and targets of one clip: user, cards, model, target.
_SINGLE = (
    ("a card of 24 GB (RTX 4090), a clip", ("4090",), "Qwen2.5-VL 7B, its copy in few bits drafts", _QWEN),
    ("the same", ("4090",), "LLaVA-OneVision 7B, its 0.5B drafts", _LLAVA),
    ("80 GB (A100, H100), a clip", ("a100", "h100"), "Qwen2.5-VL 7B, its copy in few bits drafts", _QWEN),
    ("the same", ("a100", "h100"), "LLaVA-OneVision 7B, its 0.5B drafts", _LLAVA),
)
#: Folders: user, card, clips at once.
_FOLDERS = (("24 GB, a folder", "4090", 8), ("80 GB, a folder", "h100", 32))
#: Gains of the whole time are predicted at this length, at which prompts are short.
_SHORT = VISUAL[0]


def gains(single: Sequence[Mapping[str, Any]], folder: Mapping[str, Any], batch: int = 8) -> str:
    """Return the table: the default over plain decoding of one clip at a time.

    Args:
        single: results of the profiles over single clips, by machine.
        folder: results over a folder of clips.
        batch: clips at once in the folder.
    """
    rows = [_measured_clip(single), _measured_folder(folder, batch)]
    rows += [_predicted_clip(*one) for one in _SINGLE]
    rows += [_large_target()]
    rows += [_predicted_folder(*one) for one in _FOLDERS]
    return table(("you have", "models", "decoding", "end to end", "figure"), rows)


def _range(values: Sequence[float]) -> str:
    least, most = f"{min(values):.2f}x", f"{max(values):.2f}x"
    return least if least == most else f"{least} to {most}"


def default_profile(measured: Iterable[str]) -> str:
    """Return the default profile of the built-in pairs, or that of other models where the first was not measured."""
    return BUILT_IN_PROFILE if BUILT_IN_PROFILE in measured else DEFAULT_PROFILE


def _measured_clip(single: Sequence[Mapping[str, Any]]) -> list[str]:
    name = default_profile(row["name"] for row in single[0]["rows"])
    rows = [row for one in single for row in one["rows"] if row["name"] == name]
    ranges = (_range([row[key][0] for row in rows if row[key] is not None]) for key in ("decode", "end_to_end"))
    where = f"measured, {len(rows)} machine{'s' * (len(rows) > 1)}"
    return ["two CPU cores, a clip", "built-in Qwen2.5-VL pair", *ranges, where]


def _measured_folder(folder: Mapping[str, Any], batch: int) -> list[str]:
    rates = {(row["name"], row["batch"]): row["clips_per_s"] for row in folder["rows"]}
    plain = rates["ar", 1]
    batched = f"plain decoding of {batch} at once {rates['ar', batch] / plain:.2f}x"
    gain = f"{rates[default_profile(name for name, _ in rates), batch] / plain:.2f}x; {batched}"
    return ["two CPU cores, a folder", "the same", "", gain, "measured"]


def _predicted_clip(user: str, cards: Sequence[str], models: str, target: str) -> list[str]:
    found = forecasts([SHEETS[name] for name in cards], clips=(1,), target=target)
    #: A published head is the default only if it was downloaded.
    best = [
        max(one.gain for one in each.drafts if one.fits and one.draft and one.draft.kind != "eagle3") for each in found
    ]
    return [user, models, _range(best), "", "predicted"]


def _large_target() -> list[str]:
    """Return the row of a 32B on 80 GB: in bfloat16 long clips leave no room for a draft."""
    name = "Qwen/Qwen2.5-VL-32B-Instruct"
    found = forecasts([SHEETS["a100"], SHEETS["h100"]], clips=(1,), target=name)
    rates = [one.rounded.tokens_per_s / one.plain.tokens_per_s for one in found if one.rounded is not None]
    return ["80 GB, a clip", "Qwen2.5-VL 32B in four bits: other texts", _range(rates), "", "predicted"]


def read_seconds(name: str, card: DataSheet, visual: int) -> float:
    """Return the seconds from pixels to KV cache of one clip: the tower over all frames, and the prompt."""
    model, reached = MODELS[name], PREFILL_USE * card.flops
    tower = model.tower.flops * visual / PER_FRAME / min(reached, TOWER_FLOPS)
    return tower + model.language.prefill_flops(visual + PROMPT) / reached


def _predicted_folder(user: str, card: str, batch: int) -> list[str]:
    alone, many = forecasts([SHEETS[card]], clips=(1, batch), visual=(_SHORT,), target=_LLAVA)
    best = many.best
    assert best is not None and best.draft is not None
    read, ahead = (read_seconds(name, SHEETS[card], _SHORT) for name in (_LLAVA, best.draft.name))
    single = read + TOKENS / alone.plain.tokens_per_s
    plain = f"plain decoding of {batch} at once {single / (read + TOKENS / many.plain.tokens_per_s):.1f}x"
    gain = f"{single / (read + ahead + TOKENS / best.tokens_per_s):.1f}x; {plain}"
    return [user, "LLaVA-OneVision 7B, its 0.5B drafts", "", gain, "predicted"]
