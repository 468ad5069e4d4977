"""The server as clients see it: the texts of ``vidspec caption``, OpenAI's shapes, failures, load."""

import asyncio
import gc
import gzip
import io
import itertools
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.serve.servers import asked, data_url, serving
from tests.tiers import full_but
from vidspec import cli
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.errors import VideoError
from vidspec.models.chat_request import ChatRequest
from vidspec.models.request import DialogueTurn
from vidspec.process import ChildEnded
from vidspec.runs.reader import ClipReader
from vidspec.serve.media import MediaReader
from vidspec.video.base import Clip

CLIPS = shipped()


@pytest.fixture(scope="module")
def server(captioner):
    with serving(captioner, batch=4) as (url, notes):
        yield url, notes


@pytest.fixture(scope="module")
def client(server):
    import openai  # seconds, for one test

    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(url, body, **headers):
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def test_openais_client_gets_what_the_command_line_prints(client, capfd):
    body = asked(data_url(CLIPS[1]))
    answer = client.chat.completions.create(**body)
    words = ["--profile", "vanilla-sd", "--frames", "4", "--max-new-tokens", "20", "--quiet", "--format", "json"]
    assert cli.main(["caption", str(CLIPS[1]), *words]) == 0
    record = json.loads(capfd.readouterr().out)
    (choice,) = answer.choices
    assert choice.message.content == record["caption"] and choice.message.role == "assistant"
    assert choice.finish_reason == {"eos": "stop", "length": "length"}[record["ended"]]
    usage = answer.usage
    assert usage.completion_tokens == len(record["token_ids"])
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > usage.completion_tokens
    measured = answer.model_extra["vidspec"]
    assert measured["lossless"] is True and measured["passes"] == record["counters"]["target_forwards"]
    assert measured["tokens_per_pass"] == record["lengths"]["tokens_per_target_pass"]


def test_a_stream_is_the_whole_answer_in_parts(client):
    body = asked(data_url(CLIPS[0]), max_tokens=12)
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage and len(parts) > 3


def test_clients_beside_each_other_get_what_each_gets_alone(client):
    bodies = [
        asked(data_url(clip), max_tokens=length, extra_body={"top_k": 5}, temperature=temperature)
        for clip in CLIPS
        for length, temperature in ((20, 0.0), (9, 1.0))
    ]

    def text(body):
        return client.chat.completions.create(**body).choices[0].message.content

    alone = [text(body) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(text, bodies)) == alone
    assert len(set(alone)) > 4


FIELDS = [
    ({"max_completion_tokens": 5}, {"max_new_tokens": 5}),
    (
        {"temperature": 1.1, "top_p": 0.8, "top_k": 20, "seed": 7},
        {"temperature": 1.1, "top_p": 0.8, "top_k": 20, "seed": 7},
    ),
    ({"temperature": 0.0, "seed": -1}, {"temperature": 0.0, "seed": -1}),
    ({"repetition_penalty": 1.4, "presence_penalty": 0.5}, {"repetition_penalty": 1.4, "presence_penalty": 0.5}),
    ({"stop": " circle"}, {"stop": [" circle"]}),
    ({"top_k": -1, "n": 1, "logprobs": False, "tools": []}, {}),
]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(("fields", "keys"), full_but(FIELDS[1:4:2], FIELDS))
def test_fields_are_keys_of_the_profile(server, captioner, fields, keys):
    from vidspec.config import profiles

    answer = ask(server[0], asked(data_url(CLIPS[2]), **fields)).json()
    profile = profiles.override(captioner.client.profile, {f"generate.{key}": value for key, value in keys.items()})
    expected = Captioner(profile, captioner.client.setup.target.model, captioner.client.setup.draft.model).caption(
        CLIPS[2]
    )
    assert answer["choices"][0]["message"]["content"] == expected.caption
    assert answer["usage"]["completion_tokens"] == len(expected.token_ids)
    streamed = ask(server[0], asked(data_url(CLIPS[2]), **fields, stream=True)).text
    lines = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(line["choices"][0]["delta"].get("content", "") for line in lines) == expected.caption


def test_a_schema_is_followed(server):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(server[0], asked(data_url(CLIPS[0]), response_format=form)).json()
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"n"}
    cut = ask(server[0], asked(data_url(CLIPS[0]), response_format=form, max_tokens=1))
    assert cut.status_code == 400 and cut.json()["error"]["param"] == "max_tokens"


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "video"),
    [
        ({"media_io_kwargs": {"video": {"num_frames": 6}}}, {"video.frames": 6}),
        ({"mm_processor_kwargs": {"fps": 2}}, {"video.fps": 2.0}),
    ],
)
def test_frames_are_sampled_as_asked(server, captioner, fields, video):
    from vidspec.config import profiles

    profile = profiles.override(captioner.client.profile, video)
    expected = Captioner(profile, captioner.client.setup.target.model, captioner.client.setup.draft.model).caption(
        CLIPS[1]
    )
    answer = ask(server[0], asked(data_url(CLIPS[1]), **fields)).json()
    assert answer["vidspec"]["timestamps"] == expected.video["timestamps"]
    assert answer["choices"][0]["message"]["content"] == expected.caption
    name, value = next(iter({**fields.get("mm_processor_kwargs", {}), "nframes": 6}.items()))
    body = asked(data_url(CLIPS[1]))
    body["messages"][0]["content"][0]["video_url"][name] = value
    assert ask(server[0], body).json()["vidspec"]["timestamps"] == expected.video["timestamps"]


def pictures(captioner, count):
    clip = captioner.client.inputs.read(CLIPS[0])
    found = []
    for frame in clip.frames[:count]:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "png")
        found.append(file.getvalue())
    return clip.frames[:count], found


def test_images_are_the_frames_of_a_video(server, captioner):
    frames, files = pictures(captioner, 3)
    urls = [data_url(file, "image/png") for file in files]
    expected = captioner.caption("", clip=Clip.of(np.stack(list(frames)), [0, 0.25, 0.5]), prompt="What moves?")
    text = "[Video: 3 frames sampled at 4.0 fps from 0s]\nWhat moves?"
    noted = ask(server[0], asked(*urls, text=text, kind="image_url")).json()
    told = ask(server[0], asked(*urls, text="What moves?", kind="image_url", mm_processor_kwargs={"fps": 4})).json()
    assert noted["vidspec"]["timestamps"] == told["vidspec"]["timestamps"] == [0.0, 0.25, 0.5]
    assert noted["choices"] == told["choices"]
    assert noted["choices"][0]["message"]["content"] == expected.caption


@pytest.mark.full
def test_one_image_is_an_image(server, captioner, tmp_path):
    file = tmp_path / "one.png"
    file.write_bytes(pictures(captioner, 1)[1][0])
    answer = ask(server[0], asked(data_url(file, "image/png"), kind="image_url")).json()
    assert answer["choices"][0]["message"]["content"] == captioner.caption(file).caption
    assert answer["vidspec"]["frames"] == 1


def test_frames_of_one_data_url(server, captioner):
    jpegs = []
    for frame in captioner.client.inputs.read(CLIPS[0]).frames[:2]:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "jpeg")
        jpegs.append(data_url(file.getvalue(), "video/jpeg"))
    url = ",".join([jpegs[0], jpegs[1].partition(",")[2]])
    assert ask(server[0], asked(url)).json()["vidspec"]["timestamps"] == [0.0, 0.5]


@pytest.mark.full
def test_system_message_and_earlier_turns(server, captioner):
    body = asked(data_url(CLIPS[0]), text="What is it?")
    body["messages"] = [
        {"role": "system", "content": "Be brief."},
        *body["messages"],
        {"role": "assistant", "content": "A circle."},
        {"role": "user", "content": "And then?"},
    ]
    earlier = (DialogueTurn("What is it?", "A circle."),)
    expected = captioner.caption(CLIPS[0], prompt="And then?", system="Be brief.", earlier=earlier)
    assert ask(server[0], body).json()["choices"][0]["message"]["content"] == expected.caption


@pytest.mark.full
def test_a_file_part(server, captioner):
    part = {"type": "file", "file": {"file_data": data_url(CLIPS[0]), "filename": "clip.mp4"}}
    body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "What moves?"}]}]}
    expected = captioner.caption(CLIPS[0], prompt="What moves?").caption
    assert ask(server[0], body).json()["choices"][0]["message"]["content"] == expected


GOOD = data_url(CLIPS[0])


@pytest.mark.sample(quick=10)
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**6}, "messages[0].content[0]"),
        ({"max_tokens": True}, "max_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "no video"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        ({"messages": asked("data:video/mp4;base64,!!")["messages"]}, "messages[0].content[0]"),
        ({"messages": asked("data:video/mp4;base64,AAAA")["messages"]}, "messages[0].content[0]"),
        ({"messages": asked(GOOD, GOOD)["messages"]}, "messages[0].content[1]"),
        ({"mm_processor_kwargs": {"fps": 0}}, "mm_processor_kwargs.fps"),
        ({"media_io_kwargs": {"video": {"num_frames": 0}}}, "media_io_kwargs.video.num_frames"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_cannot_be_served_names_its_field(server, change, param):
    answer = ask(server[0], {**asked(GOOD), **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and error["type"] == "invalid_request_error"
    assert tempfile.gettempdir() not in error["message"] and "generate." not in error["message"]


@pytest.mark.full
def test_unknown_fields_are_told_once(server):
    url, notes = server
    for _ in range(2):
        assert ask(url, asked(GOOD, max_tokens=2, sparkle=1, glitter=2)).status_code == 200
    assert len([note for note in notes if "sparkle" in note]) == 1 == len([note for note in notes if "glitter" in note])


def test_other_models_and_no_json(server):
    url, _ = server
    missing = ask(url, asked(GOOD, model="gpt-4o"))
    assert missing.status_code == 404 and missing.json()["error"]["param"] == "model"
    chat = f"{url}/v1/chat/completions"
    for content, status in ((b"{", 400), (b"[" * 60_000, 400), (b"[" * 100_000, 413), (b'"text"', 400), (b"\xff", 400)):
        answer = httpx.post(chat, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status and answer.json()["error"]["message"]
    assert httpx.post(chat, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    compressed = httpx.post(chat, content=gzip.compress(b"{}"), headers=headers)
    assert compressed.status_code == 415 and "encoding gzip is not read" in compressed.json()["error"]["message"]


def test_routes_and_methods_that_there_are_not(server):
    url, _ = server
    missing, other = httpx.get(f"{url}/v1/embeddings"), httpx.get(f"{url}/v1/chat/completions")
    assert (missing.status_code, other.status_code, other.headers["allow"]) == (404, 405, "POST")
    jobs = [httpx.post(f"{url}{path}") for path in ("/v1/batches", "/v1/files", "/invocations")]
    assert [job.status_code for job in jobs] == [404] * 3
    for answer in (missing, other):
        assert answer.json()["error"]["type"] == "invalid_request_error" and answer.json()["error"]["message"]


def test_models_health_and_metrics(server, client):
    url, _ = server
    assert [model.id for model in client.models.list()] == ["test"]
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert ask(url, asked(GOOD, max_tokens=3)).status_code == 200
    assert ask(url, asked(data_url(b"no video"))).status_code == 400
    text = httpx.get(f"{url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(values["vidspec_clips_total"]) > 0 and int(values["vidspec_tokens_total"]) > 2
    assert values["vidspec_requests_waiting"] == values["vidspec_requests_running"] == "0"
    assert (
        values["vidspec_time_to_first_token_seconds_count"]
        == values['vidspec_time_to_first_token_seconds_bucket{le="+Inf"}']
    )
    assert int(values["vidspec_kv_capacity_bytes"]) > 0 and any("vidspec_errors_total{" in name for name in values)


def test_a_full_queue_and_a_client_that_goes_away(captioner, monkeypatch):
    slow = asked(GOOD, max_tokens=400, stop=None, presence_penalty=1.0)
    passes, go_on, run = itertools.count(), threading.Event(), captioner.client.setup.target.run

    def held(batch):
        assert next(passes) < 3 or go_on.wait(120)
        return run(batch)

    monkeypatch.setattr(captioner.client.setup.target, "run", held)
    slab = captioner.client.setup.target.model.decoder.slab
    before = slab.used  # by the videos that the other server of these models keeps
    with serving(captioner, batch=1, max_waiting=1) as (url, _):

        def counted(name):
            return int(httpx.get(f"{url}/metrics").text.partition(f"\nvidspec_{name} ")[2].split()[0])

        def until(name, value):
            end = time.monotonic() + 120
            while counted(name) != value and time.monotonic() < end:
                time.sleep(0.005)
            assert counted(name) == value

        first = httpx.Client(timeout=60)
        stream = first.stream("POST", f"{url}/v1/chat/completions", json={**slow, "stream": True})
        lines = stream.__enter__().iter_lines()
        next(lines)
        until("requests_running", 1)
        texts = []
        second = threading.Thread(target=lambda: texts.append(ask(url, asked(GOOD, max_tokens=3)).json()))
        second.start()
        until("requests_waiting", 1)
        refused = ask(url, asked(GOOD))
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "busy"
        first.close()  # in the middle of its text
        go_on.set()
        second.join()
        assert texts[0]["usage"]["completion_tokens"] == 3
        until("requests_running", 0)
    assert slab.used == before


@pytest.mark.full
def test_a_body_counts_until_its_media_are_read(captioner, monkeypatch):
    body, entered, may_read, read = asked(GOOD, max_tokens=3), threading.Event(), threading.Event(), MediaReader.read

    async def late(reader, chat):
        entered.set()
        assert await asyncio.to_thread(may_read.wait, 60)
        return await read(reader, chat)

    monkeypatch.setattr(MediaReader, "read", late)
    monkeypatch.setattr("vidspec.serve.app.MAX_RECEIVED", len(json.dumps(body)) * 5 // 2)  # parsing takes it twice
    with serving(captioner) as (url, _), ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, url, body)
        assert entered.wait(60)
        refused = ask(url, body)
        may_read.set()
        assert first.result().status_code == 200
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "busy"
        assert [ask(url, body).status_code for _ in range(2)] == [200, 200]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere temporary files have names")
def test_media_are_in_no_file_that_a_killed_server_would_leave(captioner, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected, seen, read_frames = captioner.caption(CLIPS[0]).caption, [], MediaReader._read_frames

    def looking(reader, *arguments):
        clip = read_frames(reader, *arguments)
        seen.append([one.name for one in tmp_path.iterdir()])
        return clip

    monkeypatch.setattr(MediaReader, "_read_frames", looking)
    monkeypatch.setattr(MediaReader, "_check_duration", lambda *_: seen.append([*tmp_path.iterdir()]))
    descriptors = len(os.listdir("/proc/self/fd"))
    urls = [data_url(file, "image/png") for file in pictures(captioner, 2)[1]]
    with serving(captioner, keep_bytes=0) as (url, _):
        whole, frames = ask(url, asked(GOOD)), ask(url, asked(*urls, kind="image_url"))
        assert whole.json()["choices"][0]["message"]["content"] == expected and frames.status_code == 200
    assert seen == [[], [], []] and len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture(params=["while it reads", "when it has read"])
def held(request, monkeypatch):
    """Holds the only reader at the first clip until its process ends; the events are set when it does and after."""
    begun, ended, read = threading.Event(), threading.Event(), ClipReader.read

    def hold(reader, path, *args):
        if begun.is_set():
            return read(reader, path, *args)
        clip = read(reader, path, *args) if request.param == "when it has read" else None
        child = reader._ready_child(path)
        begun.set()
        try:
            child.receive()  # nothing was sent, so only the end of the process ends this
        except ChildEnded as one:
            ended.set()
            if clip is None:
                raise reader._crash(path, one) from None
        return clip

    monkeypatch.setattr(ClipReader, "read", hold)
    return begun, ended


def test_reading_ends_when_its_client_has_gone(captioner, held):
    """The next request needs the reader."""
    with serving(captioner, readers=1) as (url, _):
        body = json.dumps(asked(GOOD)).encode()
        host, port = url.removeprefix("http://").split(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert held[0].wait(120)
        assert ask(url, asked(GOOD, max_tokens=3)).status_code == 200


def test_reading_ends_when_its_time_is_over(captioner, held):
    begun, ended = held
    for timeout in (0.5, 2.0, 8.0, 32.0):
        with serving(captioner, readers=1, timeout=timeout) as (url, _):
            late = ask(url, asked(GOOD))
            assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
            if begun.is_set():  # else its time was over before it was read
                assert ended.wait(60)
                return
    pytest.fail("the clip was never read")


@pytest.mark.parametrize(
    ("kind", "status"), [("crashed", 503), ("descriptors", 503), ("timeout", 504), ("damaged", 400)]
)
def test_a_reader_that_fails_is_not_the_clients_mistake(server, monkeypatch, kind, status):
    def fail(reader, path, *_):
        raise VideoError(f"{path}: failed", kind=kind)

    monkeypatch.setattr(ClipReader, "read", fail)
    answer = ask(server[0], asked(data_url(CLIPS[1]), mm_processor_kwargs={"num_frames": 3}))  # one that is not kept
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, kind)
    assert answer.json()["error"]["message"] == "messages[0].content[0]: failed"
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_request_that_takes_too_long(captioner):
    with serving(captioner, timeout=0.001) as (url, _):
        late = ask(url, asked(GOOD))
        assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"


@pytest.fixture
def no_collections():
    """Only reference counts free objects, as in a server that is never idle."""
    gc.collect()
    gc.disable()
    yield {id(one) for one in requests_and_clips()}  # of other tests
    gc.enable()


def requests_and_clips():
    return [one for one in gc.get_objects() if isinstance(one, ChatRequest | Clip)]


def kept_after_a_while(others, *names):
    """Other objects of these classes; soon none, if only reference counts free them."""
    end = time.monotonic() + 60
    while True:
        kept = [type(one).__name__ for one in requests_and_clips() if id(one) not in others]
        kept = [name for name in kept if name in names]
        if not kept or time.monotonic() > end:
            return kept
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.parametrize("timeout", [60, 0.001])
def test_an_answered_request_is_not_kept(captioner, no_collections, timeout):
    damaged, long = asked(data_url(b"no video")), asked(GOOD, max_tokens=1_000_000)
    bodies = [asked(GOOD, max_tokens=3), damaged, long, asked("file:///etc/passwd"), asked(GOOD, temperature="hot")]
    with serving(captioner, timeout=timeout, keep_bytes=0) as (url, _):
        codes = [ask(url, {**body, "stream": stream}).status_code for body in bodies for stream in (False, True)]
        assert set(codes) == ({200, 400} if timeout > 1 else {400, 504})
        # what a request that took too long has besides its clip waits for a collection
        assert kept_after_a_while(no_collections, "Clip", *(["ChatRequest"] if timeout > 1 else [])) == []
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={**asked(GOOD), "stream": True}):
            pass  # gone in the answer
        assert kept_after_a_while(no_collections, "Clip") == []


@pytest.mark.full
def test_a_bug_in_a_pass_is_one_clips(captioner, monkeypatch, capfd):
    expected = captioner.caption(CLIPS[0]).caption
    read = captioner.client.setup.read

    def broken(request, trace):
        if request.prompt == "break":
            raise RuntimeError("secret /path")
        return read(request, trace)

    monkeypatch.setattr(captioner.client.setup, "read", broken)
    with serving(captioner) as (url, _), ThreadPoolExecutor(2) as pool:
        failing = pool.submit(ask, url, asked(GOOD, text="break"))
        answer = ask(url, asked(GOOD))
        assert failing.result().status_code == 500 and failing.result().json()["error"]["message"] == "internal error"
        assert answer.json()["choices"][0]["message"]["content"] == expected
    assert "secret /path" in capfd.readouterr().err


@pytest.mark.full
def test_the_page_loads_nothing_from_elsewhere(server, captioner):
    url, _ = server
    page = httpx.get(f"{url}/")
    assert page.status_code == 200 and "://" not in page.text and "/*" not in page.text.partition("<script>")[2]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert set(re.findall(r"var\((--[\w-]+)\)", page.text)) <= set(re.findall(r"(--[\w-]+):", page.text))
    assert all(f"<option>{clip.name}</option>" in page.text for clip in CLIPS)
    assert httpx.get(f"{url}/samples/{CLIPS[0].name}").content == CLIPS[0].read_bytes()
    assert httpx.get(f"{url}/samples/..%2ftruth.json").status_code == 404
    streamed = ask(url, asked(GOOD, stream=True, vidspec={"details": True})).text
    lines = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    tokens = [token for line in lines for token in line.get("vidspec", {}).get("tokens", ())]
    text = "".join(line["choices"][0]["delta"].get("content", "") for line in lines)
    assert "".join(text for text, _, _ in tokens).strip() == text
    assert {origin for _, origin, _ in tokens} <= {"draft", "correction", "bonus", "target"}
    with serving(captioner, page=False) as (bare, _):
        assert httpx.get(f"{bare}/").status_code == 404
