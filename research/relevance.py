"""Test of visual relevance as a detector of words that state facts of the video (LVSpec 2.1, 3.1), on drawn clips.

``python -m research.relevance --pair embedded --clips 40`` prints how well the relevance of a token (LVSpec Eq. 8)
tells words that state facts of the drawn world from the others, next to its place in the caption, and how many tokens
accepted by LVSpec were facts. It measures no speed.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from research.world.samples import HELD_OUT_SEED, draw
from research.world.scene import BACKGROUNDS, COLOURS, PATTERNS, PLACES, SHAPES, SIZES
from research.world.scoring import COUNTS, MOTIONS
from vidspec import video
from vidspec.acceptance.rules.lvspec import relevance
from vidspec.bench.tables import cell, table
from vidspec.captioner import Captioner
from vidspec.engine.rows import Rows
from vidspec.events.record import Caption
from vidspec.models.detokenizer import Detokenizer

__all__ = ["Clip", "Loosened", "Token", "auc", "facts_of", "within", "words_of_facts"]

#: Number of equal stretches of a caption, to control for place.
STRETCHES = 5
_WORDS = sorted({*COLOURS, *SHAPES, *SIZES, *PATTERNS, *BACKGROUNDS, *PLACES.values(), "gone"}, key=len, reverse=True)
_FACTS = re.compile(
    "|".join(
        [
            *(pattern.pattern for pattern in MOTIONS.values()),
            rf"\b(?:{'|'.join(COUNTS)})(?= objects?\b)",
            rf"\b(?:{'|'.join(_WORDS)})\b",
        ]
    ),
    re.IGNORECASE,
)
_JOINING = frozenset({"to", "the", "in", "at", "any", "does"})


@dataclass(frozen=True)
class Token:
    """One token of a caption: visual relevance (a mean cosine), place from 0 to 1, and True if it states a fact."""

    relevance: float
    place: float
    fact: bool


@dataclass(frozen=True)
class Loosened:
    """Counts of one caption under LVSpec: emitted tokens, those that state facts, and both among loose tokens."""

    tokens: int
    facts: int
    loose: int
    loose_facts: int


@dataclass(frozen=True)
class Clip:
    """Results of one clip: the target's own caption, token by token, and LVSpec's counts."""

    own: tuple[Token, ...]
    loosened: Loosened


def words_of_facts(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) character spans that state facts in a caption of the drawn world, in order.

    Facts are those that :mod:`research.world.scoring` counts: numbers of objects, looks, places, sides, motions,
    ends, backgrounds; function words in a motion's wording are not included.
    """
    return [
        (found.start() + word.start(), found.start() + word.end())
        for found in _FACTS.finditer(text)
        for word in re.finditer(r"\w+", found[0])
        if word[0].lower() not in _JOINING
    ]


def facts_of(pieces: Sequence[str]) -> list[bool]:
    """Return, for each token's piece of text, True if any of its letters is part of a stated fact."""
    spans, at, found = words_of_facts("".join(pieces)), 0, list[bool]()
    for piece in pieces:
        begun, end = at + len(piece) - len(piece.lstrip()), at + len(piece.rstrip())
        found.append(any(begun < last and first < end for first, last in spans))
        at += len(piece)
    return found


def auc(scores: Sequence[float], positive: Sequence[bool]) -> float | None:
    """Return the area under the ROC curve (Mann-Whitney, ties count half); None without both kinds."""
    of = {kind: torch.tensor([s for s, p in zip(scores, positive, strict=True) if p == kind]) for kind in (True, False)}
    if not len(of[True]) or not len(of[False]):
        return None
    higher = of[True][:, None] - of[False]
    return float(((higher > 0).double() + 0.5 * (higher == 0).double()).mean())


def within(tokens: Iterable[Token], stretches: int = STRETCHES) -> list[list[Token]]:
    """Return the tokens by stretch of the caption."""
    found: list[list[Token]] = [[] for _ in range(stretches)]
    for token in tokens:
        found[min(int(token.place * stretches), stretches - 1)].append(token)
    return found


def study(captioner: Captioner, path: Path) -> Clip:
    """Study one clip: the target reads its own caption, and captions again under the captioner's loose rule."""
    clip = captioner.client.inputs.read(path)
    record = captioner.caption(path, clip=clip, plain=True)
    return Clip(tuple(_own(captioner, clip, record)), _loosened(captioner, captioner.caption(path, clip=clip)))


def _own(captioner: Captioner, clip: video.Clip, record: Caption) -> list[Token]:
    engine, asked = captioner.client.setup.target, captioner.client.profile
    model, ids = engine.model, record.token_ids
    prefix = model.prefix(model.encode(model.preprocess(clip)), asked.generate.prompt, asked.generate.system)
    read = engine.prefill(prefix, len(ids), states=True)
    assert read.visual_states is not None  # requested above
    (passed,) = engine.run([Rows(read.span, ids)])
    scores = relevance(passed.hidden, read.visual_states, asked.accept.model_dump()["similar"]).tolist()
    facts = facts_of(_pieces(captioner, ids))
    places = [at / len(ids) for at in range(len(ids))]
    found = zip(scores, places, facts, ids, strict=True)
    return [Token(score, place, fact) for score, place, fact, token in found if token not in model.eos]


def _loosened(captioner: Captioner, record: Caption) -> Loosened:
    facts = facts_of(_pieces(captioner, record.token_ids))
    loose = [one["at"] for one in record.loose["tokens"]] if record.loose else []
    return Loosened(len(facts), sum(facts), len(loose), sum(facts[at] for at in loose))


def _pieces(captioner: Captioner, ids: Sequence[int]) -> list[str]:
    text = Detokenizer(captioner.client.setup.target.model.tokenizer)
    return [text.add(token) for token in ids]


def report(pair: str, clips: Sequence[Clip]) -> str:
    """Return the figures as Markdown."""
    tokens = [token for clip in clips for token in clip.own]
    facts, scores = [token.fact for token in tokens], [token.relevance for token in tokens]
    places = [-token.place for token in tokens]
    inside = [_auc_of(stretch) for stretch in within(tokens)]
    loose, loose_facts = (sum(getattr(clip.loosened, name) for clip in clips) for name in ("loose", "loose_facts"))
    emitted, stated = (sum(getattr(clip.loosened, name) for clip in clips) for name in ("tokens", "facts"))
    lines = [
        f"{pair}: {len(clips)} clips, {len(tokens)} tokens of the target's captions, {fmean(facts):.1%} of them facts",
        "",
        table(
            ["AUC for facts", ""],
            [
                ["relevance", cell(auc(scores, facts), ".3f")],
                ["relevance, mean over clips", cell(_mean(_auc_of(clip.own) for clip in clips), ".3f")],
                ["relevance, among tokens of one stretch of the caption (mean)", cell(_mean(inside), ".3f")],
                ["place in the caption alone (earlier is higher)", cell(auc(places, facts), ".3f")],
            ],
        ),
        "",
        table(
            ["stretch of the caption", "tokens", "facts", "relevance", "of facts", "of others", "AUC"],
            [
                [
                    f"{number / STRETCHES:.0%}-{(number + 1) / STRETCHES:.0%}",
                    str(len(stretch)),
                    f"{fmean(token.fact for token in stretch):.1%}",
                    cell(_mean(token.relevance for token in stretch), ".3f"),
                    cell(_mean(token.relevance for token in stretch if token.fact), ".3f"),
                    cell(_mean(token.relevance for token in stretch if not token.fact), ".3f"),
                    cell(inside[number], ".3f"),
                ]
                for number, stretch in enumerate(within(tokens))
                if stretch
            ],
        ),
        "",
        f"LVSpec let {loose} of {emitted} emitted tokens pass that the target would not have chosen; {loose_facts} of "
        f"them ({cell(loose_facts / loose if loose else None, '.1%')}) state facts, of all emitted tokens "
        f"{stated / emitted:.1%} do.",
    ]
    return "\n".join(lines)


def _auc_of(tokens: Sequence[Token]) -> float | None:
    return auc([token.relevance for token in tokens], [token.fact for token in tokens])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def main() -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pair", choices=("embedded", "embedded-qwen"), default="embedded")
    options.add_argument("--clips", type=int, default=40)
    options.add_argument("--seed", type=int, default=HELD_OUT_SEED, help="of the drawn clips")
    asked = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Captioner.from_profile("lvspec", overrides={"models.pair": asked.pair}) as captioner,
    ):
        print(report(asked.pair, [study(captioner, path) for path in draw(Path(folder), asked.clips, asked.seed)]))


if __name__ == "__main__":
    main()
