"""Drafting by a head over the target's states: a chain or a tree of greedy choices. The kind chooses the head.

The head reads pairs: the target's states at a token, and the embedding of the next token. For verified text the states
are the target's; after it the head continues from its own state. A pair is at the rotary position of the token whose
states it holds, on the axes of the head's config: three (M-RoPE), as the target numbers them, or one, which counts the
prompt's tokens.

Like the paper's heads it reads the whole prompt, with the video's rows as the target embeds them; or the pruned prompt,
with none to all of the visual tokens (HiViS: a head needs none), where a pair joins two rows that are adjacent after
pruning. States are always those of the target's full prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from vidspec.drafting.base import Drafter, DrafterKind

if TYPE_CHECKING:
    import torch

    from vidspec.drafting.context import DraftContext
    from vidspec.engine.requests import Steps
    from vidspec.models.base import EmbeddedPrompt
    from vidspec.models.head import Head

#: Rotary positions of a head: one per row, the target's (on all axes of M-RoPE), or as its config's writer trains.
HeadAxes: TypeAlias = Literal["auto", "one", "target"]


class HeadDraft(DrafterKind):
    """A head of the target.

    Args:
        visual: ``all``: it reads the visual tokens that ``prune`` keeps, and audio tokens; ``none``: text rows only.
        axes: of its rotary positions: ``target``, those of the target under M-RoPE if the head's config has its
            ``mrope_section``; ``one``, the row's place in the prompt; ``auto``, as the config's writer trains heads:
            ``one`` in the layout of ``speculators``.
    """

    draws = False
    trees = True

    def __init__(self, visual: Literal["all", "none"] = "all", axes: HeadAxes = "auto") -> None:
        self.sees, self.axes = "kept" if visual == "all" else "nothing", axes

    def open(self, clip: DraftContext) -> Steps[Drafter]:
        import torch

        from vidspec.drafting.tree import head_drafter

        engine, prefix, taps = clip.head, clip.prefix, clip.taps
        if engine is None or prefix is None or taps is None:
            raise ValueError("a head reads states of the target's prompt")
        head = engine.model
        rows = context_rows(prefix, clip.kept, text_only=self.sees == "nothing")
        positions, following = row_positions(head, clip, rows, self.axes)
        with clip.trace.span("draft_prefill", "draft"):
            given = torch.cat([prefix.visual.index, prefix.audio.to(prefix.visual.index)])
            every = head.embed_prompt(prefix.token_ids, given, prefix.embeds[0, given])
            embeddings = every[rows.to(every.device)][1:]
            states = taps.joined_states(head.blocks, rows)
            fed = head.fed(embeddings, head.joined(states[:-1]), positions[:, :-1], following - 1)
        read = yield from clip.read(engine, fed)
        return head_drafter(clip.profile.draft, engine, read.span, states[-1:].clone())


def context_rows(prefix: EmbeddedPrompt, kept: torch.Tensor | None, *, text_only: bool) -> torch.Tensor:
    """Return the rows (n,) of the target's prompt that a head reads.

    Args:
        prefix: the prompt.
        kept: (K,) its visual tokens that are not pruned; None for all.
        text_only: True for no visual and no audio tokens.
    """
    import torch

    rows = torch.arange(len(prefix.visual)) if kept is None else kept
    rows = prefix.rows_kept(rows.to(prefix.embeds.device))
    return rows[~torch.isin(rows, prefix.audio.to(rows))] if text_only else rows


def row_positions(head: Head, clip: DraftContext, rows: torch.Tensor, axes: HeadAxes) -> tuple[torch.Tensor, float]:
    """Return positions (1 or axes, n) of rows (n,) of the target's prompt for a head, and the one after the prompt."""
    import torch

    prefix = clip.prefix
    assert prefix is not None
    if clip.profile.prune.positions == "compact" and len(rows) < prefix.length:
        return torch.arange(len(rows), device=rows.device)[None], len(rows)
    if head.decoder.axes == 1 or axes == "one" or (axes == "auto" and head.one_axis):
        return rows[None], prefix.length
    return prefix.positions.reshape(-1, prefix.length)[:, rows], prefix.next_position
