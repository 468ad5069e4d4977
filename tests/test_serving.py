"""Many clips through small random models at once: texts, order, failures, memory and endings."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from research.world.samples import draw
from tests.ready_clips import ReadyClips, serve_captions
from tests.tiers import full_but
from vidspec.aio import AsyncCaptioner
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding import tickets
from vidspec.decoding.target import Target
from vidspec.draft_length.costs import START
from vidspec.drafting.base import FreeDrafter, drafters
from vidspec.engine.sampling import Sampling
from vidspec.errors import ArgumentError, GenerationError
from vidspec.events.events import Finished, LoopLoad, Opened, Prefilled, Restarted
from vidspec.events.wake import WakeEvent
from vidspec.models.request import CaptionRequest

CLIPS = 6


@pytest.fixture(scope="module")
def clips(tmp_path_factory, small_captioner):
    folder = tmp_path_factory.mktemp("clips")
    paths = [str(path) for path in draw(folder, CLIPS, seed=5)]
    return {path: small_captioner.client.inputs.read(path) for path in paths}


def under(small_captioner, name, **overrides):
    """The same models under another profile, with the fixture's own settings."""
    keys = ("models.target", "models.draft", "models.pair", "models.device", "models.dtype", "video.frames")
    content = small_captioner.client.profile.model_dump()
    same = {key: content[key.split(".")[0]][key.split(".")[1]] for key in keys}
    profile = profiles.load(name, {**same, "generate.max_new_tokens": 24, **overrides}, env={})
    draft = small_captioner.client.setup.draft.model if profile.draft.has_model else None
    return Captioner(profile, small_captioner.client.setup.target.model, draft)


def arrivals(clips, order=None, **asked):
    paths = list(order or clips)
    return ReadyClips([CaptionRequest(path, clips[path], key=path, **asked) for path in paths])


def served(captioner, source, batch, wake=None):
    """Return each clip's outcome, in the order they ended, and the loads meanwhile."""
    ended, loads = {}, []
    for key, said in captioner.client.serve(source, batch=batch, wake=wake):
        if isinstance(said, LoopLoad):
            loads.append(said)
        elif isinstance(said, Finished):
            ended[key] = said.caption.token_ids
        elif isinstance(said, Exception):
            ended[key] = said
    return ended, loads


PROFILES = {
    "ar": {},
    "vanilla-sd": {},
    "sd-tree": {},
    "self-sd": {},
    "self-int4": {"draft.topology": "tree"},
    "self-int8": {},
    "std": {},
    "tabed-mt": {},
    "tabed-mt-star": {},
    "specvlm": {},
    "fastv": {"lossy.retention": 0.5},
    "lvspec": {},
    "sd-attention-chain": {"generate.temperature": 0.9, "generate.top_p": 0.9},
}


@pytest.mark.sample(quick=1, full=2)
@pytest.mark.parametrize("name", full_but(["specvlm", "fastv"], PROFILES))
def test_texts_do_not_depend_on_batch_order_or_neighbours(small_captioner, clips, name):
    captioner = under(small_captioner, name, **PROFILES[name])
    expected = {path: captioner.caption(path, clip=clip).token_ids for path, clip in clips.items()}
    for batch, order in ((1, None), (3, sorted(clips, reverse=True)), (CLIPS, None)):
        ended, _ = served(captioner, arrivals(clips, order), batch)
        assert ended == expected, f"{name} at {batch}"
    assert small_captioner.client.setup.target.model.decoder.slab.used == 0


@pytest.mark.full
def test_events_of_a_clip_are_those_it_has_alone(small_captioner, clips):
    said = {}
    for key, event in small_captioner.client.serve(arrivals(clips), batch=4):
        if not isinstance(event, LoopLoad):
            said.setdefault(key, []).append(event)
    for path, clip in clips.items():
        alone = list(small_captioner.stream(path, clip=clip))
        assert [type(event) for event in said[path]] == [type(event) for event in alone]
        assert said[path][-1].caption.caption == alone[-1].caption.caption
        assert said[path][-1].caption.counters == alone[-1].caption.counters


@pytest.mark.full
def test_how_the_whole_stands(small_captioner, clips, monkeypatch):
    monkeypatch.setattr("vidspec.decoding.engine_thread.EVERY", 0.0)
    _, loads = served(small_captioner, arrivals(clips), 4)
    assert max(load.clips for load in loads) == 4 == loads[0].batch
    assert max(load.sequences for load in loads) > 1 and max(load.rows for load in loads) > 4
    assert all(0 <= load.kv_used <= load.kv_capacity for load in loads) and max(load.kv_used for load in loads) > 0
    assert [load.passes for load in loads] == sorted(load.passes for load in loads)
    assert loads[-1].accepted > 0


@pytest.mark.full
def test_one_clips_end_makes_room_and_one_that_comes_late_is_served(small_captioner, clips):
    """The source has one clip at first and gives the others from another thread."""
    wake, done = WakeEvent(), threading.Event()

    class Slow(ReadyClips):
        @property
        def over(self):
            return done.is_set() and not self.requests

    source = Slow([])

    def feed():
        for path, clip in clips.items():
            time.sleep(0.01)
            source.requests.append(CaptionRequest(path, clip, key=path))
            wake.set()
        done.set()
        wake.set()

    threading.Thread(target=feed).start()
    ended, _ = served(small_captioner, source, 2, wake)
    assert set(ended) == set(clips) and not any(isinstance(one, Exception) for one in ended.values())


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("late", [0.0, 1.0])
def test_how_long_models_waited_for_files_is_told(small_captioner, clips, monkeypatch, late):
    """A run whose only clip is read after a second, and captioned in three."""
    source, now, loads = arrivals(dict([next(iter(clips.items()))])), [0.0], []
    monkeypatch.setattr(tickets, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Late(ReadyClips):
        def take(self):
            return super().take() if now[0] >= late else None

    class Waits(WakeEvent):
        def wait(self, timeout):
            if now[0] >= late:
                return super().wait(timeout)
            now[0] += 0.5
            return False

    for _, said in small_captioner.client.serve(Late(source.requests), batch=2, wake=Waits()):
        if isinstance(said, Finished):
            now[0] += 3.0
        elif isinstance(said, LoopLoad):
            loads.append(said.reading)
    assert loads[-1] == late / (late + 3.0) and all(0 <= reading <= 1 for reading in loads)


def test_what_ends_one_clip_leaves_its_neighbours_alone(small_captioner, clips, monkeypatch):
    expected, _ = served(small_captioner, arrivals(clips), 1)
    first, second, *_ = clips
    failing = [
        CaptionRequest("nothing.mp4", key="nothing"),
        CaptionRequest("late.mp4", clips[first], key="late", timeout=1.0, spent=2.0),
    ]
    read = small_captioner.client.setup.read

    def broken(request, trace):
        if request.path == second:
            raise RuntimeError("a bug")
        return read(request, trace)

    monkeypatch.setattr(small_captioner.client.setup, "read", broken)
    ended, _ = served(small_captioner, ReadyClips([*failing, *arrivals(clips).requests]), 4)
    assert isinstance(ended.pop("nothing"), ValueError)
    late = ended.pop("late")
    assert late.kind == "timeout" and "late.mp4: not captioned within 1 s" in late.message
    assert str(ended.pop(second)) == "a bug"
    assert ended == {path: ids for path, ids in expected.items() if path != second}
    assert small_captioner.client.setup.target.model.decoder.slab.used == 0


@pytest.fixture
def endless():
    """A drafter of one's own that never returns, for the clips named here; it says what ended it."""
    found = SimpleNamespace(late=set(), ended=[])

    class Endless(FreeDrafter):
        def opened(self, clip):
            self.late = found.watch.running[0].job.path in found.late

        def guess(self, gamma):
            if not self.late:
                return []
            found.watch.running[0].deadline = 0.0
            try:
                while True:
                    pass
            except BaseException as error:
                found.ended.append(type(error).__name__)
                raise

    drafters.register("endless")(Endless)
    yield found
    drafters.forget(__name__)


def test_a_drafter_that_never_returns_ends_with_its_clips_time(small_captioner, clips, endless, monkeypatch):
    endless.watch = small_captioner.client.thread.loop.watch
    monkeypatch.setattr(endless.watch, "grace", 0.01)
    expected, _ = served(small_captioner, arrivals(clips), 1)
    late = list(clips)[1]
    endless.late.add(late)
    captioner = under(small_captioner, "vanilla-sd", **{"draft.kind": "endless"})
    ended, _ = served(captioner, arrivals(clips, timeout=3600.0), 3)
    error = ended.pop(late)
    assert error.kind == "timeout" and f"{late}: not captioned within 3600 s" in error.message
    assert endless.ended == ["StepInterrupt"]
    assert ended == {path: ids for path, ids in expected.items() if path != late}
    assert small_captioner.client.setup.target.model.decoder.slab.used == 0


@pytest.mark.full
def test_who_finds_no_memory_in_company_is_done_again_alone(small_captioner, clips, monkeypatch):
    expected, _ = served(small_captioner, arrivals(clips), 1)
    slab = small_captioner.client.setup.target.model.decoder.slab
    lengths = [
        event.prompt_tokens
        for path in clips
        for event in small_captioner.stream(path, clip=clips[path])
        if isinstance(event, Prefilled)
    ]
    monkeypatch.setattr(slab, "capacity", 0)
    monkeypatch.setattr(slab, "_blocks", slab._allocate_blocks(0))
    monkeypatch.setattr(
        slab, "budget", (max(lengths) + small_captioner.client.setup.room) * slab.entry_bytes
    )  # enough for one
    again = []
    ended = {}
    for key, said in small_captioner.client.serve(arrivals(clips), batch=3):
        if isinstance(said, Restarted):
            again.append(key)
        elif isinstance(said, Finished):
            ended[key] = said.caption.token_ids
        elif isinstance(said, Exception):
            raise said
    assert again and ended == expected


def test_a_clip_that_never_fits_is_an_error(small_captioner, clips, monkeypatch):
    slab = small_captioner.client.setup.target.model.decoder.slab
    monkeypatch.setattr(slab, "budget", 10)
    monkeypatch.setattr(slab, "capacity", 0)
    ended, _ = served(small_captioner, arrivals(clips), 2)
    assert all(isinstance(one, GenerationError) and one.kind == "memory" for one in ended.values())
    assert set(ended) == set(clips)


def test_memory_bounds_how_many_are_let_in(small_captioner, clips, monkeypatch):
    """The free memory is not enough for one clip more."""
    monkeypatch.setattr("vidspec.decoding.engine_thread.EVERY", 0.0)
    monkeypatch.setattr("vidspec.decoding.admission.free_memory", lambda device: 1000)
    seen = []
    for _, said in small_captioner.client.serve(arrivals(clips), batch=5):
        if isinstance(said, LoopLoad):
            seen.append(said.clips)
    assert max(seen) == 1


def test_leaving_early_gives_everything_back(small_captioner, clips):
    events = small_captioner.client.serve(arrivals(clips), batch=4)
    for _, said in events:
        if isinstance(said, Opened):
            break
    events.close()
    assert (
        small_captioner.client.setup.target.model.decoder.slab.used
        == small_captioner.client.setup.draft.model.decoder.slab.used
        == 0
    )


@pytest.mark.full
def test_how_many_at_once_follows_from_what_passes_take(small_captioner, clips, monkeypatch):
    """Without a number: here twice as many always seem to give twice the tokens, so the most grows."""
    monkeypatch.setattr("vidspec.decoding.engine_thread.EVERY", 0.0)
    monkeypatch.setattr("vidspec.draft_length.costs.PASSES", 2)
    monkeypatch.setattr("vidspec.draft_length.costs.batch_rate", lambda costs, n: n)
    expected, _ = served(small_captioner, arrivals(clips), 1)
    ended, loads = served(small_captioner, arrivals(clips), None)
    most = [load.batch for load in loads]
    assert most[0] == START and most == sorted(most) and most[-1] >= 2 * START
    assert ended == expected
    assert {load.batch for load in served(small_captioner, arrivals(clips), 3)[1]} == {3}


def test_nobody_to_serve(small_captioner):
    ((key, load),) = small_captioner.client.serve(ReadyClips([]), batch=3)
    assert key is None and (load.clips, load.passes) == (0, 0)
    for batch in (0, 1.5, "3"):
        with pytest.raises(ArgumentError, match="batch must be a number of clips, 1 or more"):
            list(small_captioner.client.serve(ReadyClips([]), batch=batch))
        with pytest.raises(ArgumentError, match="batch must be a number of clips, 1 or more"):
            AsyncCaptioner(small_captioner, batch)


def test_each_clip_draws_from_a_seed_of_its_own(small_captioner, clips):
    """That of its frames and what is asked, whatever its file is called and whoever is beside it."""
    captioner = under(small_captioner, "vanilla-sd", **{"generate.temperature": 1.2, "generate.seed": 3})
    requests = list(arrivals(clips).requests)
    first = requests[0]
    requests += [
        replace(first, path="elsewhere/copy.mp4", key="copy"),
        replace(first, prompt="What moves?", key="asked"),
        replace(first, attempt=1, key="again"),
    ]
    found = serve_captions(captioner, requests, batch=4)
    assert len({found[path].seed for path in clips} | {found["asked"].seed, found["again"].seed}) == len(clips) + 2
    alone = captioner.caption(first.path, clip=first.clip)
    assert found["copy"].seed == alone.seed == found[first.path].seed
    assert found["copy"].token_ids == alone.token_ids == found[first.path].token_ids
    other = under(small_captioner, "vanilla-sd", **{"generate.temperature": 1.2, "generate.seed": 4})
    assert other.caption(first.path, clip=first.clip).seed == found["again"].seed, "again: with the next seed"
    greedy = under(small_captioner, "vanilla-sd")
    assert greedy.caption(first.path, clip=first.clip, prompt="What moves?").seed != alone.seed


@pytest.mark.full
def test_a_record_names_the_seed_that_its_tokens_were_drawn_from(small_captioner, clips, monkeypatch):
    captioner = under(small_captioner, "ar", **{"generate.temperature": 1.2})
    drawn_from, make = [], Target.__init__

    def made(target, engine, prefill, sampling, rng, **given):
        drawn_from.append(rng.initial_seed())
        make(target, engine, prefill, sampling, rng, **given)

    monkeypatch.setattr(Target, "__init__", made)
    for path, clip in clips.items():
        caption = captioner.caption(path, clip=clip, prompt="What moves?")
        assert caption.seed == drawn_from[-1] != captioner.client.profile.generate.seed
    assert len(drawn_from) == len(clips)


@pytest.mark.full
def test_sampled_texts_are_each_clips_own(small_captioner, clips):
    """The same clip under several keys is answered the same, whoever is beside it."""
    captioner = under(small_captioner, "vanilla-sd", **{"generate.temperature": 1.2})
    (path, clip), *_ = clips.items()
    twice = ReadyClips([CaptionRequest(path, clip, key=number) for number in range(3)])
    mixed = ReadyClips([*arrivals(clips).requests, CaptionRequest(path, clip, key="again")])
    same, _ = served(captioner, twice, 3)
    others, _ = served(captioner, mixed, 4)
    assert same[0] == same[1] == same[2] == others["again"] == others[path]
    assert captioner.client.setup.sampling == Sampling(1.2, 1.0)
