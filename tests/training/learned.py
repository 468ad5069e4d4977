"""Captions of a small random target, and heads that learn them by heart."""

from __future__ import annotations

from pathlib import Path

from tests.drafting.test_heads import clip
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.models import dflash
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.training.head import SharedWeights, TrainedBlocks, TrainedHead
from vidspec.training.states import CaptionedClip, StatesFolder, write_states
from vidspec.training.steps import HeadTraining, TrainingLimits

PLACE = resolve_placement("cpu", "float32")
#: Clips that are learned by heart, and tokens of their captions.
COUNT, TOKENS = 4, 90
PROMPT = "What happens?"


def captioner(target: VideoLanguageModel, name: str, head: dflash.BlockHead | None = None, **keys: object) -> Captioner:
    settings = {"models.target": "target", "generate.max_new_tokens": TOKENS, "generate.stop_loops": False}
    settings |= {} if head is None else {"models.draft": head.name}
    profile = profiles.load(name, {**settings, "generate.prompt": PROMPT, **keys}, env={})
    return Captioner(profile, target, None, head=head)


def captioned(target: VideoLanguageModel, count: int = COUNT) -> list[CaptionedClip]:
    """Clips with the captions that the target writes by plain decoding."""
    target.eos = frozenset()
    plain = captioner(target, "ar")
    requests = [CaptionRequest(f"{seed}.mp4", clip(seed), prompt=PROMPT) for seed in range(count)]
    texts = [plain.caption(one.path, clip=one.clip).token_ids for one in requests]
    return [
        CaptionedClip(one.path, one.path, one, None, tuple(text)) for one, text in zip(requests, texts, strict=True)
    ]


def states_of(target: VideoLanguageModel, head: TrainedHead, clips: list[CaptionedClip], folder: Path) -> StatesFolder:
    file = StatesFolder(folder, head.taps, head.hidden, target.dtype, one_axis=head.one_axis)
    folder.mkdir(exist_ok=True)
    for _ in write_states(target, clips, file, []):
        pass
    return file


def training(
    target: VideoLanguageModel, clips: list[CaptionedClip], folder: Path, steps: int, *, blocks: int = 2, seed: int = 0
) -> HeadTraining:
    """Training of a new head on all clips, which also validate it."""
    shared = SharedWeights.of(target)
    head = TrainedBlocks.new(target, shared, min(blocks, target.layers - 1), seed)
    keys = [one.key for one in clips]
    file = states_of(target, head, clips, folder)
    return HeadTraining(head, file, keys, keys, folder, seed=seed, limits=TrainingLimits(steps=steps))
