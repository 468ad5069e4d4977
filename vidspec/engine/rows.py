"""The rows of one sequence in a pass, and their results. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from vidspec.engine.history import RowChanges, TextHistory
    from vidspec.engine.sampling import DrawRule, Sampling
    from vidspec.engine.slab import KVSpan
    from vidspec.engine.taps import Taps


class PromptVisualTokens(Protocol):
    """The visual tokens of a prompt: their rows, and the features that early blocks add to them."""

    @property
    def index(self) -> torch.Tensor: ...
    @property
    def deepstack(self) -> Sequence[torch.Tensor]: ...


class Prompt(Protocol):
    """An embedded prompt of L rows.

    Attributes:
        embeds: (1, L, hidden).
        positions: (1, L), or (3, 1, L) under M-RoPE.
        visual: the visual tokens; ``deepstack`` holds, for each of the first blocks, (N, hidden) to add after it.
        next_position: rotary position of the first generated token.
        bidirectional: (M,) rows, sorted, that see each other both ways in every block.
    """

    @property
    def embeds(self) -> torch.Tensor: ...
    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def visual(self) -> PromptVisualTokens: ...
    @property
    def next_position(self) -> float: ...
    @property
    def bidirectional(self) -> torch.Tensor: ...
    @property
    def length(self) -> int: ...


class HeadState(NamedTuple):
    """The state that a head reads with a token: that of the token before it.

    Attributes:
        states: (n, width) of one pass.
        row: index of the state.
        own: True for states of the head itself; those of its target are projected first.
    """

    states: torch.Tensor
    row: int
    own: bool = False


class ContextRows(NamedTuple):
    """Rows that the target has read, for a block head: each becomes an entry of its sequence.

    Attributes:
        states: (n, blocks * hidden) of the target, in parts.
        positions: (axes, n) of a prompt's rows; None if the rows follow the sequence.
    """

    states: Sequence[torch.Tensor]
    positions: torch.Tensor | None = None

    @property
    def row_count(self) -> int:
        return sum(map(len, self.states))


@dataclass(eq=False)  # not frozen, which takes four times as long to make
class Rows:
    """The rows that one sequence adds to a pass: a stretch of its prompt, or tokens after its entries.

    Attributes:
        span: the sequence; it grows by the rows.
        token_ids: n tokens: one, a window, or nodes of a tree. Empty for a stretch of a prompt.
        parents: for a tree: for each of its m nodes in cache order the index of its parent, -1 for children of the last
            committed entry; parents come before their children. The tokens are the last n nodes, the m - n before them
            are in the cache already. None for a chain.
        prompt: the prompt of ``stretch``.
        stretch: first row of the prompt and the one after the last; they must be the next rows of the sequence.
        taps: observers of a prompt's rows.
        states: True to return the hidden states of all rows, also of a prompt.
        tapped: blocks whose inputs are returned; the number of blocks stands for the input of the final norm.
        draw: rule for drawing the last tokens; None for the likeliest ones.
        top: number of likeliest tokens of each row to return with their probabilities.
        processor: changes of the logits before any token is chosen; None for none.
        head_states: for a head, the state that it reads with each token.
        context: for a block head, rows of the target that become entries before the tokens do.
    """

    span: KVSpan
    token_ids: Sequence[int] = ()
    parents: Sequence[int] | None = None
    prompt: Prompt | None = None
    stretch: tuple[int, int] = (0, 0)
    taps: Taps | None = None
    states: bool = False
    tapped: tuple[int, ...] = ()
    draw: DrawRule | None = None
    top: int = 0
    processor: RowChanges | None = None
    head_states: Sequence[HeadState] = ()
    context: ContextRows | None = None

    def __len__(self) -> int:
        return len(self.token_ids) if self.prompt is None else self.stretch[1] - self.stretch[0]

    @property
    def is_prompt_end(self) -> bool:
        """True if these are the last rows of a prompt."""
        return self.prompt is None or self.stretch[1] == self.prompt.length

    @cached_property
    def depths(self) -> list[int]:
        """Number of tree tokens before each node on its path."""
        depths: list[int] = []
        for node, parent in enumerate(self.parents or ()):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} of a tree cannot follow node {parent}")
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    @property
    def entry_offsets(self) -> Sequence[int]:
        """Number of entries of the sequence before each token on its path."""
        length = self.span.length
        if self.parents is None:
            return range(length, length + len(self.token_ids))
        read = len(self.parents) - len(self.token_ids)
        return [length - read + depth for depth in self.depths[read:]]

    def ancestor_mask(self) -> torch.Tensor:
        """Return (n, m) bool: the tree nodes that each token attends to, its ancestors and itself."""
        import torch

        parents = self.parents or ()
        sees = torch.eye(len(parents), dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                sees[node] |= sees[parent]
        return sees[len(parents) - len(self.token_ids) :]


@dataclass(frozen=True)
class ChainRule:
    """Rule by which the tokens of one chain are chosen.

    Attributes:
        history: penalties on them; None for none.
        path: tokens between its text and the chain.
        sampling: how they are drawn; None for the likeliest ones.
        uniforms: one number in [0, 1) for each token that is drawn.
    """

    history: TextHistory | None = None
    path: Sequence[int] = ()
    sampling: Sampling | None = None
    uniforms: Sequence[float] = ()


@dataclass(eq=False)
class PassResult:
    """The result of a pass for one sequence.

    Attributes:
        logits: (n, vocabulary) for n tokens, after ``Rows.processor``; for a prompt's stretch (1, vocabulary) after its
            last row if the prompt ends with it, else (0, vocabulary).
        hidden: after the final norm, (n, hidden); for a prompt without ``states`` as many rows as ``logits``.
        tapped: (n, blocks * hidden) the inputs of the ``tapped`` blocks, concatenated in their order; None without
            tapped blocks.
        finite: True if all logits were finite before the processor.
        likeliest: n token ids, the argmax of each row.
        chosen: n token ids, drawn for each row by :func:`~vidspec.engine.sampling.choose_tokens`; without
            ``Rows.draw`` the likeliest.
        top: for each row ``Rows.top`` token ids, the likeliest first, and their probabilities.
        probs: (drawn rows, vocabulary) the distributions they were drawn from; None without ``Rows.draw``.
        path: of a verified window, the indices of its tokens that are emitted, in order.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    tapped: torch.Tensor | None = None
    finite: bool = True
    likeliest: Sequence[int] = ()
    chosen: Sequence[int] = ()
    top: Sequence[tuple[Sequence[int], Sequence[float]]] = ()
    probs: torch.Tensor | None = None
    path: Sequence[int] = ()

    @property
    def own_states(self) -> list[HeadState]:
        """The states after each row, which a head reads with tokens that follow; empty without tapped blocks."""
        tapped = self.tapped
        return [] if tapped is None else [HeadState(tapped, row, own=True) for row in range(len(tapped))]

    @property
    def emitted_rows(self) -> tuple[int, ...]:
        """Rows of a verified window that the emitted tokens follow, one for each."""
        return 0, *(node + 1 for node in self.path)


class PrefillResult(NamedTuple):
    """The result of a prefill.

    Attributes:
        span: the sequence, which holds the prompt.
        logits: (vocabulary,) after the prompt.
        visual_states: (N, hidden) last states after the final norm at the visual positions, each of length 1, in the
            model's dtype; None unless requested.
    """

    span: KVSpan
    logits: torch.Tensor
    visual_states: torch.Tensor | None = None
