"""Encode a request's clip and prompt for one model, with trace spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from vidspec.engine.requests import Encode, ModelLane, Steps
from vidspec.events.trace import Trace
from vidspec.models.base import EmbeddedPrompt, Pixels, VisionOutput
from vidspec.models.request import CaptionRequest
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.video.base import Clip


def preprocess_clip(models: Sequence[VideoLanguageModel], clip: Clip) -> list[Pixels]:
    """Return a clip's pixels for each model, computed once for models that preprocess alike."""
    pixels: list[Pixels] = []
    for model in models:
        alike = (known for other, known in zip(models, pixels, strict=False) if model.has_pixels_of(other))
        pixels.append(next(alike, None) or model.preprocess(clip))
    return pixels


def share_pixels(models: Sequence[VideoLanguageModel], request: CaptionRequest, trace: Trace) -> Steps[CaptionRequest]:
    """Return the request with its clip preprocessed for all of ``models`` if they do it alike, else unchanged.

    Not on a GPU, where preprocessing takes little time and the pixels would take memory.
    """
    if request.text_only:
        return request
    first, *others = models
    seen = request.cache is not None and request.cache.seen
    alike = others and all(other.has_pixels_of(first) for other in others)
    if not alike or first.device.type != "cpu" or first in request.ahead or seen:
        return request
    with trace.span("preprocess"):
        pixels = yield Encode(partial(first.preprocess, request.frames))
    return replace(request, ahead={model: pixels for model in models})


def encode_prompt(
    model: VideoLanguageModel, request: CaptionRequest, trace: Trace, worker: ModelLane, *, pooled: bool = False
) -> Steps[EmbeddedPrompt]:
    """Return the embedded prompt with the video in it, if the request has one.

    Args:
        model: the model that reads it.
        request: clip and prompt.
        trace: receives spans of preprocessing and the vision tower.
        worker: lane of the spans.
        pooled: average the tower's features 2 x 2 before the projector.
    """
    if request.text_only:
        return model.text_prefix(model.template.ids_without_video(request.prompt or "", request.system))
    cache = request.cache
    precomputed = request.ahead.get(model)
    if cache is not None and (model, pooled) in cache.seen:
        vision = cache.seen[model, pooled]
    elif isinstance(precomputed, VisionOutput) and not pooled:
        vision = precomputed
    else:
        with trace.span("preprocess", worker):
            if not isinstance(pixels := precomputed, Pixels):
                pixels = yield Encode(partial(model.preprocess, request.frames), worker)
        with trace.span("vision", worker):
            vision = yield from _on_lane(model.encode_steps(pixels, pooled=pooled), worker)
    if cache is not None:
        cache.seen[model, pooled] = vision
    with trace.span("vision", worker):
        return model.prefix(vision, request.prompt or "", request.system, request.earlier)


def _on_lane(steps: Steps[VisionOutput], worker: ModelLane) -> Steps[VisionOutput]:
    """Run the requests of a vision tower on a lane."""
    answer: object = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        request.lane = worker
        answer = yield request
