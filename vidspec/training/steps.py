"""Training of a head on the states of captions: its steps, when they end, and what another process continues from.

Drafts begin at random places of the captions and behind the head's own first mistakes, as at inference. Tokens are
learned by the loss of the head's kind, confidences by binary cross-entropy (DSpark, arXiv 2607.05147), later positions
with less weight (DFlash, arXiv 2602.06036). The learning rate stays until the accepted tokens on clips never trained on
no longer rise, then falls to nothing; a moving average of the weights is what drafts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from vidspec.engine.device import memory_for
from vidspec.files import replacing
from vidspec.models.dflash import LEAST
from vidspec.signals import Terminated
from vidspec.training.head import TrainedHead, cross_entropies, tokens_after
from vidspec.training.states import TextStates, full_disk_hint

__all__ = ["HeadTraining", "StepsProgress", "TrainingLimits"]

#: Weight of the loss of the logits that a selector chooses from.
OWN = 0.5
#: Rows of a block that a step trains, as shares of its size: later rows matter only if all before them are right.
SHARES = (0.4, 0.65, 1.0)
#: Clips of a step on a CPU and elsewhere, and blocks of each.
CLIPS, GPU_CLIPS, BLOCKS = 2, 4, 16
#: Part of the weights' moving average that a step keeps.
AVERAGE = 0.997
#: Highest learning rate of a head of this width; of others it falls with the root of theirs.
PEAK, WIDTH = 1.5e-3, 256
WARM_UP = 30
#: A head is validated after so many steps, or after this share more; on held-out captions of so many tokens.
INTERVAL, GROWTH, VALIDATED = 50, 0.15, 3000
#: Steps before which training goes on, the share of the steps that must have brought the gain, and that gain.
FEWEST, LAST, RISE = 400, 0.4, 1.01
#: Share of the time, or of the steps, in which the learning rate falls.
FALLING = 0.25
#: Seconds between two states on the disk.
SAVED = 120.0


@dataclass(frozen=True)
class TrainingLimits:
    """When training ends at the latest.

    Attributes:
        minutes: of all processes together.
        steps: number of steps, whether accepted tokens rise or not; None to follow these.
    """

    minutes: float = 60.0
    steps: int | None = None


@dataclass(frozen=True)
class StepsProgress:
    """Progress of the training.

    Attributes:
        step: steps so far.
        loss: mean of the last ones.
        tau: tokens a round on held-out captions at the last validation, the target's own included; None before.
        best: the highest so far.
        seconds, left: since the beginning; at most until the end.
        validated: True if ``tau`` is new.
        stopped: True if Ctrl-C ended it.
    """

    step: int
    loss: float
    tau: float | None
    best: float | None
    seconds: float
    left: float
    validated: bool = False
    stopped: bool = False


class TextSource(Protocol):
    """Captions by key, such as a :class:`~vidspec.training.states.StatesFolder`."""

    def read(self, key: str) -> TextStates: ...


@dataclass
class TrainingState:
    """Progress of a training that is saved beside weights and optimiser.

    Attributes:
        step: steps so far.
        seconds: of training so far.
        taus: steps and tau of each validation.
        begins: places of each caption where the next round of a draft would begin.
        falls: step at which the learning rate began to fall; None before.
        clips: digest of the captions.
    """

    step: int = 0
    seconds: float = 0.0
    taus: list[tuple[int, float]] = field(default_factory=list)
    begins: dict[str, list[int]] = field(default_factory=dict)
    falls: int | None = None
    clips: str = ""

    @property
    def best(self) -> float | None:
        return max((tau for _, tau in self.taus), default=None)


class HeadTraining:
    """Trains a head.

    Args:
        head: to train, on its device.
        file: states of all captions.
        trained, held_out: keys of the captions in it.
        folder: receives the best head (``head``) and what another process continues from (``training.pt``).
        seed: of all that is random; on a CPU the same one gives the same head.
        limits: when it ends at the latest.
    """

    def __init__(
        self,
        head: TrainedHead,
        file: TextSource,
        trained: Sequence[str],
        held_out: Sequence[str],
        folder: Path,
        *,
        seed: int = 0,
        limits: TrainingLimits | None = None,
    ) -> None:
        self.head, self.file, self.folder, self.seed = head, file, folder, seed
        self.limits, self.device = limits or TrainingLimits(), head.shared.embedding.device
        self.trained = [key for key in trained if len(file.read(key).tokens) > 8]
        self.held_out = self._validated(held_out)
        self.average = {name: tensor.detach().clone() for name, tensor in head.tensors.items()}
        self.peak = PEAK * min(1.0, (WIDTH / head.hidden) ** 0.5)
        options: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.01, "fused": self.device.type == "cuda"}
        self.optimiser = torch.optim.AdamW(head.parameters(), lr=self.peak, **options)  # fused makes no copies
        self.state = TrainingState(clips=" ".join(sorted({*trained, *held_out})))
        self._losses: list[float] = []

    def _validated(self, keys: Sequence[str]) -> list[str]:
        """Return the first held-out captions with :data:`VALIDATED` tokens together."""
        chosen, tokens = list[str](), 0
        for key in keys:
            length = len(self.file.read(key).tokens)
            if length > 1 and tokens < VALIDATED:
                chosen.append(key)
                tokens += length
        return chosen

    @property
    def head_folder(self) -> Path:
        """Folder of the best head so far."""
        return self.folder / "head"

    def run(self) -> Iterator[StepsProgress]:
        """Train until the limits, or until accepted tokens no longer rise; yields after each step.

        Ctrl-C ends it with the best head so far; a signal that ends the process keeps what another one continues from.

        Raises:
            DeviceError: out of memory.
            OutputError: the disk is full.
        """
        begun, saved = time.monotonic() - self.state.seconds, time.monotonic()
        hint = "--blocks 1 trains a smaller head" if self.head.depth > 1 else "a smaller target"
        stopped, validated, tau = False, False, self.state.taus[-1][1] if self.state.taus else None
        with memory_for("training the head", hint):
            try:
                while not self._is_over():
                    self._losses = [*self._losses[-49:], self.step(self._rate())]
                    self.state.seconds = time.monotonic() - begun
                    if validated := self._is_due():
                        tau = self._validate()
                    if validated or time.monotonic() - saved > SAVED:
                        self.save()
                        saved = time.monotonic()
                    yield self._progress(tau, validated=validated)
            except Terminated:
                self.save()
                raise
            except KeyboardInterrupt:
                stopped = True
            if not self.state.taus or self.state.taus[-1][0] < self.state.step:
                tau = self._validate()
            self.save()
        yield self._progress(tau, validated=True, stopped=stopped)

    def _progress(self, tau: float | None, *, validated: bool, stopped: bool = False) -> StepsProgress:
        state, loss = self.state, sum(self._losses) / max(1, len(self._losses))
        rest = (self._last_step - state.step) * state.seconds / max(1, state.step)
        left = max(0.0, min(60 * self.limits.minutes - state.seconds, rest))
        return StepsProgress(state.step, loss, tau, state.best, state.seconds, left, validated, stopped)

    @property
    def _last_step(self) -> float:
        """The step that ends the training; infinity while it is not known."""
        if self.limits.steps is not None:
            return self.limits.steps
        return math.inf if self.state.falls is None else round(self.state.falls / (1 - FALLING))

    def _is_over(self) -> bool:
        return self.state.step >= self._last_step or self.state.seconds >= 60 * self.limits.minutes

    def _rate(self) -> float:
        """Return the part of the highest learning rate for the next step."""
        state, late = self.state, self.state.seconds > (1 - FALLING) * 60 * self.limits.minutes
        if late and state.falls is None and self.limits.steps is None:
            state.falls = state.step
        end = self._last_step
        falling = 1.0 if math.isinf(end) else (end - state.step) / max(1, end - round((1 - FALLING) * end))
        return min(1.0, (state.step + 1) / WARM_UP) * min(1.0, max(0.02, falling))

    def _is_due(self) -> bool:
        last = self.state.taus[-1][0] if self.state.taus else 0
        return self.state.step >= last + max(INTERVAL, GROWTH * last)

    def _validate(self) -> float:
        """Measure the average of the weights, keep it if it is the best, and see whether it still rises."""
        state, best, tau = self.state, self.state.best, self.validate()
        state.taus.append((state.step, tau))
        if best is None or tau > best:
            self.head.save(self.head_folder, self.average)
        if state.falls is None and self.limits.steps is None and state.step >= FEWEST:
            early = max((tau for step, tau in state.taus if step <= (1 - LAST) * state.step), default=0.0)
            if (state.best or 0.0) < RISE * early:
                state.falls = state.step
        return tau

    def step(self, rate: float) -> float:
        """Make one step at a part of the highest learning rate; return the loss."""
        rng, state = random.Random(f"{self.seed} {self.state.step}"), self.state
        count = min(len(self.trained), CLIPS if self.device.type == "cpu" else GPU_CLIPS)
        keys = rng.sample(self.trained, count)
        texts = [self.file.read(key).to(self.device) for key in keys]
        size = self.head.size
        rows = size if self.head.whole else max(self.head.first + 1, round(rng.choice(SHARES) * size))
        chosen = []
        for key, text in zip(keys, texts, strict=True):
            begins = state.begins.get(key) or [0]
            some = rng.sample(begins, min(len(begins), BLOCKS // 2))
            chosen.append(some + [rng.randrange(len(text.tokens) - 1) for _ in range(BLOCKS - len(some))])
        anchors = torch.tensor(chosen, device=self.device)
        loss, right = self._loss(texts, anchors, rows)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * self.peak
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimiser.step()
        state.step += 1
        keep = min(AVERAGE, state.step / (state.step + 10))
        for name, tensor in self.head.tensors.items():
            self.average[name].lerp_(tensor.detach(), 1 - keep)
        runs = right.long().cumprod(2).sum(2).tolist()
        for key, text, some, lengths in zip(keys, texts, chosen, runs, strict=True):
            after = sorted({begin + run + 1 for begin, run in zip(some, lengths, strict=True) if run < right.shape[2]})
            state.begins[key] = [begin for begin in after if begin < len(text.tokens) - 1]
        return loss.item()

    def _loss(self, texts: Sequence[TextStates], anchors: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the blocks behind anchors (G, K), and (G, K, n) which tokens are right."""
        found = self.head(texts, anchors, rows)
        scores, drafted = found.scores.float(), found.scores.shape[2]
        wanted = tokens_after(texts, anchors, drafted + 1)[..., 1:]
        right = scores.detach().argmax(-1) == wanted
        learned = (wanted >= 0) & (scores.detach().gather(-1, wanted.clamp(min=0)[..., None])[..., 0] > LEAST)
        weights = learned * self.head.fall ** torch.arange(drafted, device=anchors.device)
        weights = weights / weights.sum().clamp(min=1e-6)
        shares = (self._shares(text, some, drafted) for text, some in zip(texts, anchors, strict=True))
        losses = [self.head.token_losses(*one) for one in zip(scores, wanted, shares, strict=True)]
        loss = (torch.stack(losses) * weights).sum()
        if found.logits is not None:
            loss = loss + OWN * (cross_entropies(found.logits.float(), wanted) * weights).sum()
        if found.confidences is not None:
            sure = found.confidences.clamp(1e-6, 1 - 1e-6)
            loss = loss + (F.binary_cross_entropy(sure, right.float(), reduction="none") * weights).sum()
        return loss, right

    @torch.no_grad()
    def _shares(self, text: TextStates, anchors: torch.Tensor, drafted: int) -> torch.Tensor:
        """Return the target's distributions (K, n, V) of the tokens after each anchor."""
        at = anchors[:, None] + torch.arange(drafted, device=anchors.device)
        places, back = at.clamp(max=len(text.finals) - 1).unique(return_inverse=True)
        shared = self.head.shared
        logits = shared.logits(text.finals[places].to(shared.output.dtype), capped=True)
        return logits[:, : shared.vocabulary].float().softmax(-1)[back]

    @torch.no_grad()
    def validate(self) -> float:
        """Return the tokens a round of drafts by the averaged weights over the held-out captions."""
        texts = [self.file.read(key).to(self.device) for key in self.held_out]
        at, runs = [0] * len(texts), list[int]()
        with self.head.computing_with(self.average):
            while unread := [place for place, text in enumerate(texts) if at[place] < len(text.tokens) - 1]:
                anchors = torch.tensor([[at[place]] for place in unread], device=self.device)
                some = [texts[place] for place in unread]
                chosen = self.head(some, anchors, self.head.size).scores.argmax(-1)
                right = chosen == tokens_after(some, anchors, chosen.shape[2] + 1)[..., 1:]
                lengths = right[:, 0].long().cumprod(1).sum(1).tolist()
                for place, length in zip(unread, lengths, strict=True):
                    at[place] += length + 1
                runs += lengths
        return 1 + sum(runs) / max(1, len(runs))

    def save(self) -> None:
        """Write what :meth:`load` continues from; whole, or not at all."""
        held = {"average": self.average, "optimiser": self.optimiser.state_dict(), "state": vars(self.state)}
        with full_disk_hint(self.folder), replacing(self.folder / "training.pt") as file:
            torch.save(held | {"head": self.head.state_dict()}, file)

    def load(self) -> bool:
        """Continue from what an earlier process wrote, if it trained on the same captions; return whether it did."""
        file = self.folder / "training.pt"
        held = torch.load(file, map_location=self.device, weights_only=True) if file.exists() else None
        if held is None or held["state"]["clips"] != self.state.clips:
            return False
        self.state, self.average = TrainingState(**held["state"]), held["average"]
        self.head.load_state_dict(held["head"])
        self.optimiser.load_state_dict(held["optimiser"])
        return True
