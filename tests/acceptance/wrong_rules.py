"""Rules of acceptance that claim to be lossless and are not: tests must see it."""

from vidspec.acceptance.base import Verdict
from vidspec.engine.sampling import draw_token


class AcceptsAll:
    """Emits whatever is drafted; the last token is the target's.

    Args:
        sampling: draws the last token; None for the target's choice.
    """

    lossless = True

    def __init__(self, sampling=None):
        self.sampling = sampling

    def __call__(self, draft, passed, rng):
        if self.sampling is None:
            return Verdict.chain(len(draft.tokens), passed.chosen[-1])
        return Verdict.chain(len(draft.tokens), draw_token(self.sampling.distribution(passed.logits)[-1], rng))
