"""Toy texts and a checking harness for the parallel schedule: simulated workers that are watched at every step."""

import heapq
import random
from dataclasses import dataclass, field

from research.replay.simulated import SimulatedWorkers, drive
from research.replay.virtual import Costs
from vidspec.decoding.protocol import Propose, Verify
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.draft_length.window import AutoGamma, FixedGamma

EOS = 0


class ToyText:
    """Both models' tokens depend on the whole prefix, so that a wrong cache shows in every token behind the fault.

    ``asked`` are the prefixes for which the target chose a token, in order.
    """

    def __init__(self, seed, beta, vocabulary, eos_rate=0.0, sampled=False):
        self.seed, self.beta, self.vocabulary, self.eos_rate = seed, beta, vocabulary, eos_rate
        self.rng = random.Random(seed) if sampled else None
        self.asked = []

    def _hash(self, salt, prefix):
        return random.Random(repr((self.seed, salt, tuple(prefix))))  # a hash of text is another in every process

    def greedy(self, prefix, salt="target"):
        rng = self._hash(salt, prefix)
        return EOS if rng.random() < self.eos_rate else rng.randrange(1, self.vocabulary + 1)

    def choose(self, prefix):
        self.asked.append(tuple(prefix))
        if self.rng is not None and self.rng.random() < 0.5:
            return self.rng.randrange(self.vocabulary + 1)
        return self.greedy(prefix)

    def propose(self, prefix):
        agrees = self._hash("agrees", prefix).random() < self.beta
        return self.greedy(prefix, "target" if agrees else "draft")

    def reference(self, max_new_tokens):
        text = []
        while len(text) < max_new_tokens and EOS not in text:
            text.append(self.greedy(text))
        return text


def is_rollback(message):
    return isinstance(message, Propose) and message.keep is not None


class WatchedWorkers(SimulatedWorkers):
    """Keeps every message to the draft with the time it was handed over and the time it arrived."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.submitted, self.arrived, self.under_way = [], [], []

    def submit(self, message):
        if not isinstance(message, Verify):
            self.submitted.append((self.now, message))
            self.under_way.append(message)
        super().submit(message)

    def _tell_draft(self, message):
        self.arrived.append((self.now, self.draft.epoch, message))
        self.under_way.remove(message)
        super()._tell_draft(message)

    def draft_view(self):
        """The draft's text once it has taken every message that was handed over."""
        text = self.draft_text()
        for message in self.under_way:
            if is_rollback(message):
                text = [*text[: message.keep], *message.tokens]
        return text


@dataclass
class ParallelScenario:
    """One random situation; everything follows from ``seed``."""

    seed: int
    sampled: bool = False
    latency: bool = True
    text: ToyText = field(init=False)
    settings: ParallelSettings = field(init=False)
    workers: WatchedWorkers = field(init=False)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self):
        rng = random.Random(self.seed)
        self.text = ToyText(
            self.seed,
            beta=rng.choice([0.0, 0.3, 0.6, 0.85, 0.95, 1.0]),
            vocabulary=rng.choice([1, 2, 5]),
            eos_rate=rng.choice([0.0, 0.0, 0.05, 0.3]),
            sampled=self.sampled,
        )
        await_kept, overlap = rng.random() < 0.5, rng.random() < 0.6
        self.settings = ParallelSettings(
            max_new_tokens=rng.choice([1, 2, 3, 7, 16, 24]),
            eos=frozenset({EOS}),
            overlap=overlap,
            startup=rng.choice([None, 1, 2, 5, 40]),
            rows=rng.choice([1, 2, 3, 6, 64]),
            kept=None,
            await_kept=await_kept,
            late=await_kept and overlap and rng.random() < 0.5,
        )
        whole = rng.random() < 0.4  # whole numbers: many events at the same instant

        def some(low, high):
            value = rng.uniform(low, high)
            return float(round(value)) if whole else value

        slow, step, reading = some(0, 9), some(0, 3), some(0, 20)
        way = 0.0 if not self.latency or rng.random() < 0.4 else some(0, 2)
        costs = Costs(
            verify=lambda rows: slow * rng.uniform(0.5, 1.5) + 0.1 * rows if not whole else slow,
            draft=lambda: step * rng.uniform(0.5, 1.5) if not whole else step,
            target_prefill=reading,
            draft_prefill=some(0, 12),
            signals=reading * rng.choice([0.0, 0.4, 1.0, 1.5]) if await_kept else None,
            latency=lambda: way if whole else way * rng.random(),
        )
        self.workers = WatchedWorkers(self.text, costs, tie=rng.random)
        auto = AutoGamma(self.workers.measured, highest=9)
        gamma = auto if rng.random() < 0.3 else FixedGamma(rng.choice([1, 2, 3, 5, 8]))
        self.scheduler = Scheduler(self.settings, gamma)

    def run(self):
        """The rounds, each checked as it comes."""
        rounds, times = [], []
        for outcome in drive(self.scheduler, self.workers):
            rounds.append(outcome)
            times.append(self.workers.now)
            self.check_round(outcome)
        self.check_text(rounds)
        self.check_stops(rounds, times)
        return rounds

    def check_round(self, outcome):
        emitted = self.scheduler.emitted
        assert tuple(emitted[outcome.start :]) == outcome.token_ids and outcome.token_ids, "rounds leave no gap"
        assert self.workers.target.text == emitted, "the target's cache is not the text"
        if self.scheduler._draft == "ready":
            assert self.workers.draft_view()[: len(emitted)] == emitted or self.scheduler.finished, "the draft's is not"
        assert len(outcome.origins) == len(outcome.token_ids)
        assert outcome.origins.count("draft") == outcome.accepted and "bonus" not in outcome.origins
        assert set(outcome.origins[:-1]) <= {"draft"}, "only a round's last token is the target's"
        assert outcome.drafted == outcome.accepted + outcome.wasted and 0 <= outcome.aborted <= outcome.wasted
        assert outcome.rows <= self.settings.rows and outcome.pending == max(outcome.rows - 1, 0)

    def check_text(self, rounds):
        text, emitted = self.text, self.scheduler.emitted
        assert [one.mode == "prefill" for one in rounds] == [True] + [False] * (len(rounds) - 1)
        assert [token for one in rounds for token in one.token_ids] == emitted
        assert len(emitted) <= self.settings.max_new_tokens
        assert EOS not in emitted[:-1] and (len(emitted) == self.settings.max_new_tokens or emitted[-1] == EOS)
        assert text.asked == [tuple(emitted[:i]) for i in range(len(emitted))], "verified twice, skipped or beside"
        if text.rng is None:
            assert emitted == text.reference(self.settings.max_new_tokens)

    def check_stops(self, rounds, times):
        """At a rejection the draft is told at once, and what it was told it obeys before its next forward pass."""
        told = {at for at, message in self.workers.submitted if is_rollback(message)}
        for outcome, at in list(zip(rounds, times, strict=True))[:-1]:
            assert outcome.origins[-1] != "correction" or at in told, "the draft was not told of a rejection"
        while self.workers._events:  # what the workers do after the end
            self.workers.now, _, _, happen = heapq.heappop(self.workers._events)
            happen()
        passes = [block for block in self.workers.blocks if block.kind == "draft"]
        for at, epoch, message in self.workers.arrived:
            if is_rollback(message):
                assert not [one for one in passes if one.epoch <= epoch and one.start > at], "a stale draft went on"
        last = [(at, message) for at, _, message in self.workers.arrived if isinstance(message, Propose)][-1:]
        for at, message in last:
            assert not message.until, "the draft was not stopped at the end"
            assert not [one for one in passes if one.start > at], "the draft went on after the end"
        limit = self.settings.max_new_tokens
        assert all(one.position < limit for one in passes), "drafted beyond the limit"
