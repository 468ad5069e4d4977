"""A small random pair, as the harness names it on its command line, and the captioner of that profile."""

import pytest
import torch
from transformers import AutoTokenizer

from research.lmms_eval.arguments import overrides_of
from tests.decoding import checkpoints
from vidspec.captioner import Captioner
from vidspec.models import loading


@pytest.fixture(scope="package")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = AutoTokenizer.from_pretrained(loading.embedded_folder("embedded", "target"))
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.setattr(checkpoints, "tokenizer", lambda: tokenizer)  # one that is trained anew differs every time
        torch.manual_seed(0)  # so do the position embeddings, which are left as they are initialised
        return checkpoints.save(folder / "target"), checkpoints.save(folder / "draft", noise=0.05)


@pytest.fixture(scope="package")
def arguments(pair):
    """As the harness passes them: parsed from ``--model_args``, and ``--batch_size`` beside them."""
    return {
        "pretrained": str(pair[0]),
        "draft": str(pair[1]),
        "device": "cpu",
        "dtype": "float32",
        "frames": 6,
        "draft.gamma": 3,
        "batch_size": 1,
    }


@pytest.fixture(scope="package")
def captioner(arguments):
    overrides = overrides_of({name: value for name, value in arguments.items() if name != "batch_size"})
    with Captioner.from_profile("vanilla-sd", overrides=overrides) as captioner:
        yield captioner
