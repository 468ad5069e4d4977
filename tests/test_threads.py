"""Threads that share a captioner: texts are those of one call at a time, and no call blocks or breaks another."""

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from research.world.samples import draw
from tests.ready_clips import ReadyClips
from tests.tiers import full_but
from vidspec import garbage
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding import engine_thread
from vidspec.decoding.engine_thread import EngineThread
from vidspec.errors import ArgumentError, ClosedError, GenerationError, UsageError, VidspecError
from vidspec.events.events import Finished, Opened, Prefilled, Restarted, Round
from vidspec.models.request import CaptionRequest, DialogueTurn

QUESTIONS = ("Describe the video.", "What moves?")
#: Seconds after which a thread counts as blocked.
BLOCKED = 300.0

CALLS = {
    "caption": lambda one, path, clip: [one.caption(path, clip=clip).token_ids],
    "stream": lambda one, path, clip: [
        event.caption.token_ids for event in one.stream(path, clip=clip) if isinstance(event, Finished)
    ],
    "ask": lambda one, path, clip: list(map(ids_of(one.dialogue(path, clip=clip)), QUESTIONS)),
    "captions": lambda one, path, clip: [said.token_ids for said in one.captions(path, QUESTIONS, clip=clip)],
    "serve": lambda one, path, clip: served(one, path, clip),
    "plain": lambda one, path, clip: [one.caption(path, clip=clip, plain=True).token_ids],
}
PAIRS = list(itertools.combinations_with_replacement(CALLS, 2))


def ids_of(dialogue):
    return lambda question: dialogue.ask(question).token_ids


def served(captioner, path, clip):
    """The answers to both questions, from one call of ``serve``."""
    source = ReadyClips([CaptionRequest(path, clip, prompt=prompt, key=prompt) for prompt in QUESTIONS])
    ended = {key: said.caption.token_ids for key, said in captioner.client.serve(source) if isinstance(said, Finished)}
    return [ended[prompt] for prompt in QUESTIONS]


def used(captioner):
    """Entries of the slabs that are in use once what was abandoned is dropped."""
    models = captioner.client.setup.target.model, captioner.client.setup.draft.model
    return captioner.client.thread.call(lambda: sum(model.decoder.slab.used for model in models))


def slow_passes(captioner, monkeypatch):
    """A long text does not end before the test has looked at it."""
    run = captioner.client.setup.target.run
    monkeypatch.setattr(captioner.client.setup.target, "run", lambda batch: time.sleep(0.01) or run(batch))


def finished(events):
    return next(event.caption.token_ids for event in events if isinstance(event, Finished))


@pytest.fixture(scope="module")
def clips(tmp_path_factory, small_captioner):
    paths = [str(path) for path in draw(tmp_path_factory.mktemp("clips"), 4, seed=7)]
    return {path: small_captioner.client.inputs.read(path) for path in paths}


def other(small_captioner, name="vanilla-sd", **overrides):
    """The same models under another profile."""
    settings = {"video.frames": 4, "generate.max_new_tokens": 24, **overrides}
    profile = profiles.load(name, settings, env={})
    return Captioner(
        profile,
        small_captioner.client.setup.target.model,
        small_captioner.client.setup.draft.model if profile.draft.has_model else None,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "threads", "calls"),
    full_but(
        [("vanilla-sd", 4, 24)],
        [
            ("vanilla-sd", 4, 24),
            ("vanilla-sd-auto", 8, 2 * len(PAIRS)),
            *((name, 8, 24) for name in ("specvlm", "suffix", "fastv")),
        ],
    ),
)
def test_texts_are_those_of_one_call_at_a_time(small_captioner, clips, name, threads, calls):
    few = {"generate.max_new_tokens": 12} if calls < 100 else {}
    captioner = other(small_captioner, name, **few, **({"lossy.retention": 0.5} if name == "fastv" else {}))
    clips = dict(itertools.islice(clips.items(), 2 if few else None))
    expected = {
        (method, path): call(captioner, path, clip) for method, call in CALLS.items() for path, clip in clips.items()
    }
    draws, paths = random.Random(11), list(clips)
    order = itertools.islice(itertools.chain.from_iterable(itertools.cycle(PAIRS)), calls)
    work = [(method, draws.choice(paths)) for method in order]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda one: CALLS[one[0]](captioner, one[1], clips[one[1]]), work))
    wrong = [one for one, ids in zip(work, found, strict=True) if ids != expected[one]]
    assert not wrong and used(small_captioner) == 0


def test_calls_at_the_same_time_share_passes(small_captioner, clips, monkeypatch):
    captioner = other(small_captioner)
    sizes, run = [], captioner.client.setup.target.run
    engine, all_asked, asked = captioner.client.thread, threading.Event(), itertools.count(1)
    submit = engine.submit

    def observed(batch):
        assert all_asked.wait(BLOCKED)
        sizes.append(len(batch))
        return run(batch)

    def submitted(one):
        submit(one)
        if next(asked) == len(clips):
            all_asked.set()

    def call(path):
        return captioner.caption(path, clip=clips[path]).token_ids

    monkeypatch.setattr(captioner.client.setup.target, "run", observed)
    monkeypatch.setattr(engine, "submit", submitted)
    with ThreadPoolExecutor(len(clips)) as pool:
        assert list(pool.map(call, clips)) == [
            small_captioner.caption(path, clip=clips[path]).token_ids for path in clips
        ]
    assert max(sizes) > 1


def test_a_stream_that_is_held_open_blocks_no_other_call(small_captioner, clips):
    """Calls of the same thread, and of another."""
    first, second, third, _ = clips
    expected = {path: small_captioner.caption(path, clip=clip).token_ids for path, clip in clips.items()}
    held = small_captioner.stream(first, clip=clips[first])
    assert isinstance(next(held), Opened) and isinstance(next(held), Prefilled)
    assert small_captioner.caption(second, clip=clips[second]).token_ids == expected[second]
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(small_captioner.caption, third, clip=clips[third])
        assert later.result(BLOCKED).token_ids == expected[third]
    assert finished(held) == expected[first]


def test_a_closed_stream_frees_its_place_within_a_pass(small_captioner, clips, monkeypatch):
    first, second, *_ = clips
    captioner = other(small_captioner, "ar", **{"generate.max_new_tokens": 400})
    engine, sizes, run = captioner.client.thread, [], captioner.client.setup.target.run
    began, joined, shared, closed = (threading.Event() for _ in range(4))
    submit = engine.submit

    def observed(batch):
        sizes.append(len(batch))
        if len(batch) == 1:
            began.set()
            assert joined.wait(BLOCKED)
        elif sum(size > 1 for size in sizes) == 2:
            shared.set()
            assert closed.wait(BLOCKED)
        return run(batch)

    monkeypatch.setattr(captioner.client.setup.target, "run", observed)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(captioner.caption, second, clip=clips[second])
        assert began.wait(BLOCKED)
        monkeypatch.setattr(engine, "submit", lambda one: submit(one) or joined.set())
        stream = captioner.stream(first, clip=clips[first])
        while not isinstance(next(stream), Round):
            pass
        assert shared.wait(BLOCKED)
        before = len(sizes)
        stream.close()
        closed.set()
        ids = later.result(BLOCKED).token_ids
    assert not any(size > 1 for size in sizes[before:]) and len(sizes) > before + 10
    monkeypatch.undo()
    assert ids == captioner.caption(second, clip=clips[second]).token_ids
    assert used(small_captioner) == 0


def test_an_abandoned_stream_frees_its_place_when_it_is_collected(small_captioner, clips, monkeypatch):
    path, clip = next(iter(clips.items()))
    slow_passes(small_captioner, monkeypatch)
    circle = [small_captioner.stream(path, clip=clip, max_new_tokens=2000)]
    circle.append(circle)
    assert isinstance(next(circle[0]), Opened) and isinstance(next(circle[0]), Prefilled)
    assert used(small_captioner) > 0
    del circle
    gc.collect()
    assert used(small_captioner) == 0


@pytest.mark.parametrize("where", ["submitting", "waiting"])
def test_ctrl_c_ends_the_call_that_waits_and_no_other(small_captioner, clips, monkeypatch, where):
    """At once, though a pass takes its time, which then goes on for the others."""
    first, second, *_ = clips
    expected = small_captioner.caption(first, clip=clips[first]).token_ids
    engine, passes, asked, go_on = (
        small_captioner.client.thread,
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )
    turn, submit = engine.loop.turn, engine.submit

    def slow(patience):
        passes.set()
        assert go_on.wait(BLOCKED)
        return turn(patience)

    def submitted(one):
        submit(one)
        asked.set()
        if where == "submitting":
            go_on.wait(BLOCKED)

    def press():
        assert passes.wait(BLOCKED) and asked.wait(BLOCKED)
        os.kill(os.getpid(), signal.SIGINT)

    held = small_captioner.stream(first, clip=clips[first])
    assert isinstance(next(held), Opened)
    monkeypatch.setattr(engine.loop, "turn", slow)
    monkeypatch.setattr(engine, "submit", submitted)
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=press).start()
        small_captioner.caption(second, clip=clips[second])
    assert not go_on.is_set()
    go_on.set()
    assert finished(held) == expected and used(small_captioner) == 0
    assert small_captioner.caption(first, clip=clips[first]).token_ids == expected


def test_a_bug_of_the_loop_ends_the_calls_and_not_the_thread(small_captioner, clips, monkeypatch):
    first, second, *_ = clips

    def broken(patience):
        raise LookupError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(small_captioner.client.thread.loop, "turn", broken)
        for call in (small_captioner.caption, lambda *one, **more: list(small_captioner.stream(*one, **more))):
            with pytest.raises(LookupError, match="a bug"):
                call(first, clip=clips[first])
    assert small_captioner.caption(second, clip=clips[second]).token_ids and used(small_captioner) == 0


def test_the_thread_computes_as_the_one_that_loaded_the_models(small_captioner, clips, monkeypatch):
    """With its threads of torch, and without gradients; however many captioners of the target there are."""
    first, *_ = clips
    captioner, before, found = other(small_captioner), torch.get_num_threads(), []
    start = captioner.client.start

    def observed(*asked):
        found.append((torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name))
        return start(*asked)

    monkeypatch.setattr(captioner.client, "start", observed)
    try:
        for threads in (before + 1, before):
            torch.set_num_threads(threads)
            captioner.caption(first, clip=clips[first])
    finally:
        torch.set_num_threads(before)
    assert found == [(threads, False, "vidspec-engine") for threads in (before + 1, before)]
    assert captioner.client.thread is small_captioner.client.thread


def test_an_error_of_one_call_is_its_own(small_captioner, clips, monkeypatch):
    first, second, *_ = clips
    read = small_captioner.client.setup.read

    def broken(request, trace):
        if request.path == second:
            raise RuntimeError("a bug")
        return read(request, trace)

    held = small_captioner.stream(first, clip=clips[first])
    next(held)
    monkeypatch.setattr(small_captioner.client.setup, "read", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        small_captioner.caption(second, clip=clips[second])
    assert finished(held) == small_captioner.caption(first, clip=clips[first]).token_ids


def test_a_call_without_memory_beside_others_is_repeated_alone(small_captioner, clips, monkeypatch):
    first, second, *_ = clips
    expected = {path: small_captioner.caption(path, clip=clips[path]).token_ids for path in (first, second)}
    slab, prompts = small_captioner.client.setup.target.model.decoder.slab, []
    gc.collect()  # what errors of other tests refer to
    for path in expected:
        prompts += [
            one.prompt_tokens for one in small_captioner.stream(path, clip=clips[path]) if isinstance(one, Prefilled)
        ]
    monkeypatch.setattr(slab, "capacity", 0)
    monkeypatch.setattr(slab, "_blocks", slab._allocate_blocks(0))
    monkeypatch.setattr(
        slab, "budget", (max(prompts) + small_captioner.client.setup.room) * slab.entry_bytes
    )  # enough for one
    engine, go_on, run = small_captioner.client.thread, threading.Event(), small_captioner.client.setup.target.run
    passes, submit = itertools.count(), engine.submit

    def held_back(batch):
        assert next(passes) == 0 or go_on.wait(BLOCKED)
        return run(batch)

    monkeypatch.setattr(small_captioner.client.setup.target, "run", held_back)
    held = small_captioner.stream(first, clip=clips[first])
    assert isinstance(next(held), Opened) and isinstance(next(held), Prefilled)
    monkeypatch.setattr(engine, "submit", lambda one: submit(one) or go_on.set())
    events = list(small_captioner.stream(second, clip=clips[second]))
    assert any(isinstance(event, Restarted) for event in events) and finished(events) == expected[second]
    assert finished(held) == expected[first]


def test_closing_ends_the_calls_of_others(small_captioner, clips, monkeypatch):
    first, second, *_ = clips
    captioner = other(small_captioner, "ar", **{"generate.max_new_tokens": 2000})
    slow_passes(captioner, monkeypatch)
    began = threading.Event()

    def long_call():
        for event in captioner.stream(second, clip=clips[second]):
            if isinstance(event, Round):
                began.set()

    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(long_call)
        assert began.wait(BLOCKED)
        held = captioner.stream(first, clip=clips[first])
        next(held)
        captioner.close()
        with pytest.raises(ClosedError):
            later.result(BLOCKED)
    for use in (
        lambda: list(held),
        lambda: captioner.caption(first),
        lambda: next(captioner.client.serve(ReadyClips([]))),
    ):
        with pytest.raises(ClosedError, match=r"closed \(make another") as caught:
            use()
        assert isinstance(caught.value, VidspecError)
    assert used(small_captioner) == 0
    captioner.close()  # once more does nothing


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_after_a_caption_refuses(small_captioner, clips):
    """The child has no thread that runs the models."""
    path, clip = next(iter(clips.items()))
    small_captioner.caption(path, clip=clip)
    child = os.fork()
    if not child:
        code = 1
        try:
            small_captioner.caption(path, clip=clip)
        except GenerationError as error:
            code = 2 if error.kind == "forked" else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert small_captioner.caption(path, clip=clip).token_ids


@pytest.mark.full
def test_the_interpreter_ends_in_the_middle_of_a_caption():
    code = """
from vidspec import Captioner
from vidspec.embedded.samples import shipped
captioner = Captioner.from_profile("ar", overrides={"models.device": "cpu", "video.frames": 4})
events = captioner.stream(shipped()[0], max_new_tokens=2000)
print(type(next(events)).__name__, flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BLOCKED, check=False)
    others = ("nanobind: ", " - ", "See https://nanobind.")  # Triton's types are left when a thread of torch runs
    said = [line for line in ended.stderr.splitlines() if not line.startswith(others)]
    assert (ended.returncode, ended.stdout, said) == (0, "Opened\n", [])


@pytest.mark.full
def test_threads_that_share_a_dialogue_take_turns(small_captioner, clips):
    path, clip = next(iter(clips.items()))
    dialogue, questions = small_captioner.dialogue(path, clip=clip), [f"Question {number}?" for number in range(6)]
    with ThreadPoolExecutor(3) as pool:
        answers = dict(zip(questions, pool.map(ids_of(dialogue), questions), strict=True))
    assert sorted(question for question, _ in dialogue.exchanges) == questions
    said = ()
    for question, answer in dialogue.exchanges:
        again = small_captioner.caption(path, clip=clip, prompt=question, earlier=said)
        assert again.token_ids == answers[question]
        said = (*said, DialogueTurn(question, answer))


def test_a_turn_that_is_held_open_blocks_no_thread_for_ever(small_captioner, clips):
    path, clip = next(iter(clips.items()))
    dialogue = small_captioner.dialogue(path, clip=clip)
    held = dialogue.stream("What moves?")
    next(held)
    with pytest.raises(UsageError, match="not answered yet") as caught:
        dialogue.ask("And then?")
    assert "close()" in caught.value.hint
    held.close()
    assert dialogue.ask("And then?").token_ids and len(dialogue.exchanges) == 1
    with pytest.raises(ArgumentError, match="a question must be a text, not a NoneType"):
        dialogue.ask(None)


@pytest.mark.parametrize("method", ["caption", "stream", "stream_text", "dialogue", "captions"])
def test_an_unknown_argument_names_the_nearest(small_captioner, method):
    more = [QUESTIONS] if method == "captions" else []
    message = rf"{method}\(\) has no argument 'promt' \(did you mean prompt\?\)"
    with pytest.raises(ArgumentError, match=message) as caught:
        getattr(small_captioner, method)("clip.mp4", *more, promt="What moves?")
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, VidspecError)
    with pytest.raises(ArgumentError, match="there are start, end, prompt"):
        getattr(small_captioner, method)("clip.mp4", *more, zzz=1)


def test_a_thread_that_outlives_its_target_has_ended_before_the_interpreter(monkeypatch):
    """Else torch aborts the process: the thread leaves its code while the interpreter is no more."""
    monkeypatch.setattr(EngineThread, "_running", weakref.WeakSet())
    late = threading.Event()
    monkeypatch.setattr(garbage, "collect_if_due", lambda: late.wait(BLOCKED))
    target = type("Target", (), {})()
    engine = EngineThread.of(target)
    assert engine.call(lambda: 3) == 3
    thread = engine._thread
    del engine, target
    threading.Timer(0.1, late.set).start()
    engine_thread._stop_all()
    assert late.is_set() and not thread.is_alive()
