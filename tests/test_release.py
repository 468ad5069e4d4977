"""A clip's frames, pixels and embeddings are released as soon as the models have read them."""

import gc
import weakref
from functools import partial

import pytest
import torch

from research.world.samples import draw
from tests.checkpoints import checkpoint
from tests.ready_clips import ReadyClips
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.protocol import OpenClip, Propose, Proposed, VisibleTokens
from vidspec.decoding.workers.draft import DraftWorker
from vidspec.embedded.samples import shipped
from vidspec.events.events import Finished, InputsReleased, Restarted
from vidspec.models.base import EmbeddedPrompt, Pixels, VisionOutput
from vidspec.models.families.llava_onevision import LlavaOnevision
from vidspec.models.request import CaptionRequest
from vidspec.video import Clip

CLIPS = 4
SETTINGS = {
    "models.device": "cpu",
    "models.dtype": "float32",
    "video.frames": 4,
    "generate.max_new_tokens": 24,
}


@pytest.fixture(scope="module")
def pair():
    target, draft = checkpoint("readable"), checkpoint("readable", noise=0.05)
    return {**SETTINGS, "models.target": str(target), "models.draft": str(draft)}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return [str(path) for path in draw(tmp_path_factory.mktemp("clips"), CLIPS, seed=5)]


@pytest.fixture
def made(monkeypatch):
    """Weak references to all frames that models are shown, and to pixels, features and embeddings that they make."""
    found = []

    def watched(name, tensors):
        original = getattr(LlavaOnevision, name)

        def watching(self, *args, **options):
            result = original(self, *args, **options)
            found.extend(map(weakref.ref, tensors(result)))
            found.extend(weakref.ref(one.frames) for one in args if isinstance(one, Clip))
            return result

        monkeypatch.setattr(LlavaOnevision, name, watching)

    watched("preprocess", lambda pixels: [pixels, pixels.stored])
    watched("_chunk", lambda features: [features])
    watched("prefix", lambda prefix: [prefix, prefix.embeds, prefix.visual.features])
    return found


@pytest.fixture
def without_collector():
    """Objects that only the collector of cycles releases stay for long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def requests(captioner, paths):
    """Clips whose frames nobody else has, and weak references to them."""
    found, frames = [], []
    for path in paths:
        clip = captioner.client.inputs.read(path)
        frames += [weakref.ref(clip), weakref.ref(clip.frames)]
        found.append(CaptionRequest(path, clip, key=path, reread=partial(captioner.client.inputs.read, path)))
    return ReadyClips(found), frames


def alive(references):
    return [type(one()).__name__ for one in references if one() is not None]


PROFILES = {
    "vanilla-sd": {},
    "specvlm": {},
    "self-sd": {},
    "tabed-mt": {},
    "lvspec": {},
    "ar": {},
    "parallelvlm": {"models.threads": 1},
}


@pytest.mark.sample(quick=1, full=3)
@pytest.mark.parametrize("batch", [1, CLIPS])
@pytest.mark.parametrize("name", full_but(["specvlm"], PROFILES))
def test_nothing_of_the_video_is_alive_behind_the_prefill(pair, paths, made, without_collector, name, batch):
    with Captioner.from_profile(name, overrides={**pair, **PROFILES[name]}) as captioner:
        source, frames = requests(captioner, paths)
        read = ended = checked = 0
        for _, event in captioner.client.serve(source, batch=batch):
            read += isinstance(event, InputsReleased)
            ended += isinstance(event, Finished)
            if read == CLIPS and not isinstance(event, Finished):
                assert made and not alive(made)
                assert batch == 1 or not alive(frames)
                checked += 1
        assert checked > 1 and ended == CLIPS and not alive(frames)


@pytest.mark.full
def test_what_was_prepared_ahead_is_let_go_of(pair, paths, made, without_collector):
    with Captioner.from_profile("vanilla-sd", overrides=pair) as captioner:
        source, frames = requests(captioner, paths[:1])
        assert captioner.client.inputs.vision.prepare(source.requests[0].clip) > 0
        for _, event in captioner.client.serve(source):
            if isinstance(event, InputsReleased):
                assert made and not alive(made) and not alive(frames)


@pytest.mark.full
def test_a_single_clip_lets_go_of_its_frames(pair, made, without_collector, monkeypatch):
    with Captioner.from_profile("vanilla-sd", overrides=pair) as captioner:
        frames, read = [], captioner.client.inputs.read

        def reading(*args, **options):
            clip = read(*args, **options)
            frames.append(weakref.ref(clip.frames))
            return clip

        monkeypatch.setattr(captioner.client.inputs, "read", reading)
        for event in captioner.stream(str(shipped()[0])):
            if isinstance(event, InputsReleased):
                assert frames and not alive(frames) and not alive(made)


@pytest.mark.full
def test_frames_of_others_are_theirs(pair):
    with Captioner.from_profile("vanilla-sd", overrides=pair) as captioner:
        clip = captioner.client.inputs.read(shipped()[0])
        first = captioner.caption("", clip=clip)
        assert clip.frames.size and captioner.caption("", clip=clip).token_ids == first.token_ids


@pytest.mark.full
def test_a_clip_that_is_done_again_is_read_again(pair, paths, monkeypatch):
    """Its frames are gone when it runs out of memory behind its prefill."""
    with Captioner.from_profile("ar", overrides=pair) as captioner:
        expected = {path: captioner.caption(path).token_ids for path in paths[:2]}
        source, _ = requests(captioner, paths[:2])
        run, full, again = captioner.client.setup.target.run, [], []

        def running(batch):
            if len(batch) == 1 and batch[0].token_ids and again_is_due():
                full.append(1)
                raise torch.OutOfMemoryError("CUDA out of memory")
            return run(batch)

        def again_is_due():
            return read == 2 and not full

        monkeypatch.setattr(captioner.client.setup.target, "run", running)
        # Both rows of a pass are run alone once the shared pass has failed.
        shared = []

        def failing(batch):
            if len(batch) == 2 and read == 2 and not shared:
                shared.append(1)
                raise torch.OutOfMemoryError("CUDA out of memory")
            return running(batch)

        monkeypatch.setattr(captioner.client.setup.target, "run", failing)
        read, found = 0, {}
        for key, event in captioner.client.serve(source, batch=2):
            read += isinstance(event, InputsReleased)
            if isinstance(event, Restarted):
                again.append(key)
            elif isinstance(event, Finished):
                found[key] = event.caption.token_ids
        assert full and len(again) == 1 and found == expected


@pytest.mark.full
def test_a_draft_process_keeps_no_frames_and_no_embeddings(pair, made, without_collector):
    """The other side of the parallel schedule, in this process."""
    with Captioner.from_profile("vanilla-sd", overrides=pair) as captioner:
        read, sent = captioner.client.inputs.read(shipped()[0]), []
        profile = profiles.override(captioner.client.profile, {"schedule.kind": "parallel"})
        worker = DraftWorker(captioner.client.setup.draft, sent.append)
        worker.take(1, OpenClip(profile, CaptionRequest("", read, "What?"), 99, True, frozenset()))
        del read
        worker.take(1, VisibleTokens(None))
        worker.take(1, Propose(0, 8))
        while worker.busy:
            worker.turn()
        assert len([one for one in sent if isinstance(one[1], Proposed)]) == 8
        assert made and not alive(made)


@pytest.mark.full
def test_an_outline_has_the_places_of_the_prompt(pair):
    with Captioner.from_profile("vanilla-sd", overrides=pair) as captioner:
        model, clip = captioner.client.setup.target.model, captioner.client.inputs.read(shipped()[0])
        prefix = model.prefix(model.encode(model.preprocess(clip)), "What moves?")
        outline, kept = prefix.outline(), torch.arange(3)
        assert (
            isinstance(prefix, EmbeddedPrompt)
            and outline.length == prefix.length
            and outline.text_ids == prefix.text_ids
        )
        assert torch.equal(outline.rows_kept(kept), prefix.rows_kept(kept))
        assert outline.embeds.numel() == outline.visual.features.numel() == 0
        assert isinstance(model.encode(model.preprocess(clip)), VisionOutput) and isinstance(
            model.preprocess(clip), Pixels
        )
