"""Pairs of small random models of every family, and captioners over them."""

from functools import cache, partial

from tests.decoding import checkpoints
from tests.models import checkpoints as checkpoints_onevision
from tests.models import (
    checkpoints_gemma4,
    checkpoints_internvl,
    checkpoints_llava,
    checkpoints_omni,
    checkpoints_qwen,
    checkpoints_smolvlm,
)
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

PLACE = resolve_placement("cpu", "float32")
#: Modules with a ``save`` for one family.
OF_ONE = {
    "gemma4": checkpoints_gemma4,
    "internvl": checkpoints_internvl,
    "llava_onevision": checkpoints,
    "qwen2_5_omni": checkpoints_omni,
    "smolvlm": checkpoints_smolvlm,
}

#: Makes a small model of each family, with random weights.
ADAPTERS = {
    "llava_onevision": partial(checkpoints_onevision.adapter, checkpoints_onevision.TIED),
    "llava": partial(checkpoints_llava.adapter, checkpoints_llava.Kind("llava")),
    "llava_next": partial(checkpoints_llava.adapter, checkpoints_llava.Kind("llava_next")),
    "gemma4": checkpoints_gemma4.adapter,
    "internvl": checkpoints_internvl.adapter,
    "qwen2_5_omni": checkpoints_omni.adapter,
    "smolvlm": checkpoints_smolvlm.adapter,
    **{family: partial(checkpoints_qwen.adapter, checkpoints_qwen.Kind(family)) for family in checkpoints_qwen.EVERY},
}


def save_pair(family, folder, seed=0):
    """Folders of a target and of a draft that is the target with noise in its weights."""
    target, draft = folder / "target", folder / "draft"
    if family in OF_ONE:
        save = OF_ONE[family].save
        return save(target, seed=seed), save(draft, seed=seed, noise=0.05 if family == "llava_onevision" else 0.03)
    if family.startswith("qwen"):
        kind = checkpoints_qwen.Kind(family, tied=False, padding=9, seed=seed)
        other = checkpoints_qwen.Kind(family, tied=False, padding=0, noise=0.03, seed=seed)
        return checkpoints_qwen.save(kind, target), checkpoints_qwen.save(other, draft)
    kind = checkpoints_llava.Kind(family, seed=seed)
    other = checkpoints_llava.Kind(family, noise=0.03, seed=seed)
    return checkpoints_llava.save(kind, target), checkpoints_llava.save(other, draft)


class Pair:
    """A loaded target and draft, captioners over them, and what plain decoding of the target gives for a clip.

    The parallel profiles share one draft process for each kind of drafter.
    """

    def __init__(self, target, draft, tokens, **settings):
        self.target, self.draft = (loading.load_model(str(model), PLACE) for model in (target, draft))
        self.tokens, self.settings = tokens, settings
        self.slots = {}
        self.plain = cache(lambda clip: self.captioner("ar").caption(clip).token_ids)

    def captioner(self, name, overrides=None):
        settings = {"generate.max_new_tokens": self.tokens, "models.threads": 2, **self.settings, **(overrides or {})}
        profile = profiles.load(name, settings, env={})
        draft = self.draft if profile.drafts_with_a_model else None
        if not profile.concurrent:
            return Captioner(profile, self.target, draft)
        kind = profile.draft.kind
        captioner = Captioner(profile, self.target, draft, slot=self.slots.get(kind))
        self.slots[kind] = captioner.slot
        return captioner

    def close(self):
        for slot in self.slots.values():
            slot.drop()
