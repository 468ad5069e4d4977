"""The captioner for asyncio: texts are those of the captioner, and a cancelled call frees its place."""

import asyncio
import gc
import itertools
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from vidspec.aio import AHEAD, AsyncCaptioner
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.errors import ArgumentError, ClosedError, GenerationError, ProfileError, VideoError
from vidspec.events.events import Finished, Opened, Prefilled, Round

CLIPS = [str(path) for path in shipped()[:3]]
#: Its caption takes many passes.
LONG = CLIPS[1]
#: Seconds after which a call counts as blocked.
BLOCKED = 300.0


@pytest.fixture
def own(small_captioner):
    """A captioner of the same models that a test may close."""
    captioner = Captioner(
        small_captioner.client.profile,
        small_captioner.client.setup.target.model,
        small_captioner.client.setup.draft.model,
    )
    yield captioner
    assert (
        small_captioner.client.setup.target.model.decoder.slab.used
        == small_captioner.client.setup.draft.model.decoder.slab.used
        == 0
    )


@pytest.fixture
def slow_passes(own, monkeypatch):
    """Rows of each pass of the target, which takes long enough for a caller to leave meanwhile."""
    passes, forward = [], own.client.setup.target.run
    monkeypatch.setattr(
        own.client.setup.target, "run", lambda batch: time.sleep(0.1) or passes.append(len(batch)) or forward(batch)
    )
    return passes


def run(work):
    return asyncio.run(asyncio.wait_for(work, BLOCKED))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_captions_are_those_of_the_captioner_and_share_passes(own, small_captioner, monkeypatch):
    expected = [small_captioner.caption(path, max_new_tokens=16).caption for path in CLIPS]
    sizes, forward, submit = [], own.client.setup.target.run, own.client.thread.submit
    asked, several = itertools.count(1), threading.Event()

    def observed(batch):
        assert several.wait(BLOCKED)
        sizes.append(len(batch))
        return forward(batch)

    def submitted(one):
        submit(one)
        if next(asked) == 2:
            several.set()

    monkeypatch.setattr(own.client.setup.target, "run", observed)
    monkeypatch.setattr(own.client.thread, "submit", submitted)

    async def work():
        assert len(CLIPS) * 3 > AHEAD
        async with AsyncCaptioner(own) as captioner:
            calls = (captioner.caption(path, max_new_tokens=16) for path in CLIPS * 3)
            found = await asyncio.gather(*calls)
            text = [piece async for piece in captioner.stream_text(CLIPS[0], max_new_tokens=16)]
            events = [event async for event in captioner.stream(CLIPS[0])]
        assert [one.caption for one in found] == expected * 3
        assert "".join(text) == expected[0] and len(text) > 2
        assert [type(event) for event in (*events[:2], events[-1])] == [Opened, Prefilled, Finished]

    run(work())
    assert max(sizes) > 1


@pytest.mark.full
def test_several_prompts_about_a_clip(own, small_captioner, tmp_path):
    prompts = ["Describe the video.", "What moves?", "Which colours are there?"]
    expected = small_captioner.captions(CLIPS[0], prompts, max_new_tokens=16)

    async def work():
        async with AsyncCaptioner(own) as captioner:
            found = await captioner.captions(CLIPS[0], prompts, max_new_tokens=16)
            assert [one.token_ids for one in found] == [one.token_ids for one in expected]
            reused = [one.question["reused"] for one in found]
            assert reused[0] == 0 and min(reused[1:]) > found[1].counters["visual_tokens"]
            with pytest.raises(GenerationError, match="exceed"):
                await captioner.captions(CLIPS[0], [40_000 * "word ", prompts[0]])
            with pytest.raises(VideoError, match="no such file"):
                await captioner.captions(tmp_path / "none.mp4", prompts)

    run(work())


@pytest.mark.full
def test_errors_are_those_of_the_call(own, tmp_path):
    async def work():
        async with AsyncCaptioner(own) as captioner:
            with pytest.raises(VideoError, match="no such file"):
                await captioner.caption(tmp_path / "none.mp4")
            with pytest.raises(ProfileError, match=r"generate\.temperature"):
                await captioner.caption(CLIPS[0], temperature=-1)
            with pytest.raises(ArgumentError, match=r"stream\(\) has no argument"):
                captioner.stream(CLIPS[0], maximum=3)
            assert await captioner.caption(CLIPS[0])  # no error keeps a place

    run(work())


@pytest.mark.full
@pytest.mark.parametrize("how", ["cancelled", "broken off"])
def test_a_call_that_ends_early_frees_its_place(own, how, small_captioner, slow_passes):
    slab, begun = own.client.setup.target.model.decoder.slab, asyncio.Event()
    whole = small_captioner.caption(LONG, max_new_tokens=100).counters["target_forwards"]

    async def read(captioner):
        async for event in captioner.stream(LONG, max_new_tokens=100):
            if isinstance(event, Round):
                begun.set()
                if how == "broken off":
                    break

    async def work():
        async with AsyncCaptioner(own) as captioner:
            task = asyncio.create_task(read(captioner))
            await begun.wait()
            if how == "cancelled":
                assert slab.used
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await task
                gc.collect()
            await until(lambda: slab.used == 0)
            assert 0 < len(slow_passes) < whole / 2
            assert await captioner.caption(CLIPS[1])

    run(work())


def test_closing_ends_other_calls(own, slow_passes):
    async def work():
        captioner = AsyncCaptioner(own)
        events = captioner.stream(CLIPS[0], max_new_tokens=400)
        assert isinstance(await anext(events), Opened)
        await captioner.close()
        with pytest.raises(ClosedError):
            async for _ in events:
                pass
        for call in (captioner.caption(CLIPS[0]), captioner.caption(CLIPS[0], max_new_tokens=3)):
            with pytest.raises(ClosedError):
                await call
        await captioner.close()

    run(work())


def test_a_captioner_that_others_close_ends_all_calls(own):
    async def work():
        captioner = AsyncCaptioner(own)
        clip = own.client.inputs.read(CLIPS[0])
        own.close()
        with pytest.raises(ClosedError):
            await captioner.caption("", clip=clip)
        await captioner.close()

    run(work())


@pytest.mark.full
def test_a_client_of_the_documented_handler_that_leaves_frees_its_place(
    own, small_captioner, slow_passes, tmp_path, monkeypatch
):
    pytest.importorskip("starlette")
    page = (Path(__file__).resolve().parents[1] / "docs/use/python.md").read_text(encoding="utf-8")
    (code,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "StreamingResponse" in one]
    names = {}
    exec(code.partition("\nwith TestClient")[0], names)
    (tmp_path / "clips").mkdir()
    shutil.copy(LONG, tmp_path / "clips/one.mp4")
    monkeypatch.chdir(tmp_path)
    whole = small_captioner.caption(LONG).counters["target_forwards"]

    async def work():
        left = asyncio.Event()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message.get("body"):
                left.set()

        async with AsyncCaptioner(own) as captioner:
            scope = {"type": "http", "method": "GET", "path": "/captions/one.mp4", "headers": [], "query_string": b""}
            await names["app"]({**scope, "state": {"captioner": captioner}}, receive, send)
            await until(lambda: own.client.setup.target.model.decoder.slab.used == 0)
        assert left.is_set() and 0 < len(slow_passes) < whole / 2

    run(work())
