"""The default draft of published targets on NVIDIA cards with its predicted gain, and their published quality.

Two tables, nothing of them measured: ``python -m research.recommended`` computes ``recommended.yaml`` from data sheets
and the sizes of models, ``video_scores.yaml`` names its sources. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vidspec.errors import UsageError
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, known_model
from vidspec.registry import nearest

__all__ = [
    "PLAINLY",
    "TABLE",
    "Card",
    "TargetDefault",
    "VideoScore",
    "card_of_device",
    "cards",
    "default_on",
    "named_card",
    "video_scores",
]

#: The file of the table, and its word for plain decoding.
TABLE, PLAINLY = Path(__file__).with_suffix(".yaml"), "plain"
#: Share of a card's memory that a process can allocate: all but that of the driver and of kernels.
USABLE = 0.95


class Card(NamedTuple):
    """A card of the table: its key there, its maker's name, and the bytes of its memory."""

    key: str
    name: str
    memory: float

    @property
    def usable(self) -> float:
        """Bytes that a process can allocate."""
        return USABLE * self.memory


class TargetDefault(NamedTuple):
    """The default draft of a target on a card.

    Attributes:
        draft: hub id of a model or head, ``self-int8`` or ``self-int4`` for a copy of the target, or :data:`PLAINLY`.
        gain: predicted speed over plain decoding of one clip.
        bytes: of target, draft and a clip in 16 bits; None if unknown.
    """

    draft: str
    gain: float
    bytes: int | None


class VideoScore(NamedTuple):
    """A model's score in a benchmark of video understanding, in per cent, and the address where its publisher states
    it."""

    benchmark: str
    score: float
    source: str


@cache
def _table(file: Path = TABLE) -> Mapping[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the pure one is slow
    table: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), loader)
    return table


@cache
def video_scores() -> dict[str, VideoScore]:
    """Return the published scores of listed models, by hub id."""
    return {
        name: VideoScore(benchmark, score, source)
        for benchmark, sources in _table(TABLE.with_name("video_scores.yaml")).items()
        for source, scores in sources.items()
        for name, score in scores.items()
    }


def cards() -> dict[str, Card]:
    """Return the cards of the table, by key."""
    return {key: Card(key, facts["name"], facts["memory"]) for key, facts in _table()["cards"].items()}


def default_on(
    card: Card, target: KnownModel, load: MemoryWorkload, heads: Container[str] = ()
) -> TargetDefault | None:
    """Return what decodes a target by default on a card; None if it is not in the table, or does not fit the card.

    Args:
        card: where.
        target: a published target.
        load: the clip that memory is counted for.
        heads: those on this machine; one that gains more is taken. Others are not fetched by default.
    """
    table = _table()
    row, at = table["targets"].get(target.name), list(table["cards"]).index(card.key)
    if row is None or row["drafts"][at] is None:
        return None
    draft, gain = row["drafts"][at], row["gains"][at]
    size = row["copies"].get(draft, 0)
    for name, head in row.get("heads", {}).items():
        if name in heads and head["gains"][at] > gain:
            draft, gain, size = name, head["gains"][at], head["bytes"]
    load, weights = load._replace(dtype="bfloat16"), target.weight_bytes("bfloat16")
    if (known := known_model(draft)) is not None:
        size = (known.weight_bytes("bfloat16") or 0) + known.kv_bytes(load)
    return TargetDefault(draft, gain, None if weights is None else weights + target.kv_bytes(load) + size)


def named_card(name: str) -> Card:
    """Return the card of a name that a user types: a key of the table, or the driver's name of it.

    Raises:
        UsageError: there is no such card in the table.
    """
    words = name.lower().replace(" ", "-")
    known = cards()
    if (found := known.get(words) or card_of_device(name)) is None:
        old = _OLD.search(words) is not None
        problem = "gains are predicted from compute capability 8.0 on" if old else "not in the table of cards"
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
