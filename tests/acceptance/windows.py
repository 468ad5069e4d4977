"""Random windows for the lossy rules, and their walk written out in plain Python."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from vidspec.acceptance.base import Verdict
from vidspec.drafting.base import Draft
from vidspec.engine.choices import read_back_tokens
from vidspec.engine.rows import PassResult, Rows
from vidspec.engine.sampling import DrawRule, Sampling
from vidspec.events.events import LooseToken

GREEDY = Sampling()
VOCABULARY, EOS, PROTECTED = 7, 5, 6
END, SAFE = frozenset({EOS}), frozenset({PROTECTED})


def chain(*tokens):
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)))


def rows(*wanted, vocabulary=VOCABULARY):
    """Logits (n, vocabulary) of a target that wants these tokens."""
    logits = torch.zeros(len(wanted), vocabulary)
    logits[range(len(wanted)), list(wanted)] = 9.0
    return logits


def window_pass(draft, logits, hidden=None, sampling=GREEDY, rng=None):
    """A target's pass over a window, as the engine gives it: of sampled tokens each row has a random number."""
    draw = None
    if not sampling.greedy:
        draw = DrawRule(
            sampling, tuple(torch.rand(len(logits), dtype=torch.float64, generator=rng).tolist()), draft.probs
        )
    (found,) = read_back_tokens([Rows(None, [0, *draft.tokens], draw=draw)], [PassResult(logits, hidden)])
    return found


@st.composite
def chains(draw):
    """A chain and the tokens that the target wants: more often than by chance what was drafted."""
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=10))
    agree = draw(st.lists(st.integers(0, 2), min_size=len(tokens), max_size=len(tokens)))
    other = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    wanted = [token if yes else instead for token, yes, instead in zip(tokens, agree, other, strict=False)]
    return chain(*tokens), [*wanted, other[-1]]


@st.composite
def trees(draw):
    """A tree whose siblings differ, and the token that the target wants behind each node, the root first."""
    parents, tokens = [], []
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        taken = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        free = [token for token in range(VOCABULARY) if token not in taken]
        if free:
            parents.append(parent)
            tokens.append(draw(st.sampled_from(free)))
    draft = Draft(tuple(tokens), tuple(parents))
    wanted = []
    for node in range(-1, len(tokens)):
        children = [tokens[child] for child in draft.children(node)]
        wanted.append(draw(st.sampled_from(children * 2 + list(range(VOCABULARY)))))
    return draft, wanted


def leaves(draft):
    """Paths to the leaves, depth first, by recursion."""

    def below(path):
        children = draft.children(path[-1] if path else -1)
        return [longer for child in children for longer in below([*path, child])] if children else [path]

    return below([])


def literal_walk(draft, wanted, pardons):
    """``pardons(path, tokens, targets)``: for one branch the reason of each place that may pass."""
    best = None
    for path in leaves(draft):
        tokens = [draft.tokens[node] for node in path]
        targets = [wanted[0], *(wanted[node + 1] for node in path)]
        reasons = pardons(path, tokens, targets)
        accepted, loosened = 0, []
        while accepted < len(path):
            token, target = tokens[accepted], targets[accepted]
            if token != target:
                if accepted not in reasons or {token, target} & {EOS, PROTECTED}:
                    break
                loosened.append((accepted, target, reasons[accepted]))
            accepted += 1
        if best is None or accepted > len(best[0]):
            best = (tuple(path[:accepted]), targets[accepted], loosened)
    return best


def outcome(verdict: Verdict):
    return verdict.path, verdict.token, [(one.at, one.wanted, one.by) for one in verdict.loosened]


def passed(at, wanted, by="relevance", **measured):
    return LooseToken(at, wanted, by, **measured)
