"""Clips with sound, and a source of clips for ``EngineClient.serve``, all of which are ready from the start."""

import av
import numpy as np

from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest


def read_requests(captioner, paths):
    """Return a request for each file of ``paths``, read by the captioner; ``paths`` may map keys to files."""
    named = paths if isinstance(paths, dict) else {str(path): path for path in paths}
    return [CaptionRequest(str(path), captioner.client.inputs.read(path), key=key) for key, path in named.items()]


class ReadyClips:
    """Hands out ``requests`` in order, none of which has to be waited for."""

    def __init__(self, requests):
        self.requests = list(requests)

    @property
    def over(self):
        return not self.requests

    def take(self):
        return self.requests.pop(0) if self.requests else None


def serve_captions(captioner, requests, batch):
    """Return the caption of every request by its key; none may fail."""
    captions = {}
    for key, event in captioner.client.serve(ReadyClips(requests), batch=batch):
        assert not isinstance(event, Exception), event
        if isinstance(event, Finished):
            captions[key] = event.caption
    return captions


def dubbed(source, path, samples):
    """Write the pictures of a clip with ``samples`` at 16 kHz, and return the path as text."""
    with av.open(str(source)) as read, av.open(str(path), "w") as out:
        pictures, track = read.streams.video[0], out.add_stream("flac", rate=16000, layout="mono")
        copied = out.add_stream_from_template(pictures)
        for packet in read.demux(pictures):
            if packet.dts is not None:
                packet.stream = copied
                out.mux(packet)
        whole = (samples.clip(-1, 1) * 32767).astype(np.int16)
        for start in range(0, len(whole), 4096):
            frame = av.AudioFrame.from_ndarray(whole[None, start : start + 4096].copy(), "s16", "mono")
            frame.sample_rate, frame.pts = 16000, start
            out.mux(track.encode(frame))
        out.mux(track.encode(None))
    return str(path)
