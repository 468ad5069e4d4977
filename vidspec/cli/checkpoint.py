"""Inspects a checkpoint by its config: support, memory, and drafts that fit. Reads no weights.

The model is built on torch's meta device, so the findings are those that loading it would give.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace

from vidspec.engine.decoders import decoder_of
from vidspec.engine.device import free_memory
from vidspec.engine.matrix import Precision
from vidspec.engine.stock import StockDecoder
from vidspec.errors import VidspecError
from vidspec.models import loading
from vidspec.models.base import StockConfig, families
from vidspec.models.checkpoint_config import checkpoint_errors, read_config, weight_source
from vidspec.models.frame_rules import FrameRule
from vidspec.models.identity import is_related
from vidspec.models.known_pairs import (
    PUBLISHED_RULES,
    KnownModel,
    MemoryWorkload,
    known_pairs,
)
from vidspec.models.memory_estimate import PROCESS
from vidspec.models.model_sizes import estimate_weights, sizes_of
from vidspec.models.placement import resolve_placement
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.models.weight_files import read_processor

#: Rows by which heads of the same vocabulary may differ, as they are padded to round numbers.
PADDING = 1024


@dataclass(frozen=True)
class DraftFit:
    """A draft for the target, listed by ``vidspec models`` or named by the user.

    Attributes:
        bytes: of both models together; None if unknown.
        refused: the reason if it does not fit.
    """

    draft: str
    bytes: int | None
    refused: str | None


@dataclass(frozen=True)
class CheckpointReport:
    """The findings, plain values only.

    Attributes:
        vocabulary: rows of the head.
        kv_bytes: of keys and values, per token.
        state_bytes: of recurrent states, at most, per clip.
        visual_tokens: of the clip that memory is counted for; None if the family's processor is not known.
        codes: bytes of codes, stored in the checkpoint or rounded to at load.
        weights, packed_bytes: bytes of the weights, and of packed copies of the large ones.
        working: temporary bytes while such a clip is read: its prompt, and the tower or a pass of the prefill.
        needed, free: bytes of all of these, of keys and values and of the process, and bytes free on the device.
        while_loading: peak bytes before all weights are rounded; 0 if none are.
        text: True for a language model without vision, which can only be a draft.
    """

    name: str
    family: str
    vocabulary: int
    parameters: int
    dtype: str
    device: str
    kv_bytes: int
    state_bytes: int
    visual_tokens: int | None
    codes: int
    weights: int
    packed_bytes: int
    working: int
    needed: int
    while_loading: int
    free: int | None
    text: bool
    drafts: tuple[DraftFit, ...]
    command: str
    load: MemoryWorkload

    @property
    def fits(self) -> bool:
        """True if free memory suffices for the model and a clip, and for loading."""
        return self.free is None or max(self.needed, self.while_loading) <= self.free

    def to_dict(self) -> dict[str, object]:
        """Return the object for ``--format json``."""
        facts = asdict(self) | {"supported": True, "fits": self.fits}
        del facts["load"]
        return facts


def inspect(
    name: str,
    draft: str | None = None,
    load: MemoryWorkload | None = None,
    rounded: Precision | None = None,
) -> CheckpointReport:
    """Inspect a checkpoint.

    Args:
        name: hub id, or a folder as ``save_pretrained`` writes it.
        draft: the only draft to inspect; the listed ones if None.
        load: the clip that memory is counted for.
        rounded: codes that the checkpoint's language model is rounded to when it is loaded.

    Raises:
        ModelError: not found, unreadable, or of a family that is not supported.
        DeviceError: its weights cannot be rounded.
    """
    load, blind = load or MemoryWorkload(), False
    report = _inspect_checkpoint(name, load, rounded)
    if draft is None:
        drafts = [] if report.text else _listed_drafts(name, report.family, report.parameters)
        fits = tuple(_fit_of_listed(report, one) for one in drafts)
    else:
        draft_report = _inspect_checkpoint(draft, load)
        fits = (_fit_of_named(report, draft_report),)
        blind = draft_report.text
    command = _command(name, fits, text=report.text, blind=blind)
    if rounded is not None:
        command += f" --set models.weights={rounded}"
    return replace(report, drafts=fits, command=command)


def _inspect_checkpoint(name: str, load: MemoryWorkload, rounded: Precision | None = None) -> CheckpointReport:
    """Inspect a checkpoint without drafts."""
    config = read_config(name, text=True)
    where, family = replace(resolve_placement(dtype=load.dtype), weights=rounded), str(config.model_type)
    text = family not in families
    kind = loading.adapter_class(family)
    with checkpoint_errors(name):
        model = loading.empty_model(kind, config, where.dtype)
    parameters = sum(weight.numel() for weight in model.parameters())
    where, held = estimate_weights(name, kind, model, config, where)
    decoder = decoder_of(kind.language_of(model), model.lm_head, "stock")
    assert isinstance(decoder, StockDecoder)
    rule = None if text else _frame_rule(kind, model.config, name)
    clip = load.memory(sizes_of(kind, model, decoder, where.device), rule)
    process = PROCESS if where.device.type == "cpu" else 0
    return CheckpointReport(
        name=name,
        family=family,
        vocabulary=int(model.lm_head.weight.shape[0]),
        parameters=parameters,
        dtype=str(where.dtype).removeprefix("torch."),
        device=str(where.device),
        kv_bytes=decoder.slab.entry_bytes,
        state_bytes=decoder.state_bytes,
        visual_tokens=load.tokens_by(rule),
        codes=held.codes,
        weights=held.weights,
        packed_bytes=held.packed,
        working=clip.working,
        needed=held.weights + held.packed + clip.total + process,
        while_loading=held.while_loading and held.while_loading + process,
        free=free_memory(where.device),
        text=text,
        drafts=(),
        command="",
        load=load,
    )


def _frame_rule(adapter: type[VideoLanguageModel], config: StockConfig, name: str) -> FrameRule | None:
    """Return the rule of a checkpoint's own processor; without its files, which loading needs, the published one."""
    try:
        return adapter.frame_rule_of(config, read_processor(name, weight_source(name)))
    except (VidspecError, OSError, ValueError):
        return PUBLISHED_RULES.get(adapter.family)


def _listed_drafts(name: str, family: str, parameters: int) -> list[KnownModel]:
    """Return the drafts listed for a target, or else smaller models of its family."""
    drafts = {pair.draft.name: pair.draft for pair in known_pairs() if pair.draft is not None}
    listed = [pair.draft for pair in known_pairs() if pair.draft is not None and pair.target.name == name]
    return listed or [
        draft
        for draft in drafts.values()
        if is_related(family, draft.family) and (draft.parameters or parameters) < parameters
    ]


def _fit_of_listed(target: CheckpointReport, draft: KnownModel) -> DraftFit:
    """Return the fit of a listed draft, without reading its config."""
    weights = draft.weight_bytes(target.dtype)
    kv = draft.kv_bytes(target.load._replace(dtype=target.dtype))
    total = None if weights is None else target.needed + weights + kv
    return DraftFit(draft.name, total, _refusal_reason(target, draft.vocabulary, total))


def _fit_of_named(target: CheckpointReport, draft: CheckpointReport) -> DraftFit:
    """Return the fit of a draft that the user named, by its config."""
    total = target.needed + draft.needed - (PROCESS if draft.device == "cpu" else 0)
    refused = _refusal_reason(target, draft.vocabulary, total)
    if target.text:
        refused = f"{target.name} is a language model without vision, which can only be a draft"
    elif not draft.text and not is_related(target.family, draft.family):
        refused = f"{draft.family} cannot draft for {target.family}"
    return DraftFit(draft.name, total, refused)


def _refusal_reason(target: CheckpointReport, vocabulary: int | None, total: int | None) -> str | None:
    if vocabulary is not None and abs(vocabulary - target.vocabulary) >= PADDING:
        return f"another vocabulary, of {vocabulary} ids"
    if target.free is not None and total is not None and total > target.free:
        return f"{total / 2**30:.1f} GiB together, too much for this machine"
    return None


def _command(name: str, drafts: tuple[DraftFit, ...], *, text: bool, blind: bool) -> str:
    named = shlex.quote(name)
    if text:
        return f"vidspec caption clip.mp4 --profile onsd --target TARGET --draft {named}"
    fitting = [fit for fit in sorted(drafts, key=lambda fit: fit.bytes is None) if fit.refused is None]
    command = f"vidspec caption clip.mp4{' --profile onsd' * (blind and bool(fitting))} --target {named}"
    return f"{command} --draft {shlex.quote(fitting[0].draft)}" if fitting else command
