"""Values that a profile leaves open (``auto`` or null): every decision that depends on the machine or the models.

Rules that need a model's weights are beside the weights, and called from here by way of the placement:
:func:`~vidspec.models.placement.fit_placement` (dtype on a CPU), :func:`~vidspec.engine.decoders.decoder_of` (decoder),
:func:`~vidspec.engine.layouts.choose_packing` and :func:`~vidspec.engine.layouts.choose_layout` (weights). Values that
follow measured times are chosen while clips are decoded: ``gamma: auto`` and the number of clips at once.
:func:`explain` reports all of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from vidspec.config.schema import Profile
from vidspec.config.user_config import PLAIN, sets_a_method
from vidspec.draft_length.costs import PassCosts
from vidspec.draft_length.trees import MOST
from vidspec.draft_length.window import AutoGamma, FixedGamma, WindowSize
from vidspec.drafting.base import DrafterKind
from vidspec.drafting.static_tree import parse_tree
from vidspec.engine.device import free_memory
from vidspec.engine.layouts import WeightFormat
from vidspec.models.known_pairs import MemoryWorkload, known_model, published_heads
from vidspec.models.placement import Placement, resolve_placement
from vidspec.models.recommended import PLAINLY, Card, card_of_device, default_on
from vidspec.pruning.base import Pruner

if TYPE_CHECKING:
    from vidspec.decoding.setup import DecodingSetup
    from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["explain"]

#: The most rows of one target pass in the parallel schedule, and nodes of a tree that grows.
ROWS = MOST


class Choice(NamedTuple):
    """A value that the profile leaves open: its key, what was chosen, and the reason."""

    key: str
    value: str
    why: str


def target_placement(profile: Profile) -> Placement:
    """Return the target's placement and weight format."""
    wanted = profile.models
    where = resolve_placement(
        profile.workers.target or wanted.device,
        wanted.dtype,
        wanted.decoder,
        wanted.device_map,
        wanted.quantization,
        wanted.packed,
        wanted.weights,
    )
    return replace(where, adapter=wanted.adapter, fitted=where.fitted and wanted.pair is None)


def draft_placement(profile: Profile) -> Placement:
    """Return the draft's placement (as named, else on a second GPU if there is one) and weight format."""
    wanted, precision = profile.models, profile.draft.precision
    weights: WeightFormat = "auto" if precision == "auto" else None
    if precision == "int8" or precision == "int4":
        weights = precision
    elif profile.draft.is_target:
        weights = wanted.weights
    device = profile.workers.draft or wanted.draft_device or wanted.device
    if profile.takes_second_gpu and torch.cuda.is_available() and torch.cuda.device_count() > 1:
        device = "cuda:1"
    where = resolve_placement(device, wanted.dtype, wanted.decoder, packed=wanted.packed, weights=weights)
    return replace(where, fitted=where.fitted and wanted.pair is None)


def has_room_for_two(target: torch.device, draft: torch.device, threads: int | None = None) -> bool:
    """Return True if running both at once is faster than in turns: two devices, or a CPU with several cores.

    Args:
        target, draft: their devices.
        threads: torch threads on a CPU; the current number if None.
    """
    return target != draft or (target.type == "cpu" and (threads or torch.get_num_threads()) > 1)


def split_threads(total: int, draft: int | None = None) -> tuple[int, int]:
    """Return the threads of target and draft, together ``total`` if that is two or more.

    Args:
        total: threads of a single worker.
        draft: the draft's share; a quarter if None, at least one.
    """
    share = max(1, total // 4) if draft is None else draft
    return max(1, total - share), share


def prunes_late(profile: Profile, pruner: Pruner | None, target: VideoLanguageModel) -> bool:
    """Return True if a draft that reads during the target's prefill reads the whole video and prunes afterwards.

    States of recurrent blocks cannot be pruned, and positions that were rotated into the keys cannot be compacted.
    """
    if pruner is None or profile.schedule.prefill == "sequential":
        return False
    if profile.prune.when is not None:
        return profile.prune.when == "late"
    prunable = profile.prune.positions == "original" and target.decoder.cached is None
    return prunable and not pruner.needs.isdisjoint(("attention", "visual_attention"))


def max_window(profile: Profile) -> int:
    """Return the most tokens of a draft window."""
    draft = profile.draft
    if draft.kind == "none":
        return 0
    if profile.concurrent:
        return ROWS
    if draft.topology == "tree":
        return len(parse_tree(draft.tree))
    return ROWS if draft.gamma == "auto" or draft.topology == "adaptive" else draft.gamma


def measures_passes(profile: Profile, drafter: DrafterKind | None) -> bool:
    """Return True if the times of passes decide what is drafted in turns."""
    if drafter is None or profile.concurrent:
        return False
    return profile.draft.gamma == "auto" or profile.draft.topology == "adaptive" or drafter.paces


def parallel_windows(profile: Profile, costs: PassCosts) -> WindowSize:
    """Return the draft windows of the parallel schedule; ``auto`` follows the measured times of passes."""
    gamma = profile.draft.gamma
    if gamma != "auto":
        return FixedGamma(gamma)
    # With small windows and long accepted runs, rounding up pays (ParallelVLM App. A).
    return AutoGamma(costs, rounding="up" if profile.draft.is_target else "down")


def explain(setup: DecodingSetup) -> list[Choice]:
    """Return the values that the profile of a loaded captioner leaves open, and its chat template, with the reasons."""
    profile, target = setup.profile, setup.target.model
    wanted, draft = profile.models, setup.draft.model if setup.draft is not None else None
    choices: list[Choice] = []
    if wanted.device == "auto" and profile.workers.target is None and wanted.device_map is None:
        choices.append(Choice("models.device", str(target.device), "the first of CUDA, XPU, MPS and CPU that works"))
    drafting = setup.slot.device if setup.slot is not None else draft.device if draft is not None else None
    if drafting is not None and wanted.device == "auto" and not (profile.workers.draft or wanted.draft_device):
        second = profile.takes_second_gpu and drafting != target.device
        why = "there is a second GPU" if second else "the target's"
        choices.append(Choice("models.draft_device", str(drafting), why))
    if wanted.dtype == "auto":
        why = "float32 if it fits well into memory" if target.device.type == "cpu" else "the GPU's half precision"
        choices.append(Choice("models.dtype", str(target.dtype).removeprefix("torch."), why))
    if wanted.decoder == "auto":
        choices.append(Choice("models.decoder", target.decoder.name, target.decoder.why))
    why = "the checkpoint's" if target.template.origin else "the checkpoint has none that can place a video"
    choices.append(Choice("chat template", target.template.origin or f"that of {target.family}", why))
    if setup.slot is not None and setup.slot.draft_threads is not None and profile.workers.draft_threads is None:
        choices.append(Choice("workers.draft_threads", str(setup.slot.draft_threads), "a quarter of all, at least one"))
    if setup.drafter is not None and profile.draft.gamma == "auto":
        choices.append(Choice("draft.gamma", f"at most {setup.window}", "follows measured times and acceptance"))
    if setup.pruner is not None and profile.schedule.prefill == "parallel" and profile.prune.when is None:
        why = "the pruner needs attention over all blocks" if setup.late else "the choice is early or cannot be late"
        choices.append(Choice("prune.when", "late" if setup.late else "wait", why))
    return choices


class DefaultDraft(NamedTuple):
    """The default of a lone target on a GPU: keys over those of the default profile, the reason, the predicted gain."""

    keys: dict[str, object]
    why: str
    gain: float = 1.0


#: Keys of another way to run the target.
_PLACED = frozenset(f"models.{key}" for key in ("draft_device", "device_map", "quantization", "weights"))
#: Keys over those of the default profile, by the name of the draft.
_DEFAULTS: dict[str, dict[str, object]] = {
    "self-int8": {"name": "self-int8", "draft.kind": "self", "draft.precision": "int8"},
    "self-int4": {"name": "self-int4", "draft.kind": "self", "draft.precision": "int4"},
    PLAINLY: dict(PLAIN),
}


def card_here(device: str = "auto") -> Card | None:
    """Return the NVIDIA GPU that a device means; None if it is another device, or not in the table."""
    if not device.startswith(("auto", "cuda")) or not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    return card_of_device(torch.cuda.get_device_name(torch.device("cuda:0" if device == "auto" else device)))


def default_draft(keys: Mapping[str, object], cached: Container[str] = ()) -> DefaultDraft | None:
    """Return what is predicted the fastest for a target that is named alone; None if the default profile stays.

    It stays on devices other than known NVIDIA cards, for targets that are not in the table, for more than one GPU (the
    draft has the second), and if the user has chosen any part of a method.

    Args:
        keys: keys that the user has set, by any means.
        cached: heads that are on this machine; others are not fetched by default.
    """
    target, device = keys.get("models.target"), str(keys.get("models.device") or "auto")
    chosen = sets_a_method(keys) or not _PLACED.isdisjoint(keys)
    if chosen or not isinstance(target, str) or (card := card_here(device)) is None or torch.cuda.device_count() > 1:
        return None
    if (known := known_model(target)) is None or (best := default_on(card, known, MemoryWorkload(), cached)) is None:
        return None
    free = free_memory(torch.device("cuda:0" if device == "auto" else device))
    if best.draft == PLAINLY or (free is not None and best.bytes is not None and best.bytes > free):
        return DefaultDraft(_DEFAULTS[PLAINLY], "no draft is predicted to gain or to fit")
    heads = {head.name: {"name": head.kind, "draft.kind": head.kind} for head in published_heads()}
    keys = _DEFAULTS.get(best.draft, {})
    if best.draft in heads:
        keys = {**heads[best.draft], "models.draft": best.draft}
    why = f"predicted the fastest on {card.name}, {best.gain:.2f}x plain decoding (not measured)"
    return DefaultDraft(keys, f"{best.draft}: {why}", best.gain)
