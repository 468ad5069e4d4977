"""Predicted tokens/s of this engine on a card, and published ones of vLLM: ``python -m research.simulate --cards``.

The prediction is :mod:`research.prediction.costs`: data sheets, launches as ``tests/engine/counts.py`` counts them, and
the waits of a round. No model runs. docs/research/predicted.md introduces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from research.prediction.constants import CACHE_USE, FLOPS_USE, LAUNCH, PRODUCT_USE
from research.prediction.costs import (
    ACCEPTANCE,
    AssumedAcceptance,
    DraftCandidate,
    ModelCost,
    SpeedPrediction,
    predict,
    predict_rounded,
)
from research.prediction.drafts import cost_of_known, draft_candidates
from research.prediction.sheets import SHEETS, DataSheet
from vidspec.bench.tables import bullets, table
from vidspec.models.known_pairs import KnownModel, MemoryWorkload, known_model, known_pairs
from vidspec.models.memory_estimate import PROMPT
from vidspec.models.recommended import USABLE, named_card

TARGET = "Qwen/Qwen2.5-VL-7B-Instruct"
CLIPS, VISUAL = (1, 4, 16, 64), (2_000, 25_000)
#: Clips at once on the page.
SHOWN = (1, 16)
#: Tokens of a caption; halfway through it a clip has half of them in its cache.
TOKENS = 256


class PublishedFigure(NamedTuple):
    """A published rate of vLLM's plain decoding: tokens/s of all requests, and its source.

    Attributes:
        card: a key of the data sheets.
        clips: requests at once.
        entries: tokens of a prompt; None if not published.
        model: what ran.
        tokens_per_s: the figure.
        drafted: with an EAGLE-3 head; None if not published.
        source: address.
    """

    card: str
    clips: int
    entries: int | None
    model: str
    tokens_per_s: float
    drafted: float | None
    source: str


_QWEN_DOCS = "https://qwen.readthedocs.io/en/v2.5/benchmark/speed_benchmark.html"
_QWEN3_8B = "https://gist.github.com/jiangLLM/e95756b974f385846e4277b7ee68d6c8"
#: Language models of this size without vision; no figure of Qwen2.5-VL-7B by clips and context was found.
PUBLISHED = (
    PublishedFigure("a100", 1, 6_144, "Qwen2.5-7B, vLLM 0.6.3", 80.70, None, _QWEN_DOCS),
    PublishedFigure("a100", 1, 30_720, "Qwen2.5-7B, vLLM 0.6.3", 70.33, None, _QWEN_DOCS),
    PublishedFigure("h100", 1, None, "Qwen3-8B, vLLM 0.31.0", 125, 355, _QWEN3_8B),
    PublishedFigure("h100", 8, None, "Qwen3-8B, vLLM 0.31.0", 898, 2148, _QWEN3_8B),
    PublishedFigure("h100", 32, None, "Qwen3-8B, vLLM 0.31.0", 2726, 7317, _QWEN3_8B),
    PublishedFigure("h100", 1, None, "Llama-3.1-8B, vLLM", 133, 220, "https://github.com/vllm-project/vllm/pull/16937"),
)
#: Shapes of the published models that are no targets here: parameters of a pass, layers, bytes of an entry.
_SHAPES = {"Qwen3-8B": (7_568_405_504, 36, 147_456), "Llama-3.1-8B": (7_504_924_672, 32, 131_072)}


@dataclass(frozen=True)
class CardForecast:
    """Predictions for a number of clips on a card; of drafts only those that fit beside the target and the clips."""

    card: DataSheet
    visual: int
    clips: int
    plain: SpeedPrediction
    drafts: Sequence[SpeedPrediction]
    rounded: SpeedPrediction | None

    @property
    def best(self) -> SpeedPrediction | None:
        """The fastest draft that fits and gains; None if there is none."""
        paying = [one for one in self.drafts if one.fits and one.gamma]
        return max(paying, key=lambda one: one.gain, default=None)

    @property
    def cells(self) -> list[str]:
        """Cells of the table; a target that does not fit has no rate."""
        best = self.best
        drafted = [_short(best), str(best.gamma), f"{best.gain:.2f}x"] if best else ["-"] * 3
        by_kind = {one.draft.kind: one for one in self.drafts if one.draft is not None}
        gains = [_gain(by_kind.get(kind)) for kind in ("int4", "eagle3", "model")]
        return [
            self.card.name,
            f"{self.visual:,}",
            str(self.clips),
            _rate(self.plain),
            *drafted,
            *gains,
            _rate(self.rounded),
        ]


def forecasts(
    cards: Sequence[DataSheet], clips: Sequence[int] = CLIPS, visual: Sequence[int] = VISUAL, target: str = TARGET
) -> list[CardForecast]:
    """Return the predictions for each combination."""
    known = known_model(target)
    assert known is not None
    return [_forecast(card, known, count, tokens) for card in cards for tokens in visual for count in clips]


def _forecast(card: DataSheet, target: KnownModel, clips: int, visual: int) -> CardForecast:
    cost = cost_of_known(target)
    assert cost is not None
    siblings = [pair.draft for pair in known_pairs() if pair.draft is not None and pair.target == target]
    longest = visual + PROMPT + TOKENS
    held = (target.weight_bytes("bfloat16") or 0) + clips * longest * cost.entry
    drafts = [_with_clips(one, clips, longest, siblings) for one in _candidates(target, cost, siblings)]
    entries, free = visual + PROMPT + TOKENS / 2, USABLE * card.memory
    plain, *drafted = predict(card, cost, drafts, entries=entries, clips=clips, held=held, free=free)
    rounded = predict_rounded(card, cost, entries=entries, clips=clips, held=held, free=free)
    return CardForecast(card, visual, clips, plain, drafted, rounded)


def _candidates(target: KnownModel, cost: ModelCost, siblings: Sequence[KnownModel]) -> list[DraftCandidate]:
    return draft_candidates(target.name, cost, siblings, MemoryWorkload(new_tokens=0, frames=1))


def _with_clips(draft: DraftCandidate, clips: int, longest: int, siblings: Sequence[KnownModel]) -> DraftCandidate:
    """Return a draft with the bytes of its own keys and values for all clips; a copy of the target has the target's."""
    if draft.kind in ("int4", "int8"):
        return draft
    size = round(draft.cost.weight_bytes)
    for model in siblings:
        if model.name == draft.name:
            size = model.weight_bytes("bfloat16") or size
    return replace(draft, bytes=size + clips * longest * draft.cost.entry)


def page(names: Sequence[str] = ("4090", "a100", "h100")) -> str:
    """Return the tables and their assumptions, in Markdown."""
    cards = [SHEETS[named_card(name).key] for name in names]
    heads = ["card", "visual tokens", "clips", "plain", "best draft", "gamma", "gain"]
    heads += ["self-int4", "EAGLE-3", "3B", "int4 target, plain"]
    lines = table(heads, [one.cells for one in forecasts(cards, SHOWN) if one.plain.fits is not False])
    parts = [f"## 7B\n\n**Predicted, with constants measured on an H100.** {TARGET}, tokens/s of all clips.", lines]
    parts.append(bullets(_notes(cards)))
    parts += ["## Hybrids and mixtures of experts", _kernel_by_kernel(cards)]
    parts += ["## Other acceptance", _other_acceptance(cards)]
    parts += ["## The model beside published figures", _beside_published()]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _notes(cards: Sequence[DataSheet]) -> list[str]:
    sheets = "; ".join(
        f"{one.name} {one.bandwidth / 1e12:g} TB/s, {one.flops / 1e12:g} TFLOP/s in bfloat16, {one.memory / 1e9:g} GB"
        for one in cards
    )
    assumed = "; ".join(f"{ACCEPTANCE[kind].beta:g} for {name} ({ACCEPTANCE[kind].source})" for kind, name in _KINDS)
    return [
        f"Data sheets: {sheets}. Measured on an H100: products reach {PRODUCT_USE:.0%} of the bandwidth, keys and "
        f"values {CACHE_USE:.0%}. Assumed: {FLOPS_USE:.0%} of the arithmetic.",
        "Kernels, launches and waits of the host take what they took there (research/prediction/constants.py), "
        "products with codes no less than instructions allow ([engine](../../internals/engine.md#quantised-weights)).",
        f"A drafted token is accepted with probability: {assumed}. These are other models, texts and engines.",
        f"Gamma is the best window. Captions of {TOKENS} tokens after {PROMPT} of text. *-*: does not fit into 95% of "
        "the card's memory, or no gain. *int4 target*: `models.weights: int4`, which gives other texts than bfloat16.",
    ]


def _kernel_by_kernel(cards: Sequence[DataSheet]) -> str:
    """Return the predictions of listed targets whose blocks run kernel by kernel, one clip of 2,000 visual tokens.

    Targets and cards of the same figures share a line; a target that does not fit a card has none.
    """
    lines: dict[tuple[str, ...], list[str]] = {}
    for target in dict.fromkeys(pair.target for pair in known_pairs()):
        if (cost := cost_of_known(target)) is None or cost.eager is None:
            continue
        alike: dict[tuple[str, ...], list[str]] = {}
        for card in cards:
            one = _forecast(card, target, 1, VISUAL[0])
            if one.plain.fits is False:
                continue
            share = min(one.plain.tokens_per_s * cost.launches * LAUNCH, 1)
            best = ("-", "-") if one.best is None else (one.best.name, f"{one.best.gain:.2f}x")
            figures: tuple[str, ...] = (f"{cost.launches:,}", _rate(one.plain), f"{share:.0%}", *best)
            alike.setdefault(figures, []).append(card.name)
        for figures, names in alike.items():
            lines.setdefault((", ".join(names), *figures), []).append(target.name)
    heads = ["targets", "cards", "launches a pass", "plain", "of it launching", "best draft", "gain"]
    return (
        f"Their blocks run kernel by kernel: a pass takes at least {LAUNCH * 1e6:g} us for each counted kernel, as "
        "measured with other blocks on one host, and a draft of such "
        "blocks a wait for each token. Of a mixture a pass reads E (1 - (1 - k/E)^rows) of a block's E experts, k for "
        "each row; recurrent states are read and written once. One clip of 2,000 visual tokens, on the cards that hold "
        "the target.\n\n" + table(heads, [(", ".join(targets), *cells) for cells, targets in lines.items()])
    )


_KINDS = (("int4", "self-int4"), ("int8", "self-int8"), ("eagle3", "EAGLE-3"), ("model", "the 3B"))


def _other_acceptance(cards: Sequence[DataSheet]) -> str:
    """Return the gains of a copy in four bits and of a head by acceptance, one clip of 2,000 visual tokens."""
    known = known_model(TARGET)
    cost = None if known is None else cost_of_known(known)
    assert cost is not None
    heads, lines = ["card", "draft", *(f"{beta:g}" for beta in _BETAS)], []
    for card in cards:
        for draft in draft_candidates(TARGET, cost, [], MemoryWorkload()):
            if draft.kind in ("int4", "eagle3"):
                found = [
                    predict(card, cost, [_accepted(draft, beta)], entries=2_000 + PROMPT + TOKENS / 2)[1]
                    for beta in _BETAS
                ]
                lines.append([card.name, _KIND_NAMES[draft.kind], *(f"{one.gain:.2f}x" for one in found)])
    return "Gain for one clip of 2,000 visual tokens by the acceptance that `vidspec bench` measures:\n\n" + table(
        heads, lines
    )


_BETAS = (0.4, 0.55, 0.7, 0.8, 0.9, 0.96)
_KIND_NAMES = dict(_KINDS)


def _accepted(draft: DraftCandidate, beta: float) -> DraftCandidate:
    return replace(draft, assumed=AssumedAcceptance(beta, "assumed"))


def _beside_published() -> str:
    heads = [
        "card",
        "requests",
        "prompt",
        "model, engine",
        "published",
        "this model",
        "published with EAGLE-3",
        "source",
    ]
    lines = []
    for one in PUBLISHED:
        known = _SHAPES.get(one.model.partition(",")[0])
        if known is None:
            cost = cost_of_known(known_model(TARGET) or KnownModel("", "", 0, 0, 0))
        else:
            cost = ModelCost.of_decoder(*known)
        assert cost is not None
        entries = one.entries or _SHORT
        (plain,) = predict(SHEETS[one.card], cost, (), entries=entries, clips=one.clips)
        prompt = "-" if one.entries is None else f"{one.entries:,}"
        drafted = "-" if one.drafted is None else f"{one.drafted:g}"
        ours = f"{plain.tokens_per_s:.0f}"
        source = f"[source]({one.source})"
        lines.append(
            [SHEETS[one.card].name, str(one.clips), prompt, one.model, f"{one.tokens_per_s:g}", ours, drafted, source]
        )
    return (
        "vLLM's plain decoding as others published it, and this model's prediction for *our* engine at the same size, "
        f"with {_SHORT} cache entries where no prompt is given. Published rates of several requests include prompts, "
        "and fewer requests at the end of a run.\n\n" + table(heads, lines)
    )


#: Cache entries of a short chat.
_SHORT = 1_000


def _rate(one: SpeedPrediction | None) -> str:
    return "-" if one is None or one.fits is False else f"{one.tokens_per_s:.0f}"


def _gain(one: SpeedPrediction | None) -> str:
    return "-" if one is None or one.fits is False else f"{one.gain:.2f}x"


def _short(one: SpeedPrediction) -> str:
    assert one.draft is not None
    return _KIND_NAMES[one.draft.kind]
