"""The rounds of one clip on tables: what is drawn, who is waited for and for how long."""

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from tests.acceptance.wrong_rules import AcceptsAll
from tests.decoding.toys import ToyEngine, blend, random_table
from tests.tiers import full_but
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.decoding.protocol import (
    CloseClip,
    DraftSpans,
    PromptRead,
    Proposed,
    VisibleTokens,
    WorkerFailed,
)
from vidspec.decoding.scheduler import ParallelSettings, Scheduler
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.target import Target
from vidspec.decoding.workers.draft import DraftText
from vidspec.decoding.workers.process import RemoteDraft
from vidspec.decoding.workers.run import TargetSide, run_rounds
from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.window import FixedGamma
from vidspec.engine.requests import run_to_completion
from vidspec.engine.sampling import Sampling
from vidspec.events.trace import Trace
from vidspec.models.request import CaptionRequest

VOCABULARY, EOS, LENGTH = 3, 2, 5
TARGET = random_table(11, VOCABULARY, 1.2)
DRAFT = blend(TARGET, random_table(12, VOCABULARY, 1.5), 0.6)


class Beating:
    """Signs of life, so many of them."""

    def __init__(self, beats=0):
        self.left, self.seen = beats, time.monotonic()

    def silent_s(self):
        self.left -= 1
        if self.left >= 0:
            self.seen = time.monotonic()
        return time.monotonic() - self.seen


class TableDraft:
    """The draft's process as a clip sees it: answers at once, in the thread that asks."""

    def __init__(self, table=DRAFT):
        self.engine = ToyEngine(table)
        self.closed = []
        self.process, self.reading = Beating(), False

    def open(self, opening, clip):
        self.answer, self.text, self.epoch = clip.put, None, 0
        return 1

    def send(self, clip, message):
        if isinstance(message, CloseClip):
            self.closed.append(clip)
            return
        if isinstance(message, VisibleTokens):
            self.text = DraftText(self.engine, self.engine.start())
            self.answer(PromptRead())
            return
        if message.keep is not None:
            self.epoch = message.epoch
            self.text.cut(message.keep, message.tokens)
        if message.epoch == self.epoch:
            tokens = self.text.tokens
            while len(tokens) < message.until and EOS not in tokens[-1:]:
                token = run_to_completion(self.text.extend())
                self.answer(Proposed(self.epoch, len(tokens) - 1, token, 0.0))


def remote(process, timeout=20.0):
    return RemoteDraft(process, "opening", timeout, Trace())


class TableTarget(TargetSide):
    """The target's side, on a table."""

    def __init__(self, rule, sampling, rng, engine):
        super().__init__(Sequence(CaptionRequest("table"), SimpleNamespace(window=LENGTH)))
        self.rng, self.rule = rng, rule(sampling) if rule is not ExactRule else ExactRule()
        self.engine, self.sampling = engine, sampling

    def read(self, publish):
        yield from ()
        self.sequence.target = Target(self.engine, self.engine.start(), self.sampling, self.rng, acceptance=self.rule)


def draws(rule, sampling, count):
    """Texts of the parallel schedule, one generator for all."""
    rng, engine = torch.Generator().manual_seed(5), ToyEngine(TARGET)
    for number in range(count):
        settings = ParallelSettings(LENGTH, frozenset({EOS}), overlap=number % 2 == 0)
        scheduler = Scheduler(settings, FixedGamma(1 + number % 3))
        target = TableTarget(rule, sampling, rng, engine)
        run_to_completion(run_rounds(scheduler, target, remote(TableDraft()), lambda one: None, PassCosts()))
        yield tuple(scheduler.emitted)


def exact(sampling, prefix=(), share=1.0):
    """Every text and its probability, written out."""
    if len(prefix) == LENGTH or prefix[-1:] == (EOS,):
        return {prefix: share}
    p = sampling.distribution(TARGET(prefix)[None])[0].double()
    texts = {}
    for token in p.nonzero()[:, 0].tolist():
        texts |= exact(sampling, (*prefix, token), share * float(p[token] / p.sum()))
    return texts


def fits(rule, sampling, count):
    """p-value of the texts that were drawn; rare ones count as one."""
    from scipy.stats import chisquare  # it takes seconds

    found, expected = Counter(draws(rule, sampling, count)), exact(sampling)
    assert set(found) <= set(expected)
    seen, due = Counter(), Counter()
    for text, share in expected.items():
        name = text if share * count >= 5 else "rare"
        seen[name] += found[text]
        due[name] += share * count
    return chisquare([seen[name] for name in due], list(due.values())).pvalue


@pytest.mark.full
@pytest.mark.parametrize("sampling", full_but([Sampling(0.7, 0.8)], [Sampling(1.0), Sampling(0.7, 0.8)]))
def test_sampled_texts_have_the_targets_distribution(sampling):
    assert fits(ExactRule, sampling, 1200) > 0.001


@pytest.mark.full
def test_the_test_of_the_distribution_can_fail():
    assert fits(AcceptsAll, Sampling(1.0), 1800) < 1e-6


def received(draft):
    """The answers of a draft that come in time."""
    return run_to_completion(draft.receive())


def test_a_clip_hears_all_that_has_come_and_is_woken_by_what_comes(monkeypatch):
    process = TableDraft()
    draft = remote(process)
    draft.begin()
    process.answer(PromptRead())
    process.answer(Proposed(0, 0, 1, 0.0))
    assert received(draft) == [PromptRead(), Proposed(0, 0, 1, 0.0)]
    waits, wait = [], draft.wake.wait
    monkeypatch.setattr(draft.wake, "wait", lambda timeout: waits.append(wait(60.0)) or waits[-1])
    threading.Timer(0.1, process.answer, [Proposed(0, 1, 2, 0.1)]).start()
    assert received(draft) == [Proposed(0, 1, 2, 0.1)]
    assert all(waits)  # it was woken, if it waited at all


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("beats", "reads", "waited"), [(0, True, 1), (4, True, 5), (4, False, 1)])
def test_a_draft_may_take_long_over_a_prompt_as_long_as_it_works(beats, reads, waited):
    """This clip's or another's, and not over what it does then."""
    process = TableDraft()
    draft = remote(process, timeout=0.1)
    draft.begin()
    process.process, process.reading = Beating(beats), reads
    begun = time.monotonic()
    assert received(draft) == [WorkerFailed("no answer for 0.1 s", lost=True)]
    assert time.monotonic() - begun >= 0.1 * waited


def test_an_error_of_the_target_is_raised_as_it_is():
    class Broken(TableTarget):
        def read(self, publish):
            yield from ()
            raise torch.OutOfMemoryError("mine")

    target = Broken(ExactRule, Sampling(), torch.Generator(), ToyEngine(TARGET))
    scheduler = Scheduler(ParallelSettings(3), FixedGamma(2))
    with pytest.raises(torch.OutOfMemoryError, match="mine"):
        run_to_completion(run_rounds(scheduler, target, remote(TableDraft()), lambda one: None, PassCosts()))


def test_a_clip_is_closed_once_and_only_if_it_was_opened(monkeypatch):
    monkeypatch.setattr("vidspec.decoding.workers.process.SPANS_TIMEOUT", 60.0)
    process = TableDraft()
    draft = remote(process)
    draft.close()
    assert run_to_completion(draft.collect_spans()) is None and not process.closed
    draft = remote(process)
    draft.begin()
    threading.Timer(0.05, lambda: process.answer(DraftSpans((), 7))).start()
    assert run_to_completion(draft.collect_spans()).forwards == 7
    draft.close()
    assert process.closed == [1]
