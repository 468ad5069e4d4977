"""The models of a captioner: loading by a profile, the record's entry on them, and notes for the user."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vidspec.config.schema import Profile
from vidspec.decoding import auto
from vidspec.decoding.setup import DecodingSetup
from vidspec.embedded import ships
from vidspec.errors import ModelError
from vidspec.events.record import ModelsRecord
from vidspec.models import hub, loading
from vidspec.models.checkpoint_config import read_config
from vidspec.models.generation_rules import unread_note
from vidspec.models.identity import require_vision
from vidspec.models.placement import Placement
from vidspec.models.video_language_model import VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.decoding.workers.process import DraftProcessSlot
    from vidspec.models.head import Head
    from vidspec.models.image_captioner import ImageCaptioner

__all__ = [
    "HEAD_FOLDERS",
    "CaptionerModels",
    "build_setup",
    "load_head",
    "load_models",
    "models_record",
    "notes_on",
]

#: Folders of a built-in pair with the heads that drafters take.
HEAD_FOLDERS = {"eagle3": "head", "dflash": "block_head"}


class CaptionerModels(NamedTuple):
    """The models of a profile.

    Attributes:
        target: the target.
        draft: the draft, if it is in this process.
        describe: captions a frame for an ensemble's context of that kind.
        slot: the draft's process.
        head: head over the target's states.
    """

    target: VideoLanguageModel
    draft: VideoLanguageModel | None = None
    describe: ImageCaptioner | None = None
    slot: DraftProcessSlot | None = None
    head: Head | None = None


def load_models(profile: Profile, undo: ExitStack) -> CaptionerModels:
    """Load the models of a profile; the draft's process is started and may still be loading.

    Args:
        profile: the settings.
        undo: receives what must be undone if the captioner is not built.

    Raises:
        ModelError, DeviceError: with a one-line message and a hint.
    """
    wanted, (target_name, draft_name) = profile.models, _names(profile)
    where, draft_where = auto.target_placement(profile), auto.draft_placement(profile)
    hub.require_models(profile.named_models)
    if wanted.pair is None:
        read_config(target_name)  # its errors are reported before the draft is loaded
    # The target last: its device map depends on the memory that is left.
    describe = None
    if wanted.captioner:
        from vidspec.models.image_captioner import load_image_captioner

        describe = load_image_captioner(wanted.captioner, replace(draft_where, weights=None))
    draft = slot = None
    if profile.concurrent:
        slot = start_draft(draft_name if profile.draft.has_model else target_name, profile)
        undo.callback(slot.drop)
    elif profile.draft.has_model:
        draft = loading.load_model(draft_name, draft_where, text=True)
    target = loading.load_model(target_name, where)
    if wanted.pair is not None:
        target.rename("embedded/target")
        if draft is not None:
            draft.rename("embedded/draft")
    head: Head | None = None
    if profile.draft.named_head:
        head = load_head(profile.draft.named_head, draft_name, target, draft_where)
        head.name = "embedded/head" if wanted.pair is not None else head.name
    elif profile.draft.has_head:
        from vidspec.models.mtp import load_mtp

        head = load_mtp(target)
    return CaptionerModels(target, draft, describe, slot, head)


def load_head(kind: str, name: str, target: VideoLanguageModel, where: Placement) -> Head:
    """Load a head in the layout ``kind``."""
    if kind == "dflash":
        from vidspec.models.dflash import load_block_head

        return load_block_head(name, target, where)
    from vidspec.models.eagle3 import load_eagle3

    return load_eagle3(name, target, where)


def start_draft(model: str, profile: Profile) -> DraftProcessSlot:
    """Start the draft's process of the parallel schedule, with a hub id or folder."""
    from vidspec.decoding.workers.process import DraftProcessSlot

    return DraftProcessSlot(model, auto.draft_placement(profile), profile)


def _names(profile: Profile) -> tuple[str, str]:
    """Return hub ids or folders of target and draft."""
    wanted = profile.models
    if wanted.pair is None:
        return wanted.target or "", wanted.draft or ""
    folder = loading.embedded_folder(wanted.pair, "target")
    if not (folder / "config.json").is_file():
        raise ModelError("the built-in models are missing from this installation", hint="reinstall vidspec")
    drafting = loading.embedded_folder(wanted.pair, HEAD_FOLDERS.get(profile.draft.named_head or "", "draft"))
    if profile.draft.named_head and not drafting.is_dir():
        raise ModelError(
            f"the built-in pair {wanted.pair} has no head for draft.kind {profile.draft.kind}",
            hint="give --set models.pair=embedded-qwen, or --target MODEL --draft HEAD",
        )
    return str(folder), str(drafting)


def build_setup(profile: Profile, models: CaptionerModels) -> DecodingSetup:
    """Return the parts of a profile with its models, as far as it uses them; starts the draft's process if need be.

    Raises:
        ModelError, ProfileError: the models do not fit each other, or the profile.
    """
    target, draft, describe, slot, head = models
    if draft is not None:
        loading.check_pair(target, draft)
        require_vision(draft, shown=profile.draft.has_video or (profile.draft.has_caption and describe is None))
    describe = describe if profile.draft.has_caption else None
    if profile.draft.has_caption and describe is None and draft is not None:
        from vidspec.models.image_captioner import DraftCaptioner

        describe = DraftCaptioner(draft, beside=auto.has_room_for_two(target.device, draft.device))
    if not profile.concurrent:
        return DecodingSetup.of(profile, target, draft, describe, head)
    if slot is None:
        slot = start_draft((target if draft is None else draft).source, profile)
    slot.target = target
    return DecodingSetup.of(profile, target, None, describe, head, slot)


#: Files that hold a checkpoint's chat template as a rule, which the record need not name.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def models_record(setup: DecodingSetup) -> ModelsRecord:
    """Return the record's entry on the models: both names, and family, dtype, device and decoder of the target."""
    model, wanted = setup.target.model, setup.profile.models
    decoder = model.decoder
    template = model.template.origin or "built in"
    why = decoder.why if decoder.name != "fused" else decoder.eager if model.device.type == "cuda" else None
    return {
        "target": model.name,
        **({} if wanted.adapter is None else {"adapter": wanted.adapter}),
        "draft": _draft_name(setup),
        "family": model.family,
        **({"template": template} if template not in TEMPLATE_FILES else {}),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": wanted.weights or (model.codes and f"{model.codes}, as stored"),
        "device": str(model.device),
        "decoder": f"{decoder.name}: {why}" if why else decoder.name,
    }


def _draft_name(setup: DecodingSetup) -> str | None:
    if setup.draft is not None:
        return setup.draft.model.name
    if setup.head is not None:
        return setup.head.model.name
    if setup.slot is None or not setup.profile.draft.has_model:
        return None
    return "embedded/draft" if ships(setup.slot.model) else setup.slot.model


def notes_on(setup: DecodingSetup) -> tuple[str, ...]:
    """Return notes for the user on the loaded models, a line each."""
    models = [engine.model for engine in (setup.target, setup.draft) if engine is not None]
    lines: list[str | None] = [note for model in models for note in model.notes]
    lines += [] if setup.head is None else setup.head.model.notes
    target = setup.target.model
    lines.append(unread_note(target.name, target.model.generation_config))
    if setup.drafter is not None:
        lines.append(setup.drafter.note)
    lines += [
        f"{model.name}: passes are not captured as graphs: {model.decoder.eager}"
        for model in models
        if model.device.type == "cuda" and model.decoder.eager is not None
    ]
    place = setup.slot.device if setup.slot is not None else None
    if place == models[0].device and place.type == "cuda":
        advice = "that they work at the same time gains nothing there: it takes a GPU for each"
        lines.append(f"{setup.profile.name}: target and draft are both on {place}; {advice}")
    return tuple(dict.fromkeys(line for line in lines if line))
