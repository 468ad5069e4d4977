"""The target's probabilities of a caption's tokens: the same whichever method wrote it, and only on request."""

import pytest
import torch

from tests.decoding.workers.pairs import CLIPS
from tests.model_pairs import Pair, pair_checkpoints
from vidspec.engine.rows import Rows
from vidspec.events.events import Finished, Round

CLIP = CLIPS["two-objects"]
pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")


@pytest.fixture(scope="module")
def pair():
    made = Pair(*pair_checkpoints("qwen2_5_vl"), tokens=24, **{"video.frames": 4})
    yield made
    made.close()


def rounds(pair, profile, *, return_probs=True):
    captioner = pair.captioner(profile)
    captioner.client.return_probs = return_probs
    events = list(captioner.stream(CLIP))
    assert isinstance(events[-1], Finished) and events[-1].caption.token_ids == pair.plain(CLIP)
    return [event for event in events if isinstance(event, Round)]


@torch.inference_mode()
def expected(pair):
    """Return the probabilities from one pass over the whole text."""
    captioner, text = pair.captioner("ar"), pair.plain(CLIP)
    model, engine = captioner.client.setup.target.model, captioner.client.setup.target
    prefix = model.prefix(
        model.encode(model.preprocess(captioner.client.inputs.read(CLIP))), captioner.client.profile.generate.prompt
    )
    read = engine.prefill(prefix, len(text))
    (passed,) = engine.run([Rows(read.span, text[:-1])])
    logits = torch.cat([read.logits[None], passed.logits])
    return logits.softmax(-1)[range(len(text)), text]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize(
    "profile", ["ar", "vanilla-sd", "sd-tree", "sd-adaptive-tree", "suffix", "parallelvlm", "hippo"]
)
def test_probabilities_are_the_targets(pair, profile):
    said = rounds(pair, profile)
    assert all(len(one.probabilities) == len(one.token_ids) for one in said)
    found = torch.tensor([share for one in said for share in one.probabilities])
    assert torch.allclose(found, expected(pair), atol=1e-4) and 0.01 < found.min() < found.max() <= 1


@pytest.mark.parametrize("profile", ["ar", "vanilla-sd", "parallelvlm"])
def test_nobody_computes_them_unasked(pair, profile):
    assert all(one.probabilities == () for one in rounds(pair, profile, return_probs=False))


def test_loose_tokens_have_the_targets_probability_too(pair):
    captioner = pair.captioner("lvspec", {"accept.lam": 1.0})
    captioner.client.return_probs = True
    said = [event for event in captioner.stream(CLIP) if isinstance(event, Round)]
    assert all(len(one.probabilities) == len(one.token_ids) for one in said)
    loose = [
        share for one in said for share, origin in zip(one.probabilities, one.origins, strict=True) if origin == "loose"
    ]
    assert loose and max(loose) < 0.5
