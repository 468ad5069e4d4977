"""Inspects a checkpoint by its config: support, memory, and drafts that fit. Reads no weights.

The model is built on torch's meta device, so the findings are those that loading it would give.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace

from vidspec.cli.predictions import CardPredictions
from vidspec.config import profiles
from vidspec.decoding import auto
from vidspec.decoding.recurrent_limits import STATES
from vidspec.engine.decoders import decoder_of
from vidspec.engine.device import free_memory
from vidspec.engine.fused import unsupported_reason
from vidspec.engine.graphs import eager_reason_by_shape
from vidspec.engine.quantised import Precision
from vidspec.engine.stock import StockDecoder
from vidspec.errors import VidspecError
from vidspec.events.tally import counted
from vidspec.models import loading
from vidspec.models.base import StockConfig, families
from vidspec.models.checkpoint_config import load_error, read_config, weight_source
from vidspec.models.frame_rules import FrameRule
from vidspec.models.hub import is_listed, is_local
from vidspec.models.identity import is_related
from vidspec.models.known_pairs import (
    PUBLISHED_RULES,
    KnownModel,
    MemoryWorkload,
    known_model,
    known_pairs,
    published_heads,
)
from vidspec.models.memory_estimate import BYTES, PROCESS, PROMPT
from vidspec.models.model_sizes import estimate_weights, sizes_of
from vidspec.models.placement import resolve_placement
from vidspec.models.processor_files import read_processor
from vidspec.models.quantization_config import method_description, quantization_config
from vidspec.models.recommended import Card, predictions
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["CheckpointReport", "DraftFit", "inspect"]

#: Rows by which heads of the same vocabulary may differ, as they are padded to round numbers.
PADDING = 1024
#: Profiles to propose, the first that works: with a draft, an unlike one, one without vision, and without a draft.
DRAFTED, UNPRUNED, TEXT_ONLY, WITHOUT_DRAFT = (
    ("specvlm", "specvlm-chain"),
    ("vanilla-sd",),
    ("onsd",),
    ("self-specvlm", "ar"),
)


REPLAYED = "passes of few tokens replayed as graphs, except those of a head (eagle3, mtp)"


@dataclass(frozen=True)
class DraftFit:
    """A draft for the target, listed by ``vidspec models`` or named by the user.

    Attributes:
        bytes: of both models together; None if unknown.
        refused: the reason if it does not fit.
        alike: True if it has the target's visual tokens, so that pruning by the target's signals applies to it.
    """

    draft: str
    bytes: int | None
    refused: str | None
    alike: bool


@dataclass(frozen=True)
class CheckpointReport:
    """The findings, plain values only.

    Attributes:
        decoder, why: the implementation of its blocks, and the reason for it.
        eager: the reason if a GPU runs all its passes kernel by kernel; None if passes of few tokens are captured.
        states: number of blocks that keep a state instead of keys and values.
        state_bytes: of these states, at most, per clip.
        refused: keys of a profile that such states exclude.
        axes: of rotary positions.
        vocabulary: rows of the head.
        kv_bytes: of keys and values, per token.
        visual_tokens: of the clip that memory is counted for; None if the family's processor is not known.
        quantization: format of the stored weights; None if not quantised. They are loaded in ``dtype``.
        rounded: codes that the language model's weights are rounded to; None if they are not.
        codes: bytes of codes, stored in the checkpoint or rounded to at load.
        weights, packed_bytes: bytes of the weights, and of packed copies of the large ones.
        working: temporary bytes while such a clip is read: its prompt, and the tower or a pass of the prefill.
        needed, free: bytes of all of these, of keys and values and of the process, and bytes free on ``device``.
        while_loading: peak bytes before all weights are rounded; 0 if none are.
        text: True for a language model without vision, which can only be a draft.
        hears: True if it has audio input.
        predicted: speeds on a card; None without one.
        unpredicted: the reason if there is a card and no prediction for it.
    """

    name: str
    family: str
    decoder: str
    why: str
    eager: str | None
    blocks: int
    states: int
    state_bytes: int
    refused: tuple[str, ...]
    axes: int
    vocabulary: int
    parameters: int
    dtype: str
    device: str
    kv_bytes: int
    visual_tokens: int | None
    quantization: str | None
    rounded: Precision | None
    codes: int
    weights: int
    packed_bytes: int
    working: int
    needed: int
    while_loading: int
    free: int | None
    text: bool
    hears: bool
    drafts: tuple[DraftFit, ...]
    command: str
    load: MemoryWorkload
    predicted: CardPredictions | None = None
    unpredicted: str = ""

    @property
    def fits(self) -> bool:
        """True if free memory suffices for the model and a clip, and for loading."""
        return self.free is None or max(self.needed, self.while_loading) <= self.free

    def fits_on(self, card: Card | None) -> bool:
        """Return :attr:`fits`, or that of the predictions on a card."""
        return self.fits if card is None or self.predicted is None else self.predicted.fits

    @property
    def _qualification(self) -> str:
        """Limits of the support of its family, after the word."""
        if self.text:
            return " as a draft only"
        return "" if is_local(self.name) or is_listed(self.name) else " by its layout; this name is not listed"

    def to_dict(self) -> dict[str, object]:
        """Return the object for ``--format json``."""
        facts = asdict(replace(self, predicted=None)) | {"supported": True, "fits": self.fits}
        del facts["load"]
        return facts | {"predicted": self.predicted and self.predicted.to_dict()}

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values for the table."""
        kept = "by cutting keys and values: any number of tokens, chains and trees"
        if self.states:
            kept = (
                f"{self.states} of {self.blocks} blocks keep states, at most {_gib(self.state_bytes)} for each clip; "
                f"refused: {', '.join(self.refused)}"
            )
        frames, (tall, wide), new_tokens, _ = self.load
        clip = f"a clip of {counted(frames, 'frame')} of {wide} x {tall} and {counted(new_tokens, 'new token')}"
        if self.visual_tokens is None:
            clip = counted(new_tokens, "token")
        room = "free memory unknown" if self.free is None else f"{_gib(self.free)} free"
        room += "" if self.fits else ", too little"
        peak = f"; {_gib(self.while_loading)} while it is loaded" if self.while_loading else ""
        stored = f"its codes are kept, {_gib(self.codes)}" if self.codes else f"loaded as {self.dtype}"
        if self.rounded:
            stored = f"rounded to {self.rounded} when it is loaded"
        packed = f" and {_gib(self.packed_bytes)} packed" if self.packed_bytes else ""
        rows = [
            ("model", self.name),
            ("family", f"{self.family}, supported" + self._qualification),
            ("sound", "audio input supported; --no-audio turns it off" if self.hears else ""),
            ("decoder", f"{self.decoder}: {self.why}"),
            ("on a GPU", REPLAYED if self.eager is None else f"all passes kernel by kernel: {self.eager}"),
            ("rollback", kept),
            ("positions", f"{self.axes} axes (M-RoPE)" if self.axes > 1 else "1 axis"),
            ("vocabulary", f"{self.vocabulary} rows of the head"),
            (
                "quantization",
                "; ".join(filter(None, [self.quantization, stored])) if self.quantization or self.rounded else "",
            ),
            ("size", f"{self.parameters / 1e9:.2f}e9 parameters, {_gib(self.weights)} in {self.dtype}" + packed),
            ("memory", f"{_gib(self.needed)} with {clip}{peak}; {self.device}: {room}"),
            *(("draft", f"{fit.draft}: {fit.refused or _total_text(fit.bytes)}") for fit in self.drafts),
            *(
                ("head", f"{head.name}: published, not yet run here; --profile {head.kind} --draft {head.name}")
                for head in published_heads()
                if head.target == self.name
            ),
            *([("predicted", self.unpredicted)] if self.predicted is None else self.predicted.rows()),
        ]
        return [(label, value) for label, value in rows if value]


def inspect(
    name: str,
    draft: str | None = None,
    load: MemoryWorkload | None = None,
    rounded: Precision | None = None,
    card: Card | None = None,
) -> CheckpointReport:
    """Inspect a checkpoint.

    Args:
        name: hub id, or a folder as ``save_pretrained`` writes it.
        draft: the only draft to inspect; the listed ones if None.
        load: the clip that memory is counted for.
        rounded: codes that the checkpoint's language model is rounded to when it is loaded.
        card: the card to predict speeds for; the GPU that is there if None.

    Raises:
        ModelError: not found, unreadable, or of a family that is not supported.
        DeviceError: its weights cannot be rounded.
    """
    load, blind = load or MemoryWorkload(), False
    report = _inspect_checkpoint(name, load, rounded)
    if draft is None:
        drafts = [] if report.text else _listed_drafts(name, report.family, report.parameters)
        unlike = {
            pair.draft
            for pair in known_pairs()
            if pair.target.name == name and "prune.method: none" in (pair.note or "")
        }
        fits = tuple(_fit_of_listed(report, one, unlike=one in unlike) for one in drafts)
    else:
        draft_report = _inspect_checkpoint(draft, load)
        fits = (_fit_of_named(report, draft_report),)
        blind = draft_report.text
    command = _command(name, fits, text=report.text, states=bool(report.refused), blind=blind)
    if rounded is not None:
        command += f" --set models.weights={rounded}"
    predicted, unpredicted, at = None, "", card or auto.card_here()
    if at is not None and not report.text:
        predicted = _predict(report, draft, at, report.free if card is None else at.usable)
        why = "the table of predictions has 16-bit weights only" if rounded else "it is not in the table of predictions"
        unpredicted = f"no speeds on {at.name}: {why}"
    if predicted is not None and draft is None:
        command = predicted.command
    return replace(report, drafts=fits, command=command, predicted=predicted, unpredicted=unpredicted)


def _predict(report: CheckpointReport, draft: str | None, card: Card, free: float | None) -> CardPredictions | None:
    """Return the predicted speeds of a checkpoint in 16 bits on a card; None if it is not in the table.

    One of a published model's family and size has its speeds, but heads are published for the hub id alone.
    """
    listed = known_model(report.name) or _published_twin(report)
    if listed is None or report.rounded or report.codes:
        return None
    heads = () if listed.name == report.name else [head.name for head in published_heads()]
    predicted = predictions(listed.name, card, report.load, 2 * report.parameters, _held(report), free, heads)
    if predicted is None:
        return None
    if draft is None:
        return CardPredictions(card, report.name, predicted)
    found = [one for one in predicted.found if one.draft is None or one.name == draft]
    missing = draft if len(found) == 1 else None
    return CardPredictions(card, report.name, replace(predicted, found=found), missing)


def _published_twin(report: CheckpointReport) -> KnownModel | None:
    """Return the published model of a checkpoint's family and size; None if there is none."""
    listed = (model for pair in known_pairs() for model in (pair.target, pair.draft) if model is not None)
    size = report.family, report.parameters
    return next((model for model in listed if (model.family, model.parameters) == size), None)


def _held(report: CheckpointReport) -> int:
    """Return the bytes of a model and a clip on a GPU: in 16 bits, nothing packed, no process."""
    share = 2 / BYTES[report.dtype]
    clip = report.kv_bytes * ((report.visual_tokens or 0) + PROMPT + report.load.new_tokens)
    return round(2 * report.parameters + share * (clip + report.state_bytes + report.working))


def _inspect_checkpoint(name: str, load: MemoryWorkload, rounded: Precision | None = None) -> CheckpointReport:
    """Inspect a checkpoint without drafts."""
    config = read_config(name, text=True)
    where, family = replace(resolve_placement(dtype=load.dtype), weights=rounded), str(config.model_type)
    text = family not in families
    kind = loading.adapter_class(family)
    try:
        model = loading.empty_model(kind, config, where.dtype)
    except Exception as error:  # whatever a bad config makes the library raise
        raise load_error(name, error) from error
    parameters = sum(weight.numel() for weight in model.parameters())
    where, held = estimate_weights(name, kind, model, config, where)
    language = kind.language_of(model)
    reason = unsupported_reason(language, model.lm_head)
    decoder = decoder_of(language, model.lm_head, "stock")
    assert isinstance(decoder, StockDecoder)
    rule = None if text else _frame_rule(kind, model.config, name)
    tokens = load.tokens_by(rule)
    clip = load.memory(sizes_of(kind, model, decoder, where.device), rule)
    eager = decoder.eager if reason else eager_reason_by_shape(decoder.windows, round(decoder.scaling**-2))
    settings, process = quantization_config(config), PROCESS if where.device.type == "cpu" else 0
    return CheckpointReport(
        name=name,
        family=family,
        decoder="fused" if reason is None else "stock",
        why=reason or "all its blocks are covered",
        eager=eager,
        blocks=decoder.depth,
        states=0 if decoder.cached is None else decoder.depth - len(decoder.cached),
        state_bytes=decoder.state_bytes,
        refused=() if decoder.cached is None else tuple(key for key, *_ in STATES),
        axes=decoder.axes,
        vocabulary=int(model.lm_head.weight.shape[0]),
        parameters=parameters,
        dtype=str(where.dtype).removeprefix("torch."),
        device=str(where.device),
        kv_bytes=decoder.slab.entry_bytes,
        visual_tokens=tokens,
        quantization=None if settings is None else method_description(settings),
        rounded=rounded,
        codes=held.codes,
        weights=held.weights,
        packed_bytes=held.packed,
        working=clip.working,
        needed=held.weights + held.packed + clip.total + process,
        while_loading=held.while_loading and held.while_loading + process,
        free=free_memory(where.device),
        text=text,
        hears=not text and kind.audio_tokens is not VideoLanguageModel.audio_tokens,
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


def _fit_of_listed(target: CheckpointReport, draft: KnownModel, *, unlike: bool) -> DraftFit:
    """Return the fit of a listed draft, without reading its config."""
    load = target.load._replace(dtype=target.dtype)
    weights = draft.weight_bytes(target.dtype)
    total = None if weights is None else target.needed + weights + draft.kv_bytes(load)
    alike = not unlike and load.visual_tokens(draft.family) == target.visual_tokens
    return DraftFit(draft.name, total, _refusal_reason(target, draft.vocabulary, total), alike)


def _fit_of_named(target: CheckpointReport, draft: CheckpointReport) -> DraftFit:
    """Return the fit of a draft that the user named, by its config."""
    total = target.needed + draft.needed - (PROCESS if draft.device == "cpu" else 0)
    refused = _refusal_reason(target, draft.vocabulary, total)
    if target.text:
        refused = f"{target.name} is a language model without vision, which can only be a draft"
    elif not draft.text and not is_related(target.family, draft.family):
        refused = f"{draft.family} cannot draft for {target.family}"
    return DraftFit(draft.name, total, refused, draft.visual_tokens == target.visual_tokens)


def _has_other_vocabulary(target: CheckpointReport, vocabulary: int | None) -> bool:
    return vocabulary is not None and abs(vocabulary - target.vocabulary) >= PADDING


def _refusal_reason(target: CheckpointReport, vocabulary: int | None, total: int | None) -> str | None:
    if _has_other_vocabulary(target, vocabulary):
        return f"another vocabulary, of {vocabulary} ids"
    if target.free is not None and total is not None and total > target.free:
        return f"{_gib(total)} together, too much for this machine"
    return None


def _total_text(count: int | None) -> str:
    return "size unknown" if count is None else f"fits, {_gib(count)} together"


def _command(name: str, drafts: tuple[DraftFit, ...], *, text: bool, states: bool, blind: bool) -> str:
    named = shlex.quote(name)
    if text:
        return f"vidspec caption clip.mp4 --profile onsd --target TARGET --draft {named}"
    fitting = [fit for fit in sorted(drafts, key=lambda fit: fit.bytes is None) if fit.refused is None]
    proposed = TEXT_ONLY if blind else DRAFTED if fitting and fitting[0].alike else UNPRUNED
    profile = next(one for one in (proposed if fitting else WITHOUT_DRAFT) if not (states and _excluded_by_states(one)))
    command = f"vidspec caption clip.mp4 --profile {profile} --target {named}"
    return f"{command} --draft {shlex.quote(fitting[0].draft)}" if fitting else command


def _excluded_by_states(name: str) -> bool:
    """Return True if states of recurrent blocks exclude a profile."""
    profile = profiles.load(name, env={})
    return any(broken(profile) for *_, broken in STATES)


def _gib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f} GiB"
