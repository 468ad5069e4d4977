"""One target and one draft in memory, shared by all measured profiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from vidspec.captioner import Captioner
from vidspec.config import labels, profiles
from vidspec.decoding.captioner_models import HEAD_FOLDERS, load_head
from vidspec.decoding.workers.process import DraftProcessSlot
from vidspec.engine.layouts import WeightFormat
from vidspec.engine.matrix import Precision
from vidspec.errors import UsageError
from vidspec.models import loading, mtp
from vidspec.models.checkpoint_config import head_kind
from vidspec.models.head import Head
from vidspec.models.placement import Placement, resolve_placement
from vidspec.models.video_language_model import VideoLanguageModel

__all__ = ["LoadedModels", "ModelSource", "profile_labels"]


@dataclass(frozen=True)
class ModelSource:
    """Models and their placement.

    Attributes:
        pair: a built-in one.
        target, draft: hub ids or folders, in place of a pair.
        weights: quantisation of the target's weights.
    """

    pair: str = "embedded"
    target: str | None = None
    draft: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    weights: Precision | None = None

    @property
    def names(self) -> tuple[str, str | None]:
        """Folders or hub ids of target and draft.

        Raises:
            UsageError: a draft without a target.
        """
        if self.target is not None:
            return self.target, self.draft
        if self.draft is not None:
            raise UsageError("--draft needs --target", hint="name one, or give --pair alone for a built-in pair")
        return tuple(str(loading.embedded_folder(self.pair, role)) for role in ("target", "draft"))  # type: ignore[return-value]

    def placement(self) -> Placement:
        return resolve_placement(self.device, self.dtype)


class LoadedModels:
    """The models of a :class:`ModelSource`.

    ``draft`` is None if none was named, otherwise in the format of ``draft.precision: auto``. Parallel profiles share
    one draft process for each kind of draft.
    """

    def __init__(self, source: ModelSource) -> None:
        self.source, self.where = source, source.placement()
        first, second = source.names
        self.target = loading.load_model(first, replace(self.where, weights=source.weights))
        self.named_head = None if second is None else head_kind(second)
        self._drafts: dict[WeightFormat, VideoLanguageModel] = {}
        self.draft = self._load_draft("auto")
        self._slots: dict[tuple[str, str], DraftProcessSlot] = {}
        self._heads: dict[str, Head] = {}

    def _load_draft(self, weights: WeightFormat) -> VideoLanguageModel | None:
        _, name = self.source.names
        if name is None or self.named_head:
            return None
        if weights not in self._drafts:
            self._drafts[weights] = loading.load_model(name, replace(self.where, weights=weights), text=True)
        return self._drafts[weights]

    def head(self, kind: str) -> Head | None:
        """Return the head in the layout ``kind``: that named in place of a draft, or that of a built-in pair."""
        name = self.source.draft if kind == self.named_head else None
        if self.source.target is None:
            name = str(loading.embedded_folder(self.source.pair, HEAD_FOLDERS[kind]))
        if name is not None and kind not in self._heads:
            self._heads[kind] = load_head(kind, name, self.target, self.where)
        return self._heads.get(kind)

    @cached_property
    def layer(self) -> Head:
        """The MTP layer in the target's checkpoint."""
        return mtp.load_mtp(self.target)

    def captioner(self, label: str, overrides: Mapping[str, object] | None = None) -> Captioner:
        """Return a captioner of a label's profile (:mod:`~vidspec.config.labels`), which wins over ``overrides``.

        Raises:
            ProfileError: there is no such profile, or it rejects a setting.
            UsageError: it is not a label, needs other target weights, or drafts with a model and none was named.
        """
        profile = labels.load(label, {"models.weights": self.source.weights, **(overrides or {})})
        if profile.models.weights != self.source.weights:
            wanted = (
                f"give --weights {profile.models.weights} for all" if profile.models.weights else "leave out --weights"
            )
            raise UsageError(f"profile {profile.name} needs another target than the loaded one", hint=wanted)
        precision = profile.draft.precision
        weights: WeightFormat = None if precision == "as-target" else precision
        draft = self._load_draft(weights) if profile.draft.has_model else None
        if profile.draft.has_model and draft is None:
            raise UsageError(f"profile {profile.name} drafts with a model", hint="name one with --draft")
        head = self.head(profile.draft.named_head) if profile.draft.named_head else None
        if profile.draft.named_head and head is None:
            raise UsageError(
                f"profile {profile.name} drafts with a head of the target", hint="name both with --target and --draft"
            )
        made = Captioner(
            profile,
            self.target,
            draft,
            slot=self._slots.get((profile.draft.kind, precision)),
            head=self.layer if profile.draft.has_head and not profile.draft.named_head else head,
        )
        if (slot := made.client.setup.slot) is not None:
            self._slots[profile.draft.kind, precision] = slot
        return made

    def close(self) -> None:
        """End the draft processes."""
        for slot in self._slots.values():
            slot.drop()


def lossless_profiles() -> list[str]:
    """Return every packaged lossless profile, plain decoding first, without those that draft with a head."""
    names = sorted(info.name for info in profiles.available() if info.source == "packaged")
    loaded = [profiles.load(name) for name in names if name != "ar"]
    return ["ar", *(one.name for one in loaded if one.lossless and not one.draft.has_head)]


def require_files(clips: Iterable[Path]) -> None:
    """Refuse clips that are missing, or folders.

    Raises:
        UsageError: naming the first.
    """
    for clip in clips:
        if not clip.is_file():
            raise UsageError(f"{clip}: {'is no file' if clip.exists() else 'there is no such file'}")


def profile_labels(text: str) -> list[str]:
    """Parse labels of a command line, separated by commas; ``all`` stands for :func:`lossless_profiles`.

    Raises:
        UsageError: none, one of them twice, or one that is not a label.
    """
    names = [name for one in labels.split(text) for name in (lossless_profiles() if one == "all" else [one])]
    if not names:
        raise UsageError("--profiles names no profile", hint="name some, such as --profiles ar,vanilla-sd")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--profiles names {twice[0]} twice")
    for name in names:
        _, keys = labels.parse(name)
        if any(key.startswith("models.") and key != "models.weights" for key in keys):  # captioner() checks weights
            raise UsageError(f"{name}: all profiles share the models", hint=labels.MODEL_OPTIONS)
    return names
