"""The contract of acceptance rules, which alone decide the emitted tokens."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from vidspec.drafting.base import NO_DRAFT, Draft
from vidspec.engine.stock_types import StockTokenizer
from vidspec.events.events import LooseToken, Origin, RejectedToken
from vidspec.registry import OptionConflict, Registry, build_part

if TYPE_CHECKING:
    import torch

    from vidspec.config.part_sections import AcceptSection
    from vidspec.config.schema import Profile
    from vidspec.engine.rows import PassResult
    from vidspec.engine.sampling import Sampling
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["AcceptanceRule", "GroundedRule", "Verdict", "build_rule", "for_clip", "rules"]

_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen half first second
third fourth fifth sixth seventh eighth ninth tenth once twice
"""

_NEGATIONS = """
no not never none nothing nobody nowhere neither nor without cannot n't 't
"""

#: Stems that tokenizers split off before "n't" or "'t".
_STEMS = "isn aren wasn weren don doesn didn hasn haven hadn won wouldn couldn shouldn mustn"

#: English words of each class, the language of the supported models' captions. Digits are numbers as well.
CLASSES = {"numbers": tuple(_NUMBERS.split()), "negations": tuple(_NEGATIONS.split())}

#: Tokens with a digit, except names of bytes that are not digits.
_NUMERIC = re.compile(r"<0x3[0-9]>|(?!<0x..>$).*[0-9].*", re.DOTALL)


@dataclass
class Verdict:
    """The result of verifying a window. A rule sets the first three fields, the target's pass the others.

    Attributes:
        path: indices of the window's tokens that are emitted, in order; 0, 1, ... for a chain.
        token: the target's own token after them: a correction, or a bonus if the whole window was accepted.
        loosened: accepted tokens that the target would not have chosen, by index in ``path``; empty for lossless rules.
        draft: the window.
        probabilities: the target's probabilities of the emitted tokens, if requested.
        seconds: time of the pass and the rule.
        round: number of the pass in the parallel schedule.
    """

    path: tuple[int, ...]
    token: int
    loosened: tuple[LooseToken, ...] = ()
    draft: Draft = NO_DRAFT
    probabilities: tuple[float, ...] = ()
    seconds: float = 0.0
    round: int = 0

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that are emitted."""
        return len(self.path)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The emitted tokens: accepted ones, then the target's own."""
        drafted = self.draft.tokens
        return (*map(drafted.__getitem__, self.path), self.token)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Origin of each emitted token."""
        path, draft, names = self.path, self.draft, list[Origin](["draft"]) * len(self.path)
        for loose in self.loosened:
            names[loose.at] = "loose"
        followed = len(path) < len(draft.tokens) if draft.is_chain else draft.children(path[-1] if path else -1)
        return (*names, "target" if not draft.tokens else "correction" if followed else "bonus")

    @property
    def rejected(self) -> tuple[RejectedToken, ...]:
        """Drafted tokens that an emitted token replaces, each with the index of that token."""
        path, draft = self.path, self.draft
        if draft.is_chain:
            at = len(path)
            return (RejectedToken(at, draft.tokens[at]),) if at < len(draft.tokens) else ()
        return tuple(
            RejectedToken(at, draft.tokens[node])
            for at, parent in enumerate((-1, *path))
            for node in draft.children(parent)
            if node not in path
        )

    @classmethod
    def chain(
        cls,
        accepted: int,
        token: int,
        loosened: tuple[LooseToken, ...] = (),
        *,
        seconds: float = 0.0,
        round: int = 0,
    ) -> Verdict:
        """Return the verdict that accepts the first ``accepted`` tokens of a chain."""
        return cls(tuple(range(accepted)), token, loosened, seconds=seconds, round=round)


class AcceptanceRule(ABC):
    """An acceptance rule.

    Parameters of its constructor may be keys of a profile's ``accept`` section, its own options, ``sampling``, ``eos``,
    the target's end tokens, and ``protected``, the ids of ``accept.protect``.

    Attributes:
        lossless: True if the output is exactly the target's own.
        draws: True if it can verify sampled tokens; else greedy choices only.
        accepts_unverified: share of a window that is accepted without a check.
    """

    lossless: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    accepts_unverified: float = 0.0

    @classmethod
    def check(cls, profile: Profile) -> Iterable[OptionConflict]:
        """Yield conflicts of the rule with the rest of a profile."""
        return ()

    @abstractmethod
    def __call__(self, draft: Draft, passed: PassResult, rng: torch.Generator) -> Verdict:
        """Verify a window.

        Args:
            draft: gamma proposed tokens.
            passed: the target's pass over them, gamma + 1 rows of ``logits``, ``hidden`` states and ``chosen`` tokens,
                which are on the host; row 0 follows the last emitted token, row i + 1 the i-th drafted one.
            rng: CPU generator.
        """


rules: Registry[AcceptanceRule] = Registry(
    AcceptanceRule,
    "acceptance",
    "vidspec.acceptance.rules",
    "acceptance rule",
    "accept.rule",
    known=("sampling", "eos", "protected"),
)


class GroundedRule(AcceptanceRule):
    """A rule that also reads the target's visual states, given before a clip's first window."""

    @abstractmethod
    def for_clip(self, visual_states: torch.Tensor) -> AcceptanceRule:
        """Return the rule for one clip.

        Args:
            visual_states: (N, hidden) the target's last states, after the final norm, at the visual positions of its
                prompt, each of length 1.
        """


def build_rule(section: AcceptSection, target: VideoLanguageModel, sampling: Sampling) -> AcceptanceRule:
    """Return the rule that a profile's ``accept`` section names."""
    protected = protected_ids(target.tokenizer, section.protect) if section.protect else frozenset[int]()
    return build_part(rules.get(section.rule), section, sampling=sampling, eos=target.eos, protected=protected)


def for_clip(rule: AcceptanceRule, visual_states: torch.Tensor | None) -> AcceptanceRule:
    """Return the rule for a clip whose prompt has been read; only a :class:`GroundedRule` needs the states."""
    if not isinstance(rule, GroundedRule):
        return rule
    if visual_states is None:
        raise ValueError("this rule needs the visual states of the prompt")
    return rule.for_clip(visual_states)


@lru_cache(maxsize=8)
def protected_ids(tokenizer: StockTokenizer, protect: tuple[str, ...]) -> frozenset[int]:
    """Return the ids of every token that occurs in a protected word.

    A word is looked up as written, in lower case and capitalised, with and without a space before it. If the tokenizer
    splits it, all its pieces are protected wherever they occur: too many tokens are strict rather than too few. The
    class ``numbers`` also includes every token with a digit, and ``negations`` the stems that tokenizers cut from
    contractions ("isn" of "isn't") where they are one token.

    Args:
        tokenizer: of the target.
        protect: words, or names of :data:`CLASSES`.
    """
    found: set[int] = set()
    for entry in protect:
        for word in CLASSES.get(entry, (entry,)):
            for ids in _spellings(tokenizer, word):
                found.update(ids)
    if "negations" in protect:
        for stem in _STEMS.split():
            for ids in _spellings(tokenizer, stem):
                found.update(ids if len(ids) == 1 else ())
    if "numbers" in protect:
        found |= {index for token, index in tokenizer.get_vocab().items() if _NUMERIC.fullmatch(token)}
    return frozenset(found - set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})


def _spellings(tokenizer: StockTokenizer, word: str) -> Iterator[list[int]]:
    for text in {word, word.lower(), word.capitalize()}:
        for spelt in (text, f" {text}"):
            yield tokenizer.encode(spelt, add_special_tokens=False)
