"""Models that think before they answer: the caption is what follows the closing tag, everywhere."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from tests.checkpoints import copy_checkpoint
from tests.model_pairs import PLACE
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.display.state import PanelState
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError
from vidspec.events.events import Finished
from vidspec.models import loading
from vidspec.runs.store.records import lean_record
from vidspec.serve.answers import ChatAnswer

CLIP = str(shipped()[0])
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% for content in message['content'] %}"
    "{% if content['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ content['text'] }}"
    "{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{{ generation }}{% endif %}"
)
THOUGHT, CAPTION = " circle moves from left", "A large blue square"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
)


def save_thinker(folder, *, opened):
    """Write a model that reasons and answers: each token has one successor. Its prompt or its text opens the tag."""
    copy_checkpoint(folder, "qwen2_5_vl", tied=False, padding=9)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for key, weight in weights.items():
        if "visual" not in key and key.endswith(("o_proj.weight", "down_proj.weight", "o_proj.bias")):
            weight.zero_()
        if key.endswith("model.norm.weight"):
            weight.fill_(1)
    embeddings = next(value for key, value in weights.items() if key.endswith("embed_tokens.weight"))
    drawn = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(1))
    embeddings.copy_(torch.nn.functional.normalize(drawn, dim=-1))
    generation = "<think>\n" if opened else "Answer:"
    start, text = tokenizer.encode(generation)[-1], f"{'' if opened else '<think>'}{THOUGHT}</think>{CAPTION}"
    chain = [start, *tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    assert len(set(chain)) == len(chain)
    head = weights["lm_head.weight"].zero_()
    for before, after in itertools.pairwise(chain):
        head[after] = embeddings[before] * 10
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("generation }}", f"{json.dumps(generation)} }}}}"))
    return loading.load_model(str(folder), PLACE)


@pytest.fixture(scope="module")
def thinkers(tmp_path_factory):
    return {opened: save_thinker(tmp_path_factory.mktemp("thinker"), opened=opened) for opened in (True, False)}


def captioner(model, name="ar", **generate):
    settings = {"video.frames": 2, **{f"generate.{key}": value for key, value in generate.items()}}
    return Captioner(profiles.load(name, settings, env={}), model, None)


@pytest.mark.parametrize("name", full_but(["suffix"], ["ar", "self-sd", "suffix"]))
@pytest.mark.parametrize("opened", [True, False])
def test_the_caption_is_what_follows_the_tag(thinkers, name, opened):
    assert thinkers[opened].template.thinks == opened
    maker, panel, shown = captioner(thinkers[opened], name), PanelState(), []
    for event in maker.stream(CLIP):
        panel.apply(event)
        shown.append("".join(text for text, _ in panel.pieces).strip())
    caption = event.caption if isinstance(event, Finished) else None
    assert (caption.caption, caption.reasoning) == (CAPTION, THOUGHT.strip())
    assert all(CAPTION.startswith(text) for text in shown) and shown[-1] == CAPTION and shown.count("") > 3
    assert "".join(maker.stream_text(CLIP)) == CAPTION
    message = ChatAnswer("m").message(caption)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": CAPTION, "reasoning_content": THOUGHT.strip()}
    record = caption.to_dict()
    assert record["reasoning"] == THOUGHT.strip() and lean_record({**record, "job": {}})["reasoning"] == THOUGHT.strip()


def test_stop_strings_count_in_the_caption_only(thinkers):
    """`` left`` occurs in the reasoning, where it stops nothing."""
    caption = captioner(thinkers[True], stop=["left", " square"]).caption(CLIP)
    assert (caption.caption, caption.ended) == ("A large blue", "stop")


@pytest.mark.parametrize("opened", [True, False])
def test_a_text_that_ends_before_the_tag_is_an_error(thinkers, opened):
    maker = captioner(thinkers[opened], max_new_tokens=4)
    with pytest.raises(GenerationError, match=r"ended by the token limit before </think>") as caught:
        maker.caption(CLIP)
    assert "--max-new-tokens" in caught.value.hint and caught.value.kind == "reasoning"
    pieces = []
    with pytest.raises(GenerationError, match="before </think>"):
        pieces.extend(maker.stream_text(CLIP))
    assert not pieces


@pytest.mark.parametrize("name", full_but(["suffix"], ["ar", "self-sd", "suffix"]))
def test_a_grammar_begins_after_the_tag(thinkers, name):
    pytest.importorskip("llguidance", reason="needs llguidance")
    caption = captioner(thinkers[True], name, json_schema=SCHEMA).caption(CLIP)
    assert caption.reasoning == THOUGHT.strip() and caption.data == json.loads(caption.caption)
    assert set(caption.data) == {"sure"}
