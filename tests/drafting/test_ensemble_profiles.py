"""TABED's profiles from the path of a clip to its record: contexts, weights, caption and what is refused."""

import threading

import jsonschema
import pytest
import torch

from tests.checkpoints import checkpoint
from tests.ready_clips import ReadyClips
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding import prefill as prefills
from vidspec.embedded.samples import shipped
from vidspec.errors import ProfileError
from vidspec.events.events import Finished, Prefilled, Round
from vidspec.models import image_captioner, loading
from vidspec.models.image_captioner import HubCaptioner
from vidspec.models.placement import resolve_placement
from vidspec.models.request import CaptionRequest
from vidspec.runs.schema import record_schema

PLACE = resolve_placement("cpu", "float32")
CLIP = str(shipped()[1])
CONTEXTS = {
    "tabed-m": ("video",),
    "tabed-t": ("text",),
    "tabed-c": ("caption",),
    "tabed-p": ("pooled",),
    "tabed-mt": ("video", "text"),
    "tabed-mt-star": ("video", "text"),
    "tabed-mtcp": ("video", "text", "caption", "pooled"),
    "tabed-mtcp-star": ("video", "text", "caption", "pooled"),
}
WEIGHTS = {"tabed-mt-star": "grid", "tabed-mtcp-star": "softmax"}


@pytest.fixture(scope="module")
def pair():
    both = checkpoint("readable"), checkpoint("readable", noise=0.05)
    return [loading.load_model(str(one), PLACE) for one in both]


@pytest.fixture(scope="module")
def captioned(pair):
    """Events of each profile on one core, made once."""
    known = {}

    def events(name, **overrides):
        key = (name, *sorted(overrides.items()))
        if key not in known:
            settings = {"video.frames": 6, "generate.max_new_tokens": 24} | {
                key.replace("__", "."): value for key, value in overrides.items()
            }
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            known[key] = list(Captioner(profiles.load(name, settings, env={}), *pair).stream(CLIP))
            torch.set_num_threads(threads)
        return known[key]

    return events


def load(name, overrides):
    return profiles.load(name, overrides, env={})


@pytest.mark.parametrize("name", CONTEXTS)
def test_profiles_are_the_papers(name):
    draft = load(name, {}).draft
    assert draft.contexts == CONTEXTS[name] and draft.weights == WEIGHTS.get(name, "equal")
    assert (draft.kind, draft.gamma, draft.divergence, draft.history) == ("ensemble", 5, "kl", None)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", CONTEXTS)
def test_events_and_record(captioned, pair, name):
    _, prefilled, *rounds, finished = captioned(name)
    record = finished.caption
    jsonschema.validate(record.to_dict(), record_schema())
    assert isinstance(prefilled, Prefilled) and prefilled.contexts == CONTEXTS[name]
    windows = [one.weights for one in rounds if isinstance(one, Round) and one.drafted]
    assert windows and all(sum(one) == pytest.approx(1) for one in windows)
    assert windows[0] == pytest.approx((1 / len(CONTEXTS[name]),) * len(CONTEXTS[name]))
    told = record.ensemble
    assert tuple(told["weights"]) == CONTEXTS[name]
    assert list(zip(*told["weights"].values(), strict=True)) == windows
    assert (len(set(windows)) > 1) == (name in WEIGHTS)
    with_caption = "caption" in CONTEXTS[name]
    assert told["captioner"] == (pair[1].name if with_caption else None)
    assert bool(told["caption"]) == with_caption == ("caption" in record.timings)
    assert told["caption"] == prefilled.caption


@pytest.mark.parametrize("name", CONTEXTS)
def test_tokens_are_the_targets_own(captioned, name):
    assert captioned(name)[-1].caption.token_ids == captioned("ar")[-1].caption.token_ids


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("name", "same"), [("tabed-m", "vanilla-sd"), ("tabed-t", None)])
def test_one_context_drafts_as_the_drafter_of_its_kind(captioned, pair, name, same):
    if same is None:
        settings = {"draft.kind": "text_only", "video.frames": 6, "generate.max_new_tokens": 24}
        other = Captioner(load("vanilla-sd", settings), *pair).caption(CLIP)
    else:
        other = captioned(same)[-1].caption
    assert captioned(name)[-1].caption.counters == other.counters


def test_others_have_no_ensemble(captioned):
    _, prefilled, first, *_, finished = captioned("vanilla-sd")
    assert prefilled.contexts == () and first.weights == () and finished.caption.ensemble is None


@pytest.mark.parametrize(("name", "kept"), [("tabed-m", 25), ("tabed-t", 0), ("tabed-c", 0), ("tabed-p", 25)])
def test_kept_tokens(captioned, name, kept):
    prefilled = captioned(name)[1]
    assert len(prefilled.kept) == kept == sum(prefilled.kept_per_frame) and prefilled.visual_tokens == 25


def test_the_video_of_an_ensemble_can_be_pruned(captioned):
    events = captioned("tabed-mt", prune__method="uniform", prune__alpha=0.8)
    assert events[-1].caption.counters["visual_tokens_kept"] == 5
    assert events[-1].caption.token_ids == captioned("ar")[-1].caption.token_ids


@pytest.mark.sample(quick=1, full=11)
@pytest.mark.parametrize("divergence", ["kl", "tvd"])
@pytest.mark.parametrize("history", full_but([16], [1, 16]))
@pytest.mark.parametrize("weights", ["grid", "softmax", "inverse"])
def test_every_rule_is_lossless(captioned, weights, history, divergence):
    events = captioned("tabed-mtcp", draft__weights=weights, draft__history=history, draft__divergence=divergence)
    assert events[-1].caption.token_ids == captioned("ar")[-1].caption.token_ids
    assert len({one.weights for one in events if isinstance(one, Round) and one.weights}) > 1


@pytest.mark.full
def test_a_captioner_of_the_hub(pair):
    folder = checkpoint("blip")
    profile = load("tabed-c", {"video.frames": 6, "generate.max_new_tokens": 8, "models.captioner": str(folder)})
    describe = image_captioner.load_image_captioner(str(folder), PLACE)
    captioner = Captioner(profile, *pair, describe=describe)
    record = captioner.caption(CLIP)
    assert record.ensemble["captioner"] == str(folder)
    assert record.ensemble["caption"] == describe(captioner.client.inputs.read(CLIP)) and record.timings["caption"] > 0
    assert captioner.caption(CLIP, plain=True).token_ids == record.token_ids
    captioner.client.warm_up()


def test_a_captioner_of_the_hub_works_beside_the_targets_prefill(pair, monkeypatch):
    """Each waits for the other to have begun."""
    folder = checkpoint("blip")
    profile = load("tabed-c", {"video.frames": 6, "generate.max_new_tokens": 8})
    captioner = Captioner(profile, *pair, describe=image_captioner.load_image_captioner(str(folder), PLACE))
    reads, describes, prefill = threading.Event(), threading.Event(), prefills._run_passes

    def described(self, clip):
        describes.set()
        assert reads.wait(60)
        return "A red circle."

    def reading(self, *args):
        reads.set()
        assert describes.wait(60)
        return (yield from prefill(self, *args))

    monkeypatch.setattr(HubCaptioner, "__call__", described)
    monkeypatch.setattr(prefills, "_run_passes", reading)
    record = captioner.caption(CLIP)
    assert record.ensemble["caption"] == "A red circle."


@pytest.fixture
def cores():
    """Torch has two threads, as on a machine with two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def overlap(trace, one, other):
    """Seconds that spans of two kinds have in common."""
    of = {kind: [span for span in trace.spans if span.kind == kind] for kind in (one, other)}
    return sum(
        max(0.0, min(left.end, right.end) - max(left.start, right.start)) for left in of[one] for right in of[other]
    )


@pytest.mark.full
@pytest.mark.usefixtures("cores")
def test_the_draft_captions_beside_the_targets_prefill(pair, captioned):
    record = Captioner(load("tabed-c", {"video.frames": 6, "generate.max_new_tokens": 24}), *pair).caption(CLIP)
    serial = captioned("tabed-c")[-1].caption
    assert overlap(record.trace, "caption", "target_prefill") > 0 == overlap(serial.trace, "caption", "target_prefill")
    assert {span.worker for span in record.trace.spans if span.kind == "caption"} == {"draft"}
    assert (record.token_ids, record.ensemble) == (serial.token_ids, serial.ensemble)
    assert record.counters == serial.counters


@pytest.mark.full
@pytest.mark.usefixtures("cores")
def test_other_clips_draft_while_the_draft_captions_one(pair):
    """Both use its weights and no cache of the other."""
    settings = {"video.frames": 6, "generate.max_new_tokens": 24}
    paths = [str(path) for path in shipped()] * 2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = [Captioner(load("tabed-mtcp", settings), *pair).caption(path) for path in paths[: len(shipped())]] * 2
    torch.set_num_threads(threads)
    captioner = Captioner(load("tabed-mtcp", settings), *pair)
    assert captioner.client.setup.describe.engine.model.decoder.slab is not pair[1].decoder.slab
    waiting = [
        CaptionRequest(path, captioner.client.inputs.read(path), key=number) for number, path in enumerate(paths)
    ]
    found = {}
    for key, said in captioner.client.serve(ReadyClips(waiting), batch=3):
        if isinstance(said, Finished):
            found[key] = said.caption
    assert [found[number].token_ids for number in range(len(paths))] == [one.token_ids for one in alone]
    assert [found[number].ensemble for number in range(len(paths))] == [one.ensemble for one in alone]


@pytest.mark.full
def test_a_captioner_that_fails(pair, monkeypatch):
    def described(self, clip):
        raise RuntimeError("no such kernel")

    profile = load("tabed-c", {"video.frames": 6, "generate.max_new_tokens": 8})
    captioner = Captioner(profile, *pair, describe=image_captioner.load_image_captioner(str(checkpoint("blip")), PLACE))
    with monkeypatch.context() as patch:
        patch.setattr(HubCaptioner, "__call__", described)
        with pytest.raises(RuntimeError, match="no such kernel"):
            captioner.caption(CLIP)
    assert captioner.caption(CLIP).caption == captioner.caption(CLIP, plain=True).caption


@pytest.mark.full
def test_a_captioner_is_loaded_by_its_name():
    overrides = {"models.captioner": str(checkpoint("blip")), "models.device": "cpu", "models.dtype": "float32"}
    with Captioner.from_profile("tabed-c", overrides={**overrides, "generate.max_new_tokens": 4}) as captioner:
        assert captioner.caption(CLIP).ensemble["captioner"] == overrides["models.captioner"]


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("vanilla-sd", {"models.captioner": "x/y"}, "models.captioner: has no effect"),
        ("tabed-mt", {"models.captioner": "x/y"}, "models.captioner: has no effect"),
        ("tabed-t", {"prune.method": "uniform"}, "prune.method: uniform prunes the context video"),
        ("tabed-mt", {"draft.contexts": ["text", "text"]}, "draft.contexts: names a context twice; .*: [text]"),
        ("tabed-mt", {"draft.contexts": ["video", "audio"]}, "draft.contexts"),
        ("tabed-mt", {"draft.topology": "tree"}, "draft.topology: an ensemble drafts a chain"),
        ("tabed-mt-star", {"schedule.kind": "parallel"}, "draft.kind: ensemble needs more of the target"),
    ],
)
def test_refused(name, overrides, message):
    with pytest.raises(ProfileError, match=message.replace("[text]", r"\[text\]")):
        load(name, overrides)
