"""Pairs of small random models of every family, and captioners over them."""

from functools import cache, partial

from tests.checkpoints import (
    checkpoint,
    gemma4,
    glm4v,
    internvl,
    llava,
    llava_onevision,
    minicpmv,
    molmo2,
    qwen,
    qwen2_5_omni,
    qwen3_omni_moe,
    smolvlm,
    video_llama_3,
    video_salmonn,
)
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.models import loading
from vidspec.models.placement import resolve_placement

PLACE = resolve_placement("cpu", "float32")
#: Makes a small model of each family, with random weights.
ADAPTERS = {
    "llava_onevision": partial(llava_onevision.adapter, llava_onevision.TIED),
    "llava": partial(llava.adapter, llava.LlavaKind("llava")),
    "llava_next": partial(llava.adapter, llava.LlavaKind("llava_next")),
    "gemma4": gemma4.adapter,
    "gemma4_unified": partial(gemma4.adapter, unified=True),
    **{family: partial(glm4v.adapter, family) for family in glm4v.CLASSES},
    "internvl": internvl.adapter,
    "minicpmv4_6": minicpmv.adapter,
    "molmo2": molmo2.adapter,
    "qwen2_5_omni": qwen2_5_omni.adapter,
    "qwen3_omni_moe": qwen3_omni_moe.adapter,
    "smolvlm": smolvlm.adapter,
    "video_llama_3": video_llama_3.adapter,
    "video_salmonn2_plus": video_salmonn.adapter,
    **{family: partial(qwen.adapter, qwen.QwenKind(family)) for family in qwen.EVERY},
}


def pair_checkpoints(family, seed=0):
    """Folders of a target and of a draft that is the target with noise in its weights."""
    if family == "llava_onevision":
        return checkpoint("readable", seed=seed), checkpoint("readable", seed=seed, noise=0.05)
    if family in qwen.EVERY:
        target = checkpoint(family, tied=False, padding=9, seed=seed)
        return target, checkpoint(family, tied=False, padding=0, noise=0.03, seed=seed)
    return checkpoint(family, seed=seed), checkpoint(family, seed=seed, noise=0.03)


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
        draft = self.draft if profile.draft.has_model else None
        if not profile.concurrent:
            return Captioner(profile, self.target, draft)
        kind = profile.draft.kind
        captioner = Captioner(profile, self.target, draft, slot=self.slots.get(kind))
        self.slots[kind] = captioner.client.setup.slot
        return captioner

    def close(self):
        for slot in self.slots.values():
            slot.drop()
