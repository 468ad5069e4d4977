"""The contract of drafters: propose a window, then read the tokens that the target emitted.

A :class:`DrafterKind` is registered; it opens a :class:`Drafter` for each clip. A drafter without a model derives from
:class:`FreeDrafter`, which is both, and implements ``guess``. Further abilities of a drafter are hooks: attributes and
methods whose defaults do nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from vidspec.registry import OptionConflict, Registry, build_part

if TYPE_CHECKING:
    import torch

    from vidspec.config.part_sections import DraftSection
    from vidspec.config.schema import Profile
    from vidspec.draft_length.costs import TokenPrices
    from vidspec.draft_length.pace import WindowController
    from vidspec.draft_length.window import DraftWindow
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.history import TextHistory
    from vidspec.engine.requests import Steps
    from vidspec.engine.rows import PassResult
    from vidspec.engine.slab import KVSpan
    from vidspec.events.events import Origin
    from vidspec.models.base import EmbeddedPrompt
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["NO_DRAFT", "Draft", "Drafter", "DrafterKind", "drafter_of", "drafters"]


@dataclass(frozen=True)
class Draft:
    """A proposed window: a chain, or a tree of alternatives.

    Attributes:
        tokens: token ids; at most gamma for a chain.
        parents: index of each token's parent in the window, -1 for the last committed token; a chain is -1, 0, 1, ...
            Parents come before their children.
        probs: (gamma, V) the distributions a chain's tokens were drawn from; None if they were chosen greedily. V is
            the target's ``vocabulary``; each row sums to 1, which is not checked.
        weights: for an ensemble, the weight of each context in this window; they sum to 1.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: torch.Tensor | None = None
    weights: tuple[float, ...] = ()

    @classmethod
    def chain(cls, tokens: Sequence[int], probs: torch.Tensor | None = None, weights: tuple[float, ...] = ()) -> Draft:
        """Return a chain of these tokens."""
        one = cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs, weights)
        one.__dict__["is_chain"] = True
        return one

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each token from the last committed one; 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Token path from the last committed token to each node, inclusive."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return tuple(paths)

    def children(self, node: int) -> list[int]:
        """Return the children of ``node``; -1 stands for the last committed token."""
        return [index for index, parent in enumerate(self.parents) if parent == node]


#: The empty draft of plain decoding.
NO_DRAFT = Draft((), ())


class Drafter(ABC):
    """Proposes continuations of the committed text; the drafter of one clip.

    Attributes:
        forwards: passes of the draft model so far, prefill excluded.
        spans: sequences that hold the emitted text, or its beginning, after their prompts.
        declined: rounds so far without a proposal, because it was expected to cost more than it gains.
        paces: True if it chooses the length of its windows itself, up to the requested one; see :meth:`set_pace`.
        tapped: blocks of the target whose inputs :meth:`read` finds in ``passed.tapped``.
        history: the emitted text with the profile's penalties, which the drafter's choices should follow as the
            target's do; set before :meth:`begin`, None without penalties.
        origin: of its accepted tokens.
    """

    forwards: int = 0
    declined: int = 0
    spans: Sequence[KVSpan] = ()
    paces: bool = False
    tapped: tuple[int, ...] = ()
    history: TextHistory | None = None
    origin: Origin = "draft"

    @abstractmethod
    def begin(self, token: int) -> None:
        """Take the target's first token, after the prompt."""

    @abstractmethod
    def propose(self, gamma: int) -> Steps[Draft]:
        """Propose a window; no token is more than ``gamma`` after the last committed one.

        A generator that yields engine requests for its passes and returns the window.
        """

    @abstractmethod
    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        """Read what the target emitted in a round: tokens of the last window, and the target's own after them.

        Called once after every round, those of plain decoding included. If it proposed nothing, all tokens are others'.

        Args:
            tokens: at least one.
            passed: the target's pass over the window. Row 0 follows the last token before it, row i + 1 its i-th
                token; ``passed.path`` are the indices of those that are emitted. Another drafter's tokens may stand
                after its own.
        """

    def rest(self) -> bool:
        """Return True to propose nothing in the next round, which is then plain decoding; called before every round."""
        return False

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:  # noqa: B027
        """Take the measured cost of passes, and the clip's window, to which the drafter reports every round.

        Called before :meth:`begin`, if it ``paces``.
        """

    def cost(self, gamma: int, prices: TokenPrices) -> float:
        """Return the cost in tokens of the passes that draft a window of ``gamma`` tokens."""
        return gamma * prices.of_pass("draft", 1)

    def finish(self, token_ids: Sequence[int]) -> None:  # noqa: B027
        """Take the finished text."""


class DrafterKind(ABC):
    """A registered drafter with its properties.

    The parameters of its constructor are its options: keys of ``draft.options``, each checked by its type. Properties
    that depend on options are set in the constructor. One object serves all clips of a profile.

    Attributes:
        needs: signals of the target's prefill that it reads itself, as :class:`vidspec.pruning.base.Pruner` names them.
        model: the weights it drafts with: a ``draft`` model, the ``target`` itself, a ``head`` that reads the target's
            states, such a ``layer`` in the target's own checkpoint, or None: it needs no pass of any model, and its
            proposals cost next to nothing.
        head: layout of that head, if ``models.draft`` names it.
        sees: the part of the video it sees: visual tokens that a pruner ``kept``, ``all`` in a way of its own, cache
            entries of its ``own`` choice, or ``nothing``.
        trees: True if it can draft the trees of ``draft.topology``.
        remote: True if it can run in its own process, alongside the target: it needs only token ids and kept indices,
            and answers for every position.
        draws: True if it samples its tokens when the target samples; otherwise they are its greedy choices, and every
            emitted token takes one draw, as in plain decoding.
        paces: True if it chooses the number of draft tokens by the cost of passes.
        gathers: True if it reads selected entries of the target's own cache.
        contexts: names of the contexts of its draft model, if there are several.
        note: a note to the user before the first clip, in one line.
    """

    needs: frozenset[str] = frozenset()
    model: Literal["draft", "target", "head", "layer"] | None = "draft"
    head: Literal["eagle3", "dflash"] = "eagle3"
    sees: Literal["kept", "all", "own", "nothing"] = "kept"
    trees: bool = False
    remote: bool = False
    draws: bool = True
    paces: bool = False
    gathers: bool = False
    contexts: tuple[str, ...] = ()
    note: str | None = None

    def check(self, profile: Profile) -> Iterable[OptionConflict]:
        """Yield conflicts of its options with the rest of a profile."""
        return ()

    @abstractmethod
    def open(self, clip: DraftContext) -> Steps[Drafter]:
        """Read the draft's prompt and return the drafter of one clip; a generator of engine requests."""

    def encode(self, clip: DraftContext) -> Steps[object]:
        """Do the work that does not depend on the pruner's choice. Called if it is ``remote``."""
        return clip.own()

    def prefix(self, clip: DraftContext) -> Steps[EmbeddedPrompt]:
        """Return the draft model's prompt: its own, with the kept visual tokens. Called if it is ``remote``."""
        return clip.kept_of_own()

    def prepare(self, target: VideoLanguageModel) -> None:  # noqa: B027
        """Take the loaded target, before any clip; raise an error here if the options do not fit it."""

    def forget(self) -> None:  # noqa: B027
        """Drop everything learned from earlier clips, before a measurement."""

    def close(self) -> None:  # noqa: B027
        """Release resources after the last clip."""


drafters: Registry[DrafterKind] = Registry(
    DrafterKind, "drafting", "vidspec.drafting.drafters", "drafter", "draft.kind", always=("none",)
)


def drafter_of(section: DraftSection) -> DrafterKind:
    """Return the drafter that a profile's ``draft`` section names, with its options."""
    return build_part(drafters.get(section.kind), section)


class FreeDrafter(DrafterKind, Drafter):
    """A drafter without a model, which proposes from token ids alone. It is its own kind; each clip has a copy.

    Attributes:
        prompt: ids of the text of the target's prompt, visual tokens left out.
        text: emitted ids.
        window: ids of the last proposal.
    """

    model = None
    sees = "nothing"
    draws = False
    prompt: tuple[int, ...]
    text: list[int]
    window: tuple[int, ...] = ()

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        yield from ()
        one = copy(self)
        one.prompt, one.text = clip.prompt_ids, []
        one.opened(clip)
        return one

    def opened(self, clip: DraftContext) -> None:
        """Prepare this copy for its clip; no token has been emitted."""

    @abstractmethod
    def guess(self, gamma: int) -> Sequence[int]:
        """Return ids that may follow :attr:`text`, in order: at most ``gamma``, possibly none."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """Observe emitted ids, which have been appended to :attr:`text`."""

    def begin(self, token: int) -> None:
        self.add([token])

    def propose(self, gamma: int) -> Steps[Draft]:
        yield from ()
        self.window = tuple(self.guess(gamma))[:gamma] if gamma else ()
        return Draft.chain(self.window)

    def read(self, tokens: Sequence[int], passed: PassResult) -> None:
        self.window = ()
        self.add(tokens)

    def add(self, token_ids: Sequence[int]) -> None:
        """Add emitted ids, whoever proposed them."""
        self.text += token_ids
        self.accept(token_ids)
