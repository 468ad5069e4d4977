"""Drafting by a head over the target's states: a chain of greedy choices. The drafter's kind chooses the head.

The head reads pairs: the target's states at a token, and the embedding of the next token. For verified text the states
are the target's; after it the head continues from its own state. A pair is at the rotary position of the token whose
states it holds, on the axes of the head's config: three (M-RoPE), as the target numbers them, or one, which counts the
prompt's tokens.

Like the paper's heads it reads the whole prompt, with the video's rows as the target embeds them; or the pruned prompt,
with none to all of the visual tokens (HiViS: a head needs none), where a pair joins two rows that are adjacent after
pruning. States are always those of the target's full prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from vidspec.drafting.base import Draft, Drafter, DrafterKind

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.context import DraftContext
    from vidspec.engine.forward import Engine
    from vidspec.engine.requests import Steps
    from vidspec.engine.slab import KVSpan
    from vidspec.models.head import Head

__all__ = ["HeadChain", "HeadDraft"]


class HeadChain(Drafter):
    """The chain of one clip.

    Args:
        engine: the head's engine.
        span: its entries for all pairs of the prompt but the last, which needs the target's first token.
        states: (1, hidden) target states of the prompt's last row, concatenated over tapped blocks.
        position: (axes, 1) of that row.
        following: position of the target's first token.
    """

    def __init__(
        self, engine: Engine[Head], span: KVSpan, states: torch.Tensor, position: torch.Tensor, following: int
    ) -> None:
        self.engine, self.span = engine, span
        self.tapped = engine.model.blocks
        self._kept = span.length  # entries of pairs of the prompt and of emitted text
        self._positions = position  # of pairs not read yet
        self._states = states
        self._tokens: list[int] = []
        self._following = following
        self._window: tuple[int, ...] = ()
        self._read = 0  # pairs read for the last window
        self._seen: torch.Tensor | None = None  # the target's states in the pass over the last window

    def begin(self, token: int) -> None:
        self._tokens = [token]

    def propose(self, gamma: int) -> Steps[Draft]:
        import torch

        from vidspec.drafting.chain import chain_by_passes
        from vidspec.engine.rows import PassResult, Rows

        head, states, positions = self.engine.model, self._states, self._positions

        def rows(drafted: list[int]) -> Sequence[Rows]:
            fed = drafted[-1:] or self._tokens
            prompt, processor = head.fed(head.embed(torch.tensor(fed)), states, positions), None
            if self.history is not None:
                processor = self.history.changes_for_paths([drafted], head.tokens)
            return [Rows(self.span, prompt=prompt, stretch=(0, len(fed)), tapped=(1,), processor=processor)]

        def choose(passed: Sequence[PassResult]) -> int:
            nonlocal states, positions
            assert passed[0].tapped is not None
            states, positions = passed[0].tapped[-1:], positions[:, -1:] + 1
            return int(head.tokens[passed[0].chosen[-1]])

        tokens = yield from chain_by_passes(self.engine, gamma, rows, choose)
        self.forwards += gamma
        self._window, self._read = tuple(tokens), len(self._tokens) if gamma else 0
        return Draft.chain(tokens)

    def observe_states(self, states: torch.Tensor) -> None:
        self._seen = states

    def commit(self, path: Sequence[int], token: int) -> None:
        import torch

        if self._seen is None:
            raise ValueError("the target's states of the last window are needed")
        rows = [0, *(node + 1 for node in path)]
        states = self.engine.model.joined(self._seen[rows])
        tokens = [*(self._window[node] for node in path), token]
        places = torch.arange(self._following, self._following + len(tokens), device=self._positions.device)
        positions = places.expand(len(self._positions), -1)
        self._following += len(tokens)
        self._kept += self._read
        self.span.rollback(self._kept)
        if self._read:
            self._tokens, self._states, self._positions = tokens, states, positions
        else:  # nothing drafted: unread pairs stay unread
            self._tokens = [*self._tokens, *tokens]
            self._states = torch.cat([self._states, states])
            self._positions = torch.cat([self._positions, positions], dim=1)
        self._window, self._read, self._seen = (), 0, None


class HeadDraft(DrafterKind):
    """A head of the target.

    Args:
        visual: ``all``: it reads the visual tokens that ``prune`` keeps; ``none``: no visual tokens.
    """

    draws = False

    def __init__(self, visual: Literal["all", "none"] = "all") -> None:
        self.sees = "kept" if visual == "all" else "nothing"

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        import torch

        engine, prefix, taps = clip.head, clip.prefix, clip.taps
        if engine is None or prefix is None or taps is None:
            raise ValueError("a head reads states of the target's prompt")
        head = engine.model
        kept = torch.arange(len(prefix.visual)) if clip.kept is None else clip.kept
        rows = prefix.rows_kept(kept.to(prefix.embeds.device))
        compact = clip.profile.prune.positions == "compact" and len(rows) < prefix.length
        following = len(rows) if compact else prefix.next_position
        if compact:
            positions = torch.arange(len(rows), device=rows.device)[None]
        elif head.decoder.axes > 1:
            positions = prefix.positions.reshape(-1, prefix.length)[:, rows]
        else:
            positions, following = rows[None], prefix.length
        with clip.trace.span("draft_prefill", "draft"):
            given = torch.cat([prefix.visual.index, prefix.audio.to(prefix.visual.index)])
            every = head.embed_prompt(prefix.token_ids, given, prefix.embeds[0, given])
            embeddings = every[rows.to(every.device)][1:]
            states = head.joined(torch.cat([taps.states[block][rows] for block in head.blocks], dim=1))
            fed = head.fed(embeddings, states[:-1], positions[:, :-1])
        read = yield from clip.read(engine, fed)
        return HeadChain(engine, read.span, states[-1:].clone(), positions[:, -1:].to(states.device), following)
