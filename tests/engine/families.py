"""A small random model of every family with a prompt, and plain decoding of it."""

from functools import cache

import torch

from tests.checkpoints import llava, llava_onevision, qwen, qwen2_5_omni, video_salmonn
from tests.engine.passing import forward
from tests.model_pairs import ADAPTERS
from vidspec.models.base import families
from vidspec.video import Clip

PROMPT = "Describe the video."
#: Without those whose blocks keep states, and those of another's blocks.
_ALIKE = {"internvl", "smolvlm", "qwen3_vl_moe", "qwen3_omni_moe", "molmo2", "glm46v", "glm4v_moe", "qwen2_vl"}
FAMILIES = sorted({*families.names()} - _ALIKE - {"gemma4", "gemma4_unified", "minicpmv4_6", "qwen3_5", "qwen3_5_moe"})
ROOM = 16


@cache
def case(family):
    """(model, prompt)."""
    if family == "llava_onevision":
        model = llava_onevision.adapter(llava_onevision.TIED)
        shown = llava_onevision.pixels(6)
    elif family == "qwen2_5_omni":
        model = qwen2_5_omni.adapter()
        shown = qwen2_5_omni.pixels(model, frames=12)
    elif family == "video_salmonn2_plus":
        model = video_salmonn.adapter()
        shown = video_salmonn.pixels(model, frames=12, heard=3.1)
    elif family in ("glm4v", "video_llama_3"):
        model = ADAPTERS[family]()
        still = llava.clip(6, 60, 90)
        shown = model.preprocess(Clip.of(still.frames, still.timestamps))
    elif family.startswith("qwen"):
        model = qwen.adapter(qwen.QwenKind(family))
        shown = qwen.pixels(model, frames=12)
    else:
        model = llava.adapter(llava.LlavaKind(family))
        shown = model.preprocess(llava.clip(6, 60, 90))
    return model, model.prefix(model.encode(shown), PROMPT)


def decode(engine, prefix, tokens=8):
    """The greedy text, the logits of each place, and the state behind it."""
    state = engine.prefill(prefix, ROOM)
    logits = [state.logits]
    text = [int(state.logits.argmax())]
    for _ in range(tokens - 1):
        logits.append(forward(engine, state, text[-1:]).logits[-1])
        text.append(int(logits[-1].argmax()))
    return text, torch.stack(logits), state


@torch.inference_mode()
def stock_logits(model, prefix, token_ids):
    """(1 + n, V) behind the prompt and behind each token, by the stock language model's own forward."""
    n, axes = len(token_ids), model.decoder.axes
    embeds = torch.cat([prefix.embeds, model.embed(torch.tensor([token_ids], dtype=torch.long))], dim=1)
    following = (prefix.next_position + torch.arange(n)).expand(axes, 1, -1)
    positions = torch.cat([prefix.positions.reshape(axes, 1, -1), following], dim=-1)
    extra = {}
    if prefix.visual.deepstack:
        shown = torch.zeros(1, embeds.shape[1], dtype=torch.bool)
        shown[0, prefix.visual.index] = True
        extra = {"visual_pos_masks": shown, "deepstack_visual_embeds": list(prefix.visual.deepstack)}
    length = embeds.shape[1]
    mask = torch.full((1, 1, length, length), float("-inf")).triu(1)
    states = model.language(
        inputs_embeds=embeds,
        position_ids=positions if axes == 3 else positions[0],
        attention_mask=mask,
        use_cache=False,
        **extra,
    ).last_hidden_state
    return model.model.lm_head(states)[0, prefix.length - 1 :, : model.vocabulary]
