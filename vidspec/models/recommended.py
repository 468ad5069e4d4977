"""Predicted speeds of published targets and their drafts on NVIDIA cards: a table, nothing of it measured. No torch.

``python -m research.recommended`` computes ``recommended.yaml`` from data sheets and the sizes of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vidspec.errors import UsageError
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, known_model
from vidspec.registry import nearest

__all__ = [
    "TABLE",
    "USABLE",
    "AssumedAcceptance",
    "Card",
    "DraftKind",
    "PredictedDraft",
    "SpeedPrediction",
    "TargetPredictions",
    "best_prediction",
    "card_of_device",
    "cards",
    "named_card",
    "predictions",
    "predictions_of_published",
    "workload",
]

#: The file of the table.
TABLE = Path(__file__).with_suffix(".yaml")
#: Share of a card's memory that a process can allocate: all but that of the driver and of kernels.
USABLE = 0.95
DraftKind = Literal["model", "int8", "int4", "eagle3"]


class Card(NamedTuple):
    """A card whose speeds are predicted: its key in the table, its maker's name, and the bytes of its memory."""

    key: str
    name: str
    memory: float

    @property
    def usable(self) -> float:
        """Bytes that a process can allocate."""
        return USABLE * self.memory


class AssumedAcceptance(NamedTuple):
    """Assumed probability that a drafted token is accepted, and its source."""

    beta: float
    source: str


@dataclass(frozen=True)
class PredictedDraft:
    """A draft that exists for a target.

    Attributes:
        name: hub id of a model or head; of a quantised copy of the target the name of its profile.
        kind: what drafts.
        assumed: its acceptance.
        bytes: of its weights, and of its own keys and values for one clip.
        has_states: a copy of a target with recurrent states, which reads the prompt again.
    """

    name: str
    kind: DraftKind
    assumed: AssumedAcceptance
    bytes: int
    has_states: bool = False

    @property
    def arguments(self) -> str:
        """Arguments of ``vidspec caption`` that choose it."""
        if self.kind in ("int8", "int4"):
            return f"--profile {self.name}" + (" --set draft.prefill=again" if self.has_states else "")
        profile = "eagle3" if self.kind == "eagle3" else "vanilla-sd-auto"
        return f"--profile {profile} --draft {self.name}"


@dataclass(frozen=True)
class SpeedPrediction:
    """Predicted decoding with one draft, or without any.

    Attributes:
        draft: None for plain decoding.
        gamma: best window; 0 if the draft does not pay.
        tokens_per_s: of all clips together.
        gain: over plain decoding; never below 1.
        bytes: of target, draft and clips; None if unknown.
        fits: True if this memory is there; None if unknown.
    """

    draft: PredictedDraft | None
    gamma: int
    tokens_per_s: float
    gain: float
    bytes: int | None = None
    fits: bool | None = None

    @property
    def is_head(self) -> bool:
        return self.draft is not None and self.draft.kind == "eagle3"

    @property
    def name(self) -> str:
        return "plain decoding" if self.draft is None else self.draft.name


@dataclass(frozen=True)
class TargetPredictions:
    """Predictions of a target on a card.

    Attributes:
        found: plain decoding, then all drafts.
        rounded: plain decoding of the target rounded to four bits, which gives other texts.
        eager_launches: kernels of a pass over one row that runs kernel by kernel; 0 if passes are replayed.
    """

    found: list[SpeedPrediction]
    rounded: SpeedPrediction
    eager_launches: int

    @property
    def arguments(self) -> str:
        """The arguments of ``vidspec caption`` that are predicted the fastest and to fit."""
        if (best := best_prediction(self.found)) is not None:
            return "--profile ar" if best.draft is None or not best.gamma else best.draft.arguments
        if self.rounded.fits is not False:
            return "--profile ar --set models.weights=int4"
        return "--profile ar --set models.quantization=4bit"


def best_prediction(found: Iterable[SpeedPrediction]) -> SpeedPrediction | None:
    """Return the fastest one that fits; None if none does. Heads are left out: none has been run here yet."""
    fitting = (one for one in found if one.fits is not False and not one.is_head)
    return max(fitting, key=lambda one: one.gain, default=None)


@cache
def _table() -> Mapping[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the pure one takes half a second
    table: Mapping[str, Any] = yaml.load(TABLE.read_text(encoding="utf-8"), loader)
    return table


def workload() -> MemoryWorkload:
    """Return the clip whose speeds are in the table."""
    clip = _table()["clip"]
    return MemoryWorkload(clip["frames"], tuple(clip["size"]), clip["new_tokens"], "bfloat16")


def cards() -> dict[str, Card]:
    """Return the cards of the table, by key."""
    return {key: Card(key, facts["name"], facts["memory"]) for key, facts in _table()["cards"].items()}


def predictions_of_published(
    target: KnownModel, card: Card, load: MemoryWorkload, free: float | None, without: Iterable[str] = ()
) -> TargetPredictions | None:
    """Return the predictions of a published target in 16 bits; None if it is not in the table.

    The arguments are those of :func:`predictions`.
    """
    load = load._replace(dtype="bfloat16")
    weights = target.weight_bytes("bfloat16")
    return predictions(target.name, card, load, weights, weights and weights + target.kv_bytes(load), free, without)


def predictions(
    target: str,
    card: Card,
    load: MemoryWorkload,
    weights: int | None,
    held: int | None,
    free: float | None,
    without: Iterable[str] = (),
) -> TargetPredictions | None:
    """Return the predictions of a target and its drafts; None if it is not in the table.

    Speeds are those of the table's clip; memory is that of ``load``.

    Args:
        target: a published target, by its hub id.
        card: where.
        load: the clip whose keys and values a draft model keeps too.
        weights: bytes of the target's weights in 16 bits; None if unknown.
        held: bytes of these and of the clip's keys and values; None if unknown.
        free: bytes of the card that are free; None if unknown.
        without: drafts to leave out.
    """
    table, left_out = _table(), frozenset(without)
    if (row := table["targets"].get(target)) is None:
        return None
    at, load = list(table["cards"]).index(card.key), load._replace(dtype="bfloat16")

    def fits(size: int | None) -> bool | None:
        return None if size is None or free is None else size <= free

    plain = row["plain"][at]
    found = [SpeedPrediction(None, 0, plain, 1.0, held, fits(held))]
    for name, draft in row["drafts"].items():
        if name in left_out:
            continue
        known = known_model(name) if draft["kind"] == "model" else None
        size = draft["bytes"] + (0 if known is None else known.kv_bytes(load))
        assumed = AssumedAcceptance(**table["acceptance"][draft["acceptance"]])
        choice = PredictedDraft(
            name, draft["kind"], assumed, size, draft["kind"] in ("int4", "int8") and "states" in row
        )
        rate, total = draft["rates"][at], None if held is None else held + size
        found.append(SpeedPrediction(choice, draft["windows"][at], rate, rate / plain, total, fits(total)))
    size = None if held is None else held - row["rounded"]["saves"]
    rate = row["rounded"]["rates"][at]
    # All its weights must fit in 16 bits too, since they are rounded on the card.
    rounded = SpeedPrediction(None, 0, rate, 1.0, size, fits(size) and fits(weights))
    return TargetPredictions(found, rounded, row.get("launches", 0))


def named_card(name: str) -> Card:
    """Return the card of a name that a user types: a key of the table, or the driver's name of it.

    Raises:
        UsageError: there is no such card in the table.
    """
    words = name.lower().replace(" ", "-")
    known = cards()
    if (found := known.get(words) or card_of_device(name)) is None:
        old = _OLD.search(words) is not None
        problem = "speeds are predicted from compute capability 8.0 on" if old else "not in the table of predictions"
        guess = nearest(words, known)
        hint = f"did you mean {guess}? " if guess is not None else ""
        raise UsageError(f"--card {name}: {problem}", hint=f"{hint}the known ones are {', '.join(known)}")
    return found


def card_of_device(name: str) -> Card | None:
    """Return the card of a device by its driver's name, such as ``NVIDIA H100 80GB HBM3``; None if it is not known.

    Laptops and smaller variants (Ti, SUPER, D, MIG slices) have other data sheets, and are not known.
    """
    said = " ".join(re.findall(r"[a-z0-9]+", name.lower()))
    if re.search(r"\b(laptop|max q|ti|super|d|mig|nvl|vgpu)\b", said):
        return None
    known = cards()
    words = [*_WORDS, *((re.sub(r"^(\d)", r"rtx \1", key), key) for key in known)]
    return next((known[key] for spoken, key in words if re.search(rf"\b{spoken}\b", said)), None)


#: Words of a driver's names for cards whose key is not in them, the most special first.
_WORDS = (
    ("a100 sxm4 40gb", "a100-40gb"),
    ("a100 pcie 40gb", "a100-40gb"),
    ("h100 pcie", "h100-pcie"),
    ("rtx 6000 ada", "6000ada"),
    ("rtx a6000", "a6000"),
)
#: Cards below 8.0, whose passes are not replayed.
_OLD = re.compile(r"\b(t4|t4g|v100|p4|p40|p100|titan|quadro|(gtx-)?1[06]\d0|(rtx-)?20\d0)\b")
