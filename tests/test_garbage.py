"""Collections of cyclic garbage: none while models load, no full one while a text is decoded, none forgotten."""

import gc
import time
import weakref
from bisect import bisect
from contextlib import contextmanager

import pytest

from tests.packaged import packaged
from tests.ready_clips import ReadyClips
from tests.tiers import full_but, in_turn
from vidspec import garbage
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest


class Knot:
    """Refers to itself: only a collection frees it."""

    def __init__(self):
        self.itself = self


OVERRIDES = {"models.device": "cpu", "video.frames": 4, "generate.max_new_tokens": 8}
#: No built-in model has an MTP layer.
LOADABLE = [name for name in packaged() if name != "mtp"]
ENDS = ("close", "del")
USUAL = [(name, ends) for name in ("eagle3", "parallelvlm", "tabed-mt") for ends in ENDS]
IN_TURN = [(name, ENDS[number % 2]) for number, name in enumerate(LOADABLE)]


@contextmanager
def full_collections():
    """The full collections that begin meanwhile."""
    found = []

    def watch(phase, info):
        if phase == "start" and info["generation"] == 2:
            found.append(time.perf_counter())

    gc.callbacks.append(watch)
    try:
        yield found
    finally:
        gc.callbacks.remove(watch)


@pytest.fixture
def eager():
    """Thresholds under which Python collects in full after a few hundred objects."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.collect()  # nothing: Python waits until there are a quarter more objects than the last one left
    gc.set_threshold(20, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.fixture(scope="module")
def captioner():
    overrides = {"models.device": "cpu", "video.frames": 4, "generate.max_new_tokens": 24}
    with Captioner.from_profile("vanilla-sd", overrides=overrides) as made:
        yield made


@pytest.mark.full
def test_what_was_loaded_is_frozen(captioner):
    tracked = {id(one) for one in gc.get_objects()}
    assert not {id(layer) for layer in captioner.client.setup.target.model.model.modules()} & tracked


def test_garbage_of_before_and_of_the_loading_is_not_kept():
    def knot():
        return weakref.ref(Knot())

    before = knot()
    with garbage.loading():
        during = knot()
        assert before() is None and not gc.isenabled()
    assert during() is None and gc.isenabled()


def test_a_loading_that_fails_freezes_nothing_more():
    with pytest.raises(ValueError), garbage.loading(fresh=True):
        count = gc.get_freeze_count()
        raise ValueError
    assert gc.isenabled() and gc.get_freeze_count() <= count


def test_a_user_who_turned_collection_off_is_left_alone():
    gc.disable()
    try:
        with full_collections() as found, garbage.loading():
            pass
        garbage.collect_if_due()
        assert not gc.isenabled() and not found
    finally:
        gc.enable()


@pytest.mark.sample(quick=1, full=8)
@pytest.mark.parametrize(("name", "ends"), full_but(USUAL, in_turn(IN_TURN, 6)))
def test_models_end_with_their_captioner_without_a_collection(name, ends, forked_drafts):
    captioner = Captioner.from_profile(name, overrides=OVERRIDES)
    gc.disable()
    try:
        captioner.caption(shipped()[0])
        engines = (
            captioner.client.setup.target,
            captioner.client.setup.draft,
            captioner.client.setup.head,
            captioner.client.setup.self_draft,
        )
        models = [weakref.ref(engine.model) for engine in engines if engine is not None]
        del engines
        if ends == "close":
            captioner.close()
        else:
            del captioner
        assert [model() for model in models] == [None] * len(models)
    finally:
        gc.enable()


@pytest.mark.full
@pytest.mark.parametrize("ends", ["close", "del"])
def test_models_in_cycles_are_collected_after_their_captioner(ends):
    """As modules of the hub's models are, whose ``forward`` a device map replaces."""
    with garbage.loading():  # what is made in it is frozen
        captioner = Captioner.from_profile("ar", overrides=OVERRIDES)
        model = captioner.client.setup.target.model
        model.itself, model = model, weakref.ref(model)
    if ends == "close":
        captioner.close()
    else:
        del captioner
    gc.collect()
    assert model() is None


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 4])
def test_no_full_collection_while_texts_are_decoded(captioner, eager, batch, monkeypatch):
    monkeypatch.setattr(garbage, "DUE", 10_000)
    clips = [captioner.client.inputs.read(path) for path in shipped()]
    with full_collections() as found:
        list(map(str, range(2000))), [[] for _ in range(3000)]
        assert found  # without it there are
        source = ReadyClips(CaptionRequest(str(number), clip, key=number) for number, clip in enumerate(clips))
        texts = []
        for _, event in captioner.client.serve(source, batch=batch):
            if isinstance(event, Finished):
                begun = event.caption.trace.origin
                assert not [one for one in found if begun < one < begun + event.caption.timings["end_to_end"]]
                texts.append(event.caption.caption)
        assert len(texts) == len(clips)
    assert gc.get_threshold() == (20, 1, 1)


def test_two_runs_at_a_time_restore_the_thresholds_once(eager):
    with garbage.deferred():
        with garbage.deferred():
            assert gc.get_threshold()[2] > 1_000_000
        assert gc.get_threshold()[2] > 1_000_000
    assert gc.get_threshold() == (20, 1, 1)


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 4])
def test_a_long_run_frees_cyclic_garbage(captioner, eager, batch, monkeypatch):
    """Between clips, and where clips are always in flight, as one is admitted."""
    monkeypatch.setattr(garbage, "PATIENCE", 2)
    clip = captioner.client.inputs.read(shipped()[0])
    source, knots = ReadyClips(CaptionRequest(str(number), clip, key=number) for number in range(8)), []
    with full_collections() as found:
        for _, event in captioner.client.serve(source, batch=batch):
            if isinstance(event, Finished):
                knots.append(weakref.ref(Knot()))
    assert found and knots[0]() is None and len(knots) == 8


def test_the_trace_names_collections(captioner, monkeypatch):
    """Each span lies around the end of one collection, between its beginning and that of the next."""
    monkeypatch.setattr(garbage, "REPORTED", 0.0)
    found, times = None, []

    def watch(phase, info):
        times.append(time.perf_counter())

    gc.callbacks.append(watch)  # before that of the thread, which watches while there are clips
    try:
        for event in captioner.stream(shipped()[0]):
            if not isinstance(event, Finished):
                gc.collect()
            else:
                found = event.caption.trace
    finally:
        gc.callbacks.remove(watch)
    begins, ends = times[::2], [*times[1::2], float("inf")]
    spans = [span for span in found.spans if span.kind == "collect"]
    assert spans and found.totals()["collect"] > 0
    assert all(0 <= span.start <= span.end <= found.now() for span in spans)
    for span in spans:
        start, end = span.start + found.origin, span.end + found.origin
        number = bisect(begins, start) - 1
        assert number >= 0 and start <= ends[number] <= end < [*begins, float("inf")][number + 1]
