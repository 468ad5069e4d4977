"""Recent videos with their caches, so that a further question reads only what is new. Bounded in bytes and time."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vidspec.decoding.dialogue import ClipSession
from vidspec.models.prefix_cache import VisionOutputs
from vidspec.models.request import CaptionRequest, Question

if TYPE_CHECKING:
    from vidspec.decoding.engine_client import EngineClient
    from vidspec.video.base import Clip

#: Seconds for which a video is kept after its last answer.
KEPT_S = 600.0


class _RecentVideo(NamedTuple):
    session: ClipSession
    answered: float


class RecentVideos:
    """Sessions of clips about which requests were answered, the least recently used first. For one event loop.

    Args:
        client: submits the requests.
        most: maximum bytes of frames, vision outputs and KV entries together; 0 to keep nothing.
    """

    def __init__(self, client: EngineClient, most: int) -> None:
        self._client, self.most = client, most
        self._videos: OrderedDict[Hashable, _RecentVideo] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return sum(video.session.nbytes for video in self._videos.values())

    def find(self, request: CaptionRequest) -> CaptionRequest:
        """Return a request with the clip of its key, if there is one, and with a cache.

        Only the vision outputs are reused where a text may depend on what the draft saw: a pruner chooses again.
        """
        if not self.most:
            return request
        request = replace(request, question=Question("turn", len(request.earlier)))
        if (video := self._videos.get(request.key)) is None:
            return ClipSession(request).attach(request)
        setup = self._client.setup_of(request)
        exact = setup.profile.lossless and (setup.pruner is None or setup.profile.generate.temperature == 0)
        return video.session.attach(request, exact=exact)

    async def add(self, request: CaptionRequest) -> None:
        """Keep the clip of an answered request, which :meth:`find` returned."""
        cache = request.cache
        if cache is None:
            return
        clip = request.frames
        kept = self._videos.get(request.key)
        if (
            kept is None or kept.session.clip.clip is not clip
        ):  # without the descriptors of memory shared with a process
            clip, cache.seen = await asyncio.to_thread(_copy, clip, cache.seen)
        session = ClipSession(replace(request, clip=clip, cache=None))
        session.mark_read(request)
        self._videos.pop(request.key, None)
        if session.nbytes <= self.most:
            self._videos[request.key] = _RecentVideo(session, time.monotonic())
            asyncio.get_running_loop().call_later(KEPT_S, self._drop_old)
        while self.nbytes > self.most:
            self._videos.popitem(last=False)

    def clear(self) -> None:
        self._videos.clear()

    def _drop_old(self) -> None:
        for key, video in list(self._videos.items()):
            if time.monotonic() - video.answered >= KEPT_S:
                del self._videos[key]


def _copy(clip: Clip, seen: VisionOutputs) -> tuple[Clip, VisionOutputs]:
    return copy.deepcopy(clip), {model: copy.deepcopy(output) for model, output in seen.items()}
