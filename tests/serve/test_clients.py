"""Requests as clients send them, written down from their code: each with a video, and the command line's answer."""

import base64
import io
import json
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from tests.serve.servers import data_url, serving
from vidspec.captioner import Captioner
from vidspec.embedded.samples import shipped
from vidspec.video.base import Clip

CLIP = shipped()[0]


@pytest.fixture(scope="module")
def url(captioner):
    with serving(captioner, api_key="sk-123456", media_folder=str(CLIP.parent)) as (url, notes):
        yield url
        assert notes == [], "all fields of the clients are known"


def jpeg(frame, kind):
    file = io.BytesIO()
    Image.fromarray(frame).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def frames_as(captioner, kind):
    """Frames of a clip as a client codes them, with the clip that a server decodes from them."""
    coded = [jpeg(frame, kind) for frame in captioner.client.inputs.read(CLIP).frames]
    seen = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB")) for one in coded]
    return coded, Clip.of(np.stack(seen), [number / 2 for number in range(len(seen))])


@pytest.mark.full
def test_cosmos_curate(url, captioner):
    """``OpenAICaptionStage``: it asks for the models first, and for the default number of tokens."""
    import openai  # it takes seconds

    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-123456", max_retries=0) as client:
        (model,) = client.models.list().data
        parts = [
            {"type": "video_url", "video_url": {"url": data_url(CLIP)}},
            {"type": "text", "text": "Elaborate on the visual and narrative elements of the video in detail."},
        ]
        messages = [{"role": "user", "content": parts}]
        answer = client.chat.completions.create(model=model.id, messages=messages, max_tokens=4096)
    with Captioner.from_profile(
        "vanilla-sd", overrides={"video.frames": 4, "generate.max_new_tokens": 4096, "models.device": "cpu"}
    ) as long:
        assert answer.choices[0].message.content == long.caption(CLIP, prompt=parts[1]["text"]).caption
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("sends", ["frames", "url"])
def test_lmms_eval(url, captioner, sends):
    """The chat backend ``openai``: PNG frames before the text, or the file's URL; no system message, an empty one."""
    import openai  # it takes seconds

    coded, clip = frames_as(captioner, "png")
    media = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one}"}} for one in coded]
    if sends == "url":
        media = [{"type": "video_url", "video_url": {"url": f"file://{CLIP}"}}]
    payload = {
        "messages": [{"role": "user", "content": [*media, {"type": "text", "text": "What moves?"}]}],
        "model": "test",
        "max_tokens": 16,
        "temperature": 0,
    }
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-123456", max_retries=0) as client:
        answer = client.chat.completions.create(**payload)
    expected = captioner.caption(CLIP, clip=None if sends == "url" else clip, prompt="What moves?", max_new_tokens=16)
    assert answer.choices[0].message.content == expected.caption
    assert answer.usage.completion_tokens == len(expected.token_ids)


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
def test_vlmevalkit(url, captioner, stream):
    """``LMDeployWrapper`` and ``OpenAISDKWrapper``: JPEG frames between texts, their extra keys, ``n`` and a key."""
    coded, clip = frames_as(captioner, "jpeg")
    parts = [{"type": "text", "text": "These are frames of a video."}]
    for one in coded:
        parts.append(
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{one}", "max_dynamic_patch": 1}}
        )
    parts.append({"type": "text", "text": "What moves?"})
    payload = {
        "model": "test",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}],
        "max_tokens": 1024,
        "n": 1,
        "temperature": 0.0,
        **({"stream": True} if stream else {}),
    }
    headers = {"authorization": "Bearer sk-123456"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=payload, headers=headers, timeout=60)
    prompt = "These are frames of a video.\nWhat moves?"
    expected = captioner.caption(CLIP, clip=clip, prompt=prompt, system="Be brief.", max_new_tokens=1024).caption
    if not stream:
        assert answer.json()["choices"][0]["message"]["content"].strip() == expected
        return
    lines = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
    assert lines.pop() == "[DONE]"
    found = "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)
    assert found.strip() == expected


def test_lmms_evals_own_code(url, captioner, tmp_path, monkeypatch):
    """Its backend as installed, several requests at once; its frames are those of this package's reader."""
    backend = pytest.importorskip("lmms_eval.models.chat.openai", reason="needs lmms-eval")
    clip = captioner.client.inputs.read(CLIP)
    sent = torch.from_numpy(clip.frames).permute(0, 3, 1, 2)
    monkeypatch.setattr("lmms_eval.protocol.fetch_video", lambda wanted: sent[: wanted["nframes"]])
    monkeypatch.chdir(tmp_path)
    texts = ("What moves?", "Describe this video in detail.")
    parts = [[{"type": "video", "url": str(CLIP)}, {"type": "text", "text": text}] for text in texts]
    options = {"base_url": f"{url}/v1", "api_key": "sk-123456", "max_frames_num": 4, "max_retries": 1, "timeout": 60}
    model = backend.OpenAICompatible(model_version="test", **options)
    model.task_dict = {"drawn": {"test": [[{"role": "user", "content": one}] for one in parts]}}
    requests = [
        SimpleNamespace(args=(text, lambda doc: doc, {"max_new_tokens": 16}, number, "drawn", "test"))
        for number, text in enumerate(texts)
    ]
    answers = [one.text for one in model.generate_until(requests)]
    clip = Clip.of(clip.frames, [number / 2 for number in range(len(clip.frames))])
    assert answers == [captioner.caption(CLIP, clip=clip, prompt=text, max_new_tokens=16).caption for text in texts]
