"""Lines of OpenAI's batch API as inputs, and the answers in the same form."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from tests.runs.shards import CLIP
from vidspec.config.run_spec import RunSpec
from vidspec.errors import UsageError, VideoError
from vidspec.models.request import DialogueTurn
from vidspec.runs.formats.base import make_format
from vidspec.runs.inputs import collect_inputs, drop_missing
from vidspec.runs.sources.base import ClipOpener
from vidspec.video import read

pytestmark = pytest.mark.usefixtures("own_folder")


def data_url(content, kind="video/mp4"):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def request(name, media, text="What moves?", **body):
    """A line about a video's URL, or a list of pictures."""
    parts = [{"type": "text", "text": text}]
    if isinstance(media, list):
        parts += [{"type": "image_url", "image_url": {"url": url}} for url in media]
    else:
        parts.append({"type": "video_url", "video_url": {"url": media}})
    messages = [{"role": "user", "content": parts}]
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": messages, **body}}


def write(*lines):
    Path("b.jsonl").write_text("".join(f"{json.dumps(line)}\n\n" for line in lines))


def listed(*lines, **spec):
    write(*lines)
    found = collect_inputs(RunSpec(paths=("b.jsonl",), **spec))
    drop_missing(found, ("b.jsonl",))
    assert not found.unreadable
    return found.entries


def content(job):
    with ClipOpener().local(job) as path:
        return Path(path).read_bytes()


def test_lines_are_clips_with_prompts_and_options_of_their_own():
    Path("a b.mp4").write_bytes(CLIP)
    system = {"role": "system", "content": "Be brief."}
    turns = [{"role": "assistant", "content": "A star."}, {"role": "user", "content": "Where to?"}]
    asked = request("two", data_url(CLIP), "What is there?", max_tokens=5, temperature=0.5, seed=3)
    asked["body"]["messages"] = [system, *asked["body"]["messages"], *turns]
    asked["body"]["mm_processor_kwargs"] = {"fps": 2.0}
    one, two = listed(request("one", Path("a b.mp4").absolute().as_uri()), asked)
    assert (one.path, one.id, one.prompt, one.source) == (str(Path("a b.mp4").absolute()), "one", "What moves?", None)
    assert (two.path, two.id, two.prompt, two.shard) == ("b.jsonl/two", "two", "Where to?", "b.jsonl")
    assert content(two) == CLIP
    options = two.options
    assert options.system == "Be brief." and options.earlier == (DialogueTurn("What is there?", "A star."),)
    assert options.generate == {"max_new_tokens": 5, "temperature": 0.5, "seed": 3}
    assert two.options.video == {"fps": 2.0, "frames": None}


def test_pictures_are_the_frames_of_a_clip(tmp_path):
    from PIL import Image

    frames, urls = np.random.default_rng(0).integers(0, 256, (3, 32, 48, 3), np.uint8), []
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(f"{number}.png")
        file = tmp_path / f"{number}.png"
        urls.append(data_url(file.read_bytes(), "image/png") if number else file.as_uri())
    several, lone = listed(request("a", urls, "[Video: 3 frames sampled at 4 fps] What?"), request("b", urls[1:2]))
    with ClipOpener().local(several) as path:
        clip = read(path, frames=3)
    assert np.array_equal(clip.frames, frames) and clip.timestamps == pytest.approx([0, 0.25, 0.5], abs=1e-3)
    assert content(lone) == Path("1.png").read_bytes() and several.prompt == "What?"


def test_what_cannot_be_answered_is_an_error_of_its_line():
    wrong = [
        (request("a", "https://example.org/a.mp4"), "a row names https://example.org/a.mp4, a URL of another scheme"),
        (request("b", "a.mp4"), "media must be data:, http:, https: or file: URLs"),
        (request("c", data_url(b""), temperature="hot"), "temperature: must be a valid number"),
        (request("d", data_url(b""), n=2), "n is not supported"),
        (request("e", data_url(b""), stream=True), "stream: a batch is not streamed"),
        ({**request("f", data_url(b"")), "url": "/v1/embeddings"}, "must be POST /v1/chat/completions"),
        (request("../g", []), "messages must have a video_url"),
    ]
    jobs = listed(*(line for line, _ in wrong), request("h", data_url(CLIP)))
    for job, (line, message) in zip(jobs, wrong, strict=False):
        assert message in str(job.error), line
        assert job.id == line["custom_id"] and "b.jsonl" in str(job.error)
    assert jobs[-1].error is None and jobs[-2].path == "b.jsonl/..%2Fg"
    (fetched,) = listed(request("a", "https://example.org/a.mp4"), allow_urls=("https://example.org",))
    assert (fetched.path, fetched.source.kind) == ("https://example.org/a.mp4", "url")


def test_a_line_that_is_another_when_its_clip_is_read():
    one, _ = listed(request("a", data_url(CLIP)), request("b", data_url(CLIP)))
    write(request("c", data_url(CLIP)))
    with pytest.raises(VideoError, match=r"^b.jsonl/a: b.jsonl was changed during the run"):
        content(one)


def test_a_file_that_is_no_batch():
    write(request("a", data_url(b"")), request("a", data_url(b"")))
    with pytest.raises(UsageError, match=r"^b.jsonl, line 3: the custom_id a is there twice"):
        collect_inputs(RunSpec(paths=("b.jsonl",)))
    Path("b.jsonl").write_text(f"{json.dumps(request('a', data_url(b'')))}\n{{\n")
    with pytest.raises(UsageError, match=r"^b.jsonl, line 2: not JSON"):
        collect_inputs(RunSpec(paths=("b.jsonl",)))


def test_answers_are_in_the_form_of_the_api(recorded):
    form = make_format("openai-batch")
    answer = json.loads(form.line(recorded(id="q1")))
    assert (answer["custom_id"], answer["error"], answer["response"]["status_code"]) == ("q1", None, 200)
    (choice,) = answer["response"]["body"]["choices"]
    assert choice["message"]["content"] == recorded()["caption"] and choice["finish_reason"] == "stop"
    failed = json.loads(form.line(recorded(id="q2", error="dark")))
    assert failed["custom_id"] == "q2" and failed["response"] is None and failed["error"]["message"] == "a.mp4: dark"
