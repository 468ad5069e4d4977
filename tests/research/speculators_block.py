"""Run by an interpreter that has ``speculators``, without vidspec: load heads and compute one block of each.

Reads a folder for each head, with ``given.safetensors``: ``states`` of the rows before the block, ``tokens`` of the
block, the last emitted one and those that are drafted, and, where the head names no verifier to load them from,
``embedding`` and ``judge`` of the target. Writes ``made.safetensors``: logits, with a Markov head's bias, and a
confidence head's logits.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig


def compute(folder: Path) -> None:
    config = SpeculatorModelConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(str(folder), config=config, dtype=torch.float32)
    own, saved = model.state_dict(), load_file(folder / "model.safetensors")
    assert all(torch.equal(own[key], tensor) for key, tensor in saved.items()), (
        "a tensor of the file is not the model's"
    )
    given, size, drafted = load_file(folder / "given.safetensors"), config.block_size, model.draft_vocab_size
    if config.speculators_config.verifier.name_or_path is None:
        model.embed_tokens.weight.data = given["embedding"]
        model.verifier_lm_head.weight.data = given["judge"][:drafted]
        model.verifier_norm.weight.data = own["norm.weight"]
        if "lm_head.weight" not in saved:
            model.lm_head.weight.data = given["judge"]
    before = len(given["states"])
    rows = before + size + 1  # an anchor has a block behind it
    ids = torch.zeros(1, rows, dtype=torch.long)
    ids[0, before : before + size] = given["tokens"]
    states = torch.cat([given["states"], torch.zeros(size + 1, given["states"].shape[1])])[None]
    anchor = (torch.arange(rows) == before)[None].long()
    with torch.no_grad():
        hidden, logits, *_ = model._backbone_forward(
            states,
            ids,
            anchor,
            torch.zeros(1, rows, config.transformer_layer_config.hidden_size),
            0 * ids,
            max_anchors=1,
        )
        made = {"logits": logits[0]}
        if getattr(model, "markov_head", None) is not None:
            tokens = given["tokens"][None]
            first = tokens if config.sample_from_anchor else torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
            embedded = model.markov_head.prev_embeddings(first)
            made["logits"] = logits[0] + model.markov_head.block_bias(prev_token_ids=first, hidden_states=hidden)[0]
            made["sure"] = model.confidence_head(torch.cat([hidden, embedded], dim=-1))[0]
    save_file({key: tensor.contiguous() for key, tensor in made.items()}, folder / "made.safetensors")


for name in sys.argv[1:]:
    compute(Path(name))
