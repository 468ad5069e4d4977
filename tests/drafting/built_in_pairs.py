"""Built-in pairs whose texts are compared with plain decoding, alone and together."""

from tests.ready_clips import serve_captions
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest

FRAMES, TOKENS, CLIPS = 4, 24, 2


class BuiltInPair:
    """A loaded pair and shipped clips."""

    def __init__(self, name):
        place = resolve_placement("cpu", "float32")
        self.name = name
        self.target, self.draft = (
            loading.load_model(str(loading.embedded_folder(name, role)), place) for role in ("target", "draft")
        )
        self.clips = {}
        self.plain = {}

    def captioner(self, profile, head=None, **settings):
        same = {"models.pair": self.name, "video.frames": FRAMES, "generate.max_new_tokens": TOKENS}
        profile = profiles.load(profile, {**same, **settings}, env={})
        return Captioner(profile, self.target, self.draft if profile.draft.has_model else None, head=head)

    def texts(self, captioner, batch):
        for path in map(str, shipped()[:CLIPS]):
            if path not in self.clips:
                self.clips[path] = captioner.client.inputs.read(path)
        requests = [CaptionRequest(path, clip, key=path) for path, clip in self.clips.items()]
        records = serve_captions(captioner, requests, batch)
        captioner.close()
        return {key: record.token_ids for key, record in records.items()}, list(records.values())

    def alone(self, **settings):
        """Plain decoding."""
        key = str(settings)
        if key not in self.plain:
            self.plain[key] = self.texts(self.captioner("ar", **settings), 1)[0]
        return self.plain[key]
