"""Messages of the two workers of the parallel schedule: token ids, kept indices, control.

Plain values only: no torch, no clock, no thread. Each message is about one clip of a worker; in the pipe of the draft's
process the clip's number goes with it. A worker takes the messages about a clip in the order of submission. The target
verifies a window with rows of one pass and answers once; the draft reads its messages between any two of its passes, so
that none waits longer than one pass.

Texts are counted in generated tokens: position 0 is the first token after the prompt, and a text of ``n`` tokens
holds the positions 0 to n - 1.

Decision: the target receives only the tokens of the window that it verifies. It answers with the tokens it accepts and
with its own token after them, drawn from its own distribution, and the scheduler compares that token with the draft's.
For a greedy draft this is the exact rule of Leviathan et al. and Chen et al. for a one-hot q: a proposal x is accepted
if the target's own draw is x, which has probability p(x), and otherwise that draw has the distribution p without x,
renormalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from vidspec.acceptance.base import Verdict

if TYPE_CHECKING:
    from vidspec.config.schema import Profile
    from vidspec.events.trace import Span
    from vidspec.models.request import CaptionRequest


@dataclass(frozen=True, slots=True)
class Verify:
    """To the target: verify ``window``, the draft's tokens from position ``prefix`` on. Answer: ``Verdict``.

    The pass has ``len(window) + 1`` rows: the last emitted token, which the cache does not hold yet, and the window.
    ``prefix`` is the number of emitted tokens. The worker checks that its own text is equally long, and afterwards
    keeps the accepted part of the window (rollback) and takes its own token as the last emitted one (commit).

    Round 0 is the prefill: the target reads the whole prompt, and its token is the first of the text. ``VisibleTokens``
    may come before its answer, as early as the signals exist, if these choose the draft's tokens.
    """

    round: int
    prefix: int
    window: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VisibleTokens:
    """The visual tokens that the draft may see, as sorted indices; None for all.

    From the target: its pruner's choice. To the draft: the first makes it read its prompt with these tokens, and it
    answers ``PromptRead``; one that follows drops all others, and the text stays as it is.

    ``visual``: the number of the target's visual tokens, if known.
    """

    indices: tuple[int, ...] | None
    visual: int | None = None


@dataclass(frozen=True, slots=True)
class Propose:
    """To the draft: extend the text greedily to ``until`` tokens. Answer: one ``Proposed`` per token.

    Each replaces the one before, between two forward passes; with ``until`` 0 the draft stops. With ``keep`` the text
    is first set to its first ``keep`` tokens and then ``tokens``, and this and later proposals belong to ``epoch``.
    """

    epoch: int
    until: int
    keep: int | None = None
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptRead:
    """From the draft: its prompt is read."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """From the draft: its token at ``position``. ``seconds``: its forward pass; 0 for the token of the prefill."""

    epoch: int
    position: int
    token: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """From the draft: it cannot continue. ``traceback`` is its process's own, as text.

    ``lost``: it died or hangs, perhaps not because of the clip; another worker may repeat it. ``hint`` and ``kind`` are
    those of an error of its model, without which it cannot begin.
    """

    error: str
    traceback: str = ""
    lost: bool = False
    hint: str | None = None
    kind: str = "worker"


@dataclass(frozen=True, slots=True)
class OpenClip:
    """To the draft's process: open a clip under ``profile``.

    ``request``: its frames and prompt. ``eager``: encode them at once, before any message. ``room``: cache entries
    needed after the prompt. ``eos``: a text ends with any of these; the draft proposes nothing after one. ``texts``:
    for drafts without video, token ids of the target's prompt with each of these texts in its place.
    """

    profile: Profile
    request: CaptionRequest
    room: int
    eager: bool
    eos: frozenset[int]
    texts: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CloseClip:
    """To the draft's process: forget a clip. Answer: ``DraftSpans``, the last one."""


@dataclass(frozen=True, slots=True)
class DraftSpans:
    """From the draft's process: its timed work on a clip, on ``time.perf_counter``, which processes share.

    ``forwards`` counts its passes over the clip.
    """

    spans: tuple[Span, ...]
    forwards: int


DraftMessage: TypeAlias = VisibleTokens | Propose
#: From the scheduler to either worker.
WorkerOrder: TypeAlias = Verify | DraftMessage
WorkerResult: TypeAlias = VisibleTokens | PromptRead | Verdict | Proposed | WorkerFailed
DraftAnswer: TypeAlias = PromptRead | Proposed | WorkerFailed | DraftSpans
