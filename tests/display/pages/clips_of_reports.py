"""Clips as the report has them: two rounds of a run over the first sample clip, and their record and trace."""

from __future__ import annotations

from dataclasses import replace

from tests.fake_captioner import record
from vidspec.display.pages.clip import ShownClip
from vidspec.display.pages.pictures import Picture
from vidspec.embedded.samples import shipped
from vidspec.events.events import LooseToken, Prefilled, RejectedToken, Round
from vidspec.events.trace import Span

PATH = str(shipped()[0])
#: Two frames of 2 x 2 tokens; the draft sees one of the first and two of the second.
SIGNALS = (("attention", bytes((255, 109, 0, 36, 218, 182, 72, 145))), ("attention@2", bytes(8)))
SEEN = Prefilled(20, 8, (0, 4, 5), (1, 2), (4, 4), 0.5, (2, 2, 2), tuple(range(8)), signals=SIGNALS)
ROUNDS = (
    Round((7,), ("target",), 0, 0, 0.0, texts=("A",)),
    Round(
        (1, 2, 3),
        ("draft", "loose", "correction"),
        4,
        2,
        0.5,
        0.1,
        0.3,
        (" red", " <b>circle</b>", "\nmoves"),
        loosened=(LooseToken(1, 5, "relevance", relevance=0.25),),
        rejected=(RejectedToken(2, 8, " stays"), RejectedToken(2, 9)),
        probabilities=(0.75, 2e-5, 1.0),
    ),
    Round((4, 9), ("draft", "bonus"), 1, 1, 1.0, 0.1, 0.3, (" left.", "")),
)
SPANS = (
    Span("target", "vision", 0.0, 0.2),
    Span("target", "target_prefill", 0.2, 0.5),
    Span("draft", "prune", 0.3, 0.4),
    Span("draft", "draft", 0.5, 0.6, (("emitted", 0),)),
    Span("target", "verify", 0.6, 1.0, (("round", 1), ("rows", 5))),
    Span("target", "accept", 1.0, 1.00001),
)
DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
PICTURES = (Picture(0.0, DOT, 4 / 3, DOT, 1, 4), Picture(0.5, DOT, 4 / 3, DOT, 2, 4))


def told(**changes):
    """The record of the clip."""
    fields = {
        "path": PATH,
        "caption": "A red <b>circle</b>\nmoves left.",
        "token_ids": [7, 1, 2, 3, 4, 9],
        "demo": False,
        "counters": {
            **record().counters,
            "drafted": 5,
            "accepted": 3,
            "loose": 1,
            "corrections": 1,
            "bonus": 1,
            "emitted": 6,
            "accepted_lengths": [2, 1],
        },
        "loose": {"share": 1 / 6, "tokens": [{"at": 2, "wanted": 5, "wanted_text": " square"}]},
        "lossless": False,
    }
    return record(**(fields | changes)).to_dict()


def clip(**changes):
    """The clip as a watched run gives it."""
    made = ShownClip(told(), SEEN, ROUNDS, SPANS, PICTURES)
    return replace(made, **changes)
