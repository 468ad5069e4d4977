"""A request as one model reads it, timed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from vidspec.engine.requests import Encode, Lane, Steps
from vidspec.models.base import Pixels, Prefix, Seen, VideoLanguageModel

if TYPE_CHECKING:
    from vidspec.events.trace import Trace
    from vidspec.models.request import Request

__all__ = ["read"]


def read(
    model: VideoLanguageModel, request: Request, trace: Trace, worker: Lane, *, pooled: bool = False
) -> Steps[Prefix]:
    """The prompt with the video in it, embedded.

    Args:
        model: the model that will read it.
        request: clip and prompt.
        trace: where preprocessing and the vision tower are timed.
        worker: the lane they are timed in.
        pooled: average the tower's features 2 x 2 before the projector.
    """
    cache = request.cache
    made = request.ahead.get(model)
    if cache is not None and (model, pooled) in cache.seen:
        seen = cache.seen[model, pooled]
    elif isinstance(made, Seen) and not pooled:
        seen = made
    else:
        with trace.span("preprocess", worker):
            pixels = made if isinstance(made, Pixels) else model.preprocess(request.shown)
        with trace.span("vision", worker):
            seen = yield from _seen(model.seeing(pixels, pooled=pooled), worker)
    if cache is not None:
        cache.seen[model, pooled] = seen
    with trace.span("vision", worker):
        return model.prefix(seen, request.prompt or "", request.system, request.earlier)


def _seen(steps: Generator[None, None, Seen], worker: Lane) -> Steps[Seen]:
    """Each step of the vision tower in its turn."""
    found: list[Seen] = []

    def step() -> None:
        try:
            next(steps)
        except StopIteration as end:
            found.append(end.value)

    while not found:
        yield Encode(step, worker)
    return found[0]
