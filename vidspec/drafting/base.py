"""The drafter's contract: propose a window, then commit what the target accepted of it.

A :class:`DrafterKind` is registered; it opens a :class:`Drafter` for each clip. A drafter without a model derives from
:class:`FreeDrafter`, which is both, and implements ``guess``. Further abilities of a drafter are hooks: attributes and
methods whose defaults do nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

from vidspec.registry import build_part, drafters

if TYPE_CHECKING:
    import torch

    from vidspec.config.sections import DraftSection
    from vidspec.draft_length.pace import DraftWindow, WindowController
    from vidspec.drafting.context import DraftContext
    from vidspec.engine.penalties import PenaltyHistory
    from vidspec.engine.requests import Steps
    from vidspec.engine.rows import PassResult
    from vidspec.engine.slab import KVSpan
    from vidspec.models.base import EmbeddedPrompt, VideoLanguageModel

__all__ = [
    "Draft",
    "Drafter",
    "DrafterKind",
    "FreeDrafter",
    "drafter_of",
]


@dataclass(frozen=True)
class Draft:
    """A proposed window: a chain, or a tree of alternatives.

    Attributes:
        tokens: token ids; of a chain gamma of them or fewer.
        parents: index of each token's parent in the window, -1 for the last committed token; a chain is -1, 0, 1, ...
            Parents come before their children.
        probs: (gamma, V) the distributions a chain's tokens were drawn from; None if they were chosen greedily.
        weights: of an ensemble, the weight of each context in this window; they sum to 1.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: torch.Tensor | None = None
    weights: tuple[float, ...] = ()

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
        """The tokens from the last committed one to each token, which is the last of them."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return tuple(paths)

    def children(self, node: int) -> list[int]:
        """Nodes that follow ``node``; -1 for those that follow the last committed token."""
        return [index for index, parent in enumerate(self.parents) if parent == node]


class Drafter(ABC):
    """Proposes continuations of the committed text; the drafter of one clip.

    Attributes:
        forwards: passes of the draft model so far, prefill excluded.
        spans: sequences that hold the emitted text, or its beginning, after their prompts.
        declined: rounds so far in which it would have cost more than it was expected to gain, and proposed nothing.
        paces: whether it chooses the length of its windows itself, up to the requested one; see :meth:`set_pace`.
        learns: whether it learns from the target's passes; see :meth:`observe`. A schedule that passes token ids only
            refuses it, as it does one with ``tapped``.
        tapped: blocks of the target whose inputs it reads; see :meth:`observe_states`.
        history: the emitted text, with penalties that its own choices should follow too, since the target's do; set
            before the text begins, None without penalties.
    """

    forwards: int = 0
    declined: int = 0
    spans: Sequence[KVSpan] = ()
    paces: bool = False
    learns: bool = False
    tapped: tuple[int, ...] = ()
    history: PenaltyHistory | None = None

    @abstractmethod
    def begin(self, token: int) -> None:
        """Take the target's first token, after the prompt."""

    @abstractmethod
    def propose(self, gamma: int) -> Steps[Draft]:
        """A window; no token in it is more than ``gamma`` after the last committed one.

        A generator: it yields engine requests for the passes that it needs, and returns the window.
        """

    @abstractmethod
    def commit(self, path: Sequence[int], token: int) -> None:
        """Take the verdict: the tokens at ``path`` of the last window were emitted, then the target's own ``token``."""

    def rest(self) -> bool:
        """Whether to propose nothing in the next round, which is plain decoding's then; called before every round.

        Of such rounds it hears by :meth:`catch_up` only, before it proposes again or not at all.
        """
        return False

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Take the tokens that the target emitted while it rested."""
        for token in token_ids:
            self.commit((), token)

    def set_pace(self, pace: WindowController, window: DraftWindow) -> None:  # noqa: B027
        """Take the measured cost of passes, and the clip's window, to which every round is reported.

        Called before the text begins, if it ``paces``.
        """

    def observe(self, path: Sequence[int], token: int, passed: PassResult) -> None:  # noqa: B027
        """The target's verdict on the last window, before its :meth:`commit`. Called if it ``learns``.

        Args:
            path: indices of the window's tokens that are emitted, in order.
            token: the target's own, emitted after them.
            passed: the target's pass, gamma + 1 rows; row 0 follows the last committed token, row i + 1 the i-th
                drafted one.
        """

    def observe_states(self, states: torch.Tensor) -> None:  # noqa: B027
        """The target's states in the pass over the last window, before its :meth:`commit`. Called if it has ``tapped``.

        Args:
            states: (gamma + 1, blocks * hidden) the inputs of the ``tapped`` blocks, concatenated; row 0 is that of the
                last committed token, row i + 1 that of the i-th drafted one.
        """

    def finish(self, token_ids: Sequence[int]) -> None:  # noqa: B027
        """Take the finished text."""


class DrafterKind(ABC):
    """A registered drafter with its properties (:class:`vidspec.registry.DrafterFacts`).

    The parameters of its constructor are its options: keys of ``draft.options``, each checked by its type. Properties
    that depend on options are set in the constructor. One object serves all clips of a profile.
    """

    needs: frozenset[str] = frozenset()
    model: Literal["draft", "target", "head", "layer"] | None = "draft"
    sees: Literal["kept", "all", "own", "nothing"] = "kept"
    trees: bool = False
    remote: bool = False
    draws: bool = True
    paces: bool = False
    gathers: bool = False
    contexts: tuple[str, ...] = ()
    #: A note to the user before the first clip, in one line.
    note: str | None = None

    @abstractmethod
    def open(self, clip: DraftContext) -> Steps[Drafter]:
        """A generator that reads the draft's prompt and returns the drafter of one clip."""

    def encode(self, clip: DraftContext) -> Steps[object]:
        """The work that does not depend on the pruner's choice. Called if it is ``remote``."""
        return clip.own()

    def prefix(self, clip: DraftContext) -> Steps[EmbeddedPrompt]:
        """The prompt that the draft model reads: its own, with the kept visual tokens. Called if it is ``remote``."""
        return clip.kept_of_own()

    def prepare(self, target: VideoLanguageModel) -> None:  # noqa: B027
        """Take the loaded target, before any clip; raise an error here if the options do not fit it."""

    def forget(self) -> None:  # noqa: B027
        """Drop what was learned from earlier clips: a measurement begins, or begins again."""

    def close(self) -> None:  # noqa: B027
        """Called after the last clip."""


def drafter_of(section: DraftSection) -> DrafterKind:
    """The drafter that a profile's ``draft`` section names, with its options."""
    return cast(DrafterKind, build_part(drafters.get(section.kind), section))


class FreeDrafter(DrafterKind, Drafter):
    """A drafter without a model: it proposes from token ids alone. It is its own kind; each clip has a copy.

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
        """Ids that may follow :attr:`text`, in order: at most ``gamma``, possibly none."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """Take ids that were emitted; they are the end of :attr:`text` now."""

    def begin(self, token: int) -> None:
        self._emitted([token])

    def propose(self, gamma: int) -> Steps[Draft]:
        yield from ()
        self.window = tuple(self.guess(gamma))[:gamma] if gamma else ()
        return Draft(self.window, tuple(range(-1, len(self.window) - 1)))

    def commit(self, path: Sequence[int], token: int) -> None:
        self._emitted([*(self.window[node] for node in path), token])

    def _emitted(self, token_ids: list[int]) -> None:
        self.text += token_ids
        self.accept(token_ids)
