"""Target thread and scheduler on tables: what is drawn, who is waited for and for how long."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from decoding.toys import ToyEngine, blend, random_table
from vidspec.acceptance.base import Verdict
from vidspec.acceptance.exact import Exact
from vidspec.decoding.base import Target
from vidspec.decoding.parallel import Scheduler, Settings, drive
from vidspec.decoding.protocol import Abort, Failed, PrefillDraft, PrefillTarget, Propose, Proposed, Ready, Rollback
from vidspec.decoding.trace import Trace
from vidspec.decoding.workers import pair as pairs
from vidspec.decoding.workers.pair import Pair
from vidspec.decoding.workers.process import _launching
from vidspec.decoding.workers.pulse import Pulse
from vidspec.decoding.workers.target import TargetThread
from vidspec.decoding.workers.text import DraftText
from vidspec.engine.sampling import Sampling, draw
from vidspec.planning.gamma import FixedGamma

VOCABULARY, EOS, LENGTH = 3, 2, 5
TARGET = random_table(11, VOCABULARY, 1.2)
DRAFT = blend(TARGET, random_table(12, VOCABULARY, 1.5), 0.6)


class Beating:
    """Signs of life, so many of them."""

    def __init__(self, beats=0):
        self.left = beats

    def beats(self):
        self.left -= 1
        return self.left >= 0


class TableDraft:
    """The draft's process as far as a pair sees it: answers at once, in the thread that asks."""

    def __init__(self, table=DRAFT):
        self.engine = ToyEngine(table)
        self.closed = []
        self.pulse = Beating()

    def open(self, answer):
        self.answer, self.text, self.epoch, self.eos = answer, None, 0, frozenset()
        return 1

    def send(self, clip, message, visual=None):
        if isinstance(message, PrefillDraft):
            self.text, self.eos = DraftText(self.engine, self.engine.start()), message.eos
            self.answer(Ready("draft", 0.0))
        elif isinstance(message, Rollback):
            self.epoch = message.epoch
            self.text.cut(message.keep, message.tokens)
        elif isinstance(message, Propose) and message.epoch == self.epoch:
            tokens = self.text.tokens
            while len(tokens) < message.until and not (tokens and tokens[-1] in self.eos):
                token = self.text.extend()
                self.answer(Proposed(self.epoch, len(tokens) - 1, token, 0.0))
        else:
            assert isinstance(message, Abort | Propose)

    def serves(self, clip):
        return True

    def finish(self, clip, timeout=None):
        self.closed.append(clip)


def reading(engine, sampling, rng):
    return lambda publish: (Target(engine, engine.start(), sampling, rng), None)


def pair_of(target, draft=None, timeout=20.0):
    draft = draft or TableDraft()
    return Pair(target, draft, draft.open, eager=True, timeout=timeout, visual=lambda: None)


def draws(rule, sampling, count):
    """Texts of the parallel schedule, one generator for all."""
    rng, engine = torch.Generator().manual_seed(5), ToyEngine(TARGET)
    for number in range(count):
        settings = Settings(LENGTH, frozenset({EOS}), overlap=number % 2 == 0)
        pair = pair_of(lambda put: TargetThread(reading(engine, sampling, rng), rule(sampling), rng, Trace(), put))
        scheduler = Scheduler(settings, FixedGamma(1 + number % 3))
        list(drive(scheduler, pair))
        pair.abort()
        yield tuple(scheduler.emitted)


class AcceptsAll(Exact):
    """Wrong: emits whatever is drafted."""

    def __call__(self, draft, target_logits, hidden, rng):
        last = draw(self.sampling.distribution(target_logits)[-1], rng)
        return Verdict.chain(len(draft.tokens), last)


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
    found, expected = Counter(draws(rule, sampling, count)), exact(sampling)
    assert set(found) <= set(expected)
    seen, due = Counter(), Counter()
    for text, share in expected.items():
        name = text if share * count >= 5 else "rare"
        seen[name] += found[text]
        due[name] += share * count
    return chisquare([seen[name] for name in due], list(due.values())).pvalue


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, 0.8)])
def test_sampled_texts_have_the_targets_distribution(sampling):
    assert fits(Exact, sampling, 1200) > 0.001


def test_the_test_of_the_distribution_can_fail():
    assert fits(AcceptsAll, Sampling(1.0), 1800) < 1e-6


class Slow:
    """A prompt that is read until it is let go."""

    def __init__(self):
        self.go = threading.Event()
        engine = ToyEngine(TARGET)
        self.target = Target(engine, engine.start(), Sampling(), torch.Generator())

    def thread(self, put):
        return TargetThread(self.read, Exact(Sampling()), torch.Generator(), Trace(), put)

    def read(self, publish):
        self.go.wait(20)
        return self.target, None


def test_a_target_at_work_is_not_taken_for_a_draft_that_hangs():
    slow = Slow()
    pair = pair_of(slow.thread, timeout=0.05)
    pair.submit("target", PrefillTarget())
    threading.Timer(0.4, slow.go.set).start()
    assert isinstance(pair.result(), Ready)
    assert pair.result() == Failed("draft", "no answer for 0.05 s", lost=True)
    pair.abort()


@pytest.mark.parametrize(("beats", "read", "waited"), [(0, False, 1), (4, False, 5), (4, True, 1)])
def test_a_draft_may_take_long_over_its_prompt_as_long_as_it_works(beats, read, waited):
    """And not over what it does then."""
    draft = TableDraft()
    draft.pulse = Beating(beats)
    slow = Slow()
    slow.go.set()
    pair = pair_of(slow.thread, draft, timeout=0.1)
    if read:
        draft.answer(Ready("draft", 0.0))
        pair.result()
    begun = time.monotonic()
    assert pair.result() == Failed("draft", "no answer for 0.1 s", lost=True)
    assert time.monotonic() - begun >= 0.1 * waited
    pair.abort()


def test_a_target_that_hangs_is_given_up_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(pairs, "PATIENCE", 0.1)
    slow = Slow()
    pair = pair_of(slow.thread, timeout=0.05)
    pair.submit("target", PrefillTarget())
    while not pair.target.busy:
        time.sleep(0.001)
    assert pair.result() == Failed("target", "no answer for 0.1 s")
    pair.abort()
    assert pair.target._thread.is_alive()
    slow.go.set()
    pair.target._thread.join(20)
    assert not pair.target._thread.is_alive()


def test_an_error_of_the_target_is_raised_as_it_is():
    def broken(publish):
        raise torch.OutOfMemoryError("mine")

    pair = pair_of(lambda put: TargetThread(broken, Exact(Sampling()), torch.Generator(), Trace(), put))
    with pytest.raises(torch.OutOfMemoryError, match="mine"):
        list(drive(Scheduler(Settings(3), FixedGamma(2)), pair))


def test_a_pair_that_cannot_be_made_closes_its_clip():
    draft = TableDraft()

    def target(put):
        raise RuntimeError("no thread")

    with pytest.raises(RuntimeError, match="no thread"):
        pair_of(target, draft)
    assert draft.closed == [1]


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="tells what a process does")
def test_a_pulse_tells_work_from_waiting():
    code = "import sys\nwhile sys.stdin.readline().strip() == 'work': sum(range(10**8)); print('done', flush=True)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        pulse = Pulse(one.pid)
        one.stdin.write("work\n")
        one.stdin.flush()
        one.stdout.readline()
        assert pulse.beats()
        time.sleep(0.2)  # it reads from the pipe now
        pulse.beats()
        assert not pulse.beats()
        one.stdin.write("work\n")
        one.stdin.flush()
        time.sleep(0.1)
        assert pulse.beats()
        os.kill(one.pid, signal.SIGSTOP)
        time.sleep(0.1)
        pulse.beats()
        assert not pulse.beats()
        one.kill()
    assert not pulse.beats(), "it is gone"


def test_two_processes_started_at_once_leave_the_main_module_alone():
    main, hidden, blocked = sys.modules["__main__"], [], []

    def start():
        with _launching():
            hidden.append(sys.modules["__main__"] is not main)
            blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            time.sleep(0.1)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert hidden == blocked == [True, True] and sys.modules["__main__"] is main
    with _launching():
        pass
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
