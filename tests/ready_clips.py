"""A source of clips for ``Captioner.serve``, all of which are ready from the start."""

from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest


def read_requests(captioner, paths):
    """Return a request for each file of ``paths``, read by the captioner; ``paths`` may map keys to files."""
    named = paths if isinstance(paths, dict) else {str(path): path for path in paths}
    return [CaptionRequest(str(path), captioner.read(path), key=key) for key, path in named.items()]


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
    for key, event in captioner.serve(ReadyClips(requests), batch=batch):
        assert not isinstance(event, Exception), event
        if isinstance(event, Finished):
            captions[key] = event.caption
    return captions
