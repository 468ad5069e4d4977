"""Language models that are tables: logits as any function of the tokens read so far. For tests of exact outcomes.

They stand behind the engine's own interface, so that the real target, drafter, rule and schedules run on them; a wrong
rollback shows because the logits depend on every token in the cache.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from collections.abc import Sequence as Items
from types import SimpleNamespace

import numpy as np
import torch

from vidspec.acceptance.base import AcceptanceRule
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.limits import StoppingRules
from vidspec.decoding.sequence import Drafting, ScheduleFunction, Sequence
from vidspec.decoding.target import Target
from vidspec.drafting.base import Draft, Drafter
from vidspec.drafting.chain import ChainDrafter
from vidspec.drafting.static_tree import parse_tree
from vidspec.drafting.tree import TreeDrafter
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.forward import CHUNK, Engine
from vidspec.engine.penalties import PenaltyHistory
from vidspec.engine.requests import Steps, run_to_completion
from vidspec.engine.rows import PassResult, PrefillResult, Rows
from vidspec.engine.sampling import Sampling
from vidspec.events.events import Round
from vidspec.models.request import CaptionRequest

Prefix = tuple[int, ...]
Table = Callable[[Prefix], torch.Tensor]  # emitted tokens -> logits (V,)

GREEDY = Sampling()


def random_table(seed: int, vocabulary: int, scale: float = 1.0) -> Table:
    """Logits drawn anew for every prefix, always the same for the same one."""
    known: dict[Prefix, torch.Tensor] = {}

    def logits(prefix: Prefix) -> torch.Tensor:
        if prefix not in known:
            rng = np.random.default_rng([seed, zlib.crc32(bytes(str(prefix), "ascii"))])
            known[prefix] = torch.from_numpy(rng.normal(0, scale, vocabulary)).float()
        return known[prefix]

    return logits


def blend(table: Table, other: Table, share: float) -> Table:
    """``share`` of ``other`` in ``table``: a draft of any quality."""
    return lambda prefix: (1 - share) * table(prefix) + share * other(prefix)


def greedy_text(table: Table, limits: StoppingRules) -> list[int]:
    """Greedy decoding, written out."""
    text: list[int] = []
    while len(text) < limits.max_new_tokens and not (text and text[-1] in limits.eos):
        scores = table(tuple(text)).tolist()
        text.append(scores.index(max(scores)))
    return text


def shifted(table: Table) -> Table:
    """The same table behind a first token that is always 0: with it, windows of two fit into texts of three."""
    first = torch.tensor([99.0, 0.0, 0.0, 0.0])
    return lambda prefix: table(prefix[1:]) if prefix else first


class ToySpan:
    """The tokens that were read, and how many come before each on its path."""

    offset = 0

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.places: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def is_follower(self) -> bool:
        return False

    def rollback(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:], self.places[length:]

    def gather(self, start: int, kept: Items[int]) -> None:
        for entries in (self.tokens, self.places):
            entries[start:] = [entries[start + offset] for offset in kept]


class ToyModel:
    name = "toy"
    known_ids = 1 << 20
    vocabulary: int
    dtype, device, decoder = torch.float32, torch.device("cpu"), SimpleNamespace(graphs=None)


class ToyEngine:
    """Tables behind the engine's interface; ``passes`` lists how many rows each pass had.

    Args:
        tables: of each sequence that is opened, in order; the last of all further ones.
    """

    def __init__(self, *tables: Table) -> None:
        self.tables = tables
        self.model = ToyModel()
        self.model.vocabulary = len(tables[0](()))
        self.passes: list[int] = []
        self._opened: dict[int, Table] = {}

    def open(self) -> ToySpan:
        span = ToySpan()
        self._opened[id(span)] = self.tables[min(len(self._opened), len(self.tables) - 1)]
        return span

    greedy, chain, trees, check = Engine.greedy, Engine.chain, Engine.trees, Engine.check
    _replay_chains = Engine._replay_chains
    chunk, preparing = CHUNK, 0.0

    def start(self) -> PrefillResult:
        """A prompt of no length that has been read."""
        return PrefillResult(self.open(), self.tables[0](()))  # type: ignore[arg-type]

    def run(self, batch: Items[Rows]) -> list[PassResult]:
        """Each row's logits are those of the tokens it sees; their order must be that of their places."""
        assert all(map(len, batch)), "a pass over nothing"
        assert len({id(rows.span) for rows in batch}) == len(batch), "a sequence twice in one pass"
        self.passes.append(sum(map(len, batch)))
        return read_back_tokens(batch, [self._passed(rows) for rows in batch])

    def _passed(self, rows: Rows) -> PassResult:
        span, table = rows.span, self._opened[id(rows.span)]
        places, length, count = list(rows.entry_offsets), span.length, len(rows)
        span.tokens += rows.token_ids  # type: ignore[attr-defined]
        span.places += places  # type: ignore[attr-defined]
        logits = []
        for row in range(count):
            if rows.parents is None:
                sees = list(range(length + row + 1))
            else:
                before = length + count - len(rows.parents)
                own = rows.ancestor_mask()[row].nonzero()[:, 0].tolist()
                sees = [*range(before), *(before + node for node in own)]
            assert [span.places[entry] for entry in sees] == list(range(len(sees)))  # type: ignore[attr-defined]
            logits.append(table(tuple(span.tokens[entry] for entry in sees)))  # type: ignore[attr-defined]
        every = torch.stack(logits)
        return PassResult(every, every)


class SharedToyEngine(ToyEngine):
    """One engine for all clips: each span says its own table's text."""

    def __init__(self) -> None:
        super().__init__(lambda prefix: torch.zeros(6))
        self._spans: list[ToySpan] = []  # kept, so that an id is one span's

    def start_of(self, table: Table) -> ToySpan:
        self.model.vocabulary = len(table(()))
        self.tables, span = (*self.tables, table), self.open()
        self._spans.append(span)
        self._opened[id(span)] = table
        return span


def text_steps(schedule: ScheduleFunction, sequence: Sequence) -> Steps[None]:
    """The whole text of a prefilled sequence."""
    if not sequence.emit_first():
        if sequence.drafting is not None:
            sequence.drafting.drafter.begin(sequence.token_ids[0])
        yield from schedule(sequence)


def rounds_of(schedule: ScheduleFunction, sequence: Sequence) -> list[Round]:
    """The rounds of a sequence, decoded without others."""
    run_to_completion(text_steps(schedule, sequence))
    if sequence.drafting is not None:
        sequence.drafting.drafter.finish(sequence.token_ids)
    return sequence.rounds


def proposed(drafter: Drafter, gamma: int) -> Draft:
    """A drafter's next window."""
    return run_to_completion(drafter.propose(gamma))


def emit_window(
    drafter: Drafter, window: Draft, path: Items[int], token: int, logits: torch.Tensor | None = None
) -> None:
    """Let a drafter read the tokens at ``path`` of its window and the target's own after them."""
    rows = torch.empty(0, 0) if logits is None else logits
    tokens = (*(window.tokens[node] for node in path), token)
    drafter.read(tokens, PassResult(rows, rows, path=tuple(path)))


class Reciter(Drafter):
    """Proposes whatever it was given, good or bad, and checks that it is told what was emitted."""

    def __init__(self, tokens: Items[int]) -> None:
        self.tokens = list(tokens)
        self.prefix: list[int] = []
        self.window: tuple[int, ...] = ()
        self._next = 0

    def begin(self, token: int) -> None:
        assert not self.prefix
        self.prefix = [token]

    def propose(self, gamma: int) -> Steps[Draft]:
        yield from ()
        self.window = tuple(self.tokens[(self._next + i) % len(self.tokens)] for i in range(gamma))
        self._next += gamma
        self.forwards += gamma
        return Draft(self.window, tuple(range(-1, gamma - 1)))

    def read(self, tokens: Items[int], passed: PassResult) -> None:
        assert tuple(passed.path) == tuple(range(len(tokens) - 1))
        assert tuple(tokens[:-1]) == self.window[: len(tokens) - 1]
        self.prefix += tokens
        self.window = ()


class Recorder(Drafter):
    """Another drafter; ``prefix`` is what was committed to it."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.prefix: list[int] = []
        self.window: tuple[int, ...] = ()

    def begin(self, token: int) -> None:
        self.prefix = [token]
        self.drafter.begin(token)

    def propose(self, gamma: int) -> Steps[Draft]:
        draft = yield from self.drafter.propose(gamma)
        self.window, self.forwards = draft.tokens, self.drafter.forwards
        return draft

    def read(self, tokens: Items[int], passed: PassResult) -> None:
        assert tuple(tokens[:-1]) == tuple(self.window[node] for node in passed.path)
        self.prefix += tokens
        self.drafter.read(tokens, passed)


def on_tables(
    table: Table,
    limits: StoppingRules,
    *,
    draft: Table | Drafter | None = None,
    gamma: int = 0,
    tree: str | None = None,
    sampling: Sampling = GREEDY,
    draft_sampling: Sampling | None = None,
    rule: AcceptanceRule | None = None,
    rng: torch.Generator | None = None,
    history: PenaltyHistory | None = None,
) -> Sequence:
    """A sequence on tables, its prompts read; ``draft`` is a table for the real model drafter, or a drafter."""
    rng = rng or torch.Generator().manual_seed(0)
    engine = ToyEngine(table)
    drafter: Drafter | None
    if draft is None or isinstance(draft, Drafter):
        drafter = draft
    else:
        other = ToyEngine(draft)
        if tree is None:
            drafter = ChainDrafter(other, other.open(), draft_sampling or sampling, rng)  # type: ignore[arg-type]
        else:
            drafter = TreeDrafter(other, other.open(), parse_tree(tree))  # type: ignore[arg-type]
    sequence = Sequence(CaptionRequest("tables"), SimpleNamespace(window=64))  # type: ignore[arg-type]
    acceptance = (rule or ExactRule()) if drafter is not None else None
    sequence.target = Target(engine, engine.start(), sampling, rng, acceptance=acceptance, history=history)  # type: ignore[arg-type]
    sequence.limits = limits
    if drafter is not None:
        drafter.history = history
        sequence.drafting = Drafting(drafter, gamma)
    return sequence


def turn(loop):
    """A turn; the error of a sequence, which would make no further rounds, is raised."""
    for client in loop.turn():
        if client.error is not None:
            raise client.error
