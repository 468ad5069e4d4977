"""The contract of pruners: signals in, exactly ``kept_count`` sorted indices out. Scores are in ``scores``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vidspec.models.base import VisualTokens
from vidspec.registry import OptionConflict, Registry

if TYPE_CHECKING:
    import torch

    from vidspec.config.schema import Profile
    from vidspec.engine.taps import Taps
    from vidspec.models.base import EmbeddedPrompt

__all__ = [
    "Pruner",
    "Signals",
    "attention_ranks",
    "best",
    "kept_count",
    "make_signals",
    "make_taps",
    "pruners",
    "token_grid",
    "token_places",
    "top_scored",
]


@dataclass(frozen=True)
class Signals:
    """Inputs of a pruner: the visual tokens, and the signals it declared in ``needs``.

    Attributes:
        visual: positions and features of the N visual tokens.
        attention: (N,) language-to-video attention of the target over all blocks; needs ``attention``, or
            ``visual_attention`` for a softmax over the visual keys alone.
        seed: for random pruners.
        text: (r,) rows of the text after the video, as indices into the states of ``hidden``.
        hidden: by layer l, the target's states (L, d) of the whole prompt after l blocks; layer 0 is the embeddings.
            Needs ``hidden@l``.
        block_attention: by block l, counted from 0, its language-to-video attention (N,); needs ``attention@l``.
    """

    visual: VisualTokens
    attention: torch.Tensor | None = None
    seed: int = 0
    text: torch.Tensor | None = None
    hidden: Mapping[int, torch.Tensor] = field(default_factory=dict)
    block_attention: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def require_attention(self) -> torch.Tensor:
        if self.attention is None:
            raise ValueError("this pruner needs the attention signal")
        return self.attention

    def require_text(self) -> torch.Tensor:
        if self.text is None:
            raise ValueError("this pruner needs the rows of the text")
        return self.text

    def require_hidden(self, layer: int) -> torch.Tensor:
        if layer not in self.hidden:
            raise ValueError(f"this pruner needs the signal hidden@{layer}")
        return self.hidden[layer]

    def require_block_attention(self, block: int) -> torch.Tensor:
        if block not in self.block_attention:
            raise ValueError(f"this pruner needs the signal attention@{block}")
        return self.block_attention[block]


class Pruner(ABC):
    """Chooses the visual tokens the draft may see.

    ``needs`` names the signals it reads. ``features`` come with the prompt; ``attention``, ``visual_attention``,
    ``attention@l`` and ``hidden@l`` are observed during the target's prefill, only if a pruner needs them.

    The parameters of its constructor are keys of a profile's ``prune`` section, ``depth``, the number of blocks of the
    target, or ``family``, the target's; all have defaults.
    """

    needs: frozenset[str] = frozenset()

    def check(self, profile: Profile) -> Iterable[OptionConflict]:
        """Yield conflicts of its options with the rest of a profile."""
        return ()

    @abstractmethod
    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        """Return (K,) sorted indices of the visual tokens kept, K = :func:`kept_count` of N and ``alpha``."""


pruners: Registry[Pruner] = Registry(
    Pruner,
    "pruning",
    "vidspec.pruning.pruners",
    "pruner",
    "prune.method",
    always=("none",),
    known=("depth", "family"),
)


class ScoringPruner(Pruner):
    """Keeps the tokens with the highest scores."""

    @abstractmethod
    def scores(self, signals: Signals) -> torch.Tensor:
        """Return (N,) float32 scores of the visual tokens."""

    def __call__(self, signals: Signals, alpha: float) -> torch.Tensor:
        return top_scored(self.scores(signals), signals.visual, alpha)


def make_taps(needs: Iterable[str], prefix: EmbeddedPrompt, *, text_only: bool = False) -> Taps | None:
    """Return observers of the prefill signals that a pruner or drafter needs; None if it needs none.

    Args:
        needs: names of the signals.
        prefix: the prompt.
        text_only: True to keep hidden states of rows without visual tokens only.

    Raises:
        ValueError: unknown signal.
    """
    from vidspec.engine.taps import Taps

    wanted = set(needs)
    layers: dict[str, list[int]] = {"attention": [], "hidden": []}
    for need in wanted - {"attention", "head_attention", "visual_attention", "features"}:
        kind, _, at = need.partition("@")
        if kind not in layers or not at.isdecimal():
            raise ValueError(
                f"there is no signal {need!r}; there are attention, attention@l, head_attention, visual_attention, "
                "features and hidden@l"
            )
        layers[kind].append(int(at))
    if {"attention", "visual_attention"} <= wanted:
        raise ValueError("attention and visual_attention exclude each other")
    if wanted <= {"features"}:
        return None
    return Taps(
        rows=prefix.text_rows_after_video,
        visual=prefix.visual.index,
        attention=not wanted.isdisjoint(("attention", "visual_attention")),
        keys="visual" if "visual_attention" in wanted else "all",
        heads="head_attention" in wanted,
        attention_at=sorted(layers["attention"]),
        hidden=sorted(layers["hidden"]),
        keeps=~prefix.is_visual if text_only else None,
    )


def make_signals(prefix: EmbeddedPrompt, taps: Taps | None, seed: int = 0) -> Signals:
    """Return the signals of one prefill of ``prefix``."""
    if taps is None:
        return Signals(prefix.visual, seed=seed, text=prefix.text_rows_after_video)
    return Signals(
        visual=prefix.visual,
        attention=taps.attention_scores if taps.attention else None,
        seed=seed,
        text=taps.rows,
        hidden=taps.states,
        block_attention=taps.block_scores,
    )


def attention_ranks(taps: Taps | None) -> tuple[tuple[str, bytes], ...]:
    """Return the observed attention by signal name, as ranks, for :class:`~vidspec.events.events.Prefilled`."""
    if taps is None:
        return ()
    whole = (
        {"visual_attention" if taps.keys == "visual" else "attention": taps.attention_scores} if taps.attention else {}
    )
    scores = whole | {f"attention@{block}": some for block, some in taps.block_scores.items()}
    return tuple((name, bytes(_ranks(one).tolist())) for name, one in scores.items())


def _ranks(scores: torch.Tensor) -> torch.Tensor:
    """Return (N,) ranks in increasing order, scaled to 0 ... 255."""
    return scores.argsort(stable=True).argsort() * 255 // max(1, len(scores) - 1)


def kept_count(n: int, alpha: float) -> int:
    """Return the budget: the number of ``n`` visual tokens kept when a share ``alpha`` is pruned, at least one."""
    return max(1, round((1 - alpha) * n))


@dataclass(frozen=True)
class BudgetSplit:
    """A budget: ``required`` (r,) tokens and ``wanted`` of the ``free`` (f,) ones; both in prompt order."""

    required: torch.Tensor
    free: torch.Tensor
    wanted: int

    def kept(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return (K,) sorted indices: the required tokens and the ``chosen`` free ones."""
        import torch

        return torch.cat([self.required, chosen]).sort().values


def split(visual: VisualTokens, alpha: float) -> BudgetSplit:
    """Return the required tokens, the free ones, and the number of free ones to keep."""
    places = kept_count(len(visual), alpha)
    required = visual.required.nonzero()[:places, 0]
    return BudgetSplit(required, (~visual.required).nonzero()[:, 0], places - len(required))


def with_required(order: torch.Tensor, visual: VisualTokens, wanted: int) -> torch.Tensor:
    """Select the required tokens, then others by preference.

    Args:
        order: a permutation of the N tokens, best first.
        visual: the tokens; ``required`` ones count towards ``wanted``.
        wanted: number of tokens to select.

    Returns:
        (wanted,) sorted indices.
    """
    import torch

    required = visual.required.to(order.device)[order]
    return torch.cat([order[required], order[~required]])[:wanted].sort().values


def best(scores: torch.Tensor, visual: VisualTokens, wanted: int) -> torch.Tensor:
    """Select the required tokens, then those with the highest scores; ties go to the earlier token.

    Args:
        scores: (N,) of the visual tokens.
        visual: the tokens; ``required`` ones count towards ``wanted``.
        wanted: number of tokens to select.

    Returns:
        (wanted,) sorted indices.
    """
    return with_required(scores.sort(descending=True, stable=True).indices, visual, wanted)


def top_scored(scores: torch.Tensor, visual: VisualTokens, alpha: float) -> torch.Tensor:
    """Select the best-scored tokens within the budget; ties go to the earlier token."""
    return best(scores, visual, kept_count(len(visual), alpha))


def evenly_spaced(count: int, wanted: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the middles of ``wanted`` equal stretches of 0 ... count - 1, sorted.

    Integer arithmetic, so that no two coincide.
    """
    import torch

    return (2 * torch.arange(wanted, device=device) + 1) * count // (2 * max(1, wanted))


def whole_frames(order: Iterable[int], visual: VisualTokens, alpha: float) -> torch.Tensor:
    """Fill the budget frame by frame; a last frame that fits in part gives evenly spaced tokens.

    Args:
        order: frames, best first; their free tokens must suffice.
        visual: the tokens; ``required`` ones count towards the budget.
        alpha: share to prune.

    Returns:
        (K,) sorted indices.
    """
    import torch

    parts = split(visual, alpha)
    frame, left = visual.frame[parts.free], parts.wanted
    chosen = [parts.free[:0]]
    for number in order:
        if left == 0:
            break
        tokens = parts.free[frame == number]
        if len(tokens) > left:
            tokens = tokens[evenly_spaced(len(tokens), left, tokens.device)]
        chosen.append(tokens)
        left -= len(tokens)
    return parts.kept(torch.cat(chosen))


def token_grid(visual: VisualTokens) -> torch.Tensor:
    """Return (frames, rows, columns) token indices; -1 for empty cells. Separators are left out."""
    placed = ((visual.row >= 0) & (visual.column >= 0)).nonzero()[:, 0]
    if not len(placed):
        return visual.index.new_full((visual.frames, 0, 0), -1)
    frame, row, column = visual.frame[placed], visual.row[placed], visual.column[placed]
    grid = placed.new_full((visual.frames, int(row.max()) + 1, int(column.max()) + 1), -1)
    grid[frame, row, column] = placed
    return grid


def token_places(visual: VisualTokens) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Return the grid (frames or temporal steps, rows, columns) and the cell of each token in it.

    Cells are counted frame by frame in raster order; separators have -1.
    """
    frame, row, column = visual.frame.cpu(), visual.row.cpu(), visual.column.cpu()
    inside = (row >= 0) & (column >= 0)
    if not bool(inside.any()):
        return (visual.frames, 0, 0), (-1,) * len(visual)
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    cell = ((frame * rows + row) * columns + column).masked_fill(~inside, -1)
    return (visual.frames, rows, columns), tuple(cell.tolist())
