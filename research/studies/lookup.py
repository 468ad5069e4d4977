"""Measure drafting by lookup: ``research.studies.lookup [--tokenizer words|FOLDER|tokenizer.json] ...``.

Texts are replayed as if a target wrote them, one after another as the clips of a folder are captioned: proposals are
verified by the words that follow, and no model runs. Two kinds: captions of drawn clips, which repeat each other like
captions of one data set, and free text that every Python has: the paragraphs of its help topics
(``pydoc_data.topics``), in random order. ``--texts`` names files of other texts, one per paragraph.

Prints Markdown: tokens accepted per proposal, and the time of a proposal by the amount of remembered text.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

from research.world.samples import draw_sample
from vidspec.bench.tables import table
from vidspec.config.part_sections import TREE
from vidspec.drafting.drafters.ngram import NgramDraft
from vidspec.drafting.drafters.suffix import SuffixDraft
from vidspec.drafting.lookup import LookupDrafter
from vidspec.drafting.memory import TextMemory
from vidspec.drafting.memory_file import MemoryFile
from vidspec.drafting.static_tree import parse_tree
from vidspec.engine.requests import run_to_completion
from vidspec.models.loading import embedded_folder

#: Length of a paragraph, in characters, to count as a caption.
SHORTEST, LONGEST = 200, 1500
SEED = 2026


def drawn(seed: int) -> Iterator[str]:
    """Yield captions of drawn scenes, without end."""
    rng = random.Random(seed)
    while True:
        yield draw_sample(rng.randrange(2**31)).caption


def paragraphs(whole: str) -> list[str]:
    """Return a text's paragraphs of a caption's length."""
    every = (" ".join(part.split()) for part in re.split(r"\n\s*\n", whole))
    return [part for part in every if SHORTEST <= len(part) <= LONGEST]


def topics() -> list[str]:
    """Return Python's help topics, in random order."""
    from pydoc_data.topics import topics as known

    found = [part for name in sorted(known) for part in paragraphs(known[name])]
    random.Random(SEED).shuffle(found)
    return found


def encoder(name: str) -> Callable[[str], list[int]]:
    """Return a function from text to ids; ``words`` has one id per word and per punctuation mark."""
    if name == "words":
        known: dict[str, int] = {}
        return lambda text: [known.setdefault(one, len(known) + 1) for one in re.findall(r"\w+|[^\w\s]", text)]
    from tokenizers import Tokenizer

    path = Path(name)
    made = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    return lambda text: list(made.encode(text, add_special_tokens=False).ids)


class Rows:
    """Row prices that are constant: each drafted row costs the same number of tokens."""

    def __init__(self, share: float) -> None:
        self.share = share

    def row_prices(self, rows: int) -> Sequence[float]:
        """See :class:`vidspec.drafting.lookup.RowPrices`."""
        return [self.share * drafted for drafted in range(rows + 1)]


class Counted:
    """Counts of proposals and their acceptance."""

    def __init__(self) -> None:
        self.tokens = self.rounds = self.proposals = self.drafted = self.accepted = 0
        self.seconds: list[float] = []

    def replay(self, kind: LookupDrafter, text: Sequence[int], nodes: int | None, price: float) -> None:
        """Replay ``text`` with the proposals of ``kind``."""
        one = copy(kind)
        one.prompt, one.text = (), []
        one.start(len(text), nodes, Rows(price))
        one.begin(text[0])
        at = 1
        self.tokens += len(text)
        while at < len(text):
            begun = time.perf_counter()
            draft = run_to_completion(one.propose(len(text) - at - 1))
            self.seconds.append(time.perf_counter() - begun)
            path: list[int] = []
            while True:
                below = draft.children(path[-1] if path else -1)
                node = next((child for child in below if draft.tokens[child] == text[at]), None)
                if node is None:
                    break
                path.append(node)
                at += 1
            one.commit(path, text[at])
            at += 1
            self.rounds += 1
            self.proposals += bool(draft.tokens)
            self.drafted += len(draft.tokens)
            self.accepted += len(path)
        one.finish(text)

    def row(self) -> list[str]:
        """Return the cells of its row."""
        made = max(1, self.proposals)
        return [
            f"{self.proposals / self.rounds:.2f}",
            f"{self.drafted / made:.2f}",
            f"{self.accepted / made:.2f}",
            f"{self.tokens / self.rounds:.2f}",
        ]


def accepted(sets: dict[str, list[list[int]]], price: float) -> None:
    """Print the table of acceptance."""
    rows = []
    nodes = len(parse_tree(TREE))
    for name, texts in sets.items():
        for kind, shape in ((NgramDraft, None), (SuffixDraft, None), (SuffixDraft, nodes)):
            one, counted = kind(), Counted()
            if kind is SuffixDraft:
                one.memory = TextMemory(1_000_000, one.least, one.most)
            for text in texts:
                counted.replay(one, text, shape, price)
            size = f"{len(texts)} texts, {sum(map(len, texts))} tokens"
            method = f"{kind.__name__.removesuffix('Draft').lower()}{'' if shape is None else f', tree of {shape}'}"
            rows.append([name, size, method, *counted.row()])
    heads = ["texts", "size", "drafter", "proposals per round", "drafted", "accepted per proposal", "tokens per round"]
    print(table(heads, rows), end="\n\n")


def times(captions: Iterator[list[int]], few: list[list[int]], most: int, price: float) -> None:
    """Print the table of times: proposals for ``few`` texts with increasing memory."""
    rows = []
    kind = SuffixDraft()
    kind.memory = TextMemory(2 * most, kind.least, kind.most)  # so that none of it is dropped
    size = 1000
    while size <= most:
        added, begun = 0, time.perf_counter()
        adding = 0.0
        while len(kind.memory) < size:
            text = next(captions)
            begun = time.perf_counter()
            kind.memory.add(text)
            adding += time.perf_counter() - begun
            added += len(text)
        counted = Counted()
        for text in few:
            alone = copy(kind)
            alone.finish = lambda token_ids: None  # type: ignore[method-assign]
            counted.replay(alone, text, None, price)
        taken = [1e6 * second for second in counted.seconds]
        with tempfile.TemporaryDirectory() as folder:
            file = MemoryFile(Path(folder) / "memory", "measured", 2 * most)
            begun = time.perf_counter()
            file.add(array("i", [token for text in reversed(kind.memory.texts) for token in text.tokens]))
            saved = time.perf_counter() - begun
            begun = time.perf_counter()
            TextMemory(2 * most, kind.least, kind.most, file)
            loaded = time.perf_counter() - begun
        rows.append(
            [
                f"{len(kind.memory)}",
                f"{median(taken):.0f}",
                f"{quantiles(taken, n=20)[-1]:.0f}",
                f"{1e6 * adding / max(1, added):.1f}",
                f"{kind.memory.nbytes / len(kind.memory):.0f}",
                f"{saved:.2f}",
                f"{loaded:.2f}",
            ]
        )
        size *= 10
    heads = ["tokens", "µs per proposal", "95 %", "µs per token added", "bytes per token", "s to save", "s to load"]
    print(table(heads, rows), end="\n\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=str(embedded_folder("embedded", "target")))
    parser.add_argument("--texts", nargs="*", type=Path, default=[])
    parser.add_argument("--captions", type=int, default=200)
    parser.add_argument("--row", type=float, default=0.05, help="tokens that a drafted row costs")
    parser.add_argument("--most", type=int, default=1_000_000, help="tokens remembered at the end")
    given = parser.parse_args()
    encode = encoder(given.tokenizer)

    def encoded(texts: Sequence[str]) -> list[list[int]]:
        return [[*encode(text), 0] for text in texts]  # with an end

    sets = {
        "64 captions of drawn clips": encoded(list(islice(drawn(SEED), 64))),
        f"{given.captions} paragraphs of Python's help": encoded(topics()[: given.captions]),
    }
    for path in given.texts:
        sets[path.name] = encoded(paragraphs(path.read_text(encoding="utf-8", errors="replace"))[: given.captions])
    accepted(sets, given.row)
    few = [text for texts in sets.values() for text in texts[:8]]
    times((encoded([text])[0] for text in drawn(SEED + 1)), few, given.most, given.row)


if __name__ == "__main__":
    main()
