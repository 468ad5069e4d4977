"""A small random pair, as the harness names it on its command line, and the captioner of that profile."""

import pytest

from research.lmms_eval.arguments import overrides_of
from tests.checkpoints import checkpoint
from vidspec.captioner import Captioner


@pytest.fixture(scope="package")
def pair():
    return checkpoint("readable"), checkpoint("readable", noise=0.05)


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
